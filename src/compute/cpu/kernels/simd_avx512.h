/* simd_avx512.h - the vectors of the *_body.h files as AVX-512 has them: 16 lanes.
 * simd_avx2.h gives the same names 8 lanes. */
#ifndef KERNELS_SIMD_AVX512_H
#define KERNELS_SIMD_AVX512_H

#include "compute/cpu/kernels/simd_common.h"

#include <immintrin.h>

enum {
    LANES = 16,
    ROWS_TOGETHER = 4, /* rows of a block type whose byte products take turns */
    ROWS_MAX = 8,      /* the most rows of one pass over a plain type */
    ROWS_NARROW = 2,   /* up to this many rows of a plain type take COLUMNS_NARROW vectors, more rows COLUMNS_WIDE */
    COLUMNS_NARROW = 4,
    COLUMNS_WIDE = 2,
    MIX_COLUMNS = 4,          /* vectors of a value row that attn_mix holds for four heads */
    KEY_VECTORS = 4,          /* vectors of packed keys that a query of packed_scores takes, or key_block_scores */
    BYTE_CODES_LOSE_BIAS = 0, /* v_dot_4_groups does not subtract 128 from 8-bit codes */
};

typedef __m512 Vf;
typedef __m512i Vi;

INLINE Vf v_zero(void) { return _mm512_setzero_ps(); }
INLINE Vf v_set(float x) { return _mm512_set1_ps(x); }
INLINE Vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, Vf a) { _mm512_storeu_ps(p, a); }
INLINE Vf v_load_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE Vf v_set_half(const void *p) { /* copies one half to all lanes */
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
INLINE void v_store_half(void *p, Vf a) { _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }

/* These load and store the first n of LANES elements. The other lanes are zero after a load, and memory after them
 * stays as it is. */
INLINE __mmask16 first(int64_t n) {
    uint32_t bits = n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1;
    return (__mmask16)bits;
}
INLINE Vf v_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
INLINE void v_store_n(float *p, int64_t n, Vf a) { _mm512_mask_storeu_ps(p, first(n), a); }
INLINE Vf v_load_half_n(const void *p, int64_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
INLINE void v_store_half_n(void *p, int64_t n, Vf a) {
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

INLINE Vf v_add(Vf a, Vf b) { return _mm512_add_ps(a, b); }
INLINE Vf v_sub(Vf a, Vf b) { return _mm512_sub_ps(a, b); }
INLINE Vf v_mul(Vf a, Vf b) { return _mm512_mul_ps(a, b); }
INLINE Vf v_div(Vf a, Vf b) { return _mm512_div_ps(a, b); }
INLINE Vf v_fma(Vf a, Vf b, Vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Vf v_max(Vf a, Vf b) { return _mm512_max_ps(a, b); }
INLINE Vf v_min(Vf a, Vf b) { return _mm512_min_ps(a, b); } /* a < b ? a : b */
INLINE Vf v_abs(Vf a) { return _mm512_abs_ps(a); }
/* Returns a where x >= limit, and 0 elsewhere. */
INLINE Vf v_where_ge(Vf x, float limit, Vf a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, v_set(limit), _CMP_GE_OQ), a);
}

INLINE bool v_all_ge(Vf x, float limit) { return _mm512_cmp_ps_mask(x, v_set(limit), _CMP_GE_OQ) == 0xffff; }

/* Folds 16 -> 8 -> 4 -> 2 -> 1 by adding the upper half to the lower. */
INLINE float v_fold(Vf a) {
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
/* Returns v_fold(a[i]) in lane i, 0 <= i < LANES. Each level folds two vectors into one, so that no lane is wasted; the
 * vectors are paired so that the lanes come out in order. */
INLINE Vf v_fold_all(const Vf a[16]) {
    Vf b[8], c[4], d[2];
    UNROLL for (int i = 0; i < 8; i++) /* b: 8 sums of a[i] | 8 of a[i+8] */
        b[i] = v_add(_mm512_shuffle_f32x4(a[i], a[i + 8], 0x44), _mm512_shuffle_f32x4(a[i], a[i + 8], 0xee));
    UNROLL for (int i = 0; i < 4; i++) /* 4 of a[i] | a[i+8] | a[i+4] | a[i+12] */
        c[i] = v_add(_mm512_shuffle_f32x4(b[i], b[i + 4], 0x88), _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd));
    UNROLL for (int i = 0; i < 2; i++) /* in each quarter, 2 of c[i], 2 of c[i+2] */
        d[i] = v_add(_mm512_shuffle_ps(c[i], c[i + 2], 0x44), _mm512_shuffle_ps(c[i], c[i + 2], 0xee));
    Vf e = v_add(_mm512_shuffle_ps(d[0], d[1], 0x88), _mm512_shuffle_ps(d[0], d[1], 0xdd));
    /* quarters hold a[0 2 1 3], a[8..], a[4..], a[12..] */
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), e);
}
/* Transposes: element j of vector i goes to element i of vector j. */
INLINE void v_transpose(Vf a[16]) {
    Vf b[16], c[16];
    UNROLL for (int i = 0; i < 16; i += 2) { /* in each quarter: pairs of two rows */
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4)
        UNROLL for (int k = 0; k < 2; k++) { /* c[i + j]: column j of the quarter, four rows */
        c[i + 2 * k] = _mm512_shuffle_ps(b[i + k], b[i + 2 + k], 0x44);
        c[i + 2 * k + 1] = _mm512_shuffle_ps(b[i + k], b[i + 2 + k], 0xee);
    }
    UNROLL for (int j = 0; j < 4; j++) UNROLL for (int k = 0; k < 2; k++) {            /* quarters 0 and 1, 2 and 3 */
        b[j + 8 * k] = _mm512_shuffle_f32x4(c[j + 8 * k], c[j + 8 * k + 4], 0x88);     /* quarters 0, 2 of eight rows */
        b[j + 8 * k + 4] = _mm512_shuffle_f32x4(c[j + 8 * k], c[j + 8 * k + 4], 0xdd); /* 1, 3 */
    }
    UNROLL for (int j = 0; j < 8; j++) {
        a[j] = _mm512_shuffle_f32x4(b[j], b[j + 8], 0x88);
        a[j + 8] = _mm512_shuffle_f32x4(b[j], b[j + 8], 0xdd);
    }
}
INLINE float v_max_all(Vf a) { return _mm512_reduce_max_ps(a); }

INLINE Vi v_load_int(const void *p) { return _mm512_loadu_si512(p); }
INLINE Vi v_set_int(int32_t x) { return _mm512_set1_epi32(x); }
INLINE Vi v_set_4_bytes(const void *p) {
    int32_t x;
    __builtin_memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}
INLINE Vi v_and(Vi a, Vi b) { return _mm512_and_si512(a, b); }
INLINE Vi v_or(Vi a, Vi b) { return _mm512_or_si512(a, b); }
INLINE Vi v_shift_left(Vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
INLINE Vi v_shift_right(Vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
INLINE Vi v_shift_right_signed(Vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
INLINE Vi v_sub_int(Vi a, Vi b) { return _mm512_sub_epi32(a, b); }
INLINE Vi v_max_int(Vi a, Vi b) { return _mm512_max_epi32(a, b); }
INLINE Vi v_add_int(Vi a, Vi b) { return _mm512_add_epi32(a, b); }
INLINE Vf v_as_float(Vi a) { return _mm512_castsi512_ps(a); }
INLINE Vi v_as_int(Vf a) { return _mm512_castps_si512(a); }
INLINE Vf v_from_int(Vi a) { return _mm512_cvtepi32_ps(a); }
INLINE Vi v_round(Vf a) { return _mm512_cvtps_epi32(a); }
INLINE Vi v_load_bytes(const void *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
} /* widens LANES unsigned bytes */
INLINE Vf v_load_u8(const void *p) { return v_from_int(v_load_bytes(p)); }
/* Replaces each byte of a, which is below 16, by an entry of a table of 16. */
INLINE Vi v_look_up(const uint8_t table[16], Vi a) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table)), a);
}
INLINE Vf v_load_i8(const void *p) { return v_from_int(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
INLINE void v_store_i8(int8_t *p, Vi a) { _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(a)); }
INLINE int32_t v_sum_int(Vi a) { return _mm512_reduce_add_epi32(a); }

/* BF16 (ref_matmul.c), for tables with the instruction vdpbf16ps and without. */
#if defined(__AVX512BF16__)
INLINE void v_store_bf16(uint16_t *p, Vf a) {
    __m256bh h = _mm512_cvtneps_pbh(a);
    __builtin_memcpy(p, &h, sizeof h);
}
INLINE Vf v_dot_bf16_pair(Vi w, Vi x, Vf acc) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }
INLINE uint64_t bf16_begin(void) { return 0; }
INLINE bool bf16_end(uint64_t control) {
    (void)control;
    return true;
}
#else
INLINE void v_store_bf16(uint16_t *p, Vf a) {
    Vi bits = v_as_int(a), odd = v_and(v_shift_right(bits, 16), v_set_int(1));
    Vi h = v_shift_right(v_add_int(bits, v_add_int(odd, v_set_int(0x7fff))), 16);
    __mmask16 tiny = _mm512_cmp_ps_mask(v_abs(a), v_set(0x1p-126f), _CMP_LT_OQ);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    h = _mm512_mask_and_epi32(h, tiny, h, v_set_int(0x8000));
    h = _mm512_mask_or_epi32(h, nan, v_shift_right(bits, 16), v_set_int(0x40));
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(h));
}
/* The odd inputs are the upper halves of the lanes; the even ones are shifted up. */
INLINE Vf v_dot_bf16_pair(Vi w, Vi x, Vf acc) {
    Vi upper = v_set_int((int32_t)0xffff0000);
    acc = v_fma(v_as_float(v_and(w, upper)), v_as_float(v_and(x, upper)), acc);
    return v_fma(v_as_float(v_shift_left(w, 16)), v_as_float(v_shift_left(x, 16)), acc);
}
/* Between these two calls subnormal results become zero, as vdpbf16ps makes them. */
INLINE uint64_t bf16_begin(void) {
    unsigned control = _mm_getcsr();
    _mm_setcsr(control | 0x8040);
    return control;
}
/* Returns whether the results since bf16_begin are certainly those of vdpbf16ps. */
INLINE bool bf16_end(uint64_t control) {
    _mm_setcsr((unsigned)control);
    return true;
}
#endif

/* Adds the products of four groups of codes w with the 16 activations at q[row] + at to t[row], exactly. */
INLINE void v_dot_4_groups(uint32_t code_max, int n_rows, const Vi w[4], const int8_t *const *q, int at, Vi *t) {
    (void)code_max;
    UNROLL for (int g = 0; g < 4; g++)
        UNROLL for (int r = 0; r < n_rows; r++) /* written out, because compilers use two instructions for it */
        __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(t[r]) : "v"(w[g]), "m"(*(const int8_t(*)[4])(q[r] + at + 4 * g)));
}

/* Adds the products of four codes with four activations to each lane of t, exactly. */
#define TILES_IN_PAIRS 1
INLINE Vi v_dot_bytes(Vi w, Vi q, Vi t) { return _mm512_dpbusd_epi32(t, w, q); }

/* ---- scores by integers: keys transposed to vectors of words (scores_body.h) ------------------------------------- */

INLINE void v_store_int(int32_t *p, Vi a) { _mm512_storeu_si512(p, a); }

/* Transposes the blocks that are `at` bytes after the beginnings of 16 keys. The halves of a register hold two keys,
 * four apart, so that the last step leaves the keys in order. */
INLINE void v_turn_blocks(const unsigned char *const *rows, size_t at, Vi units[8]) {
    Vi a[8], b[8], c[8];
    UNROLL for (int i = 0; i < 8; i++) {
        int key = i / 4 * 8 + i % 4;
        a[i] = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(rows[key] + at)));
        a[i] = _mm512_inserti64x4(a[i], _mm256_loadu_si256((const void *)(rows[key + 4] + at)), 1);
    }
    UNROLL for (int i = 0; i < 8; i += 2) { /* in each quarter: pairs of two keys */
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int k = 0; k < 2; k++) { /* c[i + j]: unit j of the quarter, four keys */
        c[i + 2 * k] = _mm512_unpacklo_epi64(b[i + k], b[i + 2 + k]);
        c[i + 2 * k + 1] = _mm512_unpackhi_epi64(b[i + k], b[i + 2 + k]);
    }
    UNROLL for (int j = 0; j < 4; j++) {
        units[j] = _mm512_shuffle_i32x4(c[j], c[j + 4], 0x88);
        units[j + 4] = _mm512_shuffle_i32x4(c[j], c[j + 4], 0xdd);
    }
}
INLINE void v_to_words(Vi unit, Vi *even, Vi *odd) {
    *even = _mm512_srai_epi16(_mm512_slli_epi16(unit, 8), 8);
    *odd = _mm512_srai_epi16(unit, 8);
}
INLINE Vi v_dot_words(Vi t, Vi k, Vi q) { return _mm512_dpwssd_epi32(t, k, q); }

/* ---- rows of logits: comparisons, doubles and random words (row_body.h) ----------------------------------------- */

/* Bit i of the result is whether a[i] > b[i], or a[i] >= b[i]. */
INLINE uint32_t v_mask_gt(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
INLINE uint32_t v_mask_ge(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
/* Loads numbers 4 blocks[i] to 4 blocks[i] + 3 of a row for each of LANES / 4 blocks. */
INLINE Vf v_load_blocks(const float *row, const uint32_t *blocks) {
    __m512 a = _mm512_castps128_ps512(_mm_loadu_ps(row + 4 * (size_t)blocks[0]));
    a = _mm512_insertf32x4(a, _mm_loadu_ps(row + 4 * (size_t)blocks[1]), 1);
    a = _mm512_insertf32x4(a, _mm_loadu_ps(row + 4 * (size_t)blocks[2]), 2);
    return _mm512_insertf32x4(a, _mm_loadu_ps(row + 4 * (size_t)blocks[3]), 3);
}

typedef __m512d Vd;
INLINE Vd d_set(double x) { return _mm512_set1_pd(x); }
INLINE Vd d_widen(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
INLINE void d_store(double *p, Vd a) { _mm512_storeu_pd(p, a); }
INLINE Vd d_add(Vd a, Vd b) { return _mm512_add_pd(a, b); }
INLINE Vd d_sub(Vd a, Vd b) { return _mm512_sub_pd(a, b); }
INLINE Vd d_mul(Vd a, Vd b) { return _mm512_mul_pd(a, b); }
INLINE Vd d_fma(Vd a, Vd b, Vd c) { return _mm512_fmadd_pd(a, b, c); }
/* Returns a where x >= limit, and 0 elsewhere. */
INLINE Vd d_where_ge(Vd x, double limit, Vd a) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x, d_set(limit), _CMP_GE_OQ), a);
}
/* Returns a times two to the power of the integer in the low bits of k. */
INLINE Vd d_scale(Vd a, Vd k) {
    __m512i bits = _mm512_slli_epi64(_mm512_castpd_si512(k), 52);
    return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(a), bits));
}

/* Computes PHILOX_BLOCKS blocks of random words, in lanes of 64 bits of which only the lower halves matter. */
enum { PHILOX_BLOCKS = 8 };
INLINE void v_philox(const Philox *p, const uint32_t *blocks, uint32_t *words) {
    __m512i x0 = _mm512_cvtepu32_epi64(_mm256_loadu_si256((const void *)blocks));
    __m512i x1 = _mm512_set1_epi64(p->counter[0]), x2 = _mm512_set1_epi64(p->counter[1]);
    __m512i x3 = _mm512_set1_epi64(p->counter[2]);
    UNROLL for (int i = 0; i < PHILOX_ROUNDS; i++) {
        __m512i a = _mm512_mul_epu32(x0, _mm512_set1_epi64(PHILOX_M0));
        __m512i b = _mm512_mul_epu32(x2, _mm512_set1_epi64(PHILOX_M1));
        x0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(b, 32), x1, _mm512_set1_epi64(p->keys[i][0]), 0x96); /* xor */
        x2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), x3, _mm512_set1_epi64(p->keys[i][1]), 0x96);
        x1 = b, x3 = a;
    }
    __m512i first = _mm512_mask_shuffle_epi32(x0, 0xaaaa, x1, _MM_PERM_CCAA); /* two words of each block */
    __m512i last = _mm512_mask_shuffle_epi32(x2, 0xaaaa, x3, _MM_PERM_CCAA);
    __m512i even = _mm512_unpacklo_epi64(first, last), odd = _mm512_unpackhi_epi64(first, last); /* whole blocks */
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi64(even, low, odd));
    _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(even, high, odd));
}

#endif
