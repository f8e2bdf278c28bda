/* cached_kv.h - sequences of a drafter's own KV cache that outlive their request (DrafterClass.take_over). */
#ifndef DRAFTER_CACHED_KV_H
#define DRAFTER_CACHED_KV_H

#include "compute/executor.h"
#include "base/mem.h"
#include "draft/drafter.h"

typedef struct CachedKv {
    Executor *executor; /* borrowed */
    int32_t n;
    int32_t *sequences; /* [n] the executor's ids of the drafter's sequences from env->max_sequences on */
    Arena arena;
} CachedKv;

/* Returns the number of pages that the executor needs for sequences of n_ctx tokens. */
int64_t cached_kv_n_pages(const DrafterEnv *env, int32_t n_ctx, int32_t page_size);
/* Opens the sequences, on a zeroed struct. The executor has env->max_sequences + env->n_cached. */
int cached_kv_open(CachedKv *c, Executor *executor, const DrafterEnv *env, fr_error *err);
void cached_kv_close(CachedKv *c);
/* Does what executor_reserve does for a sequence of a request. If no pages are free, the cached sequences give up
 * theirs. */
int cached_kv_reserve(CachedKv *c, int32_t sequence, int32_t n, fr_error *err);
/* From now on the sequence `to` holds the first n tokens of `from`. With n == 0 it holds nothing. */
void cached_kv_take_over(CachedKv *c, int32_t from, int32_t to, int32_t n);

#endif
