/* convert_delta.c - the keys of models with recurrent layers (Gated DeltaNet): qwen3next, qwen35 and qwen35moe. */
#include "convert/convert_arch.h"

#include <stdio.h>
#include <string.h>

static int read_count(const HubFolder *c, const char *key, int64_t high, int64_t *out, fr_error *err) {
    const json_t *v = json_object_get(c->config, key);
    *out = json_integer_value(v);
    if (json_is_integer(v) && *out >= 1 && *out <= high) return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s/config.json: %s must be an integer from 1 to %lld", c->folder, key,
                     (long long)high);
}

static int refuse(const HubFolder *c, const char *what, fr_error *err) {
    return error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: %s", c->folder, what);
}

/* Every so many-th layer has attention: layer_types, if it is there, must say so as well. */
static int read_interval(ConvertShape *s, const HubFolder *c, fr_error *err) {
    const json_t *types = json_object_get(c->config, "layer_types"), *type;
    size_t i;
    s->attention_interval = 4;
    if (json_object_get(c->config, "full_attention_interval")) {
        int status = read_count(c, "full_attention_interval", 1024, &s->attention_interval, err);
        if (status) return status;
    } else if (json_array_size(types)) {
        s->attention_interval = 0;
        json_array_foreach(types, i, type) if (!s->attention_interval && json_is_string(type) &&
                                               strcmp(json_string_value(type), "full_attention") == 0)
            s->attention_interval = (int64_t)i + 1;
        if (!s->attention_interval) s->attention_interval = 1024;
    }
    json_array_foreach(types, i, type) {
        bool full = ((int64_t)i + 1) % s->attention_interval == 0;
        const char *wanted = full ? "full_attention" : "linear_attention";
        if (!json_is_string(type) || strcmp(json_string_value(type), wanted) != 0)
            return refuse(c, "layer_types must have full_attention at equal distances", err);
    }
    return FR_OK;
}

int convert_delta_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    int64_t value_dim = 0;
    int status = read_count(c, "linear_num_key_heads", 1 << 10, &s->n_key_heads, err);
    if (!status) status = read_count(c, "linear_num_value_heads", 1 << 10, &s->n_value_heads, err);
    if (!status) status = read_count(c, "linear_key_head_dim", 1 << 10, &s->delta_dim, err);
    if (!status) status = read_count(c, "linear_value_head_dim", 1 << 10, &value_dim, err);
    if (!status) status = read_count(c, "linear_conv_kernel_dim", 1 << 10, &s->n_conv, err);
    if (!status) status = read_interval(s, c, err);
    if (status) return status;
    if (value_dim != s->delta_dim) return refuse(c, "linear_value_head_dim must be linear_key_head_dim", err);
    if (s->n_value_heads % s->n_key_heads)
        return refuse(c, "linear_num_value_heads must be a multiple of linear_num_key_heads", err);
    if (json_is_false(json_object_get(c->config, "attn_output_gate")))
        return refuse(c, "attention without attn_output_gate is not supported", err);
    for (int64_t i = 0; i < s->n_layer; i++) s->recurrent[i] = (i + 1) % s->attention_interval != 0;
    return FR_OK;
}

static void set_int(const ConvertShape *s, GgufWriter *w, const char *key, int64_t v) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", s->arch, key);
    gguf_set_u32(w, full, (uint32_t)v);
}

/* The pairs that turn by time, height and width, which are one number in text. Other programs ask for the key. */
static void write_sections(const ConvertShape *s, const HubFolder *c, GgufWriter *w) {
    const json_t *rope = json_object_get(c->config, "rope_parameters"),
                 *sections = json_object_get(rope, "mrope_section");
    int32_t n[4] = {0};
    char full[128];
    if (json_array_size(sections) == 0 || json_array_size(sections) > 4) return;
    for (size_t i = 0; i < json_array_size(sections); i++)
        n[i] = (int32_t)json_integer_value(json_array_get(sections, i));
    snprintf(full, sizeof full, "%s.rope.dimension_sections", s->arch);
    gguf_set_i32s(w, full, n, 4);
}

int convert_delta_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err) {
    (void)err;
    set_int(s, w, "ssm.conv_kernel", s->n_conv);
    set_int(s, w, "ssm.state_size", s->delta_dim);
    set_int(s, w, "ssm.group_count", s->n_key_heads);
    set_int(s, w, "ssm.time_step_rank", s->n_value_heads);
    set_int(s, w, "ssm.inner_size", s->n_value_heads * s->delta_dim);
    set_int(s, w, "full_attention_interval", s->attention_interval);
    write_sections(s, c, w);
    return FR_OK;
}
