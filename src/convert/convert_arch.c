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

/* What all of the llama family have. The LM head is optional: where it is missing, it is the embedding. */
#define LLAMA_TENSORS \
    {"model.embed_tokens.weight", "token_embd.weight", SIZE_EMBD, SIZE_VOCAB, false, false}, \
        {"model.norm.weight", "output_norm.weight", SIZE_EMBD, SIZE_NONE, false, false}, \
        {"lm_head.weight", "output.weight", SIZE_EMBD, SIZE_VOCAB, true, false}, \
        {LAYER("input_layernorm.weight"), BLOCK("attn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, false}, \
        {LAYER("self_attn.q_proj.weight"), BLOCK("attn_q.weight"), SIZE_EMBD, SIZE_Q, false, true}, \
        {LAYER("self_attn.k_proj.weight"), BLOCK("attn_k.weight"), SIZE_EMBD, SIZE_KV, false, true}, \
        {LAYER("self_attn.v_proj.weight"), BLOCK("attn_v.weight"), SIZE_EMBD, SIZE_KV, false, false}, \
        {LAYER("self_attn.o_proj.weight"), BLOCK("attn_output.weight"), SIZE_Q, SIZE_EMBD, false, false}, \
        {LAYER("post_attention_layernorm.weight"), BLOCK("ffn_norm.weight"), SIZE_EMBD, SIZE_NONE, false, false}, \
        {LAYER("mlp.gate_proj.weight"), BLOCK("ffn_gate.weight"), SIZE_EMBD, SIZE_FF, false, false}, \
        {LAYER("mlp.up_proj.weight"), BLOCK("ffn_up.weight"), SIZE_EMBD, SIZE_FF, false, false}, { \
        LAYER("mlp.down_proj.weight"), BLOCK("ffn_down.weight"), SIZE_FF, SIZE_EMBD, false, false \
    }
#define BIASES(optional) \
    {LAYER("self_attn.q_proj.bias"), BLOCK("attn_q.bias"), SIZE_Q, SIZE_NONE, optional, true}, \
        {LAYER("self_attn.k_proj.bias"), BLOCK("attn_k.bias"), SIZE_KV, SIZE_NONE, optional, true}, { \
        LAYER("self_attn.v_proj.bias"), BLOCK("attn_v.bias"), SIZE_KV, SIZE_NONE, optional, false \
    }

static const ConvertTensor llama_tensors[] = {LLAMA_TENSORS, BIASES(true), {.from = NULL}};
static const ConvertTensor qwen2_tensors[] = {LLAMA_TENSORS, BIASES(false), {.from = NULL}};
static const ConvertTensor qwen3_tensors[] = {
    LLAMA_TENSORS,
    BIASES(true),
    {LAYER("self_attn.q_norm.weight"), BLOCK("attn_q_norm.weight"), SIZE_HEAD, SIZE_NONE, false, false},
    {LAYER("self_attn.k_norm.weight"), BLOCK("attn_k_norm.weight"), SIZE_HEAD, SIZE_NONE, false, false},
    {.from = NULL},
};

static const ConvertArch archs[] = {
    {"LlamaForCausalLM MistralForCausalLM", "llama", true, llama_tensors},
    {"Qwen2ForCausalLM", "qwen2", false, qwen2_tensors},
    {"Qwen3ForCausalLM", "qwen3", false, qwen3_tensors},
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
    char list[300] = "";
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
    case SIZE_FF: return s->n_ff;
    case SIZE_HEAD: return s->head_dim;
    case SIZE_VOCAB: return s->n_vocab;
    case SIZE_NONE: break;
    }
    return 0;
}
