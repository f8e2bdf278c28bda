/* arch_lfm2.c - architectures "lfm2" and "lfm2moe" (LFM2). Some layers have attention, with norms of query and key
 * heads; the others have a short convolution, whose input and output are each multiplied by a gate. A list of key-value
 * heads says which have attention. The final norm is called token_embd_norm. In lfm2moe all but the first layers have
 * experts, chosen by sigmoids with a bias; the weights of the chosen ones sum to 1. */
#include "model/arch.h"

static void lfm2_keys(KeyReader *r, Hparams *h) {
    h->state = short_conv_state(h->n_embd, key_int(r, "shortconv.l_cache", -1, 2, MODEL_MAX_CONV));
}

static int short_conv(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int64_t n = arch_hparams(r)->n_embd;
    const RowSplit in[] = {{MATRIX_STATE_FACTOR, n}, {MATRIX_STATE_Z, n}, {MATRIX_STATE_INPUTS, n}};
    out->mixer = MIXER_SHORT_CONV;
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_NORM);
    if (!status) status = arch_split(r, i_layer, TENSOR_SHORT_CONV_IN, out, in, 3);
    return status ? status : ARCH_TAKE(r, i_layer, out, TENSOR_SHORT_CONV, TENSOR_SHORT_CONV_OUT);
}

static int mixer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    if (arch_has_no_keys(r, i_layer)) return short_conv(r, i_layer, out);
    int status = arch_attention(r, i_layer, out);
    return status ? status : ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_Q_NORM, TENSOR_ATTN_K_NORM);
}

static int lfm2_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = mixer(r, i_layer, out);
    return status ? status : arch_dense(r, i_layer, out);
}

static void lfm2moe_keys(KeyReader *r, Hparams *h) {
    lfm2_keys(r, h);
    (void)key_int(r, "expert_count", -1, 1, MODEL_MAX_EXPERTS);
    arch_expert_keys(r, h);
    h->n_dense = key_int(r, "leading_dense_block_count", 0, 0, h->n_layer);
    (void)key_int(r, "expert_gating_func", -1, 1, 2);
}

static int lfm2moe_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = mixer(r, i_layer, out);
    if (status) return status;
    if (i_layer < h->n_dense) return arch_dense(r, i_layer, out);
    status = arch_experts(r, i_layer, out);
    return status ? status : ARCH_TAKE(r, i_layer, out, TENSOR_CHOICE_BIAS);
}

const Architecture arch_lfm2 = {.name = "lfm2",
                                .rope = ROPE_HALVES,
                                .has_embd_norm = true,
                                .kv_heads_by_layer = true,
                                .keys = lfm2_keys,
                                .layer = lfm2_layer};
const Architecture arch_lfm2moe = {.name = "lfm2moe",
                                   .rope = ROPE_HALVES,
                                   .has_embd_norm = true,
                                   .kv_heads_by_layer = true,
                                   .keys = lfm2moe_keys,
                                   .layer = lfm2moe_layer};
