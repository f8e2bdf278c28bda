/* ngram_pool.h - the latest n-grams that something produced, looked up by their first token.
 *
 * A ring of n-grams; each points to the one before it with the same hash of the first token. What the ring has
 * overwritten ends the chain, so that nothing is ever deleted. A new pool holds nothing; memory is fixed.
 */
#ifndef TEXT_NGRAM_POOL_H
#define TEXT_NGRAM_POOL_H

#include "base/error.h"

#include <stdint.h>

typedef struct PoolGram {
    int32_t key, n;        /* first token; tokens after it, 1 to `longest` */
    const int32_t *tokens; /* [n], in the pool until the next ngram_pool_add */
} PoolGram;

typedef struct NgramPool {
    int32_t capacity, longest; /* n-grams; tokens after the first */
    int64_t n_added;
    int32_t *tokens;           /* [capacity][longest] */
    int32_t *keys, *lengths;   /* [capacity] */
    int64_t *before;           /* [capacity] number of the n-gram before it in its chain, or -1 */
    int64_t *heads;            /* [capacity] by hash of the key: number of the latest, or -1 */
} NgramPool;

/* capacity: a power of two. After a failure ngram_pool_close is safe. */
int ngram_pool_open(NgramPool *p, int32_t capacity, int32_t longest, fr_error *err);
void ngram_pool_close(NgramPool *p);
void ngram_pool_clear(NgramPool *p);

/* 1 <= n <= longest. The oldest n-gram goes where the pool is full. */
void ngram_pool_add(NgramPool *p, int32_t key, const int32_t *tokens, int32_t n);

/* The latest n-grams with this key, the latest first, at most `max`; of equal ones, and of one that another
 * begins with, only the first met. Looks at the POOL_MAX_VISITS latest of its chain. */
enum { POOL_MAX_VISITS = 128 };
int32_t ngram_pool_find(const NgramPool *p, int32_t key, int32_t max, PoolGram *out);

#endif
