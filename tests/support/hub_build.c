/* hub_build.c - takes a GGUF model apart into a folder in the form in which Hugging Face publishes models. */
#include "hub_build.h"

#include "safetensors_build.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- weights ------------------------------------------------------------------------------------------ */

static const struct {
    const char *gguf, *published;
} names[] =
    {
        {"attn_norm", "input_layernorm"},
        {"attn_q", "self_attn.q_proj"},
        {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"},
        {"attn_output", "self_attn.o_proj"},
        {"attn_q_norm", "self_attn.q_norm"},
        {"attn_k_norm", "self_attn.k_norm"},
        {"ffn_norm", "post_attention_layernorm"},
        {"ffn_gate", "mlp.gate_proj"},
        {"ffn_up", "mlp.up_proj"},
        {"ffn_down", "mlp.down_proj"},
        {"ffn_gate_inp", "mlp.gate"},
        {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
        {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
        {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
        {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
        {"ffn_gate_exps", "mlp.experts.%d.gate_proj"}, /* %d: the expert */
        {"ffn_up_exps", "mlp.experts.%d.up_proj"},
        {"ffn_down_exps", "mlp.experts.%d.down_proj"},
},
  of_gemma[] =
      {
          {"post_attention_norm", "post_attention_layernorm"},
          {"ffn_norm", "pre_feedforward_layernorm"},
          {"post_ffw_norm", "post_feedforward_layernorm"},
},
  of_phi3[] =
      {
          {"attn_qkv", "self_attn.qkv_proj"},
          {"ffn_up", "mlp.gate_up_proj"},
},
  of_mixtral[] = {
      {"ffn_gate_inp", "block_sparse_moe.gate"},
      {"ffn_gate_exps", "block_sparse_moe.experts.%d.w1"},
      {"ffn_up_exps", "block_sparse_moe.experts.%d.w3"},
      {"ffn_down_exps", "block_sparse_moe.experts.%d.w2"},
};

bool hub_is_arch(const Gguf *g, const char *name) {
    GgufString arch;
    assert_true(gguf_get_string(g, "general.architecture", &arch));
    return arch.n == strlen(name) && memcmp(arch.data, name, arch.n) == 0;
}

static bool is_gemma(const Gguf *g) { return hub_is_arch(g, "gemma2") || hub_is_arch(g, "gemma3"); }

static void published_name(const Gguf *g, const char *gguf, char out[200]) {
    int layer;
    char base[40], kind[40];
    if (strcmp(gguf, "token_embd.weight") == 0) strcpy(out, "model.embed_tokens.weight");
    else if (strcmp(gguf, "output_norm.weight") == 0) strcpy(out, "model.norm.weight");
    else if (strcmp(gguf, "output.weight") == 0) strcpy(out, "lm_head.weight");
    else {
        assert_int_equal(sscanf(gguf, "blk.%d.%39[^.].%39s", &layer, base, kind), 3);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(names[i].gguf, base) == 0)
                snprintf(out, 200, "model.layers.%d.%s.%s", layer, names[i].published, kind);
        for (size_t i = 0; i < sizeof of_gemma / sizeof *of_gemma && is_gemma(g); i++)
            if (strcmp(of_gemma[i].gguf, base) == 0)
                snprintf(out, 200, "model.layers.%d.%s.%s", layer, of_gemma[i].published, kind);
        for (size_t i = 0; i < sizeof of_phi3 / sizeof *of_phi3 && hub_is_arch(g, "phi3"); i++)
            if (strcmp(of_phi3[i].gguf, base) == 0)
                snprintf(out, 200, "model.layers.%d.%s.%s", layer, of_phi3[i].published, kind);
        for (size_t i = 0; i < sizeof of_mixtral / sizeof *of_mixtral && hub_is_arch(g, "llama"); i++)
            if (strcmp(of_mixtral[i].gguf, base) == 0)
                snprintf(out, 200, "model.layers.%d.%s.%s", layer, of_mixtral[i].published, kind);
    }
}

int64_t hub_number(const Gguf *g, const char *key) {
    GgufString arch;
    char full[100];
    int64_t v = 0;
    assert_true(gguf_get_string(g, "general.architecture", &arch));
    snprintf(full, sizeof full, "%.*s.%s", (int)arch.n, arch.data, key);
    int64_t at = gguf_find_key(g, full), one;
    gguf_get_i64(g, full, &v);
    for (int64_t i = 0; at >= 0 && i < gguf_kv_count(g, at) && gguf_array_i64(g, at, i, &one); i++)
        v = one > v ? one : v; /* one for each layer */
    return v;
}

static int64_t head_dim(const Gguf *g) {
    int64_t dim = hub_number(g, "attention.key_length");
    return dim ? dim : hub_number(g, "embedding_length") / hub_number(g, "attention.head_count");
}

/* The pairs of a head become its halves: item 2 p + s goes to s * dim / 2 + p. */
static float *halved(const Gguf *g, const GgufTensor *t) {
    int64_t dim = head_dim(g), width = t->n_dims == 2 ? t->dims[0] : 1, n = t->n_dims == 2 ? t->dims[1] : t->dims[0];
    float *out = malloc(t->bytes);
    assert_non_null(out);
    for (int64_t i = 0; i < n; i++) {
        int64_t in_head = i % dim, to = i - in_head + in_head % 2 * (dim / 2) + in_head / 2;
        memcpy(out + to * width, (const float *)t->data + i * width, (size_t)width * sizeof *out);
    }
    return out;
}

/* The published weights of Gemma's norms are the numbers that are added to 1. */
static float *less_1(const GgufTensor *t) {
    float *out = malloc(t->bytes);
    assert_non_null(out);
    for (int64_t i = 0; i < t->dims[0]; i++) out[i] = ((const float *)t->data)[i] - 1;
    return out;
}

static void add_tensor(const Gguf *g, SafeTensorsBuild *b, const GgufTensor *t, const char *name) {
    bool is_rotated = strstr(t->name, "attn_q.") || strstr(t->name, "attn_k.");
    bool has_pairs = hub_is_arch(g, "llama") || hub_is_arch(g, "granite") || hub_is_arch(g, "smollm3") ||
                     hub_is_arch(g, "mistral3");
    bool is_norm = strstr(t->name, "norm.weight");
    float *moved = is_rotated && has_pairs ? halved(g, t) : is_norm && is_gemma(g) ? less_1(t) : NULL;
    int64_t n_out = t->n_dims == 2 ? t->dims[1] : strstr(t->name, "ffn_gate_inp_shexp") ? 1 : 0;
    assert_int_equal(t->type, TYPE_F32);
    safetensors_build_add(b, name, moved ? moved : t->data, t->dims[0], n_out);
    free(moved);
}

/* Each expert has a tensor of its own. */
static void add_experts(SafeTensorsBuild *b, const GgufTensor *t, const char *form, json_t *map, const char *file) {
    char name[220];
    const char *number = strstr(form, "%d");
    for (int64_t i = 0; i < t->dims[2]; i++) {
        snprintf(name, sizeof name, "%.*s%d%s", (int)(number - form), form, (int)i, number + 2);
        safetensors_build_add(b, name, (const float *)t->data + i * t->dims[0] * t->dims[1], t->dims[0], t->dims[1]);
        json_object_set_new(map, name, json_string(file));
    }
}

static void write_weights(const Gguf *g, const char *folder, const HubBuild *o) {
    json_t *map = json_object();
    char path[300], file[64], name[200];
    if (hub_forms_has(g) || hub_deepseek_has(g) || hub_is_arch(g, "llama4")) {
        if (hub_forms_has(g)) hub_forms_write(g, folder, o);
        else if (hub_is_arch(g, "llama4")) hub_llama4_write(g, folder, o);
        else hub_deepseek_write(g, folder, o);
        json_decref(map);
        return;
    }
    for (int part = 0; part < o->n_parts; part++) {
        SafeTensorsBuild b;
        safetensors_build_begin(&b, o->type);
        snprintf(file, sizeof file, o->n_parts > 1 ? "model-%05d-of-%05d.safetensors" : "model.safetensors", part + 1,
                 o->n_parts);
        for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
            if (i % o->n_parts != part || strncmp(gguf_tensor(g, i)->name, "rope_factors_", 13) == 0) continue;
            published_name(g, gguf_tensor(g, i)->name, name);
            if (strstr(name, "%d")) {
                add_experts(&b, gguf_tensor(g, i), name, map, file);
                continue;
            }
            add_tensor(g, &b, gguf_tensor(g, i), name);
            json_object_set_new(map, name, json_string(file));
        }
        snprintf(path, sizeof path, "%s/%s", folder, file);
        safetensors_build_write(&b, path);
    }
    json_t *index = json_pack("{s:o}", "weight_map", map);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    if (o->n_parts > 1) assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
}

/* ---- config.json -------------------------------------------------------------------------------------- */

static const char *published_arch(const Gguf *g) {
    static const char *const published[][2] = {{"qwen2", "Qwen2ForCausalLM"},
                                               {"qwen3", "Qwen3ForCausalLM"},
                                               {"qwen2moe", "Qwen2MoeForCausalLM"},
                                               {"qwen3moe", "Qwen3MoeForCausalLM"},
                                               {"granite", "GraniteForCausalLM"},
                                               {"smollm3", "SmolLM3ForCausalLM"},
                                               {"gemma2", "Gemma2ForCausalLM"},
                                               {"gemma3", "Gemma3ForCausalLM"},
                                               {"phi3", "Phi3ForCausalLM"},
                                               {"qwen3next", "Qwen3NextForCausalLM"},
                                               {"gpt-oss", "GptOssForCausalLM"},
                                               {"qwen35", "Qwen3_5ForCausalLM"},
                                               {"qwen35moe", "Qwen3_5MoeForCausalLM"},
                                               {"lfm2", "Lfm2ForCausalLM"},
                                               {"granitehybrid", "GraniteMoeHybridForCausalLM"},
                                               {"deepseek2", "DeepseekV3ForCausalLM"},
                                               {"glm4moe", "Glm4MoeForCausalLM"},
                                               {"mistral3", "Ministral3ForCausalLM"},
                                               {"llama4", "Llama4ForConditionalGeneration"},
                                               {"lfm2moe", "Lfm2MoeForCausalLM"}};
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (hub_is_arch(g, published[i][0])) return published[i][1];
    return hub_number(g, "expert_count") ? "MixtralForCausalLM" : "LlamaForCausalLM";
}

static void write_config(const Gguf *g, const char *folder, const HubBuild *o) {
    GgufString arch;
    char path[300];
    float eps = 0, base = 10000;
    assert_true(gguf_get_string(g, "general.architecture", &arch));
    snprintf(path, sizeof path, "%.*s.attention.layer_norm_rms_epsilon", (int)arch.n, arch.data);
    gguf_get_f32(g, path, &eps);
    snprintf(path, sizeof path, "%.*s.rope.freq_base", (int)arch.n, arch.data);
    gguf_get_f32(g, path, &base);
    snprintf(path, sizeof path, "%s/config.json", folder);
    const char *part = o->text_part ? "\"vision_config\": {\"hidden_size\": 3}, \"text_config\": {" : "";
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(
        f,
        "{\"architectures\": [\"%s\"], %s\"hidden_size\": %lld, \"intermediate_size\": %lld, \"num_hidden_layers\": "
        "%lld, "
        "\"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, \"head_dim\": %lld, \"rms_norm_eps\": %.9g, "
        "\"rope_theta\": %.9g, \"max_position_embeddings\": %lld, \"vocab_size\": %lld, \"hidden_act\": \"%s\"%s}%s",
        published_arch(g), part, (long long)hub_number(g, "embedding_length"),
        (long long)hub_number(g, "feed_forward_length"),
        (long long)(hub_number(g, "block_count") - hub_number(g, "nextn_predict_layers")),
        (long long)hub_number(g, "attention.head_count"), (long long)hub_number(g, "attention.head_count_kv"),
        (long long)head_dim(g), (double)eps, (double)base, (long long)hub_number(g, "context_length"),
        (long long)gguf_find_tensor(g, "token_embd.weight")->dims[1], is_gemma(g) ? "gelu_pytorch_tanh" : "silu",
        o->config ? o->config : "", o->text_part ? "}" : "");
    fclose(f);
}

/* ---- the vocabulary ----------------------------------------------------------------------------------- */

typedef struct Token {
    GgufString piece;
    float score;
    int64_t type;
} Token;

static int64_t count_tokens(const Gguf *g) { return gguf_kv_count(g, gguf_find_key(g, "tokenizer.ggml.tokens")); }

static Token token_at(const Gguf *g, int64_t i) {
    Token t;
    assert_true(gguf_array_string(g, gguf_find_key(g, "tokenizer.ggml.tokens"), i, &t.piece));
    assert_true(gguf_array_f32(g, gguf_find_key(g, "tokenizer.ggml.scores"), i, &t.score));
    assert_true(gguf_array_i64(g, gguf_find_key(g, "tokenizer.ggml.token_type"), i, &t.type));
    return t;
}

static void put_varint(FILE *f, uint64_t v) {
    for (; v > 127; v >>= 7) fputc((int)(v & 127) | 128, f);
    fputc((int)v, f);
}

static void write_spm(const Gguf *g, const char *folder) {
    char path[300];
    snprintf(path, sizeof path, "%s/tokenizer.model", folder);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int64_t i = 0; i < count_tokens(g); i++) {
        Token t = token_at(g, i);
        assert_true(t.piece.n < 128);
        put_varint(f, 1 << 3 | 2);
        put_varint(f, 2 + t.piece.n + 5 + 2);
        put_varint(f, 1 << 3 | 2);
        put_varint(f, t.piece.n);
        fwrite(t.piece.data, 1, t.piece.n, f);
        put_varint(f, 2 << 3 | 5);
        fwrite(&t.score, 4, 1, f);
        put_varint(f, 3 << 3);
        put_varint(f, (uint64_t)t.type);
    }
    static const unsigned char trainer[] = {2 << 3 | 2, 2, 3 << 3, 2}, normalizer[] = {3 << 3 | 2, 2, 3 << 3, 1};
    fwrite(trainer, 1, sizeof trainer, f); /* model_type BPE */
    fwrite(normalizer, 1, sizeof normalizer, f);
    fclose(f);
}

static int64_t find_piece(const Gguf *g, const char *piece, size_t n) {
    for (int64_t i = 0; i < count_tokens(g); i++) {
        Token t = token_at(g, i);
        if (t.piece.n == n && memcmp(t.piece.data, piece, n) == 0) return i;
    }
    return -1;
}

/* Returns the merges that transformers derives from a SentencePiece model: for each piece, the best score first, all
 * splits into two pieces. */
static json_t *merges_of(const Gguf *g) {
    json_t *merges = json_array();
    for (int64_t i = 0; i < count_tokens(g); i++) { /* scores fall with the ids */
        Token t = token_at(g, i);
        if (t.type != 1) continue;
        for (size_t n = 1; n < t.piece.n; n++)
            if (find_piece(g, t.piece.data, n) >= 0 && find_piece(g, t.piece.data + n, t.piece.n - n) >= 0)
                json_array_append_new(
                    merges, json_sprintf("%.*s %.*s", (int)n, t.piece.data, (int)(t.piece.n - n), t.piece.data + n));
    }
    return merges;
}

static void write_merges(const Gguf *g, const char *folder) {
    char path[300], text[128];
    json_t *vocab = json_object(), *added = json_array();
    for (int64_t i = 0; i < count_tokens(g); i++) {
        Token t = token_at(g, i);
        snprintf(text, sizeof text, "%.*s", (int)t.piece.n, t.piece.data);
        json_object_set_new(vocab, text, json_integer(i));
        if (t.type == 3)
            json_array_append_new(added,
                                  json_pack("{s:I, s:s, s:b}", "id", (json_int_t)i, "content", text, "special", 1));
    }
    json_t *all = json_pack("{s:o, s:{s:s, s:o, s:o, s:b, s:s}, s:{s:s, s:s}, s:{s:s, s:[{s:{s:s}}, {s:{s:s}}]}}",
                            "added_tokens", added, "model", "type", "BPE", "vocab", vocab, "merges", merges_of(g),
                            "byte_fallback", 1, "unk_token", "<unk>", "normalizer", "type", "Prepend", "prepend",
                            "\xe2\x96\x81", "post_processor", "type", "TemplateProcessing", "single", "SpecialToken",
                            "id", "<s>", "Sequence", "id", "A");
    assert_non_null(all);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(json_dump_file(all, path, 0), 0);
    json_decref(all);
}

void hub_build_write(const Gguf *g, const char *folder, const HubBuild *o) {
    char path[300];
    mkdir(folder, 0777);
    write_weights(g, folder, o);
    write_config(g, folder, o);
    if (o->vocab == HUB_SPM) write_spm(g, folder);
    if (o->vocab == HUB_MERGES) write_merges(g, folder);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"unk_token\": \"<unk>\", "
          "\"model_max_length\": "
          "1000000000000000019884624838656, \"chat_template\": \"{{ messages }}\"}",
          f);
    fclose(f);
}
