/* rows_avx512.c - passes over rows of logits with AVX-512: masks, doubles (8 lanes) and Philox (8 blocks at a time) for
 * row_body.h. For tables "avx512" and "avx512-bf16". */
#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx512.h"

#include "compute/cpu/kernels/philox.h"
#include "compute/cpu/kernels/tables.h"

/* Bit i: does a[i] > b[i] (a[i] >= b[i]) hold? */
INLINE uint32_t v_mask_gt(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
INLINE uint32_t v_mask_ge(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
/* The numbers 4 blocks[i] .. 4 blocks[i] + 3 of a row, for LANES / 4 blocks. */
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
/* a where x >= limit, else 0 */
INLINE Vd d_where_ge(Vd x, double limit, Vd a) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x, d_set(limit), _CMP_GE_OQ), a);
}
/* a times 2 to the integer in the low bits of k */
INLINE Vd d_scale(Vd a, Vd k) {
    __m512i bits = _mm512_slli_epi64(_mm512_castpd_si512(k), 52);
    return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(a), bits));
}

/* Lanes of 64 bits, of which the lower halves count. */
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

#define ROW_TABLE row_kernels_avx512
#include "compute/cpu/kernels/row_body.h"
#endif
