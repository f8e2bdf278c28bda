/* prefix_cache.h - requests whose contexts begin with the same tokens share the KV pages of that beginning. Sharing
 * changes times and no token. */
#ifndef ENGINE_PREFIX_CACHE_H
#define ENGINE_PREFIX_CACHE_H

#include "forerun.h"

#include <stdbool.h>

/* The pages of a finished request, kept for requests that begin with the same tokens. */
typedef struct CachedPrefix {
    int32_t sequence;  /* its sequence in the executor; the sequences of the cache follow those of the requests */
    int32_t *tokens;   /* [n_known]; a free entry may keep the memory of the one before */
    int32_t n_tokens;  /* how many tokens the sequence holds; 0: the entry is free */
    int32_t n_known;   /* n_tokens, or one more: the next token, which is a part of a drafter's last entry */
    int32_t n_prompt;  /* how many of the tokens were the prompt of the request that ended */
    uint32_t learners; /* bit i: drafter i of the engine has learned from its text (DrafterClass.remembers) */
    uint64_t last_use;
} CachedPrefix;

typedef struct PrefixCache {
    CachedPrefix *entries; /* [n] */
    int n;                 /* 0: requests share nothing */
    uint64_t n_uses;
} PrefixCache;

/* Allocates the entries; e->options is complete. */
int prefix_cache_open(fr_engine *e, fr_error *err);
void prefix_cache_close(fr_engine *e);
/* Lets requests that still read their context take over what other sequences hold of it. Call it in each step before
 * any slot is claimed. */
void prefix_cache_share(fr_engine *e);
/* Returns whether an older request reads in this step at least half of the n rows that r would read next. Then r waits,
 * and takes them over in the next step. */
bool prefix_cache_is_filling(const fr_request *r, int32_t n);
/* Keeps the KV pages of a request that ends. */
void prefix_cache_keep(const fr_request *r);
/* Frees the pages of the least recently used entry. False: there is no entry. */
bool prefix_cache_drop(fr_engine *e);
/* Returns how many tokens a request that has read nothing could take over from finished ones. */
int32_t prefix_cache_usable(const fr_request *r);
/* Returns the entry that begins with most of the n tokens, at least all but the last; NULL: there is none. */
CachedPrefix *prefix_cache_find(const fr_engine *e, const int32_t *tokens, int64_t n);
/* Returns an empty entry for n tokens: one whose tokens they begin with, or else the least recently used one. */
CachedPrefix *prefix_cache_make_place(fr_engine *e, const int32_t *tokens, int32_t n);
/* Sets the tokens of an empty entry, of which its sequence holds n_tokens. False: memory ran out. */
bool prefix_cache_set(fr_engine *e, CachedPrefix *c, const int32_t *tokens, int32_t n_tokens, int32_t n_known,
                      int32_t n_prompt, uint32_t learners);
/* Empties an entry. */
void prefix_cache_empty(fr_engine *e, CachedPrefix *c);

#endif
