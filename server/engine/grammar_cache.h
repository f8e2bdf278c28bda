/* grammar_cache.h - compiled grammars, kept for further requests with the same text. */
#ifndef SERVE_GRAMMAR_CACHE_H
#define SERVE_GRAMMAR_CACHE_H

#include "server/engine/served_model.h"
#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

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

/* What limits the compilations of one request. It has compiled enough after COMPILE_MAX_LOOKS times 65,536 steps, twice
 * what one grammar may take: a request may have a grammar and many schemas of tools. */
enum { COMPILE_MAX_LOOKS = 610 };
typedef struct CompileWatch {
    const atomic_bool *wants_stop; /* the client is gone, or the server ends */
    int n_looks;
} CompileWatch;

/* For fr_grammar_open_stoppable; `user` is a CompileWatch. */
int compile_watch_should_stop(void *user);

void grammar_cache_open(GrammarCache *c, size_t max_bytes);
/* All grammars have been given back. Before the models are closed. */
void grammar_cache_close(GrammarCache *c);
/* The grammar of a text, which is compiled if it is not in the cache and which the caller gives back. *is_full: it was
 * not compiled, because the grammars that requests hold take all memory. Called by one thread. */
int grammar_cache_get(GrammarCache *c, CachedGrammar **out, const ServedModel *m, fr_grammar_kind kind,
                      const char *text, size_t n, CompileWatch *watch, bool *is_full, fr_error *err);
void grammar_cache_give_back(GrammarCache *c, CachedGrammar *g); /* NULL is fine */
const fr_grammar *cached_grammar(const CachedGrammar *g);        /* of NULL: NULL */
/* The text that it was compiled from. */
const char *cached_grammar_text(const CachedGrammar *g, size_t *n);
GrammarCacheStats grammar_cache_stats(GrammarCache *c);

#endif
