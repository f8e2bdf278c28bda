/* ops.h - the operations of training over rows of numbers, and their derivatives; and their number type.
 *
 * The ops and the networks are written over `real`. The program compiles them with float; a test defines TRAIN_DOUBLE,
 * includes the same files, and so has them in double.
 *
 * All backward functions follow one rule: they add to the gradients (d...) that they are given, and NULL for a gradient
 * means that it is not needed. "dx" is the derivative of the loss with respect to x and has x's shape. All arrays are
 * row-major and contiguous, [n_rows][n], and the arrays of a call do not overlap unless the header says so. */
#ifndef TRAIN_OPS_H
#define TRAIN_OPS_H

#include "base/math_functions.h"
#include "base/mem.h"
#include "gguf/gguf_write.h"
#include "gguf/tensor_type.h"
#include "model/rope.h"
#include "train/gemm.h"

#include <tgmath.h>

/* ---- the number type --------------------------------------------------------------------------------- */

/* Marks a function with loops: it is compiled for each of these instruction sets, and the best one for the CPU is
 * chosen when the program starts. Wider vectors only handle more numbers at once, so the bits stay the same: sums are
 * spelled out in lanes below, and no product is contracted into a sum. (ThreadSanitizer crashes on the resolver, so the
 * Makefile defines the macro away there. Clang goes without it: version 14 gives the resolver a name that other files
 * cannot link to.) */
#ifndef REAL_CLONES
#if defined(__x86_64__) && !defined(__clang__)
#define REAL_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define REAL_CLONES
#endif
#endif
#define REAL_INLINE static inline __attribute__((always_inline))

#ifdef TRAIN_DOUBLE
typedef double real;
REAL_INLINE double real_exp(double x) { return math_exp(x); }
#else
typedef float real;

/* e^x within 2 units in the last place, in operations that a compiler can vectorise over many x:
 * x = n ln 2 + r with |r| <= ln(2)/2, e^r by its Taylor series, 2^n by the exponent bits. x is clamped to
 * -87 .. 88, so the result stays between the smallest normal numbers and about 1e38. n is read from the bits of
 * n + 1.5 * 2^23, whose last bit counts one: converting a NaN to an integer is undefined, and its bits are not. */
REAL_INLINE float real_exp(float x) {
    const float to_whole = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    x = x < -87 ? -87 : x;
    x = x > 88 ? 88 : x;
    union {
        float value;
        uint32_t bits;
    } sum = {x * 0x1.715476p0f + to_whole}, whole = {to_whole}, power;
    float n = sum.value - to_whole;
    float r = (x - n * ln2_high) - n * ln2_low;
    float p = 1 / 720.0f + r * (1 / 5040.0f);
    p = 1 / 120.0f + r * p;
    p = 1 / 24.0f + r * p;
    p = 1 / 6.0f + r * p;
    p = 0.5f + r * p;
    p = 1 + r * (1 + r * p);
    power.bits = (sum.bits - whole.bits + 127) << 23;
    return p * power.value;
}
#endif

/* Computes the product of gemm.h; for doubles by three plain loops, because tests multiply small matrices. */
static inline void real_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, real alpha,
                             const real *a, int64_t a_stride, const real *b, int64_t b_stride, bool accumulate, real *c,
                             int64_t c_stride) {
#ifdef TRAIN_DOUBLE
    const int64_t a_row = transpose_a ? 1 : a_stride, a_column = transpose_a ? a_stride : 1;
    const int64_t b_row = transpose_b ? 1 : b_stride, b_column = transpose_b ? b_stride : 1;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            real sum = 0;
            for (int64_t l = 0; l < k; l++) sum += a[i * a_row + l * a_column] * b[l * b_row + j * b_column];
            c[i * c_stride + j] = alpha * sum + (accumulate ? c[i * c_stride + j] : 0);
        }
#else
    gemm(transpose_a, transpose_b, m, n, k, alpha, a, a_stride, b, b_stride, accumulate, c, c_stride);
#endif
}

/* Sums and maxima of n numbers, kept in REAL_LANES running ones that fit vector registers. */
enum { REAL_LANES = 16 };

REAL_INLINE real real_fold(real lane[REAL_LANES]) {
    for (int half = REAL_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

REAL_INLINE real real_dot(const real *a, const real *b, int64_t n) {
    real lane[REAL_LANES] = {0};
    int64_t i = 0;
    for (; i + REAL_LANES <= n; i += REAL_LANES)
        for (int k = 0; k < REAL_LANES; k++) lane[k] += a[i + k] * b[i + k];
    for (; i < n; i++) lane[i % REAL_LANES] += a[i] * b[i];
    return real_fold(lane);
}

REAL_INLINE real real_sum(const real *a, int64_t n) {
    real lane[REAL_LANES] = {0};
    int64_t i = 0;
    for (; i + REAL_LANES <= n; i += REAL_LANES)
        for (int k = 0; k < REAL_LANES; k++) lane[k] += a[i + k];
    for (; i < n; i++) lane[i % REAL_LANES] += a[i];
    return real_fold(lane);
}

REAL_INLINE real real_max(const real *a, int64_t n) {
    real lane[REAL_LANES];
    for (int k = 0; k < REAL_LANES; k++) lane[k] = a[0];
    int64_t i = 0;
    for (; i + REAL_LANES <= n; i += REAL_LANES)
        for (int k = 0; k < REAL_LANES; k++) lane[k] = a[i + k] > lane[k] ? a[i + k] : lane[k];
    for (; i < n; i++) lane[0] = a[i] > lane[0] ? a[i] : lane[0];
    for (int k = 1; k < REAL_LANES; k++) lane[0] = lane[k] > lane[0] ? lane[k] : lane[0];
    return lane[0];
}

/* p[i] = exp(x[i] - max) / sum; p may be x. Returns log(sum of exp(x[i])). */
REAL_INLINE real real_softmax(real *p, const real *x, int64_t n) {
    real max = real_max(x, n);
    for (int64_t i = 0; i < n; i++) p[i] = real_exp(x[i] - max);
    real sum = real_sum(p, n), inverse = 1 / sum;
    for (int64_t i = 0; i < n; i++) p[i] *= inverse;
    return max + (real)math_log((double)sum);
}

REAL_INLINE real real_sigmoid(real x) { return 1 / (1 + real_exp(-x)); }

/* ---- operations -------------------------------------------------------------------------------------- */

/* x: [n_rows][n]; table: [n_vocab][n]; tokens: [n_rows], each below n_vocab */
void embedding_forward(real *x, const real *table, const int32_t *tokens, int64_t n_rows, int64_t n);
/* dtable: [n_vocab][n]; dx: [n_rows][n] */
void embedding_backward(real *dtable, const real *dx, const int32_t *tokens, int64_t n_rows, int64_t n);

/* Y = x W^T + b, and its derivatives. */

/* y: [n_rows][n_out] is written; x: [n_rows][n_in]; w: [n_out][n_in]; b: [n_out] or NULL */
void linear_forward(real *y, const real *x, const real *w, const real *b, int64_t n_rows, int64_t n_in, int64_t n_out);
/* dx: [n_rows][n_in]; dw: [n_out][n_in]; db: [n_out]; each may be NULL. dy: [n_rows][n_out] */
void linear_backward(real *dx, real *dw, real *db, const real *dy, const real *x, const real *w, int64_t n_rows,
                     int64_t n_in, int64_t n_out);

/* Losses of vectors against their targets (here: hidden states of the target model), and their
 * derivatives. */

/* y, target, dy: [n_rows][n]; loss, dloss: [n_rows]; a row's loss is the mean over its n components. */

typedef enum Regression {
    REGRESSION_MSE,       /* e^2 */
    REGRESSION_L1,        /* |e| */
    REGRESSION_SMOOTH_L1, /* e^2 / 2 where |e| < 1, else |e| - 1/2 (arXiv 1504.08083, eq. 3) */
} Regression;

void regression_forward(Regression kind, real *loss, const real *y, const real *target, int64_t n_rows, int64_t n);
void regression_backward(Regression kind, real *dy, const real *dloss, const real *y, const real *target,
                         int64_t n_rows, int64_t n);

/* SiLU, the products of gated feed-forward parts (arXiv 2002.05202), and their derivatives. */

/* y = silu(x), all [n]; y may be x where no backward pass follows */
void silu_forward(real *y, const real *x, int64_t n);
void silu_backward(real *dx, const real *dy, const real *x, int64_t n);

/* h = silu(gate) * up, all [n] */
void swiglu_forward(real *h, const real *gate, const real *up, int64_t n);
void swiglu_backward(real *dgate, real *dup, const real *dh, const real *gate, const real *up, int64_t n);

/* h = gelu(gate) * up, with GELU by tanh, all [n] */
void geglu_forward(real *h, const real *gate, const real *up, int64_t n);
void geglu_backward(real *dgate, real *dup, const real *dh, const real *gate, const real *up, int64_t n);

/* The block of Medusa's, Hydra's and ReDrafter's heads: y = x + SiLU(A x + a), and its derivatives. */

/* y, x, sum: [n_rows][n]; sum = A x + a is written, for the backward pass; w: [n][n]; b: [n] */
void residual_forward(real *y, real *sum, const real *x, const real *w, const real *b, int64_t n_rows, int64_t n);
/* dx: [n_rows][n] or NULL; dw: [n][n]; db: [n]; scratch: [n_rows][n] */
void residual_backward(real *dx, real *dw, real *db, const real *dy, const real *x, const real *sum, const real *w,
                       real *scratch, int64_t n_rows, int64_t n);

/* RMSNorm (arXiv 1910.07467), and its derivatives. */

/* y, x: [n_rows][n]; w: [n], NULL: all 1; inverse_rms: [n_rows], written, for the backward pass */
void rmsnorm_forward(real *y, real *inverse_rms, const real *x, const real *w, int64_t n_rows, int64_t n, real eps);
/* dx: [n_rows][n]; dw: [n] or NULL (frozen); dy, x: [n_rows][n] */
void rmsnorm_backward(real *dx, real *dw, const real *dy, const real *x, const real *w, const real *inverse_rms,
                      int64_t n_rows, int64_t n);

/* The rotation angles of all positions of a sequence, for rope_forward.
 *
 * Inline, because it is compiled for float and for double. */

/* cos_sin: [n_positions][n_rot/2][2], those of positions 0, 1, .., rounded to float as the target's forward pass has
 * them. */
static inline int rope_table_fill(real *cos_sin, const Rope *rope, int32_t n_positions, fr_error *err) {
    int32_t n = rope->params.n_rot;
    float *row = mem_alloc((size_t)n * sizeof *row);
    if (!row) return error_memory(err, "rope angles", (size_t)n * sizeof *row);
    for (int32_t t = 0; t < n_positions; t++) {
        rope_angles(rope, t, row);
        for (int32_t i = 0; i < n; i++) cos_sin[(int64_t)t * n + i] = (real)row[i];
    }
    mem_free(row);
    return FR_OK;
}

/* Rotary position embedding (arXiv 2104.09864) in place, and its derivative in place. */

/* x: [n_rows][n_heads][head_dim]; the first n_rot components of each head are rotated, paired as `style` says. cos_sin:
 * [n_rows][n_rot/2][2], the angles of each row's position (model/rope.h). */
void rope_forward(RopeStyle style, real *x, const real *cos_sin, int64_t n_rows, int64_t n_heads, int64_t head_dim,
                  int64_t n_rot);
/* dx: as x; turns the derivative with respect to the rotated x into that with respect to x */
void rope_backward(RopeStyle style, real *dx, const real *cos_sin, int64_t n_rows, int64_t n_heads, int64_t head_dim,
                   int64_t n_rot);

/* Losses of logits against a token or a distribution over the vocabulary, and their derivatives. */

/* In all of these: logits, probs, dlogits, dist: [n_rows][n]. probs is written (it may be the array of logits) and is
 * read by the backward pass. loss: [n_rows]. dloss: [n_rows], the derivative with respect to each row's loss: 0 for a
 * row outside the loss mask. */

/* loss = -log softmax(logits)[target]; targets: [n_rows] */
void cross_entropy_forward(real *loss, real *probs, const real *logits, const int32_t *targets, int64_t n_rows,
                           int64_t n);
void cross_entropy_backward(real *dlogits, const real *dloss, const real *probs, const int32_t *targets, int64_t n_rows,
                            int64_t n);

/* loss = -sum_i dist_i log softmax(logits)_i; dist need not sum to 1 (it may be truncated) */
void soft_cross_entropy_forward(real *loss, real *probs, const real *logits, const real *dist, int64_t n_rows,
                                int64_t n);
void soft_cross_entropy_backward(real *dlogits, const real *dloss, const real *probs, const real *dist, int64_t n_rows,
                                 int64_t n);

/* loss = 1 - sum_i min(dist_i, probs_i): the total variation distance between two distributions */
void total_variation_forward(real *loss, const real *probs, const real *dist, int64_t n_rows, int64_t n);
/* dlogits: with probs = softmax(logits) */
void total_variation_backward(real *dlogits, const real *dloss, const real *probs, const real *dist, int64_t n_rows,
                              int64_t n);

/* Returns the loss log(1 + exp(z)) - y z of the estimate sigmoid(z) of a probability y; *dz becomes its derivative. */
double logistic_loss(double z, double y, double *dz);

/* Causal attention with grouped queries over one sequence, and its derivatives. */

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

/* Attention of rows that see a sequence up to some token, and after it a few keys of their
 * own. */

/* Row i sees keys 0 .. last[i] of the sequence, or only the last n_most of these, and its own keys: row i of own_k[0],
 * .., own_k[n_own - 1]. Query head h reads key-value head h / (n_head / n_head_kv). Queries and keys have been rotated
 * already. */
typedef struct UnrollAttention {
    int64_t n_rows, n_keys, n_own;
    int64_t n_head, n_head_kv, head_dim;
    const int32_t *last;               /* [n_rows] ascending, below n_keys */
    const real *k, *v;                 /* [n_keys][n_head_kv][head_dim] */
    real *const *own_k, *const *own_v; /* [n_own] of [n_rows][n_head_kv][head_dim] */
    int64_t n_most;                    /* 0: there is no window */
    const real *sinks;                 /* [n_head] a further score in each softmax, without a value; NULL: none */
    double scale;                      /* a factor of scores; 0: 1 / sqrt(head_dim) */
} UnrollAttention;

enum { UNROLL_BLOCK = 64 }; /* rows at a time */

/* out, q: [n_rows][n_head][head_dim]; probs: [n_head][n_rows][n_keys + n_own], written, for the backward pass */
void unroll_attention_forward(real *out, real *probs, const real *q, const UnrollAttention *s);
/* dq, dout: as q; dk, dv: as k, or NULL (frozen); own_dk, own_dv: as own_k; dsinks: [n_head], or NULL; scratch:
 * [UNROLL_BLOCK][n_keys + n_own] */
void unroll_attention_backward(real *dq, real *dk, real *dv, real *const *own_dk, real *const *own_dv, real *dsinks,
                               const real *dout, const real *probs, const real *q, real *scratch,
                               const UnrollAttention *s);

/* A stack of blocks x + SiLU(A x + a) over some rows, and the backward pass through it. */

typedef struct ResidualChain {
    int32_t n_blocks, max_rows; /* n_blocks may be 0 */
    int64_t width;
    Arena arena;
    real *x;   /* [n_blocks + 1][max_rows][width]: the input, which the caller writes, and the output of each block */
    real *sum; /* [n_blocks][max_rows][width]: A x + a */
    real *dx;  /* [max_rows][width]: the derivative with respect to the output, which the caller writes */
    real *dbelow, *scratch;
} ResidualChain;

int residual_chain_open(ResidualChain *c, int64_t width, int32_t n_blocks, int32_t max_rows, fr_error *err);
void residual_chain_close(ResidualChain *c); /* a zeroed one is fine */

/* Returns the output, [n_rows][width]. */
real *residual_chain_out(const ResidualChain *c);

/* On the first n_rows rows. w, dw: A and a of the first block, then those of the second, ... */
void residual_chain_forward(ResidualChain *c, real *const *w, int64_t n_rows);
/* c->dx becomes the derivative with respect to the input; without wants_input it is left undefined, which saves a
 * product. */
void residual_chain_back(ResidualChain *c, real *const *w, real *const *dw, int64_t n_rows, bool wants_input);

/* Writes a tensor of floats into a GGUF file as another type. */

typedef struct FloatRows {
    TensorType type;
    int64_t n_rows, n;  /* n_rows 0: a vector */
    const float *value; /* [n_rows][n] */
} FloatRows;

/* `rows` and its values must stay valid until the file is written. A tensor whose rows are no whole number of blocks of
 * the type is written as F32. */
void float_rows_add(GgufWriter *w, const char *name, FloatRows *rows);

#endif
