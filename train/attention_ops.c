/* attention_ops.c - causal attention of a sequence, and attention of rows that see a sequence up to a token and a few
 * keys of their own, forward and backward.
 *
 * Causal attention: for each query head, with Q, K, V, O, P its [T][head_dim] and [T][T] parts and
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
#include "train/ops.h"

#include <string.h>

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

/* Attention as above for the chains of an unrolled layer (unroll_layer.c). The row of chain t at step 3 reads
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
 * With a window there are zeros in front, too. The derivatives are those of causal attention. Test:
 * test_train_drafters.c, by the gradients of the networks. */

/* One block of rows of one head. */
typedef struct UnrollBlock {
    int64_t first, n;
    int64_t n_keys; /* the keys of the sequence that the block's last row sees */
    int64_t q_at;   /* where this head's part of row `first` begins in q, out and their derivatives */
    int64_t kv_at;  /* where this head's part of row 0 begins in keys, values and theirs */
    int64_t p_at;   /* where row `first` begins in probs */
} UnrollBlock;

static int64_t q_width(const UnrollAttention *s) { return s->n_head * s->head_dim; }
static int64_t kv_width(const UnrollAttention *s) { return s->n_head_kv * s->head_dim; }
static int64_t p_width(const UnrollAttention *s) { return s->n_keys + s->n_own; }
static real scale_of(const UnrollAttention *s) { return s->scale > 0 ? (real)s->scale : 1 / sqrt((real)s->head_dim); }

static UnrollBlock unroll_block_of(const UnrollAttention *s, int64_t head, int64_t first) {
    int64_t left = s->n_rows - first;
    UnrollBlock b = {.first = first, .n = left < UNROLL_BLOCK ? left : UNROLL_BLOCK};
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
static int64_t own_at(const UnrollAttention *s, UnrollBlock b, int64_t i) {
    return (b.first + i) * kv_width(s) + b.kv_at;
}

/* Lets a further score take a part of a softmax: p [n] is multiplied by the rest. */
static void make_room(real *p, int64_t n, real log_sum, real score) {
    real rest = 1 / (1 + real_exp(score - log_sum));
    for (int64_t i = 0; i < n; i++) p[i] *= rest;
}

static void unroll_forward_block(real *out, real *probs, const real *q, const UnrollAttention *s, int64_t head,
                                 UnrollBlock b) {
    real c = scale_of(s), *p = probs + b.p_at;
    real_gemm(false, true, b.n, b.n_keys, s->head_dim, c, q + b.q_at, q_width(s), s->k + b.kv_at, kv_width(s), false, p,
              p_width(s));
    for (int64_t i = 0; i < b.n; i++, p += p_width(s)) {
        int64_t n_seen = s->last[b.first + i] + 1, begin = s->n_most && n_seen > s->n_most ? n_seen - s->n_most : 0;
        const real *query = q + b.q_at + i * q_width(s);
        for (int64_t j = 0; j < s->n_own; j++)
            p[n_seen + j] = c * real_dot(query, s->own_k[j] + own_at(s, b, i), s->head_dim);
        real log_sum = real_softmax(p + begin, p + begin, n_seen - begin + s->n_own);
        if (s->sinks) make_room(p + begin, n_seen - begin + s->n_own, log_sum, s->sinks[head]);
        memmove(p + s->n_keys, p + n_seen, (size_t)s->n_own * sizeof *p);
        for (int64_t j = 0; j < begin; j++) p[j] = 0;
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
            unroll_forward_block(out, probs, q, s, head, unroll_block_of(s, head, first));
}

/* ds: [n][p_width]: dP of the block, turned into dS in place. dsink: the derivative of the sink is added there; NULL:
 * there is none. A sink's value is 0, so that it takes no part in the sum. */
static void softmax_back(real *ds, const real *p, real *dsink, const UnrollAttention *s, UnrollBlock b) {
    for (int64_t i = 0; i < b.n; i++, ds += p_width(s), p += p_width(s)) {
        real *own = ds + s->n_keys, mean = real_dot(p, ds, b.n_keys), of_sink = 1;
        for (int64_t j = 0; j < s->n_own; j++) mean += p[s->n_keys + j] * own[j];
        for (int64_t j = 0; dsink && j < b.n_keys; j++) of_sink -= p[j];
        for (int64_t j = 0; dsink && j < s->n_own; j++) of_sink -= p[s->n_keys + j];
        if (dsink) *dsink -= of_sink * mean;
        for (int64_t j = 0; j < b.n_keys; j++) ds[j] = p[j] * (ds[j] - mean);
        for (int64_t j = 0; j < s->n_own; j++) own[j] = p[s->n_keys + j] * (own[j] - mean);
    }
}

/* The own keys of a block: the derivatives of their values, and dP. */
static void own_values_back(real *const *own_dv, const real *dout, const real *probs, real *ds,
                            const UnrollAttention *s, UnrollBlock b) {
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
                          const UnrollAttention *s, UnrollBlock b) {
    for (int64_t i = 0; i < b.n; i++) {
        int64_t query = b.q_at + i * q_width(s);
        for (int64_t j = 0; j < s->n_own; j++) {
            real d = c * ds[i * p_width(s) + s->n_keys + j];
            add_scaled(dq + query, d, s->own_k[j] + own_at(s, b, i), s->head_dim);
            add_scaled(own_dk[j] + own_at(s, b, i), d, q + query, s->head_dim);
        }
    }
}

void unroll_attention_backward(real *dq, real *dk, real *dv, real *const *own_dk, real *const *own_dv, real *dsinks,
                               const real *dout, const real *probs, const real *q, real *scratch,
                               const UnrollAttention *s) {
    int64_t Q = q_width(s), K = kv_width(s), W = p_width(s), dim = s->head_dim;
    real c = scale_of(s);
    for (int64_t head = 0; head < s->n_head; head++)
        for (int64_t first = 0; first < s->n_rows; first += UNROLL_BLOCK) {
            UnrollBlock b = unroll_block_of(s, head, first);
            const real *p = probs + b.p_at;
            if (dv) real_gemm(true, false, b.n_keys, dim, b.n, 1, p, W, dout + b.q_at, Q, true, dv + b.kv_at, K);
            real_gemm(false, true, b.n, b.n_keys, dim, 1, dout + b.q_at, Q, s->v + b.kv_at, K, false, scratch, W);
            own_values_back(own_dv, dout, probs, scratch, s, b);
            softmax_back(scratch, p, dsinks ? dsinks + head : NULL, s, b);
            real_gemm(false, false, b.n, dim, b.n_keys, c, scratch, W, s->k + b.kv_at, K, true, dq + b.q_at, Q);
            if (dk) real_gemm(true, false, b.n_keys, dim, b.n, c, scratch, W, q + b.q_at, Q, true, dk + b.kv_at, K);
            own_keys_back(dq, own_dk, q, scratch, c, s, b);
        }
}
