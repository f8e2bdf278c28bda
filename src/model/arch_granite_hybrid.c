/* arch_granite_hybrid.c - architecture "granitehybrid" (Granite 4.0 H): layers of Mamba-2 and some with attention, as a list of
 * key-value heads says; dense, or experts with one that every token passes; the factors of Granite. Whether attention
 * rotates, the key rope.scaling.finetuned says. */
#include "model/arch.h"

static void keys(KeyReader *r, Hparams *h) {
    arch_granite_keys(r, h);
    arch_mamba2_keys(r, h);
    arch_expert_keys(r, h);
    h->no_rope = !key_bool(r, "rope.scaling.finetuned", true);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_has_no_keys(r, i_layer) ? arch_mamba2_mixer(r, i_layer, out) : arch_attention(r, i_layer, out);
    arch_granite_factors(r, out);
    if (h->no_rope) out->i_rope = -1;
    if (status) return status;
    return h->n_expert ? arch_experts(r, i_layer, out) : arch_dense(r, i_layer, out);
}

const Architecture arch_granitehybrid = {
    .name = "granitehybrid", .rope = ROPE_PAIRS, .kv_heads_by_layer = true, .keys = keys, .layer = layer};
