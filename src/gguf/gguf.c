/* gguf.c - opens GGUF files, of which a model may have several, and gives access to what gguf_parse found in them. */
#include "gguf/gguf.h"

#include "base/files.h"
#include "base/hash.h"
#include "base/mem.h"
#include "gguf/gguf_internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------- */

enum { CHUNK_BYTES = 16 << 10 };

struct Chunk {
    Chunk *next;
    size_t used, capacity; /* count the bytes after this struct */
    _Alignas(max_align_t) unsigned char bytes[];
};

void *gguf_allocate(Gguf *g, size_t bytes) {
    size_t align = _Alignof(max_align_t), padded, total;
    if (!size_add(bytes, align - 1, &padded)) return NULL;
    padded -= padded % align;
    Chunk *c = g->chunks;
    if (!c || c->capacity - c->used < padded) {
        size_t capacity = padded > CHUNK_BYTES ? padded : CHUNK_BYTES;
        if (!size_add(capacity, sizeof *c, &total) || !(c = mem_alloc(total))) return NULL;
        *c = (Chunk){.next = g->chunks, .capacity = capacity};
        g->chunks = c;
    }
    void *p = c->bytes + c->used;
    c->used += padded;
    return p;
}

/* ---- open and close -------------------------------------------------------------------------- */

int gguf_open_memory(Gguf **out, const void *bytes, size_t n, const char *name, fr_error *err) {
    *out = NULL;
    Gguf *g = mem_calloc(1, sizeof *g);
    if (!g) return error_memory(err, "an open file", sizeof *g);
    g->bytes = bytes;
    g->n_bytes = n;
    g->path = gguf_allocate(g, strlen(name) + 1);
    int status = FR_OK;
    if (!g->path) status = error_memory(err, "a path", strlen(name) + 1);
    else {
        strcpy(g->path, name);
        status = gguf_parse(g, err);
    }
    if (status) gguf_close(g);
    else *out = g;
    return status;
}

static int open_file(Gguf **out, const char *path, fr_error *err) {
    *out = NULL;
    MappedFile *file;
    int status = mapped_file_open(&file, path, err);
    if (status) return status;
    size_t n;
    const void *bytes = mapped_file_bytes(file, &n);
    if (n == 0) status = error_set(err, FR_ERR_FORMAT, "%s: is empty", path);
    if (!status) status = gguf_open_memory(out, bytes, n, path, err);
    fr_error changed; /* if the file has changed meanwhile, that is the true reason */
    int check = mapped_file_check(file, &changed);
    if (check) status = error_set(err, (fr_code)check, "%s", changed.message);
    if (!status) {
        (*out)->file = file;
        return FR_OK;
    }
    gguf_close(*out);
    *out = NULL;
    mapped_file_close(file);
    return status;
}

/* ---- models in several files --------------------------------------------------------------------- */

/* Large models are published in parts, NAME-00001-of-00003.gguf to NAME-00003-of-00003.gguf (llama.cpp's
 * gguf-split). Each part is a GGUF file of its own with the keys split.no (from 0), split.count and
 * split.tensors.count (of all parts); only the first part has the other key-values. The user names the first part.
 * The others are found by its name, opened and checked like any file, and their tensors are appended to its own, so
 * that no other code needs to know how many files there are. Keys and names must agree with each other, because a
 * part of another model would give a wrong model. */
#define KEY_COUNT "split.count"
#define KEY_NO "split.no"
#define KEY_TENSORS "split.tensors.count"

enum { N_SUFFIX = sizeof "-00001-of-00003.gguf" - 1, N_DIGITS = 5 };

/* Five digits, or -1. */
static int number_at(const char *p) {
    int v = 0;
    for (int i = 0; i < N_DIGITS; i++) {
        if (p[i] < '0' || p[i] > '9') return -1;
        v = 10 * v + (p[i] - '0');
    }
    return v;
}

int gguf_split_count(const char *path) {
    size_t n = strlen(path);
    if (n <= N_SUFFIX) return 1;
    const char *end = path + n - N_SUFFIX;
    int no = number_at(end + 1), count = number_at(end + 10);
    bool fits = end[0] == '-' && memcmp(end + 6, "-of-", 4) == 0 && strcmp(end + 15, ".gguf") == 0;
    return fits && no == 1 && count >= 1 && count <= GGUF_MAX_PARTS ? count : 1;
}

bool gguf_split_path(const char *first, int i, char out[GGUF_MAX_PATH]) {
    size_t n = strlen(first);
    int n_stem = n > N_SUFFIX ? (int)(n - N_SUFFIX) : 0;
    int written = snprintf(out, GGUF_MAX_PATH, "%.*s-%05d-of-%05d.gguf", n_stem, first, i + 1, gguf_split_count(first));
    return written > 0 && written < GGUF_MAX_PATH;
}

/* Reads the value of a key, which must be an integer in [low, high]; `missing` if there is no such key. */
static int read_key(const Gguf *g, const char *key, int64_t missing, int64_t low, int64_t high, int64_t *out,
                    fr_error *err) {
    *out = missing;
    if (gguf_find_key(g, key) < 0) return FR_OK;
    if (gguf_get_i64(g, key, out) && *out >= low && *out <= high) return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: %s must be an integer from %lld to %lld", g->path, key, (long long)low,
                     (long long)high);
}

static int read_place(const Gguf *g, int64_t *no, int64_t *count, fr_error *err) {
    int status = read_key(g, KEY_COUNT, 1, 0, GGUF_MAX_PARTS, count, err);
    if (*count < 1) *count = 1; /* some writers give 0 to a model in one file */
    return status ? status : read_key(g, KEY_NO, 0, 0, *count - 1, no, err);
}

static int check_part(const Gguf *part, int64_t i, int64_t n, fr_error *err) {
    int64_t no, count;
    int status = read_place(part, &no, &count, err);
    if (status || (no == i && count == n)) return status;
    return error_set(err, FR_ERR_MISMATCH, "%s: is part %lld of %lld by its keys, and %lld of %lld by its name",
                     part->path, (long long)no + 1, (long long)count, (long long)i + 1, (long long)n);
}

static int open_part(Gguf *g, int i, fr_error *err) {
    char path[GGUF_MAX_PATH];
    fr_error why;
    if (!gguf_split_path(g->path, i, path))
        return error_set(err, FR_ERR_IO, "%.100s...: the path is too long", g->path);
    int status = open_file(&g->parts[i - 1], path, &why);
    if (status)
        return error_set(err, (fr_code)status, "part %d of %d of the model: %s", i + 1, g->n_parts, why.message);
    return check_part(g->parts[i - 1], i, g->n_parts, err);
}

static int append_tensors(Gguf *g, const Gguf *part, fr_error *err) {
    for (int64_t i = 0; i < part->n_tensors; i++) {
        const GgufTensor *t = &part->tensors[i];
        Printable safe;
        int32_t got;
        if (!hash_table_add(&g->names, t->name, strlen(t->name), (int32_t)g->n_tensors, &got))
            return error_memory(err, "tensor infos", sizeof(HashSlot) * (size_t)g->n_tensors);
        if (got != (int32_t)g->n_tensors)
            return error_set(err, FR_ERR_FORMAT, "%s: the tensor %s is in another part already", part->path,
                             printable(&safe, t->name, strlen(t->name)));
        g->tensors[g->n_tensors++] = *t;
    }
    return FR_OK;
}

static int join_tensors(Gguf *g, fr_error *err) {
    int64_t n = g->n_tensors, wanted;
    for (int i = 0; i < g->n_parts - 1; i++) n += g->parts[i]->n_tensors;
    int status = read_key(g, KEY_TENSORS, n, 0, INT32_MAX, &wanted, err);
    if (status) return status;
    if (wanted != n || n > GGUF_MAX_ENTRIES)
        return error_set(err, FR_ERR_MISMATCH, "%s: promises %lld tensors in %d parts, which have %lld", g->path,
                         (long long)wanted, g->n_parts, (long long)n);
    GgufTensor *all = gguf_allocate(g, (size_t)n * sizeof *all);
    if (!all) return error_memory(err, "tensor infos", (size_t)n * sizeof *all);
    memcpy(all, g->tensors, (size_t)g->n_tensors * sizeof *all);
    g->tensors = all;
    for (int i = 0; i < g->n_parts - 1 && !status; i++) status = append_tensors(g, g->parts[i], err);
    return status;
}

static int join_parts(Gguf *g, fr_error *err) {
    int64_t no, count;
    int status = read_place(g, &no, &count, err);
    if (status || count == 1) return status;
    if (no != 0)
        return error_set(
            err, FR_ERR_ARGUMENT,
            "%s: is part %lld of %lld of a model; give the first part, which ends in -00001-of-%05lld.gguf", g->path,
            (long long)no + 1, (long long)count, (long long)count);
    if (gguf_split_count(g->path) != count)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: is the first of %lld parts, which are found by its name: it must end in "
                         "-00001-of-%05lld.gguf",
                         g->path, (long long)count, (long long)count);
    g->parts = mem_calloc((size_t)count, sizeof *g->parts);
    if (!g->parts) return error_memory(err, "the parts of a model", (size_t)count * sizeof *g->parts);
    g->n_parts = (int)count;
    for (int i = 1; i < g->n_parts && !status; i++) status = open_part(g, i, err);
    return status ? status : join_tensors(g, err);
}

/* ---- the whole model ---------------------------------------------------------------------------- */

int gguf_open(Gguf **out, const char *path, fr_error *err) {
    int status = open_file(out, path, err);
    if (!status) status = join_parts(*out, err);
    if (status) {
        gguf_close(*out);
        *out = NULL;
    }
    return status;
}

int gguf_check(const Gguf *g, fr_error *err) {
    int status = mapped_file_check(g ? g->file : NULL, err);
    for (int i = 0; g && i < g->n_parts - 1 && !status; i++) status = gguf_check(g->parts[i], err);
    return status;
}

void gguf_release(const Gguf *g, const void *begin, size_t n) {
    if (g->file) mapped_file_release(begin, n); /* memory that is not a mapped file would lose its content */
}

void gguf_close(Gguf *g) {
    if (!g) return;
    for (int i = 0; i < g->n_parts - 1; i++) gguf_close(g->parts[i]);
    mem_free(g->parts);
    hash_table_close(&g->keys);
    hash_table_close(&g->names);
    mapped_file_close(g->file);
    for (Chunk *c = g->chunks, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    mem_free(g);
}

const char *gguf_path(const Gguf *g) { return g->path; }
uint32_t gguf_version(const Gguf *g) { return g->version; }
int gguf_n_files(const Gguf *g) { return g->n_parts > 1 ? g->n_parts : 1; }

size_t gguf_file_bytes(const Gguf *g) {
    size_t n = g->n_bytes;
    for (int i = 0; i < g->n_parts - 1; i++) n += g->parts[i]->n_bytes;
    return n;
}

/* ---- tensors and keys ------------------------------------------------------------------------ */

int64_t gguf_n_tensors(const Gguf *g) { return g->n_tensors; }

const GgufTensor *gguf_tensor(const Gguf *g, int64_t i) {
    fr_assert(i >= 0 && i < g->n_tensors);
    return &g->tensors[i];
}

const GgufTensor *gguf_find_tensor(const Gguf *g, const char *name) {
    int32_t i = hash_table_find(&g->names, name, strlen(name));
    return i < 0 ? NULL : &g->tensors[i];
}

static const KeyValue *kv_at(const Gguf *g, int64_t i) {
    fr_assert(i >= 0 && i < g->n_kv);
    return &g->kvs[i];
}

int64_t gguf_n_kv(const Gguf *g) { return g->n_kv; }
const char *gguf_key(const Gguf *g, int64_t i) { return kv_at(g, i)->key; }
GgufType gguf_kv_type(const Gguf *g, int64_t i) { return kv_at(g, i)->type; }
GgufType gguf_kv_element_type(const Gguf *g, int64_t i) { return kv_at(g, i)->element; }
int64_t gguf_kv_count(const Gguf *g, int64_t i) { return kv_at(g, i)->count; }
int64_t gguf_find_key(const Gguf *g, const char *key) { return hash_table_find(&g->keys, key, strlen(key)); }

/* ---- values ---------------------------------------------------------------------------------- */

size_t gguf_scalar_bytes(uint32_t type) {
    static const uint8_t bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
        [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return type < sizeof bytes ? bytes[type] : 0;
}

/* Loads an integer of any width; false for other types, and for U64 beyond INT64_MAX. */
static bool load_i64(GgufType type, const uint8_t *p, int64_t *out) {
    uint64_t v = 0;
    size_t n = gguf_scalar_bytes(type);
    if (type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL || n == 0) return false;
    memcpy(&v, p, n);
    if (type == GGUF_U64 && v > INT64_MAX) return false;
    bool is_signed = type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    uint64_t sign = (uint64_t)1 << (8 * n - 1);
    *out = (int64_t)(is_signed ? (v ^ sign) - sign : v); /* xor and subtract extend the sign bit upwards */
    return true;
}

/* Loads a float; false for other types, and for a finite F64 that F32 cannot hold. */
static bool load_f32(GgufType type, const uint8_t *p, float *out) {
    double d;
    if (type == GGUF_F32) {
        memcpy(out, p, sizeof *out);
        return true;
    }
    if (type != GGUF_F64) return false;
    memcpy(&d, p, sizeof d);
    if (isfinite(d) && fabs(d) > (double)FLT_MAX) return false;
    *out = (float)d;
    return true;
}

/* Returns the string whose length and bytes are p[0..n). The length was read when the file was checked, and is not read
 * again. */
static GgufString load_string(const uint8_t *p, size_t n) {
    return (GgufString){(const char *)p + sizeof(uint64_t), n - sizeof(uint64_t)};
}

/* Returns the key-value of that name, or NULL. A getter of a scalar refuses an array, because its type is
 * GGUF_ARRAY. */
static const KeyValue *find(const Gguf *g, const char *key) {
    int64_t i = gguf_find_key(g, key);
    return i < 0 ? NULL : &g->kvs[i];
}

bool gguf_get_i64(const Gguf *g, const char *key, int64_t *out) {
    const KeyValue *kv = find(g, key);
    return kv && load_i64(kv->type, kv->payload, out);
}

bool gguf_get_u32(const Gguf *g, const char *key, uint32_t *out) {
    int64_t v;
    if (!gguf_get_i64(g, key, &v) || v < 0 || v > UINT32_MAX) return false;
    *out = (uint32_t)v;
    return true;
}

bool gguf_get_f32(const Gguf *g, const char *key, float *out) {
    const KeyValue *kv = find(g, key);
    return kv && load_f32(kv->type, kv->payload, out);
}

bool gguf_get_bool(const Gguf *g, const char *key, bool *out) {
    const KeyValue *kv = find(g, key);
    if (!kv || kv->type != GGUF_BOOL) return false;
    *out = kv->payload[0] != 0;
    return true;
}

bool gguf_get_string(const Gguf *g, const char *key, GgufString *out) {
    const KeyValue *kv = find(g, key);
    if (!kv || kv->type != GGUF_STRING) return false;
    *out = load_string(kv->payload, kv->payload_bytes);
    return true;
}

/* Element i of an array of scalars, or NULL when the key-value is no array. */
static const uint8_t *element_at(const Gguf *g, int64_t kv_i, int64_t i, GgufType *type) {
    const KeyValue *kv = kv_at(g, kv_i);
    fr_assert(i >= 0 && i < kv->count);
    *type = kv->element;
    return kv->type == GGUF_ARRAY ? kv->payload + (size_t)i * gguf_scalar_bytes(kv->element) : NULL;
}

bool gguf_array_string(const Gguf *g, int64_t kv_i, int64_t i, GgufString *out) {
    const KeyValue *kv = kv_at(g, kv_i);
    fr_assert(i >= 0 && i < kv->count);
    if (!kv->strings) return false;
    *out = load_string(kv->payload + kv->strings[i], kv->strings[i + 1] - kv->strings[i]);
    return true;
}

bool gguf_array_f32(const Gguf *g, int64_t kv, int64_t i, float *out) {
    GgufType type;
    const uint8_t *p = element_at(g, kv, i, &type);
    return p && load_f32(type, p, out);
}

bool gguf_array_i64(const Gguf *g, int64_t kv, int64_t i, int64_t *out) {
    GgufType type;
    const uint8_t *p = element_at(g, kv, i, &type);
    return p && load_i64(type, p, out);
}

bool gguf_array_bool(const Gguf *g, int64_t kv, int64_t i, bool *out) {
    GgufType type;
    const uint8_t *p = element_at(g, kv, i, &type);
    if (!p || type != GGUF_BOOL) return false;
    *out = *p != 0;
    return true;
}

/* ---- marks --------------------------------------------------------------------------------------------- */

/* All training changes nearly all numbers of a tensor, so its first bytes show it. Hashes of tensors are added up, so
 * that their order does not matter. Pages that were read count as memory of the process until they are given back. */
enum { MARK_BYTES = 4096 };

static uint64_t hash_of_start(const GgufTensor *t, size_t most) {
    const uint64_t shape[] = {(uint64_t)t->type, (uint64_t)t->dims[0], (uint64_t)t->dims[1]};
    uint64_t hash = hash64(shape, sizeof shape, hash64(t->name, strlen(t->name), 0));
    return hash64_in_pieces(t->data, t->bytes < most ? t->bytes : most, hash, mapped_file_release);
}

uint64_t gguf_tensor_mark(const GgufTensor *t, bool whole) {
    uint64_t hash = hash_of_start(t, whole ? SIZE_MAX : MARK_BYTES);
    mapped_file_release(t->data, t->bytes); /* also what the system has mapped beside the start */
    return hash;
}

uint64_t gguf_weights_mark(const Gguf *g) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) sum += hash_of_start(gguf_tensor(g, i), MARK_BYTES);
    return hash64(&sum, sizeof sum, 0);
}
