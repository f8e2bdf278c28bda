/* draft_policy.h - which drafters propose in a step, and how many of their nodes get a row of the forward.
 *
 * A request with an automatic budget learns both from what its steps cost and bring (draft_policy.c). It chooses among
 * trees and cannot change a token.
 */
#ifndef ENGINE_DRAFT_POLICY_H
#define ENGINE_DRAFT_POLICY_H

#include "compute/cost.h"
#include "engine/budget_allocator.h"
#include "engine/drafter_pool.h"

/* What the policy knows about an engine. */
typedef struct DraftPolicy {
    CostCurve cost;      /* time of a forward; empty until draft_policy_measure_costs */
    double tokens_per_s; /* of this step's decoding requests together: what a second is worth */
    int32_t n_base_rows; /* rows of this step besides the drafted nodes of requests with automatic budgets */
    const Tree **trees;  /* [max_requests] arguments of the allocator */
    int32_t *budgets;
    BudgetNode *scratch; /* [max_requests * FR_TREE_BUDGET_AUTO_MAX] */
} DraftPolicy;

/* Finds out what forwards cost, from the cost cache or by measuring, unless that is known already. Needs a free
 * sequence and free pages; entries of the prefix cache make room. */
int draft_policy_measure_costs(fr_engine *e, fr_error *err);
/* Writes the costs, as corrected by every forward since, into the cost cache of the options. */
void draft_policy_save_costs(const fr_engine *e);

/* Prepares a request whose drafts are acquired. Refused where it has an automatic budget and costs are not known. */
int draft_policy_begin(fr_request *r, fr_error *err);
void draft_policy_end(fr_request *r);
/* Sets is_proposing of each draft: whether it is called in this step. */
void draft_policy_choose_drafts(fr_request *r);
/* A proposal of `d`, with feeding it before, took so long. */
void draft_policy_observe_proposal(EngineDrafter *d, double seconds);
/* Prunes the trees of all requests with automatic budgets to the nodes that are worth their time. n_base_rows: all
 * other rows of the step, the roots of these trees included. */
void draft_policy_allocate(fr_engine *e, fr_request *const *requests, int n, int32_t n_base_rows);
/* Learns from what a step committed: n tokens, each proposed by the draft in sources (-1: the target's own). */
void draft_policy_observe_step(fr_request *r, const int32_t *tokens, const int32_t *sources, int32_t n);

#endif
