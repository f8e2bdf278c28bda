/* arch_qwen2moe.c - architecture "qwen2moe": attention as in qwen2; experts, and one that every token passes, weighted by a
 * gate of its own. The weights of the chosen experts are their probabilities among all. */
#include "model/arch.h"

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_qkv_biases(r, i_layer, out);
    out->keeps_probabilities = true;
    return status ? status : arch_experts(r, i_layer, out);
}

static void keys(KeyReader *r, Hparams *h) {
    arch_expert_keys(r, h);
    if (h->n_expert && h->n_ff_shared == 0) h->n_ff_shared = h->n_ff; /* files before that key */
}

const Architecture arch_qwen2moe = {.name = "qwen2moe", .rope = ROPE_HALVES, .keys = keys, .layer = layer};
