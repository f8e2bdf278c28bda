/* arch_granite.c - architecture "granite": as llama, with factors of embeddings, attention scores, what a layer adds, and
 * logits. */
#include "model/arch.h"

void arch_granite_keys(KeyReader *r, Hparams *h) {
    h->embedding_scale = (float)key_float(r, "embedding_scale", 1, 1e-6, 1e6);
    h->logit_scale = (float)(1 / key_float(r, "logit_scale", 1, 1e-6, 1e6));
    h->residual_scale = (float)key_float(r, "residual_scale", 1, 1e-6, 1e6);
    h->attn_scale = (float)key_float(r, "attention.scale", 0, 0, 1e6);
}

void arch_granite_factors(const ArchReader *r, LayerSpec *out) {
    out->residual_scale = arch_hparams(r)->residual_scale;
    out->attn_scale = arch_hparams(r)->attn_scale;
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    arch_granite_factors(r, out);
    return status ? status : arch_dense(r, i_layer, out);
}

const Architecture arch_granite = {.name = "granite", .rope = ROPE_PAIRS, .keys = arch_granite_keys, .layer = layer};
