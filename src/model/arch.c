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

static int attention(ArchReader *r, int32_t i_layer, int64_t q_rows, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int64_t embd = h->n_embd, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    out->mixer = MIXER_ATTENTION;
    int status = arch_vector(r, i_layer, "attn_norm.weight", embd, false, &out->attn_norm);
    if (!status) status = arch_matrix(r, i_layer, "attn_q.weight", embd, q_rows, false, &out->matrices[MATRIX_Q]);
    if (!status) status = arch_matrix(r, i_layer, "attn_k.weight", embd, kv_dim, false, &out->matrices[MATRIX_K]);
    if (!status) status = arch_matrix(r, i_layer, "attn_v.weight", embd, kv_dim, false, &out->matrices[MATRIX_V]);
    return status ? status
                  : arch_matrix(r, i_layer, "attn_output.weight", q_dim, embd, false, &out->matrices[MATRIX_O]);
}

int arch_attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    return attention(r, i_layer, hparams_q_dim(arch_hparams(r)), out);
}

int arch_gated_attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->gates_output = true;
    return attention(r, i_layer, 2 * hparams_q_dim(arch_hparams(r)), out);
}

/* Where the architecture names it otherwise, it has been read. */
static int ffn_norm(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    if (out->ffn_norm) return FR_OK;
    return arch_vector(r, i_layer, "ffn_norm.weight", arch_hparams(r)->n_embd, false, &out->ffn_norm);
}

int arch_qkv_biases(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_vector(r, i_layer, "attn_q.bias", hparams_q_dim(h), true, &out->q_bias);
    if (!status) status = arch_vector(r, i_layer, "attn_k.bias", hparams_kv_dim(h), true, &out->k_bias);
    return status ? status : arch_vector(r, i_layer, "attn_v.bias", hparams_kv_dim(h), true, &out->v_bias);
}

int arch_head_norms(ArchReader *r, int32_t i_layer, bool optional, LayerSpec *out) {
    int32_t n = arch_hparams(r)->head_dim;
    int status = arch_vector(r, i_layer, "attn_q_norm.weight", n, optional, &out->q_norm);
    return status ? status : arch_vector(r, i_layer, "attn_k_norm.weight", n, optional, &out->k_norm);
}

int arch_dense(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    out->ffn = FFN_DENSE;
    int status = ffn_norm(r, i_layer, out);
    if (!status)
        status = arch_matrix(r, i_layer, "ffn_gate.weight", h->n_embd, h->n_ff, false, &out->matrices[MATRIX_GATE]);
    if (!status)
        status = arch_matrix(r, i_layer, "ffn_up.weight", h->n_embd, h->n_ff, false, &out->matrices[MATRIX_UP]);
    return status ? status
                  : arch_matrix(r, i_layer, "ffn_down.weight", h->n_ff, h->n_embd, false, &out->matrices[MATRIX_DOWN]);
}

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

static int shared_expert(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int64_t n = h->n_ff_shared;
    if (n == 0) return FR_OK;
    int status = arch_matrix(r, i_layer, "ffn_gate_shexp.weight", h->n_embd, n, false,
                             &out->matrices[MATRIX_SHARED_GATE]);
    if (!status)
        status = arch_matrix(r, i_layer, "ffn_up_shexp.weight", h->n_embd, n, false, &out->matrices[MATRIX_SHARED_UP]);
    if (!status)
        status = arch_matrix(r, i_layer, "ffn_down_shexp.weight", n, h->n_embd, false,
                             &out->matrices[MATRIX_SHARED_DOWN]);
    return status ? status : arch_vector(r, i_layer, "ffn_gate_inp_shexp.weight", h->n_embd, true, &out->shared_router);
}

int arch_experts(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int64_t embd = h->n_embd, n = h->n_ff_expert;
    out->ffn = FFN_EXPERTS;
    out->n_expert_used = h->n_expert_used;
    int status = ffn_norm(r, i_layer, out);
    if (!status)
        status = arch_matrix(r, i_layer, "ffn_gate_inp.weight", embd, h->n_expert, false,
                             &out->matrices[MATRIX_ROUTER]);
    if (!status)
        status = arch_expert_matrices(r, i_layer, "ffn_gate_exps.weight", embd, n, &out->matrices[MATRIX_EXPERT_GATE]);
    if (!status)
        status = arch_expert_matrices(r, i_layer, "ffn_up_exps.weight", embd, n, &out->matrices[MATRIX_EXPERT_UP]);
    if (!status)
        status = arch_expert_matrices(r, i_layer, "ffn_down_exps.weight", n, embd, &out->matrices[MATRIX_EXPERT_DOWN]);
    return status ? status : shared_expert(r, i_layer, out);
}

void arch_window(const ArchReader *r, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    if (h->window == 0) return;
    out->mixer = MIXER_WINDOW;
    out->window = h->window;
    out->i_rope = h->local_rope_base > 0 ? 1 : 0;
}
