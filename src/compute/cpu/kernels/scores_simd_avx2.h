/* scores_simd_avx2.h - what scores_body.h wants of vectors of 8 lanes, for AVX2 and for AVX-VNNI. The products of words and
 * their addition are one instruction in AVX-VNNI, in one of two encodings, as simd_avx2.h has it for bytes. */
#ifndef KERNELS_SCORES_SIMD_AVX2_H
#define KERNELS_SCORES_SIMD_AVX2_H

#include "compute/cpu/kernels/simd_avx2.h"

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
INLINE Vi v_dot_words(Vi t, Vi k, Vi q) { return _mm256_add_epi32(t, _mm256_madd_epi16(k, q)); }
#endif

#endif
