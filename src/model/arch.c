/* arch.c - the table of architectures, and the parts of a layer that most of them share. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

static const Architecture *const architectures[ARCH_COUNT] = {
    [ARCH_LLAMA] = &arch_llama,         [ARCH_QWEN2] = &arch_qwen2,
    [ARCH_QWEN3] = &arch_qwen3,         [ARCH_QWEN2MOE] = &arch_qwen2moe,
    [ARCH_QWEN3MOE] = &arch_qwen3moe,   [ARCH_GEMMA2] = &arch_gemma2,
    [ARCH_GEMMA3] = &arch_gemma3,       [ARCH_PHI3] = &arch_phi3,
    [ARCH_SMOLLM3] = &arch_smollm3,     [ARCH_GRANITE] = &arch_granite,
    [ARCH_QWEN35] = &arch_qwen35,       [ARCH_QWEN35MOE] = &arch_qwen35moe,
    [ARCH_QWEN3NEXT] = &arch_qwen3next, [ARCH_GPT_OSS] = &arch_gpt_oss,
    [ARCH_LFM2] = &arch_lfm2,           [ARCH_GRANITEHYBRID] = &arch_granitehybrid,
    [ARCH_MAMBA2] = &arch_mamba2,       [ARCH_DEEPSEEK2] = &arch_deepseek2,
    [ARCH_GLM4MOE] = &arch_glm4moe,     [ARCH_MISTRAL3] = &arch_mistral3,
    [ARCH_LLAMA4] = &arch_llama4,       [ARCH_LFM2MOE] = &arch_lfm2moe,
    [ARCH_GEMMA4] = &arch_gemma4};

const Architecture *arch_find(Arch arch) { return architectures[arch]; }
const char *arch_name(Arch arch) { return architectures[arch]->name; }

bool arch_from_name(const char *name, size_t n, Arch *out) {
    for (int i = 0; i < ARCH_COUNT; i++)
        if (n == strlen(architectures[i]->name) && memcmp(name, architectures[i]->name, n) == 0) {
            *out = (Arch)i;
            return true;
        }
    return false;
}

const char *arch_names(ArchNames *out) {
    size_t n = 0;
    for (int i = 0; i < ARCH_COUNT && n < sizeof out->text; i++) {
        const char *before = i == 0 ? "" : i == ARCH_COUNT - 1 ? " and " : ", ";
        n += (size_t)snprintf(out->text + n, sizeof out->text - n, "%s%s", before, architectures[i]->name);
    }
    return out->text;
}

/* Takes one matrix for queries, keys and values, and one bias for all of them. */
static int fused_qkv(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int64_t q = hparams_q_dim(h), kv = hparams_kv_dim(h);
    const float *bias = NULL;
    int status = arch_split(r, i_layer, TENSOR_ATTN_QKV, out,
                            (RowSplit[]){{MATRIX_Q, q}, {MATRIX_K, kv}, {MATRIX_V, kv}}, 3);
    if (!status) status = arch_vector(r, i_layer, TENSOR_ATTN_QKV_BIAS, true, &bias);
    if (bias) out->q_bias = bias, out->k_bias = bias + q, out->v_bias = bias + q + kv;
    return status;
}

int arch_attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->mixer = MIXER_ATTENTION;
    bool is_fused = arch_has(r, i_layer, TENSOR_ATTN_QKV) && !arch_has(r, i_layer, TENSOR_ATTN_Q);
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_NORM);
    if (!status)
        status = is_fused ? fused_qkv(r, i_layer, out)
                          : ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_Q, TENSOR_ATTN_K, TENSOR_ATTN_V,
                                      OPTIONAL(TENSOR_ATTN_Q_BIAS), OPTIONAL(TENSOR_ATTN_K_BIAS),
                                      OPTIONAL(TENSOR_ATTN_V_BIAS));
    return status ? status : ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_OUTPUT, OPTIONAL(TENSOR_ATTN_OUTPUT_BIAS));
}

/* Architectures that have another name for this norm have read it already. */
static int ffn_norm(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    return out->ffn_norm ? FR_OK : ARCH_TAKE(r, i_layer, out, TENSOR_FFN_NORM);
}

int arch_dense(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->ffn = FFN_DENSE;
    int status = ffn_norm(r, i_layer, out);
    if (status) return status;
    return ARCH_TAKE(r, i_layer, out, TENSOR_FFN_GATE, TENSOR_FFN_UP, TENSOR_FFN_DOWN, OPTIONAL(TENSOR_FFN_GATE_BIAS),
                     OPTIONAL(TENSOR_FFN_UP_BIAS), OPTIONAL(TENSOR_FFN_DOWN_BIAS));
}

int arch_routed(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    out->ffn = FFN_EXPERTS;
    out->n_expert_used = h->n_expert_used;
    out->router_gate = h->router_gate;
    out->keeps_probabilities = h->keeps_probabilities;
    out->expert_scale = h->expert_scale;
    int status = ffn_norm(r, i_layer, out);
    bool is_fused = arch_has(r, i_layer, TENSOR_EXPERT_GATE_UP) && !arch_has(r, i_layer, TENSOR_EXPERT_GATE);
    if (!status) status = ARCH_TAKE(r, i_layer, out, TENSOR_ROUTER, TENSOR_EXPERT_DOWN);
    if (!status)
        status = is_fused ? arch_split_experts(r, i_layer, out)
                          : ARCH_TAKE(r, i_layer, out, TENSOR_EXPERT_GATE, TENSOR_EXPERT_UP);
    return status;
}

int arch_experts(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_routed(r, i_layer, out);
    if (status || arch_hparams(r)->n_ff_shared == 0) return status;
    return ARCH_TAKE(r, i_layer, out, TENSOR_SHARED_GATE, TENSOR_SHARED_UP, TENSOR_SHARED_DOWN,
                     OPTIONAL(TENSOR_SHARED_ROUTER));
}

static const char window_pattern[] = "attention.sliding_window_pattern";

void arch_window(const ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int32_t period = h->window_period;
    bool is_due = period == 0 || i_layer % period < period - 1;
    if (h->window == 0 || !arch_number_of_layer(r, window_pattern, i_layer, is_due)) return;
    out->mixer = MIXER_WINDOW;
    out->window = h->window;
    out->i_rope = h->local_rope_base > 0 ? 1 : 0;
}

/* ---- keys ------------------------------------------------------------------------------------------- */

/* Reads how the router makes probabilities. A softmax over the chosen experts equals their shares of a softmax over
 * all. */
static void gate_keys(KeyReader *r, Hparams *h) {
    enum { UNKNOWN, SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN };
    int32_t gate = key_int(r, "expert_gating_func", UNKNOWN, UNKNOWN, SOFTMAX_OF_CHOSEN);
    h->has_router_gate = gate != UNKNOWN;
    if (h->has_router_gate) h->router_gate = gate == SIGMOID ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
    if (gate == SOFTMAX_OF_CHOSEN) h->keeps_probabilities = false;
}

void arch_expert_keys(KeyReader *r, Hparams *h) {
    h->n_expert = key_int(r, "expert_count", 0, 0, MODEL_MAX_EXPERTS);
    if (h->n_expert == 0) {
        keys_without_meaning(r, "expert_");
        return;
    }
    int64_t most = h->n_expert < MODEL_MAX_EXPERTS_USED ? h->n_expert : MODEL_MAX_EXPERTS_USED;
    h->n_expert_used = key_int(r, "expert_used_count", -1, 1, most);
    h->n_ff_expert = key_int(r, "expert_feed_forward_length", h->n_ff, 1, 1 << 20);
    h->n_ff_shared = key_int(r, "expert_shared_feed_forward_length", 0, 0, 1 << 20);
    h->expert_scale = (float)key_float(r, "expert_weights_scale", 1, 0, 1e4);
    h->keeps_probabilities = !key_bool(r, "expert_weights_norm", !h->keeps_probabilities);
    gate_keys(r, h);
}

void arch_no_expert_keys(KeyReader *r, const Hparams *h) {
    if (key_int(r, "expert_count", 0, 0, 1 << 20) > 0)
        key_fail(r, FR_ERR_UNSUPPORTED, "experts are not part of architecture %s as forerun knows it",
                 arch_find(h->arch)->name);
}

void arch_window_keys(KeyReader *r, Hparams *h, int32_t window, int32_t period) {
    h->window = key_int(r, "attention.sliding_window", window, 0, 1 << 28);
    h->window_period = period;
    if (key_is_list(r, window_pattern)) key_check_list(r, window_pattern, h->n_layer, 0, 1);
    else h->window_period = key_int(r, window_pattern, period, 0, 1024);
}

void arch_temperature_keys(KeyReader *r, Hparams *h, int32_t length) {
    double scale = key_float(r, "attention.temperature_scale", 0, 0, 1e3);
    if (scale <= 0) {
        keys_without_meaning(r, "attention.temperature_length");
        return;
    }
    length = key_int(r, "attention.temperature_length", length > 0 ? length : -1, 1, 1 << 28);
    h->temperature = (AttnTemperature){.scale = (float)scale, .length = length};
}

void arch_divide_yarn(Hparams *h, double m) {
    if (h->rope.scaling == ROPE_SCALING_YARN && !h->rope.names_magnitude)
        h->rope.magnitude /= rope_yarn_magnitude(h->rope.factor, m);
}

void arch_nextn_keys(KeyReader *r, Hparams *h) {
    h->may_have_nextn = true;
    h->n_nextn = key_int(r, "nextn_predict_layers", 0, 0, h->n_layer - 1);
    h->n_layer -= h->n_nextn;
}
