/* grammar_cache.h - compiled grammars, kept for further requests with the same text. */
#ifndef SERVE_GRAMMAR_CACHE_H
#define SERVE_GRAMMAR_CACHE_H

#include "server/engine/served_model.h"
#include "base/error.h"

#include <pthread.h>

/* One of the cache's, held by a request. */
typedef struct CachedGrammar CachedGrammar;

/* Used by several threads. */
typedef struct GrammarCache {
    pthread_mutex_t lock;
    CachedGrammar *first; /* the one used last comes first */
    size_t max_bytes;     /* of what is kept for later, and of what requests hold */
    int64_t n_queries, n_hits;
} GrammarCache;

typedef struct GrammarCacheStats {
    int64_t n_queries, n_hits;
    int n_grammars;
    size_t n_bytes;
} GrammarCacheStats;

void grammar_cache_open(GrammarCache *c, size_t max_bytes);
/* All grammars have been given back. Before the models are closed. */
void grammar_cache_close(GrammarCache *c);
/* The grammar of a text, compiled if it is not there, which the caller gives back. *is_full: it is not, because those that
 * requests hold take all memory. Called by one thread. */
int grammar_cache_get(GrammarCache *c, CachedGrammar **out, const ServedModel *m, fr_grammar_kind kind,
                      const char *text, size_t n, bool *is_full, fr_error *err);
void grammar_cache_give_back(GrammarCache *c, CachedGrammar *g); /* NULL is fine */
const fr_grammar *cached_grammar(const CachedGrammar *g);        /* of NULL: NULL */
/* The text that it was compiled from. */
const char *cached_grammar_text(const CachedGrammar *g, size_t *n);
GrammarCacheStats grammar_cache_stats(GrammarCache *c);

#endif
