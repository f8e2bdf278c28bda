/* draft.c - the engine's side of drafters: sharing, feeding, and the union of what they propose. A drafter
 * that fails is switched off for the request it failed; the text does not depend on it. */
#include "base/clock.h"
#include "engine/engine.h"
#include "spec/tree/union.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void close_place(EngineDrafter *d) {
    drafter_close(d->drafter);
    free(d->spec);
    *d = (EngineDrafter){0};
}

void engine_close_drafters(fr_engine *e) {
    for (int i = 0; i < ENGINE_MAX_DRAFTERS; i++)
        if (e->drafters[i].spec) close_place(&e->drafters[i]);
}

/* A place for one more drafter: a free one, or that of one which nobody uses now. */
static EngineDrafter *find_place(fr_engine *e) {
    EngineDrafter *unused = NULL;
    for (int i = 0; i < ENGINE_MAX_DRAFTERS; i++) {
        EngineDrafter *d = &e->drafters[i];
        if (!d->spec) return d;
        if (d->n_users == 0 && !unused) unused = d;
    }
    if (unused) close_place(unused);
    return unused;
}

int engine_drafter_acquire(fr_engine *e, const char *spec, EngineDrafter **out, fr_error *err) {
    *out = NULL;
    for (int i = 0; i < ENGINE_MAX_DRAFTERS; i++) {
        EngineDrafter *d = &e->drafters[i];
        if (!d->spec || strcmp(d->spec, spec) != 0) continue;
        d->n_users++;
        *out = d;
        return FR_OK;
    }
    DrafterEnv env = {.n_vocab = e->model->model->hparams.n_vocab, .max_sequences = e->options.max_requests,
                      .vocab = e->model->gguf, .target = e->model->gguf, .weights = e->model->weights, .device = e->device,
                      .n_ctx = e->options.n_ctx};
    Drafter *drafter;
    int status = drafter_open(&drafter, spec, &env, 0, err);
    if (status || !drafter) return status; /* "none" is no drafter */
    EngineDrafter *place = find_place(e);
    char *copy = place ? strdup(spec) : NULL;
    if (!copy) {
        drafter_close(drafter);
        return place ? error_memory(err, "a drafter", strlen(spec))
                     : error_set(err, FR_ERR_MEMORY, "more than %d different drafters at once", ENGINE_MAX_DRAFTERS);
    }
    *place = (EngineDrafter){.spec = copy, .drafter = drafter, .n_users = 1};
    calibration_init(&place->calibration, NULL);
    *out = place;
    return FR_OK;
}

void engine_drafter_release(EngineDrafter *d) {
    if (d) d->n_users--;
}

/* Tells a drafter the tokens since it was last told. */
static int feed(const fr_request *r, RequestDraft *d, fr_error *err) {
    int64_t n = r->n_context - d->n_fed;
    if (n == 0) return FR_OK;
    const int32_t *tokens = r->context + d->n_fed;
    d->n_fed = r->n_context;
    return d->shared->drafter->class->observe(d->shared->drafter, r->sequence, tokens, n, err);
}

static void end_draft(fr_request *r, RequestDraft *d) {
    if (d->active) d->shared->drafter->class->end(d->shared->drafter, r->sequence);
    d->active = d->is_asked = false;
}

static void switch_off(fr_request *r, RequestDraft *d, const fr_error *why) {
    snprintf(r->stats.draft_error, sizeof r->stats.draft_error, "%.60s: %.180s", d->shared->spec, why->message);
    end_draft(r, d);
}

void request_begin_drafts(fr_request *r) {
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        fr_error err;
        if (!d->shared) continue;
        Drafter *drafter = d->shared->drafter;
        d->active = true;
        d->n_fed = r->n_context;
        if (drafter->class->set_sampling)
            drafter->class->set_sampling(drafter, r->sequence, &r->sampling, (uint64_t)r->stats.n_generated);
        if (drafter->class->begin(drafter, r->sequence, r->context, r->n_context, &err))
            switch_off(r, d, &err);
    }
}

void request_end_drafts(fr_request *r) {
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        if (d->active) feed(r, d, NULL); /* for those who remember */
        end_draft(r, d);
    }
}

void request_observe_tree(fr_request *r, const VerifyResult *verdict) {
    const VerifiedTree verified = {.tree = &r->tree, .logits = r->engine->row_logits, .hidden = r->engine->row_hidden,
                                   .verdict = verdict};
    double start_s = clock_s();
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        fr_error err;
        if (!d->active || !d->shared->drafter->class->observe_tree) continue;
        if (feed(r, d, &err) || d->shared->drafter->class->observe_tree(d->shared->drafter, r->sequence, &verified, &err))
            switch_off(r, d, &err);
    }
    r->stats.draft_s += clock_s() - start_s;
}

void request_observe_prompt(fr_request *r, int64_t first, int32_t n) {
    double start_s = clock_s();
    for (int i = 0; i < r->options.n_drafts; i++) {
        RequestDraft *d = &r->drafts[i];
        fr_error err;
        if (!d->active || !d->shared->drafter->class->needs_hidden) continue;
        Drafter *drafter = d->shared->drafter;
        if (drafter->class->observe_prompt(drafter, r->sequence, first, r->engine->row_hidden, n, &err))
            switch_off(r, d, &err);
    }
    r->stats.draft_s += clock_s() - start_s;
}

/* The request's draft by that drafter, where it is asked in this step. */
static RequestDraft *draft_of(fr_request *r, const EngineDrafter *shared, int32_t *index) {
    for (int32_t i = 0; i < r->options.n_drafts; i++)
        if (r->drafts[i].is_asked && r->drafts[i].shared == shared) {
            *index = i;
            return &r->drafts[i];
        }
    return NULL;
}

/* Where the drafter writes: into its own tree where that will be learned from. */
static Tree *proposal_of(fr_request *r, RequestDraft *d) { return d->proposal ? d->proposal : &r->proposal; }

static int32_t budget_of(const fr_request *r) {
    return r->has_auto_budget && r->ask_budget < r->step_budget ? r->ask_budget : r->step_budget;
}

/* What a ratio rule will divide by must have been declared by those who drew. */
static int check_dists(const fr_request *r, const RequestDraft *d, const Tree *t, fr_error *err) {
    bool draws = d->shared->drafter->class->draws && r->sampling.temperature > 0;
    if (draws && t->n > 1 && r->dists->n_draws == 0)
        return error_set(err, FR_ERR_UNSUPPORTED, "does not say from which distribution it draws, which --verify %s needs; use "
                         "--verify sampled", r->rule->name);
    return draft_dists_validate(r->dists, t, err);
}

static int check_proposal(const fr_request *r, const RequestDraft *d, const Tree *t, fr_error *err) {
    int status = tree_validate(t, r->tree.nodes[0].token, r->engine->model->model->hparams.n_vocab, budget_of(r) + 1, err);
    return status || !r->dists ? status : check_dists(r, d, t, err);
}

/* Checks what one drafter wrote for one request and unites it with what others wrote before. */
static void take_proposal(fr_request *r, RequestDraft *d, int32_t source) {
    fr_error err;
    Tree *t = proposal_of(r, d);
    for (int32_t i = 1; i < t->n && i < TREE_MAX_NODES; i++) t->nodes[i].source = source;
    if (check_proposal(r, d, t, &err)) {
        switch_off(r, d, &err);
        if (r->dists) draft_dists_reset(r->dists);
        return;
    }
    if (d->proposal) calibration_apply_tree(&d->calibration, d->proposal, &r->proposal);
    union_merge(&r->tree, &r->proposal); /* into an empty tree: the nodes keep their numbers, as the distributions need */
}

/* One call of one drafter for all requests that ask it. */
static void propose_with(fr_engine *e, EngineDrafter *shared, fr_request *const *requests, int n) {
    int32_t *sequences = e->propose_sequences, *budgets = e->propose_budgets, index;
    int n_users = 0;
    double start_s = 0;
    fr_error err;
    for (int i = 0; i < n; i++) {
        fr_request *r = requests[i];
        RequestDraft *d = draft_of(r, shared, &index);
        if (!d) continue;
        if (n_users == 0) start_s = clock_s();
        if (feed(r, d, &err)) {
            switch_off(r, d, &err);
            continue;
        }
        Tree *t = proposal_of(r, d);
        tree_reset(t, r->tree.nodes[0].token);
        t->dists = r->dists;
        sequences[n_users] = r->sequence;
        budgets[n_users] = budget_of(r);
        e->propose_trees[n_users++] = t;
    }
    if (n_users == 0) return;
    int status = shared->drafter->class->propose(shared->drafter, sequences, budgets, e->propose_trees, n_users, &err);
    for (int i = 0; i < n; i++) {
        RequestDraft *d = draft_of(requests[i], shared, &index);
        if (!d) continue;
        if (status) switch_off(requests[i], d, &err);
        else take_proposal(requests[i], d, index);
    }
    engine_note_cost(shared, (clock_s() - start_s) / n_users);
}

void engine_propose(fr_engine *e, fr_request *const *requests, int n) {
    double start_s = clock_s();
    for (int i = 0; i < n; i++) {
        fr_request *r = requests[i];
        tree_reset(&r->tree, r->context[r->n_context - 1]);
        if (r->dists) draft_dists_reset(r->dists);
        r->tree.dists = r->dists;
        request_wake_drafts(r);
    }
    for (int k = 0; k < ENGINE_MAX_DRAFTERS; k++)
        if (e->drafters[k].n_users > 0) propose_with(e, &e->drafters[k], requests, n);
    for (int i = 0; i < n; i++) union_prune(&requests[i]->tree, requests[i]->step_budget);
    double spent_s = clock_s() - start_s;
    for (int i = 0; i < n; i++) requests[i]->stats.draft_s += spent_s;
}
