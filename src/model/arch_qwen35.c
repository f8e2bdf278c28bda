/* arch_qwen35.c - architectures "qwen35" and "qwen35moe" (Qwen 3.5 and 3.6): three layers with a recurrent state to one with
 * gated attention; dense, or experts with one that every token passes. Converted files have the value heads in an order
 * in which value head h reads with key head h % n_key_heads. */
#include "model/arch.h"

static int dense_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_delta_mixer(r, i_layer, false, out);
    return status ? status : arch_dense(r, i_layer, out);
}

static int expert_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_delta_mixer(r, i_layer, false, out);
    return status ? status : arch_experts(r, i_layer, out);
}

const Architecture arch_qwen35 = {.name = "qwen35", .rope = ROPE_HALVES, .keys = arch_delta_keys, .layer = dense_layer};
const Architecture arch_qwen35moe = {
    .name = "qwen35moe", .rope = ROPE_HALVES, .keys = arch_delta_keys, .layer = expert_layer};
