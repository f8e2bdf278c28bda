/* convert_arch.c - the architectures that can be converted.
 *
 * A new one is a table of its tensors and a row in the list below. Its layers must be described in src/model/arch_NAME.c,
 * too, if forerun is to run it. */
#include "convert/convert_arch.h"

#include "format/printable.h"

#include <stdio.h>
#include <string.h>

#define LAYER(name) "model.layers.%d." name
#define BLOCK(name) "blk.%d." name

/* What all of the llama family have, and their dense feed-forward part. The LM head is optional: where it is missing, it is
 * the embedding. */
#define MODEL_TENSORS \
    {"model.embed_tokens.weight", "token_embd.weight", SIZE_EMBD, SIZE_VOCAB, false, FORM_SAME}, \
        {"model.norm.weight", "output_norm.weight", SIZE_EMBD, SIZE_NONE, false, FORM_SAME}, \
        {"lm_head.weight", "output.weight", SIZE_EMBD, SIZE_VOCAB, true, FORM_SAME}, { \
        LAYER("input_layernorm.weight"), BLOCK("attn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, FORM_SAME \
    }
#define SELF_ATTENTION \
    {LAYER("self_attn.q_proj.weight"), BLOCK("attn_q.weight"), SIZE_EMBD, SIZE_Q, false, FORM_ROTATED}, \
        {LAYER("self_attn.k_proj.weight"), BLOCK("attn_k.weight"), SIZE_EMBD, SIZE_KV, false, FORM_ROTATED}, \
        {LAYER("self_attn.v_proj.weight"), BLOCK("attn_v.weight"), SIZE_EMBD, SIZE_KV, false, FORM_SAME}, { \
        LAYER("self_attn.o_proj.weight"), BLOCK("attn_output.weight"), SIZE_Q, SIZE_EMBD, false, FORM_SAME \
    }
#define ATTENTION_TENSORS \
    MODEL_TENSORS, SELF_ATTENTION, { \
        LAYER("post_attention_layernorm.weight"), BLOCK("ffn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, FORM_SAME \
    }
#define DENSE_TENSORS \
    {LAYER("mlp.gate_proj.weight"), BLOCK("ffn_gate.weight"), SIZE_EMBD, SIZE_FF, false, FORM_SAME}, \
        {LAYER("mlp.up_proj.weight"), BLOCK("ffn_up.weight"), SIZE_EMBD, SIZE_FF, false, FORM_SAME}, { \
        LAYER("mlp.down_proj.weight"), BLOCK("ffn_down.weight"), SIZE_FF, SIZE_EMBD, false, FORM_SAME \
    }
#define BIASES(optional) \
    {LAYER("self_attn.q_proj.bias"), BLOCK("attn_q.bias"), SIZE_Q, SIZE_NONE, optional, FORM_ROTATED}, \
        {LAYER("self_attn.k_proj.bias"), BLOCK("attn_k.bias"), SIZE_KV, SIZE_NONE, optional, FORM_ROTATED}, { \
        LAYER("self_attn.v_proj.bias"), BLOCK("attn_v.bias"), SIZE_KV, SIZE_NONE, optional, FORM_SAME \
    }
#define HEAD_NORMS \
    {LAYER("self_attn.q_norm.weight"), BLOCK("attn_q_norm.weight"), SIZE_HEAD, SIZE_NONE, false, FORM_SAME}, { \
        LAYER("self_attn.k_norm.weight"), BLOCK("attn_k_norm.weight"), SIZE_HEAD, SIZE_NONE, false, FORM_SAME \
    }
/* The router and the experts, whose names differ. */
#define EXPERT_TENSORS(part, gate, up, down) \
    {LAYER(part ".gate.weight"), BLOCK("ffn_gate_inp.weight"), SIZE_EMBD, SIZE_EXPERTS, false, FORM_SAME}, \
        {LAYER(part ".experts.%d." gate), BLOCK("ffn_gate_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false, FORM_SAME}, \
        {LAYER(part ".experts.%d." up), BLOCK("ffn_up_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false, FORM_SAME}, { \
        LAYER(part ".experts.%d." down), BLOCK("ffn_down_exps.weight"), SIZE_EXPERT_FF, SIZE_EMBD, false, FORM_SAME \
    }
#define QWEN_EXPERTS EXPERT_TENSORS("mlp", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
#define SHARED(name) LAYER("mlp.shared_expert" name)

#define SHARED_EXPERT \
    {SHARED("_gate.weight"), BLOCK("ffn_gate_inp_shexp.weight"), SIZE_EMBD, SIZE_ONE, false, FORM_SAME}, \
        {SHARED(".gate_proj.weight"), BLOCK("ffn_gate_shexp.weight"), SIZE_EMBD, SIZE_SHARED_FF, false, FORM_SAME}, \
        {SHARED(".up_proj.weight"), BLOCK("ffn_up_shexp.weight"), SIZE_EMBD, SIZE_SHARED_FF, false, FORM_SAME}, { \
        SHARED(".down_proj.weight"), BLOCK("ffn_down_shexp.weight"), SIZE_SHARED_FF, SIZE_EMBD, false, FORM_SAME \
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
    MODEL_TENSORS, SELF_ATTENTION, DENSE_TENSORS, {LAYER("post_attention_layernorm.weight"), \
                                                   BLOCK("post_attention_norm.weight"), \
                                                   SIZE_EMBD, \
                                                   SIZE_NONE, \
                                                   false, \
                                                   FORM_SAME}, \
        {LAYER("pre_feedforward_layernorm.weight"), BLOCK("ffn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, FORM_SAME}, \
    { \
        LAYER("post_feedforward_layernorm.weight"), BLOCK("post_ffw_norm.weight"), SIZE_EMBD, SIZE_NONE, false, \
            FORM_SAME \
    }
static const ConvertTensor gemma2_tensors[] = {GEMMA_TENSORS, {.from = NULL}};
static const ConvertTensor gemma3_tensors[] = {GEMMA_TENSORS, HEAD_NORMS, {.from = NULL}};
static const ConvertTensor phi3_tensors[] = {
    MODEL_TENSORS,
    {LAYER("self_attn.qkv_proj.weight"), BLOCK("attn_qkv.weight"), SIZE_EMBD, SIZE_QKV, false, FORM_SAME},
    {LAYER("self_attn.o_proj.weight"), BLOCK("attn_output.weight"), SIZE_Q, SIZE_EMBD, false, FORM_SAME},
    {LAYER("post_attention_layernorm.weight"), BLOCK("ffn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, FORM_SAME},
    {LAYER("mlp.gate_up_proj.weight"), BLOCK("ffn_up.weight"), SIZE_EMBD, SIZE_GATE_UP, false, FORM_SAME},
    {LAYER("mlp.down_proj.weight"), BLOCK("ffn_down.weight"), SIZE_FF, SIZE_EMBD, false, FORM_SAME},
    {.from = NULL},
};

/* Recurrent layers, and attention whose queries come with gates; the norm before the feed-forward part has the name that it has in
 * Gemma's files behind attention. */
#define LINEAR(name) LAYER("linear_attn." name)
#define HYBRID_TENSORS \
    MODEL_TENSORS, {LAYER("post_attention_layernorm.weight"), \
                    BLOCK("post_attention_norm.weight"), \
                    SIZE_EMBD, \
                    SIZE_NONE, \
                    false, \
                    FORM_SAME}, \
        {LAYER("self_attn.q_proj.weight"), BLOCK("attn_q.weight"), SIZE_EMBD, SIZE_Q_AND_GATES, false, FORM_SAME}, \
        {LAYER("self_attn.k_proj.weight"), BLOCK("attn_k.weight"), SIZE_EMBD, SIZE_KV, false, FORM_SAME}, \
        {LAYER("self_attn.v_proj.weight"), BLOCK("attn_v.weight"), SIZE_EMBD, SIZE_KV, false, FORM_SAME}, \
        {LAYER("self_attn.o_proj.weight"), BLOCK("attn_output.weight"), SIZE_Q, SIZE_EMBD, false, FORM_SAME}, \
        HEAD_NORMS, { \
        LINEAR("norm.weight"), BLOCK("ssm_norm.weight"), SIZE_DELTA_HEAD, SIZE_NONE, false, FORM_SAME \
    }
static const ConvertTensor qwen3next_tensors[] = {
    HYBRID_TENSORS,
    {LINEAR("in_proj_qkvz.weight"), BLOCK("attn_qkv.weight"), SIZE_EMBD, SIZE_DELTA_CHANNELS, false, FORM_QKV_OF_QKVZ},
    {LINEAR("in_proj_qkvz.weight"), BLOCK("attn_gate.weight"), SIZE_EMBD, SIZE_DELTA_VALUES, false, FORM_Z_OF_QKVZ},
    {LINEAR("in_proj_ba.weight"), BLOCK("ssm_ba.weight"), SIZE_EMBD, SIZE_DELTA_GATES, false, FORM_SAME},
    {LINEAR("conv1d.weight"), BLOCK("ssm_conv1d.weight"), SIZE_CONV, SIZE_DELTA_CHANNELS, false, FORM_CONV},
    {LINEAR("dt_bias"), BLOCK("ssm_dt.bias"), SIZE_DELTA_HEADS, SIZE_NONE, false, FORM_SAME},
    {LINEAR("A_log"), BLOCK("ssm_a"), SIZE_DELTA_HEADS, SIZE_NONE, false, FORM_DECAY},
    {LINEAR("out_proj.weight"), BLOCK("ssm_out.weight"), SIZE_DELTA_VALUES, SIZE_EMBD, false, FORM_SAME},
    QWEN_EXPERTS,
    SHARED_EXPERT,
    {.from = NULL},
};
#define QWEN35_TENSORS \
    HYBRID_TENSORS, \
        {LINEAR("in_proj_qkv.weight"), BLOCK("attn_qkv.weight"), SIZE_EMBD, SIZE_DELTA_CHANNELS, false, FORM_QKV}, \
        {LINEAR("in_proj_z.weight"), BLOCK("attn_gate.weight"), SIZE_EMBD, SIZE_DELTA_VALUES, false, FORM_VALUES}, \
        {LINEAR("in_proj_b.weight"), BLOCK("ssm_beta.weight"), SIZE_EMBD, SIZE_DELTA_HEADS, false, FORM_HEADS}, \
        {LINEAR("in_proj_a.weight"), BLOCK("ssm_alpha.weight"), SIZE_EMBD, SIZE_DELTA_HEADS, false, FORM_HEADS}, \
        {LINEAR("conv1d.weight"), BLOCK("ssm_conv1d.weight"), SIZE_CONV, SIZE_DELTA_CHANNELS, false, FORM_QKV_CONV}, \
        {LINEAR("dt_bias"), BLOCK("ssm_dt.bias"), SIZE_DELTA_HEADS, SIZE_NONE, false, FORM_HEADS}, \
        {LINEAR("A_log"), BLOCK("ssm_a"), SIZE_DELTA_HEADS, SIZE_NONE, false, FORM_HEADS_DECAY}, { \
        LINEAR("out_proj.weight"), BLOCK("ssm_out.weight"), SIZE_DELTA_VALUES, SIZE_EMBD, false, FORM_VALUE_INPUTS \
    }
static const ConvertTensor qwen35_tensors[] = {QWEN35_TENSORS, DENSE_TENSORS, {.from = NULL}};
static const ConvertTensor qwen35moe_tensors[] = {
    QWEN35_TENSORS,
    {LAYER("mlp.gate.weight"), BLOCK("ffn_gate_inp.weight"), SIZE_EMBD, SIZE_EXPERTS, false, FORM_SAME},
    {LAYER("mlp.experts.gate_up_proj"), BLOCK("ffn_gate_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false,
     FORM_FIRST_HALF},
    {LAYER("mlp.experts.gate_up_proj"), BLOCK("ffn_up_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false,
     FORM_SECOND_HALF},
    {LAYER("mlp.experts.down_proj"), BLOCK("ffn_down_exps.weight"), SIZE_EXPERT_FF, SIZE_EMBD, false, FORM_STACKED},
    SHARED_EXPERT,
    {.from = NULL},
};

#define OSS_TENSORS \
    MODEL_TENSORS, {LAYER("post_attention_layernorm.weight"), \
                    BLOCK("post_attention_norm.weight"), \
                    SIZE_EMBD, \
                    SIZE_NONE, \
                    false, \
                    FORM_SAME}, \
        SELF_ATTENTION, BIASES(false), \
        {LAYER("self_attn.o_proj.bias"), BLOCK("attn_output.bias"), SIZE_EMBD, SIZE_NONE, false, FORM_SAME}, \
        {LAYER("self_attn.sinks"), BLOCK("attn_sinks.weight"), SIZE_HEADS, SIZE_NONE, false, FORM_SAME}, \
        {LAYER("mlp.router.weight"), BLOCK("ffn_gate_inp.weight"), SIZE_EMBD, SIZE_EXPERTS, false, FORM_SAME}, \
        {LAYER("mlp.router.bias"), BLOCK("ffn_gate_inp.bias"), SIZE_EXPERTS, SIZE_NONE, false, FORM_SAME}, \
        {LAYER("mlp.experts.gate_up_proj_bias"), \
         BLOCK("ffn_gate_exps.bias"), \
         SIZE_EXPERT_FF, \
         SIZE_EXPERTS, \
         false, \
         FORM_EVEN}, \
        {LAYER("mlp.experts.gate_up_proj_bias"), \
         BLOCK("ffn_up_exps.bias"), \
         SIZE_EXPERT_FF, \
         SIZE_EXPERTS, \
         false, \
         FORM_ODD}, \
    { \
        LAYER("mlp.experts.down_proj_bias"), BLOCK("ffn_down_exps.bias"), SIZE_EMBD, SIZE_EXPERTS, false, FORM_TABLE \
    }
static const ConvertTensor gpt_oss_tensors[] = {
    OSS_TENSORS,
    {LAYER("mlp.experts.gate_up_proj"), BLOCK("ffn_gate_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false,
     FORM_EVEN_COLUMNS},
    {LAYER("mlp.experts.gate_up_proj"), BLOCK("ffn_up_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false,
     FORM_ODD_COLUMNS},
    {LAYER("mlp.experts.down_proj"), BLOCK("ffn_down_exps.weight"), SIZE_EXPERT_FF, SIZE_EMBD, false, FORM_TRANSPOSED},
    {.from = NULL},
};
static const ConvertTensor gpt_oss_packed_tensors[] = {
    OSS_TENSORS,
    {LAYER("mlp.experts.gate_up_proj"), BLOCK("ffn_gate_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false,
     FORM_PACKED_EVEN},
    {LAYER("mlp.experts.gate_up_proj"), BLOCK("ffn_up_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false, FORM_PACKED_ODD},
    {LAYER("mlp.experts.down_proj"), BLOCK("ffn_down_exps.weight"), SIZE_EXPERT_FF, SIZE_EMBD, false, FORM_PACKED},
    {.from = NULL},
};

/* ---- keys of single architectures ---------------------------------------------------------------------- */

static int granite_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    static const struct {
        const char *from, *to;
    } factors[] = {
        {"embedding_multiplier", "granite.embedding_scale"},
        {"residual_multiplier", "granite.residual_scale"},
        {"logits_scaling", "granite.logit_scale"},
        {"attention_multiplier", "granite.attention.scale"},
    };
    (void)s;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        const json_t *v = json_object_get(c->config, factors[i].from);
        double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= 1e-6 && x <= 1e6))
            return error_set(err, FR_ERR_FORMAT, "%s/config.json: %s must be a number from 1e-06 to 1e+06", c->folder,
                             factors[i].from);
        gguf_set_f32(w, factors[i].to, (float)x);
    }
    return FR_OK;
}

/* The file does not say which layers rotate: of four, the last does not. */
static int smollm3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    const json_t *rotates = json_object_get(c->config, "no_rope_layers"), *one; /* 1: it does, despite the name */
    size_t i;
    (void)s, (void)w;
    bool is_usual = true;
    json_array_foreach(rotates, i, one) is_usual = is_usual && (json_integer_value(one) != 0) == (i % 4 != 3);
    const json_t *interval = json_object_get(c->config, "no_rope_layer_interval");
    if (!rotates && interval && json_integer_value(interval) != 4) is_usual = false;
    return is_usual ? FR_OK
                    : (int)error_set(err, FR_ERR_UNSUPPORTED,
                                     "%s/config.json: no_rope_layers names others than each fourth layer, which is not "
                                     "supported",
                                     c->folder);
}

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
     .keys = granite_keys},
    {.published = "SmolLM3ForCausalLM",
     .name = "smollm3",
     .tensors = llama_tensors,
     .rotates_pairs = true,
     .keys = smollm3_keys},
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
     .is_hybrid = true,
     .adds_1_to_norms = true,
     .usual = {.head_dim = 256, .rotated_part = 0.25}},
    {.published = "Qwen3_5ForConditionalGeneration Qwen3_5ForCausalLM",
     .name = "qwen35",
     .tensors = qwen35_tensors,
     .is_hybrid = true,
     .has_text_part = true,
     .adds_1_to_norms = true,
     .usual = {.head_dim = 256, .rotated_part = 0.25}},
    {.published = "Qwen3_5MoeForConditionalGeneration Qwen3_5MoeForCausalLM",
     .name = "qwen35moe",
     .tensors = qwen35moe_tensors,
     .experts = EXPERTS_ALWAYS_SUM_TO_1,
     .is_hybrid = true,
     .has_text_part = true,
     .adds_1_to_norms = true,
     .usual = {.head_dim = 256, .rotated_part = 0.25}},
    {.published = "GptOssForCausalLM",
     .name = "gpt-oss",
     .tensors = gpt_oss_tensors,
     .packed = gpt_oss_packed_tensors,
     .experts = EXPERTS_SUM_TO_1,
     .keys = convert_gpt_oss_keys,
     .has_window = true,
     .usual = {.head_dim = 64, .rope_base = 150000}},
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

const ConvertArch *convert_arch_find(const HubFolder *c, fr_error *err) {
    const char *name = json_string_value(json_array_get(json_object_get(c->config, "architectures"), 0));
    char list[800] = "";
    Printable p;
    if (!name) {
        error_set(err, FR_ERR_FORMAT, "%s/config.json: names no architecture", c->folder);
        return NULL;
    }
    for (const ConvertArch *a = archs; a->published; a++) {
        if (is_among(a->published, name)) return a;
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", n ? " " : "", a->published);
    }
    error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: the architecture %s cannot be converted; these can: %s",
              c->folder, printable(&p, name, strlen(name)), list);
    return NULL;
}

int64_t convert_size(const ConvertShape *s, ConvertSize size) {
    switch (size) {
    case SIZE_EMBD: return s->n_embd;
    case SIZE_Q: return s->n_head * s->head_dim;
    case SIZE_KV: return s->n_head_kv * s->head_dim;
    case SIZE_QKV: return (s->n_head + 2 * s->n_head_kv) * s->head_dim;
    case SIZE_FF: return s->n_ff;
    case SIZE_GATE_UP: return 2 * s->n_ff;
    case SIZE_HEAD: return s->head_dim;
    case SIZE_VOCAB: return s->n_vocab;
    case SIZE_EXPERTS: return s->n_expert;
    case SIZE_EXPERT_FF: return s->n_ff_expert ? s->n_ff_expert : s->n_ff;
    case SIZE_SHARED_FF: return s->n_ff_shared;
    case SIZE_ONE: return 1;
    case SIZE_HEADS: return s->n_head;
    case SIZE_Q_AND_GATES: return 2 * s->n_head * s->head_dim;
    case SIZE_DELTA_CHANNELS: return (2 * s->n_key_heads + s->n_value_heads) * s->delta_dim;
    case SIZE_DELTA_VALUES: return s->n_value_heads * s->delta_dim;
    case SIZE_DELTA_HEADS: return s->n_value_heads;
    case SIZE_DELTA_GATES: return 2 * s->n_value_heads;
    case SIZE_DELTA_HEAD: return s->delta_dim;
    case SIZE_CONV: return s->n_conv;
    case SIZE_NONE: break;
    }
    return 0;
}
