/* gguf_build.c - appends the pieces of a GGUF file to a buffer, and reads every accessor of an open file. */
#include "gguf_build.h"

#include "base/error.h"
#include "gguf/tensor_type.h"

#include <string.h>

static void put(Buf *b, const void *bytes, size_t n) { fr_assert(buf_append(b, bytes, n)); }

void put_u8(Buf *b, uint8_t v) { put(b, &v, sizeof v); }
void put_u32(Buf *b, uint32_t v) { put(b, &v, sizeof v); }
void put_u64(Buf *b, uint64_t v) { put(b, &v, sizeof v); }

void put_string(Buf *b, const char *s) {
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

void put_header(Buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}

static void put_key(Buf *b, const char *key, GgufType type) {
    put_string(b, key);
    put_u32(b, (uint32_t)type);
}

void put_kv_u32(Buf *b, const char *key, uint32_t v) {
    put_key(b, key, GGUF_U32);
    put_u32(b, v);
}

void put_kv_string(Buf *b, const char *key, const char *v) {
    put_key(b, key, GGUF_STRING);
    put_string(b, v);
}

void put_tensor(Buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset) {
    put_string(b, name);
    put_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) put_u64(b, dims[d]);
    put_u32(b, type);
    put_u64(b, offset);
}

void put_zeros(Buf *b, size_t n) {
    for (size_t i = 0; i < n; i++) put_u8(b, 0);
}

void put_padding(Buf *b, size_t alignment) {
    while (b->n % alignment) put_u8(b, 0);
}

static void put_array(Buf *b, const char *key, GgufType element, uint64_t n) {
    put_key(b, key, GGUF_ARRAY);
    put_u32(b, (uint32_t)element);
    put_u64(b, n);
}

static void put_arrays(Buf *b) {
    put_array(b, "test.strings", GGUF_STRING, 3);
    put_string(b, "one");
    put_string(b, "");
    put_string(b, "three");
    put_array(b, "test.i32s", GGUF_I32, 2);
    put_u32(b, 7);
    put_u32(b, (uint32_t)-9);
    put_array(b, "test.f32s", GGUF_F32, 2);
    put_u32(b, 0x3fc00000); /* 1.5 */
    put_u32(b, 0xc0000000); /* -2 */
    put_array(b, "test.empty", GGUF_STRING, 0);
}

void put_sound_file(Buf *b) {
    static const struct {
        const char *key;
        GgufType type;
        uint64_t bits;
        size_t n;
    } scalars[] = {
        {"test.u8", GGUF_U8, 200, 1},
        {"test.i8", GGUF_I8, 0xfe, 1},
        {"test.u16", GGUF_U16, 60000, 2},
        {"test.i16", GGUF_I16, 0xfffd, 2},
        {"test.u32", GGUF_U32, 4000000000u, 4},
        {"test.i32", GGUF_I32, 0xfffffffcu, 4},
        {"test.f32", GGUF_F32, 0x3f000000, 4},
        {"test.bool", GGUF_BOOL, 1, 1},
        {"test.u64", GGUF_U64, UINT64_MAX, 8},
        {"test.i64", GGUF_I64, (uint64_t)-5, 8},
        {"test.f64", GGUF_F64, 0x3fd0000000000000u, 8},
    };
    enum { N_SCALARS = sizeof scalars / sizeof *scalars };
    put_header(b, 3, 3, 2 + N_SCALARS + 4);
    put_kv_string(b, "general.architecture", "test");
    put_kv_u32(b, "general.alignment", 32);
    for (size_t i = 0; i < N_SCALARS; i++) {
        put_key(b, scalars[i].key, scalars[i].type);
        put(b, &scalars[i].bits, scalars[i].n);
    }
    put_arrays(b);
    put_tensor(b, "a", 1, (uint64_t[]){5}, 0, 0);
    put_tensor(b, "b", 2, (uint64_t[]){64, 2}, 8, 32);
    put_tensor(b, "c", 3, (uint64_t[]){3, 2, 2}, 1, 192);
    put_padding(b, 32);
    for (int i = 0; i < 192 + 24; i++) put_u8(b, (uint8_t)(i * 7 % 60));
}

static uint64_t touch_kv(const Gguf *g, int64_t i) {
    const char *key = gguf_key(g, i);
    uint64_t sum = strlen(key) + (uint64_t)gguf_kv_type(g, i) + (uint64_t)gguf_kv_element_type(g, i);
    uint32_t u;
    int64_t v;
    float f;
    bool b;
    GgufString s;
    if (gguf_get_u32(g, key, &u)) sum += u;
    if (gguf_get_i64(g, key, &v)) sum += (uint64_t)v;
    if (gguf_get_f32(g, key, &f)) sum += f > 0;
    if (gguf_get_bool(g, key, &b)) sum += b;
    if (gguf_get_string(g, key, &s))
        for (size_t j = 0; j < s.n; j++) sum += (unsigned char)s.data[j];
    if (gguf_kv_type(g, i) != GGUF_ARRAY) return sum;
    for (int64_t e = 0; e < gguf_kv_count(g, i); e++) {
        if (gguf_array_i64(g, i, e, &v)) sum += (uint64_t)v;
        if (gguf_array_f32(g, i, e, &f)) sum += f > 0;
        if (gguf_array_string(g, i, e, &s) && s.n) sum += (unsigned char)s.data[0] + (unsigned char)s.data[s.n - 1];
    }
    return sum;
}

uint64_t touch_everything(const Gguf *g) {
    uint64_t sum = gguf_version(g) + gguf_file_bytes(g) + strlen(gguf_path(g));
    for (int64_t i = 0; i < gguf_n_kv(g); i++) {
        fr_assert(gguf_find_key(g, gguf_key(g, i)) == i);
        sum += touch_kv(g, i);
    }
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        fr_assert(gguf_find_tensor(g, t->name) == t);
        const uint8_t *data = t->data;
        float x[256];
        blocks_dequantize(t->type, data, tensor_type_info(t->type)->block_n, x);
        sum += (uint64_t)(data[0] + data[t->bytes - 1] + (x[0] > 0));
    }
    return sum;
}
