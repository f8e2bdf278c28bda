/* gguf_parse.c - checks a GGUF file from its first byte to its last and records where everything is.
 *
 * The layout, all numbers little-endian:
 *
 *     "GGUF"  version:u32  n_tensors:u64  n_kv:u64
 *     n_kv      x { key:string  type:u32  value }           string: n:u64, then n bytes without '\0'
 *     n_tensors x { name:string  n_dims:u32  dims:u64[n_dims]  type:u32  offset:u64 }
 *     zeros up to a multiple of general.alignment (32 where the key is missing)
 *     tensor data; an offset counts from here and is a multiple of the alignment
 *
 * An array value is { element type:u32 n:u64 elements }. No file is trusted, so nothing in it is used before it is
 * checked against the bytes that are really there: every number is read through reader_take, which refuses to pass the
 * end, and every count is first compared with the bytes that this many entries need at least. After gguf_parse the
 * accessors of gguf.c need no checks of the file. (The published description is gguf.md of the ggml project.)
 */
#include "gguf/gguf_internal.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF files are read in place on little-endian machines");
_Static_assert(sizeof(size_t) == 8, "models are larger than a 32-bit program can map");

enum {
    MIN_KV_BYTES = 8 + 1 + 4 + 1,             /* a key of one letter and a one-byte value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* a name of one letter and one dimension */
};

/* ---- reading ----------------------------------------------------------------------------------- */

/* A cursor over the bytes of a file that cannot pass their end. */
typedef struct Reader {
    Gguf *g;
    size_t at; /* the next byte to read; never past g->n_bytes */
    fr_error *err;
} Reader;

/* Sets the error to "PATH: sentence" and returns code. Names from the file must be printable() first. */
__attribute__((format(printf, 3, 4))) static int reader_refuse(Reader *r, fr_code code, const char *fmt, ...) {
    char sentence[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    return error_set(r->err, code, "%.100s: %s", r->g->path, sentence);
}

static size_t reader_left(const Reader *r) { return r->g->n_bytes - r->at; }

/* Returns the next n bytes, or NULL with the error set; `what` names the thing that is being read. */
static const uint8_t *reader_take(Reader *r, size_t n, const char *what) {
    if (n > reader_left(r)) {
        reader_refuse(r, FR_ERR_FORMAT, "the file ends inside %s: it has %zu bytes and needs %zu; fetch it again", what,
                      r->g->n_bytes, r->at + n);
        return NULL;
    }
    const uint8_t *p = r->g->bytes + r->at;
    r->at += n;
    return p;
}

static int reader_u32(Reader *r, const char *what, uint32_t *out) {
    const uint8_t *p = reader_take(r, sizeof *out, what);
    if (!p) return FR_ERR_FORMAT;
    memcpy(out, p, sizeof *out);
    return FR_OK;
}

static int reader_u64(Reader *r, const char *what, uint64_t *out) {
    const uint8_t *p = reader_take(r, sizeof *out, what);
    if (!p) return FR_ERR_FORMAT;
    memcpy(out, p, sizeof *out);
    return FR_OK;
}

/* Reads a key or a tensor name, which must be short, not empty and without '\0'. It is copied with a '\0' at its
 * end. */
static int reader_name(Reader *r, const char *what, size_t max_bytes, const char **out) {
    uint64_t n;
    if (reader_u64(r, what, &n)) return FR_ERR_FORMAT;
    if (n == 0 || n > max_bytes)
        return reader_refuse(r, FR_ERR_FORMAT, "%s at byte %zu is %llu bytes long; 1 to %zu are allowed", what,
                             r->at - 8, (unsigned long long)n, max_bytes);
    const uint8_t *p = reader_take(r, (size_t)n, what);
    if (!p) return FR_ERR_FORMAT;
    if (memchr(p, '\0', (size_t)n))
        return reader_refuse(r, FR_ERR_FORMAT, "%s at byte %zu holds a zero byte", what, r->at - (size_t)n);
    char *name = gguf_allocate(r->g, (size_t)n + 1);
    if (!name) return error_memory(r->err, what, (size_t)n + 1);
    memcpy(name, p, (size_t)n);
    name[n] = '\0';
    *out = name;
    return FR_OK;
}

/* ---- header ---------------------------------------------------------------------------------- */

static int check_version(Reader *r, uint32_t version) {
    if (version == 1)
        return reader_refuse(r, FR_ERR_UNSUPPORTED,
                             "this is GGUF version 1, which is no longer read; convert the model again");
    if ((version & 0xffff) == 0 && version != 0)
        return reader_refuse(r, FR_ERR_UNSUPPORTED,
                             "this is a big-endian GGUF file; fetch or convert the little-endian one");
    if (version != 2 && version != 3)
        return reader_refuse(r, FR_ERR_UNSUPPORTED, "GGUF version %u is not supported; versions 2 and 3 are", version);
    r->g->version = version;
    return FR_OK;
}

static int check_count(Reader *r, uint64_t count, size_t min_bytes, const char *what) {
    if (count > reader_left(r) / min_bytes)
        return reader_refuse(r, FR_ERR_FORMAT,
                             "the header claims %llu %s, more than fit into the %zu bytes of the file",
                             (unsigned long long)count, what, r->g->n_bytes);
    if (count > GGUF_MAX_ENTRIES)
        return reader_refuse(r, FR_ERR_FORMAT, "the header claims %llu %s; at most %d are allowed",
                             (unsigned long long)count, what, GGUF_MAX_ENTRIES);
    return FR_OK;
}

static int parse_header(Reader *r) {
    uint32_t version;
    uint64_t n_tensors, n_kv;
    int status;
    if (r->g->n_bytes < 4 || memcmp(r->g->bytes, "GGUF", 4) != 0)
        return reader_refuse(r, FR_ERR_FORMAT, "this is not a GGUF file: it does not begin with the letters GGUF");
    r->at = 4;
    if ((status = reader_u32(r, "the header", &version)) || (status = check_version(r, version))) return status;
    if ((status = reader_u64(r, "the header", &n_tensors)) || (status = reader_u64(r, "the header", &n_kv)))
        return status;
    if ((status = check_count(r, n_kv, MIN_KV_BYTES, "key-values"))) return status;
    if ((status = check_count(r, n_tensors, MIN_TENSOR_BYTES, "tensors"))) return status;
    r->g->n_kv = (int64_t)n_kv;
    r->g->n_tensors = (int64_t)n_tensors;
    return FR_OK;
}

/* ---- key-values ------------------------------------------------------------------------------ */

static int skip_string(Reader *r, const char *what) {
    uint64_t n;
    if (reader_u64(r, what, &n)) return FR_ERR_FORMAT;
    if (n > reader_left(r))
        return reader_refuse(r, FR_ERR_FORMAT, "a string in %s claims %llu bytes where the file has %zu left", what,
                             (unsigned long long)n, reader_left(r));
    r->at += (size_t)n;
    return FR_OK;
}

static int check_bools(Reader *r, const uint8_t *p, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (p[i] > 1)
            return reader_refuse(r, FR_ERR_FORMAT, "%s holds the byte %u where only 0 and 1 are allowed", what, p[i]);
    return FR_OK;
}

/* Walks over the strings of an array and records where each starts, so that any can be read in O(1). */
static int parse_strings(Reader *r, KeyValue *kv, uint64_t count, const char *what) {
    if (count > reader_left(r) / 8)
        return reader_refuse(r, FR_ERR_FORMAT, "%s claims %llu strings where the file has %zu bytes left", what,
                             (unsigned long long)count, reader_left(r));
    size_t bytes = ((size_t)count + 1) * sizeof(size_t), *starts = gguf_allocate(r->g, bytes);
    if (!starts) return error_memory(r->err, what, bytes);
    size_t begin = r->at;
    for (uint64_t i = 0; i < count; i++) {
        starts[i] = r->at - begin;
        int status = skip_string(r, what);
        if (status) return status;
    }
    starts[count] = r->at - begin;
    kv->strings = starts;
    return FR_OK;
}

static int parse_array(Reader *r, KeyValue *kv, const char *what) {
    uint32_t element;
    uint64_t count;
    if (reader_u32(r, what, &element) || reader_u64(r, what, &count)) return FR_ERR_FORMAT;
    if (element == GGUF_ARRAY)
        return reader_refuse(r, FR_ERR_UNSUPPORTED, "%s is an array of arrays, which is not supported", what);
    kv->element = (GgufType)element;
    kv->payload = r->g->bytes + r->at;
    if (element == GGUF_STRING) {
        int status = parse_strings(r, kv, count, what);
        if (status) return status;
    } else {
        size_t each = gguf_scalar_bytes(element);
        if (!each)
            return reader_refuse(r, FR_ERR_FORMAT, "%s has elements of type %u, which does not exist", what, element);
        if (count > reader_left(r) / each)
            return reader_refuse(r, FR_ERR_FORMAT, "%s claims %llu elements where the file has %zu bytes left", what,
                                 (unsigned long long)count, reader_left(r));
        r->at += (size_t)count * each;
    }
    kv->count = (int64_t)count; /* fits: it is below the size of the file */
    return FR_OK;
}

/* Values are copied, because the file is mapped: what was checked must not change afterwards. */
static int copy_payload(Reader *r, KeyValue *kv, const char *what) {
    kv->payload_bytes = (size_t)(r->g->bytes + r->at - kv->payload);
    uint8_t *copy = gguf_allocate(r->g, kv->payload_bytes);
    if (!copy) return error_memory(r->err, what, kv->payload_bytes);
    if (kv->payload_bytes) memcpy(copy, kv->payload, kv->payload_bytes);
    kv->payload = copy;
    return kv->element == GGUF_BOOL ? check_bools(r, copy, kv->payload_bytes, what) : FR_OK;
}

static int parse_value(Reader *r, KeyValue *kv) {
    Printable safe;
    char what[PRINTABLE_MAX + 16];
    snprintf(what, sizeof what, "the key %s", printable(&safe, kv->key, strlen(kv->key)));
    uint32_t type;
    int status = reader_u32(r, what, &type);
    if (status) return status;
    kv->type = kv->element = (GgufType)type;
    kv->count = 1;
    kv->payload = r->g->bytes + r->at;
    if (type == GGUF_ARRAY) status = parse_array(r, kv, what);
    else if (type == GGUF_STRING) status = skip_string(r, what);
    else if (gguf_scalar_bytes(type)) status = reader_take(r, gguf_scalar_bytes(type), what) ? FR_OK : FR_ERR_FORMAT;
    else status = reader_refuse(r, FR_ERR_FORMAT, "%s has value type %u, which does not exist", what, type);
    return status ? status : copy_payload(r, kv, what);
}

static int parse_kvs(Reader *r) {
    Gguf *g = r->g;
    size_t n = (size_t)g->n_kv;
    g->kvs = gguf_allocate(g, n * sizeof *g->kvs);
    if (!g->kvs) return error_memory(r->err, "key-values", n * sizeof *g->kvs);
    memset(g->kvs, 0, n * sizeof *g->kvs);
    for (size_t i = 0; i < n; i++) {
        KeyValue *kv = &g->kvs[i];
        int status = reader_name(r, "a key", GGUF_MAX_KEY_BYTES, &kv->key);
        if (status || (status = parse_value(r, kv))) return status;
        Printable safe;
        int32_t got;
        if (!hash_table_add(&g->keys, kv->key, strlen(kv->key), (int32_t)i, &got))
            return error_memory(r->err, "key-values", n * sizeof(HashSlot));
        if (got != (int32_t)i)
            return reader_refuse(r, FR_ERR_FORMAT, "there are two keys %s", printable(&safe, kv->key, strlen(kv->key)));
    }
    return FR_OK;
}

static int find_alignment(Reader *r) {
    r->g->alignment = GGUF_DEFAULT_ALIGNMENT;
    if (gguf_find_key(r->g, "general.alignment") < 0) return FR_OK;
    uint32_t a;
    if (!gguf_get_u32(r->g, "general.alignment", &a))
        return reader_refuse(r, FR_ERR_FORMAT, "general.alignment is not a 32-bit number");
    if (a < GGUF_MIN_ALIGNMENT || a > GGUF_MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return reader_refuse(r, FR_ERR_FORMAT, "general.alignment is %u; it must be a power of two from %d to %d", a,
                             GGUF_MIN_ALIGNMENT, GGUF_MAX_ALIGNMENT);
    r->g->alignment = a;
    return FR_OK;
}

/* ---- tensor infos: names, shapes, types, and where the data is ----------------------------------- */

/* Types that forerun does not run, with their names for the error message. */
static const struct {
    uint32_t id;
    const char *name;
} foreign_types[] = {
    {15, "Q8_K"}, {24, "I8"},    {25, "I16"},   {26, "I32"},  {GGUF_TENSOR_I64, "I64"},
    {28, "F64"},  {34, "TQ1_0"}, {35, "TQ2_0"}, {41, "Q1_0"}, {42, "Q2_0"},
};

static int refuse_type(Reader *r, const char *tensor, uint32_t id) {
    const char *name = "an unknown type";
    for (size_t i = 0; i < sizeof foreign_types / sizeof *foreign_types; i++)
        if (foreign_types[i].id == id) name = foreign_types[i].name;
    char list[400] = "";
    for (int t = 0; t < TYPE_COUNT; t++) {
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", t ? ", " : "", tensor_type_info((TensorType)t)->name);
    }
    return reader_refuse(r, FR_ERR_UNSUPPORTED, "tensor %s has type %u (%s), which is not supported; supported are %s",
                         tensor, id, name, list);
}

/* Reads n_dims and dims, whose product must fit into an int64_t. */
static int parse_shape(Reader *r, GgufTensor *t, const char *what) {
    uint32_t n_dims;
    if (reader_u32(r, what, &n_dims)) return FR_ERR_FORMAT;
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS)
        return reader_refuse(r, FR_ERR_FORMAT, "tensor %s has %u dimensions; 1 to %d are allowed", what, n_dims,
                             GGUF_MAX_DIMS);
    int64_t elements = 1;
    for (int d = 0; d < GGUF_MAX_DIMS; d++) {
        uint64_t dim = 1;
        if (d < (int)n_dims && reader_u64(r, what, &dim)) return FR_ERR_FORMAT;
        if (dim < 1 || dim > INT64_MAX || __builtin_mul_overflow(elements, (int64_t)dim, &elements))
            return reader_refuse(r, FR_ERR_FORMAT, "dimension %d of tensor %s is %llu, which is out of range", d, what,
                                 (unsigned long long)dim);
        t->dims[d] = (int64_t)dim;
    }
    t->n_dims = (int)n_dims, t->step = 0;
    return FR_OK;
}

static int parse_type(Reader *r, GgufTensor *t, const char *what) {
    uint32_t id;
    if (reader_u32(r, what, &id)) return FR_ERR_FORMAT;
    bool is_named = strcmp(t->name, GGUF_MAP) == 0 || strcmp(t->name, GGUF_CLUSTERS) == 0;
    t->is_i32 = is_named && id == GGUF_TENSOR_I32;
    t->is_i64 = is_named && id == GGUF_TENSOR_I64;
    t->type = TYPE_F32;
    if (!gguf_is_list(t) && !tensor_type_from_gguf(id, &t->type)) return refuse_type(r, what, id);
    size_t each = t->is_i32 ? sizeof(int32_t) : sizeof(int64_t);
    if (gguf_is_list(t) && t->n_dims == 1 && size_mul((size_t)t->dims[0], each, &t->bytes)) return FR_OK;
    if (gguf_is_list(t)) return reader_refuse(r, FR_ERR_FORMAT, "tensor %s is not a list of tokens", what);
    const TensorTypeInfo *info = tensor_type_info(t->type);
    if (!tensor_type_row_bytes(t->type, t->dims[0], &t->bytes))
        return reader_refuse(r, FR_ERR_FORMAT,
                             "tensor %s has rows of %lld elements, which are not whole %s blocks of %u", what,
                             (long long)t->dims[0], info->name, info->block_n);
    for (int d = 1; d < GGUF_MAX_DIMS; d++)
        if (!size_mul(t->bytes, (size_t)t->dims[d], &t->bytes))
            return reader_refuse(r, FR_ERR_FORMAT, "tensor %s is too large for this machine's memory addresses", what);
    return FR_OK;
}

/* Reads one info. Its offset is kept in *offset, because where the data begins is known only after the last info. */
static int parse_tensor(Reader *r, GgufTensor *t, uint64_t *offset) {
    int status = reader_name(r, "a tensor name", GGUF_MAX_TENSOR_NAME_BYTES, &t->name);
    if (status) return status;
    Printable safe;
    const char *what = printable(&safe, t->name, strlen(t->name));
    if ((status = parse_shape(r, t, what)) || (status = parse_type(r, t, what)) ||
        (status = reader_u64(r, what, offset)))
        return status;
    if (*offset % r->g->alignment != 0)
        return reader_refuse(r, FR_ERR_FORMAT, "tensor %s starts at %llu, which is not a multiple of the alignment %zu",
                             what, (unsigned long long)*offset, r->g->alignment);
    return FR_OK;
}

/* Turns offsets into pointers, after checking that every tensor lies inside the file. */
static int place_tensors(Reader *r, const uint64_t *offsets) {
    Gguf *g = r->g;
    size_t padded;
    bool fits = size_add(r->at, g->alignment - 1, &padded);
    size_t begin = fits ? padded - padded % g->alignment : 0;
    for (int64_t i = 0; i < g->n_tensors; i++) {
        GgufTensor *t = &g->tensors[i];
        Printable safe;
        if (!fits || begin > g->n_bytes || offsets[i] > g->n_bytes - begin ||
            t->bytes > g->n_bytes - begin - offsets[i])
            return reader_refuse(
                r, FR_ERR_FORMAT,
                "tensor %s (%zu bytes at %llu) reaches past the end of the file; it is cut short or damaged, "
                "so fetch it again",
                printable(&safe, t->name, strlen(t->name)), t->bytes, (unsigned long long)offsets[i]);
        t->data = g->bytes + begin + offsets[i];
    }
    return FR_OK;
}

static int by_place(const void *a, const void *b) {
    const GgufTensor *x = *(const GgufTensor *const *)a, *y = *(const GgufTensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data;
}

static int check_overlaps(Reader *r) {
    Gguf *g = r->g;
    size_t n = (size_t)g->n_tensors;
    const GgufTensor **sorted = mem_alloc(n * sizeof(GgufTensor *));
    if (!sorted) return error_memory(r->err, "the order of tensors", n * sizeof(GgufTensor *));
    for (size_t i = 0; i < n; i++) sorted[i] = &g->tensors[i];
    qsort(sorted, n, sizeof *sorted, by_place);
    int status = FR_OK;
    for (size_t i = 1; i < n && !status; i++) {
        const GgufTensor *a = sorted[i - 1], *b = sorted[i];
        Printable safe_a, safe_b;
        if ((size_t)((const uint8_t *)b->data - (const uint8_t *)a->data) < a->bytes)
            status = reader_refuse(r, FR_ERR_FORMAT, "the data of tensors %s and %s overlap",
                                   printable(&safe_a, a->name, strlen(a->name)),
                                   printable(&safe_b, b->name, strlen(b->name)));
    }
    mem_free(sorted);
    return status;
}

static int parse_infos(Reader *r, uint64_t *offsets) {
    Gguf *g = r->g;
    for (int64_t i = 0; i < g->n_tensors; i++) {
        GgufTensor *t = &g->tensors[i];
        int status = parse_tensor(r, t, &offsets[i]);
        if (status) return status;
        Printable safe;
        int32_t got;
        if (!hash_table_add(&g->names, t->name, strlen(t->name), (int32_t)i, &got))
            return error_memory(r->err, "tensor infos", sizeof(HashSlot) * (size_t)g->n_tensors);
        if (got != i)
            return reader_refuse(r, FR_ERR_FORMAT, "there are two tensors named %s",
                                 printable(&safe, t->name, strlen(t->name)));
    }
    return FR_OK;
}

static int parse_tensors(Reader *r) {
    Gguf *g = r->g;
    size_t n = (size_t)g->n_tensors;
    uint64_t *offsets = mem_calloc(n, sizeof *offsets);
    g->tensors = gguf_allocate(g, n * sizeof *g->tensors);
    int status;
    if (!offsets || !g->tensors) status = error_memory(r->err, "tensor infos", n * sizeof *g->tensors);
    else if ((status = parse_infos(r, offsets)) == FR_OK && (status = place_tensors(r, offsets)) == FR_OK)
        status = check_overlaps(r);
    mem_free(offsets);
    return status;
}

/* ---- the file ------------------------------------------------------------------------------------ */

int gguf_parse(Gguf *g, fr_error *err) {
    Reader r = {.g = g, .err = err};
    int status;
    if ((status = parse_header(&r)) || (status = parse_kvs(&r)) || (status = find_alignment(&r))) return status;
    return parse_tensors(&r);
}
