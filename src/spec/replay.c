#include "spec/replay.h"

#include "base/clock.h"

#include <stdbool.h>

/* How many of the next tokens the tree holds as a path from node 0. */
static int64_t accepted(const Tree *t, const int32_t *next, int64_t n_next) {
    int64_t n = 0;
    for (int32_t node = 0; n < n_next && (node = tree_child(t, node, next[n])) >= 0;) n++;
    return n;
}

/* Enters each node of the tree into its bin. */
static void judge(const Tree *t, const int32_t *next, int64_t n_next, ReplayBin *bins) {
    bool right[TREE_MAX_NODES] = {true};
    for (int32_t i = 1; i < t->n; i++) {
        const TreeNode *node = &t->nodes[i];
        right[i] = right[node->parent] && node->depth <= n_next && node->token == next[node->depth - 1];
        int32_t at = (int32_t)(node->est * REPLAY_N_BINS);
        ReplayBin *bin = &bins[at < REPLAY_N_BINS ? at : REPLAY_N_BINS - 1];
        bin->n++;
        bin->n_right += right[i];
        bin->sum_est += (double)node->est;
    }
}

static int propose(Drafter *d, Tree *t, const ReplayInput *in, ReplayStats *out, double *step_s,
                   fr_error *err) {
    const int32_t sequence = 0, pending = t->nodes[0].token;
    double t0 = clock_s();
    int rc = d->class->propose(d, &sequence, &in->budget, (Tree *const[]){t}, 1, err);
    double took = clock_s() - t0;
    if (!rc) rc = tree_validate(t, pending, in->n_vocab, in->budget + 1, err);
    out->propose_s += took;
    if (step_s) *step_s = took;
    return rc;
}

static int run_steps(Drafter *d, const ReplayInput *in, ReplayStats *out, double *step_s, fr_error *err) {
    Tree t;
    int32_t pending = in->context[in->n_context - 1];
    for (int64_t n = 0; n < in->n_output; out->n_steps++) {
        tree_reset(&t, pending);
        if (step_s) step_s[out->n_steps] = 0;
        int rc = d ? propose(d, &t, in, out, step_s ? step_s + out->n_steps : NULL, err) : FR_OK;
        if (rc) return rc;
        judge(&t, in->output + n, in->n_output - n, out->bins);
        int64_t n_new = accepted(&t, in->output + n, in->n_output - n) + 1;
        if (n_new > in->n_output - n) n_new = in->n_output - n; /* the answer ended inside the tree */
        rc = d ? d->class->observe(d, 0, in->output + n, n_new, err) : FR_OK;
        if (rc) return rc;
        n += n_new;
        pending = in->output[n - 1];
        out->n_drafted += t.n - 1;
        out->n_tokens += n_new;
    }
    return FR_OK;
}

int replay_run(Drafter *d, const ReplayInput *in, ReplayStats *out, double *step_s, fr_error *err) {
    fr_assert(in->n_context > 0 && in->budget >= 0 && in->budget < TREE_MAX_NODES);
    *out = (ReplayStats){.n_tokens = 0};
    double t0 = clock_s();
    int rc = d ? d->class->begin(d, 0, in->context, in->n_context, err) : FR_OK;
    out->build_s = clock_s() - t0;
    if (!rc) rc = run_steps(d, in, out, step_s, err);
    if (d) d->class->end(d, 0);
    return rc;
}
