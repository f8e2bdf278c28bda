/* gguf_infos.c - the tensor infos of a GGUF file: names, shapes, types, and where the data is (the layout
 * is drawn at the head of gguf_parse.c). */
#include "gguf/gguf_reader.h"

#include "base/mem.h"
#include "gguf/printable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Types that forerun does not run, with their names for the error message. */
static const struct {
    uint32_t id;
    const char *name;
} foreign_types[] = {
    {15, "Q8_K"}, {24, "I8"},    {25, "I16"},   {26, "I32"},  {27, "I64"},
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

/* n_dims and dims; their product fits into an int64_t. */
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
    t->n_dims = (int)n_dims;
    return FR_OK;
}

static int parse_type(Reader *r, GgufTensor *t, const char *what) {
    uint32_t id;
    if (reader_u32(r, what, &id)) return FR_ERR_FORMAT;
    if (!tensor_type_from_gguf(id, &t->type)) return refuse_type(r, what, id);
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

/* The offset is kept in *offset; where data begins is known only after the last info. */
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

int gguf_parse_infos(Reader *r) {
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
