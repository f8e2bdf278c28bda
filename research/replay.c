/* replay.c - runs drafters against a recorded answer: exact greedy acceptance without the model.
 *
 * For greedy decoding the target's token at each position is known from the record, so walking the tree along the
 * answer gives the very path that verification would accept. Trees are validated as in the engine. */
#include "research/replay.h"

#include "base/system.h"
#include "base/mem.h"
#include "tree/tree.h"

#include <stdbool.h>

/* How many of the next tokens the tree contains as a path from node 0. */
static int64_t accepted(const Tree *t, const int32_t *next, int64_t n_next) {
    int64_t n = 0;
    for (int32_t node = 0; n < n_next && (node = tree_child(t, node, next[n])) >= 0;) n++;
    return n;
}

/* Enters each node of the tree into its bin. */
static void count_nodes(const Tree *t, const int32_t *next, int64_t n_next, ReplayBin *bins) {
    bool right[TREE_MAX_NODES] = {true};
    for (int32_t i = 1; i < t->n; i++) {
        const TreeNode *node = &t->nodes[i];
        right[i] = right[node->parent] && node->depth <= n_next && node->token == next[node->depth - 1];
        int32_t at = (int32_t)(node->p_accept * REPLAY_N_BINS);
        ReplayBin *bin = &bins[at < REPLAY_N_BINS ? at : REPLAY_N_BINS - 1];
        bin->n++;
        bin->n_right += right[i];
        bin->sum_p_accept += (double)node->p_accept;
    }
}

/* One run over one record. */
typedef struct Run {
    ReplayDraft *drafts;
    int n_drafts;
    const ReplayInput *in;
    ReplayStats *out;
    Tree tree, proposals[REPLAY_MAX_DRAFTS]; /* the proposals as the drafters made them */
    Tree calibrated;                         /* one proposal with calibrated estimates */
} Run;

static int propose(Run *r, int k, int32_t pending, fr_error *err) {
    Drafter *d = r->drafts[k].drafter;
    const int32_t sequence = 0;
    Tree *t = &r->proposals[k];
    tree_reset(t, pending);
    int status = d->class->propose(d, &sequence, &r->in->budget, &t, 1, err);
    return status ? status : tree_validate(t, pending, r->in->n_vocab, r->in->budget + 1, err);
}

/* Merges the proposals in r->tree. */
static void unite(Run *r, int32_t pending, const int32_t *next, int64_t n_next) {
    tree_reset(&r->tree, pending);
    for (int k = 0; k < r->n_drafts; k++) {
        calibration_apply_tree(&r->drafts[k].own, &r->proposals[k], &r->calibrated);
        count_nodes(&r->proposals[k], next, n_next, r->out->bins);
        count_nodes(&r->calibrated, next, n_next, r->out->calibrated);
        union_merge(&r->tree, &r->calibrated);
    }
    union_prune(&r->tree, r->in->budget);
}

static int observe(Run *r, const int32_t *tokens, int64_t n, fr_error *err) {
    int status = FR_OK;
    for (int k = 0; k < r->n_drafts && !status; k++) {
        ReplayDraft *d = &r->drafts[k];
        calibration_learn(&d->shared, &r->proposals[k], tokens, n);
        calibration_learn(&d->own, &r->proposals[k], tokens, n);
        calibration_fit(&d->shared, NULL);
        calibration_fit(&d->own, &d->shared);
        status = d->drafter->class->observe(d->drafter, 0, tokens, n, err);
    }
    return status;
}

static int run_steps(Run *r, double *step_s, fr_error *err) {
    const ReplayInput *in = r->in;
    int32_t pending = in->context[in->n_context - 1];
    int status = FR_OK;
    for (int64_t n = 0; n < in->n_output && !status; r->out->n_steps++) {
        const int32_t *next = in->output + n;
        double start_s = clock_s();
        for (int k = 0; k < r->n_drafts && !status; k++) status = propose(r, k, pending, err);
        double took_s = clock_s() - start_s;
        if (status) break;
        r->out->propose_s += took_s;
        if (step_s) step_s[r->out->n_steps] = took_s;
        unite(r, pending, next, in->n_output - n);
        int64_t n_new = accepted(&r->tree, next, in->n_output - n) + 1;
        if (n_new > in->n_output - n) n_new = in->n_output - n; /* the answer ends inside the tree */
        status = observe(r, next, n_new, err);
        n += n_new;
        pending = in->output[n - 1];
        r->out->n_drafted += r->tree.n - 1;
        r->out->n_tokens += n_new;
        r->out->n_of_length[n_new < REPLAY_N_LENGTHS ? n_new - 1 : REPLAY_N_LENGTHS - 1]++;
    }
    return status;
}

int replay_run(ReplayDraft *drafts, int n_drafts, const ReplayInput *in, ReplayStats *out, double *step_s,
               fr_error *err) {
    fr_assert(in->n_context > 0 && in->budget >= 0 && in->budget < TREE_MAX_NODES && n_drafts <= REPLAY_MAX_DRAFTS);
    *out = (ReplayStats){.n_tokens = 0};
    Run *run = mem_calloc(1, sizeof *run);
    if (!run) return error_memory(err, "a replay", sizeof *run);
    run->drafts = drafts, run->n_drafts = n_drafts, run->in = in, run->out = out;
    double start_s = clock_s();
    int status = FR_OK;
    for (int k = 0; k < n_drafts && !status; k++) {
        Drafter *d = drafts[k].drafter;
        calibration_init(&drafts[k].own, &drafts[k].shared);
        status = d->class->begin(d, 0, in->context, in->n_context, err);
    }
    out->build_s = clock_s() - start_s;
    if (!status) status = run_steps(run, step_s, err);
    for (int k = 0; k < n_drafts; k++) drafts[k].drafter->class->end(drafts[k].drafter, 0);
    mem_free(run);
    return status;
}
