/* rope_table.h - the rotation angles of all positions of a sequence, for op_rope.h.
 *
 * Inline, because it is compiled for float and for double (real.h). */
#ifndef OPS_ROPE_TABLE_H
#define OPS_ROPE_TABLE_H

#include "base/mem.h"
#include "model/rope.h"
#include "train/ops/real.h"

/* cos_sin: [n_positions][n_rot/2][2], those of positions 0, 1, .., rounded to float as the target's forward pass has
 * them. */
static inline int rope_table_fill(real *cos_sin, const Rope *rope, int32_t n_positions, fr_error *err) {
    int32_t n = rope->params.n_rot;
    float *row = mem_alloc((size_t)n * sizeof *row);
    if (!row) return error_memory(err, "rope angles", (size_t)n * sizeof *row);
    for (int32_t t = 0; t < n_positions; t++) {
        rope_angles(rope, t, row);
        for (int32_t i = 0; i < n; i++) cos_sin[(int64_t)t * n + i] = (real)row[i];
    }
    mem_free(row);
    return FR_OK;
}

#endif
