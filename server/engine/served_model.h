/* served_model.h - a model that the server offers under a name, with the engine and the drafters that the operator gave
 * it. */
#ifndef SERVER_ENGINE_SERVED_MODEL_H
#define SERVER_ENGINE_SERVED_MODEL_H

#include "base/error.h"
#include "forerun.h"

#include <stdbool.h>
#include <stdint.h>

/* A request has at most 8 drafts. `auto` counts as two, and `prediction` may be added: 6 + 1 + 1. */
enum { SERVED_MAX_DRAFTS = 6, SERVED_MAX_MODELS = 8, SERVED_COST_ROWS = 32, SERVE_MAX_PARALLEL = 256 };

typedef struct Generation Generation;

/* One of the places in which requests run, and the tokens of the request that ran there last. */
typedef struct Slot {
    int32_t *tokens; /* [n_tokens] its prompt and its answer; 0: the slot is empty */
    int64_t n_tokens;
    uint64_t last_use;
    bool is_busy;
} Slot;

typedef struct ServedModel {
    char name[128]; /* the name by which clients call it */
    const char *path;
    fr_model *model;
    fr_engine *engine; /* only the engine thread uses it, once that runs */
    fr_model_info info;
    bool is_divided; /* among processes */
    int n_ctx, max_requests, max_queued, tree_budget;
    int first_slot; /* the number of its first slot; the slots of all models are counted through */
    const char *drafts[SERVED_MAX_DRAFTS]; /* the operator's; the default of requests */
    int n_drafts;
    /* What the API shows of the model's file: */
    char *chat_template; /* NULL: there is none */
    char bos[64], eos[64], quantization[16];
    int64_t n_parameters;
    uint64_t fingerprint, vocabulary; /* fr_model_fingerprint, fr_vocab_fingerprint */
    bool writes_blank;                /* its template writes a space before each answer, so answers begin with one */
    int64_t created_s;                /* seconds since 1970 */
    int64_t cost_context;             /* tokens */
    double forward_s[SERVED_COST_ROWS + 1]; /* T(n) after cost_context tokens, as measured at the start; 0: unknown */
    double context_s;                       /* how much each token of context adds to T(1) */
    int64_t kv_tokens;                      /* the room of the KV cache */
    int kv_page_size;
    const char *kv_type;
    /* The engine thread sets these: */
    _Atomic int64_t kv_tokens_running; /* how much of the room running requests hold */
    /* For a divided model: the number of its processes, of its drafters that are divided, too, and what the
     * processes have exchanged in which time; otherwise 0. */
    _Atomic int64_t n_ranks, n_divided_drafts, n_exchanges, exchanged_bytes, exchange_us;

    /* Only the engine thread uses these: */
    Generation *waiting, **waiting_last; /* in order of arrival */
    Generation *running;
    int n_running;
    Slot *slots; /* [max_requests] */
    uint64_t n_slot_uses;
    uint64_t n_changes; /* requests that have ended and slots that were restored, after which other texts are cached */
    struct KvEvents *events; /* NULL: routers are told nothing */

    /* Only the event loop uses this: */
    int n_active; /* generations that were submitted and have not ended */
} ServedModel;

typedef struct ServedModelOptions {
    const char *spec; /* FILE or NAME=FILE */
    const char *backend, *kernels, *activations, *cost_cache;
    int n_ranks;
    fr_engine_options engine; /* without drafts */
    const char *const *drafts;
    int n_drafts, tree_budget, max_queued;
} ServedModelOptions;

/* Reads the name and the path. served_model_open also does so. */
int served_model_read_spec(ServedModel *m, const char *spec, fr_error *err);
/* Opens the model and its engine, and measures the costs of forwards. After a failure nothing is left open. */
int served_model_open(ServedModel *m, const ServedModelOptions *o, fr_error *err);
void served_model_close(ServedModel *m);
/* Finds the operator's drafter that a client calls `name`: the whole spec of a --draft, or its method if only one spec
 * has that method. NULL: there is none. */
const char *served_model_draft(const ServedModel *m, const char *name);

#endif
