/* hash.c - XXH3, whose library appears in this place only; SipHash-1-3 (Aumasson and Bernstein 2012,
 * with one round per word and three at the end) and the source of its keys; and a hash table.
 *
 * XXH3 with a seed is faster, but was not designed to withstand somebody who looks for collisions under every seed;
 * SipHash was. Proof: tests/base/test_hash_flood.c, which compares it with Python's hash of bytes. */
#include "base/hash.h"

#include "base/mem.h"
#include "base/os.h"

#include <string.h>
#include <time.h>
#include <xxhash.h>

uint64_t hash64(const void *bytes, size_t n, uint64_t seed) { return XXH3_64bits_withSeed(bytes, n, seed); }

enum { PIECE_BYTES = 1 << 20 };

uint64_t hash64_in_pieces(const void *bytes, size_t n, uint64_t seed, void (*done)(const void *piece, size_t n)) {
    XXH3_state_t *state = n > PIECE_BYTES ? XXH3_createState() : NULL;
    uint64_t hash;
    if (!state || XXH3_64bits_reset_withSeed(state, seed) == XXH_ERROR) { /* one piece, or no memory for the state */
        hash = hash64(bytes, n, seed);
        done(bytes, n);
    } else {
        for (size_t at = 0; at < n; at += PIECE_BYTES) {
            size_t n_piece = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
            XXH3_64bits_update(state, (const char *)bytes + at, n_piece);
            done((const char *)bytes + at, n_piece);
        }
        hash = XXH3_64bits_digest(state);
    }
    XXH3_freeState(state);
    return hash;
}

/* ---- keyed hashes -------------------------------------------------------------------------------------------- */

HashKey hash_key_new(void) {
    HashKey key;
    if (os_random(&key, sizeof key, false)) return key;
    struct timespec now; /* hard to guess, for an old kernel and for the first seconds after booting */
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

/* ---- the table: open addressing with linear probing; a table that is half full doubles ----------------------- */

enum { FIRST_SLOTS = 64 };

/* Returns the slot of the key, or the free one where it belongs. */
static HashSlot *slot_of(const HashTable *t, const char *key, size_t n) {
    size_t mask = t->n_slots - 1;
    for (size_t i = keyed_hash(&t->key, key, n) & mask;; i = (i + 1) & mask) {
        HashSlot *s = &t->slots[i];
        if (!s->key || (s->n == n && memcmp(s->key, key, n) == 0)) return s;
    }
}

static bool grow(HashTable *t) {
    HashTable bigger = {.n_slots = t->n_slots ? 2 * t->n_slots : FIRST_SLOTS,
                        .n_taken = t->n_taken,
                        .key = t->n_slots ? t->key : hash_key_new()};
    bigger.slots = mem_calloc(bigger.n_slots, sizeof *bigger.slots);
    if (!bigger.slots) return false;
    for (size_t i = 0; i < t->n_slots; i++)
        if (t->slots[i].key) *slot_of(&bigger, t->slots[i].key, t->slots[i].n) = t->slots[i];
    mem_free(t->slots);
    *t = bigger;
    return true;
}

bool hash_table_add(HashTable *t, const char *key, size_t n, int32_t id, int32_t *got) {
    if (2 * (t->n_taken + 1) > t->n_slots && !grow(t)) return false;
    HashSlot *s = slot_of(t, key, n);
    if (!s->key) {
        *s = (HashSlot){key, (uint32_t)n, id};
        t->n_taken++;
    }
    *got = s->id;
    return true;
}

int32_t hash_table_find(const HashTable *t, const char *key, size_t n) {
    if (!t->slots) return -1;
    const HashSlot *s = slot_of(t, key, n);
    return s->key ? s->id : -1;
}

void hash_table_close(HashTable *t) {
    mem_free(t->slots);
    *t = (HashTable){0};
}
