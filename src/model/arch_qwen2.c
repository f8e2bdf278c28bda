/* arch_qwen2.c - architecture "qwen2": as llama, with biases of queries, keys and values, and the halves of a head
 * rotated against each other. */
#include "model/arch.h"

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_qkv_biases(r, i_layer, out);
    if (!status) status = arch_head_norms(r, i_layer, true, out);
    return status ? status : arch_dense(r, i_layer, out);
}

const Architecture arch_qwen2 = {.name = "qwen2", .rope = ROPE_HALVES, .layer = layer};
