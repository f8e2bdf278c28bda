/* engine.h - the inside of the opaque types fr_model and fr_engine of forerun.h.
 *
 * Where to start: fr_engine_step, at the end of step.c, runs one step and fits on a screen. engine.c opens and closes
 * engines, and request.c follows one request from its options to its last token; results.c has what callers learn about
 * it. drafter_pool.c keeps the open drafters, and request_drafts.c calls them. request_queue.c decides which requests
 * run and which wait, prompts.c which prompts are read, kv_policy.c which request gets KV pages, and prefix_cache.c
 * which pages requests share. draft_policy.c decides with budget_allocator.c how much is drafted. public_api.c has the
 * functions of forerun.h that need no engine.
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/mem.h"
#include "base/system.h"
#include "engine/draft_policy.h"
#include "engine/drafter_pool.h"
#include "engine/prefix_cache.h"
#include "engine/step.h"
#include "grammar/grammar.h"
#include "verify/verifier.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

struct fr_model {
    atomic_int n_users; /* its engines, and its owner until fr_model_close; the last of them frees it */
    Gguf *gguf;
    Tokenizer *tokenizer;
    Model *model;
    Weights *weights;                          /* of the model, resident in its backend */
    ChatTemplate chat_template, tool_template; /* the second for conversations with tools, where the file has one */
    char *name;
    pthread_mutex_t trie_lock; /* of the trie, which is made when a grammar needs it */
    TokenTrie *trie;           /* NULL: not made */
};

struct fr_grammar {
    fr_model *model;
    Grammar *grammar;
};

struct fr_engine {
    fr_model *model;
    Device *device; /* threads and memory of everything that this engine computes, drafters included */
    Executor *executor;
    VerifyScratch **scratch; /* [n_scratch] one for each request that is verified at a time */
    int n_scratch;
    fr_engine_options options; /* every 0 is replaced by its default; there are no drafts */
    char *cost_cache;          /* the string of options.cost_cache */
    fr_request **requests;     /* [n_places] all that are open, NULL where free */
    fr_request **running;      /* [max_requests] those that have sequence i of the executor, NULL where it is free */
    int n_places, n_queued;
    int64_t grammar_work; /* that all grammars may do in one step, in the units of grammar/states.h */
    uint64_t n_arrivals;  /* requests opened so far */
    EngineDrafter drafters[ENGINE_MAX_DRAFTERS];
    PrefixCache prefixes;
    DraftPolicy policy;
    EngineStep step;
    FpEnv caller_env;    /* of the thread that called fr_engine_step, for its callbacks */
    bool is_in_callback; /* on_token of one of its requests is running */
    bool is_closing;     /* fr_engine_close was called meanwhile */
    Arena arena;         /* all arrays of the engine */
};

/* Counts one user of the model less; the last one frees it. NULL is fine. */
void model_release(fr_model *model);
/* Refuses a call without an engine, or within a callback of one. */
int engine_check_call(const fr_engine *e, const char *function, fr_error *err);
/* After a step: frees what its callbacks closed. FR_ERR_CANCELLED: the engine itself is among it. */
int engine_end_step(fr_engine *e, fr_error *err);

#endif
