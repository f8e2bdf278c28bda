/* tile_body.h - the matrix products of the block types by tile instructions, for as many rows as make them worth it;
 * included once by a table's file, after matmul_body.h and the header of its tile instructions (tiles_amx.h).
 *
 * The idea. A tile instruction multiplies 16 rows of up to 64 bytes with 64 bytes of each of 16 columns, and adds the
 * products as 32-bit integers. That is exact, so the contract's integer sum of 32 inputs is one tile product (two for
 * types whose scales are for 16 inputs), and its floats are folded by the same code as everywhere (add_sums). The
 * unpacked codes of a slice, [8 groups][16 outputs][4 inputs], are the right-hand tile; a plane of the activations of 16
 * rows is the left-hand tile as it lies in memory, one row's ActBlock after the other's. So packed weights and activations
 * are those of all tables.
 *
 *     A: rows x 32 bytes     rows of ActBlock.plane[i], act_row_bytes apart
 *     B: 8 x 64 bytes        signed codes of a slice
 *     C: rows x 16 int32     -> memory, because only from there can vectors take it
 *
 * Codes are unpacked once for all rows into the first cache, less their bias, as signed bytes. For Q8_0, too: its codes
 * could be multiplied where they lie, but then the fold of each row would take the bias away, which costs more from 16
 * rows on (bench/DIARY.md).
 *
 * The order of the work. A chunk of slices of one tile of outputs is taken through all groups of 16 rows, then the
 * next: what was unpacked serves all rows, and the accumulators of a group stay in registers through a chunk. The
 * products of a slice stand before the fold of the slice before it, and the unpacking of the next slice between them:
 * none waits for the other, so that the CPU has work for its vector units while a tile product runs. The products use
 * one result register again and again: several in turn were slower in the probes on such a machine.
 *
 * The last group has the rows that are left, in registers of so many rows: a product takes a cycle for each row.
 *
 * Registers of a process without the system's permission cannot be used: tiles.c asks for it. They are configured
 * at the beginning of a product and released at its end, so that no state of tiles outlives it.
 *
 * Proof: tests/unit/test_kernels_tiles.c runs this file over tiles in plain C. No time of it has been measured yet. */
#include "base/tile_config.h"

enum {
    GROUP_ROWS = TILE_MAX_ROWS,
    CHUNK = 8,       /* slices; whole records of every type */
    MAX_PRODUCTS = 4 /* of a slice: two planes, two halves of a slice with two scales */
};

/* From so many rows on tiles are used. TO BE MEASURED on a machine with AMX: these follow from the cycles of single
 * instructions (22 to 37 for a product with its loads and its store) and of what was measured without tiles: 14 and 8 for
 * a row by vpdpbusd, against 17 for a slice and 5 for a row of everything here but tile instructions. */
static const int64_t tile_rows_min[] = {[ACT_Q16] = 5, [ACT_Q8] = 9};

/* The registers: results and left-hand sides of a full group and of the last, smaller one; right-hand side. */
#define C_FULL 0
#define C_LAST 1
#define A_FULL 2
#define A_LAST 3
#define B_CODES 4

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
    c.rows[B_CODES] = (uint8_t)(inputs / 4);
    c.row_bytes[B_CODES] = TILE_ROWS * 4;
    TILE_CONFIGURE(&c);
}

/* ---- one slice ---------------------------------------------------------------------------------------------- */

/* Slice i of the chunk that begins at `chunk`. */
INLINE void prepare_slice(TensorType type, const unsigned char *chunk, int i, Unpacked *u) {
    const SliceForm *f = &slice_forms[type];
    const int record_slices = (int)f->record_slices, n_lines = (int)record_bytes(type) / 64, s = i % record_slices;
    const unsigned char *record = chunk + (size_t)(i / record_slices) * record_bytes(type);
    for (int line = n_lines * s / record_slices; line < n_lines * (s + 1) / record_slices; line++)
        ask_ahead(record + line * 64);
    unpack_codes(type, chunk + codes_offset(type, i), u->w);
    if (f->bias) UNROLL for (int g = 0; g < 8; g++) u->w[g] = _mm512_sub_epi8(u->w[g], _mm512_set1_epi8((char)f->bias));
    unpack_scales(type, chunk + scales_offset(type, i), i % (int)f->scale_slices, 0, u);
}

#define MULTIPLY(c, a, q, stride, out) \
    do { \
        TILE_ZERO(c); \
        TILE_LOAD(a, q, stride); \
        TILE_DOT_BYTES(c, a, B_CODES); \
        TILE_STORE(c, out, sizeof *(out)); \
    } while (0)

/* The sums of each part of the slice and each plane: sums[part * planes + plane]. x: the blocks of the first row. */
INLINE void multiply_slice(TensorType type, ActForm form, bool is_full, const Vi *codes, const void *x, size_t x_stride,
                           TileSums *sums) {
    int n_parts = scale_parts(type), n_planes = act_planes(form);
    UNROLL for (int part = 0; part < n_parts; part++) {
        TILE_LOAD(B_CODES, codes + 4 * part, sizeof *codes);
        UNROLL for (int plane = 0; plane < n_planes; plane++, sums++) {
            const int8_t *q = ((const ActBlock *)x)->plane[plane] + 16 * part;
            if (is_full) MULTIPLY(C_FULL, A_FULL, q, x_stride, *sums);
            else MULTIPLY(C_LAST, A_LAST, q, x_stride, *sums);
        }
    }
}

INLINE Vf fold_row(TensorType type, ActForm form, const Unpacked *u, const ActBlock *x, const TileSums *sums, int r,
                   Vf acc) {
    int n_parts = scale_parts(type), n_planes = act_planes(form);
    Vi t[2];
    UNROLL for (int part = 0; part < n_parts; part++, sums += n_planes) {
        t[part] = v_load_int(sums[n_planes - 1][r]);
        if (n_planes == 2) t[part] = v_add_int(v_shift_left(v_load_int(sums[0][r]), 8), t[part]);
    }
    return add_sums(type, u, x, t[0], t[n_parts - 1], acc);
}

INLINE void fold_slice(TensorType type, ActForm form, bool is_full, int n_rows, const Unpacked *u, const void *x,
                       size_t x_stride, const TileSums *sums, Vf *acc) {
    const unsigned char *row = x;
    if (is_full)
        UNROLL for (int r = 0; r < GROUP_ROWS; r++, row += x_stride)
            acc[r] = fold_row(type, form, u, (const void *)row, sums, r, acc[r]);
    else
        for (int r = 0; r < n_rows; r++, row += x_stride)
            acc[r] = fold_row(type, form, u, (const void *)row, sums, r, acc[r]);
}

/* ---- a pass ------------------------------------------------------------------------------------------------- */

/* A chunk of one tile of outputs, whose slices the first group of rows prepares. */
typedef struct Chunk {
    const unsigned char *packed;
    int n_slices;
    Unpacked slice[CHUNK];
} Chunk;

/* acc[row] += the chunk's share, for one group of rows. */
INLINE void add_chunk(TensorType type, ActForm form, bool is_full, int n_rows, bool prepares, Chunk *c,
                      const unsigned char *x, size_t x_stride, Vf *acc) {
    const size_t block_bytes = act_block_bytes(form);
    _Alignas(64) TileSums sums[2][MAX_PRODUCTS];
    Vf a[GROUP_ROWS];
    if (is_full) UNROLL for (int r = 0; r < GROUP_ROWS; r++) a[r] = acc[r];
    else memcpy(a, acc, (size_t)n_rows * sizeof *a);
    if (prepares) prepare_slice(type, c->packed, 0, &c->slice[0]);
    for (int s = 0; s < c->n_slices; s++, x += block_bytes) {
        multiply_slice(type, form, is_full, c->slice[s].w, x, x_stride, sums[s & 1]);
        if (prepares && s + 1 < c->n_slices) prepare_slice(type, c->packed, s + 1, &c->slice[s + 1]);
        if (s > 0)
            fold_slice(type, form, is_full, n_rows, &c->slice[s - 1], x - block_bytes, x_stride, sums[(s - 1) & 1], a);
    }
    int last = c->n_slices - 1;
    fold_slice(type, form, is_full, n_rows, &c->slice[last], x - block_bytes, x_stride, sums[last & 1], a);
    if (is_full) UNROLL for (int r = 0; r < GROUP_ROWS; r++) acc[r] = a[r];
    else memcpy(acc, a, (size_t)n_rows * sizeof *a);
}

/* One tile of outputs, up to BLOCK_ROWS_MAX rows. */
INLINE void pass_tiles(TensorType type, ActForm form, const Pass *p) {
    int64_t n_slices = tile_n_slices(type, p->n_in);
    const unsigned char *x = p->x;
    Vf acc[BLOCK_ROWS_MAX];
    Chunk c;
    for (int r = 0; r < p->n_rows; r++) acc[r] = v_zero();
    for (int64_t i = 0; i < n_slices; i += CHUNK, x += CHUNK * act_block_bytes(form)) {
        c.packed = p->tile + codes_offset(type, i);
        c.n_slices = n_slices - i < CHUNK ? (int)(n_slices - i) : CHUNK;
        for (int r = 0; r < p->n_rows; r += GROUP_ROWS) {
            const unsigned char *rows = x + (size_t)r * p->x_stride;
            if (p->n_rows - r >= GROUP_ROWS)
                add_chunk(type, form, true, GROUP_ROWS, r == 0, &c, rows, p->x_stride, acc + r);
            else add_chunk(type, form, false, p->n_rows - r, r == 0, &c, rows, p->x_stride, acc + r);
        }
    }
    for (int r = 0; r < p->n_rows; r++) v_store_n(p->y + r * p->y_stride, p->n_valid, acc[r]);
}

#define DEFINE_TILE_PASSES(type) \
    static void tiles_##type##_q16(const Pass *p) { pass_tiles(TYPE_##type, ACT_Q16, p); } \
    static void tiles_##type##_q8(const Pass *p) { pass_tiles(TYPE_##type, ACT_Q8, p); }
EACH_BLOCK_TYPE(DEFINE_TILE_PASSES)
#define LIST_TILE_PASSES(type) [TYPE_##type] = {[ACT_Q16] = tiles_##type##_q16, [ACT_Q8] = tiles_##type##_q8},
static const PassFn tile_passes[TYPE_COUNT][2] = {EACH_BLOCK_TYPE(LIST_TILE_PASSES)};

/* ---- the product -------------------------------------------------------------------------------------------- */

/* Rows are cut into passes at whole groups, so that only the last pass has a smaller one. */
static void matmul_by_tiles(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride,
                            int64_t tile_begin, int64_t tile_end) {
    if (!act_is_blocks(w->act) || n_rows < tile_rows_min[w->act]) {
        matmul(w, x, n_rows, y, y_stride, tile_begin, tile_end);
        return;
    }
    size_t x_stride = act_row_bytes(w->act, w->n_in);
    int64_t n_groups = (n_rows + GROUP_ROWS - 1) / GROUP_ROWS, groups_max = rows_of_pass(w, x_stride) / GROUP_ROWS;
    int64_t n_passes = (n_groups + groups_max - 1) / groups_max;
    int64_t n_together = n_passes == 1 ? tile_end - tile_begin : GROUP_BYTES / (int64_t)w->tile_bytes + 1;
    configure_tiles(w->type, (int)(n_rows % GROUP_ROWS));
    for (int64_t t = tile_begin; t < tile_end; t += n_together)
        for (int64_t i = 0; i < n_passes; i++) {
            int64_t r = n_groups * i / n_passes * GROUP_ROWS, r_end = n_groups * (i + 1) / n_passes * GROUP_ROWS;
            if (r_end > n_rows) r_end = n_rows;
            for (int64_t tile = t; tile < tile_end && tile < t + n_together; tile++)
                tile_passes[w->type][w->act](&(Pass){.tile = packed_tile(w, tile),
                                                     .n_in = w->n_in,
                                                     .x = (const unsigned char *)x + (size_t)r * x_stride,
                                                     .x_stride = x_stride,
                                                     .n_rows = (int)(r_end - r),
                                                     .y = y + r * y_stride + tile * TILE_ROWS,
                                                     .y_stride = y_stride,
                                                     .n_valid = w->n_out - tile * TILE_ROWS});
        }
    TILE_RELEASE();
}

/* ---- the peak ----------------------------------------------------------------------------------------------- */

/* Products of full tiles, four chains of them. */
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
