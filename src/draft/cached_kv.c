/* cached_kv.c - keeps the entries of ended requests in a drafter's own KV cache.
 *
 * The prefix cache of the engine keeps the target's pages of the last requests (engine/prefix_cache.c). A drafter with
 * its own keys must keep them for the same tokens, or a request that takes pages over would have to run its prompt
 * through the drafter's layers again. So such a drafter has n_cached more sequences than requests. They share pages
 * with the sequences of requests, as in the target.
 *
 * Pages. Each request has enough pages for its context; the cached sequences together have pages for as many tokens as
 * the target's KV cache has. They cannot need more as long as they share whatever the target's sequences share. They
 * can if the beginning of an entry was computed twice. Requests then have priority: cached_kv_reserve drops all cached
 * sequences. */
#include "draft/cached_kv.h"

int64_t cached_kv_n_pages(const DrafterEnv *env, int32_t n_ctx, int32_t page_size) {
    int64_t of_one = n_ctx / page_size + 1, cached = env->cached_tokens / page_size + env->n_cached;
    if (cached > env->n_cached * of_one) cached = env->n_cached * of_one;
    return env->max_sequences * of_one + cached;
}

int cached_kv_open(CachedKv *c, Executor *executor, const DrafterEnv *env, fr_error *err) {
    *c = (CachedKv){.executor = executor};
    const ArenaItem items[] = {ARENA_ITEM(&c->sequences, env->n_cached)};
    int status = arena_take(&c->arena, items, ARENA_COUNT(items), "a drafter's prefix cache", err);
    for (; c->n < env->n_cached && !status; c->n += !status)
        status = executor_sequence_open(executor, &c->sequences[c->n], err);
    return status;
}

void cached_kv_close(CachedKv *c) { arena_free(&c->arena); }

int cached_kv_reserve(CachedKv *c, int32_t sequence, int32_t n, fr_error *err) {
    int status = executor_reserve(c->executor, sequence, n, err);
    if (status != FR_ERR_MEMORY) return status;
    for (int32_t i = 0; i < c->n; i++) executor_sequence_truncate(c->executor, c->sequences[i], 0);
    return executor_reserve(c->executor, sequence, n, err);
}

void cached_kv_take_over(CachedKv *c, int32_t from, int32_t to, int32_t n) {
    if (n > 0) executor_sequence_share(c->executor, from, to, n);
    else executor_sequence_truncate(c->executor, to, 0);
}
