/* request_drafts.c - feeding the drafters of requests, and the union of what they propose.
 *
 * A drafter is shown tokens only right before it is needed (feed), so that a drafter that the policy leaves idle costs
 * nothing. The trees that it writes are checked before they are used. */
#include "base/system.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "tree/tree.h"

#include <stdio.h>
#include <string.h>

/* Shows a drafter the tokens of the context that it has not seen yet. */
static int feed(const fr_request *r, RequestDraft *d, fr_error *err) {
    int64_t n = r->n_context - d->n_fed;
    if (n == 0) return FR_OK;
    const int32_t *tokens = r->context + d->n_fed;
    d->n_fed = r->n_context;
    return d->shared->drafter->class->observe(d->shared->drafter, d->sequence, tokens, n, err);
}

static void end_draft(RequestDraft *d) {
    if (d->is_active) d->shared->drafter->class->end(d->shared->drafter, d->sequence);
    d->is_active = d->is_proposing = d->is_catching_up = false;
}

/* Switches a drafter off for one request. It may have failed in the middle of a tree, so neither what it has written of
 * the tree nor the distributions that it has declared may be used. */
static void switch_off(fr_request *r, RequestDraft *d, const fr_error *why) {
    snprintf(r->draft_error, sizeof r->draft_error, "%.60s: %.180s", d->shared->spec, why->message);
    end_draft(d);
    if (d->proposal) d->proposal->n = 1;
    if (r->dists) draft_dists_reset(r->dists);
}

/* Returns the index of a named counter in the statistics, where it is added if it is missing. -1: there is no room for
 * it. Drafts of the same method share their counters. */
static int32_t find_counter(fr_draft_stats *s, const char *method, const char *tag) {
    char name[sizeof s->counters[0].name] = "";
    snprintf(name, sizeof name, "%s.%s", method, tag);
    int i = 0;
    while (i < s->n_counters && strcmp(s->counters[i].name, name) != 0) i++;
    if (i == FR_MAX_COUNTERS) return -1;
    if (i == s->n_counters) memcpy(s->counters[s->n_counters++].name, name, sizeof name);
    return i;
}

static void begin_counters(fr_request *r, RequestDraft *d) {
    const DrafterClass *class = d->shared->drafter->class;
    for (int32_t tag = 0; tag < TREE_N_TAGS; tag++) d->counters[tag] = -1;
    for (int32_t tag = 1; tag < TREE_N_TAGS && class->tags && class->tags[tag - 1]; tag++)
        d->counters[tag] = find_counter(&r->draft_stats, class->name, class->tags[tag - 1]);
    d->extra_counter = class->add_rows ? find_counter(&r->draft_stats, class->name, class->extra_name) : -1;
    double shared = class->shared_vocab ? class->shared_vocab(d->shared->drafter) : 0,
           *least = &r->draft_stats.shared_vocab;
    if (shared > 0 && (*least == 0 || shared < *least)) *least = shared;
}

void request_drafts_begin(fr_request *r) {
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        fr_error err;
        Drafter *drafter = d->shared->drafter;
        d->sequence = d->shared == &d->own ? 0 : r->sequence;
        begin_counters(r, d);
        d->is_active = true;
        d->n_fed = r->n_context;
        if (drafter->class->set_sampling)
            drafter->class->set_sampling(drafter, d->sequence, &r->sampling, (uint64_t)r->stats.n_generated);
        if (drafter->class->set_grammar && r->grammar.text.grammar)
            drafter->class->set_grammar(drafter, d->sequence, &r->grammar.text);
        int status = FR_OK;
        if (drafter->class->set_reference && r->options.n_prediction > 0)
            status = drafter->class->set_reference(drafter, d->sequence, r->prediction, r->options.n_prediction, &err);
        if (!status) status = drafter->class->begin(drafter, d->sequence, r->context, r->n_context, &err);
        if (status) switch_off(r, d, &err);
    }
    draft_policy_choose_starts(r);
}

void request_drafts_end(fr_request *r) {
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (d->is_active) feed(r, d, NULL); /* methods that learn from whole texts need the last ones too */
        end_draft(d);
    }
}

void request_drafts_observe_tree(fr_request *r, const VerifyResult *verdict) {
    VerifiedTree verified = {.tree = &r->tree,
                             .logits = r->engine->step.row_logits + r->first_row,
                             .hidden = r->engine->step.row_hidden + r->first_row,
                             .verdict = verdict};
    double start_s = clock_s();
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        fr_error err;
        if (!d->is_active || !d->shared->drafter->class->observe_tree) continue;
        verified.is_idle = r->has_auto_budget && !d->is_proposing;
        verified.n_extra = d->n_extra;
        verified.extra_hidden = verified.hidden + r->tree.n + d->first_extra;
        if (feed(r, d, &err) ||
            d->shared->drafter->class->observe_tree(d->shared->drafter, d->sequence, &verified, &err))
            switch_off(r, d, &err);
    }
    r->stats.draft_s += clock_s() - start_s;
}

void request_drafts_observe_prompt(fr_request *r, int64_t first, int32_t n) {
    double start_s = clock_s();
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        fr_error err;
        if (!d->is_active || !d->reads_prompt) continue;
        Drafter *drafter = d->shared->drafter;
        const float *const *hidden = drafter->class->needs_hidden ? r->engine->step.row_hidden + r->first_row : NULL;
        double began_s = clock_s();
        if (drafter->class->observe_prompt(drafter, d->sequence, first, hidden, n, &err)) switch_off(r, d, &err);
        draft_policy_observe_prompt(d->shared, n, clock_s() - began_s);
    }
    r->stats.draft_s += clock_s() - start_s;
}

/* Returns the request's draft by that drafter; NULL: there is none, or it does not propose in this step. */
static RequestDraft *draft_of(fr_request *r, const EngineDrafter *shared) {
    for (int32_t i = 0; i < r->options.n_drafts; i++)
        if (r->drafts[i].is_proposing && r->drafts[i].shared == shared) return &r->drafts[i];
    return NULL;
}

/* Returns the tree that the drafter writes to. It is kept if the policy learns from the proposal. */
static Tree *proposal_of(fr_request *r, RequestDraft *d) { return d->proposal ? d->proposal : &r->proposal; }

static int32_t budget_of(const fr_request *r) {
    return r->has_auto_budget && r->proposal_budget < r->step_budget ? r->proposal_budget : r->step_budget;
}

/* Checks what a ratio rule divides by: the distributions of the draws, which the drafter must have declared. */
static int check_dists(const fr_request *r, const RequestDraft *d, const Tree *t, fr_error *err) {
    bool draws = d->shared->drafter->class->draws && r->sampling.temperature > 0;
    if (draws && t->n > 1 && r->dists->n_draws == 0)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "does not declare the distribution that it draws from, which --verify %s needs; "
                         "use --verify sampled",
                         r->rule->name);
    return draft_dists_validate(r->dists, t, err);
}

static int check_proposal(const fr_request *r, const RequestDraft *d, const Tree *t, fr_error *err) {
    if (r->dists && r->dists->no_memory)
        return error_memory(err, "the distributions of a tree", (size_t)r->dists->n_vocab * sizeof(float));
    int status = tree_validate(t, r->tree.nodes[0].token, r->engine->model->model->hparams.n_vocab, budget_of(r) + 1,
                               err);
    return status || !r->dists ? status : check_dists(r, d, t, err);
}

/* Checks what one drafter wrote for one request, and merges it into what earlier ones wrote. */
static void take_proposal(fr_request *r, RequestDraft *d, int32_t source) {
    fr_error err;
    Tree *t = proposal_of(r, d);
    for (int32_t i = 1; i < t->n && i < TREE_MAX_NODES; i++) t->nodes[i].source = source;
    if (check_proposal(r, d, t, &err)) {
        switch_off(r, d, &err);
        return;
    }
    request_grammar_prune(r, t);
    if (d->proposal) calibration_apply_tree(&d->calibration, d->proposal, &r->proposal);
    /* A drafter that draws under a ratio rule is the only one, so its nodes keep the numbers by which the distributions
     * refer to them. */
    union_merge(&r->tree, &r->proposal);
}

/* Merges the proposals of a request in the order in which it names its drafts. The text of a ratio rule depends on the
 * order of the nodes, which must not depend on the order in which the drafters were called: that one depends on which
 * of them other requests opened first. */
static void take_proposals(fr_request *r) {
    for (int32_t i = 0; i < r->options.n_drafts; i++)
        if (r->drafts[i].is_proposing) take_proposal(r, &r->drafts[i], i);
    union_prune(&r->tree, r->step_budget);
}

/* Empties the tree that a drafter writes to, but for its root. */
static Tree *begin_proposal(fr_request *r, RequestDraft *d) {
    Tree *t = proposal_of(r, d);
    tree_reset(t, r->tree.nodes[0].token);
    t->dists = r->dists;
    return t;
}

/* Repeats a call that has failed for several requests for each of them, so that the drafter is switched off only for
 * those in which it fails. The trees of a request under a ratio or lossy rule must not depend on other requests. */
static void propose_one_by_one(EngineDrafter *shared, fr_request *const *requests, int n) {
    for (int i = 0; i < n; i++) {
        RequestDraft *d = draft_of(requests[i], shared);
        fr_error err;
        if (!d) continue;
        if (requests[i]->dists) draft_dists_reset(requests[i]->dists);
        Tree *t = begin_proposal(requests[i], d);
        int32_t budget = budget_of(requests[i]);
        if (shared->drafter->class->propose(shared->drafter, &d->sequence, &budget, &t, 1, &err))
            switch_off(requests[i], d, &err);
    }
}

/* One call of one drafter, for all requests in which it proposes now. */
static void propose_with(fr_engine *e, EngineDrafter *shared, fr_request *const *requests, int n) {
    int32_t *sequences = e->step.propose_sequences, *budgets = e->step.propose_budgets;
    int n_users = 0;
    double start_s = 0;
    fr_error err;
    for (int i = 0; i < n; i++) {
        fr_request *r = requests[i];
        RequestDraft *d = draft_of(r, shared);
        if (!d) continue;
        if (n_users == 0) start_s = clock_s();
        if (feed(r, d, &err)) {
            switch_off(r, d, &err);
            continue;
        }
        sequences[n_users] = d->sequence;
        budgets[n_users] = budget_of(r);
        e->step.propose_trees[n_users++] = begin_proposal(r, d);
    }
    if (n_users == 0) return;
    if (shared->drafter->class->propose(shared->drafter, sequences, budgets, e->step.propose_trees, n_users, &err))
        propose_one_by_one(shared, requests, n);
    draft_policy_observe_proposal(shared, (clock_s() - start_s) / n_users);
}

/* Lets the drafts of a request read the pieces of the context for which the policy has time. */
static void catch_up(fr_request *r) {
    for (RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
        Drafter *drafter = d->shared->drafter;
        double start_s = clock_s();
        fr_error err;
        if (!d->is_active || d->n_catch_up < 1) continue;
        int status = feed(r, d, &err);
        if (!status)
            status = drafter->class->observe_prompt(drafter, d->sequence, drafter->class->n_held(drafter, d->sequence),
                                                    NULL, d->n_catch_up, &err);
        draft_policy_observe_prompt(d->shared, d->n_catch_up, clock_s() - start_s);
        r->engine->step.catch_up_s += clock_s() - start_s;
        if (status) switch_off(r, d, &err);
    }
}

void request_drafts_propose(fr_engine *e, fr_request *const *requests, int n) {
    double start_s = clock_s();
    for (int i = 0; i < n; i++) {
        fr_request *r = requests[i];
        tree_reset(&r->tree, r->context[r->n_context - 1]);
        if (r->dists) draft_dists_reset(r->dists);
        r->tree.dists = r->dists;
    }
    draft_policy_choose_drafts(e, requests, n);
    e->step.catch_up_s = 0;
    for (int i = 0; i < n; i++) catch_up(requests[i]);
    for (int k = 0; k < ENGINE_MAX_DRAFTERS; k++)
        if (e->drafters[k].n_users > 0) propose_with(e, &e->drafters[k], requests, n);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < requests[i]->options.n_drafts; k++)
            if (requests[i]->drafts[k].own.spec) propose_with(e, &requests[i]->drafts[k].own, &requests[i], 1);
    for (int i = 0; i < n; i++) take_proposals(requests[i]);
    double spent_s = clock_s() - start_s;
    for (int i = 0; i < n; i++) requests[i]->stats.draft_s += spent_s;
}

/* ---- rows after the tree ------------------------------------------------------------------------ */

static bool adds_rows(const RequestDraft *d) { return d->is_active && d->shared->drafter->class->add_rows; }

int32_t request_drafts_extra_room(const fr_request *r) {
    bool any = false;
    for (int i = 0; i < r->options.n_drafts; i++) any |= adds_rows(&r->drafts[i]);
    int32_t room = r->step_budget - (r->tree.n - 1);
    return any && !r->has_auto_budget && room > 0 ? room : 0;
}

static int check_extra_rows(const fr_request *r, const ExtraRow *rows, int32_t n, int32_t room, fr_error *err) {
    if (n < 0 || n > room)
        return error_set(err, FR_ERR_INTERNAL, "added %d rows where %d are allowed; report this drafter", n, room);
    for (int32_t i = 0; i < n; i++)
        if (rows[i].parent < 0 || rows[i].parent >= r->tree.n + i || !rows[i].input)
            return error_set(err, FR_ERR_INTERNAL, "extra row %d has no parent or no input; report this drafter", i);
    return FR_OK;
}

bool request_drafts_want_rows(const fr_request *r) {
    for (int i = 0; i < r->options.n_drafts; i++)
        if (r->drafts[i].shared->drafter->class->add_rows) return true;
    return false;
}

int32_t request_drafts_add_rows(fr_request *r, int32_t room, Row *rows) {
    ExtraRow *extra = r->engine->step.extra_rows;
    int32_t n_all = 0;
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        fr_error err;
        d->n_extra = 0;
        if (room - n_all < 1 || !adds_rows(d)) continue;
        Drafter *drafter = d->shared->drafter;
        int32_t n = drafter->class->add_rows(drafter, d->sequence, &r->tree, room - n_all, extra);
        if (check_extra_rows(r, extra, n, room - n_all, &err)) {
            switch_off(r, d, &err);
            continue;
        }
        d->first_extra = n_all, d->n_extra = n;
        for (int32_t k = 0; k < n; k++, n_all++) {
            int32_t parent = extra[k].parent < r->tree.n ? extra[k].parent : extra[k].parent + d->first_extra;
            rows[n_all] = (Row){.sequence = r->sequence,
                                .parent = r->first_row + parent,
                                .input = extra[k].input,
                                .want_hidden = true};
        }
        if (d->extra_counter >= 0) r->draft_stats.counters[d->extra_counter].drafted += n;
    }
    return n_all;
}

/* Returns the counter of a node; NULL: the node's tag is not counted. */
static fr_counter *counter_of(fr_request *r, const TreeNode *node) {
    int32_t i = node->source < 0 ? -1 : r->drafts[node->source].counters[node->tag];
    return i < 0 ? NULL : &r->draft_stats.counters[i];
}

void request_drafts_count_tags(fr_request *r, const VerifyResult *verdict, int64_t n_emitted) {
    fr_counter *c;
    for (int32_t i = 1; i < r->tree.n; i++)
        if ((c = counter_of(r, &r->tree.nodes[i]))) c->drafted++;
    for (int64_t i = 0; i < n_emitted; i++)
        if ((c = counter_of(r, &r->tree.nodes[verdict->path[i]]))) c->accepted++;
}

/* ---- shared prompts -------------------------------------------------------------------------------
 *
 * Drafters keep data for the tokens of a prompt, which a request takes over from other requests together with the
 * pages.
 *
 * The pages of the target hold its keys and values. Drafters with a layer or a model of their own have keys and values
 * of their own for the same tokens (`eagle`, `lyanna`, `sps` and its relatives); drafters with heads on the last hidden
 * state keep nothing for single tokens (`medusa`, `hydra`, `redrafter`). DrafterClass.take_over serves both, so that a
 * prompt that another request has read is computed only once, by the target and by the drafter.
 *
 * Hidden states are not kept. A drafter that needs them has made an entry for each token but the last, because an entry
 * needs the hidden state of its token and the token that follows. So a request with such a drafter takes over the
 * tokens whose entries are known, and reads at least one token itself, which gives that token's hidden state again.
 * That costs one row, whereas storing the states would add 36 % to the KV cache of TinyLlama 1.1B (8192 bytes to 22,528
 * bytes per token). An entry may also need tokens further ahead (DrafterClass.usable).
 *
 * A draft model may lag behind the target's sequence, because drafters are fed only when they propose. It computes the
 * missing tokens itself, but at most a chunk of the prompt, so that no other request waits for it. A draft model with a
 * recurrent state can be taken over only at the lengths for which it has the state (DrafterClass.reach). */

/* Returns how many tokens a drafter allows the request to take over if the drafter itself can take over n_held of
 * them. */
static int32_t limit_of(const fr_request *r, const RequestDraft *d, int32_t n_held) {
    const DrafterClass *class = d->shared->drafter->class;
    if (!d->reads_prompt) return INT32_MAX;
    if (!class->take_over) return 0;
    if (!class->n_held || n_held == INT32_MAX) return INT32_MAX;
    return class->needs_hidden ? n_held : n_held + r->engine->options.prefill_chunk;
}

/* Returns how many of the first n tokens of a sequence a drafter of the request can take over; 0 if it is the request's
 * own. */
static int32_t n_held_of(const RequestDraft *d, int32_t sequence, int32_t n) {
    const Drafter *drafter = d->shared->drafter;
    const DrafterClass *class = drafter->class;
    if (!class->n_held || d->shared == &d->own) return 0;
    int32_t n_held = class->n_held(drafter, sequence);
    if (n_held < n) n = n_held;
    return class->reach ? class->reach(drafter, sequence, n) : n;
}

/* Returns for how many tokens what a drafter keeps can be used by a text that begins with the same n_common tokens. */
static int32_t n_usable_of(const RequestDraft *d, int32_t sequence, int32_t n_common) {
    const DrafterClass *class = d->shared->drafter->class;
    if (!class->needs_hidden) return n_common;
    return class->usable ? class->usable(d->shared->drafter, sequence, n_common) : n_common - 1;
}

int32_t request_drafts_limit(const fr_request *r, int32_t sequence, int32_t n_common) {
    int32_t least = INT32_MAX, most = (int32_t)r->n_context - 1;
    for (const RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
        if (!d->is_active) continue;
        int32_t n_usable = n_usable_of(d, sequence, n_common),
                n = limit_of(r, d, n_held_of(d, sequence, n_usable < most ? n_usable : most));
        if (n < least) least = n;
    }
    return least;
}

static bool has_draft(const fr_request *r, const EngineDrafter *shared) {
    for (const RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++)
        if (d->is_active && d->reads_prompt && d->shared == shared) return true;
    return false;
}

int32_t request_drafts_limit_of_reader(const fr_request *r, const fr_request *reader) {
    int32_t least = INT32_MAX;
    for (const RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
        if (!d->is_active) continue;
        int32_t n = limit_of(r, d, has_draft(reader, d->shared) ? INT32_MAX : 0);
        if (n < least) least = n;
    }
    return least;
}

void request_drafts_take_over(fr_request *r, int32_t sequence, int32_t n) {
    for (RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
        Drafter *drafter = d->shared->drafter;
        const DrafterClass *class = drafter->class;
        if (!d->is_active || !class->take_over) continue;
        int32_t n_held = class->n_held ? n_held_of(d, sequence, n) : n;
        if (!class->n_held || n_held > n_held_of(d, d->sequence, INT32_MAX))
            class->take_over(drafter, sequence, d->sequence, n_held);
    }
}

void request_drafts_keep(const fr_request *r, int32_t sequence, int32_t n, int32_t n_common) {
    for (const RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++) {
        Drafter *drafter = d->shared->drafter;
        if (!d->is_active || !drafter->class->n_held || d->shared == &d->own) continue;
        int32_t n_usable = n_usable_of(d, d->sequence, n_common),
                n_held = n_held_of(d, d->sequence, n_usable < n ? n_usable : n);
        if (n_held > n_held_of(d, sequence, INT32_MAX))
            drafter->class->take_over(drafter, d->sequence, sequence, n_held);
    }
}

uint32_t request_drafts_learners(const fr_request *r) {
    uint32_t learners = 0;
    for (const RequestDraft *d = r->drafts; d < r->drafts + r->options.n_drafts; d++)
        if (d->is_active && d->shared != &d->own && d->shared->drafter->class->remembers)
            learners |= UINT32_C(1) << (d->shared - r->engine->drafters);
    return learners;
}
