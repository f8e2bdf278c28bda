/* eagle3_layers.c - the layers of the network of `eagle3` (eagle3_net.c) and what is before and after them, forward and
 * backward: fc and the norms of the streams, the pairs that the first layer reads, and the final norm. The layers
 * themselves are those of unroll_layer.c, each with the rows of all steps. */
#include "train/eagle3_net.h"

#include <string.h>

static void copy(real *to, const real *from, int64_t n) { memcpy(to, from, (size_t)n * sizeof *to); }
static void zero(real *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

/* The last layer. */
static UnrollActs *last_of(const Eagle3Net *n, Eagle3Acts *a) {
    return n->n_later ? &a->later[n->n_later - 1] : &a->layer;
}

/* ---- streams ------------------------------------------------------------------------------------ */

/* Rows of streams: as they are, after their norm, and what that computed. */
typedef struct Streams {
    const real *raw;
    real *normed, *rms;
    int64_t n_rows;
} Streams;

static Streams streams_of(const Eagle3Acts *a, const TrainSequence *seq) {
    return (Streams){seq->streams, a->streams, a->stream_rms, a->layer.steps[0].n};
}
static Streams streams_of_mask(const Eagle3Tensors *w, const Eagle3Acts *a) {
    return (Streams){w->slots[MASK_HIDDEN], a->mask_streams, a->mask_rms, 1};
}

/* The width of a norm of the streams. */
static int64_t width_of_norm(const Eagle3Net *n) { return n->norms_each ? n->n_target : eagle3_streams_width(n); }

/* Makes a state [C] of each row. */
static void fuse(const Eagle3Net *n, const Eagle3Tensors *w, Streams s, real *states) {
    int64_t all = eagle3_streams_width(n), each = width_of_norm(n);
    const real *gain = w->slots[STREAM_NORM];
    for (int64_t at = 0, i = 0; gain && at < s.n_rows * all; at += each, i++)
        rmsnorm_forward(s.normed + at, s.rms + i, s.raw + at, gain + at % all, 1, each, (real)n->layer.rms_eps);
    linear_forward(states, gain ? s.normed : s.raw, w->slots[UNROLL_FC], w->slots[UNROLL_FC_BIAS], s.n_rows, all,
                   n->layer.C);
}

/* Passes the derivative with respect to these states on to fc, to the norm of the streams and, unless dstreams is NULL
 * because they are the frozen target's, to the streams. */
static void fuse_back(const Eagle3Net *n, const Eagle3Tensors *w, const Eagle3Tensors *dw, Eagle3Acts *a, Streams s,
                      const real *dstates, real *dstreams) {
    int64_t all = eagle3_streams_width(n), each = width_of_norm(n);
    const real *gain = w->slots[STREAM_NORM];
    if (gain) zero(a->dstreams, s.n_rows * all);
    linear_backward(gain ? a->dstreams : dstreams, dw->slots[UNROLL_FC], dw->slots[UNROLL_FC_BIAS], dstates,
                    gain ? s.normed : s.raw, w->slots[UNROLL_FC], s.n_rows, all, n->layer.C);
    for (int64_t at = 0, i = 0; gain && at < s.n_rows * all; at += each, i++) {
        if (!dstreams) zero(a->dscratch, each);
        rmsnorm_backward(dstreams ? dstreams + at : a->dscratch, dw->slots[STREAM_NORM] + at % all, a->dstreams + at,
                         s.raw + at, gain + at % all, s.rms + i, 1, each);
    }
}

/* ---- forward ------------------------------------------------------------------------------------ */

/* Makes the states that a step continues from: g, the outputs of the step before, or with blocks one of its own. */
static void make_states(const Eagle3Net *n, const Eagle3Tensors *w, Eagle3Acts *a, const TrainSequence *seq,
                        int32_t step) {
    const UnrollStep *p = &a->layer.steps[step];
    int64_t C = n->layer.C;
    if (step == 0) { /* its rows are those of all positions */
        fuse(n, w, streams_of(a, seq), a->state[0]);
        return;
    }
    if (n->block && step == 1) fuse(n, w, streams_of_mask(w, a), a->mask_state);
    const real *from = n->continues_normed ? a->out[step - 1] : last_of(n, a)->steps[step - 1].f;
    for (int32_t i = 0; i < p->n; i++)
        copy(a->state[step] + i * C, n->block ? a->mask_state : from + p->chains[i] * C, C);
}

/* Returns the embedding that row i of a step reads. */
static const real *embedding_of(const Eagle3Net *n, const Eagle3Acts *a, const TrainSequence *seq, int32_t step,
                                int32_t i) {
    const real *table = n->own.embd ? n->own.embd : seq->embd;
    int32_t token = n->block && step ? n->mask : seq->tokens[a->layer.steps[step].chains[i] + step + 1];
    return table + token * (int64_t)n->layer.C;
}

static void make_pairs(const Eagle3Net *n, const Eagle3Tensors *w, Eagle3Acts *a, const TrainSequence *seq,
                       int32_t step) {
    UnrollStep *p = &a->layer.steps[step];
    int64_t C = n->layer.C;
    real eps = (real)n->layer.rms_eps;
    for (int32_t i = 0; i < p->n; i++) {
        real *pair = p->pair + 2 * C * i, *state = a->state[step] + C * i;
        rmsnorm_forward(pair, a->token_rms[step] + i, embedding_of(n, a, seq, step, i), w->slots[TOKEN_NORM], 1, C,
                        eps);
        rmsnorm_forward(pair + C, a->hidden_rms[step] + i, state, w->slots[HIDDEN_NORM], 1, C, eps);
        copy(p->x + C * i, n->keeps_normed ? pair + C : state, C);
    }
}

static void run_later(const Eagle3Net *n, const Eagle3Tensors *w, Eagle3Acts *a, int32_t step) {
    int64_t C = n->layer.C;
    const real *f = a->layer.steps[step].f;
    for (int32_t k = 0; k < n->n_later; k++) {
        UnrollStep *p = &a->later[k].steps[step];
        for (int32_t i = 0; i < p->n; i++) copy(p->x + i * C, f + p->chains[i] * C, C);
        unroll_run_step(&a->shapes[1 + k], w->later[k], &a->later[k], step);
        f = p->f;
    }
}

void eagle3_layers_forward(const Eagle3Net *n, const Eagle3Tensors *w, Eagle3Acts *a, const TrainSequence *seq) {
    int64_t C = n->layer.C;
    unroll_choose_rows(&a->shapes[0], &a->layer, seq);
    for (int32_t k = 0; k < n->n_later; k++) unroll_choose_rows(&a->shapes[1 + k], &a->later[k], seq);
    for (int32_t step = 0; step < n->layer.n_steps && a->layer.steps[step].n; step++) {
        const UnrollStep *p = &last_of(n, a)->steps[step];
        make_states(n, w, a, seq, step);
        make_pairs(n, w, a, seq, step);
        unroll_run_step(&a->shapes[0], w->slots, &a->layer, step);
        run_later(n, w, a, step);
        for (int32_t i = 0; i < p->n; i++) {
            int64_t t = p->chains[i];
            rmsnorm_forward(a->out[step] + t * C, a->out_rms[step] + t, p->f + t * C, w->slots[OUTPUT_NORM], 1, C,
                            (real)n->layer.rms_eps);
        }
    }
}

/* ---- backward ----------------------------------------------------------------------------------- */

void eagle3_layers_zero(const Eagle3Net *n, Eagle3Acts *a, const TrainSequence *seq) {
    unroll_zero(&a->shapes[0], &a->layer, seq);
    for (int32_t k = 0; k < n->n_later; k++) unroll_zero(&a->shapes[1 + k], &a->later[k], seq);
    for (int32_t i = 0; i < n->layer.n_steps; i++) zero(a->dout[i], seq->T * (int64_t)n->layer.C);
    if (n->block) zero(a->dmask_state, n->layer.C);
}

/* Turns the derivatives with respect to x and the pairs of a step into a->dstate. */
static void pairs_back(const Eagle3Net *n, const Eagle3Tensors *w, const Eagle3Tensors *dw, Eagle3Acts *a,
                       const TrainSequence *seq, int32_t step) {
    int64_t C = n->layer.C;
    for (int32_t i = 0; i < a->layer.steps[step].n; i++) {
        real *dpair = a->layer.dpair + 2 * C * i, *dx = a->layer.dx + C * i, *dstate = a->dstate + C * i;
        for (int64_t k = 0; k < C; k++) {
            dstate[k] = n->keeps_normed ? 0 : dx[k];
            if (n->keeps_normed) dpair[C + k] += dx[k];
        }
        rmsnorm_backward(dstate, dw->slots[HIDDEN_NORM], dpair + C, a->state[step] + C * i, w->slots[HIDDEN_NORM],
                         a->hidden_rms[step] + i, 1, C);
        zero(a->dscratch, C); /* the embedding is frozen */
        rmsnorm_backward(a->dscratch, dw->slots[TOKEN_NORM], dpair, embedding_of(n, a, seq, step, i),
                         w->slots[TOKEN_NORM], a->token_rms[step] + i, 1, C);
    }
}

/* From the df of the last layer at a step: a->layer.dx and a->layer.dpair. */
static void layers_back(const Eagle3Net *n, const Eagle3Tensors *w, const Eagle3Tensors *dw, Eagle3Acts *a,
                        int32_t step) {
    int64_t C = n->layer.C;
    for (int32_t k = n->n_later - 1; k >= 0; k--) {
        const UnrollStep *p = &a->later[k].steps[step];
        real *df = (k ? &a->later[k - 1] : &a->layer)->steps[step].df;
        unroll_step_back(&a->shapes[1 + k], w->later[k], dw->later[k], &a->later[k], step);
        for (int32_t i = 0; i < p->n; i++) copy(df + p->chains[i] * C, a->later[k].dx + i * C, C);
    }
    unroll_step_back(&a->shapes[0], w->slots, dw->slots, &a->layer, step);
}

/* Passes a->dstate of a step on to what its states were made of. */
static void sources_back(const Eagle3Net *n, const Eagle3Tensors *w, const Eagle3Tensors *dw, Eagle3Acts *a,
                         const TrainSequence *seq, int32_t step) {
    const UnrollStep *p = &a->layer.steps[step];
    int64_t C = n->layer.C;
    if (step == 0) {
        fuse_back(n, w, dw, a, streams_of(a, seq), a->dstate, NULL);
        if (n->layer.n_steps > 1 && n->block && a->layer.steps[1].n)
            fuse_back(n, w, dw, a, streams_of_mask(w, a), a->dmask_state, dw->slots[MASK_HIDDEN]);
        return;
    }
    real *before = n->continues_normed ? a->dout[step - 1] : last_of(n, a)->steps[step - 1].df;
    for (int32_t i = 0; i < p->n; i++) {
        real *to = n->block ? a->dmask_state : before + p->chains[i] * C;
        for (int64_t k = 0; k < C; k++) to[k] += a->dstate[i * C + k];
    }
}

void eagle3_layers_backward(const Eagle3Net *n, const Eagle3Tensors *w, const Eagle3Tensors *dw, Eagle3Acts *a,
                            const TrainSequence *seq) {
    int64_t C = n->layer.C;
    unroll_begin_back(&a->shapes[0], &a->layer);
    for (int32_t k = 0; k < n->n_later; k++) unroll_begin_back(&a->shapes[1 + k], &a->later[k]);
    for (int32_t step = n->layer.n_steps - 1; step >= 0; step--) {
        const UnrollStep *p = &last_of(n, a)->steps[step];
        if (p->n == 0) continue;
        for (int32_t i = 0; i < p->n; i++) {
            int64_t t = p->chains[i];
            rmsnorm_backward(p->df + t * C, dw->slots[OUTPUT_NORM], a->dout[step] + t * C, p->f + t * C,
                             w->slots[OUTPUT_NORM], a->out_rms[step] + t, 1, C);
        }
        layers_back(n, w, dw, a, step);
        pairs_back(n, w, dw, a, seq, step);
        sources_back(n, w, dw, a, seq, step);
    }
}
