/* draft_policy.h - which drafters propose in a step, and how many of their nodes get a row of the forward.
 *
 * A request with an automatic budget learns both from what its steps cost and bring (draft_policy.c). The policy
 * chooses among trees and cannot change a token. */
#ifndef ENGINE_DRAFT_POLICY_H
#define ENGINE_DRAFT_POLICY_H

#include "compute/cost.h"
#include "engine/drafter_pool.h"
#include "tree/tree.h"

/* ---- the allocator: which drafted nodes of all sequences get a row, by the time that they should save ----------- */

typedef struct BudgetNode {
    float p_accept;
    int32_t tree;
} BudgetNode;

typedef struct BudgetInput {
    const Tree *const *trees; /* [n_trees], with calibrated p_accept; borrowed */
    int n_trees;
    int32_t n_base_rows; /* rows of the forward without these drafted nodes: roots, prompts, trees with fixed budgets */
    const CostCurve *cost; /* not empty */
    double tokens_per_s;   /* R: what all sequences together generate now */
    double max_extra_s;    /* forward time that drafted nodes may add at most, however probable they are */
    BudgetNode *scratch;   /* room for all nodes below the roots of all trees */
} BudgetInput;

/* Sets budgets[i] to the number of drafted nodes that tree i should keep: its most probable ones, which union_prune
 * keeps. Returns the sum. */
int32_t allocate_budgets(const BudgetInput *in, int32_t *budgets);

/* ---- the policy ------------------------------------------------------------------------------------------------ */

/* What the policy knows about an engine. */
typedef struct DraftPolicy {
    CostCurve cost;       /* time of a forward; empty until draft_policy_measure_costs */
    double logits_s;      /* cost_logits_s of the model */
    double tokens_per_s;  /* R of this step: what a second is worth */
    int32_t n_base_rows;  /* rows of this step in addition to the drafted nodes of requests with automatic budgets */
    double answer_tokens; /* the mean length of recent answers */
    const Tree **trees;   /* [max_requests] arguments of the allocator */
    int32_t *budgets;
    BudgetNode *scratch; /* [max_requests * FR_TREE_BUDGET_AUTO_MAX] */
} DraftPolicy;

/* Finds out what forwards cost, from the cost cache or by measuring, unless the costs are known. It needs a free
 * sequence and free pages, for which it drops entries of the prefix cache. */
int draft_policy_measure_costs(fr_engine *e, fr_error *err);
/* Writes the costs, as all forwards since have corrected them, to the cost cache of the options, unless other programs
 * disturbed their measurement. */
void draft_policy_save_costs(const fr_engine *e);

/* Prepares a request whose drafts are acquired. Fails if the request has an automatic budget and the costs are not
 * known. */
int draft_policy_begin(fr_request *r, fr_error *err);
void draft_policy_end(fr_request *r);
/* Sets reads_prompt of each draft: whether it is shown the prompt. The drafts have begun the request's sequence. */
void draft_policy_choose_starts(fr_request *r);
/* Sets is_proposing of each draft of n decoding requests: whether it proposes in this step. */
void draft_policy_choose_drafts(fr_engine *e, fr_request *const *requests, int n);
/* Learns how long a drafter took to read n tokens of a prompt. */
void draft_policy_observe_prompt(EngineDrafter *d, int32_t n, double seconds);
/* Learns how long one proposal took, including feeding the drafter. */
void draft_policy_observe_proposal(EngineDrafter *d, double seconds);
/* Prunes the trees of all requests with automatic budgets to the nodes that are worth their time. n_tree_rows: the
 * roots of these trees and all nodes of the others; n_prompt_rows: what prompts can read in this step beside these. */
void draft_policy_allocate(fr_engine *e, fr_request *const *requests, int n, int32_t n_tree_rows,
                           int32_t n_prompt_rows);
/* Learns from the n tokens that a step committed. sources[i] is the number of the draft that proposed token i; -1: it
 * is the target's own. */
void draft_policy_observe_step(fr_request *r, const int32_t *tokens, const int32_t *sources, int32_t n);

#endif
