/* unroll_heads.c - the queries, keys and values of a layer that continues from its own predictions (unroll_layer.c), in
 * the form of the target's own layers: with norms of heads, with biases, and with gates.
 *
 *     q, k, v  = rope(norm_q(Wq n + b_q)), rope(norm_k(Wk n + b_k)), Wv n + b_v
 *     with is_gemma v = norm(Wv n + b_v), a norm without weights
 *     with gates Wq n is for each head its queries and then a gate g, and Wo reads  attended / (1 + exp(-g))
 *
 * Test: test_train_drafters.c by finite differences in double. */
#include "train/nets.h"

#include <string.h>

static int64_t head_dims(const UnrollShape *s, int32_t n_heads) { return (int64_t)n_heads * s->head_dim; }

/* Copies `n` rows of heads between `wide`, where a gate follows the queries of each head, and two arrays. */
static void split_gates(const UnrollShape *s, const real *wide, real *q, real *gates, int64_t n) {
    size_t bytes = (size_t)s->head_dim * sizeof *q;
    for (int64_t i = 0; i < n * s->n_head; i++) {
        memcpy(q + i * s->head_dim, wide + 2 * i * s->head_dim, bytes);
        memcpy(gates + i * s->head_dim, wide + (2 * i + 1) * s->head_dim, bytes);
    }
}

static void join_gates(const UnrollShape *s, real *wide, const real *q, const real *gates, int64_t n) {
    size_t bytes = (size_t)s->head_dim * sizeof *q;
    for (int64_t i = 0; i < n * s->n_head; i++) {
        memcpy(wide + 2 * i * s->head_dim, q + i * s->head_dim, bytes);
        memcpy(wide + (2 * i + 1) * s->head_dim, gates + i * s->head_dim, bytes);
    }
}

void unroll_heads_forward(const UnrollShape *s, real *const *w, UnrollActs *a, int32_t step, const real *in) {
    UnrollStep *p = &a->steps[step];
    int64_t n = p->n, D = s->head_dim, Q = head_dims(s, s->n_head), K = head_dims(s, s->n_head_kv);
    int64_t R = s->rope->params.n_rot, n_in = s->reads_pairs ? 2 * s->C : s->C;
    RopeStyle style = s->rope->params.style;
    bool has_norms = s->has_head_norms;
    real *q = has_norms ? p->q_raw : p->q, *k = has_norms ? p->k_raw : p->k;
    linear_forward(s->gates_output ? a->heads : q, in, w[UNROLL_Q], s->has_biases ? w[UNROLL_Q_BIAS] : NULL, n, n_in,
                   s->gates_output ? 2 * Q : Q);
    if (s->gates_output) split_gates(s, a->heads, q, p->gates, n);
    linear_forward(k, in, w[UNROLL_K], s->has_biases ? w[UNROLL_K_BIAS] : NULL, n, n_in, K);
    linear_forward(s->is_gemma ? p->v_raw : p->v, in, w[UNROLL_V], s->has_biases ? w[UNROLL_V_BIAS] : NULL, n, n_in, K);
    if (s->is_gemma) rmsnorm_forward(p->v, p->v_rms, p->v_raw, NULL, n * s->n_head_kv, D, (real)s->rms_eps);
    if (has_norms) {
        rmsnorm_forward(p->q, p->q_rms, q, w[UNROLL_Q_NORM], n * s->n_head, D, (real)s->rms_eps);
        rmsnorm_forward(p->k, p->k_rms, k, w[UNROLL_K_NORM], n * s->n_head_kv, D, (real)s->rms_eps);
    }
    rope_forward(style, p->q, a->angles, n, s->n_head, D, R);
    rope_forward(style, p->k, a->angles, n, s->n_head_kv, D, R);
}

const real *unroll_gate_forward(const UnrollShape *s, UnrollActs *a, int32_t step) {
    UnrollStep *p = &a->steps[step];
    if (!s->gates_output) return p->attended;
    for (int64_t i = 0; i < p->n * head_dims(s, s->n_head); i++)
        p->gated[i] = p->attended[i] / (1 + real_exp(-p->gates[i]));
    return p->gated;
}

void unroll_gate_back(const UnrollShape *s, UnrollActs *a, int32_t step) {
    const UnrollStep *p = &a->steps[step];
    for (int64_t i = 0; s->gates_output && i < p->n * head_dims(s, s->n_head); i++) {
        real open = 1 / (1 + real_exp(-p->gates[i])), d = a->dattended[i];
        a->dgates[i] = d * p->attended[i] * open * (1 - open);
        a->dattended[i] = d * open;
    }
}

/* Returns the derivative with respect to heads before their norm, from that after it; adds to dnorm, unless it is
 * NULL. */
static real *norm_back(const UnrollShape *s, UnrollActs *a, real *d, const real *raw, const real *rms, const real *norm,
                       real *dnorm, int64_t n_heads) {
    memset(a->dheads, 0, (size_t)(n_heads * s->head_dim) * sizeof *d);
    rmsnorm_backward(a->dheads, dnorm, d, raw, norm, rms, n_heads, s->head_dim);
    return a->dheads;
}

void unroll_heads_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, int32_t step,
                       const real *in, real *din) {
    UnrollStep *p = &a->steps[step];
    int64_t n = p->n, D = s->head_dim, Q = head_dims(s, s->n_head), K = head_dims(s, s->n_head_kv);
    int64_t R = s->rope->params.n_rot, n_in = s->reads_pairs ? 2 * s->C : s->C;
    RopeStyle style = s->rope->params.style;
    bool has_norms = s->has_head_norms, has_biases = s->has_biases;
    rope_backward(style, a->dq, a->angles, n, s->n_head, D, R);
    rope_backward(style, p->dk, a->angles, n, s->n_head_kv, D, R);
    real *dq = a->dq, *dk = p->dk, *dv = p->dv;
    if (has_norms) dq = norm_back(s, a, dq, p->q_raw, p->q_rms, w[UNROLL_Q_NORM], dw[UNROLL_Q_NORM], n * s->n_head);
    if (s->gates_output) join_gates(s, a->heads, dq, a->dgates, n);
    linear_backward(din, dw[UNROLL_Q], has_biases ? dw[UNROLL_Q_BIAS] : NULL, s->gates_output ? a->heads : dq, in,
                    w[UNROLL_Q], n, n_in, s->gates_output ? 2 * Q : Q);
    if (has_norms) dk = norm_back(s, a, dk, p->k_raw, p->k_rms, w[UNROLL_K_NORM], dw[UNROLL_K_NORM], n * s->n_head_kv);
    linear_backward(din, dw[UNROLL_K], has_biases ? dw[UNROLL_K_BIAS] : NULL, dk, in, w[UNROLL_K], n, n_in, K);
    if (s->is_gemma) dv = norm_back(s, a, dv, p->v_raw, p->v_rms, NULL, NULL, n * s->n_head_kv);
    linear_backward(din, dw[UNROLL_V], has_biases ? dw[UNROLL_V_BIAS] : NULL, dv, in, w[UNROLL_V], n, n_in, K);
}
