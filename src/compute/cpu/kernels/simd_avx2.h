/* simd_avx2.h - the vectors of the *_body.h files as AVX2 has them: 8 lanes, no masks, and no instruction that
 * multiplies bytes and adds four products exactly. AVX-VNNI has such an instruction, vpdpbusd; compiled with it,
 * this header is for table "avx-vnni". simd_avx512.h gives the same names 16 lanes. */
#ifndef KERNELS_SIMD_AVX2_H
#define KERNELS_SIMD_AVX2_H

#include "compute/cpu/kernels/simd_common.h"

#include <immintrin.h>

/* vpdpbusd on 256 bits comes in two encodings: VEX in CPUs with AVX-VNNI, EVEX in those with AVX-512 VL and VNNI.
 * The second is there for the tests, which prove the arithmetic of the first where only the second runs. */
#if defined(__AVXVNNI__)
#define DPBUSD(t, w, q) _mm256_dpbusd_avx_epi32(t, w, q)
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define DPBUSD(t, w, q) _mm256_dpbusd_epi32(t, w, q)
#endif

#if defined(DPBUSD)
enum { BYTE_CODES_LOSE_BIAS = 0 }; /* v_dot_4_groups does not subtract 128 from 8-bit codes */
#else
enum { BYTE_CODES_LOSE_BIAS = 1 };
#define ACTS_ARE_WORDS /* ACT_Q16: one product of words takes the place of two products of bytes and their widening */
#endif

enum {
    LANES = 8,
    ROWS_TOGETHER = 2,
    ROWS_MAX = 8,
    ROWS_NARROW = 2,
    COLUMNS_NARROW = 4,
    COLUMNS_WIDE = 1,
    MIX_COLUMNS = 2,
    KEY_VECTORS = 2,
};

typedef __m256 Vf;
typedef __m256i Vi;

INLINE Vf v_zero(void) { return _mm256_setzero_ps(); }
INLINE Vf v_set(float x) { return _mm256_set1_ps(x); }
INLINE Vf v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float *p, Vf a) { _mm256_storeu_ps(p, a); }
INLINE Vf v_load_half(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
INLINE Vf v_set_half(const void *p) { /* copies one half to all lanes */
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
INLINE void v_store_half(void *p, Vf a) { _mm_storeu_si128(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }

/* These load and store the first n of LANES elements. The other lanes are zero after a load, and memory after them
 * stays as it is. */
INLINE Vi first(int64_t n) {
    int32_t m = n >= 8 ? 8 : n <= 0 ? 0 : (int32_t)n;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(m), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE size_t half_bytes(int64_t n) { return n >= 8 ? 16 : n <= 0 ? 0 : 2 * (size_t)n; }
INLINE Vf v_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
INLINE void v_store_n(float *p, int64_t n, Vf a) { _mm256_maskstore_ps(p, first(n), a); }
INLINE Vf v_load_half_n(const void *p, int64_t n) {
    uint16_t h[8] = {0};
    __builtin_memcpy(h, p, half_bytes(n));
    return v_load_half(h);
}
INLINE void v_store_half_n(void *p, int64_t n, Vf a) {
    uint16_t h[8];
    v_store_half(h, a);
    __builtin_memcpy(p, h, half_bytes(n));
}

INLINE Vf v_add(Vf a, Vf b) { return _mm256_add_ps(a, b); }
INLINE Vf v_sub(Vf a, Vf b) { return _mm256_sub_ps(a, b); }
INLINE Vf v_mul(Vf a, Vf b) { return _mm256_mul_ps(a, b); }
INLINE Vf v_div(Vf a, Vf b) { return _mm256_div_ps(a, b); }
INLINE Vf v_fma(Vf a, Vf b, Vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vf v_max(Vf a, Vf b) { return _mm256_max_ps(a, b); }
INLINE Vf v_min(Vf a, Vf b) { return _mm256_min_ps(a, b); } /* a < b ? a : b */
INLINE Vf v_abs(Vf a) { return _mm256_andnot_ps(v_set(-0.0f), a); }
/* Returns a where x >= limit, and 0 elsewhere. */
INLINE Vf v_where_ge(Vf x, float limit, Vf a) { return _mm256_and_ps(_mm256_cmp_ps(x, v_set(limit), _CMP_GE_OQ), a); }

INLINE bool v_all_ge(Vf x, float limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, v_set(limit), _CMP_GE_OQ)) == 0xff;
}

/* Folds 8 -> 4 -> 2 -> 1 by adding the upper half to the lower. */
INLINE float v_fold(Vf a) {
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
/* Returns v_fold(a[i]) in lane i, 0 <= i < LANES. Each level folds two vectors into one. */
INLINE Vf v_fold_all(const Vf a[8]) {
    Vf b[4], c[2];
    UNROLL for (int i = 0; i < 4; i++) /* b: 4 sums of a[i] | 4 of a[i+4] */
        b[i] = v_add(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20), _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    UNROLL for (int i = 0; i < 2; i++) /* in each half, 2 of b[i], 2 of b[i+2] */
        c[i] = v_add(_mm256_shuffle_ps(b[i], b[i + 2], 0x44), _mm256_shuffle_ps(b[i], b[i + 2], 0xee));
    Vf d = v_add(_mm256_shuffle_ps(c[0], c[1], 0x88), _mm256_shuffle_ps(c[0], c[1], 0xdd));
    return _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7)); /* the order was 0 2 1 3 | 4 6 5 7 */
}
/* Transposes: element j of vector i goes to element i of vector j. */
INLINE void v_transpose(Vf a[8]) {
    Vf b[8], c[8];
    UNROLL for (int i = 0; i < 8; i += 2) { /* in each half: pairs of two rows */
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int k = 0; k < 2; k++) { /* c[i + j]: column j of the half, four rows */
        c[i + 2 * k] = _mm256_shuffle_ps(b[i + k], b[i + 2 + k], 0x44);
        c[i + 2 * k + 1] = _mm256_shuffle_ps(b[i + k], b[i + 2 + k], 0xee);
    }
    UNROLL for (int j = 0; j < 4; j++) {
        a[j] = _mm256_permute2f128_ps(c[j], c[j + 4], 0x20);
        a[j + 4] = _mm256_permute2f128_ps(c[j], c[j + 4], 0x31);
    }
}
INLINE float v_max_all(Vf a) {
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

INLINE Vi v_load_int(const void *p) { return _mm256_loadu_si256(p); }
INLINE Vi v_set_int(int32_t x) { return _mm256_set1_epi32(x); }
INLINE Vi v_set_4_bytes(const void *p) {
    int32_t x;
    __builtin_memcpy(&x, p, 4);
    return _mm256_set1_epi32(x);
}
INLINE Vi v_and(Vi a, Vi b) { return _mm256_and_si256(a, b); }
INLINE Vi v_or(Vi a, Vi b) { return _mm256_or_si256(a, b); }
INLINE Vi v_shift_left(Vi a, int n) { return _mm256_slli_epi32(a, n); }
INLINE Vi v_shift_right(Vi a, int n) { return _mm256_srli_epi32(a, n); }
INLINE Vi v_shift_right_signed(Vi a, int n) { return _mm256_srai_epi32(a, n); }
INLINE Vi v_sub_int(Vi a, Vi b) { return _mm256_sub_epi32(a, b); }
INLINE Vi v_max_int(Vi a, Vi b) { return _mm256_max_epi32(a, b); }
INLINE Vi v_add_int(Vi a, Vi b) { return _mm256_add_epi32(a, b); }
/* Returns a + b. The compiler, which may add integers in any order, keeps this order: otherwise it computes all
 * products of a long sum before it adds them, and stores them all, because there are only 16 registers. */
INLINE Vi v_add_in_order(Vi a, Vi b) {
    a = _mm256_add_epi32(a, b);
    __asm__("" : "+x"(a));
    return a;
}
/* Returns a in a register: otherwise the compiler reads it from memory again for each instruction that uses it. */
INLINE Vi v_in_register(Vi a) {
    __asm__("" : "+x"(a));
    return a;
}
INLINE Vf v_as_float(Vi a) { return _mm256_castsi256_ps(a); }
INLINE Vi v_as_int(Vf a) { return _mm256_castps_si256(a); }
INLINE Vf v_from_int(Vi a) { return _mm256_cvtepi32_ps(a); }
INLINE Vi v_round(Vf a) { return _mm256_cvtps_epi32(a); }
INLINE Vi v_load_bytes(const void *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p));
} /* widens LANES unsigned bytes */
INLINE Vf v_load_u8(const void *p) { return v_from_int(v_load_bytes(p)); }
INLINE Vf v_load_i8(const void *p) { return v_from_int(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p))); }
/* Replaces each byte of a, which is below 16, by an entry of a table of 16. */
INLINE Vi v_look_up(const uint8_t table[16], Vi a) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table)), a);
}
/* Returns the low two bytes of each lane, in the order of the lanes. */
INLINE __m128i low_u16(Vi a) {
    Vi packed = _mm256_packus_epi32(v_and(a, v_set_int(0xffff)), _mm256_setzero_si256());
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
INLINE void v_store_i8(int8_t *p, Vi a) {
    __m128i h = _mm_and_si128(low_u16(a), _mm_set1_epi16(0xff));
    _mm_storel_epi64((void *)p, _mm_packus_epi16(h, h));
}
/* Stores LANES words, the second and the third of each four exchanged (layout.h). */
INLINE void v_store_words(void *p, Vi a) {
    __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    _mm_storeu_si128(p, _mm_shuffle_epi8(low_u16(a), order));
}
INLINE Vi v_shift_words(Vi a, int n) { return _mm256_srli_epi16(a, n); } /* to the right */
INLINE int32_t v_sum_int(Vi a) {
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}

/* Adds the products of four groups of codes w with the 16 activations at q[row] + at to t[row], exactly. */
#if defined(DPBUSD)
INLINE void v_dot_4_groups(uint32_t code_max, int n_rows, const Vi w[4], const int8_t *const *q, int at, Vi *t) {
    (void)code_max;
    UNROLL for (int g = 0; g < 4; g++) UNROLL for (int r = 0; r < n_rows; r++)
        t[r] = DPBUSD(t[r], w[g], v_set_4_bytes(q[r] + at + 4 * g));
}
#else
/* The same for one row. vpmaddubsw adds two products with saturation at 32767, and |q| <= 127:
 *   codes up to 255: 2*255*127 is too much. With s = code - 128, and the sign of s moved to q, the sum is at most
 *     2*128*127 = 32512.
 *   codes up to 127: a sum is at most 32258.
 *   codes up to 63, 31, 15: a sum is at most 16002, 7874, 3810; 2, 4, 8 of them fit in 16 bits. */
INLINE Vi dot_4_groups(uint32_t code_max, const Vi w[4], const int8_t *q, Vi t) {
    Vi ones = _mm256_set1_epi16(1);
    int n_sum = code_max >= 127 ? 1 : code_max == 63 ? 2 : 4; /* sums that are added before they are widened */
    UNROLL for (int g = 0; g < 4; g += n_sum) {
        Vi sum = _mm256_setzero_si256();
        UNROLL for (int i = g; i < g + n_sum; i++) {
            Vi x = v_set_4_bytes(q + 4 * i);
            if (code_max == 255) {
                Vi s = _mm256_xor_si256(w[i], _mm256_set1_epi8((char)0x80));
                sum = _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(x, s));
            } else sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[i], x));
        }
        t = v_add_in_order(t, _mm256_madd_epi16(sum, ones));
    }
    return t;
}
INLINE void v_dot_4_groups(uint32_t code_max, int n_rows, const Vi w[4], const int8_t *const *q, int at, Vi *t) {
    UNROLL for (int r = 0; r < n_rows; r++) t[r] = dot_4_groups(code_max, w, q[r] + at, t[r]);
}
#endif

INLINE void v_store_bf16(uint16_t *p, Vf a) {
    Vi bits = v_as_int(a), odd = v_and(v_shift_right(bits, 16), v_set_int(1));
    Vi h = v_shift_right(v_add_int(bits, v_add_int(odd, v_set_int(0x7fff))), 16);
    Vi tiny = v_as_int(_mm256_cmp_ps(v_abs(a), v_set(0x1p-126f), _CMP_LT_OQ));
    Vi nan = v_as_int(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    h = _mm256_blendv_epi8(h, v_and(h, v_set_int(0x8000)), tiny);
    h = _mm256_blendv_epi8(h, v_or(v_shift_right(bits, 16), v_set_int(0x40)), nan);
    _mm_storeu_si128((void *)p, low_u16(h));
}
/* The products of BF16 matrices (ref_matmul.c). The odd inputs are the upper halves of the lanes; the even ones are
 * shifted up. */
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

/* ---- scores by integers: keys transposed to vectors of words (scores_body.h) ------------------------------------- */

INLINE void v_store_int(int32_t *p, Vi a) { _mm256_storeu_si256((void *)p, a); }

INLINE void v_turn_blocks(const unsigned char *const *rows, size_t at, Vi units[8]) {
    Vf a[8];
    UNROLL for (int i = 0; i < 8; i++) a[i] = v_as_float(v_load_int(rows[i] + at));
    v_transpose(a);
    UNROLL for (int i = 0; i < 8; i++) units[i] = v_as_int(a[i]);
}
INLINE void v_to_words(Vi unit, Vi *even, Vi *odd) {
    *even = _mm256_srai_epi16(_mm256_slli_epi16(unit, 8), 8);
    *odd = _mm256_srai_epi16(unit, 8);
}
#if defined(__AVXVNNI__)
INLINE Vi v_dot_words(Vi t, Vi k, Vi q) { return _mm256_dpwssd_avx_epi32(t, k, q); }
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
INLINE Vi v_dot_words(Vi t, Vi k, Vi q) { return _mm256_dpwssd_epi32(t, k, q); }
#else
INLINE Vi v_dot_words(Vi t, Vi k, Vi q) { return v_add_in_order(t, _mm256_madd_epi16(k, q)); }
#endif

/* ---- rows of logits: comparisons, doubles and random words (row_body.h) ----------------------------------------- */

INLINE uint32_t v_mask_gt(Vf a, Vf b) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
INLINE uint32_t v_mask_ge(Vf a, Vf b) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
INLINE Vf v_load_blocks(const float *row, const uint32_t *blocks) {
    __m256 a = _mm256_castps128_ps256(_mm_loadu_ps(row + 4 * (size_t)blocks[0]));
    return _mm256_insertf128_ps(a, _mm_loadu_ps(row + 4 * (size_t)blocks[1]), 1);
}

typedef __m256d Vd;
INLINE Vd d_set(double x) { return _mm256_set1_pd(x); }
INLINE Vd d_widen(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
INLINE void d_store(double *p, Vd a) { _mm256_storeu_pd(p, a); }
INLINE Vd d_add(Vd a, Vd b) { return _mm256_add_pd(a, b); }
INLINE Vd d_sub(Vd a, Vd b) { return _mm256_sub_pd(a, b); }
INLINE Vd d_mul(Vd a, Vd b) { return _mm256_mul_pd(a, b); }
INLINE Vd d_fma(Vd a, Vd b, Vd c) { return _mm256_fmadd_pd(a, b, c); }
INLINE Vd d_where_ge(Vd x, double limit, Vd a) { return _mm256_and_pd(_mm256_cmp_pd(x, d_set(limit), _CMP_GE_OQ), a); }
INLINE Vd d_scale(Vd a, Vd k) {
    __m256i bits = _mm256_slli_epi64(_mm256_castpd_si256(k), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(a), bits));
}

enum { PHILOX_BLOCKS = 4 };
INLINE void v_philox(const Philox *p, const uint32_t *blocks, uint32_t *words) {
    __m256i x0 = _mm256_cvtepu32_epi64(_mm_loadu_si128((const void *)blocks));
    __m256i x1 = _mm256_set1_epi64x(p->counter[0]), x2 = _mm256_set1_epi64x(p->counter[1]);
    __m256i x3 = _mm256_set1_epi64x(p->counter[2]);
    UNROLL for (int i = 0; i < PHILOX_ROUNDS; i++) {
        __m256i a = _mm256_mul_epu32(x0, _mm256_set1_epi64x(PHILOX_M0));
        __m256i b = _mm256_mul_epu32(x2, _mm256_set1_epi64x(PHILOX_M1));
        x0 = _mm256_xor_si256(_mm256_srli_epi64(b, 32), _mm256_xor_si256(x1, _mm256_set1_epi64x(p->keys[i][0])));
        x2 = _mm256_xor_si256(_mm256_srli_epi64(a, 32), _mm256_xor_si256(x3, _mm256_set1_epi64x(p->keys[i][1])));
        x1 = b, x3 = a;
    }
    __m256i first = _mm256_blend_epi32(x0, _mm256_slli_epi64(x1, 32), 0xaa); /* two words of each block */
    __m256i last = _mm256_blend_epi32(x2, _mm256_slli_epi64(x3, 32), 0xaa);
    __m256i even = _mm256_unpacklo_epi64(first, last), odd = _mm256_unpackhi_epi64(first, last); /* whole blocks */
    _mm256_storeu_si256((void *)words, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256((void *)(words + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}

#endif
