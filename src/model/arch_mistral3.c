/* arch_mistral3.c - architecture "mistral3": Ministral 3 and its kin. As llama, with experts or without; the context is extended by
 * YaRN, and attention scores grow with the position, a step for each original context. Its files have mscale_all_dim as
 * yarn_log_multiplier: with the usual 1, rotation does not change the length of a vector. */
#include "model/arch.h"

static void keys(KeyReader *r, Hparams *h) {
    arch_expert_keys(r, h);
    arch_temperature_keys(r, h, h->rope.n_ctx_orig);
    double m = key_float(r, "rope.scaling.yarn_log_multiplier", 0, 0, 100);
    if (m > 0) arch_divide_yarn(h, m);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->temperature = arch_hparams(r)->temperature;
    return arch_llama_layer(r, i_layer, out);
}

const Architecture arch_mistral3 = {.name = "mistral3", .rope = ROPE_PAIRS, .keys = keys, .layer = layer};
