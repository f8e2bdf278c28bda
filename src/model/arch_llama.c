/* arch_llama.c - architecture "llama": Llama 1 to 3, TinyLlama, Vicuna, Mistral, SmolLM. Attention and a dense
 * feed-forward part; adjacent components of a head are rotated together. */
#include "model/arch.h"

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_qkv_biases(r, i_layer, out);
    if (!status) status = arch_head_norms(r, i_layer, true, out);
    return status ? status : arch_dense(r, i_layer, out);
}

const Architecture arch_llama = {.name = "llama", .rope = ROPE_PAIRS, .layer = layer};
