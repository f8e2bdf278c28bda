/* nvfp4_scale.h - the scale that a matrix of NVFP4 has beside its blocks: tensor NAME.scale [experts] of NAME.weight.
 *
 * The scales of its blocks are floats of 7 bits, from 2^-9 to 448, so that the weights of most models, some hundredths, would
 * fall below the smallest of them. So a matrix is divided by a number with which its largest element meets the largest product
 * of a code and a scale, 6 times 448, as NVIDIA's tools do it; what is multiplied with the matrix is multiplied by it afterwards. */
#ifndef QUANT_NVFP4_SCALE_H
#define QUANT_NVFP4_SCALE_H

#include "base/threads.h"
#include "gguf/gguf.h"

enum { NVFP4_SCALE_NAME = 160 };

/* The name of the tensor for the scales of a matrix "NAME.weight". */
void nvfp4_scale_name(const char *matrix, char out[NVFP4_SCALE_NAME]);
/* Whether the file has it. */
bool nvfp4_scale_is_beside(const Gguf *g, const GgufTensor *matrix);

/* The scales of a matrix, or of the matrices of all its experts, out [dims[2]]; 1 where all elements are zero. What is not finite is
 * passed over. rows: [threads of the pool][width] scratch memory, width at least dims[0]. */
void nvfp4_scale_measure(ThreadPool *pool, const GgufTensor *t, float *rows, int64_t width, float *out);

/* The n numbers of a row, divided by the scale of their matrix. */
void nvfp4_scale_divide(float *row, int64_t n, float scale);

#endif
