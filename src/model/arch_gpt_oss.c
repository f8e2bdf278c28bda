/* arch_gpt_oss.c - architecture "gpt-oss": experts with biases, chosen by a router with a bias, whose weights are a softmax
 * over the chosen (which is their share of the probabilities of all); a clamped SwiGLU; biases around attention; a sink for
 * each head; and a window in every other layer, beginning with the first. Its files call the norm before the experts
 * post_attention_norm. The type of its published experts is MXFP4. */
#include "model/arch.h"

static void keys(KeyReader *r, Hparams *h) {
    arch_expert_keys(r, h);
    h->window = key_int(r, "attention.sliding_window", 0, 0, 1 << 28);
}

static int attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_qkv_biases(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, "attn_output.bias", h->n_embd, true, &out->o_bias);
    if (!status) status = arch_vector(r, i_layer, "attn_sinks.weight", h->n_head, false, &out->sinks);
    if (i_layer % 2 == 0) arch_window(r, out);
    return status;
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int64_t n_ff = h->n_ff_expert;
    int status = attention(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, "post_attention_norm.weight", h->n_embd, false, &out->ffn_norm);
    if (!status) status = arch_experts(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, "ffn_gate_inp.bias", h->n_expert, false, &out->router_bias);
    if (!status) status = arch_table(r, i_layer, "ffn_gate_exps.bias", n_ff, h->n_expert, &out->gate_bias);
    if (!status) status = arch_table(r, i_layer, "ffn_up_exps.bias", n_ff, h->n_expert, &out->up_bias);
    if (!status) status = arch_table(r, i_layer, "ffn_down_exps.bias", h->n_embd, h->n_expert, &out->down_bias);
    out->activation = ACTIVATION_CLAMPED_SWIGLU;
    return status;
}

const Architecture arch_gpt_oss = {.name = "gpt-oss", .rope = ROPE_HALVES, .keys = keys, .layer = layer};
