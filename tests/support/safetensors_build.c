/* safetensors_build.c - writes safetensors files for tests: the header grows as text while tensors are added. */
#include "safetensors_build.h"

#include "format/blocks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void safetensors_build_begin(SafeTensorsBuild *b, TensorType type) {
    *b = (SafeTensorsBuild){.header.max_bytes = 1 << 20, .data.max_bytes = 64 << 20, .type = type};
    assert_true(buf_append(&b->header, "{\"__metadata__\": {\"format\": \"pt\"}", 33));
}

void safetensors_build_add(SafeTensorsBuild *b, const char *name, const float *x, int64_t n_in, int64_t n_out) {
    char line[256], shape[64];
    size_t bytes, from = b->data.n;
    int64_t n = n_in * (n_out ? n_out : 1);
    assert_true(tensor_type_row_bytes(b->type, n, &bytes));
    assert_true(buf_reserve(&b->data, bytes));
    void *rows = malloc(bytes);
    assert_non_null(rows);
    blocks_quantize(b->type, x, n, rows);
    assert_true(buf_append(&b->data, rows, bytes));
    free(rows);
    if (n_out) snprintf(shape, sizeof shape, "%" PRId64 ", %" PRId64, n_out, n_in);
    else snprintf(shape, sizeof shape, "%" PRId64, n_in);
    int n_line = snprintf(line, sizeof line,
                          ", \"%s\": {\"dtype\": \"%s\", \"shape\": [%s], \"data_offsets\": [%zu, %zu]}", name,
                          tensor_type_info(b->type)->name, shape, from, b->data.n);
    assert_true(buf_append(&b->header, line, (size_t)n_line));
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
