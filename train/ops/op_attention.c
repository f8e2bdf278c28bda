/* op_attention.c - for each query head, with Q, K, V, O, P its [T][head_dim] and [T][T] parts and
 * c = 1 / sqrt(head_dim):
 *
 *     S = c Q K^T,  P = softmax of each row t of S over keys 0 .. t,  O = P V
 *
 *     dV = P^T dO
 *     dP = dO V^T
 *     dS_tj = P_tj (dP_tj - sum_i P_ti dP_ti)        the derivative of softmax
 *     dQ = c dS K,   dK = c dS^T Q
 *
 * The heads of a group add to the same dK and dV. The work is cut into blocks of ATTENTION_BLOCK queries. A block
 * that begins at row b needs only keys 0 .. b + ATTENTION_BLOCK - 1, so nearly half of the T x T products are never
 * computed, and the rest are small matrix products:
 *
 *     keys     0   64  128          half of a block's square on the diagonal is wasted: its upper
 *     block 0  [\ ]                 triangle is computed and set to zero
 *     block 1  [   ][\ ]
 *     block 2  [   ][   ][\ ]
 *
 * P is kept for the backward pass: n_head T^2 numbers per layer, half of them unused.
 */
#include "train/ops/op_attention.h"

/* One block of queries of one head. Rows of q begin `q_stride` numbers apart, those of k and v `kv_stride`. */
typedef struct Block {
    int64_t first, n; /* queries first .. first + n - 1 */
    int64_t n_keys;   /* first + n */
    int64_t q_at;     /* where this head's part of query row `first` begins in q, out and their derivatives */
    int64_t kv_at;    /* where this head's part of key row 0 begins in k, v and their derivatives */
    int64_t p_at;     /* where row `first` begins in probs */
} Block;

static Block block_of(const AttentionShape *s, int64_t head, int64_t first) {
    int64_t group = s->n_head / s->n_head_kv, left = s->n_rows - first;
    Block b = {.first = first, .n = left < ATTENTION_BLOCK ? left : ATTENTION_BLOCK};
    b.n_keys = first + b.n;
    b.q_at = (first * s->n_head + head) * s->head_dim;
    b.kv_at = head / group * s->head_dim;
    b.p_at = (head * s->n_rows + first) * s->n_rows;
    return b;
}

/* p: [n][T]: scores of the block, turned into weights in place */
REAL_CLONES static void softmax_forward(real *p, int64_t T, Block b) {
    for (int64_t i = 0; i < b.n; i++, p += T) {
        int64_t n_seen = b.first + i + 1;
        real_softmax(p, p, n_seen);
        for (int64_t j = n_seen; j < b.n_keys; j++) p[j] = 0;
    }
}

static void forward_block(real *out, real *probs, const real *q, const real *k, const real *v, const AttentionShape *s,
                          Block b) {
    int64_t q_stride = s->n_head * s->head_dim, kv_stride = s->n_head_kv * s->head_dim, T = s->n_rows;
    real *p = probs + b.p_at, c = 1 / sqrt((real)s->head_dim);
    real_gemm(false, true, b.n, b.n_keys, s->head_dim, c, q + b.q_at, q_stride, k + b.kv_at, kv_stride, false, p, T);
    softmax_forward(p, T, b);
    real_gemm(false, false, b.n, s->head_dim, b.n_keys, 1, p, T, v + b.kv_at, kv_stride, false, out + b.q_at, q_stride);
}

void attention_forward(real *out, real *probs, const real *q, const real *k, const real *v, const AttentionShape *s) {
    for (int64_t head = 0; head < s->n_head; head++)
        for (int64_t first = 0; first < s->n_rows; first += ATTENTION_BLOCK)
            forward_block(out, probs, q, k, v, s, block_of(s, head, first));
}

/* ds: [n][T]: dP of the block, turned into dS in place */
REAL_CLONES static void softmax_backward(real *ds, const real *p, int64_t T, Block b) {
    for (int64_t i = 0; i < b.n; i++, ds += T, p += T) {
        real mean = real_dot(p, ds, b.n_keys);
        for (int64_t j = 0; j < b.n_keys; j++) ds[j] = p[j] * (ds[j] - mean);
    }
}

void attention_backward(real *dq, real *dk, real *dv, const real *dout, const real *probs, const real *q, const real *k,
                        const real *v, real *scratch, const AttentionShape *s) {
    int64_t q_stride = s->n_head * s->head_dim, kv_stride = s->n_head_kv * s->head_dim, T = s->n_rows;
    int64_t dim = s->head_dim;
    real c = 1 / sqrt((real)dim);
    for (int64_t head = 0; head < s->n_head; head++)
        for (int64_t first = 0; first < T; first += ATTENTION_BLOCK) {
            Block b = block_of(s, head, first);
            const real *p = probs + b.p_at;
            real_gemm(true, false, b.n_keys, dim, b.n, 1, p, T, dout + b.q_at, q_stride, true, dv + b.kv_at, kv_stride);
            real_gemm(false, true, b.n, b.n_keys, dim, 1, dout + b.q_at, q_stride, v + b.kv_at, kv_stride, false,
                      scratch, T);
            softmax_backward(scratch, p, T, b);
            real_gemm(false, false, b.n, dim, b.n_keys, c, scratch, T, k + b.kv_at, kv_stride, true, dq + b.q_at,
                      q_stride);
            real_gemm(true, false, b.n_keys, dim, b.n, c, scratch, T, q + b.q_at, q_stride, true, dk + b.kv_at,
                      kv_stride);
        }
}
