/* prefix_cache.c - requests whose contexts begin with the same tokens share the pages of that beginning.
 *
 * Problem. The requests of a service begin with the same instructions, and each turn of a conversation begins with all
 * turns before it. The keys and values of a token depend on the tokens up to it and on nothing else (the numeric
 * contract), so reading an equal beginning again computes the same bits again.
 *
 * Idea. Before a request reads more of its context, it looks for the sequence that holds the longest part of it that it
 * does not hold itself: another running request, or one of the last n finished ones, whose pages are kept until they
 * are needed elsewhere. It takes over the equal tokens by sharing their pages (kv_sequence_share); the page in which
 * the two contexts differ is copied when one of them writes to it. The search is repeated in every step, so that of
 * several requests with the same prompt that arrive together, the oldest reads and the others follow one step later
 * (prefix_cache_is_filling).
 *
 *     cached   <s> You are a helpful ... . Why is the sky blue ? Because
 *     new      <s> You are a helpful ... . Why is the grass green ?
 *              |------------ shared ---------------| read
 *
 * The last token of a context, the pending one, is never taken over: the first tree reads it. Sequences of a model with
 * a recurrent state, or of one that gives back the keys that windows have passed, can be taken over only at their marks
 * and at their end (prompts.c).
 *
 * A finished request replaces an entry that its own tokens begin with (the turn before), or else the least recently
 * used one. If an entry already holds all of it, only what drafters keep is added (request_drafts.c).
 *
 * Invariants: the tokens of an entry are those that its sequence holds, in order. Sharing shows in the times and the
 * statistics of a request, and not in its tokens or logits. Cost: a comparison of tokens with every running request and
 * every entry, for requests that still read. With some hundreds of entries a trie would pay; with a handful it does
 * not. When it loses: if all beginnings differ, the pages of finished requests are kept for nothing, until they are
 * needed. Proof: tests/engine/test_prefix_cache.c, tests/engine/test_kv_pressure.c,
 * tests/lossless/test_shared_prefix.c. */
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

/* Empties an entry. The memory of its tokens stays for the next entry, so that a step that needs the pages frees
 * none. */
void prefix_cache_empty(fr_engine *e, CachedPrefix *c) {
    executor_sequence_truncate(e->executor, c->sequence, 0);
    drafter_pool_forget(e, c->sequence);
    *c = (CachedPrefix){.sequence = c->sequence, .tokens = c->tokens};
}

bool prefix_cache_drop(fr_engine *e) {
    CachedPrefix *oldest = NULL;
    for (CachedPrefix *c = e->prefixes.entries; c < e->prefixes.entries + e->prefixes.n; c++)
        if (c->n_tokens && (!oldest || c->last_use < oldest->last_use)) oldest = c;
    if (oldest) prefix_cache_empty(e, oldest);
    return oldest != NULL;
}

/* Returns the length of the common prefix of two sequences of tokens. */
static int32_t count_common(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
    int32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

/* Returns the entry in which the n tokens of a finished request are to be kept: one that already holds them all, or one
 * whose tokens they begin with, or else the least recently used one. */
static CachedPrefix *find_place(fr_engine *e, const int32_t *tokens, int32_t n) {
    CachedPrefix *oldest = NULL;
    for (CachedPrefix *c = e->prefixes.entries; c < e->prefixes.entries + e->prefixes.n; c++) {
        int32_t n_common = count_common(c->tokens, c->n_tokens, tokens, n);
        if (n_common && (n_common == n || n_common == c->n_tokens)) return c;
        if (!oldest || c->last_use < oldest->last_use) oldest = c; /* free entries were never used */
    }
    return oldest;
}

/* Replaces the content of c by the request's first n tokens. If these begin with the tokens of c, what drafters keep
 * for those stays. False: it failed, and c does not hold the new tokens. */
static bool replace(const fr_request *r, CachedPrefix *c, int32_t n) {
    fr_engine *e = r->engine;
    if (executor_sequence_reach(e->executor, r->sequence, n) < n) return false;
    int32_t n_known = n < r->n_context ? n + 1 : n;
    if (count_common(c->tokens, c->n_known, r->context, n_known) < c->n_known) prefix_cache_empty(e, c);
    int32_t *tokens = realloc(c->tokens, (size_t)n_known * sizeof *tokens);
    if (!tokens) return false; /* the cache is an optimisation: failing to keep it is no error */
    memcpy(tokens, r->context, (size_t)n_known * sizeof *tokens);
    c->tokens = tokens, c->n_tokens = n, c->n_known = n_known;
    c->n_prompt = (int32_t)r->stats.n_prompt, c->learners = request_drafts_learners(r);
    executor_sequence_share(e->executor, r->sequence, c->sequence, n);
    return true;
}

void prefix_cache_keep(const fr_request *r) {
    fr_engine *e = r->engine;
    int32_t n = executor_sequence_length(e->executor, r->sequence);
    if (n > r->n_context) n = (int32_t)r->n_context; /* rows after the end of the text were accepted, too */
    CachedPrefix *c = n ? find_place(e, r->context, n) : NULL;
    if (!c) return;
    int32_t n_common = count_common(c->tokens, c->n_tokens, r->context, n);
    if (n_common < n && !replace(r, c, n)) return;
    request_drafts_keep(r, c->sequence, n, count_common(c->tokens, c->n_known, r->context, r->n_context));
    c->last_use = ++e->prefixes.n_uses;
}

CachedPrefix *prefix_cache_find(const fr_engine *e, const int32_t *tokens, int64_t n) {
    CachedPrefix *found = NULL;
    int32_t n_most = 0;
    for (CachedPrefix *c = e->prefixes.entries; c < e->prefixes.entries + e->prefixes.n; c++) {
        int32_t n_common = count_common(c->tokens, c->n_known, tokens, n);
        if (n_common > n_most && n_common >= n - 1) found = c, n_most = n_common;
    }
    return found;
}

CachedPrefix *prefix_cache_make_place(fr_engine *e, const int32_t *tokens, int32_t n) {
    CachedPrefix *oldest = NULL, *before = NULL;
    for (CachedPrefix *c = e->prefixes.entries; c < e->prefixes.entries + e->prefixes.n; c++) {
        if (c->n_known && count_common(c->tokens, c->n_known, tokens, n) == c->n_known) before = c;
        if (!oldest || c->last_use < oldest->last_use) oldest = c;
    }
    if (before) oldest = before;
    if (oldest) prefix_cache_empty(e, oldest);
    return oldest;
}

bool prefix_cache_set(fr_engine *e, CachedPrefix *c, const int32_t *tokens, int32_t n_tokens, int32_t n_known,
                      int32_t n_prompt, uint32_t learners) {
    int32_t *copy = realloc(c->tokens, (size_t)n_known * sizeof *copy);
    if (!copy) return false;
    memcpy(copy, tokens, (size_t)n_known * sizeof *copy);
    c->tokens = copy, c->n_tokens = n_tokens, c->n_known = n_known;
    c->n_prompt = n_prompt, c->learners = learners;
    c->last_use = ++e->prefixes.n_uses;
    return true;
}

/* Returns how many tokens r can take over from a sequence that holds n_held tokens, of which the first n_common are
 * those of r. Its drafters allow `limit` tokens (request_drafts.c), and any token that r has read before, because they
 * have seen it. */
static int32_t count_common_usable(const fr_request *r, int32_t n_common, int32_t n_held, int32_t limit) {
    int32_t most = (int32_t)r->n_context - 1, n = n_common < n_held ? n_common : n_held,
            n_seen = executor_sequence_length(r->engine->executor, r->sequence);
    if (n > most) n = most;
    if (n_seen < r->n_read) n_seen = r->n_read;
    if (r->embedding.sum) limit = 0; /* it needs the hidden states of all tokens */
    else if (!r->reads_prompt) return n;
    if (n <= n_seen) return n;
    int32_t more = n < limit ? n : limit;
    if (r->needs_hidden && more > most - 1) more = most - 1;         /* one token is read for its hidden state, */
    if (r->needs_hidden && more > n_common - 1) more = n_common - 1; /* and a drafter's entry includes the next token */
    return more > n_seen ? more : n_seen;
}

/* Returns how many tokens r can take over from a sequence of the target, which may be cut only at some lengths
 * (sequences.h). *most is raised to their number if it could be cut at every length. */
static int32_t count_usable(const fr_request *r, int32_t sequence, const int32_t *tokens, int64_t n_tokens,
                            int32_t n_held, int32_t *most) {
    int32_t n_common = count_common(tokens, n_tokens, r->context, r->n_context),
            n = count_common_usable(r, n_common, n_held, request_drafts_limit(r, sequence, n_common));
    if (n > *most) *most = n;
    return executor_sequence_reach(r->engine->executor, sequence, n);
}

/* Returns the sequence from which r can take over the most tokens; *n is their number. -1: no sequence gives more than
 * r holds itself. *most is the number if all sequences could be cut at every length. */
static int32_t find_longest(fr_engine *e, const fr_request *r, int32_t *n, int32_t *most) {
    int32_t found = -1, usable;
    CachedPrefix *used = NULL;
    *n = *most = executor_sequence_length(e->executor, r->sequence);
    for (int i = 0; i < e->step.n_by_age; i++) {
        const fr_request *s = e->step.by_age[i];
        if (s == r) continue;
        usable = count_usable(r, s->sequence, s->context, s->n_context,
                              executor_sequence_length(e->executor, s->sequence), most);
        if (usable > *n) *n = usable, found = s->sequence;
    }
    for (int i = 0; i < e->prefixes.n; i++) {
        CachedPrefix *c = &e->prefixes.entries[i];
        usable = count_usable(r, c->sequence, c->tokens, c->n_known, c->n_tokens, most);
        if (usable > *n) *n = usable, found = c->sequence, used = c;
    }
    if (used) used->last_use = ++e->prefixes.n_uses;
    return found;
}

int32_t prefix_cache_usable(const fr_request *r) {
    const fr_engine *e = r->engine;
    int32_t longest = 0, most = 0;
    for (int i = 0; i < e->prefixes.n; i++) {
        const CachedPrefix *c = &e->prefixes.entries[i];
        int32_t n = count_usable(r, c->sequence, c->tokens, c->n_known, c->n_tokens, &most);
        if (n > longest) longest = n;
    }
    return longest;
}

static void share(fr_request *r) {
    fr_engine *e = r->engine;
    int32_t n, most, had = executor_sequence_length(e->executor, r->sequence), from = find_longest(e, r, &n, &most);
    if (most > n) r->branch = most - most % e->options.kv_page_size;
    if (from < 0) return;
    executor_sequence_share(e->executor, from, r->sequence, n);
    if (had < r->n_read) had = r->n_read; /* tokens that r once read itself do not count as shared */
    if (n <= had) return;
    request_drafts_take_over(r, from, n);
    r->stats.n_prompt_shared += n - had;
}

void prefix_cache_share(fr_engine *e) {
    if (e->prefixes.n == 0) return;
    for (int i = 0; i < e->step.n_by_age; i++)
        if (request_is_prefilling(e->step.by_age[i])) share(e->step.by_age[i]);
}

bool prefix_cache_is_filling(const fr_request *r, int32_t n) {
    const fr_engine *e = r->engine;
    int32_t done = executor_sequence_length(e->executor, r->sequence);
    for (int i = 0; e->prefixes.n > 0 && e->step.by_age[i] != r; i++) {
        const fr_request *s = e->step.by_age[i];
        if (s->finish || !s->is_prefill_step || !s->n_step_rows) continue;
        int32_t end = executor_sequence_length(e->executor, s->sequence) + s->n_step_rows;
        int32_t n_common = count_common(s->context, s->n_context, r->context, r->n_context),
                usable = count_common_usable(r, n_common, end, request_drafts_limit_of_reader(r, s));
        /* By then, the state of s is known at the lengths from its present one on. */
        if (usable < executor_sequence_length(e->executor, s->sequence))
            usable = executor_sequence_reach(e->executor, s->sequence, usable);
        if (2 * (usable - done) >= n) return true;
    }
    return false;
}
