/* safetensors.c - reads safetensors files (github.com/huggingface/safetensors describes them).
 *
 *     n:u64 little-endian   n bytes of JSON   data
 *     {"fc.weight": {"dtype": "F16", "shape": [64, 128], "data_offsets": [0, 16384]}, ..., "__metadata__": {...}}
 *
 * Offsets count from the end of the JSON. The file is not trusted: a file is opened only if the bytes of each tensor
 * lie in the file and are as many as its shape and type need, no two tensors share a byte, and together they cover all
 * of the data, as the format demands. A pickle, PyTorch's other format, is a program and is not read at all. Tests:
 * test_safetensors.c, tests/fuzz/fuzz_safetensors.c. */
#include "train/safetensors.h"

#include "base/files.h"
#include "base/mem.h"
#include "base/error.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Parsed, a header takes up to 100 times its length; one with the most tensors has 10 MB. */
enum { MAX_HEADER = 16 << 20, MAX_TENSORS = 1 << 16 };

struct SafeTensors {
    char *path;
    const unsigned char *bytes;
    size_t n_bytes;
    MappedFile *file; /* NULL: the bytes are the caller's */
    json_t *header;   /* names and dtypes are its strings */
    SafeTensor *tensors;
    int64_t n_tensors;
};

/* ---- one tensor ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t bytes;
    bool has_type;
    TensorType type;
} dtypes[] = {
    {"F32", 4, true, TYPE_F32}, {"F16", 2, true, TYPE_F16}, {"BF16", 2, true, TYPE_BF16}, {"F64", 8, false, 0},
    {"I64", 8, false, 0},       {"U64", 8, false, 0},       {"I32", 4, false, 0},         {"U32", 4, false, 0},
    {"I16", 2, false, 0},       {"U16", 2, false, 0},       {"I8", 1, false, 0},          {"U8", 1, false, 0},
    {"BOOL", 1, false, 0},      {"F8_E4M3", 1, false, 0},   {"F8_E5M2", 1, false, 0},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

/* A tensor that is being parsed. */
typedef struct Entry {
    const SafeTensors *s;
    const unsigned char *data; /* after the header */
    size_t n_data;
    SafeTensor *out;
    fr_error *err;
} Entry;

static int refuse(const Entry *e, const char *what) {
    Printable p;
    return error_set(e->err, FR_ERR_FORMAT, "%s: tensor %s %s", e->s->path,
                     printable(&p, e->out->name, strlen(e->out->name)), what);
}

static int read_dtype(const Entry *e, const json_t *value, size_t *n_element) {
    e->out->dtype = json_string_value(value);
    for (int i = 0; e->out->dtype && i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, e->out->dtype) == 0) {
            e->out->has_type = dtypes[i].has_type;
            e->out->type = dtypes[i].type;
            *n_element = dtypes[i].bytes;
            return FR_OK;
        }
    return refuse(e, "has an unknown dtype");
}

/* Reads the shape; *n_bytes grows from the size of an element to that of the tensor. */
static int read_shape(const Entry *e, const json_t *shape, size_t *n_bytes) {
    if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return refuse(e, "must have a shape of 0 to 4 numbers");
    e->out->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < SAFETENSORS_MAX_DIMS; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        e->out->dims[i] = i < e->out->n_dims ? (int64_t)json_integer_value(d) : 1;
        if (i < e->out->n_dims && (!json_is_integer(d) || e->out->dims[i] < 1))
            return refuse(e, "must have a shape of integers from 1 up");
        if (!size_mul(*n_bytes, (size_t)e->out->dims[i], n_bytes))
            return refuse(e, "has a shape that is larger than any file");
    }
    return FR_OK;
}

static int read_offsets(const Entry *e, const json_t *offsets, size_t n_bytes) {
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return refuse(e, "must have data_offsets of two integers");
    json_int_t from = json_integer_value(begin), to = json_integer_value(end);
    if (from < 0 || to < from || (uint64_t)to > e->n_data) return refuse(e, "lies outside the file");
    if ((uint64_t)(to - from) != n_bytes) return refuse(e, "has a size that does not match its shape and dtype");
    e->out->data = e->data + from;
    e->out->bytes = n_bytes;
    return FR_OK;
}

static int read_entry(const Entry *e, const json_t *value) {
    size_t n_bytes = 0;
    if (!json_is_object(value)) return refuse(e, "must be described by a JSON object");
    int status = read_dtype(e, json_object_get(value, "dtype"), &n_bytes);
    if (!status) status = read_shape(e, json_object_get(value, "shape"), &n_bytes);
    return status ? status : read_offsets(e, json_object_get(value, "data_offsets"), n_bytes);
}

/* ---- the file -------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    return ((const char *)x->data > (const char *)y->data) - ((const char *)x->data < (const char *)y->data);
}

/* The tensors must cover the data without overlap and without gap. */
static int check_cover(SafeTensors *s, const unsigned char *data, fr_error *err) {
    Printable p;
    qsort(s->tensors, (size_t)s->n_tensors, sizeof *s->tensors, by_address);
    for (int64_t i = 0; i < s->n_tensors; data += s->tensors[i++].bytes) {
        const SafeTensor *t = &s->tensors[i];
        if (t->data != data)
            return error_set(err, FR_ERR_FORMAT, "%s: tensor %s %s", s->path, printable(&p, t->name, strlen(t->name)),
                             (const unsigned char *)t->data < data ? "overlaps with another"
                                                                   : "leaves a gap before it");
    }
    if (data == s->bytes + s->n_bytes) return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: holds %zu bytes after its last tensor", s->path,
                     (size_t)(s->bytes + s->n_bytes - data));
}

static int read_entries(SafeTensors *s, size_t n_header, fr_error *err) {
    size_t n = json_object_size(s->header);
    if (n > MAX_TENSORS)
        return error_set(err, FR_ERR_FORMAT, "%s: holds %zu tensors; at most %d are supported", s->path, n,
                         MAX_TENSORS);
    s->tensors = mem_calloc(n + 1, sizeof *s->tensors);
    if (!s->tensors) return error_memory(err, "a list of tensors", n * sizeof *s->tensors);
    Entry e = {.s = s, .data = s->bytes + 8 + n_header, .n_data = s->n_bytes - 8 - n_header, .err = err};
    const char *name;
    json_t *value;
    json_object_foreach(s->header, name, value) {
        if (strcmp(name, "__metadata__") == 0) continue;
        e.out = &s->tensors[s->n_tensors];
        e.out->name = name;
        int status = read_entry(&e, value);
        if (status) return status;
        s->n_tensors++;
    }
    return check_cover(s, e.data, err);
}

static int refuse_pickle(const SafeTensors *s, fr_error *err) {
    return error_set(
        err, FR_ERR_UNSUPPORTED,
        "%s: is a pickle of PyTorch, which can run code when it is loaded; if you trust it, convert it with: "
        "python3 -c 'import sys, torch; from safetensors.torch import save_file; save_file({k: v.clone().contiguous() "
        "for k, v in "
        "torch.load(sys.argv[1], map_location=\"cpu\", weights_only=True).items()}, sys.argv[2])' IN OUT.safetensors",
        s->path);
}

static int parse(SafeTensors *s, fr_error *err) {
    uint64_t n_header = 0;
    if (s->n_bytes >= 2 &&
        (memcmp(s->bytes, "PK", 2) == 0 || (s->bytes[0] == 0x80 && s->bytes[1] >= 2 && s->bytes[1] <= 5)) &&
        (s->n_bytes < 9 || s->bytes[8] != '{'))
        return refuse_pickle(s, err);
    if (s->n_bytes < 8)
        return error_set(err, FR_ERR_FORMAT, "%s: is not a safetensors file: it ends after %zu bytes", s->path,
                         s->n_bytes);
    for (int i = 7; i >= 0; i--) n_header = n_header << 8 | s->bytes[i];
    if (n_header <= s->n_bytes - 8 && n_header > MAX_HEADER)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: has a header of %llu bytes; at most %d are read", s->path,
                         (unsigned long long)n_header, MAX_HEADER);
    if (n_header > s->n_bytes - 8)
        return error_set(
            err, FR_ERR_FORMAT,
            "%s: is not a safetensors file: its first eight bytes claim a header of %llu bytes in a file of %zu",
            s->path, (unsigned long long)n_header, s->n_bytes);
    json_error_t error;
    s->header = json_loadb((const char *)s->bytes + 8, (size_t)n_header, JSON_REJECT_DUPLICATES, &error);
    Printable p;
    if (!s->header)
        return error_set(err, FR_ERR_FORMAT, "%s: is not a safetensors file: its header is not JSON: %s", s->path,
                         printable(&p, error.text, strlen(error.text)));
    if (!json_is_object(s->header))
        return error_set(err, FR_ERR_FORMAT, "%s: is not a safetensors file: its header is not a JSON object", s->path);
    return read_entries(s, (size_t)n_header, err);
}

int safetensors_open_memory(SafeTensors **out, const void *bytes, size_t n, const char *name, fr_error *err) {
    *out = NULL;
    SafeTensors *s = mem_calloc(1, sizeof *s);
    char *path = mem_calloc(strlen(name) + 1, 1);
    if (!s || !path) {
        mem_free(s);
        mem_free(path);
        return error_memory(err, "an open file", sizeof *s);
    }
    strcpy(path, name);
    *s = (SafeTensors){.path = path, .bytes = bytes, .n_bytes = n};
    int status = parse(s, err);
    if (status) safetensors_close(s);
    else *out = s;
    return status;
}

int safetensors_open(SafeTensors **out, const char *path, fr_error *err) {
    *out = NULL;
    MappedFile *file;
    int status = mapped_file_open(&file, path, err);
    if (status) return status;
    size_t n;
    const void *bytes = mapped_file_bytes(file, &n);
    if (n == 0) status = error_set(err, FR_ERR_FORMAT, "%s: is empty", path);
    if (!status) status = safetensors_open_memory(out, bytes, n, path, err);
    if (status) mapped_file_close(file);
    else (*out)->file = file;
    return status;
}

int safetensors_check(const SafeTensors *s, fr_error *err) { return mapped_file_check(s->file, err); }

void safetensors_close(SafeTensors *s) {
    if (!s) return;
    json_decref(s->header);
    mem_free(s->tensors);
    mapped_file_close(s->file);
    mem_free(s->path);
    mem_free(s);
}

const char *safetensors_path(const SafeTensors *s) { return s->path; }

int64_t safetensors_count(const SafeTensors *s) { return s->n_tensors; }

const SafeTensor *safetensors_tensor(const SafeTensors *s, int64_t i) {
    fr_assert(i >= 0 && i < s->n_tensors);
    return &s->tensors[i];
}

const SafeTensor *safetensors_find(const SafeTensors *s, const char *name) {
    for (int64_t i = 0; i < s->n_tensors; i++)
        if (strcmp(s->tensors[i].name, name) == 0) return &s->tensors[i];
    return NULL;
}
