/* arch_qwen3moe.c - architecture "qwen3moe": attention as in qwen3, and experts, the weights of the chosen ones summing
 * to 1. */
#include "model/arch.h"

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_head_norms(r, i_layer, false, out);
    return status ? status : arch_experts(r, i_layer, out);
}

const Architecture arch_qwen3moe = {.name = "qwen3moe", .rope = ROPE_HALVES, .keys = arch_expert_keys, .layer = layer};
