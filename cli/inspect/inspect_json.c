/* inspect_json.c - `forerun inspect --json`. */
#include "base/mem.h"
#include "cli/inspect/inspect.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns a string of the file as JSON. One that is not UTF-8 is read as Latin-1. */
static json_t *text(GgufString s) {
    json_t *j = json_stringn(s.data, s.n);
    if (j) return j;
    Buf b = {.max_bytes = SIZE_MAX / 4};
    bool fits = true;
    for (size_t i = 0; i < s.n && fits; i++) {
        unsigned char c = (unsigned char)s.data[i];
        unsigned char two[2] = {(unsigned char)(0xc0 | c >> 6), (unsigned char)(0x80 | (c & 0x3f))};
        fits = c < 0x80 ? buf_append(&b, &c, 1) : buf_append(&b, two, 2);
    }
    j = fits ? json_stringn(b.data, b.n) : NULL;
    buf_free(&b);
    return j;
}

static json_t *real(float f) { return isfinite(f) ? json_real(inspect_shortest_decimal(f)) : json_null(); }

/* Takes ownership of the value. A key that is not UTF-8 is left out. */
static void set(json_t *object, const char *key, json_t *value) { json_object_set_new(object, key, value); }

static void set_number(json_t *object, const char *key, int64_t v) {
    if (v >= 0) set(object, key, json_integer(v));
}

static void set_text(json_t *object, const char *key, GgufString s) {
    if (s.n) set(object, key, text(s));
}

static json_t *scalar(const Gguf *g, const char *key) {
    int64_t v;
    float f;
    bool b;
    GgufString s;
    if (gguf_get_i64(g, key, &v)) return json_integer(v);
    if (gguf_get_f32(g, key, &f)) return real(f);
    if (gguf_get_bool(g, key, &b)) return json_boolean(b);
    if (gguf_get_string(g, key, &s)) return text(s);
    return json_null(); /* a number beyond the range of int64 or float */
}

static json_t *element(const Gguf *g, int64_t kv, int64_t i) {
    int64_t v;
    float f;
    GgufString s;
    if (gguf_array_i64(g, kv, i, &v)) return json_integer(v);
    if (gguf_array_f32(g, kv, i, &f)) return real(f);
    if (gguf_array_string(g, kv, i, &s)) return text(s);
    return json_null();
}

/* Makes {"element_type": ..., "count": ..., "first": [...]}. */
static json_t *array(const Gguf *g, int64_t kv) {
    json_t *first = json_array(), *object = json_object();
    for (int64_t i = 0; i < gguf_kv_count(g, kv) && i < MAX_ELEMENTS; i++)
        json_array_append_new(first, element(g, kv, i));
    set(object, "element_type", json_string(inspect_type_name(gguf_kv_element_type(g, kv))));
    set(object, "count", json_integer(gguf_kv_count(g, kv)));
    set(object, "first", first);
    return object;
}

static json_t *key_values(const Gguf *g) {
    json_t *object = json_object();
    for (int64_t i = 0; i < gguf_n_kv(g); i++) {
        const char *key = gguf_key(g, i);
        set(object, key, gguf_kv_type(g, i) == GGUF_ARRAY ? array(g, i) : scalar(g, key));
    }
    return object;
}

static json_t *tensor_types(const Summary *s) {
    json_t *object = json_object();
    for (int t = 0; t < TYPE_COUNT; t++) {
        if (!s->types[t].n_tensors) continue;
        json_t *one = json_object();
        set(one, "tensors", json_integer(s->types[t].n_tensors));
        set(one, "bytes", json_integer((json_int_t)s->types[t].bytes));
        set(object, tensor_type_info((TensorType)t)->name, one);
    }
    return object;
}

static json_t *tensors(const Gguf *g) {
    json_t *list = json_array();
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        json_t *one = json_object(), *shape = json_array();
        for (int d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer(t->dims[d]));
        set(one, "name", text((GgufString){t->name, strlen(t->name)}));
        set(one, "type", json_string(inspect_tensor_type(t)));
        set(one, "shape", shape);
        set(one, "bytes", json_integer((json_int_t)t->bytes));
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *drafter(const Summary *s) {
    json_t *object = json_object();
    set_text(object, "method", s->drafter.method);
    set_text(object, "target", s->drafter.target);
    set_text(object, "target_fingerprint", s->drafter.fingerprint);
    set_text(object, "trained_by", s->drafter.command);
    set_text(object, "trained_on", s->drafter.data);
    set_text(object, "trained_in", s->drafter.precision);
    return object;
}

static json_t *whole(const Gguf *g, const Summary *s, bool with_tensors) {
    json_t *root = json_object();
    const char *path = gguf_path(g);
    set(root, "path", text((GgufString){path, strlen(path)}));
    set(root, "gguf_version", json_integer(gguf_version(g)));
    set(root, "file_bytes", json_integer((json_int_t)gguf_file_bytes(g)));
    set_text(root, "name", s->name);
    set_text(root, "architecture", s->architecture);
    set(root, "parameters", json_integer(s->n_parameters));
    set_number(root, "context_length", s->n_context);
    set_number(root, "layers", s->n_layers);
    set_number(root, "width", s->width);
    set_number(root, "feed_forward", s->feed_forward);
    set_number(root, "heads", s->n_heads);
    set_number(root, "kv_heads", s->n_kv_heads);
    set_number(root, "head_dim", s->head_dim);
    set_number(root, "vocab_size", s->n_vocab);
    set_text(root, "tokenizer_model", s->vocab_model);
    set_text(root, "pre_tokenizer", s->vocab_pre);
    set(root, "chat_template", json_boolean(s->chat_family));
    if (s->chat_family) {
        set(root, "chat_family", json_string(s->chat_family));
        set(root, "chat_template_text", text(s->chat_template));
        if (s->chat_error[0]) set(root, "chat_template_error", json_string(s->chat_error));
    }
    if (s->drafter.method.n) set(root, "drafter", drafter(s));
    if (s->target)
        set(root, "shared_vocab",
            json_pack("{s:o, s:i, s:I, s:b}", "target", text((GgufString){s->target, strlen(s->target)}), "tokens",
                      (int)s->n_shared, "of", (json_int_t)s->n_target_vocab, "same_ids", s->same_ids));
    set(root, "n_tensors", json_integer(gguf_n_tensors(g)));
    set(root, "tensor_types", tensor_types(s));
    set(root, "key_values", key_values(g));
    if (with_tensors) set(root, "tensors", tensors(g));
    return root;
}

int inspect_print_json(const Gguf *g, const Summary *s, bool with_tensors, fr_error *err) {
    json_t *root = whole(g, s, with_tensors);
    char *printed = root ? json_dumps(root, JSON_INDENT(2) | JSON_ENSURE_ASCII) : NULL;
    json_decref(root);
    if (!printed) return error_memory(err, "a JSON text", 0);
    puts(printed);
    free(printed);
    return FR_OK;
}
