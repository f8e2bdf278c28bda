/* prefix_cache.h - requests whose contexts begin with the same tokens share the KV pages of that beginning. It changes
 * times and no token. */
#ifndef ENGINE_PREFIX_CACHE_H
#define ENGINE_PREFIX_CACHE_H

#include "forerun.h"

#include <stdbool.h>

/* The pages of a finished request, kept for requests that begin with the same tokens. */
typedef struct CachedPrefix {
    int32_t sequence; /* of the executor; those of the cache follow those of the requests */
    int32_t *tokens;  /* [n_known] the memory of an earlier entry may be left here */
    int32_t n_tokens; /* of them, those that the sequence holds; 0: the entry is free */
    int32_t n_known;  /* the same, or one more: the token behind, which is a part of a drafter's last entry */
    uint64_t last_use;
} CachedPrefix;

typedef struct PrefixCache {
    CachedPrefix *entries; /* [n], 0 where sharing is off */
    int n;
    uint64_t n_uses;
} PrefixCache;

/* Takes the memory of the entries. Needs e->options. */
int prefix_cache_open(fr_engine *e, fr_error *err);
void prefix_cache_close(fr_engine *e);
/* Requests that still read their context take over what other sequences hold of it. To be called in each step before
 * any slot is claimed. */
void prefix_cache_share(fr_engine *e);
/* Whether an older request reads, in this very step, at least half of the n rows that r would read next: r then waits
 * and takes them over in the next step. */
bool prefix_cache_is_filling(const fr_request *r, int32_t n);
/* Keeps the KV of a request that ends. */
void prefix_cache_keep(const fr_request *r);
/* Gives back the pages of the least recently used entry. False: there is none left. */
bool prefix_cache_drop(fr_engine *e);

#endif
