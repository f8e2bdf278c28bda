/* arch_lfm2.c - architectures "lfm2" and "lfm2moe" (LFM2): layers with attention, which have norms of query and key heads, between layers with
 * a short convolution, whose input and output are each multiplied by a gate. Its files call the final norm
 * token_embd_norm, and a list of key-value heads says which layers have attention. lfm2moe has experts behind its
 * first layers, chosen by sigmoids with a bias; the weights of the chosen sum to 1. */
#include "model/arch.h"

enum { HEAD = 128 }; /* channels of an item of work */

static void keys(KeyReader *r, Hparams *h) {
    h->state = (StateShape){.n_conv = key_int(r, "shortconv.l_cache", -1, 2, MODEL_MAX_CONV),
                            .n_heads = (h->n_embd + HEAD - 1) / HEAD,
                            .n_channels = h->n_embd,
                            .n_values = h->n_embd,
                            .head_dim = HEAD};
}

static int short_conv(ArchReader *r, int32_t i, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int64_t n = h->n_embd;
    const GgufTensor *bcx;
    out->mixer = MIXER_SHORT_CONV;
    int status = arch_vector(r, i, "attn_norm.weight", n, false, &out->attn_norm);
    if (!status) status = arch_matrix(r, i, "shortconv.in_proj.weight", n, 3 * n, false, &bcx);
    if (!status) status = arch_matrix_rows(r, bcx, 0, n, &out->matrices[MATRIX_STATE_FACTOR]);
    if (!status) status = arch_matrix_rows(r, bcx, n, n, &out->matrices[MATRIX_STATE_Z]);
    if (!status) status = arch_matrix_rows(r, bcx, 2 * n, n, &out->matrices[MATRIX_STATE_INPUTS]);
    if (!status) status = arch_table(r, i, "shortconv.conv.weight", h->state.n_conv, n, &out->conv);
    return status ? status : arch_matrix(r, i, "shortconv.out_proj.weight", n, n, false, &out->matrices[MATRIX_O]);
}

static int mixer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    bool is_conv = arch_has_no_keys(r, i_layer);
    int status = is_conv ? short_conv(r, i_layer, out) : arch_attention(r, i_layer, out);
    return status || is_conv ? status : arch_head_norms(r, i_layer, false, out);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = mixer(r, i_layer, out);
    return status ? status : arch_dense(r, i_layer, out);
}

static void keys_of_experts(KeyReader *r, Hparams *h) {
    keys(r, h);
    (void)key_int(r, "expert_count", -1, 1, MODEL_MAX_EXPERTS);
    arch_expert_keys(r, h);
    h->n_dense = key_int(r, "leading_dense_block_count", 0, 0, h->n_layer);
    h->router_gate = key_int(r, "expert_gating_func", -1, 1, 2) == 2 ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
}

static int layer_of_experts(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = mixer(r, i_layer, out);
    if (status) return status;
    if (i_layer < h->n_dense) return arch_dense(r, i_layer, out);
    out->router_gate = h->router_gate;
    status = arch_experts(r, i_layer, out);
    return status ? status : arch_vector(r, i_layer, "exp_probs_b.bias", h->n_expert, false, &out->choice_bias);
}

const Architecture arch_lfm2 = {.name = "lfm2",
                                .rope = ROPE_HALVES,
                                .output_norm = "token_embd_norm.weight",
                                .kv_heads_by_layer = true,
                                .keys = keys,
                                .layer = layer};
const Architecture arch_lfm2moe = {.name = "lfm2moe",
                                   .rope = ROPE_HALVES,
                                   .output_norm = "token_embd_norm.weight",
                                   .kv_heads_by_layer = true,
                                   .keys = keys_of_experts,
                                   .layer = layer_of_experts};
