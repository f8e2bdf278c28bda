/* arch_delta_net.c - what "qwen35", "qwen35moe" and "qwen3next" share: every full_attention_interval-th layer has gated
 * attention, as layers for multi-token prediction do, and the others have a recurrent state. The norm before the feed-forward part is called post_attention_norm.
 *
 * Positions. These models rotate parts of a head by the time, height and width of a position; of text the three are the same
 * number, and the rotation is the ordinary one. */
#include "model/arch.h"

enum { MAX_HEADS = 1024 };

void arch_delta_keys(KeyReader *r, Hparams *h) {
    DeltaNetShape *d = &h->delta;
    int32_t n_conv = key_int(r, "ssm.conv_kernel", -1, 2, MODEL_MAX_CONV);
    d->dim = key_int(r, "ssm.state_size", -1, 2, MODEL_MAX_STATE_DIM);
    d->n_key_heads = key_int(r, "ssm.group_count", -1, 1, MAX_HEADS);
    d->n_value_heads = key_int(r, "ssm.time_step_rank", -1, d->n_key_heads, MAX_HEADS);
    int32_t whole = d->n_value_heads / d->n_key_heads * d->n_key_heads;
    (void)key_int(r, "ssm.time_step_rank", -1, whole, whole); /* key heads are shared evenly */
    int64_t n_values = (int64_t)d->n_value_heads * d->dim;
    (void)key_int(r, "ssm.inner_size", n_values, n_values, n_values); /* other value heads are not known */
    h->state = (StateShape){.n_conv = n_conv,
                            .n_heads = d->n_value_heads,
                            .n_channels = n_values + 2 * (int64_t)d->n_key_heads * d->dim,
                            .n_gates = 2 * (int64_t)d->n_value_heads,
                            .n_values = n_values,
                            .head_dim = d->dim,
                            .head_floats = (int64_t)d->dim * d->dim};
    h->attention_interval = key_int(r, "full_attention_interval", 4, 1, 1024);
    arch_nextn_keys(r, h);
    arch_expert_keys(r, h);
}

static int delta_net(ArchReader *r, int32_t i, bool beta_alpha, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    DeltaNetSpec *d = &out->delta;
    int64_t embd = h->n_embd, n_channels = h->state.n_channels, n_values = h->state.n_values, n = h->state.n_heads;
    d->shape = h->delta, d->joins_gates = beta_alpha;
    out->mixer = MIXER_DELTA_NET;
    int status = arch_vector(r, i, "attn_norm.weight", embd, false, &out->attn_norm);
    if (!status)
        status = arch_matrix(r, i, "attn_qkv.weight", embd, n_channels, false, &out->matrices[MATRIX_STATE_INPUTS]);
    if (!status) status = arch_matrix(r, i, "attn_gate.weight", embd, n_values, false, &out->matrices[MATRIX_STATE_Z]);
    if (!status && beta_alpha)
        status = arch_matrix(r, i, "ssm_ba.weight", embd, 2 * n, false, &out->matrices[MATRIX_STATE_GATES]);
    if (!status && !beta_alpha)
        status = arch_matrix(r, i, "ssm_beta.weight", embd, n, false, &out->matrices[MATRIX_STATE_GATES]);
    if (!status && !beta_alpha)
        status = arch_matrix(r, i, "ssm_alpha.weight", embd, n, false, &out->matrices[MATRIX_STATE_MORE_GATES]);
    if (!status) status = arch_table(r, i, "ssm_conv1d.weight", h->state.n_conv, n_channels, &out->conv);
    if (!status) status = arch_vector(r, i, "ssm_dt.bias", n, false, &d->dt);
    if (!status) status = arch_vector(r, i, "ssm_a", n, false, &d->a);
    if (!status) status = arch_vector(r, i, "ssm_norm.weight", d->shape.dim, false, &d->norm);
    return status ? status : arch_matrix(r, i, "ssm_out.weight", n_values, embd, false, &out->matrices[MATRIX_O]);
}

int arch_delta_mixer(ArchReader *r, int32_t i_layer, bool beta_alpha, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    bool is_attention = i_layer >= h->n_layer || (i_layer + 1) % h->attention_interval == 0;
    int status = is_attention ? arch_gated_attention(r, i_layer, out) : delta_net(r, i_layer, beta_alpha, out);
    if (!status && is_attention) status = arch_head_norms(r, i_layer, false, out);
    return status ? status : arch_vector(r, i_layer, "post_attention_norm.weight", h->n_embd, false, &out->ffn_norm);
}
