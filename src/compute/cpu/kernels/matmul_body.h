/* matmul_body.h - the matrix products of every vector table; included once by each kernels_*.c, after its
 * simd_*.h. The operations and their order are those of ref.c, done for LANES outputs side by side.
 *
 * The shape of the work. A "column" is LANES outputs: a whole tile under AVX-512, half of one under AVX2. One
 * call of a pass takes one column of a block type, or a few of a plain type, through all slices along k:
 *
 *     for each slice:  unpack 32 inputs of the column's codes into w[8], and their scales    once
 *         for each row:   t = dot(w, q);   acc[row] = fma(t, scale * da, acc[row])           rows times
 *
 * Unpacking is paid once for all rows, and the bytes come from memory once: while the byte products of all rows take
 * less time than the bytes of a slice, n rows cost what one costs. Verifying a token tree depends on that. It is also
 * why a pass has a loop over rows, and not a copy of itself for each number of them: five rows cost five eighths of
 * eight.
 *
 * Tables with 32 vectors take the columns of two tiles at once where there are several rows (pair_body.h).
 *
 * Block types need no more than one column: the dot products of different rows and slices are independent, so the
 * CPU overlaps them. A plain type is a chain of fma, four cycles each; there the accumulators are registers, several
 * columns at once keep the units busy, and each number of rows has its own function.
 *
 * Memory. A thread's tiles are one stream of bytes. Each slice prefetches the bytes FAR_AHEAD into the second cache: in
 * the first, so many would evict the activations, and be evicted themselves before they are used. It prefetches the
 * bytes NEAR_AHEAD into the first cache, where the few lines in flight do no harm. One row of Q8_0 reads its bytes so
 * fast that the CPU has as many lines in flight as it can by itself; a prefetch for each of them makes it slower
 * (figures in research/DIARY.md). More rows than one pass takes are cut into passes over a group of tiles that stays in
 * the second cache. One row reads two streams where the CPU is Intel's (pass_streams).
 */
#include "compute/cpu/kernels/pass_body.h"

#include "compute/cpu/kernels/ref.h"
#include "compute/cpu/kernels/tables.h"

#include <math.h>
#include <string.h>

enum {
    COLUMNS_PER_TILE = TILE_ROWS / LANES,
    HALF_TILES_MIN = 4, /* of a part whose halves one row reads in turns */
    UNAIDED = 8,        /* of so many lines one is prefetched where the CPU prefetches the others well by itself */
};

/* Whether the CPU's own prefetching of one row's bytes is better than asking for every line. Measured (research/DIARY.md): on AMD's
 * Zen 4 it is; on Intel's Sapphire Rapids one row takes 1.4 to 1.7 times as long without being asked for. */
static inline bool foresees_streams(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") != 0;
#else
    return true;
#endif
}

/* ---- block types -------------------------------------------------------------------------------- */

/* The same slice of a few rows: as many chains of byte products, side by side in the instruction stream. */
typedef struct RowBlocks {
    const ActBlock *x[ROWS_TOGETHER];
} RowBlocks;

/* t[row] = sum of (code - bias) * q over half a slice (16 inputs) or two, less the bias times the sum of these. Of two
 * planes of q the products are put together at the end; the bias comes in with the last plane. */
INLINE void dot_codes(TensorType type, ActForm form, int n_rows, const Unpacked *u, const RowBlocks *b, int first,
                      int n, Vi t[ROWS_TOGETHER]) {
    uint32_t code_max = code_max_of(type);
    int last = act_planes(form) - 1;
    const int8_t *q[ROWS_TOGETHER], *q_high[ROWS_TOGETHER];
    Vi high[ROWS_TOGETHER];
    UNROLL for (int r = 0; r < n_rows; r++) {
        const ActBlock *x = b->x[r];
        int32_t minus_sum = n == 2 ? x->minus_sum : first == 0 ? x->minus_sum_low : x->minus_sum - x->minus_sum_low;
        t[r] = bias_times(type, v_set_int(minus_sum));
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

/* acc[row] += the slice's share */
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

/* One column, up to BLOCK_ROWS_MAX rows. The accumulators are in the first cache: a row has ten or more vector
 * operations between its load and its store, which hide them. */
INLINE void pass_blocks(TensorType type, ActForm form, const Pass *p) {
    const SliceForm *f = &slice_forms[type];
    const int record_slices = (int)f->record_slices, n_lines = (int)record_bytes(type) / 64;
    const bool is_foreseen = type == TYPE_Q8_0 && p->n_rows == 1 && foresees_streams();
    const unsigned char *record = p->tile, *x = p->x;
    int64_t n_slices = tile_n_slices(type, p->n_in), n_rows = p->n_rows;
    Vf acc[BLOCK_ROWS_MAX];
    for (int64_t r = 0; r < n_rows; r++) acc[r] = v_zero();
    for (int64_t i = 0; i < n_slices; i += record_slices, record += record_bytes(type))
        for (int s = 0; s < record_slices && i + s < n_slices; s++, x += act_block_bytes(form)) {
            const unsigned char *line = record + n_lines * s / record_slices * 64,
                                *end = record + n_lines * (s + 1) / record_slices * 64;
            if (is_foreseen)
                for (; line < end; line += UNAIDED * 64) ask_far(line);
            else
                for (; line < end; line += 64) ask_ahead(line);
            Unpacked u;
            unpack_codes(type, record + codes_offset(type, s) + p->column * LANES * 4, u.w);
            unpack_scales(type, record + scales_offset(type, s), s % (int)f->scale_slices, p->column, &u);
            const unsigned char *row = x;
            int64_t r = 0;
            for (; r + ROWS_TOGETHER <= n_rows; r += ROWS_TOGETHER, row += ROWS_TOGETHER * p->x_stride)
                add_rows(type, form, ROWS_TOGETHER, &u, row, p->x_stride, acc + r);
            if (n_rows - r >= 2) {
                add_rows(type, form, 2, &u, row, p->x_stride, acc + r);
                r += 2, row += 2 * p->x_stride;
            }
            if (n_rows > r) add_rows(type, form, 1, &u, row, p->x_stride, acc + r);
        }
    for (int64_t r = 0; r < n_rows; r++) v_store_n(p->y + r * p->y_stride, p->n_valid, acc[r]);
}

#if defined(TILES_IN_PAIRS)
#include "compute/cpu/kernels/pair_body.h"
enum {
    PAIRS_FROM = 12
}; /* rows; with fewer the matrix is read from memory more slowly than by one tile (research/DIARY.md) */
#else
INLINE void pass_pair(TensorType type, ActForm form, const Pass *p) { pass_blocks(type, form, p); }
enum { PAIRS_FROM = 1 << 30 };
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
        UNROLL for (int c = 0; c < n_columns; c++) ask_ahead(columns[c] + (size_t)k * column_bytes);
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

/* ---- one function for each type, and of the plain ones for each number of rows ------------------ */

#define EACH_ROWS(X, type) X(type, 1) X(type, 2) X(type, 3) X(type, 4) X(type, 5) X(type, 6) X(type, 7) X(type, 8)
_Static_assert(ROWS_MAX == 8, "EACH_ROWS counts to ROWS_MAX");

#define COLUMNS(rows) ((rows) <= ROWS_NARROW ? COLUMNS_NARROW : COLUMNS_WIDE)
#define DEFINE_BLOCK_PASSES(type, ...) \
    static void pass_##type##_q16(const Pass *p) { pass_blocks(TYPE_##type, ACT_Q16, p); } \
    static void pass_##type##_q8(const Pass *p) { pass_blocks(TYPE_##type, ACT_Q8, p); } \
    static void pair_##type##_q16(const Pass *p) { pass_pair(TYPE_##type, ACT_Q16, p); } \
    static void pair_##type##_q8(const Pass *p) { pass_pair(TYPE_##type, ACT_Q8, p); }
#define DEFINE_PLAIN_PASS(type, rows) \
    static void pass_##type##_##rows(const Pass *p) { pass_plain(TYPE_##type, rows, COLUMNS(rows), p); } \
    static void pass_##type##_##rows##_single(const Pass *p) { pass_plain(TYPE_##type, rows, 1, p); }
#define DEFINE_PLAIN_PASSES(type, ...) EACH_ROWS(DEFINE_PLAIN_PASS, type)
EACH_BLOCK_TYPE(DEFINE_BLOCK_PASSES)
EACH_PLAIN_TYPE(DEFINE_PLAIN_PASSES)

#define LIST_BLOCK_PASSES(type, ...) [TYPE_##type] = {[ACT_Q16] = pass_##type##_q16, [ACT_Q8] = pass_##type##_q8},
#define NAME_PASS(type, rows) pass_##type##_##rows,
#define NAME_SINGLE_PASS(type, rows) pass_##type##_##rows##_single,
#define LIST_PASSES(type, ...) [TYPE_##type] = {EACH_ROWS(NAME_PASS, type)},
#define LIST_SINGLE_PASSES(type, ...) [TYPE_##type] = {EACH_ROWS(NAME_SINGLE_PASS, type)},
#define LIST_PAIR_PASSES(type, ...) [TYPE_##type] = {[ACT_Q16] = pair_##type##_q16, [ACT_Q8] = pair_##type##_q8},
static const PassFn block_passes[TYPE_COUNT][2] = {EACH_BLOCK_TYPE(LIST_BLOCK_PASSES)};
static const PassFn pair_passes[TYPE_COUNT][2] = {EACH_BLOCK_TYPE(LIST_PAIR_PASSES)}; /* over two tiles */
/* [type][rows - 1]: the passes over COLUMNS(rows) columns, and over one column */
static const PassFn passes[TYPE_COUNT][ROWS_MAX] = {EACH_PLAIN_TYPE(LIST_PASSES)};
static const PassFn single_passes[TYPE_COUNT][ROWS_MAX] = {EACH_PLAIN_TYPE(LIST_SINGLE_PASSES)};

/* ---- the product -------------------------------------------------------------------------------- */

#if defined(TILES_IN_PAIRS)
#define DEFINE_STREAM_PASSES(type, ...) \
    static void streams_##type##_q16(const Pass *p) { pass_streams(TYPE_##type, ACT_Q16, p); } \
    static void streams_##type##_q8(const Pass *p) { pass_streams(TYPE_##type, ACT_Q8, p); }
EACH_BLOCK_TYPE(DEFINE_STREAM_PASSES)
#define LIST_STREAM_PASSES(type, ...) \
    [TYPE_##type] = {[ACT_Q16] = streams_##type##_q16, [ACT_Q8] = streams_##type##_q8},
static const PassFn stream_passes[TYPE_COUNT][2] = {EACH_BLOCK_TYPE(LIST_STREAM_PASSES)};

/* One row, on Intel's CPUs: the first and the second half of tiles [begin, end) in turns. Returns where the rest begins. */
static int64_t mul_halves(const PackedMatrix *w, Pass p, int64_t begin, int64_t end) {
    int64_t half = (end - begin) / 2;
    if (half < HALF_TILES_MIN || foresees_streams()) return begin;
    float *y = p.y;
    p.tile_bytes = (size_t)half * w->tile_bytes;
    p.y_apart = half * TILE_ROWS;
    for (int64_t t = begin; t < begin + half; t++) {
        p.tile = packed_tile(w, t);
        p.y = y + t * TILE_ROWS;
        p.n_valid = w->n_out - t * TILE_ROWS;
        stream_passes[w->type][w->act](&p);
    }
    return begin + 2 * half;
}
#else
static int64_t mul_halves(const PackedMatrix *w, Pass p, int64_t begin, int64_t end) {
    (void)w, (void)p, (void)end;
    return begin;
}
#endif

/* Runs passes over tiles [begin, end); p is complete but for its place in the matrix. */
static void mul_tiles(const PackedMatrix *w, Pass p, int64_t begin, int64_t end) {
    bool is_blocks = act_is_blocks(w->act);
    if (is_blocks && p.n_rows == 1) begin = mul_halves(w, p, begin, end);
    int64_t n_columns = (end - begin) * COLUMNS_PER_TILE,
            wide = is_blocks ? (p.n_rows >= PAIRS_FROM ? 2 : 1) : COLUMNS(p.n_rows);
    float *y = p.y;
    for (int64_t c = 0, width; c < n_columns; c += width) {
        width = c + wide <= n_columns ? wide : 1;
        int64_t output = begin * TILE_ROWS + c * LANES;
        p.tile = packed_tile(w, begin + c / COLUMNS_PER_TILE);
        p.column = (int)(c % COLUMNS_PER_TILE);
        p.y = y + output;
        p.n_valid = w->n_out - output;
        if (is_blocks) (width == 2 ? pair_passes : block_passes)[w->type][w->act](&p);
        else (width == wide ? passes : single_passes)[w->type][p.n_rows - 1](&p);
    }
}

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
            Pass p = {.tile_bytes = w->tile_bytes,
                      .n_in = w->n_in,
                      .x = (const unsigned char *)x + (size_t)r * x_stride,
                      .x_stride = x_stride,
                      .n_rows = (int)(r_end - r),
                      .y = y + r * y_stride,
                      .y_stride = y_stride};
            mul_tiles(w, p, t, t + group < tile_end ? t + group : tile_end);
        }
    if (w->type == TYPE_BF16 && !bf16_end(float_control))
        kernels_ref.matmul(w, x, n_rows, y, y_stride, tile_begin, tile_end);
}

/* ---- activations -------------------------------------------------------------------------------- */

INLINE void convert_block(ActForm form, const float *x, ActBlock *b) {
    enum { N = ACT_BLOCK / LANES };
    Vf v[N], max = v_zero(), zeros = v_zero(); /* zeros: NaN if an input is not finite */
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
            v_store_i8(b->plane[0] + i * LANES, high);
            v_store_i8(b->plane[1] + i * LANES, low);
            q = v_add_int(v_shift_left(high, 8), low);
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
        uint16_t last[LANES]; /* with a zero beside an odd last input */
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
