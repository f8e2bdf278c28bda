/* cached_kv.c - keeps what a drafter's own KV cache holds of requests that have ended.
 *
 * The prefix cache of the engine keeps the target's pages of the last requests (engine/prefix_cache.c). A drafter with
 * keys of its own must keep them for the same tokens, or a request that takes pages over would have to run its prompt
 * through the drafter's layers again. So such a drafter has n_cached more sequences than requests, which share pages
 * with those of the requests as the target's do.
 *
 * Pages. Each request has enough of them for its context; the cached sequences together have as many as the target's KV
 * cache has tokens. They cannot exceed that as long as they share whatever the target's sequences share. If they do
 * exceed it, because the beginning of an entry was computed twice, requests go first: cached_kv_reserve drops all
 * cached sequences. */
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
