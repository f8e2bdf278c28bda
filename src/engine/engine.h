/* engine.h - the inside of the opaque types fr_model and fr_engine of forerun.h.
 *
 * Where to start: fr_engine_step, at the end of step.c, runs one step and fits on a screen. engine.c opens and closes
 * engines. request.c follows one request from its options to its last token, request_reasoning.c bounds its reasoning,
 * and results.c has what callers learn about it. drafter_pool.c keeps the open drafters, and request_drafts.c calls
 * them. request_queue.c decides which requests run and which wait, prompts.c which prompts are read, kv_policy.c which
 * request gets KV pages, prefix_cache.c which pages requests share, saved_prefix.c how they are kept outside the
 * process, and draft_policy.c how much is drafted. public_api.c has the functions of forerun.h that need no engine. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/mem.h"
#include "base/system.h"
#include "compute/ranks/ranks.h"
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
    atomic_int n_users; /* its engines and grammars, and its owner until fr_model_close; the last user frees it */
    Gguf *gguf;
    Tokenizer *tokenizer;
    Model *model;
    Weights *weights;                          /* the model's weights in the form of its backend */
    ChatTemplate chat_template, tool_template; /* tool_template: for conversations with tools, if the file has one */
    Ranks *ranks; /* the processes among which the weights are divided; NULL: they are whole */
    char *name;
    pthread_mutex_t trie_lock; /* protects trie */
    TokenTrie *trie;           /* NULL until the first grammar of the model is opened */
};

struct fr_grammar {
    fr_model *model;
    Grammar *grammar;
};

struct fr_engine {
    fr_model *model;
    Device *device; /* the threads and the working memory of everything that the engine and its drafters compute */
    Executor *executor;
    VerifyScratch **scratch; /* [n_scratch] one for each request that is verified at the same time */
    int n_scratch;
    fr_engine_options options; /* every 0 is replaced by its default; drafts is NULL */
    char *cost_cache;          /* the string of options.cost_cache, owned */
    fr_request **requests;     /* [n_places] all open requests; NULL: the place is free */
    fr_request **running;      /* [max_requests] the request that has sequence i of the executor; NULL: it is free */
    int n_places, n_queued;
    int64_t grammar_work; /* how much work all grammars may do in one step, in the units of grammar/states.h */
    uint64_t n_arrivals;  /* how many requests have been opened so far */
    EngineDrafter drafters[ENGINE_MAX_DRAFTERS];
    KeptLayers kept; /* the residual streams that drafters read, open or closed */
    PrefixCache prefixes;
    DraftPolicy policy;
    uint64_t fingerprint; /* of the model, for saved prefixes; 0: not computed yet */
    EngineStep step;
    FpEnv caller_env;    /* the environment of the thread that called fr_engine_step, in which callbacks run */
    bool is_in_callback; /* on_token of one of its requests is running */
    bool is_closing;     /* fr_engine_close was called within a callback */
    Arena arena;         /* the memory of all arrays of the engine */
};

/* Removes one user of the model; the last one frees it. NULL is allowed. */
void model_release(fr_model *model);
/* Refuses a call if the engine is NULL or runs a callback. `function` is the caller's name, for the error. */
int engine_check_call(const fr_engine *e, const char *function, fr_error *err);
/* Frees what callbacks closed during a step. FR_ERR_CANCELLED: that includes the engine itself. */
int engine_end_step(fr_engine *e, fr_error *err);

/* ---- the checks of what a caller passes to the functions of forerun.h (public_api.c) ----------------------------- */

/* Each returns FR_OK, or FR_ERR_ARGUMENT with a sentence that names the function and the argument. */
int check_given(const void *argument, const char *function, const char *name, fr_error *err);
/* Checks an array of n items, which may be NULL only if n is 0. */
int check_array(const void *array, int64_t n, const char *function, const char *name, fr_error *err);
/* Checks an array of n strings, none of which may be NULL. */
int check_strings(const char *const *strings, int64_t n, const char *function, const char *name, fr_error *err);

/* Copies the options that a caller passed into *own, a zeroed struct of this version that begins with struct_size.
 * `given` may be NULL. `type` is the name of the struct, for the error. */
int read_options(void *own, size_t own_bytes, const void *given, const char *function, const char *type, fr_error *err);
/* Copies a result into a struct of the caller that begins with struct_size. FR_ERR_ARGUMENT: out is NULL, or its
 * struct_size is not set. */
int fill_result(void *out, const void *own, size_t own_bytes);

#endif
