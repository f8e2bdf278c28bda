/* small_model_kv.h - a draft model that follows the sequences of the target: its file, its KV cache, and its
 * distribution at each node of a tree. draft_model.c grows trees with it. */
#ifndef SMALL_SMALL_MODEL_KV_H
#define SMALL_SMALL_MODEL_KV_H

#include "compute/executor.h"
#include "draft/cached_kv.h"
#include "draft/drafter.h"

enum {
    SMALL_MODEL_MAX_NEW =
        32, /* context rows of a sequence that may run together with its tree; more than that run before */
};

typedef struct DraftSequence {
    bool begun;
    int32_t kv;      /* its id in the executor */
    int32_t *tokens; /* the context, the pending token last; there is memory for a path of a tree after it */
    int32_t n;
    uint64_t position;    /* output position of the token after the pending one */
    SamplingOptions dist; /* for q: the options of the request; if it is greedy, temperature 1 and no filters */
    bool greedy;
} DraftSequence;

typedef struct SmallModelKv {
    Gguf *gguf;
    Model *model;
    Weights *weights;
    Executor *executor;
    Sampler *sampler;
    bool is_recurrent;
    int32_t mark_every; /* tokens between two borders of the target's pages */
    int32_t n_vocab, max_sequences, n_ctx;
    int32_t n_nodes;  /* in the largest tree of one sequence */
    int32_t max_rows; /* in a forward */
    int64_t n_forwards;
    DraftSequence *sequences; /* [max_sequences + n_cached], of the latter only kv */
    CachedKv cached;
    int32_t n_cached;
    Row *rows; /* [max_rows] for the next forward */
    int32_t n_rows;
    int32_t *row_ids; /* [max_rows] argument of executor_commit */
} SmallModelKv;

/* Opens the model at `path`; refuses a model whose vocabulary differs from the target's. `r` must be zeroed. After a
 * failure, small_model_kv_close releases what was opened. */
int small_model_kv_open(SmallModelKv *r, const char *path, int32_t n_nodes, const DrafterEnv *env, fr_error *err);
void small_model_kv_close(SmallModelKv *r);

/* For the functions of the same names in a DrafterClass. */
DraftSequence *small_model_kv_sequence(const SmallModelKv *r, int32_t sequence);
void small_model_kv_set_sampling(SmallModelKv *r, int32_t sequence, const SamplingOptions *sampling, uint64_t position);
int small_model_kv_begin(SmallModelKv *r, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int small_model_kv_observe_prompt(SmallModelKv *r, int32_t sequence, int64_t end, fr_error *err);
int32_t small_model_kv_n_held(const SmallModelKv *r, int32_t sequence);
int32_t small_model_kv_reach(const SmallModelKv *r, int32_t sequence, int32_t n);
void small_model_kv_take_over(SmallModelKv *r, int32_t from, int32_t to, int32_t n);
int small_model_kv_observe(SmallModelKv *r, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
void small_model_kv_end(SmallModelKv *r, int32_t sequence);

/* Runs what has not run yet of a sequence's context, except its last SMALL_MODEL_MAX_NEW tokens. */
int small_model_kv_catch_up(SmallModelKv *r, const DraftSequence *s, fr_error *err);
/* Appends rows for the context that has not run yet, the pending token last, and reserves KV cache for them and a
 * tree. *n_rows is their number. */
int small_model_kv_put_context(SmallModelKv *r, const DraftSequence *s, int32_t *n_rows, fr_error *err);
/* The rows of a context have run: the sequence keeps them, but not that of the pending token in a recurrent state. */
void small_model_kv_commit_context(SmallModelKv *r, const DraftSequence *s, int32_t first_row, int32_t n_rows);
/* dist [n_vocab]: the distribution of the token after a node of the sequence's tree, whose row has run. */
void small_model_kv_dist(SmallModelKv *r, DraftSequence *s, const Tree *t, int32_t node, int32_t row, float *dist);

#endif
