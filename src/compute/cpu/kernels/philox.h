/* philox.h - the constants and keys of Philox4x32-10 (Salmon et al. 2011), for tables that compute many blocks at once;
 * base/rng.c has one block by the Random123 library. A round makes of the counter x and the keys k
 *
 *     x0, x1, x2, x3  ->  high(x2 M1) ^ x1 ^ k0,  low(x2 M1),  high(x0 M0) ^ x3 ^ k1,  low(x0 M0) */
#ifndef KERNELS_PHILOX_H
#define KERNELS_PHILOX_H

#include <stdint.h>

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
