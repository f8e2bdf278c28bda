/* convert_arch.c - the architectures that can be converted.
 *
 * A new one is a table of its tensors and a row in the list below. Its layers must be described in
 * src/model/arch_llama.c or a file beside it, too, if forerun is to run it. */
#include "cli/convert/convert_arch.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

#define LAYER(name) "model.layers.%d." name

/* What all of the llama family have, and their dense feed-forward part. The LM head is optional: where it is
 * missing, it is the embedding. */
#define MODEL_TENSORS \
    {"model.embed_tokens.weight", TENSOR_TOKEN_EMBD, false, FORM_SAME}, \
        {"model.norm.weight", TENSOR_OUTPUT_NORM, false, FORM_SAME}, \
        {"lm_head.weight", TENSOR_OUTPUT, true, FORM_SAME}, { \
        LAYER("input_layernorm.weight"), TENSOR_ATTN_NORM, false, FORM_SAME \
    }
#define SELF_ATTENTION \
    {LAYER("self_attn.q_proj.weight"), TENSOR_ATTN_Q, false, FORM_ROTATED}, \
        {LAYER("self_attn.k_proj.weight"), TENSOR_ATTN_K, false, FORM_ROTATED}, \
        {LAYER("self_attn.v_proj.weight"), TENSOR_ATTN_V, false, FORM_SAME}, { \
        LAYER("self_attn.o_proj.weight"), TENSOR_ATTN_OUTPUT, false, FORM_SAME \
    }
#define ATTENTION_TENSORS \
    MODEL_TENSORS, SELF_ATTENTION, { LAYER("post_attention_layernorm.weight"), TENSOR_FFN_NORM, false, FORM_SAME }
#define DENSE_TENSORS \
    {LAYER("mlp.gate_proj.weight"), TENSOR_FFN_GATE, false, FORM_SAME}, \
        {LAYER("mlp.up_proj.weight"), TENSOR_FFN_UP, false, FORM_SAME}, { \
        LAYER("mlp.down_proj.weight"), TENSOR_FFN_DOWN, false, FORM_SAME \
    }
#define BIASES(optional) \
    {LAYER("self_attn.q_proj.bias"), TENSOR_ATTN_Q_BIAS, optional, FORM_ROTATED}, \
        {LAYER("self_attn.k_proj.bias"), TENSOR_ATTN_K_BIAS, optional, FORM_ROTATED}, { \
        LAYER("self_attn.v_proj.bias"), TENSOR_ATTN_V_BIAS, optional, FORM_SAME \
    }
#define HEAD_NORMS \
    {LAYER("self_attn.q_norm.weight"), TENSOR_ATTN_Q_NORM, false, FORM_SAME}, { \
        LAYER("self_attn.k_norm.weight"), TENSOR_ATTN_K_NORM, false, FORM_SAME \
    }
/* The router and the experts, whose names differ. */
#define EXPERT_TENSORS(part, gate, up, down) \
    {LAYER(part ".gate.weight"), TENSOR_ROUTER, false, FORM_SAME}, \
        {LAYER(part ".experts.%d." gate), TENSOR_EXPERT_GATE, false, FORM_SAME}, \
        {LAYER(part ".experts.%d." up), TENSOR_EXPERT_UP, false, FORM_SAME}, { \
        LAYER(part ".experts.%d." down), TENSOR_EXPERT_DOWN, false, FORM_SAME \
    }
#define QWEN_EXPERTS EXPERT_TENSORS("mlp", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
#define SHARED(name) LAYER("mlp.shared_expert" name)

#define SHARED_EXPERT \
    {SHARED("_gate.weight"), TENSOR_SHARED_ROUTER, false, FORM_ONE_ROW}, \
        {SHARED(".gate_proj.weight"), TENSOR_SHARED_GATE, false, FORM_SAME}, \
        {SHARED(".up_proj.weight"), TENSOR_SHARED_UP, false, FORM_SAME}, { \
        SHARED(".down_proj.weight"), TENSOR_SHARED_DOWN, false, FORM_SAME \
    }

static const ConvertTensor llama_tensors[] = {ATTENTION_TENSORS, DENSE_TENSORS, BIASES(true), {.from = NULL}};
static const ConvertTensor qwen2_tensors[] = {ATTENTION_TENSORS, DENSE_TENSORS, BIASES(false), {.from = NULL}};
static const ConvertTensor qwen3_tensors[] = {
    ATTENTION_TENSORS, DENSE_TENSORS, BIASES(true), HEAD_NORMS, {.from = NULL}};
static const ConvertTensor mixtral_tensors[] = {
    ATTENTION_TENSORS, EXPERT_TENSORS("block_sparse_moe", "w1.weight", "w3.weight", "w2.weight"), {.from = NULL}};
static const ConvertTensor qwen3moe_tensors[] = {ATTENTION_TENSORS, HEAD_NORMS, QWEN_EXPERTS, {.from = NULL}};
static const ConvertTensor qwen2moe_tensors[] = {
    ATTENTION_TENSORS, BIASES(false), QWEN_EXPERTS, SHARED_EXPERT, {.from = NULL},
};

#define GEMMA_TENSORS \
    MODEL_TENSORS, SELF_ATTENTION, DENSE_TENSORS, \
        {LAYER("post_attention_layernorm.weight"), TENSOR_POST_ATTN_NORM, false, FORM_SAME}, \
        {LAYER("pre_feedforward_layernorm.weight"), TENSOR_FFN_NORM, false, FORM_SAME}, { \
        LAYER("post_feedforward_layernorm.weight"), TENSOR_POST_FFN_NORM, false, FORM_SAME \
    }
static const ConvertTensor gemma2_tensors[] = {GEMMA_TENSORS, {.from = NULL}};
static const ConvertTensor gemma3_tensors[] = {GEMMA_TENSORS, HEAD_NORMS, {.from = NULL}};
static const ConvertTensor phi3_tensors[] = {
    MODEL_TENSORS,
    {LAYER("self_attn.qkv_proj.weight"), TENSOR_ATTN_QKV, false, FORM_SAME},
    {LAYER("self_attn.o_proj.weight"), TENSOR_ATTN_OUTPUT, false, FORM_SAME},
    {LAYER("post_attention_layernorm.weight"), TENSOR_FFN_NORM, false, FORM_SAME},
    {LAYER("mlp.gate_up_proj.weight"), TENSOR_FFN_GATE_UP, false, FORM_SAME},
    {LAYER("mlp.down_proj.weight"), TENSOR_FFN_DOWN, false, FORM_SAME},
    {.from = NULL},
};

/* Recurrent layers, and attention whose queries come with gates; the norm before the feed-forward part has the name
 * that it has in Gemma's files behind attention. */
#define LINEAR(name) LAYER("linear_attn." name)
#define HYBRID_TENSORS \
    MODEL_TENSORS, {LAYER("post_attention_layernorm.weight"), TENSOR_FFN_NORM_POST_ATTN, false, FORM_SAME}, \
        {LAYER("self_attn.q_proj.weight"), TENSOR_ATTN_Q_GATED, false, FORM_SAME}, \
        {LAYER("self_attn.k_proj.weight"), TENSOR_ATTN_K, false, FORM_SAME}, \
        {LAYER("self_attn.v_proj.weight"), TENSOR_ATTN_V, false, FORM_SAME}, \
        {LAYER("self_attn.o_proj.weight"), TENSOR_ATTN_OUTPUT, false, FORM_SAME}, HEAD_NORMS, { \
        LINEAR("norm.weight"), TENSOR_DELTA_NORM, false, FORM_SAME \
    }
static const ConvertTensor qwen3next_tensors[] = {
    HYBRID_TENSORS,
    {LINEAR("in_proj_qkvz.weight"), TENSOR_DELTA_QKV, false, FORM_QKV_OF_QKVZ},
    {LINEAR("in_proj_qkvz.weight"), TENSOR_DELTA_Z, false, FORM_Z_OF_QKVZ},
    {LINEAR("in_proj_ba.weight"), TENSOR_DELTA_BETA_ALPHA, false, FORM_SAME},
    {LINEAR("conv1d.weight"), TENSOR_STATE_CONV, false, FORM_CONV},
    {LINEAR("dt_bias"), TENSOR_DELTA_DT, false, FORM_SAME},
    {LINEAR("A_log"), TENSOR_DELTA_A, false, FORM_DECAY},
    {LINEAR("out_proj.weight"), TENSOR_STATE_OUT, false, FORM_SAME},
    QWEN_EXPERTS,
    SHARED_EXPERT,
    {.from = NULL},
};
#define QWEN35_TENSORS \
    HYBRID_TENSORS, {LINEAR("in_proj_qkv.weight"), TENSOR_DELTA_QKV, false, FORM_QKV}, \
        {LINEAR("in_proj_z.weight"), TENSOR_DELTA_Z, false, FORM_VALUES}, \
        {LINEAR("in_proj_b.weight"), TENSOR_DELTA_BETA, false, FORM_HEADS}, \
        {LINEAR("in_proj_a.weight"), TENSOR_DELTA_ALPHA, false, FORM_HEADS}, \
        {LINEAR("conv1d.weight"), TENSOR_STATE_CONV, false, FORM_QKV_CONV}, \
        {LINEAR("dt_bias"), TENSOR_DELTA_DT, false, FORM_HEADS}, \
        {LINEAR("A_log"), TENSOR_DELTA_A, false, FORM_HEADS_DECAY}, { \
        LINEAR("out_proj.weight"), TENSOR_STATE_OUT, false, FORM_VALUE_INPUTS \
    }
static const ConvertTensor qwen35_tensors[] = {QWEN35_TENSORS, DENSE_TENSORS, {.from = NULL}};
static const ConvertTensor qwen35moe_tensors[] = {
    QWEN35_TENSORS,
    {LAYER("mlp.gate.weight"), TENSOR_ROUTER, false, FORM_SAME},
    {LAYER("mlp.experts.gate_up_proj"), TENSOR_EXPERT_GATE, false, FORM_FIRST_HALF},
    {LAYER("mlp.experts.gate_up_proj"), TENSOR_EXPERT_UP, false, FORM_SECOND_HALF},
    {LAYER("mlp.experts.down_proj"), TENSOR_EXPERT_DOWN, false, FORM_STACKED},
    SHARED_EXPERT,
    {.from = NULL},
};

#define OSS_TENSORS \
    MODEL_TENSORS, {LAYER("post_attention_layernorm.weight"), TENSOR_FFN_NORM_POST_ATTN, false, FORM_SAME}, \
        SELF_ATTENTION, BIASES(false), {LAYER("self_attn.o_proj.bias"), TENSOR_ATTN_OUTPUT_BIAS, false, FORM_SAME}, \
        {LAYER("self_attn.sinks"), TENSOR_ATTN_SINKS, false, FORM_SAME}, \
        {LAYER("mlp.router.weight"), TENSOR_ROUTER, false, FORM_SAME}, \
        {LAYER("mlp.router.bias"), TENSOR_ROUTER_BIAS, false, FORM_SAME}, \
        {LAYER("mlp.experts.gate_up_proj_bias"), TENSOR_EXPERT_GATE_BIAS, false, FORM_EVEN}, \
        {LAYER("mlp.experts.gate_up_proj_bias"), TENSOR_EXPERT_UP_BIAS, false, FORM_ODD}, { \
        LAYER("mlp.experts.down_proj_bias"), TENSOR_EXPERT_DOWN_BIAS, false, FORM_TABLE \
    }
static const ConvertTensor gpt_oss_tensors[] = {
    OSS_TENSORS,
    {LAYER("mlp.experts.gate_up_proj"), TENSOR_EXPERT_GATE, false, FORM_EVEN_COLUMNS},
    {LAYER("mlp.experts.gate_up_proj"), TENSOR_EXPERT_UP, false, FORM_ODD_COLUMNS},
    {LAYER("mlp.experts.down_proj"), TENSOR_EXPERT_DOWN, false, FORM_TRANSPOSED},
    {.from = NULL},
};
static const ConvertTensor gpt_oss_packed_tensors[] = {
    OSS_TENSORS,
    {LAYER("mlp.experts.gate_up_proj"), TENSOR_EXPERT_GATE, false, FORM_PACKED_EVEN},
    {LAYER("mlp.experts.gate_up_proj"), TENSOR_EXPERT_UP, false, FORM_PACKED_ODD},
    {LAYER("mlp.experts.down_proj"), TENSOR_EXPERT_DOWN, false, FORM_PACKED},
    {.from = NULL},
};

/* Granite 4.0 H: layers with attention, and others of Mamba-2. What every token passes is shared_mlp, with experts
 * beside it or without. */
#define MAMBA(name) LAYER("mamba." name)
#define GRANITE_HYBRID_TENSORS(gate, up, down) \
    ATTENTION_TENSORS, {MAMBA("in_proj.weight"), TENSOR_MAMBA_IN, false, FORM_SAME}, \
        {MAMBA("conv1d.weight"), TENSOR_STATE_CONV, false, FORM_CONV}, \
        {MAMBA("conv1d.bias"), TENSOR_MAMBA_CONV_BIAS, true, FORM_SAME}, \
        {MAMBA("dt_bias"), TENSOR_MAMBA_DT, false, FORM_SAME}, \
        {MAMBA("A_log"), TENSOR_MAMBA_A, false, FORM_CUT_DECAY}, {MAMBA("D"), TENSOR_MAMBA_D, false, FORM_CUT}, \
        {MAMBA("norm.weight"), TENSOR_MAMBA_NORM, false, FORM_CUT}, \
        {MAMBA("out_proj.weight"), TENSOR_STATE_OUT, false, FORM_SAME}, \
        {LAYER("shared_mlp.input_linear.weight"), TENSOR_##gate, false, FORM_FIRST_ROWS}, \
        {LAYER("shared_mlp.input_linear.weight"), TENSOR_##up, false, FORM_SECOND_ROWS}, { \
        LAYER("shared_mlp.output_linear.weight"), TENSOR_##down, false, FORM_SAME \
    }
#define MOE(name) LAYER("block_sparse_moe." name)
static const ConvertTensor granite_dense_tensors[] = {GRANITE_HYBRID_TENSORS(FFN_GATE, FFN_UP, FFN_DOWN),
                                                      {.from = NULL}};
static const ConvertTensor granite_expert_tensors[] = {
    GRANITE_HYBRID_TENSORS(SHARED_GATE, SHARED_UP, SHARED_DOWN),
    {MOE("router.layer.weight"), TENSOR_ROUTER, false, FORM_SAME},
    {MOE("input_linear.weight"), TENSOR_EXPERT_GATE, false, FORM_FIRST_HALF},
    {MOE("input_linear.weight"), TENSOR_EXPERT_UP, false, FORM_SECOND_HALF},
    {MOE("output_linear.weight"), TENSOR_EXPERT_DOWN, false, FORM_STACKED},
    {.from = NULL},
};

/* What the families with Gated DeltaNet have in common. */
#define DELTA_NET \
    .recurrent = ".linear_attn.", .read = convert_delta_read, .keys = convert_delta_keys, .has_mtp = true, \
    .adds_1_to_norms = true, .usual = {.head_dim = 256, .rotated_part = 0.25}

static const ConvertArch archs[] = {
    {.published = "LlamaForCausalLM MistralForCausalLM",
     .name = "llama",
     .tensors = llama_tensors,
     .rotates_pairs = true},
    {.published = "MixtralForCausalLM",
     .name = "llama",
     .tensors = mixtral_tensors,
     .rotates_pairs = true,
     .experts = EXPERTS_SUM_TO_1},
    {.published = "Qwen2ForCausalLM", .name = "qwen2", .tensors = qwen2_tensors},
    {.published = "Qwen2MoeForCausalLM",
     .name = "qwen2moe",
     .tensors = qwen2moe_tensors,
     .experts = EXPERTS_KEEP_PROBABILITIES},
    {.published = "Qwen3ForCausalLM", .name = "qwen3", .tensors = qwen3_tensors},
    {.published = "Qwen3MoeForCausalLM", .name = "qwen3moe", .tensors = qwen3moe_tensors, .experts = EXPERTS_SUM_TO_1},
    {.published = "GraniteForCausalLM",
     .name = "granite",
     .tensors = llama_tensors,
     .rotates_pairs = true,
     .keys = convert_granite_keys},
    {.published = "SmolLM3ForCausalLM",
     .name = "smollm3",
     .tensors = llama_tensors,
     .rotates_pairs = true,
     .keys = convert_smollm3_keys},
    {.published = "Gemma2ForCausalLM",
     .name = "gemma2",
     .tensors = gemma2_tensors,
     .keys = convert_gemma2_keys,
     .has_window = true,
     .adds_1_to_norms = true,
     .usual = {.activation = "gelu_pytorch_tanh", .head_dim = 256, .is_tied = true}},
    {.published = "Gemma3ForCausalLM",
     .name = "gemma3",
     .tensors = gemma3_tensors,
     .keys = convert_gemma3_keys,
     .has_window = true,
     .adds_1_to_norms = true,
     .usual = {.activation = "gelu_pytorch_tanh", .rope_base = 1e6, .head_dim = 256, .is_tied = true}},
    {.published = "Phi3ForCausalLM",
     .name = "phi3",
     .tensors = phi3_tensors,
     .keys = convert_phi3_keys,
     .has_window = true,
     .usual = {.has_long_rope = true}},
    {.published = "Qwen3NextForCausalLM",
     .name = "qwen3next",
     .tensors = qwen3next_tensors,
     .experts = EXPERTS_SUM_TO_1,
     DELTA_NET},
    {.published = "Qwen3_5ForConditionalGeneration Qwen3_5ForCausalLM",
     .name = "qwen35",
     .tensors = qwen35_tensors,
     .has_text_part = true,
     DELTA_NET},
    {.published = "Qwen3_5MoeForConditionalGeneration Qwen3_5MoeForCausalLM",
     .name = "qwen35moe",
     .tensors = qwen35moe_tensors,
     .experts = EXPERTS_ALWAYS_SUM_TO_1,
     .has_text_part = true,
     DELTA_NET},
    {.published = "Lfm2ForCausalLM",
     .name = "lfm2",
     .tensors = convert_lfm2_tensors,
     .recurrent = ".conv.",
     .read = convert_lfm2_read,
     .keys = convert_lfm2_keys,
     .usual = {.rope_base = 1e6, .is_tied = true, .eps_key = "norm_eps", .ff_key = "block_ff_dim"}},
    {.published = "GraniteMoeHybridForCausalLM",
     .name = "granitehybrid",
     .tensors = granite_expert_tensors,
     .dense = granite_dense_tensors,
     .rotates_pairs = true,
     .experts = EXPERTS_SUM_TO_1,
     .recurrent = ".mamba.",
     .read = convert_granite_hybrid_read,
     .keys = convert_granite_hybrid_keys},
    {.published = "GptOssForCausalLM",
     .name = "gpt-oss",
     .tensors = gpt_oss_tensors,
     .packed = gpt_oss_packed_tensors,
     .experts = EXPERTS_SUM_TO_1,
     .keys = convert_gpt_oss_keys,
     .has_window = true,
     .usual = {.head_dim = 64, .rope_base = 150000}},
    CONVERT_DEEPSEEK_ARCHS,
    {.published = "Ministral3ForCausalLM",
     .name = "mistral3",
     .tensors = llama_tensors,
     .rotates_pairs = true,
     .keys = convert_mistral3_keys},
    {.published = "Mistral3ForConditionalGeneration",
     .text_type = "ministral3",
     .name = "mistral3",
     .tensors = llama_tensors,
     .rotates_pairs = true,
     .has_text_part = true,
     .keys = convert_mistral3_keys},
    {.published = "Mistral3ForConditionalGeneration",
     .text_type = "mistral",
     .name = "llama",
     .tensors = llama_tensors,
     .rotates_pairs = true,
     .has_text_part = true},
    {.published = "Llama4ForConditionalGeneration Llama4ForCausalLM",
     .name = "llama4",
     .tensors = convert_llama4_tensors,
     .experts = EXPERTS_KEEP_PROBABILITIES,
     .read = convert_llama4_read,
     .keys = convert_llama4_keys,
     .has = convert_llama4_has,
     .has_text_part = true,
     .usual = {.head_dim = 128, .rope_base = 5e5, .eps_key = "rms_norm_eps", .ff_key = "intermediate_size_mlp"}},
    {.published = "Lfm2MoeForCausalLM",
     .name = "lfm2moe",
     .tensors = convert_lfm2moe_tensors,
     .experts = EXPERTS_ALWAYS_SUM_TO_1,
     .recurrent = ".conv.",
     .read = convert_lfm2moe_read,
     .keys = convert_lfm2moe_keys,
     .has = convert_lfm2moe_has,
     .usual = {.rope_base = 1e6, .is_tied = true, .eps_key = "norm_eps"}},
    {.published = NULL},
};

const ConvertArch *convert_archs(void) { return archs; }

/* Whether `word` is one of the words of a list that is separated by spaces. */
static bool is_among(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; n > 0 && (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

/* Where several models are published under one name, the text's part of config.json tells which it is. */
static bool has_text_type(const HubFolder *c, const ConvertArch *a) {
    const char *type = json_string_value(json_object_get(json_object_get(c->config, "text_config"), "model_type"));
    return !a->text_type || (type && strcmp(type, a->text_type) == 0);
}

const ConvertArch *convert_arch_find(const HubFolder *c, fr_error *err) {
    const char *name = json_string_value(json_array_get(json_object_get(c->config, "architectures"), 0));
    char list[1000] = "";
    Printable p;
    if (!name) {
        error_set(err, FR_ERR_FORMAT, "%s/config.json: names no architecture", c->folder);
        return NULL;
    }
    for (const ConvertArch *a = archs; a->published; a++) {
        if (is_among(a->published, name) && has_text_type(c, a)) return a;
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", n ? " " : "", a->published);
    }
    error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: the architecture %s cannot be converted; these can: %s",
              c->folder, printable(&p, name, strlen(name)), list);
    return NULL;
}
