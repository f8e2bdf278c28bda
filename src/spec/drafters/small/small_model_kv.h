/* small_model_kv.h - a draft model that keeps up with the sequences of the target: its files, its keys and values,
 * and its distribution after each node of a tree. How a tree is grown with it: draft_model.c. */
#ifndef SMALL_SMALL_MODEL_KV_H
#define SMALL_SMALL_MODEL_KV_H

#include "backend/executor.h"
#include "spec/drafter/drafter.h"

enum {
    SMALL_MODEL_MAX_NEW = 32, /* context rows of a sequence in a level's forward; longer stretches run before */
};

typedef struct DraftSequence {
    bool begun;
    int32_t kv;      /* its id in the executor */
    int32_t *tokens; /* the context, the pending token last; room for the path of a node behind it */
    int32_t n;
    uint64_t position; /* output position of the token after the pending one */
    SamplingOptions
        dist; /* what q is made with: the request's, and temperature 1 without filters where it is greedy */
    bool greedy;
} DraftSequence;

typedef struct SmallModelKv {
    Gguf *gguf;
    Model *model;
    Weights *weights;
    Executor *executor;
    Sampler *sampler;
    int32_t n_vocab, max_sequences, n_ctx;
    int32_t n_nodes;  /* of the largest tree of one sequence */
    int32_t max_rows; /* of a forward */
    int64_t n_forwards;
    DraftSequence *sequences; /* [max_sequences] */
    Row *rows;                /* [max_rows] of the coming forward */
    int32_t n_rows;
    int32_t *row_ids; /* [max_rows] argument of a commit */
} SmallModelKv;

/* Opens the model at `path`; refuses one whose vocabulary is not the target's. `r` is zeroed; where this fails,
 * small_model_kv_close tidies up. */
int small_model_kv_open(SmallModelKv *r, const char *path, int32_t n_nodes, const DrafterEnv *env, fr_error *err);
void small_model_kv_close(SmallModelKv *r);

/* The drafter's vtable, for one model. */
DraftSequence *small_model_kv_sequence(const SmallModelKv *r, int32_t sequence);
void small_model_kv_set_sampling(SmallModelKv *r, int32_t sequence, const SamplingOptions *sampling, uint64_t position);
int small_model_kv_begin(SmallModelKv *r, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int small_model_kv_observe(SmallModelKv *r, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
void small_model_kv_end(SmallModelKv *r, int32_t sequence);

/* Runs the context of a sequence but for the last SMALL_MODEL_MAX_NEW tokens, if it has not run yet. */
int small_model_kv_catch_up(SmallModelKv *r, const DraftSequence *s, fr_error *err);
/* Rows for the context that has not run yet, the pending token last, with room for a tree behind them. *n_rows is
 * how many. */
int small_model_kv_put_context(SmallModelKv *r, const DraftSequence *s, int32_t *n_rows, fr_error *err);
void small_model_kv_commit(SmallModelKv *r, const DraftSequence *s, int32_t first_row, int32_t n);
/* distribution[n_vocab]: the distribution after a node of the sequence's tree, whose row has run. */
void small_model_kv_law(SmallModelKv *r, DraftSequence *s, const Tree *t, int32_t node, int32_t row, float *dist);

#endif
