/* grammar_cache.h - compiled grammars, kept for further requests with the same text. */
#ifndef SERVE_GRAMMAR_CACHE_H
#define SERVE_GRAMMAR_CACHE_H

#include "server/engine/served_model.h"
#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* A grammar of the cache, which a request holds. */
typedef struct CachedGrammar CachedGrammar;

/* Several threads may use it at once, except where a function says otherwise. */
typedef struct GrammarCache {
    pthread_mutex_t lock;
    CachedGrammar *first; /* the most recently used one */
    size_t max_bytes;     /* for all grammars, including those that requests hold */
    int64_t n_queries, n_hits;
} GrammarCache;

typedef struct GrammarCacheStats {
    int64_t n_queries, n_hits;
    int n_grammars;
    size_t n_bytes;
} GrammarCacheStats;

/* Limits the compilations of one request, which end after COMPILE_MAX_LOOKS times 65,536 steps. That is twice the limit
 * of a single grammar, because a request may have a grammar and many schemas of tools. */
enum { COMPILE_MAX_LOOKS = 610 };
typedef struct CompileWatch {
    const atomic_bool *wants_stop; /* the client is gone, or the server shuts down */
    int n_looks;
} CompileWatch;

/* Serves as should_stop of fr_grammar_open_stoppable; `user` is a CompileWatch. */
int compile_watch_should_stop(void *user);

void grammar_cache_open(GrammarCache *c, size_t max_bytes);
/* Call it when all grammars have been given back, and before the models are closed. */
void grammar_cache_close(GrammarCache *c);
/* Gets the grammar of a text, which is compiled if it is not in the cache. The caller gives it back. *is_full: it was
 * not compiled, because the grammars that requests hold take all memory. Only one thread may call it. */
int grammar_cache_get(GrammarCache *c, CachedGrammar **out, const ServedModel *m, fr_grammar_kind kind,
                      const char *text, size_t n, CompileWatch *watch, bool *is_full, fr_error *err);
void grammar_cache_give_back(GrammarCache *c, CachedGrammar *g); /* NULL is allowed */
const fr_grammar *cached_grammar(const CachedGrammar *g);        /* NULL gives NULL */
/* Returns the text from which the grammar was compiled. */
const char *cached_grammar_text(const CachedGrammar *g, size_t *n);
GrammarCacheStats grammar_cache_stats(GrammarCache *c);

#endif
