/* served_model.h - a model that the server offers under a name, with the engine and the drafters that the operator gave
 * it. */
#ifndef SERVER_ENGINE_SERVED_MODEL_H
#define SERVER_ENGINE_SERVED_MODEL_H

#include "base/error.h"
#include "forerun.h"

#include <stdint.h>

enum {
    SERVED_MAX_DRAFTS = 6,
    SERVED_MAX_MODELS = 8,
    SERVED_COST_ROWS = 32
}; /* `auto` counts twice, and `prediction` comes on top: 8 */

typedef struct Generation Generation;

typedef struct ServedModel {
    char name[128]; /* what clients call it */
    const char *path;
    fr_model *model;
    fr_engine *engine; /* used by the engine thread alone, once that runs */
    fr_model_info info;
    int n_ctx, max_requests, max_queued, tree_budget;
    const char *drafts[SERVED_MAX_DRAFTS]; /* as given by the operator; what requests use unless they choose */
    int n_drafts;
    int64_t created_s;                      /* since 1970 */
    int64_t cost_context;                   /* tokens */
    double forward_s[SERVED_COST_ROWS + 1]; /* T(n) behind so many tokens, when it was opened; 0: not known */
    double context_s;                       /* what each token of context adds to T(1) */

    /* Of the engine thread: */
    Generation *waiting, **waiting_last; /* in order of arrival */
    Generation *running;
    int n_running;

    /* Of the event loop: */
    int n_active; /* generations that were submitted and have not ended */
} ServedModel;

typedef struct ServedModelOptions {
    const char *spec; /* FILE or NAME=FILE */
    const char *backend, *kernels, *activations, *cost_cache;
    fr_engine_options engine; /* without drafts */
    const char *const *drafts;
    int n_drafts, tree_budget, max_queued;
} ServedModelOptions;

/* Reads name and path, which served_model_open does, too. */
int served_model_read_spec(ServedModel *m, const char *spec, fr_error *err);
/* Opens model and engine, and measures what forwards cost. After a failure nothing is left open. */
int served_model_open(ServedModel *m, const ServedModelOptions *o, fr_error *err);
void served_model_close(ServedModel *m);
/* The drafter of the operator's that a client calls `name`: a whole spec of --draft, or its method where one spec alone
 * has it. NULL: there is none. */
const char *served_model_draft(const ServedModel *m, const char *name);

#endif
