/* step.h - the working memory of one step of the engine, shared by all modules that take part in it. */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include "compute/executor.h"
#include "draft/drafter.h"

#include <stdatomic.h>

typedef struct EngineStep {
    fr_request **by_age; /* [n_by_age] of max_requests: running when the step began, the oldest first */
    int n_by_age;
    fr_request **decoding_first; /* [n_by_age] those that decode before those that prefill, each by age */
    bool pages_short;            /* a request waits for pages in this step, and so do all younger ones */
    int32_t n_rows_max;
    Row *rows; /* [n_rows] of n_rows_max: the forward being built */
    int32_t n_rows;
    ExtraRow *extra_rows; /* [n_rows_max] of one drafter */
    const float **row_logits,
        **row_hidden;       /* [n_rows_max] results of these rows, where drafters or verification want them */
    fr_request **verifying; /* [n_verifying] of max_requests: those whose trees are verified */
    int n_verifying;
    atomic_int n_verified; /* of them, taken by a thread */
    int32_t commit_rows[EXECUTOR_MAX_ROWS];
    int32_t *propose_sequences, *propose_budgets; /* [max_requests] arguments of one call of a drafter */
    Tree **propose_trees;
} EngineStep;

#endif
