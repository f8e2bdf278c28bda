/* arch_llama.c - architecture "llama", and models that differ from it by little.
 *
 *   llama      Llama 1 to 3, TinyLlama, Vicuna, Mistral, SmolLM; and Mixtral, which has experts. Adjacent components of
 *              a head are rotated together. All layers have a window if the file names one, as for Mistral 7B v0.1.
 *   mistral3   Ministral 3: attention scores grow with the position, one step for each original context. The context is
 *              extended by YaRN. Its files have mscale_all_dim as yarn_log_multiplier: with the usual 1, rotation does
 *              not change the length of a vector.
 *   smollm3    one layer in four rotates nothing
 *   phi3       Phi-3 and Phi-4: queries, keys and values are one matrix, and so are gate and up. The halves of a head
 *              are rotated against each other. All layers have a window if the file names one.
 *   llama4     Llama 4 Scout and Maverick, see below
 *
 * llama4. Of four layers, three rotate and see only the chunk of the text that they are in; the fourth sees everything,
 * rotates nothing, and its scores grow with the position. One layer in interleave_moe_layer_step has experts, chosen by
 * sigmoids that multiply what they read, and a shared expert.
 *
 * Queries and keys that rotate are then divided by their root mean square, except in Maverick, which is recognised by
 * its 128 experts. Rotation does not change that number, so the division is done before it, as a norm of heads with
 * weights of 1. A factor of cos and sin (YaRN) would be divided away, so there is none.
 *
 * Published files of llama4 name neither the chunk nor the temperature: both are 8192 positions. llama.cpp takes that
 * number whatever the keys say; forerun follows the keys if they are there. */
#include "model/arch.h"

/* Reads a layer of llama, with experts if the model has them. */
static int arch_llama_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = ARCH_TAKE(r, i_layer, out, OPTIONAL(TENSOR_ATTN_Q_NORM), OPTIONAL(TENSOR_ATTN_K_NORM));
    if (status) return status;
    return arch_hparams(r)->n_expert ? arch_experts(r, i_layer, out) : arch_dense(r, i_layer, out);
}

static void llama_keys(KeyReader *r, Hparams *h) {
    arch_expert_keys(r, h);
    arch_window_keys(r, h, 0, 0);
    arch_nextn_keys(r, h);
}

static int llama_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_llama_layer(r, i_layer, out);
    arch_window(r, i_layer, out);
    return status;
}

const Architecture arch_llama = {.name = "llama", .rope = ROPE_PAIRS, .keys = llama_keys, .layer = llama_layer};

/* ---- mistral3 ------------------------------------------------------------------------------------------ */

static void mistral3_keys(KeyReader *r, Hparams *h) {
    arch_expert_keys(r, h);
    arch_temperature_keys(r, h, h->rope.n_ctx_orig);
    double m = key_float(r, "rope.scaling.yarn_log_multiplier", 0, 0, 100);
    if (m > 0) arch_divide_yarn(h, m);
}

static int mistral3_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->temperature = arch_hparams(r)->temperature;
    return arch_llama_layer(r, i_layer, out);
}

const Architecture arch_mistral3 = {
    .name = "mistral3", .rope = ROPE_PAIRS, .keys = mistral3_keys, .layer = mistral3_layer};

/* ---- smollm3 ------------------------------------------------------------------------------------------- */

static int smollm3_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    enum { PATTERN = 4 };
    int status = arch_attention(r, i_layer, out);
    if (i_layer % PATTERN == PATTERN - 1) out->i_rope = -1;
    return status ? status : arch_dense(r, i_layer, out);
}

const Architecture arch_smollm3 = {.name = "smollm3", .rope = ROPE_PAIRS, .layer = smollm3_layer};

/* ---- phi3 ---------------------------------------------------------------------------------------------- */

static void phi3_keys(KeyReader *r, Hparams *h) { arch_window_keys(r, h, 0, 0); }

static int phi3_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const RowSplit gate_up[] = {{MATRIX_GATE, h->n_ff}, {MATRIX_UP, h->n_ff}};
    int status = arch_attention(r, i_layer, out);
    if (!status) status = ARCH_TAKE(r, i_layer, out, TENSOR_FFN_NORM);
    if (!status) status = arch_split(r, i_layer, TENSOR_FFN_GATE_UP, out, gate_up, 2);
    if (!status) status = ARCH_TAKE(r, i_layer, out, TENSOR_FFN_DOWN);
    arch_window(r, i_layer, out);
    return status;
}

const Architecture arch_phi3 = {.name = "phi3", .rope = ROPE_HALVES, .keys = phi3_keys, .layer = phi3_layer};

/* ---- llama4 -------------------------------------------------------------------------------------------- */

enum { LLAMA4_PERIOD = 4, LLAMA4_CHUNK = 8192, EXPERTS_OF_MAVERICK = 128 };

static bool has_head_norms(const Hparams *h) { return h->n_expert != EXPERTS_OF_MAVERICK; }

static void llama4_keys(KeyReader *r, Hparams *h) {
    (void)key_int(r, "expert_count", -1, 1, MODEL_MAX_EXPERTS);
    h->router_gate = ROUTER_SIGMOID, h->keeps_probabilities = true;
    arch_expert_keys(r, h);
    h->n_ff_shared = h->n_ff_expert;
    h->expert_interval = key_int(r, "interleave_moe_layer_step", -1, 1, h->n_layer);
    arch_window_keys(r, h, LLAMA4_CHUNK, LLAMA4_PERIOD);
    (void)key_int(r, "attention.sliding_window", LLAMA4_CHUNK, 1, 1 << 28);
    h->temperature = (AttnTemperature){.scale = (float)key_float(r, "attention.temperature_scale", 0.1, 0, 1e3),
                                       .length = key_int(r, "attention.temperature_length", LLAMA4_CHUNK, 1, 1 << 28),
                                       .offset = 1};
    if (has_head_norms(h)) h->rope.magnitude = 1;
}

static int llama4_attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_attention(r, i_layer, out);
    arch_window(r, i_layer, out);
    if (out->mixer != MIXER_WINDOW) {
        out->i_rope = -1;
        out->temperature = h->temperature;
        return status;
    }
    out->is_chunked = true;
    if (status || !has_head_norms(h)) return status;
    status = arch_ones(r, h->head_dim, &out->q_norm);
    out->k_norm = out->q_norm;
    return status;
}

static int llama4_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = llama4_attention(r, i_layer, out);
    out->weights_inputs = true;
    if (status) return status;
    return (i_layer + 1) % arch_hparams(r)->expert_interval ? arch_dense(r, i_layer, out)
                                                            : arch_experts(r, i_layer, out);
}

const Architecture arch_llama4 = {.name = "llama4", .rope = ROPE_PAIRS, .keys = llama4_keys, .layer = llama4_layer};
