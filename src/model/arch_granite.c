/* arch_granite.c - architectures "granite", "granitehybrid" (Granite 4.0 H) and "mamba2".
 *
 * granite is llama with factors of embeddings, attention scores, what a layer adds, and logits. granitehybrid has these
 * factors, too. Most of its layers are of Mamba-2, the others have attention, as a list of key-value heads says; it is
 * dense, or has experts and a shared expert. In both, attention does not rotate if the key rope.scaling.finetuned is
 * false.
 *
 * mamba2 has layers of Mamba-2 and nothing else: neither attention nor a feed-forward part. In such a layer one matrix,
 * ssm_in, makes z, the inputs of the convolution (x, B, C) and dt. */
#include "model/arch.h"

enum { MAX_HEADS = 4096, MAX_INNER = 1 << 18 };

static void granite_keys(KeyReader *r, Hparams *h) {
    h->embedding_scale = (float)key_float(r, "embedding_scale", 1, 1e-6, 1e6);
    h->logit_scale = (float)(1 / key_float(r, "logit_scale", 1, 1e-6, 1e6));
    h->residual_scale = (float)key_float(r, "residual_scale", 1, 1e-6, 1e6);
    h->attn_scale = (float)key_float(r, "attention.scale", 0, 0, 1e6);
    h->no_rope = !key_bool(r, "rope.scaling.finetuned", true);
}

static void set_factors(const ArchReader *r, LayerSpec *out) {
    out->residual_scale = arch_hparams(r)->residual_scale;
    out->attn_scale = arch_hparams(r)->attn_scale;
    if (arch_hparams(r)->no_rope) out->i_rope = -1;
}

static int granite_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    set_factors(r, out);
    return status ? status : arch_dense(r, i_layer, out);
}

const Architecture arch_granite = {.name = "granite", .rope = ROPE_PAIRS, .keys = granite_keys, .layer = granite_layer};

/* ---- Mamba-2 ------------------------------------------------------------------------------------------- */

static void mamba2_keys(KeyReader *r, Hparams *h) {
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
    (void)key_int(r, "ssm.time_step_rank", -1, whole, whole); /* all groups must have the same number of heads */
    h->state = mamba2_state(m, n_conv);
}

static int mamba2_mixer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const StateShape *s = &h->state;
    const RowSplit in[] = {{MATRIX_STATE_Z, s->n_values},
                           {MATRIX_STATE_INPUTS, s->n_channels},
                           {MATRIX_STATE_GATES, s->n_heads}};
    out->mixer = MIXER_MAMBA2;
    out->mamba.shape = h->mamba;
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_NORM);
    if (!status) status = arch_split(r, i_layer, TENSOR_MAMBA_IN, out, in, 3);
    if (status) return status;
    return ARCH_TAKE(r, i_layer, out, TENSOR_STATE_CONV, OPTIONAL(TENSOR_MAMBA_CONV_BIAS), TENSOR_MAMBA_DT,
                     TENSOR_MAMBA_A, TENSOR_MAMBA_D, TENSOR_MAMBA_NORM, TENSOR_STATE_OUT);
}

static int mamba2_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->ffn = FFN_NONE;
    return mamba2_mixer(r, i_layer, out);
}

const Architecture arch_mamba2 = {
    .name = "mamba2", .has_no_attention = true, .has_no_ffn = true, .keys = mamba2_keys, .layer = mamba2_layer};

/* ---- Granite 4.0 H ------------------------------------------------------------------------------------- */

static void hybrid_keys(KeyReader *r, Hparams *h) {
    granite_keys(r, h);
    mamba2_keys(r, h);
    arch_expert_keys(r, h);
}

static int hybrid_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_has_no_keys(r, i_layer) ? mamba2_mixer(r, i_layer, out) : arch_attention(r, i_layer, out);
    set_factors(r, out);
    if (status) return status;
    return h->n_expert ? arch_experts(r, i_layer, out) : arch_dense(r, i_layer, out);
}

const Architecture arch_granitehybrid = {
    .name = "granitehybrid", .rope = ROPE_PAIRS, .kv_heads_by_layer = true, .keys = hybrid_keys, .layer = hybrid_layer};
