/* keyed_hash.c - SipHash-1-3 (Aumasson and Bernstein 2012, with one round per word and three at the end) and the
 * source of its keys.
 *
 * XXH3 with a seed is faster, but was not designed to withstand somebody who looks for collisions under every seed;
 * SipHash was. Proof: tests/base/test_hash_flood.c, which compares it with Python's hash of bytes. */
#include "base/keyed_hash.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

HashKey hash_key_new(void) {
    HashKey key;
    if (getrandom(&key, sizeof key, GRND_NONBLOCK) == (ssize_t)sizeof key) return key;
    struct timespec now; /* an old kernel, or the first seconds after booting: hard to guess is all that is left */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (HashKey){(uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u, (uint64_t)(uintptr_t)&key ^ (uint64_t)now.tv_sec};
}

typedef struct SipState {
    uint64_t v0, v1, v2, v3;
} SipState;

static uint64_t rotated(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static void sip_round(SipState *s) {
    s->v0 += s->v1, s->v2 += s->v3;
    s->v1 = rotated(s->v1, 13) ^ s->v0, s->v3 = rotated(s->v3, 16) ^ s->v2;
    s->v0 = rotated(s->v0, 32);
    s->v2 += s->v1, s->v0 += s->v3;
    s->v1 = rotated(s->v1, 17) ^ s->v2, s->v3 = rotated(s->v3, 21) ^ s->v0;
    s->v2 = rotated(s->v2, 32);
}

static void absorb(SipState *s, uint64_t word) {
    s->v3 ^= word;
    sip_round(s);
    s->v0 ^= word;
}

uint64_t keyed_hash(const HashKey *key, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    SipState s = {key->a ^ 0x736f6d6570736575u, key->b ^ 0x646f72616e646f6du, key->a ^ 0x6c7967656e657261u,
                  key->b ^ 0x7465646279746573u};
    uint64_t word, last = (uint64_t)n << 56;
    size_t whole = n / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        memcpy(&word, p + i, 8); /* the program runs on little-endian machines only */
        absorb(&s, word);
    }
    for (size_t i = whole; i < n; i++) last |= (uint64_t)p[i] << (8 * (i - whole));
    absorb(&s, last);
    s.v2 ^= 0xff;
    for (int i = 0; i < 3; i++) sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
