/* pass_body.h - what the matrix products by vectors (matmul_body.h) and by tiles (tile_body.h) share: the arguments
 * of a pass, prefetching, the number of rows that a pass takes, and the floating-point operations that follow the
 * integer sums of a slice. It is included after the header of an instruction set's vectors. */
#ifndef KERNELS_PASS_BODY_H
#define KERNELS_PASS_BODY_H

#include "compute/cpu/kernels/layout.h"
#include "compute/cpu/kernels/product_ways.h"
#include "compute/cpu/kernels/unpack_body.h"

enum {
    GROUP_BYTES = 256 << 10, /* bytes of weights that several passes read one after another, and ... */
    ACTS_BYTES = 256 << 10,  /* ... bytes of activations of one pass: both stay in a second cache of 1 MB */
    BLOCK_ROWS_MAX = 64,     /* the most rows of one pass over a block type */
    BLOCK_ROWS_MIN = 16,     /* a pass may take this many rows even if their activations exceed ACTS_BYTES */
};

/* The types that are used most, for which numbers of few rows have code of their own. */
#define EACH_FEW_TYPE(X) X(Q4_0) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K) X(MXFP4)

/* The arguments of one call of a pass. */
typedef struct Pass {
    const unsigned char *tile; /* the first of the tiles */
    int n_tiles;               /* one or two, of a block type */
    size_t tile_bytes;         /* from one tile to the next */
    int column;                /* the first column of a plain type, counted from that tile */
    const ReadWay *read;       /* how the tiles are read */
    int64_t n_in;
    const unsigned char *x; /* the first of the rows */
    size_t x_stride;
    int n_rows;
    float *y; /* first output of the first row */
    int64_t y_stride;
    int64_t y_apart; /* the distance from y to the outputs of the second tile, if there is one */
    int64_t n_valid; /* the number of outputs from y to the end of the matrix; there may be fewer than columns */
} Pass;

typedef void (*PassFn)(const Pass *);

/* Prefetches the lines that are read some time after [line, end). Addresses beyond the end of a matrix do no harm. */
INLINE void prefetch_ahead(const ReadWay *read, const unsigned char *line, const unsigned char *end) {
    if (read->far_ahead)
        for (const unsigned char *p = line; p < end; p += read->far_step) __builtin_prefetch(p + read->far_ahead, 0, 2);
    if (read->near_ahead)
        for (const unsigned char *p = line; p < end; p += 64) __builtin_prefetch(p + read->near_ahead, 0, 3);
}

/* Prefetches on behalf of slice s of a record: each slice does so for its share of the lines of the record. */
INLINE void prefetch_record(TensorType type, const ReadWay *read, const unsigned char *record, int s) {
    const int record_slices = (int)slice_forms[type].record_slices, n_lines = (int)record_bytes(type) / 64;
    if (record_slices == 1 && !read->far_ahead) { /* the same without loops */
        if (read->near_ahead)
            UNROLL for (int i = 0; i < n_lines; i++) __builtin_prefetch(record + read->near_ahead + 64 * i, 0, 3);
        return;
    }
    prefetch_ahead(read, record + n_lines * s / record_slices * 64, record + n_lines * (s + 1) / record_slices * 64);
}

/* Returns the most rows that one pass takes. */
static int64_t rows_of_pass(const PackedMatrix *w, size_t x_stride) {
    if (!act_is_blocks(w->act)) return ROWS_MAX;
    int64_t n = ACTS_BYTES / (int64_t)x_stride;
    return n < BLOCK_ROWS_MIN ? BLOCK_ROWS_MIN : n > BLOCK_ROWS_MAX ? BLOCK_ROWS_MAX : n;
}

/* Returns acc plus the share of a part of a slice, whose integer sum is t. */
INLINE Vf add_part(const Unpacked *u, const ActBlock *x, int part, Vi t, Vf acc) {
    return v_fma(v_from_int(t), v_mul(u->scale[part], v_set(x->scale)), acc);
}

/* Returns acc plus what the minimums of a slice add; last of all. */
INLINE Vf add_mins(TensorType type, const Unpacked *u, const ActBlock *x, Vf acc) {
    if (!has_min(type)) return acc;
    if (scale_parts(type) == 1) return v_fma(u->min[0], v_set(x->scaled_sum), acc);
    acc = v_fma(u->min[0], v_set(x->scale * (float)-x->minus_sum_low), acc);
    return v_fma(u->min[1], v_set(x->scale * (float)(x->minus_sum_low - x->minus_sum)), acc);
}

/* Returns acc plus the share of a slice. t is the integer sum of the slice; where scale_parts is 2, t and t_last are
 * the sums of its halves. */
INLINE Vf add_sums(TensorType type, const Unpacked *u, const ActBlock *x, Vi t, Vi t_last, Vf acc) {
    acc = add_part(u, x, 0, t, acc);
    if (scale_parts(type) == 2) acc = add_part(u, x, 1, t_last, acc);
    return add_mins(type, u, x, acc);
}

#endif
