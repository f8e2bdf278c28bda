/* scores_avx512.c - scores.h for AVX-512 with VNNI: 16 keys to a vector, two products a lane by vpdpwssd. Only this file
 * is compiled for these instructions (Makefile). */
#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx512.h"

INLINE void v_store_int(int32_t *p, Vi a) { _mm512_storeu_si512(p, a); }

/* Blocks `at` bytes into the rows of 16 keys. In the halves of a register lie two keys, four apart, so that the last step
 * leaves the keys in order. */
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

#define TABLE score_kernels_avx512
#define TABLE_NAME "avx512"
#include "compute/cpu/kernels/scores_body.h"
#endif
