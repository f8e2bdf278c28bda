/* arch_smollm3.c - architecture "smollm3": as llama, but in every fourth layer nothing is rotated. */
#include "model/arch.h"

enum { PATTERN = 4 };

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (i_layer % PATTERN == PATTERN - 1) out->i_rope = -1;
    return status ? status : arch_dense(r, i_layer, out);
}

const Architecture arch_smollm3 = {.name = "smollm3", .rope = ROPE_PAIRS, .layer = layer};
