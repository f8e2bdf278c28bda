/* op_softmax_loss.c - with l the logits of a row, q = softmax(l), so that dq_i / dl_j = q_i (1[i = j] - q_j):
 *
 *     hard       L = -log q_y                        dl_i = q_i - 1[i = y]
 *     soft       L = -sum_i p_i log q_i              dl_i = (sum p) q_i - p_i
 *     KL(p||q)   L = soft + sum_i p_i log p_i        the same dl
 *     L1         L = sum_i |q_i - p_i|               dl_i = q_i (g_i - sum_j q_j g_j),  g_i = sign(q_i - p_i)
 *
 * all times the derivative with respect to that row's loss. log q_i = l_i - log sum exp(l), so a q_i that is 0 does no
 * harm.
 */
#include "train/ops/op_softmax_loss.h"

REAL_CLONES void cross_entropy_forward(real *loss, real *probs, const real *logits, const int32_t *targets,
                                       int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, probs += n, logits += n) {
        real of_target = logits[targets[t]]; /* read before probs is written: both may be one array */
        loss[t] = real_softmax(probs, logits, n) - of_target;
    }
}

REAL_CLONES void cross_entropy_backward(real *dlogits, const real *dloss, const real *probs, const int32_t *targets,
                                        int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, dlogits += n, probs += n) {
        for (int64_t i = 0; i < n; i++) dlogits[i] += dloss[t] * probs[i];
        dlogits[targets[t]] -= dloss[t];
    }
}

REAL_CLONES void soft_cross_entropy_forward(real *loss, real *probs, const real *logits, const real *dist,
                                            int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, probs += n, logits += n, dist += n) {
        real of_dist = real_dot(dist, logits, n);
        loss[t] = real_sum(dist, n) * real_softmax(probs, logits, n) - of_dist;
    }
}

REAL_CLONES void soft_cross_entropy_backward(real *dlogits, const real *dloss, const real *probs, const real *dist,
                                             int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, dlogits += n, probs += n, dist += n) {
        real sum = real_sum(dist, n);
        for (int64_t i = 0; i < n; i++) dlogits[i] += dloss[t] * (sum * probs[i] - dist[i]);
    }
}

REAL_CLONES void kl_forward(real *loss, real *probs, const real *logits, const real *dist, int64_t n_rows, int64_t n) {
    soft_cross_entropy_forward(loss, probs, logits, dist, n_rows, n);
    for (int64_t t = 0; t < n_rows; t++, dist += n)
        for (int64_t i = 0; i < n; i++)
            if (dist[i] > 0) loss[t] += dist[i] * log(dist[i]);
}

REAL_CLONES void softmax_l1_forward(real *loss, real *probs, const real *logits, const real *dist, int64_t n_rows,
                                    int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, probs += n, logits += n, dist += n) {
        real_softmax(probs, logits, n);
        loss[t] = 0;
        for (int64_t i = 0; i < n; i++) loss[t] += fabs(probs[i] - dist[i]);
    }
}

static inline real sign(real x) { return (real)((x > 0) - (x < 0)); }

REAL_CLONES void softmax_l1_backward(real *dlogits, const real *dloss, const real *probs, const real *dist,
                                     int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, dlogits += n, probs += n, dist += n) {
        real mean = 0;
        for (int64_t i = 0; i < n; i++) mean += probs[i] * sign(probs[i] - dist[i]);
        for (int64_t i = 0; i < n; i++) dlogits[i] += dloss[t] * probs[i] * (sign(probs[i] - dist[i]) - mean);
    }
}
