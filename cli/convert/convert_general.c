/* convert_general.c - what a GGUF file says of any model: its architecture, name and type, and the sampling that its publisher
 * recommends. */
#include "cli/convert/convert_shape.h"

#include <string.h>

static void write_names(const HubFolder *c, const char *arch, TensorType type, GgufWriter *w) {
    static const struct {
        TensorType type;
        uint32_t number;
    } file_types[] = {{TYPE_F32, 0}, {TYPE_F16, 1}, {TYPE_BF16, 32}, {TYPE_Q8_0, 7}, {TYPE_MXFP4, 38}};
    const char *slash = strrchr(c->folder, '/'), *name = slash ? slash + 1 : c->folder;
    gguf_set_string(w, "general.architecture", arch, strlen(arch));
    gguf_set_string(w, "general.type", "model", strlen("model"));
    gguf_set_string(w, "general.name", name, strlen(name));
    for (size_t i = 0; i < sizeof file_types / sizeof *file_types; i++)
        if (file_types[i].type == type) gguf_set_u32(w, "general.file_type", file_types[i].number);
    if (type == TYPE_Q8_0) gguf_set_u32(w, "general.quantization_version", 2);
}

/* The sampling that the publisher recommends, under the keys that llama.cpp gave it; `forerun chat` follows it. */
static void write_sampling(const HubFolder *c, GgufWriter *w) {
    static const struct {
        const char *from, *to;
    } reals[] = {
        {"temperature", "general.sampling.temp"},
        {"top_p", "general.sampling.top_p"},
        {"min_p", "general.sampling.min_p"},
        {"repetition_penalty", "general.sampling.penalty_repeat"},
    };
    const json_t *o = c->generation, *top_k = json_object_get(o, "top_k");
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        const json_t *v = json_object_get(o, reals[i].from);
        if (json_is_number(v)) gguf_set_f32(w, reals[i].to, (float)json_number_value(v));
    }
    if (json_is_integer(top_k) && json_integer_value(top_k) >= 0 && json_integer_value(top_k) <= INT32_MAX)
        gguf_set_u32(w, "general.sampling.top_k", (uint32_t)json_integer_value(top_k));
}

void convert_general_write(const HubFolder *c, const char *arch, TensorType type, GgufWriter *w) {
    write_names(c, arch, type, w);
    write_sampling(c, w);
}
