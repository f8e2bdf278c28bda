/* matrix_scale.c - products with matrices that have a factor of their own (model/scales.h).
 *
 * A packed matrix has the codes and scales of its blocks, and the kernels know no other. Its factor, of the few files that have
 * one, stands in a table of the weights by the address of the packed tiles, and the outputs are multiplied behind the kernel: one
 * rounding more for each output, the same in every batch and with every kernel table. Without such matrices the table is empty.
 *
 * Proof: test_reference.c and test_golden_own.c (nvfp4 with scales), test_forward.c. */
#include "compute/cpu/matrix_scale.h"
#include "base/mem.h"

static float scale_of(const CpuWeights *w, const PackedMatrix *m) {
    int64_t low = 0, high = w->n_scales;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if ((uintptr_t)w->scales[mid].data < (uintptr_t)m->data) low = mid + 1;
        else high = mid;
    }
    return low < w->n_scales && w->scales[low].data == m->data ? w->scales[low].scale : 1;
}

void cpu_multiply(const CpuContext *c, const PackedMatrix *m, const void *acts, int64_t n_rows, float *y,
                  int64_t stride, int64_t first, int64_t last) {
    c->kernels->matmul(m, acts, n_rows, y, stride, first, last);
    if (c->weights->n_scales == 0) return;
    int64_t from = first * TILE_ROWS, to = last * TILE_ROWS < m->n_out ? last * TILE_ROWS : m->n_out;
    float scale = scale_of(c->weights, m);
    for (int64_t i = 0; i < n_rows; i++) {
        float *row = y + row_at(i, stride);
        for (int64_t o = from; o < to; o++) row[o] *= scale;
    }
}

int cpu_note_scale(CpuWeights *w, const PackedMatrix *m, float scale, int64_t n_most, fr_error *err) {
    if (!(scale < 1) && !(scale > 1)) return FR_OK;
    if (!w->scales && !(w->scales = mem_calloc((size_t)n_most, sizeof *w->scales)))
        return error_memory(err, "scales", (size_t)n_most * sizeof *w->scales);
    w->scales[w->n_scales++] = (CpuScale){m->data, scale};
    return FR_OK;
}
