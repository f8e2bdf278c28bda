/* rows_avx2.c - passes over rows of logits with AVX2: masks, doubles (4 lanes) and Philox (4 blocks at a time) for
 * row_body.h; rows_avx512.c explains the functions. For tables "avx2" and "avx-vnni". */
#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx2.h"

#include "compute/cpu/kernels/philox.h"
#include "compute/cpu/kernels/tables.h"

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

#define ROW_TABLE row_kernels_avx2
#include "compute/cpu/kernels/row_body.h"
#endif
