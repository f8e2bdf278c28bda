/* prefix_cache.c - requests whose contexts begin alike share the pages of that beginning.
 *
 * Problem. The requests of a service begin with the same instructions, and each turn of a talk begins with all turns
 * before. The keys and values of a token depend on the tokens up to it and on nothing else (the numeric contract), so
 * reading an equal beginning again computes the same bits again.
 *
 * Idea. Before a request reads more of its context, it looks for whoever holds the longest part of it that it has not:
 * a running request, or one of the last n finished ones, whose pages are kept while nobody wants them. It takes the
 * equal tokens over, sharing their pages (kv_sequence_share); the page in which the two part ways is copied when
 * one of them writes. It looks again in every step, so that of several requests with one prompt that came
 * together the oldest reads and the others follow, one step behind (prefix_cache_is_filling).
 *
 *     cached   <s> You are a helpful ... . Why is the sky blue ? Because
 *     new      <s> You are a helpful ... . Why is the grass green ?
 *              |------------ shared ---------------| read
 *
 * Always at least the last token of a context is left, the pending one, whose row the first tree reads.
 *
 * A finished request takes the place of one whose tokens it begins with (the turn before), or else of the least
 * recently used; it takes none where another holds all it has.
 *
 * Invariants: an entry's tokens are the tokens its sequence holds, in order; whether something was shared is to be
 * seen in the times and statistics of a request, and not in its tokens or logits.
 * Cost: a comparison of tokens with every running request and every entry, for requests that still read. With some
 * hundreds of entries a trie would pay; with a handful it does not.
 * A request whose drafter wants the target's hidden states of the prompt (drafter.h) takes nothing over, for pages hold
 * none; others take from it.
 * It loses where all beginnings differ: then finished requests' pages are held for nothing, until they are wanted.
 * Proof: tests/test_kv_pressure.c. */
#include "engine/prefix_cache.h"

#include "engine/engine.h"
#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

int prefix_cache_open(fr_engine *e, fr_error *err) {
    int n = e->options.prefix_cache > 0 ? e->options.prefix_cache : 0;
    e->prefixes.entries = calloc((size_t)n + 1, sizeof *e->prefixes.entries);
    if (!e->prefixes.entries) return error_memory(err, "a prefix cache", (size_t)n * sizeof *e->prefixes.entries);
    e->prefixes.n = n;
    for (int i = 0; i < n; i++) e->prefixes.entries[i].sequence = e->options.max_requests + i;
    return FR_OK;
}

void prefix_cache_close(fr_engine *e) {
    for (int i = 0; i < e->prefixes.n; i++) free(e->prefixes.entries[i].tokens);
    free(e->prefixes.entries);
}

/* The memory of its tokens stays for the next one, so that a step which needs its pages releases none. */
static void drop(fr_engine *e, CachedPrefix *c) {
    executor_sequence_truncate(e->executor, c->sequence, 0);
    *c = (CachedPrefix){.sequence = c->sequence, .tokens = c->tokens};
}

bool prefix_cache_drop(fr_engine *e) {
    CachedPrefix *oldest = NULL;
    for (CachedPrefix *c = e->prefixes.entries; c < e->prefixes.entries + e->prefixes.n; c++)
        if (c->n_tokens && (!oldest || c->last_use < oldest->last_use)) oldest = c;
    if (oldest) drop(e, oldest);
    return oldest != NULL;
}

/* How many tokens the two begin with in common. */
static int32_t count_common(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
    int32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

/* Where the n tokens of a finished request may be kept; NULL where they are held already. */
static CachedPrefix *find_place(fr_engine *e, const int32_t *tokens, int32_t n) {
    CachedPrefix *oldest = NULL;
    for (CachedPrefix *c = e->prefixes.entries; c < e->prefixes.entries + e->prefixes.n; c++) {
        int32_t n_common = count_common(c->tokens, c->n_tokens, tokens, n);
        if (n_common == n) {
            c->last_use = ++e->prefixes.n_uses;
            return NULL;
        }
        if (n_common && n_common == c->n_tokens) return c;
        if (!oldest || c->last_use < oldest->last_use) oldest = c; /* free places were never used */
    }
    return oldest;
}

void prefix_cache_keep(const fr_request *r) {
    fr_engine *e = r->engine;
    int32_t n = executor_sequence_length(e->executor, r->sequence);
    if (n > r->n_context) n = (int32_t)r->n_context; /* accepted rows behind the end of the text */
    CachedPrefix *c = n ? find_place(e, r->context, n) : NULL;
    if (!c) return; /* nothing to keep, or held already */
    drop(e, c);
    int32_t *tokens = realloc(c->tokens, (size_t)n * sizeof *tokens);
    if (!tokens) return; /* it is only a cache */
    memcpy(tokens, r->context, (size_t)n * sizeof *tokens);
    *c = (CachedPrefix){.sequence = c->sequence, .tokens = tokens, .n_tokens = n, .last_use = ++e->prefixes.n_uses};
    executor_sequence_share(e->executor, r->sequence, c->sequence, n);
}

/* The sequence that holds most of the beginning of r's context (but its pending token), and how many tokens: more
 * than r has itself, or -1. */
static int32_t find_longest(fr_engine *e, const fr_request *r, int32_t *n) {
    int32_t found = -1, n_common;
    CachedPrefix *used = NULL;
    *n = executor_sequence_length(e->executor, r->sequence);
    for (int i = 0; i < e->step.n_by_age; i++) {
        const fr_request *s = e->step.by_age[i];
        n_common = count_common(s->context, executor_sequence_length(e->executor, s->sequence), r->context, r->n_context - 1);
        if (n_common > *n) *n = n_common, found = s->sequence;
    }
    for (CachedPrefix *c = e->prefixes.entries; c < e->prefixes.entries + e->prefixes.n; c++) {
        n_common = count_common(c->tokens, c->n_tokens, r->context, r->n_context - 1);
        if (n_common > *n) *n = n_common, found = c->sequence, used = c;
    }
    if (used) used->last_use = ++e->prefixes.n_uses;
    return found;
}

static void share(fr_request *r) {
    fr_engine *e = r->engine;
    int32_t n, had = executor_sequence_length(e->executor, r->sequence), from = find_longest(e, r, &n);
    if (from < 0) return;
    executor_sequence_share(e->executor, from, r->sequence, n);
    if (had < r->n_read) had = r->n_read; /* what it had read itself before is nothing spared of its prompt */
    if (n > had) r->stats.n_prompt_shared += n - had;
}

void prefix_cache_share(fr_engine *e) {
    if (e->prefixes.n == 0) return;
    int64_t n_chunk_left = e->options.prefill_chunk; /* those behind it have time to look */
    for (int i = 0; i < e->step.n_by_age && n_chunk_left > 0; i++) {
        fr_request *r = e->step.by_age[i];
        if (!request_is_prefilling(r)) continue;
        if (!r->needs_hidden) share(r);
        n_chunk_left -= r->n_context - 1 - executor_sequence_length(e->executor, r->sequence);
    }
}

bool prefix_cache_is_filling(const fr_request *r, int32_t n) {
    const fr_engine *e = r->engine;
    int32_t done = executor_sequence_length(e->executor, r->sequence);
    for (int i = 0; e->prefixes.n > 0 && !r->needs_hidden && e->step.by_age[i] != r; i++) {
        const fr_request *s = e->step.by_age[i];
        if (s->finish || !s->is_prefill_step || !s->n_step_rows) continue;
        int32_t end = executor_sequence_length(e->executor, s->sequence) + s->n_step_rows;
        if (2 * (count_common(s->context, end, r->context, r->n_context) - done) >= n) return true;
    }
    return false;
}
