/* matmul_body.h - the matrix products of every vector table; included once by each kernels_*.c behind its
 * simd_*.h. The operations and their order are those of ref.c, done for LANES outputs side by side.
 *
 * The shape of the work. A "column" is LANES outputs: a whole tile under AVX-512, half of one under AVX2. One
 * call of a micro kernel takes one column of a block type, or a few of a plain type, through all steps along
 * k for a fixed number of activation rows (a constant, so that every accumulator is a register):
 *
 *     for each step:   unpack 32 inputs of the column's codes into w[8], and their scales    once
 *         for each row:   t = dot(w, q);   acc[row] = fma(t, scale * da, acc[row])           rows times
 *
 * Unpacking is paid once for all rows, and the bytes come from memory once: a pass over a tile costs the same
 * for one row as for a few, which is what verifying a token tree lives on.
 *
 * Block types need no more than one column: the dot products of different steps are independent, so the CPU
 * overlaps them and the one fma per step is no bottleneck. A plain type is a bare chain of fma, four cycles
 * each; several columns at once keep the units busy.
 *
 * More rows than ROWS_MAX are cut into passes over a group of tiles that stays in the cache of the core.
 * While a pass computes, it asks for the next group's bytes, so that memory does not rest.
 */
#include "kernels/layout.h"

#include "kernels/ref.h"

#include <math.h>
#include <string.h>

enum {
    COLUMNS_PER_TILE = TILE_ROWS / LANES,
    AHEAD_CODES = 16 << 10, /* bytes between what is computed and what is asked for from memory */
    AHEAD_SCALES = 1 << 10,
    GROUP_BYTES = 256 << 10, /* of weights that several passes share; twice that stays in a 1 MB L2 cache */
};

/* One call of a micro kernel. */
typedef struct Pass {
    const unsigned char *tile; /* the first of the tiles */
    size_t tile_bytes;
    int column; /* the first column, counted from that tile */
    int64_t n_in;
    const unsigned char *x; /* the first of the rows */
    size_t x_stride;
    float *y; /* first output of the first row */
    int64_t y_stride;
    size_t ahead, ahead_step; /* step i asks for ahead_step bytes at tile + ahead + i * ahead_step */
    int64_t n_valid; /* outputs from y on that exist; fewer than the columns hold at the end of a matrix */
} Pass;

/* ---- block types -------------------------------------------------------------------------------- */

typedef struct Unpacked {
    Vi w[8]; /* unsigned codes, groups of four inputs */
    Vf scale[2], min;
} Unpacked;

INLINE Vi nibbles(Vi a) { return v_and(a, v_set_int(0x0f0f0f0f)); }

/* Four groups of high bits from one vector of them, to where they belong above the nibbles. */
INLINE void add_high_bits(int n_bits, Vi high, int first_bit, Vi w[4]) {
    Vi mask = v_set_int(n_bits == 1 ? 0x10101010 : 0x30303030);
    UNROLL for (int g = 0; g < 4; g++) {
        int shift = 4 - first_bit - g * n_bits;
        w[g] = v_or(w[g], v_and(shift >= 0 ? v_shift_left(high, shift) : v_shift_right(high, -shift), mask));
    }
}

INLINE void unpack_codes(TensorType type, const unsigned char *codes, Vi w[8]) {
    if (type == TYPE_Q8_0) {
        UNROLL for (int g = 0; g < 8; g++) w[g] = v_load_int(codes + g * 64);
        return;
    }
    UNROLL for (int g = 0; g < 4; g++) {
        Vi both = v_load_int(codes + g * 64);
        w[g] = nibbles(both);
        w[g + 4] = nibbles(v_shift_right(both, 4));
    }
    uint32_t n_bits = step_forms[type].high_bits;
    if (n_bits == 1) {
        Vi high = v_load_int(codes + 256);
        add_high_bits(1, high, 0, w);
        add_high_bits(1, high, 4, w + 4);
    }
    if (n_bits == 2) {
        add_high_bits(2, v_load_int(codes + 256), 0, w);
        add_high_bits(2, v_load_int(codes + 320), 0, w + 4);
    }
}

/* column: within the tile. The record's items are 16 rows wide. */
INLINE void unpack_scales(TensorType type, const unsigned char *record, int i_sub, int column, Unpacked *u) {
    const unsigned char *halves = record + column * LANES * 2, *bytes = record + column * LANES + i_sub * 32;
    Vf d = v_load_half(halves);
    u->scale[0] = u->scale[1] = d;
    if (type == TYPE_Q4_1 || type == TYPE_Q5_1) u->min = v_load_half(halves + 32);
    if (type == TYPE_Q4_K || type == TYPE_Q5_K) {
        u->scale[0] = v_mul(d, v_load_u8(bytes + 64));
        u->min = v_sub(v_zero(), v_mul(v_load_half(halves + 32), v_load_u8(bytes + 80)));
    }
    if (type == TYPE_Q6_K) {
        u->scale[0] = v_mul(d, v_load_i8(bytes + 32));
        u->scale[1] = v_mul(d, v_load_i8(bytes + 48));
    }
}

/* -bias times a sum of activations: every bias is a power of two. */
INLINE Vi bias_times(TensorType type, Vi minus_sum) {
    uint32_t bias = step_forms[type].bias;
    if (bias == 0 || (type == TYPE_Q8_0 && BYTE_CODES_LOSE_BIAS)) return v_set_int(0);
    return v_shift_left(minus_sum, __builtin_ctz(bias));
}

/* Sum of (code - bias) * q over half a step (16 inputs) or two: the products with both bytes of q, put
 * together; the bias comes in with the low ones. */
INLINE Vi dot_codes(TensorType type, const Unpacked *u, const ActBlock *x, int first, int n, Vi minus_sum) {
    uint32_t code_max = type == TYPE_Q8_0 ? 255 : (16u << step_forms[type].high_bits) - 1;
    Vi high = v_set_int(0), low = bias_times(type, minus_sum);
    UNROLL for (int i = first; i < first + n; i++) {
        high = v_dot_4_groups(code_max, u->w + 4 * i, x->high + 16 * i, high);
        low = v_dot_4_groups(code_max, u->w + 4 * i, x->low + 16 * i, low);
    }
    return v_add_int(v_shift_left(high, 8), low);
}

INLINE Vf add_step(TensorType type, const Unpacked *u, const ActBlock *x, Vf acc) {
    Vf da = v_set(x->scale);
    Vi minus_sum = v_set_int(x->minus_sum), minus_sum_low = v_set_int(x->minus_sum_low);
    if (type == TYPE_Q6_K) {
        Vi t0 = dot_codes(type, u, x, 0, 1, minus_sum_low);
        Vi t1 = dot_codes(type, u, x, 1, 1, v_sub_int(minus_sum, minus_sum_low));
        acc = v_fma(v_from_int(t0), v_mul(u->scale[0], da), acc);
        return v_fma(v_from_int(t1), v_mul(u->scale[1], da), acc);
    }
    acc = v_fma(v_from_int(dot_codes(type, u, x, 0, 2, minus_sum)), v_mul(u->scale[0], da), acc);
    bool has_min = type == TYPE_Q4_1 || type == TYPE_Q5_1 || type == TYPE_Q4_K || type == TYPE_Q5_K;
    return has_min ? v_fma(u->min, v_set(x->scaled_sum), acc) : acc;
}

/* Asks for bytes that step i_step of a pass must ask for, see plan_ahead. Beyond the end of a matrix nothing
 * is harmed. The usual case, the pass's own bytes, is unrolled. */
INLINE void prefetch_codes(const Pass *p, const unsigned char *codes, int64_t i_step, uint32_t code_bytes) {
    if (p->ahead_step == code_bytes) {
        UNROLL for (uint32_t i = 0; i < code_bytes; i += 64) __builtin_prefetch(codes + AHEAD_CODES + i);
        return;
    }
    const unsigned char *at = p->tile + p->ahead + (size_t)i_step * p->ahead_step;
    for (size_t i = 0; i < p->ahead_step; i += 64) __builtin_prefetch(at + i);
}

INLINE void pass_blocks(TensorType type, int n_rows, const Pass *p) {
    const StepForm *f = &step_forms[type];
    int64_t n_steps = tile_n_steps(type, p->n_in);
    const unsigned char *codes = p->tile + p->column * LANES * 4;
    const unsigned char *record = p->tile + tile_scales_offset(type, p->n_in);
    const unsigned char *x = p->x;
    Vf acc[ROWS_MAX];
    UNROLL for (int r = 0; r < n_rows; r++) acc[r] = v_zero();
    for (int64_t i = 0; i < n_steps; i += f->scale_steps, record += f->scale_bytes)
        for (int s = 0; s < (int)f->scale_steps; s++, codes += f->code_bytes, x += sizeof(ActBlock)) {
            prefetch_codes(p, codes, i + s, f->code_bytes);
            __builtin_prefetch(record + p->tile_bytes + s * (int)(f->scale_bytes / f->scale_steps));
            Unpacked u;
            unpack_codes(type, codes, u.w);
            unpack_scales(type, record, s, p->column, &u);
            UNROLL for (int r = 0; r < n_rows; r++) acc[r] =
                add_step(type, &u, (const ActBlock *)(const void *)(x + (size_t)r * p->x_stride), acc[r]);
        }
    UNROLL for (int r = 0; r < n_rows; r++) v_store_n(p->y + r * p->y_stride, p->n_valid, acc[r]);
}

/* ---- plain types -------------------------------------------------------------------------------- */

INLINE Vf plain_weight(TensorType type, const unsigned char *column, int64_t k) {
    return type == TYPE_F32 ? v_load((const float *)(const void *)column + k * 16)
                            : v_load_half(column + k * 32);
}

INLINE void pass_plain(TensorType type, int n_rows, int n_columns, const Pass *p) {
    enum {
        N_ACC = ROWS_MAX * COLUMNS_WIDE > ROWS_NARROW * COLUMNS_NARROW ? ROWS_MAX * COLUMNS_WIDE
                                                                       : ROWS_NARROW * COLUMNS_NARROW
    };
    size_t column_bytes = LANES * (type == TYPE_F32 ? 4 : type == TYPE_F16 ? 2 : 4);
    int64_t n_steps = tile_n_steps(type, p->n_in);
    const unsigned char *columns[COLUMNS_NARROW];
    Vf acc[N_ACC];
    UNROLL for (int c = 0; c < n_columns; c++) {
        int column = p->column + c;
        columns[c] = p->tile + (size_t)(column / COLUMNS_PER_TILE) * p->tile_bytes +
                     (size_t)(column % COLUMNS_PER_TILE) * column_bytes;
    }
    UNROLL for (int i = 0; i < n_rows * n_columns; i++) acc[i] = v_zero();
    for (int64_t k = 0; k < n_steps; k++) {
        if (n_columns <= COLUMNS_WIDE)
            UNROLL for (int c = 0; c < n_columns; c++)
                __builtin_prefetch(columns[c] + p->ahead + (size_t)k * p->ahead_step);
        if (type == TYPE_BF16) {
            Vi w[COLUMNS_NARROW];
            UNROLL for (int c = 0; c < n_columns; c++) w[c] = v_load_int(columns[c] + k * 64);
            UNROLL for (int r = 0; r < n_rows; r++) {
                Vi x = v_set_4_bytes(p->x + (size_t)r * p->x_stride + k * 4);
                UNROLL for (int c = 0; c < n_columns; c++) acc[r * n_columns + c] =
                    v_dot_bf16_pair(w[c], x, acc[r * n_columns + c]);
            }
            continue;
        }
        Vf w[COLUMNS_NARROW];
        UNROLL for (int c = 0; c < n_columns; c++) w[c] = plain_weight(type, columns[c], k);
        UNROLL for (int r = 0; r < n_rows; r++) {
            Vf x = v_set(((const float *)(const void *)(p->x + (size_t)r * p->x_stride))[k]);
            UNROLL for (int c = 0; c < n_columns; c++) acc[r * n_columns + c] =
                v_fma(w[c], x, acc[r * n_columns + c]);
        }
    }
    UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < n_columns; c++)
        v_store_n(p->y + r * p->y_stride + c * LANES, p->n_valid - c * LANES, acc[r * n_columns + c]);
}

/* ---- one function for each type and number of rows ---------------------------------------------- */

typedef void (*PassFn)(const Pass *);

#define EACH_ROWS(X, type)                                                                                   \
    X(type, 1) X(type, 2) X(type, 3) X(type, 4) X(type, 5) X(type, 6) X(type, 7) X(type, 8)
#define EACH_BLOCK_TYPE(X) X(Q8_0) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q4_K) X(Q5_K) X(Q6_K)
#define EACH_PLAIN_TYPE(X) X(F32) X(F16) X(BF16)
_Static_assert(ROWS_MAX == 8, "EACH_ROWS counts to ROWS_MAX");

#define COLUMNS(rows) ((rows) <= ROWS_NARROW ? COLUMNS_NARROW : COLUMNS_WIDE)
#define DEFINE_BLOCK_PASS(type, rows)                                                                        \
    static void pass_##type##_##rows(const Pass *p) { pass_blocks(TYPE_##type, rows, p); }
#define DEFINE_PLAIN_PASS(type, rows)                                                                        \
    static void pass_##type##_##rows(const Pass *p) { pass_plain(TYPE_##type, rows, COLUMNS(rows), p); }     \
    static void pass_##type##_##rows##_single(const Pass *p) { pass_plain(TYPE_##type, rows, 1, p); }
#define DEFINE_BLOCK_PASSES(type) EACH_ROWS(DEFINE_BLOCK_PASS, type)
#define DEFINE_PLAIN_PASSES(type) EACH_ROWS(DEFINE_PLAIN_PASS, type)
EACH_BLOCK_TYPE(DEFINE_BLOCK_PASSES)
EACH_PLAIN_TYPE(DEFINE_PLAIN_PASSES)

#define NAME_PASS(type, rows) pass_##type##_##rows,
#define NAME_SINGLE_PASS(type, rows) pass_##type##_##rows##_single,
#define LIST_PASSES(type) [TYPE_##type] = {EACH_ROWS(NAME_PASS, type)},
#define LIST_SINGLE_PASSES(type) [TYPE_##type] = {EACH_ROWS(NAME_SINGLE_PASS, type)},
/* [type][rows - 1]: the passes over COLUMNS(rows) columns, or one of a block type; then over one column */
static const PassFn passes[TYPE_COUNT][ROWS_MAX] = {EACH_BLOCK_TYPE(LIST_PASSES)
                                                        EACH_PLAIN_TYPE(LIST_PASSES)};
static const PassFn single_passes[TYPE_COUNT][ROWS_MAX] = {EACH_BLOCK_TYPE(LIST_PASSES)
                                                               EACH_PLAIN_TYPE(LIST_SINGLE_PASSES)};

/* ---- the product -------------------------------------------------------------------------------- */

/* p, prepared but for the place in the matrix, through tiles [begin, end). */
static void mul_tiles(const PackedMatrix *w, int n_rows, Pass p, int64_t begin, int64_t end) {
    int64_t n_columns = (end - begin) * COLUMNS_PER_TILE;
    int64_t wide = act_form(w->type) == ACT_Q16 ? 1 : COLUMNS(n_rows);
    float *y = p.y;
    for (int64_t c = 0, step; c < n_columns; c += step) {
        step = c + wide <= n_columns ? wide : 1;
        int64_t output = begin * TILE_ROWS + c * LANES;
        p.tile = packed_tile(w, begin + c / COLUMNS_PER_TILE);
        p.column = (int)(c % COLUMNS_PER_TILE);
        p.y = y + output;
        p.n_valid = w->n_out - output;
        (step == wide ? passes : single_passes)[w->type][n_rows - 1](&p);
    }
}

/* What pass i_pass of n_passes over a group asks for: its share of the next group, so that memory works while
 * this group is computed from the cache; or, where that comes too late, its own bytes a little ahead. */
static void plan_ahead(Pass *p, const PackedMatrix *w, int64_t group, int64_t i_pass, int64_t n_passes,
                       bool is_first) {
    p->ahead = AHEAD_CODES;
    p->ahead_step = step_forms[w->type].code_bytes;
    if (n_passes == 1 || (is_first && i_pass == 0)) return;
    p->ahead_step = w->tile_bytes / (size_t)(tile_n_steps(w->type, w->n_in) * n_passes) + 1;
    p->ahead = (size_t)group * w->tile_bytes + w->tile_bytes / (size_t)n_passes * (size_t)i_pass;
}

static void matmul(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride,
                   int64_t tile_begin, int64_t tile_end) {
    size_t x_stride = act_row_bytes(act_form(w->type), w->n_in);
    int64_t n_passes = (n_rows + ROWS_MAX - 1) / ROWS_MAX;
    int64_t group = n_passes == 1 ? tile_end - tile_begin : GROUP_BYTES / (int64_t)w->tile_bytes;
    if (group < COLUMNS_NARROW) group = COLUMNS_NARROW;
    unsigned float_state = bf16_begin(w->type == TYPE_BF16);
    for (int64_t t = tile_begin; t < tile_end; t += group)
        for (int64_t i = 0; i < n_passes; i++) {
            int64_t r = i * ROWS_MAX, end = t + group < tile_end ? t + group : tile_end;
            Pass p = {.tile_bytes = w->tile_bytes,
                      .n_in = w->n_in,
                      .x = (const unsigned char *)x + (size_t)r * x_stride,
                      .x_stride = x_stride,
                      .y = y + r * y_stride,
                      .y_stride = y_stride};
            plan_ahead(&p, w, group, i, n_passes, t == tile_begin);
            mul_tiles(w, n_rows - r < ROWS_MAX ? (int)(n_rows - r) : ROWS_MAX, p, t, end);
        }
    bf16_end(float_state);
}

/* ---- activations -------------------------------------------------------------------------------- */

INLINE void convert_block(const float *x, ActBlock *b) {
    enum { N = ACT_BLOCK / LANES };
    Vf v[N], max = v_zero();
    UNROLL for (int i = 0; i < N; i++) {
        v[i] = v_load(x + i * LANES);
        max = v_max(v_abs(v[i]), max);
    }
    float amax = v_max_all(max);
    Vf inverse = v_set(amax >= ACT_TINY ? ACT_STEPS / amax : 0.0f);
    int32_t sum = 0, sum_low = 0;
    UNROLL for (int i = 0; i < N; i++) {
        Vi q = v_round(v_mul(v[i], inverse));
        Vi high = v_shift_right_signed(v_add_int(q, v_set_int(128)), 8);
        Vi low = v_max_int(v_sub_int(q, v_shift_left(high, 8)), v_set_int(-127));
        v_store_i8(b->high + i * LANES, high);
        v_store_i8(b->low + i * LANES, low);
        sum += v_sum_int(v_add_int(v_shift_left(high, 8), low));
        if (i == N / 2 - 1) sum_low = sum;
    }
    b->scale = amax / ACT_STEPS;
    b->scaled_sum = b->scale * (float)sum;
    b->minus_sum = -sum;
    b->minus_sum_low = -sum_low;
}

static void convert_bf16(const float *x, int64_t n, uint16_t *h) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store_bf16(h + i, v_load(x + i));
    if (i < n) {
        uint16_t last[LANES]; /* and a zero to go with an odd last input */
        v_store_bf16(last, v_load_n(x + i, n - i));
        memcpy(h + i, last, (size_t)(n - i + n % 2) * sizeof *h);
    }
}

static void act_convert(ActForm form, const float *x, int64_t n, void *out) {
    if (form == ACT_F32) memcpy(out, x, (size_t)n * sizeof *x);
    if (form == ACT_BF16) convert_bf16(x, n, out);
    if (form == ACT_Q16)
        for (int64_t i = 0; i < n / ACT_BLOCK; i++) convert_block(x + i * ACT_BLOCK, (ActBlock *)out + i);
}
