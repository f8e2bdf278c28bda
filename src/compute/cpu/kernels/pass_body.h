/* pass_body.h - what the matrix products by vectors (matmul_body.h) and by tiles (tile_body.h) share: the arguments of a pass,
 * prefetching, how many rows a pass takes, and the floating-point operations behind the integer sums of a slice. Included after
 * the header of an instruction set's vectors. */
#ifndef KERNELS_PASS_BODY_H
#define KERNELS_PASS_BODY_H

#include "compute/cpu/kernels/layout.h"
#include "compute/cpu/kernels/unpack_body.h"

enum {
    FAR_AHEAD = 16 << 10,    /* bytes from what is computed to what is prefetched from memory into the second cache */
    NEAR_AHEAD = 2 << 10,    /* ... and from there into the first */
    GROUP_BYTES = 256 << 10, /* of weights that several passes share ... */
    ACTS_BYTES = 256 << 10,  /* ... with the activations of one of them: both stay in a 1 MB L2 cache */
    BLOCK_ROWS_MAX = 64,     /* in one pass over a block type */
    BLOCK_ROWS_MIN = 16,     /* ... even if their activations are more than ACTS_BYTES */
};

/* One call of a pass. */
typedef struct Pass {
    const unsigned char *tile; /* the first of the tiles */
    size_t tile_bytes;
    int column; /* the first column, counted from that tile */
    int64_t n_in;
    const unsigned char *x; /* the first of the rows */
    size_t x_stride;
    int n_rows;
    float *y; /* first output of the first row */
    int64_t y_stride;
    int64_t y_apart; /* from y to the outputs of the second tile, where one row takes two tiles in turns */
    int64_t n_valid; /* outputs from y on that exist; fewer than the columns hold at the end of a matrix */
} Pass;

typedef void (*PassFn)(const Pass *);

/* Prefetches what comes after the line at p. Addresses beyond the end of a matrix do no harm. */
INLINE void ask_far(const unsigned char *p) { __builtin_prefetch(p + FAR_AHEAD, 0, 2); }
INLINE void ask_ahead(const unsigned char *p) {
    ask_far(p);
    __builtin_prefetch(p + NEAR_AHEAD, 0, 3);
}

/* The most rows that one pass takes. */
static int64_t rows_of_pass(const PackedMatrix *w, size_t x_stride) {
    if (!act_is_blocks(w->act)) return ROWS_MAX;
    int64_t n = ACTS_BYTES / (int64_t)x_stride;
    return n < BLOCK_ROWS_MIN ? BLOCK_ROWS_MIN : n > BLOCK_ROWS_MAX ? BLOCK_ROWS_MAX : n;
}

/* acc + the share of a slice whose integer sum is t, or t and t_last of its halves where scale_parts is 2. */
INLINE Vf add_sums(TensorType type, const Unpacked *u, const ActBlock *x, Vi t, Vi t_last, Vf acc) {
    int n_parts = scale_parts(type);
    Vf da = v_set(x->scale);
    acc = v_fma(v_from_int(t), v_mul(u->scale[0], da), acc);
    if (n_parts == 2) acc = v_fma(v_from_int(t_last), v_mul(u->scale[1], da), acc);
    if (!has_min(type)) return acc;
    if (n_parts == 1) return v_fma(u->min[0], v_set(x->scaled_sum), acc);
    acc = v_fma(u->min[0], v_set(x->scale * (float)-x->minus_sum_low), acc);
    return v_fma(u->min[1], v_set(x->scale * (float)(x->minus_sum_low - x->minus_sum)), acc);
}

#endif
