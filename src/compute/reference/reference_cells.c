/* reference_cells.c - the kinds of recurrent layers in double precision: DeltaNetSpec, Mamba2Spec and ShortConvSpec of model.h, one
 * position and one head at a time. */
#include "compute/reference/reference.h"

#include <math.h>

/* n channels from `first` on. */
static void convolve(const StateShape *s, const LayerSpec *l, const RefWindow *w, int64_t first, int64_t n,
                     double *out) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int32_t j = 0; j < s->n_conv; j++)
            if (w->x[j]) out[i] += (double)l->conv[(first + i) * s->n_conv + j] * w->x[j][first + i];
    }
}

static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

/* ---- Gated DeltaNet -------------------------------------------------------------------------------------- */

/* One head of queries, keys or values, from channel `first` on, normed to length `norm` unless that is 0. */
static void convolve_head(const StateShape *s, const LayerSpec *l, const RefWindow *w, int64_t first, double norm,
                          double *out) {
    double squares = 0;
    convolve(s, l, w, first, s->head_dim, out);
    for (int64_t i = 0; i < s->head_dim; i++) {
        out[i] = reference_silu(out[i]);
        squares += out[i] * out[i];
    }
    for (int64_t i = 0; norm != 0 && i < s->head_dim; i++) out[i] *= norm / sqrt(squares + DELTA_NORM_EPS);
}

static void delta_net(const StateShape *s, const LayerSpec *l, int32_t h, const RefWindow *w, const double *gates,
                      const double *from, double *to, double *out) {
    const DeltaNetSpec *d = &l->delta;
    int64_t n = s->head_dim, key = delta_key_head(d, h), n_keys = d->shape.n_key_heads;
    double q[MODEL_MAX_STATE_DIM], k[MODEL_MAX_STATE_DIM], v[MODEL_MAX_STATE_DIM];
    fr_assert(n <= MODEL_MAX_STATE_DIM);
    convolve_head(s, l, w, key * n, 1 / sqrt((double)n), q);
    convolve_head(s, l, w, (n_keys + key) * n, 1, k);
    convolve_head(s, l, w, (2 * n_keys + h) * n, 0, v);
    double beta = 1 / (1 + exp(-gates[delta_beta_place(d, h)]));
    double decay = exp((double)d->a[h] * softplus(gates[delta_alpha_place(d, h)] + (double)d->dt[h]));
    for (int64_t i = 0; i < n * n; i++) to[i] = decay * from[i];
    for (int64_t col = 0; col < n; col++) {
        double read = 0, sum = 0;
        for (int64_t i = 0; i < n; i++) read += k[i] * to[i * n + col];
        for (int64_t i = 0; i < n; i++) to[i * n + col] += k[i] * beta * (v[col] - read);
        for (int64_t i = 0; i < n; i++) sum += q[i] * to[i * n + col];
        if (out) out[col] = sum;
    }
}

/* ---- Mamba-2 --------------------------------------------------------------------------------------------- */

static void convolve_with_bias(const StateShape *s, const LayerSpec *l, const RefWindow *w, int64_t first, int64_t n,
                               double *out) {
    const float *bias = l->mamba.conv_bias;
    convolve(s, l, w, first, n, out);
    for (int64_t i = 0; i < n; i++) out[i] = reference_silu(out[i] + (bias ? (double)bias[first + i] : 0));
}

static void mamba2(const StateShape *s, const LayerSpec *l, int32_t h, const RefWindow *w, const double *gates,
                   const double *from, double *to, double *out) {
    const Mamba2Spec *m = &l->mamba;
    int64_t dim = m->shape.dim, n = m->shape.n_state, group = h / (m->shape.n_heads / m->shape.n_groups);
    double x[MODEL_MAX_STATE_DIM], b[MODEL_MAX_STATE_DIM], c[MODEL_MAX_STATE_DIM];
    fr_assert(dim <= MODEL_MAX_STATE_DIM && n <= MODEL_MAX_STATE_DIM);
    convolve_with_bias(s, l, w, h * dim, dim, x);
    convolve_with_bias(s, l, w, s->n_values + group * n, n, b);
    convolve_with_bias(s, l, w, s->n_values + (m->shape.n_groups + group) * n, n, c);
    double d = softplus(gates[h] + (double)m->dt_bias[h]), decay = exp((double)m->a[h] * d);
    for (int64_t col = 0; col < dim; col++) {
        double sum = (double)m->skip[h] * x[col];
        for (int64_t i = 0; i < n; i++) {
            to[i * dim + col] = decay * from[i * dim + col] + b[i] * d * x[col];
            sum += c[i] * to[i * dim + col];
        }
        if (out) out[col] = sum;
    }
}

/* ---- the kinds ------------------------------------------------------------------------------------------- */

void reference_step(const StateShape *s, const LayerSpec *l, int32_t h, const RefWindow *w, const double *gates,
                    const double *from, double *to, double *out) {
    if (l->mixer == MIXER_DELTA_NET) delta_net(s, l, h, w, gates, from, to, out);
    else if (l->mixer == MIXER_MAMBA2) mamba2(s, l, h, w, gates, from, to, out);
    else if (out) convolve(s, l, w, h * s->head_dim, state_head_values(s, h), out);
}

void reference_finish_values(const StateShape *s, const LayerSpec *l, double eps, const double *z, double *values) {
    int64_t n = s->n_values;
    if (l->mixer == MIXER_DELTA_NET)
        for (int64_t i = 0; i < n; i += s->head_dim)
            reference_rmsnorm(values + i, l->delta.norm, s->head_dim, eps, values + i);
    for (int64_t i = 0; i < n; i++) values[i] *= l->mixer == MIXER_SHORT_CONV ? z[i] : reference_silu(z[i]);
    if (l->mixer != MIXER_MAMBA2) return;
    int64_t width = n / l->mamba.shape.n_groups;
    for (int64_t i = 0; i < n; i += width) reference_rmsnorm(values + i, l->mamba.norm + i, width, eps, values + i);
}
