/* convert_windows.c - the architectures whose layers see a window of the text: gemma2, gemma3, phi3 and gpt-oss.
 *
 * GGUF files of these architectures do not record which layers have a window, nor the number that divides the scores of
 * Gemma: the program that runs them knows both. A config.json that contradicts this is refused.
 *
 * Proof: tests/cli/test_convert_arch.c, tests/cli/test_convert_published.c. */
#include "cli/convert/convert_arch.h"

#include <math.h>
#include <string.h>

enum { GEMMA2_LAYERS_OF_27B = 46, GEMMA3_LAYERS_OF_27B = 62 };

static int refuse(const HubFolder *c, const char *what, fr_error *err) {
    return error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: %s", c->folder, what);
}

static const json_t *value_of(const HubFolder *c, const char *key) {
    const json_t *v = json_object_get(c->config, key);
    return json_is_null(v) ? NULL : v;
}

/* Writes 0 if there is no window, so that the key is always there. */
static int write_window(const HubFolder *c, const char *key, GgufWriter *w, fr_error *err) {
    const json_t *v = value_of(c, "sliding_window");
    json_int_t n = json_integer_value(v);
    if (v && (!json_is_integer(v) || n < 0 || n > 1 << 28))
        return error_set(err, FR_ERR_FORMAT, "%s/config.json: sliding_window must be an integer from 0 to %d",
                         c->folder, 1 << 28);
    gguf_set_u32(w, key, (uint32_t)n);
    return FR_OK;
}

static int write_cap(const HubFolder *c, const char *from, double fallback, const char *key, GgufWriter *w,
                     fr_error *err) {
    const json_t *v = json_object_get(c->config, from);
    double cap = v ? json_number_value(v) : fallback;
    if ((v && !json_is_number(v)) || !(cap > 0 && cap <= 1e6))
        return error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: %s must be a number above 0 and up to 1e+06",
                         c->folder, from);
    gguf_set_f32(w, key, (float)cap);
    return FR_OK;
}

/* One layer in `pattern` sees the whole text: the last one of each group. */
static int check_pattern(const HubFolder *c, int64_t pattern, fr_error *err) {
    static const char *const names[] = {"sliding_window_pattern", "_sliding_window_pattern"};
    const json_t *type;
    size_t i;
    for (i = 0; i < 2; i++)
        if (value_of(c, names[i]) && json_integer_value(value_of(c, names[i])) != pattern)
            return refuse(c, "sliding_window_pattern differs from that of the published models", err);
    json_array_foreach(value_of(c, "layer_types"), i, type) {
        const char *wanted = ((int64_t)i + 1) % pattern ? "sliding_attention" : "full_attention";
        if (!json_is_string(type) || strcmp(json_string_value(type), wanted) != 0)
            return refuse(c, "layer_types differ from those of the published models", err);
    }
    return FR_OK;
}

/* Scores are divided by the square root of head_dim, except in the largest model: there, by that of n_embd / n_head. */
static int check_scale(const ConvertShape *s, const HubFolder *c, int64_t layers_of_27b, fr_error *err) {
    const json_t *v = value_of(c, "query_pre_attn_scalar");
    double given = v ? json_number_value(v) : 256;
    double known = s->n_layer == layers_of_27b ? (double)s->n_embd / (double)s->n_head : (double)s->head_dim;
    if (fabs(given - known) < 1e-6 * known) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s/config.json: query_pre_attn_scalar is %g, but GGUF files of this architecture mean %g",
                     c->folder, given, known);
}

static int gemma2_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    int status = check_pattern(c, 2, err);
    if (!status) status = check_scale(s, c, GEMMA2_LAYERS_OF_27B, err);
    if (!status) status = write_window(c, "gemma2.attention.sliding_window", w, err);
    if (!status) status = write_cap(c, "attn_logit_softcapping", 50, "gemma2.attn_logit_softcapping", w, err);
    if (!status) status = write_cap(c, "final_logit_softcapping", 30, "gemma2.final_logit_softcapping", w, err);
    return status;
}

/* Writes the rope base of layers with a window. Newer files have an object of rope parameters for each of the two kinds
 * of layers. */
static int write_local_base(const HubFolder *c, GgufWriter *w, fr_error *err) {
    const json_t *local = json_object_get(json_object_get(c->config, "rope_parameters"), "sliding_attention"),
                 *old = value_of(c, "rope_local_base_freq"), *base = local ? json_object_get(local, "rope_theta") : old;
    const char *type = config_text(local, "rope_type");
    double x = base ? json_number_value(base) : 10000;
    if (type && strcmp(type, "default") != 0)
        return refuse(c, "rope scaling of layers with a window is not supported", err);
    if (!(x >= 1 && x <= 1e12))
        return error_set(err, FR_ERR_FORMAT, "%s/config.json: rope_local_base_freq must be a number from 1 to 1e+12",
                         c->folder);
    gguf_set_f32(w, "gemma3.rope.freq_base_swa", (float)x);
    return FR_OK;
}

static int gemma3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    if (value_of(c, "attn_logit_softcapping")) return refuse(c, "attn_logit_softcapping has no place in gemma3", err);
    if (json_is_true(json_object_get(c->config, "use_bidirectional_attention")))
        return refuse(c, "use_bidirectional_attention makes an embedding model, which is not supported", err);
    int status = check_pattern(c, 6, err);
    if (!status) status = check_scale(s, c, GEMMA3_LAYERS_OF_27B, err);
    if (!status) status = write_window(c, "gemma3.attention.sliding_window", w, err);
    if (!status) status = write_local_base(c, w, err);
    if (!status && value_of(c, "final_logit_softcapping"))
        status = write_cap(c, "final_logit_softcapping", 0, "gemma3.final_logit_softcapping", w, err);
    return status;
}

static int gpt_oss_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    const json_t *limit = value_of(c, "swiglu_limit"), *type;
    size_t i;
    if (limit && json_number_value(limit) != 7)
        return refuse(c, "swiglu_limit must be 7, which GGUF files of this architecture mean", err);
    json_array_foreach(value_of(c, "layer_types"), i, type) {
        const char *wanted = i % 2 ? "full_attention" : "sliding_attention";
        if (!json_is_string(type) || strcmp(json_string_value(type), wanted) != 0)
            return refuse(c, "layer_types differ from those of the published models", err);
    }
    gguf_set_u32(w, "gpt-oss.expert_feed_forward_length", (uint32_t)s->n_ff);
    return write_window(c, "gpt-oss.attention.sliding_window", w, err);
}

static int phi3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    (void)s;
    return write_window(c, "phi3.attention.sliding_window", w, err);
}

/* ---- tables ------------------------------------------------------------------------------------------- */

#define GEMMA_TENSORS \
    MODEL_TENSORS, SELF_ATTENTION, DENSE_TENSORS, SAME("post_attention_layernorm.weight", TENSOR_POST_ATTN_NORM), \
        SAME("pre_feedforward_layernorm.weight", TENSOR_FFN_NORM), \
        SAME("post_feedforward_layernorm.weight", TENSOR_POST_FFN_NORM)
static const ConvertTensor gemma2_tensors[] = {GEMMA_TENSORS, END_OF_TENSORS};
static const ConvertTensor gemma3_tensors[] = {GEMMA_TENSORS, HEAD_NORMS, END_OF_TENSORS};
static const ConvertTensor phi3_tensors[] = {
    MODEL_TENSORS,
    SAME("self_attn.qkv_proj.weight", TENSOR_ATTN_QKV),
    SAME("self_attn.o_proj.weight", TENSOR_ATTN_OUTPUT),
    SAME("post_attention_layernorm.weight", TENSOR_FFN_NORM),
    SAME("mlp.gate_up_proj.weight", TENSOR_FFN_GATE_UP),
    SAME("mlp.down_proj.weight", TENSOR_FFN_DOWN),
    END_OF_TENSORS,
};

#define OSS_TENSORS \
    MODEL_TENSORS, SAME("post_attention_layernorm.weight", TENSOR_FFN_NORM_POST_ATTN), SELF_ATTENTION, BIASES, \
        SAME("self_attn.o_proj.bias", TENSOR_ATTN_OUTPUT_BIAS), SAME("self_attn.sinks", TENSOR_ATTN_SINKS), \
        SAME("mlp.router.weight", TENSOR_ROUTER), SAME("mlp.router.bias", TENSOR_ROUTER_BIAS), \
        ROW("mlp.experts.gate_up_proj_bias", TENSOR_EXPERT_GATE_BIAS, FORM_EVEN), \
        ROW("mlp.experts.gate_up_proj_bias", TENSOR_EXPERT_UP_BIAS, FORM_ODD), \
        ROW("mlp.experts.down_proj_bias", TENSOR_EXPERT_DOWN_BIAS, FORM_TABLE)
static const ConvertTensor gpt_oss_tensors[] = {
    OSS_TENSORS,
    ROW("mlp.experts.gate_up_proj", TENSOR_EXPERT_GATE, FORM_EVEN_COLUMNS),
    ROW("mlp.experts.gate_up_proj", TENSOR_EXPERT_UP, FORM_ODD_COLUMNS),
    ROW("mlp.experts.down_proj", TENSOR_EXPERT_DOWN, FORM_TRANSPOSED),
    END_OF_TENSORS,
};
static const ConvertTensor gpt_oss_packed_tensors[] = {
    OSS_TENSORS,
    ROW("mlp.experts.gate_up_proj", TENSOR_EXPERT_GATE, FORM_PACKED_EVEN),
    ROW("mlp.experts.gate_up_proj", TENSOR_EXPERT_UP, FORM_PACKED_ODD),
    ROW("mlp.experts.down_proj", TENSOR_EXPERT_DOWN, FORM_PACKED),
    END_OF_TENSORS,
};

const ConvertArch convert_window_archs[] = {
    {.published = "Gemma2ForCausalLM",
     .name = "gemma2",
     .tensors = gemma2_tensors,
     .keys = gemma2_keys,
     .has_window = true,
     .adds_1_to_norms = true,
     .usual = {.activation = "gelu_pytorch_tanh", .head_dim = 256, .is_tied = true}},
    {.published = "Gemma3ForCausalLM",
     .name = "gemma3",
     .tensors = gemma3_tensors,
     .keys = gemma3_keys,
     .has_window = true,
     .adds_1_to_norms = true,
     .usual = {.activation = "gelu_pytorch_tanh", .rope_base = 1e6, .head_dim = 256, .is_tied = true}},
    {.published = "Phi3ForCausalLM",
     .name = "phi3",
     .tensors = phi3_tensors,
     .keys = phi3_keys,
     .has_window = true,
     .usual = {.has_long_rope = true}},
    {.published = "GptOssForCausalLM",
     .name = "gpt-oss",
     .tensors = gpt_oss_tensors,
     .packed = gpt_oss_packed_tensors,
     .experts = EXPERTS_SUM_TO_1,
     .keys = gpt_oss_keys,
     .has_window = true,
     .usual = {.head_dim = 64, .rope_base = 150000}},
    {.published = NULL},
};
