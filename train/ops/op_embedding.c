/* op_embedding.c - x_t = table[token_t], so dtable[v] = sum of dx_t over the t whose token is v. */
#include "train/ops/op_embedding.h"

#include <string.h>

void embedding_forward(real *x, const real *table, const int32_t *tokens, int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++) memcpy(x + t * n, table + tokens[t] * n, (size_t)n * sizeof *x);
}

void embedding_backward(real *dtable, const real *dx, const int32_t *tokens, int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++)
        for (int64_t i = 0; i < n; i++) dtable[tokens[t] * n + i] += dx[t * n + i];
}
