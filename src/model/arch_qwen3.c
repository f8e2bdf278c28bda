/* arch_qwen3.c - architecture "qwen3": as qwen2, with a norm of each query and key head in the place of the biases. */
#include "model/arch.h"

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_qkv_biases(r, i_layer, out);
    if (!status) status = arch_head_norms(r, i_layer, false, out);
    return status ? status : arch_dense(r, i_layer, out);
}

const Architecture arch_qwen3 = {.name = "qwen3", .rope = ROPE_HALVES, .layer = layer};
