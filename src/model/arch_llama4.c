/* arch_llama4.c - architecture "llama4" (text): Llama 4 Scout and Maverick. Of four layers, three rotate and see the chunk of the
 * text that they stand in; the fourth sees everything, rotates nothing, and its scores grow with the position. Every so
 * many-th layer has experts, chosen by sigmoids that multiply what they read, and one that every token passes.
 *
 * Queries and keys that rotate are then divided by their root mean square, but not in Maverick, whose 128 experts tell it.
 * Rotation leaves that number alone, so the division is done before, as a norm of heads with weights of 1; and a factor of
 * cos and sin (YaRN) would be divided away, so there is none.
 *
 * Published files name neither the chunk nor the temperature: both go by 8192 positions. llama.cpp takes that number whatever the
 * keys say; forerun follows the keys where they are there. */
#include "model/arch.h"

enum { PATTERN = 4, CHUNK = 8192, EXPERTS_OF_MAVERICK = 128 };

static bool has_norms(const Hparams *h) { return h->n_expert != EXPERTS_OF_MAVERICK; }

static void keys(KeyReader *r, Hparams *h) {
    (void)key_int(r, "expert_count", -1, 1, MODEL_MAX_EXPERTS);
    arch_expert_keys(r, h);
    h->n_ff_shared = h->n_ff_expert;
    h->expert_interval = key_int(r, "interleave_moe_layer_step", -1, 1, h->n_layer);
    h->window = key_int(r, "attention.sliding_window", CHUNK, 1, 1 << 28);
    h->temperature = (AttnTemperature){.scale = (float)key_float(r, "attention.temperature_scale", 0.1, 0, 1e3),
                                       .length = key_int(r, "attention.temperature_length", CHUNK, 1, 1 << 28),
                                       .offset = 1};
    if (has_norms(h)) arch_divide_yarn(h, 1);
}

static int attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_attention(r, i_layer, out);
    if (i_layer % PATTERN == PATTERN - 1) {
        out->i_rope = -1;
        out->temperature = h->temperature;
        return status;
    }
    arch_window(r, out);
    out->is_chunked = true;
    if (status || !has_norms(h)) return status;
    status = arch_ones(r, h->head_dim, &out->q_norm);
    out->k_norm = out->q_norm;
    return status;
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = attention(r, i_layer, out);
    out->router_gate = ROUTER_SIGMOID;
    out->keeps_probabilities = out->weights_inputs = true;
    if (status) return status;
    return (i_layer + 1) % arch_hparams(r)->expert_interval ? arch_dense(r, i_layer, out)
                                                            : arch_experts(r, i_layer, out);
}

const Architecture arch_llama4 = {.name = "llama4", .rope = ROPE_PAIRS, .keys = keys, .layer = layer};
