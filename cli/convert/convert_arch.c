/* convert_arch.c - finds the architecture that config.json names; the architectures of the llama family.
 *
 * A new architecture is a table of its tensors and a row in a list of ConvertArch, here or in the file of its family.
 * Its layers must be described in src/model/arch_llama.c or a file beside it, too, if forerun is to run it.
 *
 * Ministral 3 (mistral3) and Llama 4 have attention scores that grow with the position. Ministral 3 is llama with YaRN,
 * whose rope_parameters have two more values: the growth of the scores (llama_4_scaling_beta) and mscale_all_dim, by
 * which the factor of cos and sin is divided. Mistral Small 3.1 and 3.2 are published under the same name,
 * Mistral3ForConditionalGeneration, but their text model is plain llama.
 *
 * A GGUF file of Llama 4 has no keys for the chunk size, the growth of the scores, the layers without rotation and the
 * norms of queries and keys. A config.json whose values differ from the published models' is refused. The matrices of
 * all experts are one tensor, transposed, with gate and up side by side. Rotated components are published as
 * neighbours, and stay neighbours.
 *
 * Proof: tests/cli/test_convert.c, tests/cli/test_convert_arch.c, tests/cli/test_convert_published.c. */
#include "cli/convert/convert_arch.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Granite and SmolLM3 ------------------------------------------------------------------------------ */

int convert_granite_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    static const struct {
        const char *from, *to;
    } factors[] = {
        {"embedding_multiplier", "embedding_scale"},
        {"residual_multiplier", "residual_scale"},
        {"logits_scaling", "logit_scale"},
        {"attention_multiplier", "attention.scale"},
    };
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        const json_t *v = json_object_get(c->config, factors[i].from);
        double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= 1e-6 && x <= 1e6))
            return error_set(err, FR_ERR_FORMAT, "%s/config.json: %s must be a number from 1e-06 to 1e+06", c->folder,
                             factors[i].from);
        convert_set_real(w, s->arch, factors[i].to, x);
    }
    return FR_OK;
}

/* A GGUF file does not list the layers without rotation: every fourth layer has none. */
static int check_unrotated_layers(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    const json_t *rotates = json_object_get(c->config, "no_rope_layers"), *one; /* 1 means that the layer rotates */
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

/* ---- Ministral 3 -------------------------------------------------------------------------------------- */

static bool differs(double a, double b) { return fabs(a - b) > 1e-6 * fabs(b); }

static int mistral3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    ConfigReader r = {.c = c, .object = s->scaling, .err = err};
    if (strcmp(s->scaling_type, "yarn") != 0) {
        config_refuse(&r, "the rope scaling of this architecture must be yarn");
        return r.status;
    }
    double growth = config_real(&r, "llama_4_scaling_beta", 0, 0, 1e3),
           all = config_real(&r, "mscale_all_dim", 0, 0, 100);
    if (all > 0 && differs(config_real(&r, "mscale", 0, 0, 100), 1))
        config_refuse(&r, "mscale must be 1 beside mscale_all_dim");
    if (growth > 0) gguf_set_f32(w, "mistral3.attention.temperature_scale", (float)growth);
    if (all > 0) gguf_set_f32(w, "mistral3.rope.scaling.yarn_log_multiplier", (float)all);
    return r.status;
}

/* ---- Llama 4 ------------------------------------------------------------------------------------------ */

enum { CHUNK = 8192, EXPERTS_OF_MAVERICK = 128 };

static bool has_experts(const ConvertShape *s, int64_t layer) { return (layer + 1) % s->expert_interval == 0; }

static bool llama4_has(const ConvertShape *s, const ConvertTensor *t, int64_t layer) {
    bool is_dense = strstr(t->from, "feed_forward.gate_proj") || strstr(t->from, "feed_forward.up_proj") ||
                    strstr(t->from, "feed_forward.down_proj");
    return !strstr(t->from, "feed_forward.") || is_dense != has_experts(s, layer);
}

static void check_layers(const ConvertShape *s, ConfigReader *r) {
    const json_t *experts = json_object_get(r->object, "moe_layers"), *one;
    size_t i, n = 0;
    json_array_foreach(json_object_get(r->object, "layer_types"), i, one) {
        const char *wanted = i % 4 == 3 ? "full_attention" : "chunked_attention", *type = json_string_value(one);
        if (!type || strcmp(type, wanted) != 0)
            config_refuse(r, "layer_types differ from those of the published models");
    }
    for (int64_t layer = 0; layer < s->n_layer; layer++) n += has_experts(s, layer);
    bool is_usual = !json_is_array(experts) || json_array_size(experts) == n;
    json_array_foreach(experts, i, one) is_usual = is_usual && has_experts(s, json_integer_value(one));
    if (!is_usual) config_refuse(r, "moe_layers differ from those of interleave_moe_layer_step");
}

/* Returns whether a value that may be true, false or a number is there and means no. */
static bool is_off(const ConfigReader *r, const char *key) {
    const json_t *v = json_object_get(r->object, key);
    return json_is_false(v) || (json_is_integer(v) && json_integer_value(v) == 0);
}

static int llama4_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    s->n_ff_expert = s->n_ff_shared = config_int(&r, "intermediate_size", -1, 1, 1 << 20);
    s->expert_interval = config_int(&r, "interleave_moe_layer_step", 1, 1, s->n_layer);
    if (config_int(&r, "attention_chunk_size", CHUNK, 0, 1 << 28) != CHUNK)
        config_refuse(&r, "attention_chunk_size must be 8192, which GGUF files of this architecture mean");
    if (is_off(&r, "attn_temperature_tuning") || differs(config_real(&r, "floor_scale", CHUNK, 1, 1e9), CHUNK) ||
        differs(config_real(&r, "attn_scale", 0.1, 0, 1e3), 0.1))
        config_refuse(&r, "attn_temperature_tuning, floor_scale and attn_scale must be true, 8192 and 0.1, which GGUF "
                          "files of this architecture mean");
    if (is_off(&r, "use_qk_norm") != (s->n_expert == EXPERTS_OF_MAVERICK) && config_has(&r, "use_qk_norm"))
        config_refuse(&r, "use_qk_norm must be false with 128 experts, and true with others");
    if (!r.status) check_layers(s, &r);
    return r.status;
}

static int llama4_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    gguf_set_u32(w, "llama4.interleave_moe_layer_step", (uint32_t)s->expert_interval);
    return check_unrotated_layers(s, c, w, err);
}

/* ---- the llama family --------------------------------------------------------------------------------- */

static const ConvertTensor llama_tensors[] = {ATTENTION_TENSORS, DENSE_TENSORS, OPTIONAL_BIASES, END_OF_TENSORS};
static const ConvertTensor qwen2_tensors[] = {ATTENTION_TENSORS, DENSE_TENSORS, BIASES, END_OF_TENSORS};
static const ConvertTensor qwen3_tensors[] = {ATTENTION_TENSORS, DENSE_TENSORS, OPTIONAL_BIASES, HEAD_NORMS,
                                              END_OF_TENSORS};
static const ConvertTensor mixtral_tensors[] = {
    ATTENTION_TENSORS, EXPERT_TENSORS("block_sparse_moe", "w1.weight", "w3.weight", "w2.weight"), END_OF_TENSORS};
static const ConvertTensor qwen3moe_tensors[] = {ATTENTION_TENSORS, HEAD_NORMS, QWEN_EXPERTS, END_OF_TENSORS};
static const ConvertTensor qwen2moe_tensors[] = {ATTENTION_TENSORS, BIASES, QWEN_EXPERTS, QWEN_SHARED_EXPERT,
                                                 END_OF_TENSORS};
static const ConvertTensor llama4_tensors[] = {
    ATTENTION_TENSORS,
    SAME("feed_forward.gate_proj.weight", TENSOR_FFN_GATE),
    SAME("feed_forward.up_proj.weight", TENSOR_FFN_UP),
    SAME("feed_forward.down_proj.weight", TENSOR_FFN_DOWN),
    SAME("feed_forward.router.weight", TENSOR_ROUTER),
    ROW("feed_forward.experts.gate_up_proj", TENSOR_EXPERT_GATE, FORM_FIRST_COLUMNS),
    ROW("feed_forward.experts.gate_up_proj", TENSOR_EXPERT_UP, FORM_SECOND_COLUMNS),
    ROW("feed_forward.experts.down_proj", TENSOR_EXPERT_DOWN, FORM_TRANSPOSED),
    SAME("feed_forward.shared_expert.gate_proj.weight", TENSOR_SHARED_GATE),
    SAME("feed_forward.shared_expert.up_proj.weight", TENSOR_SHARED_UP),
    SAME("feed_forward.shared_expert.down_proj.weight", TENSOR_SHARED_DOWN),
    END_OF_TENSORS,
};

static const ConvertArch llama_archs[] = {
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
     .keys = check_unrotated_layers},
    {.published = "Ministral3ForCausalLM",
     .name = "mistral3",
     .tensors = llama_tensors,
     .rotates_pairs = true,
     .keys = mistral3_keys},
    {.published = "Mistral3ForConditionalGeneration",
     .text_type = "ministral3",
     .name = "mistral3",
     .tensors = llama_tensors,
     .rotates_pairs = true,
     .has_text_part = true,
     .keys = mistral3_keys},
    {.published = "Mistral3ForConditionalGeneration",
     .text_type = "mistral",
     .name = "llama",
     .tensors = llama_tensors,
     .rotates_pairs = true,
     .has_text_part = true},
    {.published = "Llama4ForConditionalGeneration Llama4ForCausalLM",
     .name = "llama4",
     .tensors = llama4_tensors,
     .experts = EXPERTS_KEEP_PROBABILITIES,
     .read = llama4_read,
     .keys = llama4_keys,
     .has = llama4_has,
     .has_text_part = true,
     .usual = {.head_dim = 128, .rope_base = 5e5, .eps_key = "rms_norm_eps", .ff_key = "intermediate_size_mlp"}},
    {.published = NULL},
};

/* ---- all architectures -------------------------------------------------------------------------------- */

const ConvertArch *convert_arch_at(int i) {
    const ConvertArch *const families[] = {llama_archs, convert_window_archs, convert_hybrid_archs,
                                           convert_deepseek_archs};
    for (size_t k = 0; k < sizeof families / sizeof *families; k++)
        for (const ConvertArch *a = families[k]; a->published; a++)
            if (i-- == 0) return a;
    return NULL;
}

/* Returns whether `word` is one of the words of a list that is separated by spaces. */
static bool is_among(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; n > 0 && (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

/* Where several architectures are published under one name, "model_type" of the text model tells them apart. */
static bool has_text_type(const HubFolder *c, const ConvertArch *a) {
    const char *type = json_string_value(json_object_get(json_object_get(c->config, "text_config"), "model_type"));
    return !a->text_type || (type && strcmp(type, a->text_type) == 0);
}

const ConvertArch *convert_arch_find(const HubFolder *c, fr_error *err) {
    const char *name = json_string_value(json_array_get(json_object_get(c->config, "architectures"), 0));
    char list[1000] = "";
    Printable p;
    if (!name) {
        error_set(err, FR_ERR_FORMAT, "%s/config.json: does not name an architecture", c->folder);
        return NULL;
    }
    const ConvertArch *a;
    for (int i = 0; (a = convert_arch_at(i)) != NULL; i++) {
        if (is_among(a->published, name) && has_text_type(c, a)) return a;
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", n ? " " : "", a->published);
    }
    error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: the architecture %s cannot be converted; these can: %s",
              c->folder, printable(&p, name, strlen(name)), list);
    return NULL;
}
