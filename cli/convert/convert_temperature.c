/* convert_temperature.c - models whose attention scores grow with the position: Ministral 3 (architecture mistral3) and Llama 4.
 *
 * Ministral 3 is llama with YaRN, whose rope_parameters have two things more: the growth of the scores (llama_4_scaling_beta), and
 * mscale_all_dim, by which the factor of cos and sin is divided. Mistral Small 3.1 and 3.2 are published under the same name,
 * Mistral3ForConditionalGeneration, but their text is plain llama.
 *
 * Llama 4. A GGUF file has no keys for the chunk, the growth of the scores, the layers without rotation and the norms of
 * queries and keys; a config.json that says otherwise than the published ones is refused. The matrices of all experts are one tensor,
 * transposed, gate beside up. Rotated components are published as neighbours, and stay so.
 *
 * Proof: tests/cli/test_convert_published.c. */
#include "cli/convert/config_reader.h"
#include "cli/convert/convert_arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 8192, EXPERTS_OF_MAVERICK = 128 };

#define LAYER(name) "model.layers.%d." name
#define FF(name) LAYER("feed_forward." name)
#define TENSOR(from, to) \
    { from, to, false, FORM_SAME }

const ConvertTensor convert_llama4_tensors[] = {
    {"model.embed_tokens.weight", TENSOR_TOKEN_EMBD, false, FORM_SAME},
    {"model.norm.weight", TENSOR_OUTPUT_NORM, false, FORM_SAME},
    {"lm_head.weight", TENSOR_OUTPUT, true, FORM_SAME},
    TENSOR(LAYER("input_layernorm.weight"), TENSOR_ATTN_NORM),
    TENSOR(LAYER("self_attn.q_proj.weight"), TENSOR_ATTN_Q),
    TENSOR(LAYER("self_attn.k_proj.weight"), TENSOR_ATTN_K),
    TENSOR(LAYER("self_attn.v_proj.weight"), TENSOR_ATTN_V),
    TENSOR(LAYER("self_attn.o_proj.weight"), TENSOR_ATTN_OUTPUT),
    TENSOR(LAYER("post_attention_layernorm.weight"), TENSOR_FFN_NORM),
    TENSOR(FF("gate_proj.weight"), TENSOR_FFN_GATE),
    TENSOR(FF("up_proj.weight"), TENSOR_FFN_UP),
    TENSOR(FF("down_proj.weight"), TENSOR_FFN_DOWN),
    TENSOR(FF("router.weight"), TENSOR_ROUTER),
    {FF("experts.gate_up_proj"), TENSOR_EXPERT_GATE, false, FORM_FIRST_COLUMNS},
    {FF("experts.gate_up_proj"), TENSOR_EXPERT_UP, false, FORM_SECOND_COLUMNS},
    {FF("experts.down_proj"), TENSOR_EXPERT_DOWN, false, FORM_TRANSPOSED},
    TENSOR(FF("shared_expert.gate_proj.weight"), TENSOR_SHARED_GATE),
    TENSOR(FF("shared_expert.up_proj.weight"), TENSOR_SHARED_UP),
    TENSOR(FF("shared_expert.down_proj.weight"), TENSOR_SHARED_DOWN),
    {.from = NULL},
};

static bool has_experts(const ConvertShape *s, int64_t layer) { return (layer + 1) % s->expert_interval == 0; }

bool convert_llama4_has(const ConvertShape *s, const ConvertTensor *t, int64_t layer) {
    bool is_dense = strstr(t->from, "feed_forward.gate_proj") || strstr(t->from, "feed_forward.up_proj") ||
                    strstr(t->from, "feed_forward.down_proj");
    return !strstr(t->from, "feed_forward.") || is_dense != has_experts(s, layer);
}

static void refuse(ConfigReader *r, const char *what) {
    if (!r->status) r->status = error_set(r->err, FR_ERR_UNSUPPORTED, "%s/config.json: %s", r->c->folder, what);
}

static bool differs(double a, double b) { return fabs(a - b) > 1e-6 * fabs(b); }

/* ---- Llama 4 ------------------------------------------------------------------------------------------ */

static void check_layers(const ConvertShape *s, ConfigReader *r) {
    const json_t *experts = json_object_get(r->object, "moe_layers"), *one;
    size_t i, n = 0;
    json_array_foreach(json_object_get(r->object, "layer_types"), i, one) {
        const char *wanted = i % 4 == 3 ? "full_attention" : "chunked_attention", *type = json_string_value(one);
        if (!type || strcmp(type, wanted) != 0) refuse(r, "layer_types are others than those of the published models");
    }
    for (int64_t layer = 0; layer < s->n_layer; layer++) n += has_experts(s, layer);
    bool is_usual = !json_is_array(experts) || json_array_size(experts) == n;
    json_array_foreach(experts, i, one) is_usual = is_usual && has_experts(s, json_integer_value(one));
    if (!is_usual) refuse(r, "moe_layers are others than interleave_moe_layer_step tells");
}

/* Whether a value that may be true, false or a number is there and means no. */
static bool is_off(const ConfigReader *r, const char *key) {
    const json_t *v = json_object_get(r->object, key);
    return json_is_false(v) || (json_is_integer(v) && json_integer_value(v) == 0);
}

int convert_llama4_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    s->n_ff_expert = s->n_ff_shared = config_int(&r, "intermediate_size", -1, 1, 1 << 20);
    s->expert_interval = config_int(&r, "interleave_moe_layer_step", 1, 1, s->n_layer);
    if (config_int(&r, "attention_chunk_size", CHUNK, 0, 1 << 28) != CHUNK)
        refuse(&r, "attention_chunk_size must be 8192, which GGUF files of this architecture mean");
    if (is_off(&r, "attn_temperature_tuning") || differs(config_real(&r, "floor_scale", CHUNK, 1, 1e9), CHUNK) ||
        differs(config_real(&r, "attn_scale", 0.1, 0, 1e3), 0.1))
        refuse(&r,
               "attn_temperature_tuning, floor_scale and attn_scale must be true, 8192 and 0.1, which GGUF files of "
               "this architecture mean");
    if (is_off(&r, "use_qk_norm") != (s->n_expert == EXPERTS_OF_MAVERICK) && config_has(&r, "use_qk_norm"))
        refuse(&r, "use_qk_norm must be false with 128 experts, and true with others");
    if (!r.status) check_layers(s, &r);
    return r.status;
}

int convert_llama4_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    gguf_set_u32(w, "llama4.interleave_moe_layer_step", (uint32_t)s->expert_interval);
    return convert_smollm3_keys(s, c, w, err); /* of four layers, the last does not rotate */
}

/* ---- Ministral 3 -------------------------------------------------------------------------------------- */

int convert_mistral3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    ConfigReader r = {.c = c, .object = s->scaling, .err = err};
    if (strcmp(s->scaling_type, "yarn") != 0) {
        refuse(&r, "the rope scaling of this architecture must be yarn");
        return r.status;
    }
    double growth = config_real(&r, "llama_4_scaling_beta", 0, 0, 1e3),
           all = config_real(&r, "mscale_all_dim", 0, 0, 100);
    if (all > 0 && differs(config_real(&r, "mscale", 0, 0, 100), 1))
        refuse(&r, "mscale must be 1 beside mscale_all_dim");
    if (growth > 0) gguf_set_f32(w, "mistral3.attention.temperature_scale", (float)growth);
    if (all > 0) gguf_set_f32(w, "mistral3.rope.scaling.yarn_log_multiplier", (float)all);
    return r.status;
}
