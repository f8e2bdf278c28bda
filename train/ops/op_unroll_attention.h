/* op_unroll_attention.h - attention of rows that see a sequence up to some token, and after it a few keys of their
 * own. */
#ifndef OPS_OP_UNROLL_ATTENTION_H
#define OPS_OP_UNROLL_ATTENTION_H

#include "train/ops/real.h"

/* Row i sees keys 0 .. last[i] of the sequence and its own keys: row i of own_k[0], .., own_k[n_own - 1]. Query head h
 * reads key-value head h / (n_head / n_head_kv). Queries and keys have been rotated already. */
typedef struct UnrollAttention {
    int64_t n_rows, n_keys, n_own;
    int64_t n_head, n_head_kv, head_dim;
    const int32_t *last;               /* [n_rows] ascending, below n_keys */
    const real *k, *v;                 /* [n_keys][n_head_kv][head_dim] */
    real *const *own_k, *const *own_v; /* [n_own] of [n_rows][n_head_kv][head_dim] */
} UnrollAttention;

enum { UNROLL_BLOCK = 64 }; /* rows at a time */

/* out, q: [n_rows][n_head][head_dim]; probs: [n_head][n_rows][n_keys + n_own], written, for the backward pass */
void unroll_attention_forward(real *out, real *probs, const real *q, const UnrollAttention *s);
/* dq, dout: as q; dk, dv: as k, or NULL (frozen); own_dk, own_dv: as own_k; scratch: [UNROLL_BLOCK][n_keys + n_own] */
void unroll_attention_backward(real *dq, real *dk, real *dv, real *const *own_dk, real *const *own_dv, const real *dout,
                               const real *probs, const real *q, real *scratch, const UnrollAttention *s);

#endif
