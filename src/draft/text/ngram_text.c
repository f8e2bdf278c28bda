/* ngram_text.c - the text of one sequence with chains of equal tokens; ngram_text.h describes the layout.
 *
 * The hash table maps a token to its latest position and its number of contexts. It only grows, by doubling, and is
 * at most half full. Memory is taken with malloc, because texts grow to sizes that are not known in advance. */
#include "draft/text/ngram_text.h"

#include <stdlib.h>
#include <string.h>

enum { MIN_CAPACITY = 1024, MAX_TOKENS = 1 << 28 };

static int32_t slot_of(const NgramText *t, int32_t token) {
    uint32_t mask = (uint32_t)t->n_slots - 1;
    for (uint32_t i = (uint32_t)(keyed_hash_u64(&t->key, (uint32_t)token) >> 32);; i++) {
        const NgramEntry *e = &t->table[i & mask];
        if (e->token == token || e->token < 0) return (int32_t)(i & mask);
    }
}

static const NgramEntry *find(const NgramText *t, int32_t token) {
    if (t->n_slots == 0) return NULL;
    const NgramEntry *e = &t->table[slot_of(t, token)];
    return e->token < 0 ? NULL : e;
}

/* Room in the table for n different tokens. */
static bool grow_table(NgramText *t, int64_t n) {
    if (2 * n <= t->n_slots) return true;
    NgramText wider = *t;
    if (t->n_slots == 0) wider.key = hash_key_new();
    wider.n_slots = t->n_slots ? t->n_slots : MIN_CAPACITY / 2;
    while (wider.n_slots < 2 * n) wider.n_slots *= 2;
    wider.table = malloc((size_t)wider.n_slots * sizeof *wider.table);
    if (!wider.table) return false;
    for (int32_t i = 0; i < wider.n_slots; i++) wider.table[i].token = -1;
    for (int32_t i = 0; i < t->n_slots; i++)
        if (t->table[i].token >= 0) wider.table[slot_of(&wider, t->table[i].token)] = t->table[i];
    free(t->table);
    t->table = wider.table;
    t->n_slots = wider.n_slots;
    t->key = wider.key;
    return true;
}

static bool grow_arrays(NgramText *t, int64_t n) {
    if (n <= t->capacity) return true;
    int64_t capacity = t->capacity ? t->capacity : MIN_CAPACITY;
    while (capacity < n) capacity += capacity / 2;
    int32_t *tokens = realloc(t->tokens, (size_t)capacity * sizeof *tokens);
    if (!tokens) return false;
    t->tokens = tokens;
    int32_t *previous = realloc(t->previous, (size_t)capacity * sizeof *previous);
    if (!previous) return false;
    t->previous = previous;
    t->capacity = (int32_t)capacity;
    return true;
}

/* Keeps `top` sorted after e has gained one context. Counts rise by one at a time, so a token outside the list can only
 * overtake the last one in it. Of equal counts the one counted last comes first. */
static void update_top(NgramText *t, const NgramEntry *e) {
    NgramEntry *top = t->top;
    int32_t i = 0;
    while (i < t->n_top && top[i].token != e->token) i++;
    if (i == t->n_top) {
        if (t->n_top < NGRAM_N_TOP) t->n_top++;
        else if (top[--i].n_contexts > e->n_contexts) return;
    }
    for (; i > 0 && top[i - 1].n_contexts <= e->n_contexts; i--) top[i] = top[i - 1];
    top[i] = *e;
}

/* Enters position t->n_indexed into the chains. */
static bool index_next(NgramText *t) {
    if (!grow_table(t, t->n_entries + 1)) return false;
    int32_t place = t->n_indexed, token = t->tokens[place];
    NgramEntry *e = &t->table[slot_of(t, token)];
    if (e->token < 0) {
        *e = (NgramEntry){.token = token, .last = -1};
        t->n_entries++;
    }
    int32_t before = e->last;
    bool known = before > 0 && t->tokens[before - 1] == t->tokens[place - 1];
    t->previous[place] = before;
    e->last = place;
    t->n_indexed++;
    if (known) return true;
    e->n_contexts++;
    t->n_contexts++;
    update_top(t, e);
    return true;
}

int ngram_text_reserve(NgramText *t, int64_t n, int32_t n_vocab, fr_error *err) {
    if (n <= MAX_TOKENS && grow_arrays(t, n) && grow_table(t, n < n_vocab ? n : n_vocab)) return FR_OK;
    return error_memory(err, "the n-gram text", (size_t)n * 2 * sizeof(int32_t));
}

int ngram_text_append(NgramText *t, const int32_t *tokens, int64_t n, int32_t n_vocab, bool indexed, fr_error *err) {
    fr_assert(!indexed || t->n_indexed == t->n);
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return error_set(err, FR_ERR_ARGUMENT, "a drafter: token %d is outside the vocabulary of %d tokens",
                             tokens[i], n_vocab);
    if (n > MAX_TOKENS - t->n)
        return error_set(err, FR_ERR_CONTEXT, "a drafter: a text is limited to %d tokens", MAX_TOKENS);
    if (!grow_arrays(t, t->n + n))
        return error_memory(err, "the n-gram text", (size_t)(t->n + n) * 2 * sizeof(int32_t));
    if (n > 0) memcpy(t->tokens + t->n, tokens, (size_t)n * sizeof *tokens);
    t->n += (int32_t)n;
    while (indexed && t->n_indexed < t->n)
        if (!index_next(t)) return error_memory(err, "the n-gram table", 2 * (size_t)t->n_slots * sizeof(NgramEntry));
    return FR_OK;
}

void ngram_text_touch(NgramText *t) {
    size_t n_free = (size_t)(t->capacity - t->n) * sizeof(int32_t);
    if (n_free == 0) return;
    memset(t->tokens + t->n, 0, n_free);
    memset(t->previous + t->n, 0, n_free);
}

void ngram_text_keep_last(NgramText *t, int32_t keep) {
    fr_assert(keep >= 0 && keep <= t->n && t->n_indexed == t->n);
    if (t->n == 0) return;
    memmove(t->tokens, t->tokens + (t->n - keep), (size_t)keep * sizeof *t->tokens);
    for (int32_t i = 0; i < t->n_slots; i++) t->table[i].token = -1;
    t->n = keep;
    t->n_indexed = t->n_entries = t->n_top = 0;
    t->n_contexts = 0;
    while (t->n_indexed < t->n) (void)index_next(t); /* the table had room for these tokens before */
}

void ngram_text_free(NgramText *t) {
    free(t->tokens);
    free(t->previous);
    free(t->table);
    *t = (NgramText){.n = 0};
}

size_t ngram_text_bytes(const NgramText *t) {
    return sizeof *t + (size_t)t->capacity * 2 * sizeof(int32_t) + (size_t)t->n_slots * sizeof(NgramEntry);
}

int32_t ngram_text_last(const NgramText *t, int32_t token) {
    const NgramEntry *e = find(t, token);
    return e ? e->last : -1;
}

double ngram_text_share(const NgramText *t, int32_t token) {
    const NgramEntry *e = find(t, token);
    return e ? (double)e->n_contexts / (double)t->n_contexts : 0;
}

int32_t ngram_text_match(const NgramText *t, int32_t place, int32_t max) {
    int32_t m = 0, end = t->n - 1;
    while (m < max && m <= place && t->tokens[place - m] == t->tokens[end - m]) m++;
    return m;
}
