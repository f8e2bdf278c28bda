/* draft_runner.h - a draft model that keeps up with the sequences of the target: its files, its keys and values,
 * and its law after each node of a tree. How a tree is grown with it: draft_model.c. */
#ifndef SPEC_DRAFT_RUNNER_H
#define SPEC_DRAFT_RUNNER_H

#include "model/executor.h"
#include "spec/drafter.h"

enum {
    DRAFT_RUNNER_MAX_NEW = 32, /* context rows of a sequence in a level's forward; longer stretches run before */
};

typedef struct DraftSequence {
    bool begun;
    int32_t kv;      /* its id in the executor */
    int32_t *tokens; /* the context, the pending token last; room for the path of a node behind it */
    int32_t n;
    uint64_t position; /* output position of the token after the pending one */
    SamplingOptions
        law; /* what q is made with: the request's, and temperature 1 without filters where it is greedy */
    bool greedy;
} DraftSequence;

typedef struct DraftRunner {
    Gguf *gguf;
    Model *model;
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
} DraftRunner;

/* Opens the model at `path`; refuses one whose vocabulary is not the target's. `r` is zeroed; where this fails,
 * draft_runner_close tidies up. */
int draft_runner_open(DraftRunner *r, const char *path, int32_t n_nodes, const DrafterEnv *env, fr_error *err);
void draft_runner_close(DraftRunner *r);

/* The drafter's vtable, for one model. */
DraftSequence *draft_runner_sequence(const DraftRunner *r, int32_t sequence);
void draft_runner_set_sampling(DraftRunner *r, int32_t sequence, const SamplingOptions *sampling, uint64_t position);
int draft_runner_begin(DraftRunner *r, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int draft_runner_observe(DraftRunner *r, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
void draft_runner_end(DraftRunner *r, int32_t sequence);

/* Runs the context of a sequence but for the last DRAFT_RUNNER_MAX_NEW tokens, if it has not run yet. */
int draft_runner_catch_up(DraftRunner *r, const DraftSequence *s, fr_error *err);
/* Rows for the context that has not run yet, the pending token last, with room for a tree behind them. *n_rows is
 * how many. */
int draft_runner_put_context(DraftRunner *r, const DraftSequence *s, int32_t *n_rows, fr_error *err);
void draft_runner_commit(DraftRunner *r, const DraftSequence *s, int32_t first_row, int32_t n);
/* law[n_vocab]: the law after a node of the sequence's tree, whose row has run. */
void draft_runner_law(DraftRunner *r, DraftSequence *s, const Tree *t, int32_t node, int32_t row, float *law);

#endif
