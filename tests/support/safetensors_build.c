/* safetensors_build.c - writes safetensors files for tests: the header grows as text while tensors are added. */
#include "safetensors_build.h"

#include "gguf/tensor_type.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void safetensors_build_begin(SafeTensorsBuild *b, TensorType type) {
    *b = (SafeTensorsBuild){.header.max_bytes = 1 << 20, .data.max_bytes = 64 << 20, .type = type};
    assert_true(buf_append(&b->header, "{\"__metadata__\": {\"format\": \"pt\"}", 33));
}

static void add(SafeTensorsBuild *b, const char *name, const char *type, const void *data, size_t bytes,
                const int64_t *dims, int n_dims) {
    char line[400];
    size_t from = b->data.n;
    int n = snprintf(line, sizeof line, ", \"%s\": {\"dtype\": \"%s\", \"shape\": [", name, type);
    assert_true(buf_reserve(&b->data, bytes) && buf_append(&b->data, data, bytes));
    for (int i = 0; i < n_dims; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%s%" PRId64, i ? ", " : "", dims[i]);
    n += snprintf(line + n, sizeof line - (size_t)n, "], \"data_offsets\": [%zu, %zu]}", from, b->data.n);
    assert_true(n < (int)sizeof line);
    assert_true(buf_append(&b->header, line, (size_t)n));
}

static int64_t product_of(const int64_t *dims, int n_dims) {
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= dims[i];
    return n;
}

void safetensors_build_add_shaped(SafeTensorsBuild *b, const char *name, const float *x, const int64_t *dims,
                                  int n_dims) {
    int64_t n = product_of(dims, n_dims);
    size_t bytes;
    assert_true(tensor_type_row_bytes(b->type, n, &bytes));
    void *rows = malloc(bytes);
    assert_non_null(rows);
    blocks_quantize(b->type, x, n, rows);
    add(b, name, tensor_type_info(b->type)->name, rows, bytes, dims, n_dims);
    free(rows);
}

void safetensors_build_add_bytes(SafeTensorsBuild *b, const char *name, const void *x, const int64_t *dims,
                                 int n_dims) {
    add(b, name, "U8", x, (size_t)product_of(dims, n_dims), dims, n_dims);
}

void safetensors_build_add_i64s(SafeTensorsBuild *b, const char *name, const int64_t *x, int64_t n) {
    add(b, name, "I64", x, (size_t)n * sizeof *x, &n, 1);
}

void safetensors_build_add(SafeTensorsBuild *b, const char *name, const float *x, int64_t n_in, int64_t n_out) {
    const int64_t dims[] = {n_out ? n_out : n_in, n_in};
    safetensors_build_add_shaped(b, name, x, dims, n_out ? 2 : 1);
}

void safetensors_build_write(SafeTensorsBuild *b, const char *path) {
    assert_true(buf_append(&b->header, "}", 1));
    FILE *f = fopen(path, "wb");
    uint64_t n = b->header.n;
    assert_non_null(f);
    assert_true(fwrite(&n, 8, 1, f) == 1 && fwrite(b->header.data, 1, b->header.n, f) == b->header.n);
    assert_true(fwrite(b->data.data, 1, b->data.n, f) == b->data.n);
    assert_int_equal(fclose(f), 0);
    buf_free(&b->header);
    buf_free(&b->data);
}

void *safetensors_build_raw(const char *header, size_t n_data, size_t *n) {
    uint64_t n_header = strlen(header);
    *n = 8 + (size_t)n_header + n_data;
    unsigned char *bytes = malloc(*n);
    assert_non_null(bytes);
    memcpy(bytes, &n_header, 8);
    memcpy(bytes + 8, header, (size_t)n_header);
    for (size_t i = 0; i < n_data; i++) bytes[8 + n_header + i] = (unsigned char)i;
    return bytes;
}
