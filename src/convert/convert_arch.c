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
    {"model.embed_tokens.weight", "token_embd.weight", SIZE_EMBD, SIZE_VOCAB, false, false}, \
        {"model.norm.weight", "output_norm.weight", SIZE_EMBD, SIZE_NONE, false, false}, \
        {"lm_head.weight", "output.weight", SIZE_EMBD, SIZE_VOCAB, true, false}, { \
        LAYER("input_layernorm.weight"), BLOCK("attn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, false \
    }
#define SELF_ATTENTION \
    {LAYER("self_attn.q_proj.weight"), BLOCK("attn_q.weight"), SIZE_EMBD, SIZE_Q, false, true}, \
        {LAYER("self_attn.k_proj.weight"), BLOCK("attn_k.weight"), SIZE_EMBD, SIZE_KV, false, true}, \
        {LAYER("self_attn.v_proj.weight"), BLOCK("attn_v.weight"), SIZE_EMBD, SIZE_KV, false, false}, { \
        LAYER("self_attn.o_proj.weight"), BLOCK("attn_output.weight"), SIZE_Q, SIZE_EMBD, false, false \
    }
#define ATTENTION_TENSORS \
    MODEL_TENSORS, SELF_ATTENTION, { \
        LAYER("post_attention_layernorm.weight"), BLOCK("ffn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, false \
    }
#define DENSE_TENSORS \
    {LAYER("mlp.gate_proj.weight"), BLOCK("ffn_gate.weight"), SIZE_EMBD, SIZE_FF, false, false}, \
        {LAYER("mlp.up_proj.weight"), BLOCK("ffn_up.weight"), SIZE_EMBD, SIZE_FF, false, false}, { \
        LAYER("mlp.down_proj.weight"), BLOCK("ffn_down.weight"), SIZE_FF, SIZE_EMBD, false, false \
    }
#define BIASES(optional) \
    {LAYER("self_attn.q_proj.bias"), BLOCK("attn_q.bias"), SIZE_Q, SIZE_NONE, optional, true}, \
        {LAYER("self_attn.k_proj.bias"), BLOCK("attn_k.bias"), SIZE_KV, SIZE_NONE, optional, true}, { \
        LAYER("self_attn.v_proj.bias"), BLOCK("attn_v.bias"), SIZE_KV, SIZE_NONE, optional, false \
    }
#define HEAD_NORMS \
    {LAYER("self_attn.q_norm.weight"), BLOCK("attn_q_norm.weight"), SIZE_HEAD, SIZE_NONE, false, false}, { \
        LAYER("self_attn.k_norm.weight"), BLOCK("attn_k_norm.weight"), SIZE_HEAD, SIZE_NONE, false, false \
    }
/* The router and the experts, whose names differ. */
#define EXPERT_TENSORS(part, gate, up, down) \
    {LAYER(part ".gate.weight"), BLOCK("ffn_gate_inp.weight"), SIZE_EMBD, SIZE_EXPERTS, false, false}, \
        {LAYER(part ".experts.%d." gate), BLOCK("ffn_gate_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false, false}, \
        {LAYER(part ".experts.%d." up), BLOCK("ffn_up_exps.weight"), SIZE_EMBD, SIZE_EXPERT_FF, false, false}, { \
        LAYER(part ".experts.%d." down), BLOCK("ffn_down_exps.weight"), SIZE_EXPERT_FF, SIZE_EMBD, false, false \
    }
#define QWEN_EXPERTS EXPERT_TENSORS("mlp", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
#define SHARED(name) LAYER("mlp.shared_expert" name)

static const ConvertTensor llama_tensors[] = {ATTENTION_TENSORS, DENSE_TENSORS, BIASES(true), {.from = NULL}};
static const ConvertTensor qwen2_tensors[] = {ATTENTION_TENSORS, DENSE_TENSORS, BIASES(false), {.from = NULL}};
static const ConvertTensor qwen3_tensors[] = {
    ATTENTION_TENSORS, DENSE_TENSORS, BIASES(true), HEAD_NORMS, {.from = NULL}};
static const ConvertTensor mixtral_tensors[] = {
    ATTENTION_TENSORS, EXPERT_TENSORS("block_sparse_moe", "w1.weight", "w3.weight", "w2.weight"), {.from = NULL}};
static const ConvertTensor qwen3moe_tensors[] = {ATTENTION_TENSORS, HEAD_NORMS, QWEN_EXPERTS, {.from = NULL}};
static const ConvertTensor qwen2moe_tensors[] = {
    ATTENTION_TENSORS,
    BIASES(false),
    QWEN_EXPERTS,
    {SHARED("_gate.weight"), BLOCK("ffn_gate_inp_shexp.weight"), SIZE_EMBD, SIZE_ONE, false, false},
    {SHARED(".gate_proj.weight"), BLOCK("ffn_gate_shexp.weight"), SIZE_EMBD, SIZE_SHARED_FF, false, false},
    {SHARED(".up_proj.weight"), BLOCK("ffn_up_shexp.weight"), SIZE_EMBD, SIZE_SHARED_FF, false, false},
    {SHARED(".down_proj.weight"), BLOCK("ffn_down_shexp.weight"), SIZE_SHARED_FF, SIZE_EMBD, false, false},
    {.from = NULL},
};

#define GEMMA_TENSORS \
    MODEL_TENSORS, SELF_ATTENTION, DENSE_TENSORS, {LAYER("post_attention_layernorm.weight"), \
                                                   BLOCK("post_attention_norm.weight"), \
                                                   SIZE_EMBD, \
                                                   SIZE_NONE, \
                                                   false, \
                                                   false}, \
        {LAYER("pre_feedforward_layernorm.weight"), BLOCK("ffn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, false}, { \
        LAYER("post_feedforward_layernorm.weight"), BLOCK("post_ffw_norm.weight"), SIZE_EMBD, SIZE_NONE, false, false \
    }
static const ConvertTensor gemma2_tensors[] = {GEMMA_TENSORS, {.from = NULL}};
static const ConvertTensor gemma3_tensors[] = {GEMMA_TENSORS, HEAD_NORMS, {.from = NULL}};
static const ConvertTensor phi3_tensors[] = {
    MODEL_TENSORS,
    {LAYER("self_attn.qkv_proj.weight"), BLOCK("attn_qkv.weight"), SIZE_EMBD, SIZE_QKV, false, false},
    {LAYER("self_attn.o_proj.weight"), BLOCK("attn_output.weight"), SIZE_Q, SIZE_EMBD, false, false},
    {LAYER("post_attention_layernorm.weight"), BLOCK("ffn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, false},
    {LAYER("mlp.gate_up_proj.weight"), BLOCK("ffn_up.weight"), SIZE_EMBD, SIZE_GATE_UP, false, false},
    {LAYER("mlp.down_proj.weight"), BLOCK("ffn_down.weight"), SIZE_FF, SIZE_EMBD, false, false},
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
     .has_window = true},
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
    char list[400] = "";
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
    case SIZE_NONE: break;
    }
    return 0;
}
