/* ops.c - the operations of training over rows, each forward and backward; every one opens with its formulas. */
#include "train/ops.h"

#include <string.h>

/* Embedding: x_t = table[token_t], so dtable[v] = sum of dx_t over the t whose token is v. */
void embedding_forward(real *x, const real *table, const int32_t *tokens, int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++) memcpy(x + t * n, table + tokens[t] * n, (size_t)n * sizeof *x);
}

void embedding_backward(real *dtable, const real *dx, const int32_t *tokens, int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++)
        for (int64_t i = 0; i < n; i++) dtable[tokens[t] * n + i] += dx[t * n + i];
}

/* A linear layer.
 *
 *     y_to  = sum_i x_ti w_oi + b_o           y  = x W^T + b
 *     dx_ti = sum_o dy_to w_oi                dx = dy W
 *     dw_oi = sum_t dy_to x_ti                dw = dy^T x
 *     db_o  = sum_t dy_to
 *
 * Cost: 2 n_rows n_in n_out operations forward and twice that backward, all of them in real_gemm.
 */

void linear_forward(real *y, const real *x, const real *w, const real *b, int64_t n_rows, int64_t n_in, int64_t n_out) {
    for (int64_t t = 0; b && t < n_rows; t++) memcpy(y + t * n_out, b, (size_t)n_out * sizeof *b);
    real_gemm(false, true, n_rows, n_out, n_in, 1, x, n_in, w, n_in, b != NULL, y, n_out);
}

void linear_backward(real *dx, real *dw, real *db, const real *dy, const real *x, const real *w, int64_t n_rows,
                     int64_t n_in, int64_t n_out) {
    if (dx) real_gemm(false, false, n_rows, n_in, n_out, 1, dy, n_out, w, n_in, true, dx, n_in);
    if (dw) real_gemm(true, false, n_out, n_in, n_rows, 1, dy, n_out, x, n_in, true, dw, n_in);
    for (int64_t t = 0; db && t < n_rows; t++)
        for (int64_t o = 0; o < n_out; o++) db[o] += dy[t * n_out + o];
}

/* With e = y - target, a row's loss is the mean over i of
 *
 *     MSE        e_i^2                                   dy_i = 2 e_i / n
 *     L1         |e_i|                                   dy_i = sign(e_i) / n
 *     SmoothL1   e_i^2 / 2  or  |e_i| - 1/2              dy_i = max(-1, min(1, e_i)) / n
 *
 * times the derivative with respect to that row's loss.
 */

static real value(Regression kind, real e) {
    if (kind == REGRESSION_MSE) return e * e;
    real size = fabs(e);
    return kind == REGRESSION_L1 ? size : size < 1 ? e * e / 2 : size - (real)0.5;
}

static real slope(Regression kind, real e) {
    if (kind == REGRESSION_MSE) return 2 * e;
    real sign = (real)((e > 0) - (e < 0));
    return kind == REGRESSION_SMOOTH_L1 && fabs(e) < 1 ? e : sign;
}

void regression_forward(Regression kind, real *loss, const real *y, const real *target, int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, y += n, target += n) {
        loss[t] = 0;
        for (int64_t i = 0; i < n; i++) loss[t] += value(kind, y[i] - target[i]) / (real)n;
    }
}

void regression_backward(Regression kind, real *dy, const real *dloss, const real *y, const real *target,
                         int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, dy += n, y += n, target += n)
        for (int64_t i = 0; i < n; i++) dy[i] += dloss[t] * slope(kind, y[i] - target[i]) / (real)n;
}

/* With s = 1 / (1 + exp(-x)):
 *
 *     silu(x)  = x s
 *     silu'(x) = s + x s (1 - s)
 *     h        = silu(gate) up                 SwiGLU (arXiv 2002.05202) between its three matrices
 *     dgate    = dh up silu'(gate)
 *     dup      = dh silu(gate)
 *
 * GELU by tanh (arXiv 1606.08415), with u = x (a + b x^2), a = 2 sqrt(2 / pi), b = 0.044715 a, s = 1 / (1 + exp(-u)):
 *
 *     gelu(x)  = x s
 *     gelu'(x) = s + x s (1 - s) (a + 3 b x^2)
 */

REAL_CLONES void silu_forward(real *y, const real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * real_sigmoid(x[i]);
}

REAL_CLONES void silu_backward(real *dx, const real *dy, const real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        real s = real_sigmoid(x[i]);
        dx[i] += dy[i] * s * (1 + x[i] * (1 - s));
    }
}

REAL_CLONES void swiglu_forward(real *restrict h, const real *gate, const real *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) h[i] = gate[i] * real_sigmoid(gate[i]) * up[i];
}

REAL_CLONES void swiglu_backward(real *restrict dgate, real *restrict dup, const real *dh, const real *gate,
                                 const real *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        real s = real_sigmoid(gate[i]);
        dup[i] += dh[i] * gate[i] * s;
        dgate[i] += dh[i] * up[i] * s * (1 + gate[i] * (1 - s));
    }
}

static const real gelu_a = (real)1.5957691216057308, gelu_b = (real)0.0713548162726;

REAL_CLONES void geglu_forward(real *restrict h, const real *gate, const real *up, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        h[i] = gate[i] * real_sigmoid(gate[i] * (gelu_a + gelu_b * gate[i] * gate[i])) * up[i];
}

REAL_CLONES void geglu_backward(real *restrict dgate, real *restrict dup, const real *dh, const real *gate,
                                const real *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        real x = gate[i], square = gelu_b * x * x, s = real_sigmoid(x * (gelu_a + square));
        dup[i] += dh[i] * x * s;
        dgate[i] += dh[i] * up[i] * s * (1 + x * (1 - s) * (gelu_a + 3 * square));
    }
}

/* With s = A x + a:  y = x + SiLU(s),  ds = dy SiLU'(s),  dx = dy + A^T ds,  dA = ds x^T,  da = ds. */

void residual_forward(real *y, real *sum, const real *x, const real *w, const real *b, int64_t n_rows, int64_t n) {
    linear_forward(sum, x, w, b, n_rows, n, n);
    silu_forward(y, sum, n_rows * n);
    for (int64_t i = 0; i < n_rows * n; i++) y[i] += x[i];
}

void residual_backward(real *dx, real *dw, real *db, const real *dy, const real *x, const real *sum, const real *w,
                       real *scratch, int64_t n_rows, int64_t n) {
    memset(scratch, 0, (size_t)(n_rows * n) * sizeof *scratch);
    silu_backward(scratch, dy, sum, n_rows * n);
    for (int64_t i = 0; dx && i < n_rows * n; i++) dx[i] += dy[i];
    linear_backward(dx, dw, db, scratch, x, w, n_rows, n, n);
}

/* For each row, with s = 1 / sqrt(mean(x^2) + eps):
 *
 *     y_i  = s x_i w_i
 *     ds/dx_j = -s^3 x_j / n, so
 *     dx_i = s w_i dy_i - x_i (s^3 / n) sum_j dy_j w_j x_j
 *     dw_i = sum over rows of dy_i s x_i
 *
 * Without weights all w_i are 1.
 */

REAL_CLONES void rmsnorm_forward(real *y, real *inverse_rms, const real *x, const real *w, int64_t n_rows, int64_t n,
                                 real eps) {
    for (int64_t t = 0; t < n_rows; t++, x += n, y += n) {
        real s = inverse_rms[t] = 1 / sqrt(real_dot(x, x, n) / (real)n + eps);
        if (w)
            for (int64_t i = 0; i < n; i++) y[i] = s * x[i] * w[i];
        else
            for (int64_t i = 0; i < n; i++) y[i] = s * x[i];
    }
}

/* sum_j dy_j w_j x_j of one row */
REAL_INLINE real dot_3(const real *dy, const real *w, const real *x, int64_t n) {
    real lane[REAL_LANES] = {0};
    int64_t i = 0;
    for (; i + REAL_LANES <= n; i += REAL_LANES)
        for (int k = 0; k < REAL_LANES; k++) lane[k] += dy[i + k] * w[i + k] * x[i + k];
    for (; i < n; i++) lane[i % REAL_LANES] += dy[i] * w[i] * x[i];
    return real_fold(lane);
}

REAL_CLONES void rmsnorm_backward(real *dx, real *dw, const real *dy, const real *x, const real *w,
                                  const real *inverse_rms, int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, x += n, dx += n, dy += n) {
        real s = inverse_rms[t], pull = s * s * s / (real)n * (w ? dot_3(dy, w, x, n) : real_dot(dy, x, n));
        if (w)
            for (int64_t i = 0; i < n; i++) dx[i] += s * w[i] * dy[i] - pull * x[i];
        else
            for (int64_t i = 0; i < n; i++) dx[i] += s * dy[i] - pull * x[i];
        for (int64_t i = 0; dw && i < n; i++) dw[i] += s * x[i] * dy[i];
    }
}

/* Pair i of a head, (a, b), is rotated by the angle position * freq_i, whose cosine and sine are c and s:
 *
 *     a' = c a - s b         da =  c da' + s db'
 *     b' = s a + c b         db = -s da' + c db'           backward rotates by minus the angle
 *
 * Pairs are those of the inference code: (2i, 2i + 1) for llama files, (i, i + n_rot / 2) for qwen files.
 */

/* direction: 1 rotates forward, -1 backward */
REAL_CLONES static void rotate(RopeStyle style, real *x, const real *cos_sin, real direction, int64_t n_rows,
                               int64_t n_heads, int64_t head_dim, int64_t n_rot) {
    int64_t step = style == ROPE_PAIRS ? 2 : 1, apart = style == ROPE_PAIRS ? 1 : n_rot / 2;
    for (int64_t t = 0; t < n_rows; t++, cos_sin += n_rot)
        for (int64_t h = 0; h < n_heads; h++, x += head_dim)
            for (int64_t i = 0; i < n_rot / 2; i++) {
                real c = cos_sin[2 * i], s = direction * cos_sin[2 * i + 1];
                real *a = x + i * step, *b = a + apart, a_old = *a;
                *a = c * a_old - s * *b;
                *b = s * a_old + c * *b;
            }
}

void rope_forward(RopeStyle style, real *x, const real *cos_sin, int64_t n_rows, int64_t n_heads, int64_t head_dim,
                  int64_t n_rot) {
    rotate(style, x, cos_sin, 1, n_rows, n_heads, head_dim, n_rot);
}

void rope_backward(RopeStyle style, real *dx, const real *cos_sin, int64_t n_rows, int64_t n_heads, int64_t head_dim,
                   int64_t n_rot) {
    rotate(style, dx, cos_sin, -1, n_rows, n_heads, head_dim, n_rot);
}

/* With l the logits of a row, q = softmax(l), so that dq_i / dl_j = q_i (1[i = j] - q_j):
 *
 *     hard       L = -log q_y                        dl_i = q_i - 1[i = y]
 *     soft       L = -sum_i p_i log q_i              dl_i = (sum p) q_i - p_i
 *
 * all times the derivative with respect to that row's loss. log q_i = l_i - log sum exp(l), so a q_i that is 0 does no
 * harm.
 */

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

/* With the set S of all i for which probs_i < dist_i, and d sum_{i in S} probs_i / dlogits_j = probs_j ([j in S] - the
 * sum of probs_i over S):
 *
 *     dlogits_j = dloss probs_j (the sum of probs_i over S - [j in S]) */

REAL_CLONES void total_variation_forward(real *loss, const real *probs, const real *dist, int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, probs += n, dist += n) {
        real lane[REAL_LANES] = {0};
        int64_t i = 0;
        for (; i + REAL_LANES <= n; i += REAL_LANES)
            for (int k = 0; k < REAL_LANES; k++) lane[k] += probs[i + k] < dist[i + k] ? probs[i + k] : dist[i + k];
        for (; i < n; i++) lane[i % REAL_LANES] += probs[i] < dist[i] ? probs[i] : dist[i];
        loss[t] = 1 - real_fold(lane);
    }
}

REAL_CLONES void total_variation_backward(real *dlogits, const real *dloss, const real *probs, const real *dist,
                                          int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, dlogits += n, probs += n, dist += n) {
        real below = 0;
        for (int64_t i = 0; i < n; i++) below += probs[i] < dist[i] ? probs[i] : 0;
        for (int64_t i = 0; i < n; i++) dlogits[i] += dloss[t] * probs[i] * (below - (probs[i] < dist[i] ? 1 : 0));
    }
}

double logistic_loss(double z, double y, double *dz) {
    *dz = 1 / (1 + math_exp(-z)) - y;
    return (z > 0 ? z : 0) + math_log1p(math_exp(-fabs(z))) - y * z;
}

/* The blocks of Medusa's, Hydra's and ReDrafter's heads (residual_forward), one after the other. Every
 * block keeps its input and A x + a for the backward pass. */

int residual_chain_open(ResidualChain *c, int64_t width, int32_t n_blocks, int32_t max_rows, fr_error *err) {
    *c = (ResidualChain){.n_blocks = n_blocks, .max_rows = max_rows, .width = width};
    int64_t n = max_rows * width;
    const ArenaItem items[] = {ARENA_ITEM(&c->x, (n_blocks + 1) * n), ARENA_ITEM(&c->sum, n_blocks * n),
                               ARENA_ITEM(&c->dx, n), ARENA_ITEM(&c->dbelow, n), ARENA_ITEM(&c->scratch, n)};
    return arena_take(&c->arena, items, ARENA_COUNT(items), "the activations of a head's blocks", err);
}

void residual_chain_close(ResidualChain *c) { arena_free(&c->arena); }

/* Returns the input of block k. */
static real *x_of(const ResidualChain *c, int32_t k) { return c->x + (int64_t)k * c->max_rows * c->width; }
static real *sum_of(const ResidualChain *c, int32_t k) { return c->sum + (int64_t)k * c->max_rows * c->width; }

real *residual_chain_out(const ResidualChain *c) { return x_of(c, c->n_blocks); }

void residual_chain_forward(ResidualChain *c, real *const *w, int64_t n_rows) {
    for (int32_t k = 0; k < c->n_blocks; k++)
        residual_forward(x_of(c, k + 1), sum_of(c, k), x_of(c, k), w[2 * k], w[2 * k + 1], n_rows, c->width);
}

void residual_chain_back(ResidualChain *c, real *const *w, real *const *dw, int64_t n_rows, bool wants_input) {
    size_t bytes = (size_t)(n_rows * c->width) * sizeof(real);
    for (int32_t k = c->n_blocks - 1; k >= 0; k--) {
        real *below = k || wants_input ? c->dbelow : NULL;
        if (below) memset(below, 0, bytes);
        residual_backward(below, dw[2 * k], dw[2 * k + 1], c->dx, x_of(c, k), sum_of(c, k), w[2 * k], c->scratch,
                          n_rows, c->width);
        if (below) memcpy(c->dx, below, bytes);
    }
}
