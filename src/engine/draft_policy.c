/* draft_policy.c - who is asked to draft, how much of it gets a row, and when drafting stops: decided online, per request.
 *
 * The problem: drafting loses time on texts that repeat nothing, with drafters that cost more than they bring, and on models
 * whose forward is so short that asking for a proposal is already a loss. The user cannot know in advance; the engine
 * can measure. `auto` should be as fast as the best fixed choice where drafts are accepted, and as plain decoding where they are
 * not, also when a forward of the target takes 20 microseconds and no draft is ever right.
 *
 * What is known: T(n), the time of a forward of n rows (cost_curve.h); for each drafter the time of a proposal; the probability
 * that a node is right (calibration.h). So a step has three decisions, each of them an account in seconds:
 *
 *   1 whom to ask    A drafter is asked in every step while its proposals save more than they cost: `gain_s` is
 *                    the mean over the last GAIN_MEMORY proposals of (its accepted nodes / R - the forward time of its
 *                    nodes). One that does not earn its cost has a purse into which ASK_SHARE of the time flows, and is
 *                    asked when the purse holds the price: a large model asks in every step, for the price is nothing; a
 *                    tiny one every tenth. A proposal teaches without getting a row, because the token
 *                    that the target says next judges it (calibration.c), so that a sleeper can be seen to be right.
 *   2 which nodes    The planner (budget_allocator.c) gives rows to the nodes of all requests that gain time at the rate R.
 *   3 how much may   Estimates can be wrong, at the start above all. A request has a purse of forward time: CREDIT_START forwards,
 *     be lost        and LOSS_SHARE of the time since. What rows cost is taken out, what accepted nodes saved is put
 *                    in, up to CREDIT_MAX. Without money nothing gets a row.
 *
 * So the most that can be lost on a text where no draft is ever accepted is ASK_SHARE + LOSS_SHARE of the time and the first
 * CREDIT_START. R, the price of a second, is the sum of the requests' rates over their last steps, and at least
 * that of plain decoding.
 *
 * Drafters are fed when they are asked (drafter_pool.c), so that sleepers cost nothing; and how many nodes are asked of them follows
 * how many the planner takes.
 *
 * None of this can change a text: it chooses trees, and the rule of acceptance is exact for every tree. A ratio rule's
 * text does depend on its trees, so such a request keeps a fixed budget and learns nothing. Proof:
 * tests/test_draft_policy.c. */
#include "engine/engine.h"

#include "backend/cost_cache.h"
#include "spec/tree/union.h"

#include <stdlib.h>

enum { GAIN_MEMORY = 16, RATE_MEMORY = 16, FIRST_ASKS = 2, MIN_ASK_BUDGET = 4 };
#define ASK_SHARE 0.01
#define LOSS_SHARE 0.005
#define CREDIT_START 1.0 /* forwards of one row */
#define CREDIT_MAX 8.0
#define MARGIN 1.05 /* of what a row must bring over its price: T(n, context) is known within some per cent */

/* What forwards cost: from the cache, or measured now and kept there. */
static void know_costs(fr_engine *e) {
    const char *folder = e->options.cost_cache;
    char key[COST_KEY_BYTES];
    if (folder) cost_cache_key(e->executor, e->options.n_threads, key);
    if (folder && cost_cache_load(folder, key, &e->cost)) return;
    while (cost_curve_measure(&e->cost, e->executor, e->options.n_ctx, NULL))
        if (!prefix_cache_drop(e)) return;
    engine_keep_costs(e);
}

void engine_keep_costs(const fr_engine *e) {
    char key[COST_KEY_BYTES];
    if (!e->options.cost_cache || e->cost.n == 0) return;
    cost_cache_key(e->executor, e->options.n_threads, key);
    (void)cost_cache_store(e->options.cost_cache, key, &e->cost, NULL); /* a cache that cannot be written is none */
}

int request_begin_learning(fr_request *r, fr_error *err) {
    fr_engine *e = r->engine;
    r->ask_budget = FR_TREE_BUDGET < r->tree_budget ? FR_TREE_BUDGET : r->tree_budget;
    if (verify_rule_needs_its_trees(r->rule) || (!r->has_auto_budget && r->options.n_drafts < 2)) return FR_OK;
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (!(d->proposal = malloc(sizeof *d->proposal))) return error_memory(err, "a proposal", sizeof *d->proposal);
        d->proposal->n = 1;
        calibration_init(&d->calibration, &d->shared->calibration);
    }
    if (!r->has_auto_budget) return FR_OK;
    if (e->cost.n == 0) know_costs(e);
    if (e->cost.n == 0) r->has_auto_budget = false; /* no room to measure: the budget is fixed this time */
    r->time_credit_s = CREDIT_START * cost_curve_at(&e->cost, 1);
    r->recent_tokens = RATE_MEMORY;
    r->recent_s = RATE_MEMORY * cost_curve_at(&e->cost, 1);
    return FR_OK;
}

void request_end_learning(fr_request *r) {
    for (int i = 0; i < r->options.n_drafts; i++) free(r->drafts[i].proposal);
}

void engine_note_cost(EngineDrafter *d, double seconds) {
    if (d->cost_s <= 0) d->cost_s = seconds;
    double off = seconds / d->cost_s - 1; /* one slow proposal moves it by a quarter at most */
    d->cost_s *= 1 + (off > 0.25 ? 0.25 : off < -0.25 ? -0.25 : off);
}

static bool is_worth_asking(RequestDraft *d) {
    if (d->n_asked < FIRST_ASKS || d->gain_s >= d->shared->cost_s) return true;
    if (d->time_credit_s < d->shared->cost_s) return false;
    d->time_credit_s -= d->shared->cost_s;
    return true;
}

void request_wake_drafts(fr_request *r) {
    double income_s = r->has_auto_budget ? ASK_SHARE * cost_curve_at(&r->engine->cost, 1) / (r->options.n_drafts + 1) : 0;
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (d->active && d->time_credit_s < d->shared->cost_s) d->time_credit_s += income_s;
        d->is_asked = d->active && r->step_budget > 0 && (!r->has_auto_budget || is_worth_asking(d));
        d->n_asked += d->is_asked;
        r->stats.asked += d->is_asked;
    }
}

/* Tokens a second that the requests make together, by their last steps; at least what they would make plainly. */
static double rate_now(const fr_engine *e, fr_request *const *requests, int n) {
    double sum = 0, plain = n / cost_curve_at(&e->cost, e->n_base_rows);
    for (int i = 0; i < n; i++)
        if (requests[i]->has_auto_budget) sum += requests[i]->recent_tokens / requests[i]->recent_s;
    return sum > plain ? sum : plain;
}

/* Asks for about twice as many nodes as were taken. */
static void follow_allocation(fr_request *r, int32_t n_taken) {
    int32_t most = r->tree_budget;
    if (2 * n_taken > r->ask_budget) r->ask_budget *= 2;
    else if (4 * n_taken < r->ask_budget && r->ask_budget > MIN_ASK_BUDGET) r->ask_budget /= 2;
    if (r->ask_budget > most) r->ask_budget = most;
}

/* The context of this step, in the mean. */
static void note_context(fr_engine *e, fr_request *const *requests, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)requests[i]->n_context;
    if (n > 0) e->cost.n_context = sum / n;
}

void engine_allocate_budgets(fr_engine *e, fr_request *const *requests, int n, int32_t n_base_rows) {
    e->n_base_rows = n_base_rows;
    if (e->cost.n == 0) return;
    note_context(e, requests, n);
    e->tokens_per_s = rate_now(e, requests, n);
    double max_extra_s = 0;
    int n_trees = 0;
    for (int i = 0; i < n; i++) {
        fr_request *r = requests[i];
        if (!r->has_auto_budget || r->tree.n == 1) continue;
        if (r->time_credit_s > 0) max_extra_s += r->time_credit_s;
        else union_prune(&r->tree, 0);
        e->budget_trees[n_trees++] = &r->tree;
    }
    if (n_trees == 0) return;
    const BudgetInput in = {.trees = e->budget_trees, .n_trees = n_trees, .n_base_rows = n_base_rows, .cost = &e->cost,
                          .tokens_per_s = MARGIN * e->tokens_per_s, .max_extra_s = max_extra_s, .scratch = e->budget_scratch};
    allocate_budgets(&in, e->allocated_budgets);
    for (int i = 0, k = 0; i < n; i++) {
        fr_request *r = requests[i];
        if (!r->has_auto_budget || k == n_trees || e->budget_trees[k] != &r->tree) continue;
        union_prune(&r->tree, e->allocated_budgets[k++]);
        follow_allocation(r, r->tree.n - 1);
    }
}

/* The accounts after a step: what rows cost, what accepted nodes saved. */
static void settle(fr_request *r, const int32_t *sources, int32_t n) {
    fr_engine *e = r->engine;
    double t1_s = cost_curve_at(&e->cost, 1), token_s = 1 / e->tokens_per_s, step_s = cost_curve_at(&e->cost, e->n_rows);
    double node_s = e->n_rows == e->n_base_rows ? 0 : (step_s - cost_curve_at(&e->cost, e->n_base_rows)) /
                                                          (e->n_rows - e->n_base_rows);
    r->recent_tokens += n - r->recent_tokens / RATE_MEMORY;
    r->recent_s += step_s - r->recent_s / RATE_MEMORY;
    r->time_credit_s += LOSS_SHARE * t1_s + (n - 1) * token_s - (r->tree.n - 1) * node_s;
    if (r->time_credit_s > CREDIT_MAX * t1_s) r->time_credit_s = CREDIT_MAX * t1_s;
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (!d->is_asked) continue;
        double gain_s = 0;
        for (int32_t k = 0; k < n; k++) gain_s += sources[k] == i ? token_s : 0;
        for (int32_t k = 1; k < r->tree.n; k++) gain_s -= r->tree.nodes[k].source == i ? node_s : 0;
        d->gain_s += (gain_s - d->gain_s) / GAIN_MEMORY;
    }
}

void request_learn(fr_request *r, const int32_t *tokens, const int32_t *sources, int32_t n) {
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (!d->proposal || !d->is_asked || !d->active) continue;
        calibration_learn(&d->shared->calibration, d->proposal, tokens, n);
        calibration_learn(&d->calibration, d->proposal, tokens, n);
        calibration_fit(&d->shared->calibration, NULL);
        calibration_fit(&d->calibration, &d->shared->calibration);
    }
    if (r->has_auto_budget) settle(r, sources, n);
}
