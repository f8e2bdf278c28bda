/* state_cells.c - the kinds of layers with a recurrent state: what each of them computes for one position of one
 * head. recurrent.c does what they share, and names the tests. */
#include "compute/cpu/cpu_ops.h"

#include "base/math_functions.h"

#include <math.h>

/* ---- Gated DeltaNet ---------------------------------------------------------------------------------------------
 *
 * The recurrence of Gated DeltaNet (DeltaNetSpec of model.h; arXiv 2412.06464) for one position of one value head.
 *
 *     c      = silu(convolution of the inputs)         its queries, keys and values
 *     decay  = exp(a log(1 + exp(alpha + dt))),  b = 1 / (1 + exp(-beta))
 *     S      = decay S + k (b (v - (decay S)' k))'     the kernel delta_rule
 *     z      = norm(S' q) * silu(z)
 *
 * A value head convolves the queries and keys of its key head itself. Where several heads share them, this is done
 * more than once, which costs 1 / dim of the recurrence. For each row and head there are 3 dim^2 multiplications and
 * additions on a matrix that is in the cache, where attention has 2 dim for each earlier position. */

/* The kernel rmsnorm divides by the root of the mean of squares, but here vectors are divided by their length, and
 * queries also by the root of dim. The gains make up for that. */
static void delta_set_gains(CpuStates *s) {
    double dim = (double)s->shape.head_dim;
    for (int64_t i = 0; i < s->shape.head_dim; i++) {
        s->k_gain[i] = (float)(1 / sqrt(dim));
        s->q_gain[i] = (float)(1 / dim);
    }
}

/* Convolves one head of queries, keys or values. */
static void delta_convolve(const CpuContext *c, const CpuLayer *l, const StateWindow *w, int64_t first, float *out) {
    int64_t n = c->states.shape.head_dim;
    state_convolve(c, l, w, first, n, out);
    c->kernels->silu_mul(out, c->states.ones, n);
}

static void delta_step(const CpuContext *c, const CpuLayer *l, int32_t h, const StateWindow *w, const float *gates,
                       const float *from, float *to, float *out) {
    const CpuStates *s = &c->states;
    const DeltaNetSpec *spec = &l->spec->delta;
    float q[MODEL_MAX_STATE_DIM], k[MODEL_MAX_STATE_DIM], v[MODEL_MAX_STATE_DIM];
    int64_t n = s->shape.head_dim, key = delta_key_head(spec, h), n_keys = spec->shape.n_key_heads;
    float eps = (float)(DELTA_NORM_EPS / (double)n);
    fr_assert(n <= MODEL_MAX_STATE_DIM);
    if (out) delta_convolve(c, l, w, key * n, q);
    delta_convolve(c, l, w, (n_keys + key) * n, k);
    delta_convolve(c, l, w, (2 * n_keys + h) * n, v);
    if (out) c->kernels->rmsnorm(q, q, s->q_gain, n, eps);
    c->kernels->rmsnorm(k, k, s->k_gain, n, eps);
    double x = (double)gates[delta_alpha_place(spec, h)] + (double)spec->dt[h];
    double softplus = x > 0 ? x + math_log1p(math_exp(-x)) : math_log1p(math_exp(x));
    double decay = math_exp((double)spec->a[h] * softplus);
    double beta = 1 / (1 + math_exp(-(double)gates[delta_beta_place(spec, h)]));
    c->kernels->delta_rule(from, to, n, k, v, (float)decay, (float)beta, out ? q : NULL, out);
}

static void delta_finish(const CpuContext *c, const CpuLayer *l, float *read, int64_t n, float *z) {
    c->kernels->rmsnorm(read, read, l->spec->delta.norm, n, c->model->hparams.rms_eps);
    c->kernels->silu_mul(z, read, n);
}

const StateCell delta_net_cell = {.open = delta_set_gains, .step = delta_step, .finish = delta_finish};

/* ---- Mamba-2 ----------------------------------------------------------------------------------------------------
 *
 *
 * The recurrence of Mamba-2 (Mamba2Spec of model.h; arXiv 2405.21060, where it is called SSD) for one position of
 * one head.
 *
 *     c      = silu(bias + convolution of the inputs)  its x; B and C of its group
 *     d      = log(1 + exp(dt + dt_bias)),  decay = exp(a d)
 *     S      = decay S + B (d x)'                      the kernel ssm_update, S [n_state][dim]
 *     z      = silu(z) * (S' C + skip x)
 *     z      = norm(z)                                 over all heads of a group: a stage of its own, over rows
 *
 * A head convolves B and C of its group itself. Where all heads share one group, this is done n_heads times and costs
 * 2 n_conv / dim of the recurrence (an eighth with heads of 64 and four taps), which is small beside the products of
 * the layer. The decay is one number a head, so that B and C take the places that keys and queries have in linear
 * attention. */

/* Convolves n channels from channel `first` on. */
static void mamba_convolve(const CpuContext *c, const CpuLayer *l, const StateWindow *w, int64_t first, int64_t n,
                           float *out) {
    const float *bias = l->spec->mamba.conv_bias;
    state_convolve(c, l, w, first, n, out);
    if (bias) c->kernels->add(out, bias + first, n);
    c->kernels->silu_mul(out, c->states.ones, n);
}

static void mamba_step(const CpuContext *c, const CpuLayer *l, int32_t h, const StateWindow *w, const float *gates,
                       const float *from, float *to, float *out) {
    const Mamba2Spec *m = &l->spec->mamba;
    const Mamba2Shape *s = &m->shape;
    float b[MODEL_MAX_STATE_DIM], read[MODEL_MAX_STATE_DIM], x[MODEL_MAX_STATE_DIM], scaled[MODEL_MAX_STATE_DIM];
    int64_t dim = s->dim, n = s->n_state, group = h / (s->n_heads / s->n_groups), n_values = c->states.shape.n_values;
    fr_assert(dim <= MODEL_MAX_STATE_DIM && n <= MODEL_MAX_STATE_DIM);
    mamba_convolve(c, l, w, h * dim, dim, x);
    mamba_convolve(c, l, w, n_values + group * n, n, b);
    if (out) mamba_convolve(c, l, w, n_values + (s->n_groups + group) * n, n, read);
    double dt = (double)gates[h] + (double)m->dt_bias[h];
    double softplus = dt > 0 ? dt + math_log1p(math_exp(-dt)) : math_log1p(math_exp(dt));
    float decay = (float)math_exp((double)m->a[h] * softplus), d = (float)softplus;
    for (int64_t i = 0; i < dim; i++) scaled[i] = d * x[i];
    c->kernels->ssm_update(from, to, n, dim, b, scaled, decay, out ? read : NULL, out);
    for (int64_t i = 0; out && i < dim; i++) out[i] += m->skip[h] * x[i];
}

static void mamba_finish(const CpuContext *c, const CpuLayer *l, float *read, int64_t n, float *z) {
    (void)l;
    c->kernels->silu_mul(z, read, n);
}

static void mamba_finish_row(const CpuContext *c, const CpuLayer *l, float *z) {
    const Mamba2Spec *m = &l->spec->mamba;
    int64_t n = c->states.shape.n_values / m->shape.n_groups;
    for (int32_t g = 0; g < m->shape.n_groups; g++)
        c->kernels->rmsnorm(z + g * n, z + g * n, m->norm + g * n, n, c->model->hparams.rms_eps);
}

const StateCell mamba2_cell = {.step = mamba_step, .finish = mamba_finish, .finish_row = mamba_finish_row};

/* ---- short convolution ------------------------------------------------------------------------------------------
 *
 * The short convolution of LFM2 (MIXER_SHORT_CONV in model.h) for one position of some channels.
 *
 *     z = c * convolution of (b * x)       b, c, x: products of the normed input
 *
 * The state consists only of the last inputs of the convolution: there is no matrix, and what recurrent.c passes
 * from row to row is empty. A "head" is a block of channels. b and x have the same channels in the same tiles, so
 * that one thread computes both and multiplies them while they are in its cache. */

/* Computes tiles [begin, end) of each product, and multiplies b with x. */
static void conv_products(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    int64_t width = op->c->states.shape.n_channels, from = begin * TILE_ROWS,
            to = end * TILE_ROWS < width ? end * TILE_ROWS : width;
    float *inputs = NULL;
    const float *factor = NULL;
    for (int k = 0; k < op->n_products; k++) {
        state_product_tiles(op, k, begin, end);
        if (op->products[k].m == op->l->matrices[MATRIX_STATE_INPUTS]) inputs = op->products[k].y;
        if (op->products[k].m == op->l->matrices[MATRIX_STATE_FACTOR]) factor = op->products[k].y;
    }
    fr_assert(inputs && factor);
    for (int64_t row = 0; row < op->n_rows; row++)
        for (int64_t i = row * width + from; i < row * width + to; i++) inputs[i] *= factor[i];
}

static void conv_step(const CpuContext *c, const CpuLayer *l, int32_t h, const StateWindow *w, const float *gates,
                      const float *from, float *to, float *out) {
    const StateShape *s = &c->states.shape;
    (void)gates, (void)from, (void)to;
    if (out) state_convolve(c, l, w, h * s->head_dim, state_head_values(s, h), out);
}

static void conv_finish(const CpuContext *c, const CpuLayer *l, float *read, int64_t n, float *z) {
    (void)c, (void)l;
    for (int64_t i = 0; i < n; i++) z[i] *= read[i];
}

const StateCell short_conv_cell = {.step = conv_step, .finish = conv_finish, .products = conv_products};
