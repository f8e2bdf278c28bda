/* simd_common.h - what the headers of all instruction sets share: INLINE and UNROLL, which turn arrays of vectors into
 * registers (there are no calls, and every index is a constant), and the keys of the random number generator. */
#ifndef KERNELS_SIMD_COMMON_H
#define KERNELS_SIMD_COMMON_H

#include <stdbool.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* ---- random words -------------------------------------------------------------------------------------------------
 *
 * The constants and keys of Philox4x32-10 (Salmon et al. 2011), for vectors that compute many blocks at once;
 * base/rng.c computes one block by the Random123 library. A round turns the counter x and the keys k into
 *
 *     x0, x1, x2, x3  ->  high(x2 M1) ^ x1 ^ k0,  low(x2 M1),  high(x0 M0) ^ x3 ^ k1,  low(x0 M0) */
#define PHILOX_M0 0xd2511f53u
#define PHILOX_M1 0xcd9e8d57u
enum { PHILOX_ROUNDS = 10 };

typedef struct Philox {
    uint32_t counter[3]; /* x1, x2, x3; x0 is the number of the block */
    uint32_t keys[PHILOX_ROUNDS][2];
} Philox;

static inline Philox v_philox_begin(uint64_t seed, uint32_t stream, uint64_t a) {
    Philox p = {.counter = {(uint32_t)a, (uint32_t)(a >> 32), stream}};
    for (uint32_t i = 0; i < PHILOX_ROUNDS; i++) {
        p.keys[i][0] = (uint32_t)seed + i * 0x9e3779b9u;
        p.keys[i][1] = (uint32_t)(seed >> 32) + i * 0xbb67ae85u;
    }
    return p;
}

#endif
