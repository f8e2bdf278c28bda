/* delta_net.c - the recurrence of Gated DeltaNet (DeltaNetSpec of model.h; arXiv 2412.06464) for one position of one value head.
 *
 *     c      = silu(convolution of the inputs)         its queries, keys and values
 *     decay  = exp(a log(1 + exp(alpha + dt))),  b = 1 / (1 + exp(-beta))
 *     S      = decay S + k (b (v - (decay S)' k))'     the kernel delta_rule
 *     z      = norm(S' q) * silu(z)
 *
 * A value head convolves the queries and keys of its key head itself: where several share them this is done more than once, which
 * costs 1 / dim of the recurrence. For each row and head there are 3 dim^2 multiplications and additions on a matrix that is
 * in the cache, where attention has 2 dim for each earlier position.
 *
 * Proof: as of recurrent.c. */
#include "compute/cpu/cpu.h"

#include <math.h>

/* rmsnorm divides by the root of the mean, where the length is wanted; queries are divided by the root of dim as well. */
static void set_gains(CpuStates *s) {
    double dim = (double)s->shape.head_dim;
    for (int64_t i = 0; i < s->shape.head_dim; i++) {
        s->k_gain[i] = (float)(1 / sqrt(dim));
        s->q_gain[i] = (float)(1 / dim);
    }
}

/* One head of queries, keys or values. */
static void convolve(const CpuContext *c, const CpuLayer *l, const StateWindow *w, int64_t first, float *out) {
    int64_t n = c->states.shape.head_dim;
    state_convolve(c, l, w, first, n, out);
    c->kernels->silu_mul(out, c->states.ones, n);
}

static void step(const CpuContext *c, const CpuLayer *l, int32_t h, const StateWindow *w, const float *gates,
                 const float *from, float *to, float *out) {
    const CpuStates *s = &c->states;
    const DeltaNetSpec *spec = &l->spec->delta;
    float q[MODEL_MAX_STATE_DIM], k[MODEL_MAX_STATE_DIM], v[MODEL_MAX_STATE_DIM];
    int64_t n = s->shape.head_dim, key = delta_key_head(spec, h), n_keys = spec->shape.n_key_heads;
    float eps = (float)(DELTA_NORM_EPS / (double)n);
    fr_assert(n <= MODEL_MAX_STATE_DIM);
    if (out) convolve(c, l, w, key * n, q);
    convolve(c, l, w, (n_keys + key) * n, k);
    convolve(c, l, w, (2 * n_keys + h) * n, v);
    if (out) c->kernels->rmsnorm(q, q, s->q_gain, n, eps);
    c->kernels->rmsnorm(k, k, s->k_gain, n, eps);
    double x = (double)gates[delta_alpha_place(spec, h)] + (double)spec->dt[h];
    double softplus = x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    double decay = exp((double)spec->a[h] * softplus);
    double beta = 1 / (1 + exp(-(double)gates[delta_beta_place(spec, h)]));
    c->kernels->delta_rule(from, to, n, k, v, (float)decay, (float)beta, out ? q : NULL, out);
}

static void finish(const CpuContext *c, const CpuLayer *l, float *read, int64_t n, float *z) {
    c->kernels->rmsnorm(read, read, l->spec->delta.norm, n, c->model->hparams.rms_eps);
    c->kernels->silu_mul(z, read, n);
}

const StateCell delta_net_cell = {.open = set_gains, .step = step, .finish = finish};
