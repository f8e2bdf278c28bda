/* arch_gpt_oss.c - architecture "gpt-oss". Experts have biases and a clamped SwiGLU. A router with a bias chooses them,
 * and their weights are a softmax over the chosen ones, which is their share of the probabilities of all. Attention has
 * biases, a sink for each head, and a window in every other layer, beginning with the first. The norm before the
 * experts is called post_attention_norm. Published experts are of type MXFP4. */
#include "model/arch.h"

enum { PERIOD = 2, USUAL_WINDOW = 128 }; /* these hold if the file does not name them */

static void keys(KeyReader *r, Hparams *h) {
    arch_expert_keys(r, h);
    arch_window_keys(r, h, USUAL_WINDOW, PERIOD);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_SINKS, TENSOR_FFN_NORM_POST_ATTN);
    if (!status) status = arch_experts(r, i_layer, out);
    if (!status)
        status = ARCH_TAKE(r, i_layer, out, TENSOR_ROUTER_BIAS, TENSOR_EXPERT_GATE_BIAS, TENSOR_EXPERT_UP_BIAS,
                           TENSOR_EXPERT_DOWN_BIAS);
    out->activation = ACTIVATION_CLAMPED_SWIGLU;
    arch_window(r, i_layer, out);
    return status;
}

const Architecture arch_gpt_oss = {.name = "gpt-oss", .rope = ROPE_HALVES, .keys = keys, .layer = layer};
