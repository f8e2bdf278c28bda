/* ngram_pool.h - a fixed-size pool of the latest n-grams, looked up by their first token.
 *
 * The pool is a ring of n-grams; each points to the previous one with the same hash of the first token. A chain ends
 * at the first n-gram that the ring has overwritten, so that nothing is ever deleted. The memory is fixed.
 */
#ifndef TEXT_NGRAM_POOL_H
#define TEXT_NGRAM_POOL_H

#include "base/error.h"

#include <stdint.h>

typedef struct PoolGram {
    int32_t key, n;        /* first token; number of tokens after it, 1 to `longest` */
    const int32_t *tokens; /* [n], valid until the next ngram_pool_add */
} PoolGram;

typedef struct NgramPool {
    int32_t capacity, longest; /* n-grams in the ring; tokens after the first at most */
    int64_t n_added;
    int32_t *tokens;         /* [capacity][longest] */
    int32_t *keys, *lengths; /* [capacity] */
    int64_t *before;         /* [capacity] number of the previous n-gram of its chain, or -1 */
    int64_t *heads;          /* [capacity] by hash of the key: number of the latest n-gram, or -1 */
} NgramPool;

/* capacity: a power of two. After a failure ngram_pool_close is safe. */
int ngram_pool_open(NgramPool *p, int32_t capacity, int32_t longest, fr_error *err);
void ngram_pool_close(NgramPool *p);
void ngram_pool_clear(NgramPool *p);

/* Adds an n-gram, 1 <= n <= longest. If the pool is full, it replaces the oldest one. */
void ngram_pool_add(NgramPool *p, int32_t key, const int32_t *tokens, int32_t n);

/* Writes the latest n-grams with this key to out, the latest first, at most `max`, and returns how many. One that
 * equals an n-gram already found, or is a prefix of it, is left out. Visits at most the POOL_MAX_VISITS latest of the
 * chain. */
enum { POOL_MAX_VISITS = 128 };
int32_t ngram_pool_find(const NgramPool *p, int32_t key, int32_t max, PoolGram *out);

#endif
