/* convert_windows.c - the keys of architectures whose layers see a window of the text: gemma2, gemma3, gpt-oss and phi3.
 *
 * GGUF files of these architectures do not say which layers have a window, nor by what the scores of Gemma are divided: the
 * program that runs them knows it. A config.json that says otherwise is refused. */
#include "cli/convert/config_reader.h"
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

/* None is 0, which also tells that the file's maker thought of it. */
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

/* Of `pattern` layers, the last one sees the whole text. */
static int check_pattern(const HubFolder *c, int64_t pattern, fr_error *err) {
    static const char *const names[] = {"sliding_window_pattern", "_sliding_window_pattern"};
    const json_t *type;
    size_t i;
    for (i = 0; i < 2; i++)
        if (value_of(c, names[i]) && json_integer_value(value_of(c, names[i])) != pattern)
            return refuse(c, "sliding_window_pattern is another than that of the published models", err);
    json_array_foreach(value_of(c, "layer_types"), i, type) {
        const char *wanted = ((int64_t)i + 1) % pattern ? "sliding_attention" : "full_attention";
        if (!json_is_string(type) || strcmp(json_string_value(type), wanted) != 0)
            return refuse(c, "layer_types are others than those of the published models", err);
    }
    return FR_OK;
}

/* Scores are divided by the root of the width of a head, but in the largest model by that of n_embd / n_head. */
static int check_scale(const ConvertShape *s, const HubFolder *c, int64_t layers_of_27b, fr_error *err) {
    const json_t *v = value_of(c, "query_pre_attn_scalar");
    double given = v ? json_number_value(v) : 256;
    double known = s->n_layer == layers_of_27b ? (double)s->n_embd / (double)s->n_head : (double)s->head_dim;
    if (fabs(given - known) < 1e-6 * known) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s/config.json: query_pre_attn_scalar is %g, but GGUF files of this architecture mean %g",
                     c->folder, given, known);
}

int convert_gemma2_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    int status = check_pattern(c, 2, err);
    if (!status) status = check_scale(s, c, GEMMA2_LAYERS_OF_27B, err);
    if (!status) status = write_window(c, "gemma2.attention.sliding_window", w, err);
    if (!status) status = write_cap(c, "attn_logit_softcapping", 50, "gemma2.attn_logit_softcapping", w, err);
    if (!status) status = write_cap(c, "final_logit_softcapping", 30, "gemma2.final_logit_softcapping", w, err);
    return status;
}

/* The base of the layers with a window: newer files have an object for each of the two kinds. */
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

int convert_gemma3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
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

int convert_gpt_oss_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    const json_t *limit = value_of(c, "swiglu_limit"), *type;
    size_t i;
    if (limit && json_number_value(limit) != 7)
        return refuse(c, "swiglu_limit must be 7, which GGUF files of this architecture mean", err);
    json_array_foreach(value_of(c, "layer_types"), i, type) {
        const char *wanted = i % 2 ? "full_attention" : "sliding_attention";
        if (!json_is_string(type) || strcmp(json_string_value(type), wanted) != 0)
            return refuse(c, "layer_types are others than those of the published models", err);
    }
    gguf_set_u32(w, "gpt-oss.expert_feed_forward_length", (uint32_t)s->n_ff);
    return write_window(c, "gpt-oss.attention.sliding_window", w, err);
}

int convert_phi3_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    (void)s;
    return write_window(c, "phi3.attention.sliding_window", w, err);
}
