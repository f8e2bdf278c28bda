/* op_unroll_attention.c - op_attention.c for the chains of an unrolled layer (unroll_layer.c). The row of chain t at
 * step 3:
 *
 *     keys of the sequence        own keys
 *     0  1  ..  t                 step 2  step 3         one softmax over all of them
 *
 * A row's own keys are seen by no other row, so their scores are single dot products. The keys of the sequence are
 * shared by all rows, so their scores are one matrix product for each block of UNROLL_BLOCK rows. With last[i] = i and
 * no own keys this is causal attention. In a row of probs the weights of own keys follow all those of the sequence:
 *
 *     [ 0 .. last ][ zeros, up to the last key seen by the block ][ not touched ][ own ]
 *                                                                           n_keys
 *
 * The derivatives are those of op_attention.c. Test: test_train_drafters.c, by the gradients of the networks. */
#include "train/ops/op_unroll_attention.h"

#include <string.h>

/* One block of rows of one head. */
typedef struct Block {
    int64_t first, n;
    int64_t n_keys; /* of the sequence, that its last row sees */
    int64_t q_at;   /* where this head's part of row `first` begins in q, out and their derivatives */
    int64_t kv_at;  /* where this head's part of row 0 begins in keys, values and theirs */
    int64_t p_at;   /* where row `first` begins in probs */
} Block;

static int64_t q_width(const UnrollAttention *s) { return s->n_head * s->head_dim; }
static int64_t kv_width(const UnrollAttention *s) { return s->n_head_kv * s->head_dim; }
static int64_t p_width(const UnrollAttention *s) { return s->n_keys + s->n_own; }

static Block block_of(const UnrollAttention *s, int64_t head, int64_t first) {
    int64_t left = s->n_rows - first;
    Block b = {.first = first, .n = left < UNROLL_BLOCK ? left : UNROLL_BLOCK};
    b.n_keys = s->last[first + b.n - 1] + 1;
    b.q_at = (first * s->n_head + head) * s->head_dim;
    b.kv_at = head / (s->n_head / s->n_head_kv) * s->head_dim;
    b.p_at = (head * s->n_rows + first) * p_width(s);
    return b;
}

static void add_scaled(real *y, real a, const real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* Row i's part of an own key, value or derivative. */
static int64_t own_at(const UnrollAttention *s, Block b, int64_t i) { return (b.first + i) * kv_width(s) + b.kv_at; }

static void forward_block(real *out, real *probs, const real *q, const UnrollAttention *s, Block b) {
    real c = 1 / sqrt((real)s->head_dim), *p = probs + b.p_at;
    real_gemm(false, true, b.n, b.n_keys, s->head_dim, c, q + b.q_at, q_width(s), s->k + b.kv_at, kv_width(s), false, p,
              p_width(s));
    for (int64_t i = 0; i < b.n; i++, p += p_width(s)) {
        int64_t n_seen = s->last[b.first + i] + 1;
        const real *query = q + b.q_at + i * q_width(s);
        for (int64_t j = 0; j < s->n_own; j++)
            p[n_seen + j] = c * real_dot(query, s->own_k[j] + own_at(s, b, i), s->head_dim);
        real_softmax(p, p, n_seen + s->n_own);
        memmove(p + s->n_keys, p + n_seen, (size_t)s->n_own * sizeof *p);
        for (int64_t j = n_seen; j < b.n_keys; j++) p[j] = 0;
    }
    p = probs + b.p_at;
    real_gemm(false, false, b.n, s->head_dim, b.n_keys, 1, p, p_width(s), s->v + b.kv_at, kv_width(s), false,
              out + b.q_at, q_width(s));
    for (int64_t i = 0; i < b.n; i++)
        for (int64_t j = 0; j < s->n_own; j++)
            add_scaled(out + b.q_at + i * q_width(s), p[i * p_width(s) + s->n_keys + j], s->own_v[j] + own_at(s, b, i),
                       s->head_dim);
}

void unroll_attention_forward(real *out, real *probs, const real *q, const UnrollAttention *s) {
    for (int64_t head = 0; head < s->n_head; head++)
        for (int64_t first = 0; first < s->n_rows; first += UNROLL_BLOCK)
            forward_block(out, probs, q, s, block_of(s, head, first));
}

/* ds: [n][p_width]: dP of the block, turned into dS in place */
static void softmax_back(real *ds, const real *p, const UnrollAttention *s, Block b) {
    for (int64_t i = 0; i < b.n; i++, ds += p_width(s), p += p_width(s)) {
        real *own = ds + s->n_keys, mean = real_dot(p, ds, b.n_keys);
        for (int64_t j = 0; j < s->n_own; j++) mean += p[s->n_keys + j] * own[j];
        for (int64_t j = 0; j < b.n_keys; j++) ds[j] = p[j] * (ds[j] - mean);
        for (int64_t j = 0; j < s->n_own; j++) own[j] = p[s->n_keys + j] * (own[j] - mean);
    }
}

/* The own keys of a block: the derivatives of their values, and dP. */
static void own_values_back(real *const *own_dv, const real *dout, const real *probs, real *ds,
                            const UnrollAttention *s, Block b) {
    for (int64_t i = 0; i < b.n; i++) {
        const real *dy = dout + b.q_at + i * q_width(s);
        for (int64_t j = 0; j < s->n_own; j++) {
            int64_t column = i * p_width(s) + s->n_keys + j;
            add_scaled(own_dv[j] + own_at(s, b, i), probs[b.p_at + column], dy, s->head_dim);
            ds[column] = real_dot(dy, s->own_v[j] + own_at(s, b, i), s->head_dim);
        }
    }
}

static void own_keys_back(real *dq, real *const *own_dk, const real *q, const real *ds, real c,
                          const UnrollAttention *s, Block b) {
    for (int64_t i = 0; i < b.n; i++) {
        int64_t query = b.q_at + i * q_width(s);
        for (int64_t j = 0; j < s->n_own; j++) {
            real d = c * ds[i * p_width(s) + s->n_keys + j];
            add_scaled(dq + query, d, s->own_k[j] + own_at(s, b, i), s->head_dim);
            add_scaled(own_dk[j] + own_at(s, b, i), d, q + query, s->head_dim);
        }
    }
}

void unroll_attention_backward(real *dq, real *dk, real *dv, real *const *own_dk, real *const *own_dv, const real *dout,
                               const real *probs, const real *q, real *scratch, const UnrollAttention *s) {
    int64_t Q = q_width(s), K = kv_width(s), W = p_width(s), dim = s->head_dim;
    real c = 1 / sqrt((real)dim);
    for (int64_t head = 0; head < s->n_head; head++)
        for (int64_t first = 0; first < s->n_rows; first += UNROLL_BLOCK) {
            Block b = block_of(s, head, first);
            const real *p = probs + b.p_at;
            if (dv) real_gemm(true, false, b.n_keys, dim, b.n, 1, p, W, dout + b.q_at, Q, true, dv + b.kv_at, K);
            real_gemm(false, true, b.n, b.n_keys, dim, 1, dout + b.q_at, Q, s->v + b.kv_at, K, false, scratch, W);
            own_values_back(own_dv, dout, probs, scratch, s, b);
            softmax_back(scratch, p, s, b);
            real_gemm(false, false, b.n, dim, b.n_keys, c, scratch, W, s->k + b.kv_at, K, true, dq + b.q_at, Q);
            if (dk) real_gemm(true, false, b.n_keys, dim, b.n, c, scratch, W, q + b.q_at, Q, true, dk + b.kv_at, K);
            own_keys_back(dq, own_dk, q, scratch, c, s, b);
        }
}
