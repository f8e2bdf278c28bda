/* matmul_body.h - the matrix products of every vector table; included once by each kernels_*.c, after its simd_*.h. The
 * operations and their order are those of ref_matmul.c, done for LANES outputs side by side.
 *
 * The shape of the work. A column is a vector of LANES outputs: a whole tile with AVX-512, half of one with AVX2. One
 * call of a pass takes one or two tiles of a block type, or a few columns of a plain type, through all slices along k:
 *
 *     for each slice, for each column:
 *         unpack 32 inputs of the column's codes into w[8], and their scales              once
 *         for each row:   t = dot(w, q);   acc[row] = fma(t, scale * da, acc[row])        rows times
 *
 * Unpacking is paid once for all rows, and the bytes come from memory once: as long as the byte products of all rows
 * take less time than the bytes of a slice, n rows cost what one row costs. The verification of a token tree depends on
 * that. With many rows a pass has a loop over them. One row of the types that are used most has a pass of its own, and
 * with AVX-512 each number of rows up to FEW_ROWS where that pays (pass_few), because there the instructions around the
 * products decide how fast the weights are read.
 *
 * A block type needs no more than one column at a time: the dot products of different rows and slices are independent,
 * so that the CPU overlaps them. A plain type is a chain of fused multiply-adds, four cycles each; there the
 * accumulators are registers, several columns at once keep the units busy, and each number of rows has its own
 * function. Tables with 32 vectors can take two tiles at once where there are many rows (pass_pair).
 *
 * Memory. A thread reads the tiles of a product as one stream of bytes, or as two, half the tiles each, in turns.
 * Each slice prefetches bytes that come later in its stream. How far ahead, into which cache and in how many streams
 * is different for one row and for several, and from CPU to CPU; product_ways.c measures it. Rows that do not fit
 * into one pass are cut into passes over a group of tiles that stays in the second cache. */
#include "compute/cpu/kernels/pass_body.h"

#include "compute/cpu/kernels/ref.h"
#include "compute/cpu/kernels/tables.h"

#include <math.h>
#include <string.h>

enum {
    COLUMNS_PER_TILE = TILE_ROWS / LANES,
    HALF_TILES_MIN = 4, /* two halves take turns only if each has at least this many tiles */
    FEW_ROWS = 4,       /* numbers of rows that have a pass of their own */
};

#if defined(ACTS_ARE_WORDS)
#include "compute/cpu/kernels/words_body.h"
#endif

/* ---- block types -------------------------------------------------------------------------------- */

/* The same slice of a few rows, whose chains of byte products are side by side in the instruction stream. */
typedef struct RowBlocks {
    const ActBlock *x[ROWS_TOGETHER];
} RowBlocks;

/* t[row] = the sum of (code - bias) * q over n halves of a slice, 16 inputs each, from half `first` on. The products
 * with the two planes of q are joined at the end, and the bias is taken off together with the last plane. */
INLINE void dot_codes(TensorType type, ActForm form, int n_rows, const Unpacked *u, const RowBlocks *b, int first,
                      int n, Vi t[ROWS_TOGETHER]) {
    uint32_t code_max = code_max_of(type);
    int last = act_planes(form) - 1;
    const int8_t *q[ROWS_TOGETHER], *q_high[ROWS_TOGETHER];
    Vi high[ROWS_TOGETHER];
    UNROLL for (int r = 0; r < n_rows; r++) {
        const ActBlock *x = b->x[r];
        int32_t minus_sum = n == 2 ? x->minus_sum : first == 0 ? x->minus_sum_low : x->minus_sum - x->minus_sum_low;
        t[r] = bias_times(type, BYTE_CODES_LOSE_BIAS, v_set_int(minus_sum));
        high[r] = v_set_int(0);
        q[r] = x->plane[last] + 16 * first;
        q_high[r] = x->plane[0] + 16 * first;
    }
    UNROLL for (int i = 0; i < n; i++) {
        v_dot_4_groups(code_max, n_rows, u->w + 4 * (first + i), q, 16 * i, t);
        if (last) v_dot_4_groups(code_max, n_rows, u->w + 4 * (first + i), q_high, 16 * i, high);
    }
    if (last) UNROLL for (int r = 0; r < n_rows; r++) t[r] = v_add_int(v_shift_left(high[r], 8), t[r]);
}

/* Adds the share of a slice to the accumulator of each row. */
INLINE void add_slice(TensorType type, ActForm form, int n_rows, const Unpacked *u, const RowBlocks *b, Vf *acc) {
    int n_parts = scale_parts(type);
    Vi t[2][ROWS_TOGETHER];
    UNROLL for (int i = 0; i < n_parts; i++) dot_codes(type, form, n_rows, u, b, i, 3 - n_parts, t[i]);
    UNROLL for (int r = 0; r < n_rows; r++) acc[r] = add_sums(type, u, b->x[r], t[0][r], t[n_parts - 1][r], acc[r]);
}

INLINE void add_rows(TensorType type, ActForm form, int n_rows, const Unpacked *u, const unsigned char *x,
                     size_t x_stride, Vf *acc) {
    RowBlocks b;
    UNROLL for (int r = 0; r < n_rows; r++) b.x[r] = (const void *)(x + (size_t)r * x_stride);
    add_slice(type, form, n_rows, u, &b, acc);
}

/* Adds the share of a slice to the accumulators of all rows. With 8-bit activations the products take so little time
 * that the rows' next blocks come late from the second cache, unless they are prefetched. */
INLINE void add_all_rows(TensorType type, ActForm form, int64_t n_rows, const Unpacked *u, const unsigned char *x,
                         size_t x_stride, Vf *acc) {
    int64_t r = 0;
    for (; r + ROWS_TOGETHER <= n_rows; r += ROWS_TOGETHER, x += ROWS_TOGETHER * x_stride) {
        if (form == ACT_Q8)
            UNROLL for (int i = 0; i < ROWS_TOGETHER; i++)
                __builtin_prefetch(x + (size_t)i * x_stride + 2 * act_block_bytes(form), 0, 3);
        add_rows(type, form, ROWS_TOGETHER, u, x, x_stride, acc + r);
    }
    if (ROWS_TOGETHER > 2 && n_rows - r >= 2) {
        add_rows(type, form, 2, u, x, x_stride, acc + r);
        r += 2, x += 2 * x_stride;
    }
    if (n_rows > r) add_rows(type, form, 1, u, x, x_stride, acc + r);
}

/* Adds the share of a slice of a tile: acc[column][row]. codes, scales: those of the slice, which is number i_sub of
 * those that share the scales. */
INLINE void add_slice_of_tile(TensorType type, ActForm form, int64_t n_rows, const unsigned char *codes,
                              const unsigned char *scales, int i_sub, const unsigned char *x, size_t x_stride,
                              Vf (*acc)[BLOCK_ROWS_MAX]) {
#if defined(ACTS_ARE_WORDS)
    if (form == ACT_Q16) {
        add_slice_of_words(type, n_rows, codes, scales, i_sub, x, x_stride, acc);
        return;
    }
#endif
    for (int c = 0; c < COLUMNS_PER_TILE; c++) {
        Unpacked u;
        unpack_codes(type, codes + c * LANES * 4, u.w);
        unpack_scales(type, scales, i_sub, c, &u);
        add_all_rows(type, form, n_rows, &u, x, x_stride, acc[c]);
    }
}

/* Multiplies one tile, or two in turns that are tile_bytes apart, with n_rows <= BLOCK_ROWS_MAX rows, a number that may
 * be known when this is compiled. The accumulators are in the first cache; the ten or more vector operations between
 * the load and the store of one hide both. */
INLINE void pass_blocks(TensorType type, ActForm form, int64_t n_rows, const Pass *p) {
    const int record_slices = (int)slice_forms[type].record_slices;
    const int scale_slices = (int)slice_forms[type].scale_slices, n_columns = p->n_tiles * COLUMNS_PER_TILE;
    const ReadWay read = *p->read;
    const unsigned char *record = p->tile, *x = p->x;
    int64_t n_slices = tile_n_slices(type, p->n_in);
    Vf acc[2 * COLUMNS_PER_TILE][BLOCK_ROWS_MAX];
    for (int c = 0; c < n_columns; c++)
        for (int64_t r = 0; r < n_rows; r++) acc[c][r] = v_zero();
    for (int64_t i = 0; i < n_slices; i += record_slices, record += record_bytes(type))
        for (int s = 0; s < record_slices && i + s < n_slices; s++, x += act_block_bytes(form))
            for (int t = 0; t < p->n_tiles; t++) {
                const unsigned char *of_tile = record + (size_t)t * p->tile_bytes;
                prefetch_record(type, &read, of_tile, s);
                add_slice_of_tile(type, form, n_rows, of_tile + codes_offset(type, s), of_tile + scales_offset(type, s),
                                  s % scale_slices, x, p->x_stride, acc + t * COLUMNS_PER_TILE);
            }
    for (int c = 0; c < n_columns; c++) {
        int64_t at = c / COLUMNS_PER_TILE * p->y_apart + c % COLUMNS_PER_TILE * LANES;
        for (int64_t r = 0; r < n_rows; r++) v_store_n(p->y + r * p->y_stride + at, p->n_valid - at, acc[c][r]);
    }
}

#if defined(TILES_IN_PAIRS)
/* Multiplies one tile, or two in turns, with a number of rows that is known when this is compiled.
 *
 * The problem. A CPU looks some hundred instructions ahead, and what it reads there is on its way while it computes. A
 * slice of a few rows has as few as 16 products. In pass_blocks as many instructions count rows, find addresses and
 * store accumulators, so that the CPU looks two or three slices ahead, and one row takes 80 cycles for a slice whose
 * products need 22.
 *
 * The idea. Here accumulators are registers, two slices are one stretch of code, and only the length is a variable.
 *
 * When it loses: Q8_0 with two rows, or with 8-bit activations and more than one. It has the most bytes for its
 * products, and prefetches that come faster than the memory answers hold up the reads (passes_of). And each number
 * of rows is code of its own for each type, 20 KB in all: so only tables with 32 vectors have it, in which a tile is
 * one column, and only for the types that are used most (EACH_FEW_TYPE). */
INLINE void pass_few(TensorType type, ActForm form, int n_rows, int n_tiles, const Pass *p) {
    const int record_slices = (int)slice_forms[type].record_slices;
    const int scale_slices = (int)slice_forms[type].scale_slices;
    const ReadWay read = *p->read;
    const unsigned char *record = p->tile, *x = p->x;
    int64_t n_slices = tile_n_slices(type, p->n_in);
    Vf acc[2][FEW_ROWS];
    UNROLL for (int t = 0; t < n_tiles; t++) UNROLL for (int r = 0; r < n_rows; r++) acc[t][r] = v_zero();
    for (int64_t i = 0; i < n_slices; i += record_slices, record += record_bytes(type))
        for (int pair = 0; pair < record_slices; pair += 2)
            UNROLL for (int s = pair; s < pair + 2; s++, x += act_block_bytes(form)) {
                if (s >= record_slices || i + s >= n_slices) break;
                UNROLL for (int t = 0; t < n_tiles; t++) {
                    const unsigned char *of_tile = t ? record + p->tile_bytes : record;
                    Unpacked u;
                    prefetch_record(type, &read, of_tile, s);
                    unpack_codes(type, of_tile + codes_offset(type, s), u.w);
                    unpack_scales(type, of_tile + scales_offset(type, s), s % scale_slices, 0, &u);
                    add_rows(type, form, n_rows, &u, x, p->x_stride, acc[t]);
                }
            }
    UNROLL for (int t = 0; t < n_tiles; t++) UNROLL for (int r = 0; r < n_rows; r++)
        v_store_n(p->y + r * p->y_stride + t * p->y_apart, p->n_valid - t * p->y_apart, acc[t][r]);
}
#endif

#if defined(TILES_IN_PAIRS)
/* Passes that take two tiles at a time, for tables with 32 vectors.
 *
 * The problem. With one tile, each byte product reads its four activations from memory: 16 reads and 16 products for 32
 * inputs of two planes. A CPU that does two products a cycle also reads twice a cycle, so reads and products are both
 * at the limit, and whatever else is read (accumulators, scales) makes the loop slower.
 *
 * The idea. Four activations, which are copied once to all lanes of a register, are multiplied with the codes of two
 * tiles: half of the reads. The codes of both tiles take 16 registers, the sums of PAIR_CHAINS products eight.
 *
 * When it loses: with few rows, and on a CPU that reads twice for each product, so that no product waits for a read
 * (Zen 4). product_ways.c measures it.
 *
 * Each output's operations and their order are those of one tile. Proof: test_kernels_matmul.c. */
enum { PAIR_CHAINS = 8 };

/* Returns the number of rows whose products take turns: with two tiles and one or two planes, they make PAIR_CHAINS
 * chains. */
INLINE int pair_rows(ActForm form) { return PAIR_CHAINS / 2 / act_planes(form); }

/* t[row][tile] = what dot_codes computes, for both tiles. */
INLINE void dot_pair(TensorType type, ActForm form, int n_rows, const Unpacked u[2], const unsigned char *x,
                     size_t x_stride, int first, int n, Vi t[PAIR_CHAINS / 2][2]) {
    int last = act_planes(form) - 1;
    Vi high[PAIR_CHAINS / 2][2];
    UNROLL for (int r = 0; r < n_rows; r++) {
        const ActBlock *b = (const void *)(x + (size_t)r * x_stride);
        int32_t minus_sum = n == 2 ? b->minus_sum : first == 0 ? b->minus_sum_low : b->minus_sum - b->minus_sum_low;
        t[r][0] = t[r][1] = bias_times(type, BYTE_CODES_LOSE_BIAS, v_set_int(minus_sum));
        high[r][0] = high[r][1] = v_set_int(0);
    }
    UNROLL for (int g = 4 * first; g < 4 * (first + n); g++) UNROLL for (int r = 0; r < n_rows; r++) {
        const ActBlock *b = (const void *)(x + (size_t)r * x_stride);
        Vi q = v_set_4_bytes(b->plane[last] + 4 * g);
        UNROLL for (int c = 0; c < 2; c++) t[r][c] = v_dot_bytes(u[c].w[g], q, t[r][c]);
        if (!last) continue;
        q = v_set_4_bytes(b->plane[0] + 4 * g);
        UNROLL for (int c = 0; c < 2; c++) high[r][c] = v_dot_bytes(u[c].w[g], q, high[r][c]);
    }
    if (last)
        UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < 2; c++)
            t[r][c] = v_add_int(v_shift_left(high[r][c], 8), t[r][c]);
}

/* Adds the share of a slice of both tiles to the accumulators of each row. */
INLINE void add_rows_to_pair(TensorType type, ActForm form, int n_rows, const Unpacked u[2], const unsigned char *x,
                             size_t x_stride, Vf (*acc)[2]) {
    int n_parts = scale_parts(type);
    Vi t[2][PAIR_CHAINS / 2][2];
    UNROLL for (int i = 0; i < n_parts; i++) dot_pair(type, form, n_rows, u, x, x_stride, i, 3 - n_parts, t[i]);
    UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < 2; c++) {
        const ActBlock *b = (const void *)(x + (size_t)r * x_stride);
        acc[r][c] = add_sums(type, &u[c], b, t[0][r][c], t[n_parts - 1][r][c], acc[r][c]);
    }
}

/* Multiplies two tiles with up to BLOCK_ROWS_MAX rows. */
INLINE void pass_pair(TensorType type, ActForm form, const Pass *p) {
    const SliceForm *f = &slice_forms[type];
    const int record_slices = (int)f->record_slices, together = pair_rows(form);
    const ReadWay read = *p->read;
    const unsigned char *record = p->tile, *x = p->x;
    int64_t n_slices = tile_n_slices(type, p->n_in), n_rows = p->n_rows;
    Vf acc[BLOCK_ROWS_MAX][2];
    for (int64_t r = 0; r < n_rows; r++) acc[r][0] = acc[r][1] = v_zero();
    for (int64_t i = 0; i < n_slices; i += record_slices, record += record_bytes(type))
        for (int s = 0; s < record_slices && i + s < n_slices; s++, x += act_block_bytes(form)) {
            Unpacked u[2];
            UNROLL for (int c = 0; c < 2; c++) {
                const unsigned char *of_tile = record + (size_t)c * p->tile_bytes;
                prefetch_record(type, &read, of_tile, s);
                unpack_codes(type, of_tile + codes_offset(type, s), u[c].w);
                unpack_scales(type, of_tile + scales_offset(type, s), s % (int)f->scale_slices, 0, &u[c]);
                keep_in_memory(&u[c]);
            }
            const unsigned char *row = x;
            int64_t r = 0;
            for (; r + together <= n_rows; r += together, row += (size_t)together * p->x_stride)
                add_rows_to_pair(type, form, together, u, row, p->x_stride, acc + r);
            for (; r < n_rows; r++, row += p->x_stride) add_rows_to_pair(type, form, 1, u, row, p->x_stride, acc + r);
        }
    for (int64_t r = 0; r < n_rows; r++)
        UNROLL for (int c = 0; c < 2; c++)
            v_store_n(p->y + r * p->y_stride + c * LANES, p->n_valid - c * LANES, acc[r][c]);
}

static PairChoice pair_choice;
#endif

/* ---- plain types -------------------------------------------------------------------------------- */

INLINE Vf plain_weight(TensorType type, const unsigned char *column, int64_t k) {
    return type == TYPE_F32 ? v_load((const float *)(const void *)column + k * 16) : v_load_half(column + k * 32);
}

INLINE void pass_plain(TensorType type, int n_rows, int n_columns, const Pass *p) {
    enum {
        N_ACC = ROWS_MAX * COLUMNS_WIDE > ROWS_NARROW * COLUMNS_NARROW ? ROWS_MAX * COLUMNS_WIDE
                                                                       : ROWS_NARROW * COLUMNS_NARROW
    };
    size_t column_bytes = LANES * (type == TYPE_F32 ? 4 : type == TYPE_F16 ? 2 : 4);
    int64_t n_slices = tile_n_slices(type, p->n_in);
    const unsigned char *columns[COLUMNS_NARROW];
    Vf acc[N_ACC];
    UNROLL for (int c = 0; c < n_columns; c++) {
        int column = p->column + c;
        columns[c] = p->tile + (size_t)(column / COLUMNS_PER_TILE) * p->tile_bytes +
                     (size_t)(column % COLUMNS_PER_TILE) * column_bytes;
    }
    UNROLL for (int i = 0; i < n_rows * n_columns; i++) acc[i] = v_zero();
    for (int64_t k = 0; k < n_slices; k++) {
        UNROLL for (int c = 0; c < n_columns; c++) prefetch_ahead(
            &read_ways[READ_SEVERAL], columns[c] + (size_t)k * column_bytes, columns[c] + (size_t)k * column_bytes + 1);
        if (type == TYPE_BF16) {
            Vi w[COLUMNS_NARROW];
            UNROLL for (int c = 0; c < n_columns; c++) w[c] = v_load_int(columns[c] + k * 64);
            UNROLL for (int r = 0; r < n_rows; r++) {
                Vi x = v_set_4_bytes(p->x + (size_t)r * p->x_stride + k * 4);
                UNROLL for (int c = 0; c < n_columns; c++)
                    acc[r * n_columns + c] = v_dot_bf16_pair(w[c], x, acc[r * n_columns + c]);
            }
            continue;
        }
        Vf w[COLUMNS_NARROW];
        UNROLL for (int c = 0; c < n_columns; c++) w[c] = plain_weight(type, columns[c], k);
        UNROLL for (int r = 0; r < n_rows; r++) {
            Vf x = v_set(((const float *)(const void *)(p->x + (size_t)r * p->x_stride))[k]);
            UNROLL for (int c = 0; c < n_columns; c++) acc[r * n_columns + c] = v_fma(w[c], x, acc[r * n_columns + c]);
        }
    }
    UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < n_columns; c++)
        v_store_n(p->y + r * p->y_stride + c * LANES, p->n_valid - c * LANES, acc[r * n_columns + c]);
}

/* ---- a function for each block type, and for each plain type and number of rows ------------------ */

typedef const PassFn BlockPasses[TYPE_COUNT][2]; /* [type][form of activations] */
typedef const PassFn (*PassTable)[2];            /* to such an array */

#define DEFINE_BLOCK_PASSES(type, ...) \
    static void pass_##type##_q16(const Pass *p) { pass_blocks(TYPE_##type, ACT_Q16, p->n_rows, p); } \
    static void pass_##type##_q8(const Pass *p) { pass_blocks(TYPE_##type, ACT_Q8, p->n_rows, p); }
#define LIST_BLOCK_PASSES(type, ...) [TYPE_##type] = {[ACT_Q16] = pass_##type##_q16, [ACT_Q8] = pass_##type##_q8},
EACH_BLOCK_TYPE(DEFINE_BLOCK_PASSES)
static BlockPasses block_passes = {EACH_BLOCK_TYPE(LIST_BLOCK_PASSES)};

#if defined(TILES_IN_PAIRS)
#define DEFINE_FEW_PASS(type, rows, tiles) \
    static void few_##rows##_##tiles##_##type##_q16(const Pass *p) { pass_few(TYPE_##type, ACT_Q16, rows, tiles, p); } \
    static void few_##rows##_##tiles##_##type##_q8(const Pass *p) { pass_few(TYPE_##type, ACT_Q8, rows, tiles, p); }
#define DEFINE_FEW_PASSES(type) \
    DEFINE_FEW_PASS(type, 1, 1) \
    DEFINE_FEW_PASS(type, 1, 2) \
    DEFINE_FEW_PASS(type, 2, 1) \
    DEFINE_FEW_PASS(type, 3, 1) \
    DEFINE_FEW_PASS(type, 4, 1)
#define LIST_FEW_PASS(type, rows, tiles) \
    [TYPE_##type] = {[ACT_Q16] = few_##rows##_##tiles##_##type##_q16, [ACT_Q8] = few_##rows##_##tiles##_##type##_q8},
#define LIST_1_1(type) LIST_FEW_PASS(type, 1, 1)
#define LIST_1_2(type) LIST_FEW_PASS(type, 1, 2)
#define LIST_2_1(type) LIST_FEW_PASS(type, 2, 1)
#define LIST_3_1(type) LIST_FEW_PASS(type, 3, 1)
#define LIST_4_1(type) LIST_FEW_PASS(type, 4, 1)
EACH_FEW_TYPE(DEFINE_FEW_PASSES)
_Static_assert(FEW_ROWS == 4, "the passes of few rows count to FEW_ROWS");
static BlockPasses few_passes[FEW_ROWS] = {{EACH_FEW_TYPE(LIST_1_1)},
                                           {EACH_FEW_TYPE(LIST_2_1)},
                                           {EACH_FEW_TYPE(LIST_3_1)},
                                           {EACH_FEW_TYPE(LIST_4_1)}}; /* [rows - 1] over one tile */
static BlockPasses one_row_in_turns = {EACH_FEW_TYPE(LIST_1_2)};       /* one row over two tiles */

/* Returns the passes over one tile, or over two, for so many rows. */
static PassTable passes_of(const PackedMatrix *w, int n_rows, int n_tiles) {
    bool loses = w->type == TYPE_Q8_0 && n_rows > 1 && (n_rows == 2 || w->act == ACT_Q8);
    if (n_rows > FEW_ROWS || !few_passes[0][w->type][ACT_Q16] || loses) return block_passes;
    if (n_tiles == 1) return few_passes[n_rows - 1];
    return n_rows == 1 ? one_row_in_turns : block_passes;
}
#else
#define DEFINE_ROW_PASSES(type) \
    static void row_##type##_q16(const Pass *p) { pass_blocks(TYPE_##type, ACT_Q16, 1, p); } \
    static void row_##type##_q8(const Pass *p) { pass_blocks(TYPE_##type, ACT_Q8, 1, p); }
#define LIST_ROW_PASSES(type) [TYPE_##type] = {[ACT_Q16] = row_##type##_q16, [ACT_Q8] = row_##type##_q8},
EACH_FEW_TYPE(DEFINE_ROW_PASSES)
static BlockPasses row_passes = {EACH_FEW_TYPE(LIST_ROW_PASSES)};

static PassTable passes_of(const PackedMatrix *w, int n_rows, int n_tiles) {
    (void)n_tiles;
    return n_rows == 1 && row_passes[w->type][ACT_Q16] ? row_passes : block_passes;
}
#endif

#if defined(TILES_IN_PAIRS)
#define DEFINE_PAIR_PASSES(type, ...) \
    static void pair_##type##_q16(const Pass *p) { pass_pair(TYPE_##type, ACT_Q16, p); } \
    static void pair_##type##_q8(const Pass *p) { pass_pair(TYPE_##type, ACT_Q8, p); }
#define LIST_PAIR_PASSES(type, ...) [TYPE_##type] = {[ACT_Q16] = pair_##type##_q16, [ACT_Q8] = pair_##type##_q8},
EACH_BLOCK_TYPE(DEFINE_PAIR_PASSES)
static BlockPasses pair_passes = {EACH_BLOCK_TYPE(LIST_PAIR_PASSES)};
#endif

#define EACH_ROWS(X, type) X(type, 1) X(type, 2) X(type, 3) X(type, 4) X(type, 5) X(type, 6) X(type, 7) X(type, 8)
_Static_assert(ROWS_MAX == 8, "EACH_ROWS counts to ROWS_MAX");

#define COLUMNS(rows) ((rows) <= ROWS_NARROW ? COLUMNS_NARROW : COLUMNS_WIDE)
#define DEFINE_PLAIN_PASS(type, rows) \
    static void wide_##type##_##rows(const Pass *p) { pass_plain(TYPE_##type, rows, COLUMNS(rows), p); } \
    static void single_##type##_##rows(const Pass *p) { pass_plain(TYPE_##type, rows, 1, p); }
#define DEFINE_PLAIN_PASSES(type, ...) EACH_ROWS(DEFINE_PLAIN_PASS, type)
#define NAME_WIDE_PASS(type, rows) wide_##type##_##rows,
#define NAME_SINGLE_PASS(type, rows) single_##type##_##rows,
#define LIST_WIDE_PASSES(type, ...) [TYPE_##type] = {EACH_ROWS(NAME_WIDE_PASS, type)},
#define LIST_SINGLE_PASSES(type, ...) [TYPE_##type] = {EACH_ROWS(NAME_SINGLE_PASS, type)},
EACH_PLAIN_TYPE(DEFINE_PLAIN_PASSES)
/* [type][rows - 1]: the passes over COLUMNS(rows) columns, and over one column */
static const PassFn wide_passes[TYPE_COUNT][ROWS_MAX] = {EACH_PLAIN_TYPE(LIST_WIDE_PASSES)};
static const PassFn single_passes[TYPE_COUNT][ROWS_MAX] = {EACH_PLAIN_TYPE(LIST_SINGLE_PASSES)};

/* ---- the product -------------------------------------------------------------------------------- */

/* Runs a pass over tile t, or over tiles t and t + apart unless apart is 0. */
static void mul_block_tile(const PackedMatrix *w, const BlockPasses passes, Pass p, int64_t t, int64_t apart) {
    p.tile = packed_tile(w, t);
    p.n_tiles = apart ? 2 : 1;
    p.tile_bytes = (size_t)apart * w->tile_bytes;
    p.y += t * TILE_ROWS;
    p.y_apart = apart * TILE_ROWS;
    p.n_valid = w->n_out - t * TILE_ROWS;
    passes[w->type][w->act](&p);
}

/* Multiplies tiles [begin, end) of a block type; p is complete except for its place in the matrix. */
static void mul_blocks(const PackedMatrix *w, Pass p, int64_t begin, int64_t end) {
    int64_t t = begin, half = (end - begin) / 2;
    PassTable one_tile = passes_of(w, p.n_rows, 1), two_tiles = passes_of(w, p.n_rows, 2);
#if defined(TILES_IN_PAIRS)
    if (takes_pairs(&pair_choice, w->type, w->act, p.n_rows))
        for (; t + 2 <= end; t += 2) mul_block_tile(w, pair_passes, p, t, 1);
#endif
    if (t == begin && p.read->n_streams == 2 && half >= HALF_TILES_MIN) {
        for (; t < begin + half; t++) mul_block_tile(w, two_tiles, p, t, half);
        t += half;
    }
    for (; t < end; t++) mul_block_tile(w, one_tile, p, t, 0);
}

/* Multiplies tiles [begin, end) of a plain type. */
static void mul_plain(const PackedMatrix *w, Pass p, int64_t begin, int64_t end) {
    int64_t n_columns = (end - begin) * COLUMNS_PER_TILE, wide = COLUMNS(p.n_rows);
    float *y = p.y;
    for (int64_t c = 0, width; c < n_columns; c += width) {
        width = c + wide <= n_columns ? wide : 1;
        int64_t output = begin * TILE_ROWS + c * LANES;
        p.tile = packed_tile(w, begin + c / COLUMNS_PER_TILE);
        p.column = (int)(c % COLUMNS_PER_TILE);
        p.y = y + output;
        p.n_valid = w->n_out - output;
        (width == wide ? wide_passes : single_passes)[w->type][p.n_rows - 1](&p);
    }
}

static ReadChoice read_choice;

static void matmul(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride, int64_t tile_begin,
                   int64_t tile_end) {
    size_t x_stride = act_row_bytes(w->act, w->n_in);
    int64_t rows_max = rows_of_pass(w, x_stride), n_passes = (n_rows + rows_max - 1) / rows_max;
    int64_t group = n_passes == 1 ? tile_end - tile_begin : GROUP_BYTES / (int64_t)w->tile_bytes;
    if (group < COLUMNS_NARROW) group = COLUMNS_NARROW;
    uint64_t float_control = w->type == TYPE_BF16 ? bf16_begin() : 0;
    for (int64_t t = tile_begin; t < tile_end; t += group)
        for (int64_t i = 0; i < n_passes; i++) {
            int64_t r = n_rows * i / n_passes, r_end = n_rows * (i + 1) / n_passes;
            Pass p = {.read = &read_ways[read_way(&read_choice, w->type, w->act, r_end - r)],
                      .tile_bytes = w->tile_bytes,
                      .n_in = w->n_in,
                      .x = (const unsigned char *)x + (size_t)r * x_stride,
                      .x_stride = x_stride,
                      .n_rows = (int)(r_end - r),
                      .y = y + r * y_stride,
                      .y_stride = y_stride};
            int64_t t_end = t + group < tile_end ? t + group : tile_end;
            if (act_is_blocks(w->act)) mul_blocks(w, p, t, t_end);
            else mul_plain(w, p, t, t_end);
        }
    if (w->type == TYPE_BF16 && !bf16_end(float_control))
        kernels_ref.matmul(w, x, n_rows, y, y_stride, tile_begin, tile_end);
}

/* ---- activations -------------------------------------------------------------------------------- */

INLINE void convert_block(ActForm form, const float *x, ActBlock *b) {
    enum { N = ACT_BLOCK / LANES };
    Vf v[N], max = v_zero(), zeros = v_zero(); /* zeros becomes NaN if an input is not finite */
    UNROLL for (int i = 0; i < N; i++) {
        v[i] = v_load(x + i * LANES);
        max = v_max(v_abs(v[i]), max);
        zeros = v_fma(v[i], v_zero(), zeros);
    }
    if (!(v_fold(zeros) == 0)) {
        act_block_not_finite(form, b);
        return;
    }
    float amax = v_max_all(max), levels = act_levels(form);
    Vf inverse = v_set(amax >= ACT_TINY ? levels / amax : 0.0f);
    int32_t sum = 0, sum_low = 0;
    UNROLL for (int i = 0; i < N; i++) {
        Vi q = v_round(v_mul(v[i], inverse));
        if (form == ACT_Q16) {
            Vi high = v_shift_right_signed(v_add_int(q, v_set_int(128)), 8);
            Vi low = v_max_int(v_sub_int(q, v_shift_left(high, 8)), v_set_int(-127));
            q = v_add_int(v_shift_left(high, 8), low);
#if defined(ACTS_ARE_WORDS)
            v_store_words((char *)b->plane + 2 * i * LANES, q);
#else
            v_store_i8(b->plane[0] + i * LANES, high);
            v_store_i8(b->plane[1] + i * LANES, low);
#endif
        } else v_store_i8(b->plane[0] + i * LANES, q);
        sum += v_sum_int(q);
        if (i == N / 2 - 1) sum_low = sum;
    }
    b->scale = amax / levels;
    b->scaled_sum = b->scale * (float)sum;
    b->minus_sum = -sum;
    b->minus_sum_low = -sum_low;
}

INLINE void convert_blocks(ActForm form, const float *x, int64_t n, unsigned char *out) {
    for (int64_t i = 0; i < n; i += ACT_BLOCK, out += act_block_bytes(form))
        convert_block(form, x + i, (ActBlock *)(void *)out);
}

static void convert_bf16(const float *x, int64_t n, uint16_t *h) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store_bf16(h + i, v_load(x + i));
    if (i < n) {
        uint16_t last[LANES]; /* an odd last input is paired with zero */
        v_store_bf16(last, v_load_n(x + i, n - i));
        memcpy(h + i, last, (size_t)(n - i + n % 2) * sizeof *h);
    }
}

static void act_convert(ActForm form, const float *x, int64_t n, void *out) {
    if (form == ACT_F32) memcpy(out, x, (size_t)n * sizeof *x);
    if (form == ACT_BF16) convert_bf16(x, n, out);
    if (form == ACT_Q16) convert_blocks(ACT_Q16, x, n, out);
    if (form == ACT_Q8) convert_blocks(ACT_Q8, x, n, out);
}
