/* mamba2.c - the recurrence of Mamba-2 (Mamba2Spec of model.h; arXiv 2405.21060, where it is called SSD) for one position of
 * one head.
 *
 *     c      = silu(bias + convolution of the inputs)  its x; B and C of its group
 *     d      = log(1 + exp(dt + dt_bias)),  decay = exp(a d)
 *     S      = decay S + B (d x)'                      the kernel ssm_update, S [n_state][dim]
 *     z      = silu(z) * (S' C + skip x)
 *     z      = norm(z)                                 over all heads of a group: a stage of its own, over rows
 *
 * A head convolves B and C of its group itself. Where all heads share one group, this is done n_heads times and costs
 * 2 n_conv / dim of the recurrence (an eighth with heads of 64 and four taps), which is small beside the products of the layer.
 * The decay is one number a head, so that B and C take the places that keys and queries have in linear attention.
 *
 * Proof: as of recurrent.c. */
#include "compute/cpu/cpu.h"

#include <math.h>

/* n channels from `first` on. */
static void convolve(const CpuContext *c, const CpuLayer *l, const StateWindow *w, int64_t first, int64_t n,
                     float *out) {
    const float *bias = l->spec->mamba.conv_bias;
    state_convolve(c, l, w, first, n, out);
    if (bias) c->kernels->add(out, bias + first, n);
    c->kernels->silu_mul(out, c->states.ones, n);
}

static void step(const CpuContext *c, const CpuLayer *l, int32_t h, const StateWindow *w, const float *gates,
                 const float *from, float *to, float *out) {
    const Mamba2Spec *m = &l->spec->mamba;
    const Mamba2Shape *s = &m->shape;
    float b[MODEL_MAX_STATE_DIM], read[MODEL_MAX_STATE_DIM], x[MODEL_MAX_STATE_DIM], scaled[MODEL_MAX_STATE_DIM];
    int64_t dim = s->dim, n = s->n_state, group = h / (s->n_heads / s->n_groups), n_values = c->states.shape.n_values;
    fr_assert(dim <= MODEL_MAX_STATE_DIM && n <= MODEL_MAX_STATE_DIM);
    convolve(c, l, w, h * dim, dim, x);
    convolve(c, l, w, n_values + group * n, n, b);
    if (out) convolve(c, l, w, n_values + (s->n_groups + group) * n, n, read);
    double dt = (double)gates[h] + (double)m->dt_bias[h];
    double softplus = dt > 0 ? dt + log1p(exp(-dt)) : log1p(exp(dt));
    float decay = (float)exp((double)m->a[h] * softplus), d = (float)softplus;
    for (int64_t i = 0; i < dim; i++) scaled[i] = d * x[i];
    c->kernels->ssm_update(from, to, n, dim, b, scaled, decay, out ? read : NULL, out);
    for (int64_t i = 0; out && i < dim; i++) out[i] += m->skip[h] * x[i];
}

static void finish(const CpuContext *c, const CpuLayer *l, float *read, int64_t n, float *z) {
    (void)l;
    c->kernels->silu_mul(z, read, n);
}

static void finish_row(const CpuContext *c, const CpuLayer *l, float *z) {
    const Mamba2Spec *m = &l->spec->mamba;
    int64_t n = c->states.shape.n_values / m->shape.n_groups;
    for (int32_t g = 0; g < m->shape.n_groups; g++)
        c->kernels->rmsnorm(z + g * n, z + g * n, m->norm + g * n, n, c->model->hparams.rms_eps);
}

const StateCell mamba2_cell = {.step = step, .finish = finish, .finish_row = finish_row};
