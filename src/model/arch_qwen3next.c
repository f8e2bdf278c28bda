/* arch_qwen3next.c - architecture "qwen3next" (Qwen3-Next): as qwen35moe, with the value heads of a key head side by side,
 * and one matrix for beta and alpha. */
#include "model/arch.h"

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_delta_mixer(r, i_layer, true, out);
    out->delta.shares_adjacent = true;
    return status ? status : arch_experts(r, i_layer, out);
}

const Architecture arch_qwen3next = {.name = "qwen3next", .rope = ROPE_HALVES, .keys = arch_delta_keys, .layer = layer};
