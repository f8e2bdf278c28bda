/* float_rows.c - quantises a tensor row by row while the GGUF file is written, so that no second copy of it is
 * needed. */
#include "train/ops/float_rows.h"

#include "gguf/tensor_type.h"

static void fill(void *ctx, int64_t first_row, int64_t n_rows, void *dst) {
    const FloatRows *r = ctx;
    blocks_quantize(r->type, r->value + first_row * r->n, n_rows * r->n, dst);
}

void float_rows_add(GgufWriter *w, const char *name, FloatRows *rows) {
    int n_dims = rows->n_rows ? 2 : 1;
    if (rows->n % tensor_type_info(rows->type)->block_n) rows->type = TYPE_F32;
    gguf_add_tensor_filled(w, name, rows->type, n_dims, (int64_t[]){rows->n, rows->n_rows ? rows->n_rows : 1}, fill,
                           rows);
}
