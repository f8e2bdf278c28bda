/* arch_lfm2.c - architecture "lfm2" (LFM2): layers with attention, which have norms of query and key heads, between layers with
 * a short convolution, whose input and output are each multiplied by a gate. Its files call the final norm
 * token_embd_norm, and a list of key-value heads says which layers have attention. */
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
    if (!status) status = arch_matrix_rows(r, bcx, 0, n, &out->short_conv.b);
    if (!status) status = arch_matrix_rows(r, bcx, n, n, &out->short_conv.c);
    if (!status) status = arch_matrix_rows(r, bcx, 2 * n, n, &out->short_conv.x);
    if (!status) status = arch_table(r, i, "shortconv.conv.weight", h->state.n_conv, n, &out->conv);
    return status ? status : arch_matrix(r, i, "shortconv.out_proj.weight", n, n, false, &out->o);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    bool is_conv = arch_has_no_keys(r, i_layer);
    int status = is_conv ? short_conv(r, i_layer, out) : arch_attention(r, i_layer, out);
    if (!status && !is_conv) status = arch_head_norms(r, i_layer, false, out);
    return status ? status : arch_dense(r, i_layer, out);
}

const Architecture arch_lfm2 = {.name = "lfm2",
                                .rope = ROPE_HALVES,
                                .output_norm = "token_embd_norm.weight",
                                .kv_heads_by_layer = true,
                                .keys = keys,
                                .layer = layer};
