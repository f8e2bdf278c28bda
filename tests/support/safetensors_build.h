/* safetensors_build.h - safetensors files in tests: tensors as numbers, and raw headers with anything in them. */
#ifndef TESTS_SAFETENSORS_BUILD_H
#define TESTS_SAFETENSORS_BUILD_H

#include "testing.h"

#include "base/mem.h"
#include "format/tensor_type.h"

typedef struct SafeTensorsBuild {
    Buf header, data;
    TensorType type; /* F32, F16 or BF16, of what is added */
} SafeTensorsBuild;

void safetensors_build_begin(SafeTensorsBuild *b, TensorType type);
/* Adds [n_out][n_in] numbers, rounded to the type; n_out 0: a vector. */
void safetensors_build_add(SafeTensorsBuild *b, const char *name, const float *x, int64_t n_in, int64_t n_out);
/* Writes the file and frees what was gathered. */
void safetensors_build_write(SafeTensorsBuild *b, const char *path);

/* A file of this header and n_data bytes of data, malloc'ed. */
void *safetensors_build_raw(const char *header, size_t n_data, size_t *n);

#endif
