/* gguf_parse.c - checks a GGUF file from its first byte to its last and notes where things are.
 *
 * The layout, all numbers little-endian:
 *
 *     "GGUF"  version:u32  n_tensors:u64  n_kv:u64
 *     n_kv      x { key:string  type:u32  value }           string: n:u64, then n bytes without '\0'
 *     n_tensors x { name:string  n_dims:u32  dims:u64[n_dims]  type:u32  offset:u64 }
 *     zeros up to a multiple of general.alignment (32 where the key is missing)
 *     tensor data; an offset counts from here and is a multiple of the alignment
 *
 * An array value is { element type:u32  n:u64  elements }. The file may come from anybody, so nothing in it
 * is used before it is checked against the bytes that are really there: every number is read through take(),
 * which refuses to pass the end, and every claimed count is first compared with the bytes that so many
 * entries would need at least. After gguf_parse the accessors of gguf.c need no checks of the file. (The
 * published description is docs/gguf.md of the ggml project.)
 */
#include "format/gguf_internal.h"

#include "base/mem.h"
#include "format/printable.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "GGUF files are read in place on little-endian machines");

enum {
    MIN_KV_BYTES = 8 + 1 + 4 + 1,             /* a key of one letter and a one-byte value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* a name of one letter and one dimension */
};

typedef struct Reader {
    Gguf *g;
    size_t at; /* the next byte to read; never past g->n_bytes */
    fr_error *err;
} Reader;

__attribute__((format(printf, 3, 4))) static int refuse(Reader *r, fr_code code, const char *fmt, ...) {
    char sentence[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    return error_set(r->err, code, "%.100s: %s", r->g->path, sentence);
}

static size_t left(const Reader *r) { return r->g->n_bytes - r->at; }

/* The next n bytes, or NULL with the error set. */
static const uint8_t *take(Reader *r, size_t n, const char *what) {
    if (n > left(r)) {
        refuse(r, FR_ERR_FORMAT,
               "the file ends inside %s (byte %zu of %zu); it is cut short or damaged, so fetch it again",
               what, r->g->n_bytes, r->at + n < n ? SIZE_MAX : r->at + n);
        return NULL;
    }
    const uint8_t *p = r->g->bytes + r->at;
    r->at += n;
    return p;
}

static int read_u32(Reader *r, const char *what, uint32_t *out) {
    const uint8_t *p = take(r, sizeof *out, what);
    if (!p) return FR_ERR_FORMAT;
    memcpy(out, p, sizeof *out);
    return FR_OK;
}

static int read_u64(Reader *r, const char *what, uint64_t *out) {
    const uint8_t *p = take(r, sizeof *out, what);
    if (!p) return FR_ERR_FORMAT;
    memcpy(out, p, sizeof *out);
    return FR_OK;
}

/* A key or a tensor name: short, not empty, without '\0', copied to where it gets one at its end. */
static int read_name(Reader *r, const char *what, size_t max_bytes, const char **out) {
    uint64_t n;
    if (read_u64(r, what, &n)) return FR_ERR_FORMAT;
    if (n == 0 || n > max_bytes)
        return refuse(r, FR_ERR_FORMAT, "%s at byte %zu is %llu bytes long; 1 to %zu make sense", what,
                      r->at - 8, (unsigned long long)n, max_bytes);
    const uint8_t *p = take(r, (size_t)n, what);
    if (!p) return FR_ERR_FORMAT;
    if (memchr(p, '\0', (size_t)n))
        return refuse(r, FR_ERR_FORMAT, "%s at byte %zu holds a zero byte", what, r->at - (size_t)n);
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
        return refuse(r, FR_ERR_UNSUPPORTED,
                      "this is GGUF version 1, which is no longer read; convert the model again");
    if ((version & 0xffff) == 0 && version != 0)
        return refuse(r, FR_ERR_UNSUPPORTED,
                      "this is a big-endian GGUF file; fetch or convert the little-endian one");
    if (version != 2 && version != 3)
        return refuse(r, FR_ERR_UNSUPPORTED, "GGUF version %u is not known here; versions 2 and 3 are",
                      version);
    r->g->version = version;
    return FR_OK;
}

static int check_count(Reader *r, uint64_t count, size_t min_bytes, const char *what) {
    if (count > left(r) / min_bytes)
        return refuse(r, FR_ERR_FORMAT,
                      "the header claims %llu %s, more than fit into the %zu bytes of the file",
                      (unsigned long long)count, what, r->g->n_bytes);
    if (count > GGUF_MAX_ENTRIES)
        return refuse(r, FR_ERR_FORMAT, "the header claims %llu %s; at most %d are taken",
                      (unsigned long long)count, what, GGUF_MAX_ENTRIES);
    return FR_OK;
}

static int parse_header(Reader *r) {
    uint32_t version;
    uint64_t n_tensors, n_kv;
    int rc;
    if (r->g->n_bytes < 4 || memcmp(r->g->bytes, "GGUF", 4) != 0)
        return refuse(r, FR_ERR_FORMAT, "this is not a GGUF file: it does not begin with the letters GGUF");
    r->at = 4;
    if ((rc = read_u32(r, "the header", &version)) || (rc = check_version(r, version))) return rc;
    if ((rc = read_u64(r, "the header", &n_tensors)) || (rc = read_u64(r, "the header", &n_kv))) return rc;
    if ((rc = check_count(r, n_kv, MIN_KV_BYTES, "key-values"))) return rc;
    if ((rc = check_count(r, n_tensors, MIN_TENSOR_BYTES, "tensors"))) return rc;
    r->g->n_kv = (int64_t)n_kv;
    r->g->n_tensors = (int64_t)n_tensors;
    return FR_OK;
}

/* ---- key-values ------------------------------------------------------------------------------ */

static int skip_string(Reader *r, const char *what) {
    uint64_t n;
    if (read_u64(r, what, &n)) return FR_ERR_FORMAT;
    if (n > left(r))
        return refuse(r, FR_ERR_FORMAT, "a string in %s claims %llu bytes where the file has %zu left", what,
                      (unsigned long long)n, left(r));
    r->at += (size_t)n;
    return FR_OK;
}

static int check_bools(Reader *r, const uint8_t *p, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (p[i] > 1)
            return refuse(r, FR_ERR_FORMAT, "%s holds the byte %u where only 0 and 1 are truth values", what,
                          p[i]);
    return FR_OK;
}

/* Walks over the strings of an array and notes where each starts, so that any can be had in O(1). */
static int parse_strings(Reader *r, KeyValue *kv, uint64_t count, const char *what) {
    if (count > left(r) / 8)
        return refuse(r, FR_ERR_FORMAT, "%s claims %llu strings where the file has %zu bytes left", what,
                      (unsigned long long)count, left(r));
    size_t *starts = gguf_allocate(r->g, (size_t)count * sizeof *starts);
    if (!starts) return error_memory(r->err, what, (size_t)count * sizeof *starts);
    size_t begin = r->at;
    for (uint64_t i = 0; i < count; i++) {
        starts[i] = r->at - begin;
        int rc = skip_string(r, what);
        if (rc) return rc;
    }
    kv->strings = starts;
    return FR_OK;
}

static int parse_array(Reader *r, KeyValue *kv, const char *what) {
    uint32_t element;
    uint64_t count;
    if (read_u32(r, what, &element) || read_u64(r, what, &count)) return FR_ERR_FORMAT;
    if (element == GGUF_ARRAY)
        return refuse(r, FR_ERR_UNSUPPORTED, "%s is an array of arrays, which is not read", what);
    kv->element = (GgufType)element;
    kv->payload = r->g->bytes + r->at;
    if (element == GGUF_STRING) {
        int rc = parse_strings(r, kv, count, what);
        if (rc) return rc;
    } else {
        size_t each = gguf_scalar_bytes(element);
        if (!each)
            return refuse(r, FR_ERR_FORMAT, "%s has elements of type %u, which does not exist", what,
                          element);
        if (count > left(r) / each)
            return refuse(r, FR_ERR_FORMAT, "%s claims %llu elements where the file has %zu bytes left", what,
                          (unsigned long long)count, left(r));
        r->at += (size_t)count * each;
    }
    kv->count = (int64_t)count; /* fits: it is below the size of the file */
    return FR_OK;
}

static int parse_value(Reader *r, KeyValue *kv) {
    Printable safe;
    char what[PRINTABLE_MAX + 16];
    snprintf(what, sizeof what, "the key %s", printable(&safe, kv->key, strlen(kv->key)));
    uint32_t type;
    int rc = read_u32(r, what, &type);
    if (rc) return rc;
    kv->type = kv->element = (GgufType)type;
    kv->count = 1;
    kv->payload = r->g->bytes + r->at;
    if (type == GGUF_ARRAY)
        rc = parse_array(r, kv, what);
    else if (type == GGUF_STRING)
        rc = skip_string(r, what);
    else if (gguf_scalar_bytes(type))
        rc = take(r, gguf_scalar_bytes(type), what) ? FR_OK : FR_ERR_FORMAT;
    else
        rc = refuse(r, FR_ERR_FORMAT, "%s has value type %u, which does not exist", what, type);
    if (rc) return rc;
    kv->payload_bytes = (size_t)(r->g->bytes + r->at - kv->payload);
    return kv->element == GGUF_BOOL ? check_bools(r, kv->payload, kv->payload_bytes, what) : FR_OK;
}

static int parse_kvs(Reader *r) {
    Gguf *g = r->g;
    size_t n = (size_t)g->n_kv;
    g->kvs = gguf_allocate(g, n * sizeof *g->kvs);
    if (!g->kvs || !name_index_init(&g->keys, n))
        return error_memory(r->err, "key-values", n * sizeof *g->kvs);
    memset(g->kvs, 0, n * sizeof *g->kvs);
    for (size_t i = 0; i < n; i++) {
        KeyValue *kv = &g->kvs[i];
        int rc = read_name(r, "a key", GGUF_MAX_KEY_BYTES, &kv->key);
        if (rc || (rc = parse_value(r, kv))) return rc;
        Printable safe;
        if (!name_index_add(&g->keys, kv->key, (int64_t)i))
            return refuse(r, FR_ERR_FORMAT, "the key %s stands there twice",
                          printable(&safe, kv->key, strlen(kv->key)));
    }
    return FR_OK;
}

static int find_alignment(Reader *r) {
    r->g->alignment = GGUF_DEFAULT_ALIGNMENT;
    if (gguf_find_key(r->g, "general.alignment") < 0) return FR_OK;
    uint32_t a;
    if (!gguf_get_u32(r->g, "general.alignment", &a))
        return refuse(r, FR_ERR_FORMAT, "general.alignment is not a 32-bit number");
    if (a < GGUF_MIN_ALIGNMENT || a > GGUF_MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return refuse(r, FR_ERR_FORMAT, "general.alignment is %u; a power of two from %d to %d is meant", a,
                      GGUF_MIN_ALIGNMENT, GGUF_MAX_ALIGNMENT);
    r->g->alignment = a;
    return FR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Types that files carry and forerun does not compute with, named for the sentence that refuses them. */
static const struct {
    uint32_t id;
    const char *name;
} foreign_types[] = {
    {10, "Q2_K"},    {11, "Q3_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},
    {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},
};

static int refuse_type(Reader *r, const char *tensor, uint32_t id) {
    const char *name = "a type without a name here";
    for (size_t i = 0; i < sizeof foreign_types / sizeof *foreign_types; i++)
        if (foreign_types[i].id == id) name = foreign_types[i].name;
    char list[160] = "";
    for (int t = 0; t < TYPE_COUNT; t++) {
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", t ? ", " : "", tensor_type_info((TensorType)t)->name);
    }
    return refuse(r, FR_ERR_UNSUPPORTED,
                  "tensor %s has type %u (%s), which is not supported; supported are %s", tensor, id, name,
                  list);
}

/* n_dims and dims; their product fits into an int64_t. */
static int parse_shape(Reader *r, GgufTensor *t, const char *what) {
    uint32_t n_dims;
    if (read_u32(r, what, &n_dims)) return FR_ERR_FORMAT;
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS)
        return refuse(r, FR_ERR_FORMAT, "tensor %s has %u dimensions; 1 to %d make sense", what, n_dims,
                      GGUF_MAX_DIMS);
    int64_t elements = 1;
    for (int d = 0; d < GGUF_MAX_DIMS; d++) {
        uint64_t dim = 1;
        if (d < (int)n_dims && read_u64(r, what, &dim)) return FR_ERR_FORMAT;
        if (dim < 1 || dim > INT64_MAX || __builtin_mul_overflow(elements, (int64_t)dim, &elements))
            return refuse(r, FR_ERR_FORMAT, "dimension %d of tensor %s is %llu, which makes no tensor", d,
                          what, (unsigned long long)dim);
        t->dims[d] = (int64_t)dim;
    }
    t->n_dims = (int)n_dims;
    return FR_OK;
}

static int parse_type(Reader *r, GgufTensor *t, const char *what) {
    uint32_t id;
    if (read_u32(r, what, &id)) return FR_ERR_FORMAT;
    if (!tensor_type_from_gguf(id, &t->type)) return refuse_type(r, what, id);
    const TensorTypeInfo *info = tensor_type_info(t->type);
    if (!tensor_type_row_bytes(t->type, t->dims[0], &t->bytes))
        return refuse(r, FR_ERR_FORMAT,
                      "tensor %s has rows of %lld elements, which are not whole %s blocks of %u", what,
                      (long long)t->dims[0], info->name, info->block_n);
    for (int d = 1; d < GGUF_MAX_DIMS; d++)
        if (!size_mul(t->bytes, (size_t)t->dims[d], &t->bytes))
            return refuse(r, FR_ERR_FORMAT, "tensor %s is too large for this machine's memory addresses",
                          what);
    return FR_OK;
}

/* The offset is kept in *offset; where data begins is known only after the last info. */
static int parse_tensor(Reader *r, GgufTensor *t, uint64_t *offset) {
    int rc = read_name(r, "a tensor name", GGUF_MAX_TENSOR_NAME_BYTES, &t->name);
    if (rc) return rc;
    Printable safe;
    const char *what = printable(&safe, t->name, strlen(t->name));
    if ((rc = parse_shape(r, t, what)) || (rc = parse_type(r, t, what)) || (rc = read_u64(r, what, offset)))
        return rc;
    if (*offset % r->g->alignment != 0)
        return refuse(r, FR_ERR_FORMAT,
                      "tensor %s starts at %llu, which is not a multiple of the alignment %zu", what,
                      (unsigned long long)*offset, r->g->alignment);
    return FR_OK;
}

/* Offsets become pointers once every tensor is known to lie inside the file. */
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
            return refuse(
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
    int rc = FR_OK;
    for (size_t i = 1; i < n && !rc; i++) {
        const GgufTensor *a = sorted[i - 1], *b = sorted[i];
        Printable safe_a, safe_b;
        if ((size_t)((const uint8_t *)b->data - (const uint8_t *)a->data) < a->bytes)
            rc = refuse(r, FR_ERR_FORMAT, "the data of tensors %s and %s overlap",
                        printable(&safe_a, a->name, strlen(a->name)),
                        printable(&safe_b, b->name, strlen(b->name)));
    }
    mem_free(sorted);
    return rc;
}

static int parse_infos(Reader *r, uint64_t *offsets) {
    Gguf *g = r->g;
    for (int64_t i = 0; i < g->n_tensors; i++) {
        GgufTensor *t = &g->tensors[i];
        int rc = parse_tensor(r, t, &offsets[i]);
        if (rc) return rc;
        Printable safe;
        if (!name_index_add(&g->names, t->name, i))
            return refuse(r, FR_ERR_FORMAT, "there are two tensors named %s",
                          printable(&safe, t->name, strlen(t->name)));
    }
    return FR_OK;
}

static int parse_tensors(Reader *r) {
    Gguf *g = r->g;
    size_t n = (size_t)g->n_tensors;
    uint64_t *offsets = mem_calloc(n, sizeof *offsets);
    g->tensors = gguf_allocate(g, n * sizeof *g->tensors);
    int rc;
    if (!offsets || !g->tensors || !name_index_init(&g->names, n))
        rc = error_memory(r->err, "tensor infos", n * sizeof *g->tensors);
    else if ((rc = parse_infos(r, offsets)) == FR_OK && (rc = place_tensors(r, offsets)) == FR_OK)
        rc = check_overlaps(r);
    mem_free(offsets);
    return rc;
}

int gguf_parse(Gguf *g, fr_error *err) {
    Reader r = {.g = g, .err = err};
    int rc;
    if ((rc = parse_header(&r)) || (rc = parse_kvs(&r)) || (rc = find_alignment(&r))) return rc;
    return parse_tensors(&r);
}
