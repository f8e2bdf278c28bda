/* draft_policy.c - which drafters propose in a step, how many of their nodes get a row, and when drafting stops.
 *
 * The problem: drafting loses time on texts that repeat nothing, with drafters that cost more than they bring, and on
 * models whose forward is so short that even a proposal takes too long. The user cannot know that in advance, but the
 * engine can measure it. The draft `auto` should be as fast as the best fixed choice where drafts are accepted, and as
 * fast as plain decoding where they are not, even when a forward of the target takes 20 microseconds and no draft is
 * ever accepted.
 *
 * What is known: T(n), the time of a forward of n rows (compute/cost.h); for each drafter the time of a proposal; and
 * the acceptance probability of each node (calibration.h). A step makes three decisions. Each is an account in seconds:
 *
 *   1 which drafters    A drafter proposes in every step while its proposals save more time than they cost: `gain_s` is
 *     propose           the mean over the last GAIN_MEMORY proposals of (accepted nodes / R - forward time of nodes). A
 *                       request begins with the mean of earlier ones. A drafter that does not earn its cost is idle,
 *                       and gains TRIAL_SHARE of the time as credit: it proposes for all requests that use it when the
 *                       credit pays for that. With a large model that is in every step, because a proposal costs next
 *                       to nothing there; with a tiny one in every tenth. A proposal need not get a row to be judged,
 *                       because the target's next token shows whether it was right (calibration.c). So an idle drafter
 *                       is noticed when it becomes useful.
 *   2 which nodes       The allocator (below) gives rows to those nodes of all requests that save time at the rate R.
 *     get a row
 *   3 how much time     Estimates can be wrong, above all at the start. A request has a credit of forward time:
 *     may be lost       CREDIT_START forwards, and LOSS_SHARE of the time since. The cost of rows is subtracted and the
 *                       time that accepted nodes saved is added, up to CREDIT_MAX. Without credit no node gets a row.
 *
 * Before these, one more decision is made for drafters that read the prompt (DrafterClass.observe_prompt), when the
 * request begins: whether the drafter is shown it. That costs a forward of its layer or model for every token, and
 * tokens whose keys another request has computed are read again if the drafter does not have them. A short answer does
 * not repay it. So the drafter is shown the prompt if the gain expected of the answer, whose length is that of recent
 * ones, is larger. Its first prompt is free, and later ones that are not expected to pay have a credit of their own.
 * Without the prompt a drafter with a layer can still propose, from the hidden states of the answer; a draft model must
 * read the context first, which its credit or the rest of the answer has to pay. Beside other streams, or if the
 * operator has set a gap, it reads it in pieces: in each step as much as fits into the gap of the streams (prompts.c),
 * and nothing while prompts are read. It proposes when it has read all.
 *
 * If the operator has set a gap, trees keep it too: their nodes get no rows with which a step would take longer. While
 * prompts are read, every such step is full, so a node takes the place of a token of a prompt: R then includes the
 * tokens that prompts read.
 *
 * So on a text where no draft is ever accepted, the loss is at most 2 TRIAL_SHARE + LOSS_SHARE of the time, plus the
 * first CREDIT_START, trial and prompt. R, in tokens per second, is the sum of the requests' rates over their last
 * steps, and at least that of plain decoding.
 *
 * Drafters are shown tokens only when they propose (request_drafts.c), so idle ones cost nothing. The number of nodes
 * that a drafter may propose follows the number that the allocator takes.
 *
 * None of this can change a text: it chooses trees, and the verification rule is exact for every tree. The text of a
 * ratio rule does depend on its trees, so a request with such a rule keeps a fixed budget, and learns how often
 * drafters are right only from its own steps. If it learned nothing, a drafter that overestimates itself would get all
 * rows of a union: when ngram-trie's first tree was wrong, none of the 480 nodes of its union with lyanna was accepted,
 * while lyanna without ngram-trie had 54 nodes accepted. Proof: tests/engine/test_draft_policy.c. */
#include "engine/draft_policy.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "tree/tree.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { GAIN_MEMORY = 16, SHARED_GAIN_MEMORY = 64, GAIN_PRIOR = 4, RATE_MEMORY = 16, ANSWER_MEMORY = 16 };
enum { FIRST_TRIALS = 2, FIRST_ANSWER = 128 /* tokens */, MIN_PROPOSAL_BUDGET = 4, LEAST_CATCH_UP = 8 };
enum { MOST_WITH_PROPOSAL = 32 }; /* tokens of the context that a draft model reads together with its proposal */
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
    e->policy.logits_s = cost_logits_s(e->model->weights);
    if (folder) cost_cache_key(e->executor, e->options.n_threads, key);
    if (folder && cost_cache_load(folder, key, &e->policy.cost)) return FR_OK;
    while ((status = cost_curve_measure(&e->policy.cost, e->executor, e->options.n_ctx, e->device->n_threads, &why)) &&
           prefix_cache_drop(e)) {}
    if (status)
        return error_set(err, (fr_code)status, "the time of a forward cannot be measured now: %.400s", why.message);
    draft_policy_save_costs(e);
    return FR_OK;
}

void draft_policy_save_costs(const fr_engine *e) {
    char key[COST_KEY_BYTES];
    if (!e->options.cost_cache || e->policy.cost.n == 0 || e->policy.cost.disturbance > 1) return;
    cost_cache_key(e->executor, e->options.n_threads, key);
    /* If it cannot be written, the next engine measures again. */
    (void)cost_cache_store(e->options.cost_cache, key, &e->policy.cost, NULL);
}

/* ---- the allocator --------------------------------------------------------------------------------------------
 *
 * The problem: every node costs time, T(n + 1) - T(n), which is next to nothing while a forward waits for memory, and
 * the work of a whole row where it waits for arithmetic. Every node brings a token with probability p_accept. The right
 * size of a tree depends on the machine, the model, the batch and the text, and changes from step to step. A fixed
 * budget is wrong most of the time, and on a model that fits into the cache it makes generation slower than plain
 * decoding.
 *
 * The idea: time can be counted in tokens. At R tokens per second, a forward that takes dT longer costs R dT tokens, so
 * a set S of nodes gains
 *
 *     G(S) = sum over S of p_accept - R (T(base + |S|) - T(base))
 *
 * Maximising G in each step maximises tokens per second in the long run, when R is the rate so reached (Dinkelbach
 * 1967, on ratios of sums). Maximising (1 + sum p_accept) / T of the step by itself would stop too early in good steps.
 * The cost depends on |S| only, so for each size the best set is the one with the largest p_accept over all trees.
 * Because p_accept never rises along a path, that set is a tree within each tree. So the allocator sorts the nodes,
 * walks down the list, and keeps the size with the largest G. It does not stop where G falls: T rises in stairs (a row
 * that fills up a tile is free), and several nodes can pay where one does not. The empty set has G = 0, so nothing is
 * drafted that is expected to lose. (vLLM's adaptive verification ranks the positions of chains in the same way.)
 *
 *     p_accept 0.9 0.5 0.3, R T(1) = 1, R T(2..4) = 1.4 1.5 2.2:   G = 0.5, 0.9, 0.5: two nodes
 *
 * Invariant: the nodes kept are the best set by G, as brute force finds it (tests/engine/test_budget_allocator.c).
 * Cost: a sort of all nodes. The choice is as good as p_accept and T, which calibration.c and cost.c keep true. */

static int better_first(const void *a, const void *b) {
    const BudgetNode *x = a, *y = b;
    if (x->p_accept != y->p_accept) return x->p_accept > y->p_accept ? -1 : 1;
    return x->tree - y->tree;
}

int32_t allocate_budgets(const BudgetInput *in, int32_t *budgets) {
    int32_t n = 0, n_best = 0;
    for (int i = 0; i < in->n_trees; i++) {
        budgets[i] = 0;
        for (int32_t k = 1; k < in->trees[i]->n; k++)
            in->scratch[n++] = (BudgetNode){in->trees[i]->nodes[k].p_accept, i};
    }
    if (n == 0) return 0;
    qsort(in->scratch, (size_t)n, sizeof *in->scratch, better_first);
    double base_s = cost_curve_at(in->cost, in->n_base_rows), sum = 0, best = 0;
    for (int32_t k = 1; k <= n; k++) {
        double extra_s = cost_curve_at(in->cost, in->n_base_rows + k) - base_s;
        if (extra_s > in->max_extra_s) break;
        sum += (double)in->scratch[k - 1].p_accept;
        double gain = sum - in->tokens_per_s * extra_s;
        if (gain > best) best = gain, n_best = k;
    }
    for (int32_t k = 0; k < n_best; k++) budgets[in->scratch[k].tree]++;
    return n_best;
}

/* ---- accounts ------------------------------------------------------------------------------------------------- */

/* Returns what all requests taught about a drafter. NULL if the text depends on its trees, because it must not depend
 * on other requests. */
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
    double *mean = &r->engine->policy.answer_tokens, n = (double)r->stats.n_generated;
    if (r->has_auto_budget && n > 0) *mean = *mean > 0 ? *mean + (n - *mean) / ANSWER_MEMORY : n;
    for (int i = 0; i < r->options.n_drafts; i++) free(r->drafts[i].proposal);
}

static void learn_time(double *mean_s, double seconds) {
    if (*mean_s <= 0) *mean_s = seconds;
    double change = seconds / *mean_s - 1; /* one slow measurement changes the mean by at most a quarter */
    *mean_s *= 1 + (change > 0.25 ? 0.25 : change < -0.25 ? -0.25 : change);
}

void draft_policy_observe_proposal(EngineDrafter *d, double seconds) { learn_time(&d->proposal_s, seconds); }

void draft_policy_observe_prompt(EngineDrafter *d, int32_t n, double seconds) {
    learn_time(&d->prompt_token_s, seconds / n);
}

/* Returns how many tokens the request will probably still generate: as many as recent answers had, or as many again if
 * it is already longer. */
static double expected_tokens(const fr_request *r) {
    double mean = r->engine->policy.answer_tokens, n = (double)r->stats.n_generated, left;
    if (mean <= 0) mean = FIRST_ANSWER;
    if ((left = (double)request_tokens_left(r)) < 0) left = 0;
    mean = mean > 2 * n ? mean - n : n;
    return mean < left ? mean : left;
}

/* Returns the time that a token takes now, without drafts. */
static double token_s(const fr_engine *e) {
    return e->policy.tokens_per_s > 0 ? 1 / e->policy.tokens_per_s : cost_curve_at(&e->policy.cost, 1);
}

/* Returns whether the drafter will probably save more than `cost_s` in the rest of the answer. */
static bool repays(const fr_request *r, const RequestDraft *d, double cost_s) {
    double gain_s = d->gain_s - d->shared->proposal_s, tokens_per_step = 1 + d->gain_s / token_s(r->engine);
    return gain_s >= 0 && gain_s * expected_tokens(r) / tokens_per_step >= cost_s;
}

/* ---- decision 0: the prompt ---- */

/* Returns how many tokens the request can take over if its drafts are shown the prompt as their flags say. */
static int32_t n_shared(fr_request *r) {
    r->reads_prompt = r->needs_hidden = false;
    for (int i = 0; i < r->options.n_drafts; i++) {
        r->reads_prompt |= r->drafts[i].reads_prompt;
        r->needs_hidden |= r->drafts[i].reads_prompt && r->drafts[i].shared->drafter->class->needs_hidden;
    }
    return prefix_cache_usable(r);
}

static bool claim_prompt(const fr_request *r, RequestDraft *d, double cost_s) {
    EngineDrafter *shared = d->shared;
    if (shared->n_starts == 0 || (shared->n_gains > 0 && repays(r, d, cost_s))) return true;
    shared->start_cost_s = cost_s;
    if (shared->start_credit_s < cost_s || expected_tokens(r) * token_s(r->engine) < cost_s) return false;
    shared->start_credit_s -= cost_s;
    return true;
}

void draft_policy_choose_starts(fr_request *r) {
    const CostCurve *cost = &r->engine->policy.cost;
    for (int i = 0; i < r->options.n_drafts; i++) r->drafts[i].reads_prompt = false;
    int32_t n_without = n_shared(r);
    double row_s = r->has_auto_budget ? cost_curve_at(cost, cost->rows[cost->n - 1]) / cost->rows[cost->n - 1] : 0;
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        const DrafterClass *class = d->shared->drafter->class;
        d->gain_s = d->shared->gain_s;
        d->reads_prompt = d->is_active && class->observe_prompt;
        if (!d->reads_prompt) continue;
        int32_t n_with = n_shared(r);
        double n_read = (double)(r->n_context - 1 - n_with), n_again = n_without - n_with;
        if (r->has_auto_budget)
            d->reads_prompt = claim_prompt(r, d, n_read * d->shared->prompt_token_s + n_again * row_s);
        d->shared->n_starts += d->reads_prompt;
        if (!d->reads_prompt && class->needs_hidden)
            d->gain_s = 0; /* nothing is known of a drafter without the prompt */
    }
    n_shared(r); /* sets the flags of the request */
}

/* ---- decision 1: who proposes ---- */

/* Returns what a draft model needs to read the context that it has not read yet. */
static double catch_up_s(const fr_request *r, const RequestDraft *d) {
    const DrafterClass *class = d->shared->drafter->class;
    if (class->needs_hidden || !class->observe_prompt || !class->n_held) return 0;
    return (double)(r->n_context - class->n_held(d->shared->drafter, d->sequence)) * d->shared->prompt_token_s;
}

static bool may_propose(const fr_request *r, const RequestDraft *d) { return d->is_active && r->step_budget > 0; }

/* Decides whether a drafter is tried in this step in the requests in which it is idle. It needs no trial in its first
 * step, because the time of a proposal is not known yet. */
static void choose_trial(fr_engine *e, EngineDrafter *shared, fr_request *const *requests, int n) {
    double cost_s = 0, step_s = e->policy.cost.n ? cost_curve_at(&e->policy.cost, n) : 0, income_s = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < requests[i]->options.n_drafts; k++) {
            const RequestDraft *d = &requests[i]->drafts[k];
            if (d->shared != shared || !requests[i]->has_auto_budget || !may_propose(requests[i], d)) continue;
            income_s += TRIAL_SHARE * step_s / n / (requests[i]->options.n_drafts + 1);
            if (!d->is_catching_up && !repays(requests[i], d, catch_up_s(requests[i], d)))
                cost_s += shared->proposal_s + catch_up_s(requests[i], d);
        }
    if (shared->start_credit_s < shared->start_cost_s) shared->start_credit_s += income_s;
    if (shared->trial_credit_s < cost_s) shared->trial_credit_s += income_s;
    shared->is_tried = cost_s > 0 && (shared->n_trials < FIRST_TRIALS || shared->trial_credit_s >= cost_s);
    if (!shared->is_tried) return;
    if (shared->n_trials++ >= FIRST_TRIALS) shared->trial_credit_s -= cost_s;
}

/* Returns how many tokens of the context a draft model may read in this step, of the left_s seconds that all of them
 * have. */
static int32_t n_readable(const EngineDrafter *d, double left_s) {
    double n = d->prompt_token_s > 0 ? left_s / d->prompt_token_s : LEAST_CATCH_UP;
    if (left_s <= 0) return 0;
    if (isinf(left_s) || n > INT32_MAX / 2) return INT32_MAX / 2;
    return n < LEAST_CATCH_UP ? LEAST_CATCH_UP : (int32_t)n;
}

/* Lets a draft model that is chosen to propose read the context in pieces if streams would wait too long otherwise. */
static void catch_up(const fr_request *r, RequestDraft *d, double *left_s) {
    const EngineDrafter *shared = d->shared;
    const DrafterClass *class = shared->drafter->class;
    if (!r->has_auto_budget || class->needs_hidden || !class->observe_prompt || !class->n_held) return;
    int64_t n_behind = r->n_context - class->n_held(shared->drafter, d->sequence);
    int32_t n = n_readable(shared, *left_s);
    d->is_catching_up = n_behind > MOST_WITH_PROPOSAL && n_behind > n;
    d->is_proposing = !d->is_catching_up;
    if (d->is_catching_up) d->n_catch_up = n;
    *left_s -= (double)(d->is_catching_up ? n : n_behind) * shared->prompt_token_s;
}

/* Returns the time in which draft models may read contexts in this step of n decoding requests. */
static double catch_up_left_s(const fr_engine *e, int n) {
    bool is_bounded = n > 1 || e->options.max_gap_s > 0, reads_prompts = e->step.n_by_age > n;
    if (e->policy.cost.n == 0 || !is_bounded) return INFINITY;
    double spare_s = reads_prompts ? 0 : prompt_spare_s(e, n);
    return spare_s > 0 || reads_prompts ? spare_s : DBL_MIN; /* enough for the least number of tokens */
}

void draft_policy_choose_drafts(fr_engine *e, fr_request *const *requests, int n) {
    double left_s = n > 0 ? catch_up_left_s(e, n) : 0;
    for (int k = 0; k < ENGINE_MAX_DRAFTERS; k++)
        if (e->drafters[k].n_users > 0) choose_trial(e, &e->drafters[k], requests, n);
    for (int i = 0; i < n; i++) {
        fr_request *r = requests[i];
        for (RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
            d->n_catch_up = 0;
            d->is_proposing = may_propose(r, d) && (!r->has_auto_budget || d->shared->is_tried || d->is_catching_up ||
                                                    repays(r, d, catch_up_s(r, d)));
            if (d->is_proposing) catch_up(r, d, &left_s);
            r->draft_stats.n_proposals += d->is_proposing;
        }
    }
}

/* R: the tokens per second of these requests together, by their last steps, and at least the rate of plain decoding. */
static double rate_now(const fr_engine *e, fr_request *const *requests, int n) {
    double sum = 0, plain = n / cost_curve_at(&e->policy.cost, e->policy.n_base_rows);
    for (int i = 0; i < n; i++)
        if (requests[i]->has_auto_budget) sum += requests[i]->recent_tokens / requests[i]->recent_s;
    return sum > plain ? sum : plain;
}

/* Returns the tokens of prompts per second, if a step lasts as long as the gap that the operator has set: a drafted
 * node then takes the place of a token of a prompt, and must bring as much. With the default gap, which is a multiple
 * of what the trees take, prompts keep their share of every step. */
static double prompt_rate(const fr_engine *e, int32_t n_prompt_rows) {
    return e->options.max_gap_s > 0 ? n_prompt_rows / e->options.max_gap_s : 0;
}

/* Lets drafters propose about twice as many nodes as the allocator took. */
static void adapt_proposal_budget(fr_request *r, int32_t n_taken) {
    int32_t most = r->tree_budget;
    if (2 * n_taken > r->proposal_budget) r->proposal_budget *= 2;
    else if (4 * n_taken < r->proposal_budget && r->proposal_budget > MIN_PROPOSAL_BUDGET) r->proposal_budget /= 2;
    if (r->proposal_budget > most) r->proposal_budget = most;
}

/* Sets for which mean context T(n) is needed in this step, and whether whole rows of logits are wanted. */
static void set_context(fr_engine *e, fr_request *const *requests, int n) {
    double sum = 0;
    bool wants_rows = false;
    for (int i = 0; i < n; i++) {
        sum += (double)requests[i]->n_context;
        wants_rows = wants_rows || !requests[i]->only_best;
    }
    if (n > 0) e->policy.cost.n_context = sum / n;
    e->policy.cost.logits_s = wants_rows ? e->policy.logits_s : 0;
}

void draft_policy_allocate(fr_engine *e, fr_request *const *requests, int n, int32_t n_tree_rows,
                           int32_t n_prompt_rows) {
    e->policy.n_base_rows = n_tree_rows + n_prompt_rows;
    if (e->policy.cost.n == 0) return;
    set_context(e, requests, n);
    e->policy.tokens_per_s = rate_now(e, requests, n) + prompt_rate(e, n_prompt_rows);
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
    if (e->options.max_gap_s > 0) max_extra_s = fmin(max_extra_s, prompt_spare_s(e, n_tree_rows));
    const BudgetInput in = {.trees = e->policy.trees,
                            .n_trees = n_trees,
                            .n_base_rows = e->policy.n_base_rows,
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

static void learn_gain(EngineDrafter *d, double gain_s) {
    int64_t n = ++d->n_gains + GAIN_PRIOR;
    d->gain_s += (gain_s - d->gain_s) / (double)(n < SHARED_GAIN_MEMORY ? n : SHARED_GAIN_MEMORY);
}

/* Updates the accounts after a step: the time that rows cost is subtracted, and the time that accepted nodes saved is
 * added. */
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
        if (d->reads_prompt || !d->shared->drafter->class->observe_prompt) learn_gain(d->shared, gain_s);
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
