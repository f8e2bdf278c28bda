/* matrix_scale.h - products with matrices that may have a factor of their own (model/scales.h). */
#ifndef CPU_MATRIX_SCALE_H
#define CPU_MATRIX_SCALE_H

#include "compute/cpu/cpu.h"

/* The factor of a packed matrix. */
typedef struct CpuScale {
    const void *data; /* of the matrix */
    float scale;
} CpuScale;

/* c->kernels->matmul, and the factor of the matrix, if it has one. */
void cpu_multiply(const CpuContext *c, const PackedMatrix *m, const void *acts, int64_t n_rows, float *y,
                  int64_t stride, int64_t first, int64_t last);
/* Notes the factor of a matrix while weights are loaded, in the order of their addresses, n_most at most. */
int cpu_note_scale(CpuWeights *w, const PackedMatrix *m, float scale, int64_t n_most, fr_error *err);

#endif
