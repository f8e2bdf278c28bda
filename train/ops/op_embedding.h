/* op_embedding.h - rows of a table by token, and the derivative of the table. */
#ifndef OPS_OP_EMBEDDING_H
#define OPS_OP_EMBEDDING_H

#include "train/ops/real.h"

/* x: [n_rows][n]; table: [n_vocab][n]; tokens: [n_rows], each below n_vocab */
void embedding_forward(real *x, const real *table, const int32_t *tokens, int64_t n_rows, int64_t n);
/* dtable: [n_vocab][n]; dx: [n_rows][n] */
void embedding_backward(real *dtable, const real *dx, const int32_t *tokens, int64_t n_rows, int64_t n);

#endif
