/* arch.c - the table of architectures, and the parts of a layer that most of them share. */
#include "model/arch.h"

#include <math.h>
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
    [ARCH_LLAMA4] = &arch_llama4,       [ARCH_LFM2MOE] = &arch_lfm2moe};

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

int arch_attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->mixer = MIXER_ATTENTION;
    return ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_NORM, TENSOR_ATTN_Q, TENSOR_ATTN_K, TENSOR_ATTN_V,
                     TENSOR_ATTN_OUTPUT);
}

int arch_qkv_biases(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    return ARCH_TAKE(r, i_layer, out, OPTIONAL(TENSOR_ATTN_Q_BIAS), OPTIONAL(TENSOR_ATTN_K_BIAS),
                     OPTIONAL(TENSOR_ATTN_V_BIAS));
}

/* The norm has been read already where the architecture has another name for it. */
static int ffn_norm(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    return out->ffn_norm ? FR_OK : ARCH_TAKE(r, i_layer, out, TENSOR_FFN_NORM);
}

int arch_dense(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->ffn = FFN_DENSE;
    int status = ffn_norm(r, i_layer, out);
    return status ? status : ARCH_TAKE(r, i_layer, out, TENSOR_FFN_GATE, TENSOR_FFN_UP, TENSOR_FFN_DOWN);
}

int arch_experts(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    out->ffn = FFN_EXPERTS;
    out->n_expert_used = h->n_expert_used;
    int status = ffn_norm(r, i_layer, out);
    if (!status)
        status = ARCH_TAKE(r, i_layer, out, TENSOR_ROUTER, TENSOR_EXPERT_GATE, TENSOR_EXPERT_UP, TENSOR_EXPERT_DOWN);
    if (status || h->n_ff_shared == 0) return status;
    return ARCH_TAKE(r, i_layer, out, TENSOR_SHARED_GATE, TENSOR_SHARED_UP, TENSOR_SHARED_DOWN,
                     OPTIONAL(TENSOR_SHARED_ROUTER));
}

void arch_window(const ArchReader *r, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    if (h->window == 0) return;
    out->mixer = MIXER_WINDOW;
    out->window = h->window;
    out->i_rope = h->local_rope_base > 0 ? 1 : 0;
}

/* ---- keys ------------------------------------------------------------------------------------------- */

void arch_expert_keys(KeyReader *r, Hparams *h) {
    h->n_expert = key_int(r, "expert_count", 0, 0, MODEL_MAX_EXPERTS);
    if (h->n_expert == 0) return;
    int64_t most = h->n_expert < MODEL_MAX_EXPERTS_USED ? h->n_expert : MODEL_MAX_EXPERTS_USED;
    h->n_expert_used = key_int(r, "expert_used_count", -1, 1, most);
    h->n_ff_expert = key_int(r, "expert_feed_forward_length", h->n_ff, 1, 1 << 20);
    h->n_ff_shared = key_int(r, "expert_shared_feed_forward_length", 0, 0, 1 << 20);
}

void arch_temperature_keys(KeyReader *r, Hparams *h, int32_t length) {
    double scale = key_float(r, "attention.temperature_scale", 0, 0, 1e3);
    if (scale <= 0) return;
    if (length == 0) length = key_int(r, "attention.temperature_length", -1, 1, 1 << 28);
    h->temperature = (AttnTemperature){.scale = (float)scale, .length = length};
}

void arch_divide_yarn(Hparams *h, double m) {
    if (h->rope.scaling == ROPE_SCALING_YARN && h->rope.factor > 1)
        h->rope.attn_factor /= 1 + 0.1 * m * log(h->rope.factor);
}

void arch_nextn_keys(KeyReader *r, Hparams *h) {
    h->n_nextn = key_int(r, "nextn_predict_layers", 0, 0, h->n_layer - 1);
    h->n_layer -= h->n_nextn;
}
