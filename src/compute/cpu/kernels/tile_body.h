/* tile_body.h - the matrix products of the block types by tile instructions; included once by the file of a table,
 * after the headers of its vectors and of its tile instructions (base/tiles_amx.h).
 *
 * The problem. A tile instruction multiplies up to 16 rows of up to 64 bytes with 64 bytes of each of 16 columns, and
 * adds the products as 32-bit integers: 16 times what a vector instruction does. That is exact, so the contract's
 * integer sum of 32 inputs is one tile product (two for types that have a scale for each 16 inputs), and its floats are
 * computed by the code of all tables (add_sums). But after each 32 inputs the sums must leave the tile, because they
 * have a scale of their own: 16 lines are stored and read again for each product. So the work is not the products but
 * what surrounds them.
 *
 *     A: rows x 32 bytes     rows of ActBlock.plane[i], act_row_bytes apart, as they are in memory
 *     B: 8 x 64 bytes        signed codes of a slice, [8 groups][16 outputs][4 inputs]
 *     C: rows x 16 int32     -> memory, because vectors can take it only from there
 *
 * The idea. Four weight tiles are in registers at a time: of two slices (or of both halves of one slice, for types with
 * two scales) of two tiles of outputs. All groups of 16 rows pass over them: the codes are unpacked and loaded once for
 * all rows, and each activation tile is loaded once for two products. The table has the operations that a slice of one
 * tile of outputs and 16 rows of two planes takes. A CPU does two loads, one store of 64 bytes and two vector
 * operations per cycle.
 *
 *                                    one tile of outputs, its accumulators     two tiles of outputs, theirs
 *                                    in registers through eight slices         in memory after two slices
 *     tile products                  2 x 16                                    2 x 16
 *     loads   activation tiles       32 lines                                  16
 *             weight tile            8                                         8 / groups of rows
 *             sums                   32                                        32
 *             scales of activations  16                                        8
 *             accumulators           2                                         8
 *             all, at two a cycle    45 cycles                                 34 and less
 *     stores  sums, accumulators     34                                        40
 *     vector operations, 5 a row     40                                        40
 *     lines from the second cache    20                                        10
 *
 * The usual blocks of two tiles of outputs and two groups of rows would have four result registers in turn. That was
 * slower than one register that is used again and again (research/DIARY.md), and so one is used. Weight tiles are
 * loaded once for all groups of rows anyway.
 *
 * A product is issued before the previous product is folded. Neither waits for the other, so that the CPU has work for
 * its vector units while a tile product runs. The last group has the rows that are left, in registers of just as many
 * rows, because a product takes a cycle for each row. With few rows vectors are faster. From how many rows on tiles are
 * faster, and whether pairs of tiles are faster than single ones, is measured when the table is selected
 * (product_ways.c).
 *
 * A process may use the registers only with the system's permission, which base/system.h requests. They are configured
 * at the beginning of a product and released at its end, so that no state of tiles outlives it.
 *
 * Proof: tests/compute/test_kernels_tiles.c runs this file over tiles in plain C. bench/bench_tiles.c measures it. */
#include "base/system.h"
#include "compute/cpu/kernels/pass_body.h"
#include "compute/cpu/kernels/tables.h"
#include "compute/cpu/kernels/product_ways.h"

#include <stddef.h>
#include <string.h>

enum {
    GROUP_ROWS = TILE_MAX_ROWS,
    PAIR = 2,  /* the most tiles of outputs at a time */
    HALVES = 2 /* a step is two slices, or the two halves of a slice with two scales */
};

/* The registers: results and left-hand sides of a full group and of the last, smaller one; right-hand sides, which
 * are named B_half_tile. */
#define C_FULL 0
#define C_LAST 1
#define A_FULL 2
#define A_LAST 3
#define B_0_0 4
#define B_0_1 5
#define B_1_0 6
#define B_1_1 7

typedef int32_t TileSums[GROUP_ROWS][TILE_ROWS];

static void configure_tiles(TensorType type, int n_last) {
    TileConfig c = {.palette = 1};
    int inputs = ACT_BLOCK / scale_parts(type);
    const int results[2] = {C_FULL, C_LAST}, lefts[2] = {A_FULL, A_LAST}, n_rows[2] = {GROUP_ROWS, n_last};
    for (int i = 0; i < 2; i++) {
        if (n_rows[i] == 0) continue;
        c.rows[results[i]] = c.rows[lefts[i]] = (uint8_t)n_rows[i];
        c.row_bytes[results[i]] = TILE_ROWS * sizeof(int32_t);
        c.row_bytes[lefts[i]] = (uint16_t)inputs;
    }
    for (int b = B_0_0; b <= B_1_1; b++) {
        c.rows[b] = (uint8_t)(inputs / 4);
        c.row_bytes[b] = TILE_ROWS * 4;
    }
    TILE_CONFIGURE(&c);
}

/* ---- a step: two slices, or one of two halves ---------------------------------------------------------------- */

/* The slices of a step, [tile of outputs][slice]. */
typedef struct Step {
    Unpacked u[PAIR][HALVES];
} Step;

INLINE int step_slices(TensorType type) { return HALVES / scale_parts(type); }

/* Unpacks slice i of a tile, and prefetches on its behalf. */
INLINE void prepare_slice(TensorType type, const unsigned char *tile, int64_t i, Unpacked *u) {
    const SliceForm *f = &slice_forms[type];
    const int s = (int)(i % f->record_slices);
    prefetch_record(type, &read_ways[READ_SEVERAL], tile + (size_t)(i / f->record_slices) * record_bytes(type), s);
    unpack_codes(type, tile + codes_offset(type, i), u->w);
    if (f->bias) UNROLL for (int g = 0; g < 8; g++) u->w[g] = _mm512_sub_epi8(u->w[g], _mm512_set1_epi8((char)f->bias));
    unpack_scales(type, tile + scales_offset(type, i), s % (int)f->scale_slices, 0, u);
}

/* Unpacks n slices of one or two tiles, from slice i on. */
INLINE void prepare_step(TensorType type, int n_tiles, const Pass *p, int64_t i, int n, Step *step) {
    for (int c = 0; c < n_tiles; c++)
        for (int k = 0; k < n; k++) prepare_slice(type, p->tile + (size_t)c * p->tile_bytes, i + k, &step->u[c][k]);
}

/* Unpacking is the only part of a pass that differs from type to type, and has a function for each. */
typedef void (*PrepareFn)(int n_tiles, const Pass *p, int64_t i, int n, Step *step);
#define DEFINE_PREPARE(type, ...) \
    static void prepare_##type(int n_tiles, const Pass *p, int64_t i, int n, Step *step) { \
        prepare_step(TYPE_##type, n_tiles, p, i, n, step); \
    }
EACH_BLOCK_TYPE(DEFINE_PREPARE)
#define LIST_PREPARE(type, ...) [TYPE_##type] = prepare_##type,
static const PrepareFn prepares[TYPE_COUNT] = {EACH_BLOCK_TYPE(LIST_PREPARE)};

/* Returns the codes of half h of a step. */
INLINE const Vi *half_codes(TensorType type, const Step *step, int c, int h) {
    return scale_parts(type) == 1 ? step->u[c][h].w : step->u[c][0].w + 4 * h;
}

INLINE void load_codes(TensorType type, int n_tiles, int n_halves, const Step *step) {
    TILE_LOAD(B_0_0, half_codes(type, step, 0, 0), sizeof(Vi));
    if (n_tiles == 2) TILE_LOAD(B_0_1, half_codes(type, step, 1, 0), sizeof(Vi));
    if (n_halves == 1) return;
    TILE_LOAD(B_1_0, half_codes(type, step, 0, 1), sizeof(Vi));
    if (n_tiles == 2) TILE_LOAD(B_1_1, half_codes(type, step, 1, 1), sizeof(Vi));
}

#define MULTIPLY(c, a, b, out) \
    do { \
        TILE_ZERO(c); \
        TILE_DOT_BYTES(c, a, b); \
        TILE_STORE(c, out, sizeof *(out)); \
    } while (0)

#define MULTIPLY_PAIR(c, a, q, stride, b_0, b_1, n_tiles, out) \
    do { \
        TILE_LOAD(a, q, stride); \
        MULTIPLY(c, a, b_0, (out)[0]); \
        if ((n_tiles) == 2) MULTIPLY(c, a, b_1, (out)[1]); \
    } while (0)

/* A group of rows and a step. Their products are computed first, and folded while the next batch is computed. */
typedef struct Batch {
    const Step *step;
    const unsigned char *x; /* the block of the first row */
    int n_rows, n_halves;
    TileSums (*sums)[PAIR]; /* [half * planes + plane][tile of outputs] */
    Vf (*acc)[PAIR];
} Batch;

/* Multiplies one activation tile with the codes of its half. */
INLINE void multiply_part(TensorType type, ActForm form, int n_tiles, int part, const Batch *b, size_t x_stride) {
    const int half = part / act_planes(form), plane = part % act_planes(form);
    const size_t offset = scale_parts(type) == 1 ? (size_t)half * act_block_bytes(form) : (size_t)half * 16;
    const int8_t *q = (const int8_t *)(b->x + offsetof(ActBlock, plane) + (size_t)plane * ACT_BLOCK + offset);
    TileSums *sums = b->sums[part];
    if (b->n_rows == GROUP_ROWS && half == 0) MULTIPLY_PAIR(C_FULL, A_FULL, q, x_stride, B_0_0, B_0_1, n_tiles, sums);
    else if (b->n_rows == GROUP_ROWS) MULTIPLY_PAIR(C_FULL, A_FULL, q, x_stride, B_1_0, B_1_1, n_tiles, sums);
    else if (half == 0) MULTIPLY_PAIR(C_LAST, A_LAST, q, x_stride, B_0_0, B_0_1, n_tiles, sums);
    else MULTIPLY_PAIR(C_LAST, A_LAST, q, x_stride, B_1_0, B_1_1, n_tiles, sums);
}

/* Returns the sums of row r and tile c of a half, its planes joined. */
INLINE Vi joined_sum(ActForm form, TileSums (*sums)[PAIR], int c, int r) {
    const int last = act_planes(form) - 1;
    Vi t = v_load_int(sums[last][c][r]);
    return last ? v_add_int(v_shift_left(v_load_int(sums[0][c][r]), 8), t) : t;
}

/* Adds the sums of rows [begin, end) of a batch to the accumulators. */
INLINE void fold_slices(TensorType type, ActForm form, int n_tiles, int n_slices, int begin, int end, const Batch *b,
                        size_t x_stride) {
    const int n_planes = act_planes(form), n_scales = scale_parts(type);
    const unsigned char *row = b->x + (size_t)begin * x_stride;
    for (int r = begin; r < end; r++, row += x_stride) UNROLL for (int c = 0; c < n_tiles; c++) {
            Vf acc = b->acc[r][c];
            UNROLL for (int i = 0; i < n_slices; i++) {
                const ActBlock *x = (const void *)(row + (size_t)i * act_block_bytes(form));
                Vi first = joined_sum(form, b->sums + i * n_planes, c, r);
                Vi last = n_scales == 1 ? first : joined_sum(form, b->sums + n_planes, c, r);
                acc = add_sums(type, &b->step->u[c][i], x, first, last, acc);
            }
            b->acc[r][c] = acc;
        }
}

INLINE void fold_rows(TensorType type, ActForm form, int n_tiles, int begin, int end, const Batch *b, size_t x_stride) {
    if (scale_parts(type) == 1 && b->n_halves == 2) fold_slices(type, form, n_tiles, 2, begin, end, b, x_stride);
    else fold_slices(type, form, n_tiles, 1, begin, end, b, x_stride);
}

/* Computes the products of a batch, and folds the batch before it in between (NULL: there is none). The 16 stores of
 * a product fill a part of the CPU's store buffer; if all products came first, it would be full, and no further
 * instruction could begin. */
INLINE void run_batch(TensorType type, ActForm form, int n_tiles, const Batch *b, const Batch *before,
                      size_t x_stride) {
    const int n_parts = b->n_halves * act_planes(form);
    int n_folded = 0;
    for (int part = 0; part < n_parts; part++) {
        multiply_part(type, form, n_tiles, part, b, x_stride);
        if (!before) continue;
        int end = before->n_rows * (part + 1) / n_parts;
        fold_rows(type, form, n_tiles, n_folded, end, before, x_stride);
        n_folded = end;
    }
}

/* ---- a pass -------------------------------------------------------------------------------------------------- */

/* Multiplies one or two tiles of outputs with up to BLOCK_ROWS_MAX rows. */
INLINE void pass_tiles(TensorType type, ActForm form, int n_tiles, const Pass *p, PrepareFn prepare) {
    const int per_step = step_slices(type);
    const int64_t n_slices = tile_n_slices(type, p->n_in);
    const unsigned char *x = p->x;
    _Alignas(64) TileSums sums[2][HALVES * 2][PAIR];
    Vf acc[BLOCK_ROWS_MAX][PAIR];
    Step steps[2];
    Batch batches[2], *before = NULL;
    int turn = 0;
    for (int r = 0; r < p->n_rows; r++) UNROLL for (int c = 0; c < n_tiles; c++) acc[r][c] = v_zero();
    prepare(n_tiles, p, 0, n_slices < per_step ? 1 : per_step, &steps[0]);
    for (int64_t i = 0; i < n_slices; i += per_step, x += (size_t)per_step * act_block_bytes(form)) {
        Step *step = &steps[i / per_step % 2], *next = &steps[(i / per_step + 1) % 2];
        const int64_t n_left = n_slices - i - per_step;
        const int n_halves = n_left < 0 ? 1 : HALVES;
        load_codes(type, n_tiles, n_halves, step);
        for (int r = 0; r < p->n_rows; r += GROUP_ROWS, turn ^= 1) {
            Batch *b = &batches[turn];
            *b = (Batch){.step = step,
                         .x = x + (size_t)r * p->x_stride,
                         .n_rows = p->n_rows - r < GROUP_ROWS ? p->n_rows - r : GROUP_ROWS,
                         .n_halves = n_halves,
                         .sums = sums[turn],
                         .acc = acc + r};
            run_batch(type, form, n_tiles, b, before, p->x_stride);
            before = b;
        }
        if (n_left > 0) prepare(n_tiles, p, i + per_step, n_left < per_step ? 1 : per_step, next);
    }
    fold_rows(type, form, n_tiles, 0, before->n_rows, before, p->x_stride);
    for (int r = 0; r < p->n_rows; r++)
        UNROLL for (int c = 0; c < n_tiles; c++)
            v_store_n(p->y + r * p->y_stride + c * TILE_ROWS, p->n_valid - c * TILE_ROWS, acc[r][c]);
}

/* Types differ in the number of scales of a slice and in whether they have minima. The function for a case has the
 * name of the first type of that case. */
typedef void (*TilePassFn)(const Pass *p, PrepareFn prepare);
#define DEFINE_TILE_PASS(type, form, n_tiles) \
    static void tiles_##type##_##form##_##n_tiles(const Pass *p, PrepareFn prepare) { \
        pass_tiles(TYPE_##type, ACT_##form, n_tiles, p, prepare); \
    }
#define EACH_TILE_PASS(X, type) X(type, Q16, 1) X(type, Q16, 2) X(type, Q8, 1) X(type, Q8, 2)
EACH_TILE_PASS(DEFINE_TILE_PASS, Q8_0)
EACH_TILE_PASS(DEFINE_TILE_PASS, Q4_1)
EACH_TILE_PASS(DEFINE_TILE_PASS, Q6_K)
EACH_TILE_PASS(DEFINE_TILE_PASS, Q2_K)
#define TILE_PASS(type, form, n_tiles) [ACT_##form][n_tiles - 1] = tiles_##type##_##form##_##n_tiles,
static TilePassFn tile_pass(TensorType type, ActForm form, int n_tiles) {
    static const TilePassFn passes[2][2][2][PAIR] = {
        {{EACH_TILE_PASS(TILE_PASS, Q8_0)}, {EACH_TILE_PASS(TILE_PASS, Q4_1)}},
        {{EACH_TILE_PASS(TILE_PASS, Q6_K)}, {EACH_TILE_PASS(TILE_PASS, Q2_K)}},
    };
    return passes[scale_parts(type) - 1][has_min(type)][form][n_tiles - 1];
}

/* ---- the product --------------------------------------------------------------------------------------------- */

/* Multiplies tiles [begin, end); p is complete except for its place in the matrix. */
static void pass_range(const PackedMatrix *w, TileWay way, Pass p, int64_t begin, int64_t end) {
    float *y = p.y;
    for (int64_t t = begin, n; t < end; t += n) {
        n = way == WAY_TILE_PAIRS && t + 1 < end ? 2 : 1;
        p.tile = packed_tile(w, t);
        p.y = y + t * TILE_ROWS;
        p.n_valid = w->n_out - t * TILE_ROWS;
        tile_pass(w->type, w->act, (int)n)(&p, prepares[w->type]);
    }
}

/* Computes a product. Rows are cut into passes at whole groups, so that only the last pass has a smaller group. */
static void matmul_in_way(TileWay way, const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride,
                          int64_t tile_begin, int64_t tile_end) {
    if (way == WAY_VECTORS || !act_is_blocks(w->act)) {
        kernels_avx512.matmul(w, x, n_rows, y, y_stride, tile_begin, tile_end);
        return;
    }
    size_t x_stride = act_row_bytes(w->act, w->n_in);
    int64_t n_groups = (n_rows + GROUP_ROWS - 1) / GROUP_ROWS, groups_max = rows_of_pass(w, x_stride) / GROUP_ROWS;
    int64_t n_passes = (n_groups + groups_max - 1) / groups_max;
    int64_t n_together = n_passes == 1 ? tile_end - tile_begin : GROUP_BYTES / (int64_t)w->tile_bytes + PAIR;
    configure_tiles(w->type, (int)(n_rows % GROUP_ROWS));
    for (int64_t t = tile_begin; t < tile_end; t += n_together)
        for (int64_t i = 0; i < n_passes; i++) {
            int64_t r = n_groups * i / n_passes * GROUP_ROWS, r_end = n_groups * (i + 1) / n_passes * GROUP_ROWS;
            if (r_end > n_rows) r_end = n_rows;
            Pass p = {.tile_bytes = w->tile_bytes,
                      .n_in = w->n_in,
                      .x = (const unsigned char *)x + (size_t)r * x_stride,
                      .x_stride = x_stride,
                      .n_rows = (int)(r_end - r),
                      .y = y + r * y_stride,
                      .y_stride = y_stride};
            pass_range(w, way, p, t, t + n_together < tile_end ? t + n_together : tile_end);
        }
    TILE_RELEASE();
}

/* ---- the peak ----------------------------------------------------------------------------------------------- */
/* Runs products of full tiles in four chains. */
static double tile_peak_loop(PeakKind kind, int64_t n_rounds) {
    static const _Alignas(64) unsigned char zeros[TILE_MAX_ROWS * TILE_MAX_BYTES];
    TileConfig c = {.palette = 1};
    for (int t = 0; t < TILE_REGISTERS; t++) c.rows[t] = TILE_MAX_ROWS, c.row_bytes[t] = TILE_MAX_BYTES;
    TILE_CONFIGURE(&c);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    TILE_LOAD(4, zeros, TILE_MAX_BYTES);
    TILE_LOAD(5, zeros, TILE_MAX_BYTES);
    TILE_LOAD(6, zeros, TILE_MAX_BYTES);
    TILE_LOAD(7, zeros, TILE_MAX_BYTES);
    for (int64_t i = 0; i < n_rounds; i++) {
        if (kind == PEAK_INT8) {
            TILE_DOT_BYTES(0, 4, 6);
            TILE_DOT_BYTES(1, 4, 7);
            TILE_DOT_BYTES(2, 5, 6);
            TILE_DOT_BYTES(3, 5, 7);
        } else {
            TILE_DOT_BF16(0, 4, 6);
            TILE_DOT_BF16(1, 4, 7);
            TILE_DOT_BF16(2, 5, 6);
            TILE_DOT_BF16(3, 5, 7);
        }
    }
    TILE_RELEASE();
    double inputs = kind == PEAK_INT8 ? TILE_MAX_BYTES : TILE_MAX_BYTES / 2;
    return (double)n_rounds * 4 * TILE_MAX_ROWS * TILE_ROWS * inputs * 2;
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static TileWays tile_ways;

static void matmul_by_tiles(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride,
                            int64_t tile_begin, int64_t tile_end) {
    matmul_in_way(tile_way(&tile_ways, w->type, w->act, n_rows), w, x, n_rows, y, y_stride, tile_begin, tile_end);
}

static const TileProducts tile_products = {
    .matmul = matmul_in_way,
    .peak_loop = tile_peak_loop,
    .ways = &tile_ways,
};

/* Makes *k table "avx512" with these products. The caller chooses the ways. */
static void fill_tile_table(Kernels *k, const char *name) {
    *k = kernels_avx512;
    k->name = name;
    k->matmul = matmul_by_tiles;
    k->tiles = &tile_products;
}
