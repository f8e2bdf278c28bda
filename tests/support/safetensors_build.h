/* safetensors_build.h - builds safetensors files in tests, from numbers or from any raw header. */
#ifndef TESTS_SAFETENSORS_BUILD_H
#define TESTS_SAFETENSORS_BUILD_H

#include "testing.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"

typedef struct SafeTensorsBuild {
    Buf header, data;
    TensorType type; /* type of the tensors: F32, F16 or BF16 */
} SafeTensorsBuild;

void safetensors_build_begin(SafeTensorsBuild *b, TensorType type);
/* Adds [n_out][n_in] numbers, rounded to the type; n_out 0: a vector. */
void safetensors_build_add(SafeTensorsBuild *b, const char *name, const float *x, int64_t n_in, int64_t n_out);
/* Adds a tensor with any number of dimensions, in the order of the file; and one of bytes, of the type U8. */
void safetensors_build_add_shaped(SafeTensorsBuild *b, const char *name, const float *x, const int64_t *dims,
                                  int n_dims);
void safetensors_build_add_bytes(SafeTensorsBuild *b, const char *name, const void *x, const int64_t *dims, int n_dims);
/* Adds a list of 64-bit integers. */
void safetensors_build_add_i64s(SafeTensorsBuild *b, const char *name, const int64_t *x, int64_t n);
/* Writes the file and frees the builder's memory. */
void safetensors_build_write(SafeTensorsBuild *b, const char *path);

/* Returns the bytes of a file with this header and n_data bytes of data; free() them. */
void *safetensors_build_raw(const char *header, size_t n_data, size_t *n);

#endif
