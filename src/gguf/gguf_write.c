/* gguf_write.c - writes GGUF files (the layout is drawn at the head of gguf_parse.c). */
#define _POSIX_C_SOURCE 200809L
#include "gguf/gguf_write.h"

#include "base/mem.h"
#include "base/files.h"
#include "gguf/gguf_internal.h"
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILL_BYTES = 32 << 20 }; /* rows made at a time */

typedef struct OutTensor {
    char *name;
    TensorType type;
    bool is_i32, is_i64; /* integers in the place of `type` */
    int n_dims;
    int64_t dims[GGUF_MAX_DIMS];
    size_t row_bytes, bytes;
    const void *data; /* NULL: fill makes the rows */
    GgufFill fill;
    void *ctx;
} OutTensor;

struct GgufWriter {
    Buf kvs; /* encoded */
    struct {
        char *key;
        size_t at; /* where the encoded key begins in kvs */
    } * keys;
    int64_t n_kv, kv_capacity;
    HashTable key_table; /* finds the index of a key */
    OutTensor *tensors;
    int64_t n_tensors, tensor_capacity;
    HashTable tensor_table; /* finds the index of a tensor by its name */
    size_t alignment;
    fr_error failure; /* the first one; code FR_OK: none yet */
};

GgufWriter *gguf_writer_new(void) {
    GgufWriter *w = mem_calloc(1, sizeof *w);
    if (w) {
        w->kvs.max_bytes = (size_t)1 << 32;
        w->alignment = GGUF_DEFAULT_ALIGNMENT;
    }
    return w;
}

void gguf_writer_free(GgufWriter *w) {
    if (!w) return;
    for (int64_t i = 0; i < w->n_kv; i++) free(w->keys[i].key);
    for (int64_t i = 0; i < w->n_tensors; i++) free(w->tensors[i].name);
    free(w->keys);
    free(w->tensors);
    hash_table_close(&w->key_table);
    hash_table_close(&w->tensor_table);
    buf_free(&w->kvs);
    mem_free(w);
}

/* ---- key-values ------------------------------------------------------------------------------ */

static void fail(GgufWriter *w, fr_code code, const char *what, const char *name) {
    Printable safe;
    if (w->failure.code == FR_OK) error_set(&w->failure, code, "%s: %s", printable(&safe, name, strlen(name)), what);
}

static void put(GgufWriter *w, const void *bytes, size_t n) {
    if (!buf_append(&w->kvs, bytes, n)) fail(w, FR_ERR_MEMORY, "out of memory for key-values", "GGUF writer");
}

static void put_u32(GgufWriter *w, uint32_t v) { put(w, &v, sizeof v); }
static void put_u64(GgufWriter *w, uint64_t v) { put(w, &v, sizeof v); }

static bool sound_name(const char *name, size_t max_bytes) { return name[0] != '\0' && strlen(name) <= max_bytes; }

/* Makes room for one more key. */
static bool grow_keys(GgufWriter *w) {
    if (w->n_kv < w->kv_capacity) return true;
    int64_t capacity = w->kv_capacity ? 2 * w->kv_capacity : 64;
    void *keys = realloc(w->keys, (size_t)capacity * sizeof *w->keys);
    if (!keys) return false;
    w->keys = keys;
    w->kv_capacity = capacity;
    return true;
}

static bool has_key(const GgufWriter *w, const char *key) {
    return hash_table_find(&w->key_table, key, strlen(key)) >= 0;
}

/* Writes the key and the type that follows it; false when something has failed now or before. */
static bool begin_kv(GgufWriter *w, const char *key, GgufType type) {
    if (!sound_name(key, GGUF_MAX_KEY_BYTES)) fail(w, FR_ERR_ARGUMENT, "is too long or empty for a key", key);
    else if (has_key(w, key)) fail(w, FR_ERR_ARGUMENT, "the key is set twice", key);
    if (w->failure.code != FR_OK) return false;
    char *copy = strdup(key);
    int32_t id;
    if (!copy || !grow_keys(w) || !hash_table_add(&w->key_table, copy, strlen(copy), (int32_t)w->n_kv, &id)) {
        free(copy);
        fail(w, FR_ERR_MEMORY, "out of memory for a key", key);
        return false;
    }
    w->keys[w->n_kv].key = copy;
    w->keys[w->n_kv++].at = w->kvs.n;
    put_u64(w, strlen(key));
    put(w, key, strlen(key));
    put_u32(w, (uint32_t)type);
    return true;
}

static bool begin_array(GgufWriter *w, const char *key, GgufType element, int64_t n) {
    if (!begin_kv(w, key, GGUF_ARRAY)) return false;
    put_u32(w, (uint32_t)element);
    put_u64(w, (uint64_t)n);
    return true;
}

static void obey_alignment(GgufWriter *w, const char *key, uint32_t v) {
    if (strcmp(key, "general.alignment") != 0) return;
    if (v < GGUF_MIN_ALIGNMENT || v > GGUF_MAX_ALIGNMENT || (v & (v - 1)) != 0)
        fail(w, FR_ERR_ARGUMENT, "must be a power of two from 8 to 65536", key);
    else w->alignment = v;
}

void gguf_set_u32(GgufWriter *w, const char *key, uint32_t v) {
    if (begin_kv(w, key, GGUF_U32)) put_u32(w, v);
    obey_alignment(w, key, v);
}

void gguf_set_u64(GgufWriter *w, const char *key, uint64_t v) {
    if (begin_kv(w, key, GGUF_U64)) put_u64(w, v);
}

void gguf_set_f32(GgufWriter *w, const char *key, float v) {
    if (begin_kv(w, key, GGUF_F32)) put(w, &v, sizeof v);
}

void gguf_set_bool(GgufWriter *w, const char *key, bool v) {
    uint8_t byte = v;
    if (begin_kv(w, key, GGUF_BOOL)) put(w, &byte, sizeof byte);
}

void gguf_set_string(GgufWriter *w, const char *key, const char *v, size_t n) {
    if (!begin_kv(w, key, GGUF_STRING)) return;
    put_u64(w, n);
    put(w, v, n);
}

void gguf_set_strings(GgufWriter *w, const char *key, const GgufString *v, int64_t n) {
    if (!begin_array(w, key, GGUF_STRING, n)) return;
    for (int64_t i = 0; i < n; i++) {
        put_u64(w, v[i].n);
        put(w, v[i].data, v[i].n);
    }
}

void gguf_set_f32s(GgufWriter *w, const char *key, const float *v, int64_t n) {
    if (begin_array(w, key, GGUF_F32, n)) put(w, v, (size_t)n * sizeof *v);
}

void gguf_set_i32s(GgufWriter *w, const char *key, const int32_t *v, int64_t n) {
    if (begin_array(w, key, GGUF_I32, n)) put(w, v, (size_t)n * sizeof *v);
}

void gguf_copy_kv(GgufWriter *w, const Gguf *g, int64_t i) {
    const KeyValue *kv = &g->kvs[i];
    uint32_t alignment;
    if (kv->type == GGUF_ARRAY ? !begin_array(w, kv->key, kv->element, kv->count) : !begin_kv(w, kv->key, kv->type))
        return;
    put(w, kv->payload, kv->payload_bytes);
    if (gguf_get_u32(g, kv->key, &alignment)) obey_alignment(w, kv->key, alignment);
}

void gguf_copy_kvs(GgufWriter *w, const Gguf *g, const char *except_prefix) {
    for (int64_t i = 0; i < g->n_kv; i++) {
        const KeyValue *kv = &g->kvs[i];
        bool excepted = except_prefix && strncmp(kv->key, except_prefix, strlen(except_prefix)) == 0;
        if (!excepted && !has_key(w, kv->key)) gguf_copy_kv(w, g, i);
    }
}

/* Returns whether key-value i of the writer has the same encoding as key-value of_file of the file; *fits: memory
 * sufficed. */
static bool same_kv(const GgufWriter *w, int64_t i, const Gguf *g, int64_t of_file, bool *fits) {
    size_t at = w->keys[i].at, end = i + 1 < w->n_kv ? w->keys[i + 1].at : w->kvs.n;
    GgufWriter *other = gguf_writer_new();
    if (other) gguf_copy_kv(other, g, of_file);
    *fits = other && other->failure.code == FR_OK;
    bool same = *fits && other->kvs.n == end - at && memcmp(other->kvs.data, w->kvs.data + at, end - at) == 0;
    gguf_writer_free(other);
    return same;
}

const char *gguf_writer_differs(const GgufWriter *w, const Gguf *g, const char *prefix) {
    size_t n = strlen(prefix);
    for (int64_t i = 0; i < w->n_kv; i++) {
        const char *key = w->keys[i].key;
        int64_t of_file = gguf_find_key(g, key);
        bool fits = true;
        if (strncmp(key, prefix, n) == 0 && (of_file < 0 || !same_kv(w, i, g, of_file, &fits))) return fits ? key : "";
    }
    for (int64_t i = 0; i < gguf_n_kv(g); i++)
        if (strncmp(gguf_key(g, i), prefix, n) == 0 && !has_key(w, gguf_key(g, i))) return gguf_key(g, i);
    return NULL;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Makes room for one more tensor. */
static bool grow_tensors(GgufWriter *w) {
    if (w->n_tensors < w->tensor_capacity) return true;
    int64_t capacity = w->tensor_capacity ? 2 * w->tensor_capacity : 64;
    OutTensor *tensors = realloc(w->tensors, (size_t)capacity * sizeof *tensors);
    if (!tensors) return false;
    w->tensors = tensors;
    w->tensor_capacity = capacity;
    return true;
}

/* Computes sizes from the shape; false if the shape is impossible for the type. */
static bool measure(OutTensor *t) {
    if (t->n_dims < 1 || t->n_dims > GGUF_MAX_DIMS) return false;
    for (int d = 0; d < t->n_dims; d++)
        if (t->dims[d] < 1) return false;
    size_t of_list = t->is_i32 ? sizeof(int32_t) : t->is_i64 ? sizeof(int64_t) : 0;
    bool fits = of_list ? size_mul((size_t)t->dims[0], of_list, &t->row_bytes)
                        : tensor_type_row_bytes(t->type, t->dims[0], &t->row_bytes);
    if (!fits) return false;
    t->bytes = t->row_bytes;
    for (int d = 1; d < t->n_dims; d++)
        if (!size_mul(t->bytes, (size_t)t->dims[d], &t->bytes)) return false;
    return t->bytes < SIZE_MAX - GGUF_MAX_ALIGNMENT;
}

static void add_tensor(GgufWriter *w, const char *name, OutTensor t, const int64_t *dims) {
    for (int d = 0; d < t.n_dims && d < GGUF_MAX_DIMS; d++) t.dims[d] = dims[d];
    if (!sound_name(name, GGUF_MAX_TENSOR_NAME_BYTES))
        fail(w, FR_ERR_ARGUMENT, "is too long or empty for the name of a tensor", name);
    else if (!measure(&t)) fail(w, FR_ERR_ARGUMENT, "the shape is impossible for a tensor of this type", name);
    else if (hash_table_find(&w->tensor_table, name, strlen(name)) >= 0)
        fail(w, FR_ERR_ARGUMENT, "the tensor is added twice", name);
    if (w->failure.code != FR_OK) return;
    t.name = strdup(name);
    int32_t id;
    if (!t.name || !grow_tensors(w) ||
        !hash_table_add(&w->tensor_table, t.name, strlen(name), (int32_t)w->n_tensors, &id)) {
        free(t.name);
        fail(w, FR_ERR_MEMORY, "out of memory for a tensor info", name);
        return;
    }
    w->tensors[w->n_tensors++] = t;
}

void gguf_add_tensor(GgufWriter *w, const char *name, TensorType type, int n_dims, const int64_t *dims,
                     const void *data) {
    add_tensor(w, name, (OutTensor){.type = type, .n_dims = n_dims, .data = data}, dims);
}

void gguf_add_map(GgufWriter *w, const int64_t *tokens, int64_t n) {
    add_tensor(w, GGUF_MAP, (OutTensor){.is_i64 = true, .n_dims = 1, .data = tokens}, &n);
}

void gguf_add_clusters(GgufWriter *w, const int32_t *tokens, int64_t n) {
    add_tensor(w, GGUF_CLUSTERS, (OutTensor){.is_i32 = true, .n_dims = 1, .data = tokens}, &n);
}

void gguf_add_tensor_filled(GgufWriter *w, const char *name, TensorType type, int n_dims, const int64_t *dims,
                            GgufFill fill, void *ctx) {
    add_tensor(w, name, (OutTensor){.type = type, .n_dims = n_dims, .fill = fill, .ctx = ctx}, dims);
}

void gguf_writer_refuse(GgufWriter *w, fr_code code, const char *sentence) {
    if (w->failure.code == FR_OK) error_set(&w->failure, code, "%s", sentence);
}

/* ---- the file -------------------------------------------------------------------------------- */

static size_t padded(const GgufWriter *w, size_t n) { return (n + w->alignment - 1) / w->alignment * w->alignment; }

/* A file being written: counts its bytes, and keeps the first failure. */
typedef struct Out {
    FILE *file;
    size_t at;
    bool broken;
} Out;

static void out_bytes(Out *o, const void *bytes, size_t n) {
    if (n && fwrite(bytes, 1, n, o->file) != n) o->broken = true;
    o->at += n;
}

static void out_u32(Out *o, uint32_t v) { out_bytes(o, &v, sizeof v); }
static void out_u64(Out *o, uint64_t v) { out_bytes(o, &v, sizeof v); }

static void out_padding(const GgufWriter *w, Out *o) {
    static const char zeros[64];
    for (size_t n = padded(w, o->at) - o->at, step; n; n -= step) {
        step = n < sizeof zeros ? n : sizeof zeros;
        out_bytes(o, zeros, step);
    }
}

static void out_infos(const GgufWriter *w, Out *o) {
    size_t offset = 0;
    for (int64_t i = 0; i < w->n_tensors; i++) {
        const OutTensor *t = &w->tensors[i];
        out_u64(o, strlen(t->name));
        out_bytes(o, t->name, strlen(t->name));
        out_u32(o, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++) out_u64(o, (uint64_t)t->dims[d]);
        out_u32(o, t->is_i32 ? GGUF_TENSOR_I32 : t->is_i64 ? GGUF_TENSOR_I64 : tensor_type_info(t->type)->gguf_id);
        out_u64(o, offset);
        offset += padded(w, t->bytes);
    }
}

/* Makes the rows of a tensor piece by piece and writes each; false when there is no memory. */
static bool out_filled(const GgufWriter *w, const OutTensor *t, Out *o) {
    int64_t n_rows = (int64_t)(t->bytes / t->row_bytes), step = (int64_t)(FILL_BYTES / t->row_bytes);
    if (step < 1) step = 1;
    if (step > n_rows) step = n_rows;
    void *rows = mem_alloc((size_t)step * t->row_bytes);
    if (!rows) return false;
    for (int64_t row = 0; row < n_rows && !o->broken && w->failure.code == FR_OK; row += step) {
        int64_t n = n_rows - row < step ? n_rows - row : step;
        t->fill(t->ctx, row, n, rows);
        out_bytes(o, rows, (size_t)n * t->row_bytes);
    }
    mem_free(rows);
    return true;
}

static int report_failure(const GgufWriter *w, const char *path, fr_error *err) {
    if (w->failure.code == FR_OK) return FR_OK;
    return error_set(err, w->failure.code, "%.100s: %s", path, w->failure.message);
}

static int out_all(const GgufWriter *w, Out *o, const char *path, fr_error *err) {
    out_bytes(o, "GGUF", 4);
    out_u32(o, 3);
    out_u64(o, (uint64_t)w->n_tensors);
    out_u64(o, (uint64_t)w->n_kv);
    out_bytes(o, w->kvs.data, w->kvs.n);
    out_infos(w, o);
    out_padding(w, o);
    for (int64_t i = 0; i < w->n_tensors && !o->broken && w->failure.code == FR_OK; i++) {
        const OutTensor *t = &w->tensors[i];
        if (t->data) out_bytes(o, t->data, t->bytes);
        else if (!out_filled(w, t, o)) return error_memory(err, "rows of a tensor", t->row_bytes);
        out_padding(w, o);
    }
    if (o->broken) return error_set(err, FR_ERR_IO, "%.200s: cannot be written: %s", path, strerror(errno));
    return report_failure(w, path, err);
}

int gguf_writer_finish(GgufWriter *w, const char *path, fr_error *err) {
    ReplaceFile out;
    int status = report_failure(w, path, err);
    if (!status) status = replace_file_begin(&out, path, err);
    if (status) return status;
    Out o = {.file = out.file};
    return replace_file_end(&out, out_all(w, &o, path, err), err);
}
