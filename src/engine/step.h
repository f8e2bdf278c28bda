/* step.h - one step of the engine: the working memory that all its modules share, which requests get pages of the KV
 * cache, and which prompts are read. */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include "compute/cost.h"
#include "draft/drafter.h"

#include <stdatomic.h>

typedef struct EngineStep {
    /* Arrays of requests have room for max_requests. */
    fr_request **by_age; /* [n_by_age] the requests that ran when the step began, the oldest first */
    int n_by_age;
    fr_request **decoding_first; /* [n_by_age] the decoding ones before those that prefill, each group by age */
    bool pages_short;            /* a request waits for pages in this step, and so do all younger ones */
    int32_t n_rows_max;
    Row *rows; /* [n_rows], with room for n_rows_max: the forward that is being built */
    int32_t n_rows;
    double plain_s;                         /* an estimate of what it would take without drafts; 0: unknown */
    ExtraRow *extra_rows;                   /* [n_rows_max] the extra rows of one drafter */
    const float **row_logits, **row_hidden; /* [n_rows_max] results that drafters or verification need */
    fr_request **verifying;                 /* [n_verifying] the requests whose trees are verified */
    int n_verifying;
    atomic_int n_verified; /* how many of them a thread has taken */
    int32_t commit_rows[EXECUTOR_MAX_ROWS];
    int32_t *propose_sequences, *propose_budgets; /* [max_requests] arguments for one call of a drafter */
    Tree **propose_trees;
    /* prompts.c: the mean number of tokens that the prompts of this step have read, and how long earlier steps took
     * compared with the cost curve: those without prompts, and those with prompts beside trees. 0: none was measured */
    double n_read, plain_ratio, prompt_ratio;
    double catch_up_s; /* the time in which drafters caught up in this step */
} EngineStep;

/* ---- pages (kv_policy.c): where there are not enough for all, older requests get them --------------------------- */

/* Lists the running requests in step.by_age, at the start of a step. */
void kv_policy_begin_step(fr_engine *e);
/* Claims slots for n rows of r in this step, or for at least n_least of them, and for n_ahead tokens that it reads
 * later. Pages are taken from the prefix cache and from younger requests if there are too few. Requests claim in the
 * order of step.by_age. Returns how many slots r got for this step; 0: r sits out the step, or has failed. */
int32_t kv_policy_claim(fr_request *r, int32_t n, int32_t n_least, int32_t n_ahead);

/* ---- prompts (prompts.c) ---------------------------------------------------------------------------------------- */

/* What decides how many rows of prompts are read beside trees. */
typedef struct ChunkInput {
    const CostCurve *cost;            /* not empty; its n_context is that of the rows of trees */
    int32_t n_tree_rows;              /* at least 1 */
    double n_read;                    /* tokens before the rows of prompts */
    double max_gap_s;                 /* 0: twice a step without prompts */
    double plain_ratio, prompt_ratio; /* as in EngineStep */
    int32_t most;                     /* rows of prompts, at least 1 */
} ChunkInput;

/* Returns the largest number of rows with which a step is expected to take no longer than the gap, but at least 1, or 8
 * if the rows of trees by themselves take longer, and never more than `most`. */
int32_t prompt_chunk(const ChunkInput *in);

/* Returns how many rows of prompts the next step may have in addition to n_tree_rows rows of trees: prefill_chunk if
 * there are none. */
int32_t prompt_rows(fr_engine *e, int32_t n_tree_rows);

/* Returns the time that a step with these rows of trees and without prompts leaves of the gap of its streams. */
double prompt_spare_s(const fr_engine *e, int32_t n_tree_rows);

/* Sets is_prefill_step of all running requests, and n_step_rows of those that read their context: at most
 * prompt_rows(e, n_tree_rows) rows for all of them together. */
void prompt_plan(fr_engine *e, int32_t n_tree_rows);

/* Returns the time that the forward of this step is expected to take: that of the cost curve, with the contexts of
 * trees and of prompts. The costs are known. */
double prompt_expected_s(const fr_engine *e);

/* Learns from the time that this step took. */
void prompt_observe_step(fr_engine *e, double seconds);

/* Sets the marks of a sequence that belong at lengths from + 1 to `to`, when its tokens [from, to) have been
 * committed. */
void prompt_marks_set(const fr_request *r, int32_t from, int32_t to);

#endif
