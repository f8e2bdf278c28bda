/* draft_policy.c - which drafters propose in a step, how many of their nodes get a row, and when drafting stops.
 *
 * The problem: drafting loses time on texts that repeat nothing, with drafters that cost more than they bring, and on
 * models whose forward is so short that even a proposal takes too long. The user cannot know that in advance, but the
 * engine can measure it. The draft `auto` should be as fast as the best fixed choice where drafts are accepted, and as
 * fast as plain decoding where they are not, even when a forward of the target takes 20 microseconds and no draft is
 * ever accepted.
 *
 * What is known: T(n), the time of a forward of n rows (cost_curve.h); for each drafter the time of a proposal; and the
 * acceptance probability of each node (calibration.h). A step makes three decisions. Each is an account in seconds:
 *
 *   1 which drafters    A drafter proposes in every step while its proposals save more time than they cost: `gain_s` is the
 *     propose           mean over the last GAIN_MEMORY proposals of (accepted nodes / R - forward time of its nodes). A
 *                       drafter that does not earn its cost is idle, and gains TRIAL_SHARE of the time as credit: it
 *                       proposes when the credit pays for a proposal. With a large model that is in every step, because
 *                       a proposal costs next to nothing there; with a tiny one in every tenth. A proposal need not get a
 *                       row to be judged, because the target's next token shows whether it was right (calibration.c). So
 *                       an idle drafter is noticed when it becomes useful.
 *   2 which nodes       The allocator (budget_allocator.c) gives rows to those nodes of all requests that save time at the
 *     get a row         rate R.
 *   3 how much time     Estimates can be wrong, above all at the start. A request has a credit of forward time: CREDIT_START
 *     may be lost       forwards, and LOSS_SHARE of the time since. The cost of rows is subtracted and the time that accepted
 *                       nodes saved is added, up to CREDIT_MAX. Without credit no node gets a row.
 *
 * So on a text where no draft is ever accepted, the loss is at most TRIAL_SHARE + LOSS_SHARE of the time, plus the
 * first CREDIT_START. R, in tokens per second, is the sum of the requests' rates over their last steps, and at least
 * that of plain decoding.
 *
 * Drafters are shown tokens only when they propose (request_drafts.c), so idle ones cost nothing. The number of nodes
 * that a drafter may propose follows the number that the allocator takes.
 *
 * None of this can change a text: it chooses trees, and the verification rule is exact for every tree. The text of a
 * ratio rule does depend on its trees, so a request with such a rule keeps a fixed budget, and learns how often
 * drafters are right from its own steps alone. Without that, a drafter that overestimates itself keeps all rows of a
 * union: where ngram-trie's first tree was wrong, none of the 480 nodes of its union with lyanna was accepted, and
 * 54 of lyanna's alone. Proof: tests/engine/test_draft_policy.c. */
#include "engine/draft_policy.h"

#include "compute/cost.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "tree/tree.h"

#include <stdlib.h>

enum { GAIN_MEMORY = 16, RATE_MEMORY = 16, FIRST_PROPOSALS = 2, MIN_PROPOSAL_BUDGET = 4 };
#define TRIAL_SHARE 0.01
#define LOSS_SHARE 0.005
#define CREDIT_START 1.0 /* in forwards of one row, as CREDIT_MAX */
#define CREDIT_MAX 8.0
#define MARGIN 1.05 /* a row must save this many times its cost: T(n, context) is known within a few per cent */

int draft_policy_measure_costs(fr_engine *e, fr_error *err) {
    const char *folder = e->options.cost_cache;
    char key[COST_KEY_BYTES];
    fr_error why;
    int status;
    if (e->policy.cost.n) return FR_OK;
    if (folder) cost_cache_key(e->executor, e->options.n_threads, key);
    if (folder && cost_cache_load(folder, key, &e->policy.cost)) return FR_OK;
    while ((status = cost_curve_measure(&e->policy.cost, e->executor, e->options.n_ctx, &why)) &&
           prefix_cache_drop(e)) {}
    if (status)
        return error_set(err, (fr_code)status, "the time of a forward cannot be measured now: %.400s", why.message);
    draft_policy_save_costs(e);
    return FR_OK;
}

void draft_policy_save_costs(const fr_engine *e) {
    char key[COST_KEY_BYTES];
    if (!e->options.cost_cache || e->policy.cost.n == 0) return;
    cost_cache_key(e->executor, e->options.n_threads, key);
    /* Where it cannot be written, the next engine measures again. */
    (void)cost_cache_store(e->options.cost_cache, key, &e->policy.cost, NULL);
}

/* What all requests taught about a drafter. A text that depends on its trees must not depend on other requests:
 * NULL. */
static Calibration *prior_of(const fr_request *r, const RequestDraft *d) {
    return verify_rule_needs_its_trees(r->rule) ? NULL : &d->shared->calibration;
}

int draft_policy_begin(fr_request *r, fr_error *err) {
    fr_engine *e = r->engine;
    r->proposal_budget = FR_TREE_BUDGET < r->tree_budget ? FR_TREE_BUDGET : r->tree_budget;
    if (!r->has_auto_budget && r->options.n_drafts < 2) return FR_OK;
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (!(d->proposal = malloc(sizeof *d->proposal))) return error_memory(err, "a proposal", sizeof *d->proposal);
        d->proposal->n = 1;
        calibration_init(&d->calibration, prior_of(r, d));
    }
    if (!r->has_auto_budget) return FR_OK;
    if (e->policy.cost.n == 0)
        return error_set(err, FR_ERR_ARGUMENT,
                         "an automatic tree budget needs to know what forwards cost: call "
                         "fr_engine_measure_costs first, or name \"auto\" in fr_engine_options.drafts");
    r->time_credit_s = CREDIT_START * cost_curve_at(&e->policy.cost, 1);
    r->recent_tokens = RATE_MEMORY;
    r->recent_s = RATE_MEMORY * cost_curve_at(&e->policy.cost, 1);
    return FR_OK;
}

void draft_policy_end(fr_request *r) {
    for (int i = 0; i < r->options.n_drafts; i++) free(r->drafts[i].proposal);
}

void draft_policy_observe_proposal(EngineDrafter *d, double seconds) {
    if (d->proposal_s <= 0) d->proposal_s = seconds;
    double change = seconds / d->proposal_s - 1; /* one slow proposal moves the mean by a quarter at most */
    d->proposal_s *= 1 + (change > 0.25 ? 0.25 : change < -0.25 ? -0.25 : change);
}

/* Decision 1, for a request with an automatic budget; takes the cost from the credit of an idle drafter. */
static bool claim_proposal(RequestDraft *d) {
    if (d->n_proposals < FIRST_PROPOSALS || d->gain_s >= d->shared->proposal_s) return true;
    if (d->time_credit_s < d->shared->proposal_s) return false;
    d->time_credit_s -= d->shared->proposal_s;
    return true;
}

void draft_policy_choose_drafts(fr_request *r) {
    double income_s = 0;
    if (r->has_auto_budget)
        income_s = TRIAL_SHARE * cost_curve_at(&r->engine->policy.cost, 1) / (r->options.n_drafts + 1);
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (d->is_active && d->time_credit_s < d->shared->proposal_s) d->time_credit_s += income_s;
        d->is_proposing = d->is_active && r->step_budget > 0 && (!r->has_auto_budget || claim_proposal(d));
        d->n_proposals += d->is_proposing;
        r->draft_stats.n_proposals += d->is_proposing;
    }
}

/* R: tokens per second of these requests together, by their last steps; at least that of plain decoding. */
static double rate_now(const fr_engine *e, fr_request *const *requests, int n) {
    double sum = 0, plain = n / cost_curve_at(&e->policy.cost, e->policy.n_base_rows);
    for (int i = 0; i < n; i++)
        if (requests[i]->has_auto_budget) sum += requests[i]->recent_tokens / requests[i]->recent_s;
    return sum > plain ? sum : plain;
}

/* Lets drafters propose about twice as many nodes as the allocator took. */
static void adapt_proposal_budget(fr_request *r, int32_t n_taken) {
    int32_t most = r->tree_budget;
    if (2 * n_taken > r->proposal_budget) r->proposal_budget *= 2;
    else if (4 * n_taken < r->proposal_budget && r->proposal_budget > MIN_PROPOSAL_BUDGET) r->proposal_budget /= 2;
    if (r->proposal_budget > most) r->proposal_budget = most;
}

/* T(n) is wanted for the mean context of this step. */
static void set_context(fr_engine *e, fr_request *const *requests, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)requests[i]->n_context;
    if (n > 0) e->policy.cost.n_context = sum / n;
}

void draft_policy_allocate(fr_engine *e, fr_request *const *requests, int n, int32_t n_base_rows) {
    e->policy.n_base_rows = n_base_rows;
    if (e->policy.cost.n == 0) return;
    set_context(e, requests, n);
    e->policy.tokens_per_s = rate_now(e, requests, n);
    double max_extra_s = 0;
    int n_trees = 0;
    for (int i = 0; i < n; i++) {
        fr_request *r = requests[i];
        if (!r->has_auto_budget || r->tree.n == 1) continue;
        if (r->time_credit_s > 0) max_extra_s += r->time_credit_s;
        else union_prune(&r->tree, 0);
        e->policy.trees[n_trees++] = &r->tree;
    }
    if (n_trees == 0) return;
    const BudgetInput in = {.trees = e->policy.trees,
                            .n_trees = n_trees,
                            .n_base_rows = n_base_rows,
                            .cost = &e->policy.cost,
                            .tokens_per_s = MARGIN * e->policy.tokens_per_s,
                            .max_extra_s = max_extra_s,
                            .scratch = e->policy.scratch};
    allocate_budgets(&in, e->policy.budgets);
    for (int i = 0, k = 0; i < n; i++) {
        fr_request *r = requests[i];
        if (!r->has_auto_budget || k == n_trees || e->policy.trees[k] != &r->tree) continue;
        union_prune(&r->tree, e->policy.budgets[k++]);
        adapt_proposal_budget(r, r->tree.n - 1);
    }
}

/* Updates the accounts after a step: time that rows cost, and time that accepted nodes saved. */
static void settle_accounts(fr_request *r, const int32_t *sources, int32_t n) {
    const DraftPolicy *p = &r->engine->policy;
    int32_t n_rows = r->engine->step.n_rows;
    double t1_s = cost_curve_at(&p->cost, 1), token_s = 1 / p->tokens_per_s, step_s = cost_curve_at(&p->cost, n_rows);
    double node_s = n_rows == p->n_base_rows
                        ? 0
                        : (step_s - cost_curve_at(&p->cost, p->n_base_rows)) / (n_rows - p->n_base_rows);
    r->recent_tokens += n - r->recent_tokens / RATE_MEMORY;
    r->recent_s += step_s - r->recent_s / RATE_MEMORY;
    r->time_credit_s += LOSS_SHARE * t1_s + (n - 1) * token_s - (r->tree.n - 1) * node_s;
    if (r->time_credit_s > CREDIT_MAX * t1_s) r->time_credit_s = CREDIT_MAX * t1_s;
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (!d->is_proposing) continue;
        double gain_s = 0;
        for (int32_t k = 0; k < n; k++) gain_s += sources[k] == i ? token_s : 0;
        for (int32_t k = 1; k < r->tree.n; k++) gain_s -= r->tree.nodes[k].source == i ? node_s : 0;
        d->gain_s += (gain_s - d->gain_s) / GAIN_MEMORY;
    }
}

void draft_policy_observe_step(fr_request *r, const int32_t *tokens, const int32_t *sources, int32_t n) {
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (!d->proposal || !d->is_proposing || !d->is_active) continue;
        Calibration *prior = prior_of(r, d);
        if (prior) {
            calibration_learn(prior, d->proposal, tokens, n);
            calibration_fit(prior, NULL);
        }
        calibration_learn(&d->calibration, d->proposal, tokens, n);
        calibration_fit(&d->calibration, prior);
    }
    if (r->has_auto_budget) settle_accounts(r, sources, n);
}
