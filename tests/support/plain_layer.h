/* plain_layer.h - the parts of a transformer layer for one row, in double precision, to test drafters that have a layer
 * of their own. The only code of src/ that it uses computes the angles of the rotation. */
#ifndef TESTS_PLAIN_LAYER_H
#define TESTS_PLAIN_LAYER_H

#include "model/model.h"

enum { PLAIN_MAX_KV = 64, PLAIN_MAX_FF = 128 };

/* The heads of a layer; n_kv * dim is at most PLAIN_MAX_KV. */
typedef struct PlainHeads {
    int32_t n_head, n_kv, dim;
    double scale; /* of scores; 0: 1 / sqrt(dim) */
} PlainHeads;

/* The position, keys and values [n_kv][dim] of a row. */
typedef struct PlainKv {
    const struct PlainKv *before; /* the row before it, or its parent in a tree; NULL: none. Must outlive this one */
    int32_t position;
    double k[PLAIN_MAX_KV], v[PLAIN_MAX_KV];
} PlainKv;

/* Puts a row after `before` (may be NULL); its keys and values are not set. */
void plain_kv_begin(PlainKv *kv, const PlainKv *before);
/* Rounds the keys and values of a row to 16-bit floats, which the KV cache holds. */
void plain_kv_round(PlainKv *kv, PlainHeads heads);

/* y = gain * x / rms(x), [n]; y may be x. */
void plain_norm(const float *gain, const double *x, int32_t n, double eps, double *y);
/* Rotates the pairs of neighbours of each head, or its first half against its second half, in place. */
void plain_rotate_halves(const Rope *rope, double *x, int32_t n_heads, int32_t dim, int32_t position);
void plain_rotate_pairs(const Rope *rope, double *x, int32_t n_heads, int32_t dim, int32_t position);
/* Attention of the row over itself and all rows before it: q and out are [n_head][dim]. */
void plain_attend(PlainHeads heads, const PlainKv *row, const double *q, double *out);
/* y = down (f(gate x) * up x), where f is silu or the tanh approximation of GELU; x and y are [n_embd], gate and up
 * [n_ff][n_embd], n_ff at most PLAIN_MAX_FF; y may be x. */
typedef struct PlainFeedForward {
    const float *gate, *up, *down;
    int32_t n_embd, n_ff;
    bool is_gelu;
} PlainFeedForward;
void plain_feed_forward(PlainFeedForward ff, const double *x, double *y);

#endif
