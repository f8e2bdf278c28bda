/* op_attention.h - causal attention with grouped queries over one sequence, and its derivatives. */
#ifndef OPS_OP_ATTENTION_H
#define OPS_OP_ATTENTION_H

#include "train/ops/real.h"

/* Query head h reads key-value head h / (n_head / n_head_kv). Queries and keys have been rotated already. */
typedef struct AttentionShape {
    int64_t n_rows; /* tokens of the sequence, T */
    int64_t n_head, n_head_kv, head_dim;
} AttentionShape;

enum { ATTENTION_BLOCK = 64 }; /* queries at a time */

/* out, q: [T][n_head][head_dim]; k, v: [T][n_head_kv][head_dim]; probs: [n_head][T][T], written, for the backward
 * pass: row t holds the weights of keys 0 .. t, and zeros up to the end of its block of queries */
void attention_forward(real *out, real *probs, const real *q, const real *k, const real *v, const AttentionShape *s);
/* dq, dout: [T][n_head][head_dim]; dk, dv: [T][n_head_kv][head_dim]; scratch: [ATTENTION_BLOCK][T] */
void attention_backward(real *dq, real *dk, real *dv, const real *dout, const real *probs, const real *q, const real *k,
                        const real *v, real *scratch, const AttentionShape *s);

#endif
