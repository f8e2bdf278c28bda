/* kv_messages.c - batches of events about blocks of the prefix cache, in the wire form of vLLM, which is msgpack:
 *
 *     [time, [event, ...], 0]
 *     ["BlockStored", [hash, ...], hash of the block before or nil, [token, ...], block size, nil, nil]
 *     ["BlockRemoved", [hash, ...], nil]
 *     ["AllBlocksCleared"]
 *
 * A block is block_size tokens (a page of the KV cache), and its hash is that of its tokens seeded with the hash of
 * the block before, so that equal hashes mean equal prefixes. */
#include "server/engine/kv_events.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* ---- msgpack: the few forms that the events need ----------------------------------------------------------- */

static bool put_bytes(Buf *out, uint8_t first, uint64_t value, int n) {
    uint8_t bytes[9] = {first};
    for (int i = 0; i < n; i++) bytes[1 + i] = (uint8_t)(value >> 8 * (n - 1 - i));
    return buf_append(out, bytes, (size_t)n + 1);
}

static bool put_uint(Buf *out, uint64_t v) {
    if (v < 128) return put_bytes(out, (uint8_t)v, 0, 0);
    return v <= UINT16_MAX   ? put_bytes(out, 0xcd, v, 2)
           : v <= UINT32_MAX ? put_bytes(out, 0xce, v, 4)
                             : put_bytes(out, 0xcf, v, 8);
}

static bool put_array(Buf *out, size_t n) {
    return n < 16 ? put_bytes(out, (uint8_t)(0x90 | n), 0, 0) : put_bytes(out, 0xdd, n, 4);
}

static bool put_text(Buf *out, const char *text) {
    size_t n = strlen(text); /* below 32 */
    return put_bytes(out, (uint8_t)(0xa0 | n), 0, 0) && buf_append(out, text, n);
}

static bool put_nil(Buf *out) { return put_bytes(out, 0xc0, 0, 0); }

static bool put_begin(Buf *out, double now_s, size_t n_events) {
    uint64_t bits;
    memcpy(&bits, &now_s, sizeof bits);
    return put_array(out, 3) && put_bytes(out, 0xcb, bits, 8) && put_array(out, n_events);
}

static bool put_end(Buf *out) { return put_uint(out, 0); } /* the rank of the server among parallel ones */

/* ---- sets of blocks ------------------------------------------------------------------------------------------ */

static bool add(KvBlockSet *s, uint64_t hash) {
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 64;
        uint64_t *grown = realloc(s->hashes, capacity * sizeof *grown);
        if (!grown) return false;
        s->hashes = grown;
        s->capacity = capacity;
    }
    s->hashes[s->n++] = hash;
    return true;
}

static int compare(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void sort(KvBlockSet *s) {
    size_t n = 0;
    if (s->n) qsort(s->hashes, s->n, sizeof *s->hashes, compare);
    for (size_t i = 0; i < s->n; i++)
        if (n == 0 || s->hashes[i] != s->hashes[n - 1]) s->hashes[n++] = s->hashes[i];
    s->n = n;
}

static bool has(const KvBlockSet *s, uint64_t hash) {
    return s->n && bsearch(&hash, s->hashes, s->n, sizeof hash, compare) != NULL;
}

static uint64_t hash_block(const int32_t *tokens, int block_size, uint64_t before) {
    return hash64(tokens, (size_t)block_size * sizeof *tokens, before);
}

/* ---- events --------------------------------------------------------------------------------------------------- */

/* Puts the hashes of s that are not in `other` into *out, which is empty. */
static bool subtract(const KvBlockSet *s, const KvBlockSet *other, KvBlockSet *out) {
    bool fits = true;
    for (size_t i = 0; i < s->n && fits; i++)
        if (!has(other, s->hashes[i])) fits = add(out, s->hashes[i]);
    return fits;
}

static bool put_hashes(Buf *out, const KvBlockSet *s) {
    bool fits = put_array(out, s->n);
    for (size_t i = 0; i < s->n && fits; i++) fits = put_uint(out, s->hashes[i]);
    return fits;
}

static bool put_removed(Buf *out, const KvBlockSet *s) {
    return put_array(out, 3) && put_text(out, "BlockRemoved") && put_hashes(out, s) && put_nil(out);
}

/* Puts the blocks of a prefix that are not in *held, which follow each other, and adds them to *held. *n_events is
 * raised if there are any. */
static bool put_stored(Buf *out, KvBlockSet *held, const KvPrefix *p, int block_size, int *n_events) {
    KvBlockSet fresh = {.n = 0};
    uint64_t hash = 0, before = 0;
    int64_t first = 0, n_blocks = p->n_tokens / block_size;
    bool fits = true;
    for (int64_t i = 0; i < n_blocks && fits; i++) {
        uint64_t last = hash;
        hash = hash_block(p->tokens + i * block_size, block_size, last);
        if (fresh.n == 0 && has(held, hash)) continue;
        if (fresh.n == 0) before = last, first = i;
        fits = add(&fresh, hash);
    }
    if (fits && fresh.n) {
        size_t n_tokens = fresh.n * (size_t)block_size;
        fits = put_array(out, 7) && put_text(out, "BlockStored") && put_hashes(out, &fresh) &&
               (first ? put_uint(out, before) : put_nil(out)) && put_array(out, n_tokens);
        for (size_t i = 0; i < n_tokens && fits; i++)
            fits = put_uint(out, (uint64_t)p->tokens[first * block_size + (int64_t)i]);
        fits = fits && put_uint(out, (uint64_t)block_size) && put_nil(out) && put_nil(out);
        for (size_t i = 0; i < fresh.n && fits; i++) fits = add(held, fresh.hashes[i]);
        sort(held);
        ++*n_events;
    }
    free(fresh.hashes);
    return fits;
}

/* Collects the blocks of all prefixes. */
static bool collect(KvBlockSet *all, const KvPrefix *prefixes, int n, int block_size) {
    bool fits = true;
    for (const KvPrefix *p = prefixes; p < prefixes + n; p++) {
        uint64_t hash = 0;
        for (int64_t i = 0; i < p->n_tokens / block_size && fits; i++)
            fits = add(all, hash = hash_block(p->tokens + i * block_size, block_size, hash));
    }
    sort(all);
    return fits;
}

int kv_events_write(Buf *out, KvBlockSet *held, const KvPrefix *prefixes, int n, int block_size, double now_s) {
    KvBlockSet all = {.n = 0}, removed = {.n = 0}, kept = {.n = 0};
    Buf events = {.max_bytes = out->max_bytes};
    int n_events = 0;
    bool fits = collect(&all, prefixes, n, block_size) && subtract(held, &all, &removed) &&
                subtract(held, &removed, &kept);
    if (fits && removed.n) fits = put_removed(&events, &removed), n_events++;
    for (int i = 0; i < n && fits; i++) fits = put_stored(&events, &kept, &prefixes[i], block_size, &n_events);
    if (fits && n_events)
        fits = put_begin(out, now_s, (size_t)n_events) && buf_append(out, events.data, events.n) && put_end(out);
    free(held->hashes);
    *held = kept;
    free(all.hashes);
    free(removed.hashes);
    buf_free(&events);
    return fits ? n_events : -1;
}

bool kv_events_write_cleared(Buf *out, double now_s) {
    return put_begin(out, now_s, 1) && put_array(out, 1) && put_text(out, "AllBlocksCleared") && put_end(out);
}
