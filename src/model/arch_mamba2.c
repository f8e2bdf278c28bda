/* arch_mamba2.c - architecture "mamba2": layers of Mamba-2 alone, without attention or a feed-forward part; and the layer, which
 * hybrids share. One matrix ssm_in has z, the inputs of the convolution (x, B, C) and dt. */
#include "model/arch.h"

enum { MAX_HEADS = 4096, MAX_INNER = 1 << 18 };

void arch_mamba2_keys(KeyReader *r, Hparams *h) {
    Mamba2Shape *m = &h->mamba;
    int32_t n_conv = key_int(r, "ssm.conv_kernel", -1, 2, MODEL_MAX_CONV);
    int32_t n_inner = key_int(r, "ssm.inner_size", -1, 1, MAX_INNER);
    m->n_state = key_int(r, "ssm.state_size", -1, 1, MODEL_MAX_STATE_DIM);
    m->n_heads = key_int(r, "ssm.time_step_rank", -1, 1, MAX_HEADS);
    m->n_groups = key_int(r, "ssm.group_count", -1, 1, m->n_heads);
    m->dim = n_inner / m->n_heads;
    (void)key_int(r, "ssm.inner_size", -1, m->n_heads, (int64_t)MODEL_MAX_STATE_DIM * m->n_heads);
    (void)key_int(r, "ssm.inner_size", -1, (int64_t)m->dim * m->n_heads, (int64_t)m->dim * m->n_heads);
    int32_t whole = m->n_heads / m->n_groups * m->n_groups;
    (void)key_int(r, "ssm.time_step_rank", -1, whole, whole); /* groups are shared evenly */
    h->state = (StateShape){.n_conv = n_conv,
                            .n_heads = m->n_heads,
                            .n_channels = n_inner + 2 * (int64_t)m->n_groups * m->n_state,
                            .n_gates = m->n_heads,
                            .n_values = n_inner,
                            .head_dim = m->dim,
                            .head_floats = (int64_t)m->dim * m->n_state};
}

int arch_mamba2_mixer(ArchReader *r, int32_t i, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const StateShape *s = &h->state;
    Mamba2Spec *m = &out->mamba;
    int64_t embd = h->n_embd, n = s->n_values, n_heads = s->n_heads, n_groups = h->mamba.n_groups;
    const GgufTensor *in;
    m->shape = h->mamba;
    out->mixer = MIXER_MAMBA2;
    int status = arch_vector(r, i, "attn_norm.weight", embd, false, &out->attn_norm);
    if (!status) status = arch_matrix(r, i, "ssm_in.weight", embd, n + s->n_channels + n_heads, false, &in);
    if (!status) status = arch_matrix_rows(r, in, 0, n, &out->matrices[MATRIX_STATE_Z]);
    if (!status) status = arch_matrix_rows(r, in, n, s->n_channels, &out->matrices[MATRIX_STATE_INPUTS]);
    if (!status) status = arch_matrix_rows(r, in, n + s->n_channels, n_heads, &out->matrices[MATRIX_STATE_GATES]);
    if (!status) status = arch_table(r, i, "ssm_conv1d.weight", s->n_conv, s->n_channels, &out->conv);
    if (!status) status = arch_vector(r, i, "ssm_conv1d.bias", s->n_channels, true, &m->conv_bias);
    if (!status) status = arch_vector(r, i, "ssm_dt.bias", n_heads, false, &m->dt_bias);
    if (!status) status = arch_table(r, i, "ssm_a", 1, n_heads, &m->a);
    if (!status) status = arch_table(r, i, "ssm_d", 1, n_heads, &m->skip);
    if (!status) status = arch_table(r, i, "ssm_norm.weight", n / n_groups, n_groups, &m->norm);
    return status ? status : arch_matrix(r, i, "ssm_out.weight", n, embd, false, &out->matrices[MATRIX_O]);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->ffn = FFN_NONE;
    return arch_mamba2_mixer(r, i_layer, out);
}

const Architecture arch_mamba2 = {
    .name = "mamba2", .has_no_attention = true, .has_no_ffn = true, .keys = arch_mamba2_keys, .layer = layer};
