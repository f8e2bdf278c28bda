/* convert_delta.c - the keys of models with recurrent layers (Gated DeltaNet): qwen3next, qwen35 and qwen35moe. */
#include "cli/convert/config_reader.h"
#include "cli/convert/convert_arch.h"

#include <stdio.h>
#include <string.h>

/* Every so many-th layer has attention: layer_types, if it is there, must say so as well. */
static void read_interval(ConfigReader *r, ConvertShape *s) {
    const json_t *types = json_object_get(r->object, "layer_types"), *type;
    int64_t first = 4;
    size_t i;
    if (json_array_size(types)) first = 1024;
    json_array_foreach(types, i, type) if (first == 1024 && json_is_string(type) &&
                                           strcmp(json_string_value(type), "full_attention") == 0)
        first = (int64_t)i + 1;
    s->attention_interval = config_int(r, "full_attention_interval", first, 1, 1024);
    json_array_foreach(types, i, type) {
        bool full = ((int64_t)i + 1) % s->attention_interval == 0;
        const char *wanted = full ? "full_attention" : "linear_attention";
        if (!json_is_string(type) || strcmp(json_string_value(type), wanted) != 0)
            config_refuse(r, "layer_types must have full_attention at equal distances");
    }
}

int convert_delta_read(ConvertShape *s, const HubFolder *c, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    s->n_key_heads = config_int(&r, "linear_num_key_heads", -1, 1, 1 << 10);
    s->n_value_heads = config_int(&r, "linear_num_value_heads", -1, 1, 1 << 10);
    s->delta_dim = config_int(&r, "linear_key_head_dim", -1, 1, 1 << 10);
    s->n_conv = config_int(&r, "linear_conv_kernel_dim", -1, 1, 1 << 10);
    if (config_int(&r, "linear_value_head_dim", -1, 1, 1 << 10) != s->delta_dim)
        config_refuse(&r, "linear_value_head_dim must be linear_key_head_dim");
    read_interval(&r, s);
    if (s->n_value_heads % s->n_key_heads)
        config_refuse(&r, "linear_num_value_heads must be a multiple of linear_num_key_heads");
    if (json_is_false(json_object_get(c->config, "attn_output_gate")))
        config_refuse(&r, "attention without attn_output_gate is not supported");
    for (int64_t i = 0; i < s->n_layer; i++) s->recurrent[i] = (i + 1) % s->attention_interval != 0;
    return r.status;
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
    convert_set_int(w, s->arch, "ssm.conv_kernel", s->n_conv);
    convert_set_int(w, s->arch, "ssm.state_size", s->delta_dim);
    convert_set_int(w, s->arch, "ssm.group_count", s->n_key_heads);
    convert_set_int(w, s->arch, "ssm.time_step_rank", s->n_value_heads);
    convert_set_int(w, s->arch, "ssm.inner_size", s->n_value_heads * s->delta_dim);
    convert_set_int(w, s->arch, "full_attention_interval", s->attention_interval);
    write_sections(s, c, w);
    return FR_OK;
}
