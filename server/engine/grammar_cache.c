/* grammar_cache.c - a list of compiled grammars, the most recently used one first.
 *
 * Clients send the same schema with every request. Compiling it is quick, but its token masks are found while texts are
 * generated, and a mask costs more than a schema: a grammar that is used again has most of them.
 *
 * The memory of all grammars is bounded, because a schema of a few bytes can make an automaton of many megabytes.
 * Grammars that no request holds are freed first, the least recently used one before the others. If the grammars that
 * requests hold take all memory, further grammars are refused. Grammars grow after they are compiled, so their memory
 * is counted anew each time. There are few of them, so the list is searched from its beginning. */
#include "server/engine/grammar_cache.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_GRAMMARS = 64 }; /* how many are kept for later */

struct CachedGrammar {
    CachedGrammar *next;
    int n_users; /* protected by the lock of the cache */
    const ServedModel *model;
    fr_grammar_kind kind;
    fr_grammar *grammar;
    size_t n_text;
    char text[];
};

void grammar_cache_open(GrammarCache *c, size_t max_bytes) {
    *c = (GrammarCache){.max_bytes = max_bytes};
    pthread_mutex_init(&c->lock, NULL);
}

static void free_grammar(CachedGrammar *g) {
    fr_grammar_close(g->grammar);
    free(g);
}

void grammar_cache_close(GrammarCache *c) {
    if (c->max_bytes == 0) return; /* the cache was never opened */
    for (CachedGrammar *g = c->first, *next; g; g = next) {
        next = g->next;
        free_grammar(g);
    }
    pthread_mutex_destroy(&c->lock);
    *c = (GrammarCache){.max_bytes = 0};
}

static size_t bytes_of(const CachedGrammar *g) { return sizeof *g + g->n_text + fr_grammar_bytes(g->grammar); }

/* Frees grammars that no request holds until the limits are kept. False: the grammars that requests hold exceed them.
 * The caller holds the lock. */
static bool make_room(GrammarCache *c) {
    size_t n_held = 0, n_bytes;
    int n = 0;
    for (const CachedGrammar *g = c->first; g; g = g->next) n_held += g->n_users ? bytes_of(g) : 0;
    n_bytes = n_held;
    for (CachedGrammar **at = &c->first; *at;) {
        CachedGrammar *g = *at;
        size_t own = g->n_users ? 0 : bytes_of(g);
        if (g->n_users == 0 && (++n > MAX_GRAMMARS || n_bytes + own > c->max_bytes)) {
            *at = g->next;
            free_grammar(g);
            continue;
        }
        n_bytes += own;
        at = &g->next;
    }
    return n_held <= c->max_bytes;
}

/* Finds a grammar and moves it to the front of the list. NULL: it is not there. The caller holds the lock. */
static CachedGrammar *find(GrammarCache *c, const ServedModel *m, fr_grammar_kind kind, const char *text, size_t n) {
    for (CachedGrammar **at = &c->first; *at; at = &(*at)->next) {
        CachedGrammar *g = *at;
        if (g->model != m || g->kind != kind || g->n_text != n || memcmp(g->text, text, n) != 0) continue;
        *at = g->next;
        g->next = c->first;
        c->first = g;
        return g;
    }
    return NULL;
}

int compile_watch_should_stop(void *user) {
    CompileWatch *w = user;
    return ++w->n_looks > COMPILE_MAX_LOOKS || (w->wants_stop && atomic_load(w->wants_stop));
}

static int compile(CachedGrammar **out, const ServedModel *m, fr_grammar_kind kind, const char *text, size_t n,
                   CompileWatch *watch, fr_error *err) {
    CachedGrammar *g = malloc(sizeof *g + n);
    *out = NULL;
    if (!g) return error_memory(err, "a grammar", sizeof *g + n);
    *g = (CachedGrammar){.model = m, .kind = kind, .n_text = n};
    memcpy(g->text, text, n);
    int status = fr_grammar_open_stoppable(&g->grammar, m->model, kind, text, n, compile_watch_should_stop, watch, err);
    if (status) free(g);
    else *out = g;
    return status;
}

/* Only the worker adds grammars, so none is added while the lock is released. */
int grammar_cache_get(GrammarCache *c, CachedGrammar **out, const ServedModel *m, fr_grammar_kind kind,
                      const char *text, size_t n, CompileWatch *watch, bool *is_full, fr_error *err) {
    int status = FR_OK;
    pthread_mutex_lock(&c->lock);
    c->n_queries++;
    CachedGrammar *g = find(c, m, kind, text, n);
    if (g) c->n_hits++, g->n_users++;
    *is_full = !make_room(c) && !g;
    pthread_mutex_unlock(&c->lock);
    *out = g;
    if (g) return FR_OK;
    if (*is_full)
        return error_set(err, FR_ERR_MEMORY,
                         "the grammars of the running requests take more than %zu MiB; try again later",
                         c->max_bytes >> 20);
    if ((status = compile(&g, m, kind, text, n, watch, err))) return status;
    g->n_users = 1;
    pthread_mutex_lock(&c->lock);
    g->next = c->first;
    c->first = g;
    pthread_mutex_unlock(&c->lock);
    *out = g;
    return FR_OK;
}

void grammar_cache_give_back(GrammarCache *c, CachedGrammar *g) {
    if (!g) return;
    pthread_mutex_lock(&c->lock);
    g->n_users--;
    pthread_mutex_unlock(&c->lock);
}

const fr_grammar *cached_grammar(const CachedGrammar *g) { return g ? g->grammar : NULL; }

const char *cached_grammar_text(const CachedGrammar *g, size_t *n) {
    *n = g->n_text;
    return g->text;
}

GrammarCacheStats grammar_cache_stats(GrammarCache *c) {
    pthread_mutex_lock(&c->lock);
    GrammarCacheStats stats = {.n_queries = c->n_queries, .n_hits = c->n_hits};
    for (const CachedGrammar *g = c->first; g; g = g->next) {
        stats.n_grammars++;
        stats.n_bytes += bytes_of(g);
    }
    pthread_mutex_unlock(&c->lock);
    return stats;
}
