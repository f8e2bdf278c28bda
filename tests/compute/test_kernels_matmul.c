/* test_kernels_matmul.c - matrix products: compares the specification (table "ref") with double precision, and every
 * other table with the specification, bit for bit, over types, shapes, numbers of rows, ranges of tiles and extreme
 * values. */
#include "testing.h"
#include "all_tables.h"
#include "kernel_numbers.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"
#include "compute/cpu/kernels/kernels.h"
#include "compute/cpu/kernels/layout.h"
#include "compute/cpu/kernels/product_ways.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_ROWS = 64, PAD = 5 };

typedef enum Kind { PLAIN, ANY_BITS, EXTREME, ZERO, SUBNORMAL, HUGE_VALUES, N_KINDS } Kind;

static void *checked(void *p) {
    assert_non_null(p);
    return p;
}

/* ---- inputs ------------------------------------------------------------------------------------- */

/* Offsets of the scales of a block, as halves; the rest of a block is codes (and small scales). */
static int scale_offsets(TensorType type, int at[2]) {
    if (type == TYPE_MXFP4 || type == TYPE_NVFP4 || type == TYPE_IQ1_M) return 0;
    at[0] = type == TYPE_Q6_K ? 208 : type == TYPE_Q3_K ? 108 : type == TYPE_Q2_K ? 80 : 0;
    at[1] = at[0] + 2;
    return type == TYPE_Q4_1 || type == TYPE_Q5_1 || type == TYPE_Q4_K || type == TYPE_Q5_K || type == TYPE_Q2_K ? 2
                                                                                                                 : 1;
}

/* A block of codes of the given kind. */
static void make_block(TensorType type, Kind kind, unsigned char *b) {
    static const uint16_t scales[N_KINDS] =
        {[ANY_BITS] = 0x2c00, [EXTREME] = 0x3555, [SUBNORMAL] = 0x0003, [HUGE_VALUES] = 0x7bff};
    int at[2], n_scales = scale_offsets(type, at);
    uint32_t bytes = tensor_type_info(type)->block_bytes, choice = random_u32() % 4;
    static const unsigned char fill[4] = {0x80, 0x7f, 0x00, 0xff};
    for (uint32_t i = 0; i < bytes; i++)
        b[i] = kind == ZERO ? 0 : kind == EXTREME ? fill[choice] : (unsigned char)random_u32();
    static const unsigned char exponents[N_KINDS] =
        {[ANY_BITS] = 124, [EXTREME] = 126, [SUBNORMAL] = 0, [HUGE_VALUES] = 230};
    if (type == TYPE_MXFP4) b[0] = (unsigned char)(exponents[kind] + random_u32() % 3);
    if (type == TYPE_IQ1_M) /* the half is spread over the upper nibbles of four words */
        for (int i = 0; i < 4; i++)
            b[49 + 2 * i] = (unsigned char)((b[49 + 2 * i] & 15) | (scales[kind] >> 4 * i & 15) << 4);
    for (int i = 0; i < n_scales; i++) {
        uint16_t h = (uint16_t)(scales[kind] | (kind == ZERO ? 0 : random_u32() & 0x8000));
        memcpy(b + at[i], &h, 2);
    }
}

static float kind_value(Kind kind) {
    switch (kind) {
    case EXTREME: return random_u32() & 1 ? 1 : -1;
    case ZERO: return random_u32() & 1 ? 0.0f : -0.0f;
    case SUBNORMAL: return random_u32() % 4 ? random_float() * 0x1p-125f : random_float();
    case HUGE_VALUES: return random_float() * 1e30f;
    default: return random_float();
    }
}

static void make_row(TensorType type, Kind kind, int64_t n, unsigned char *row) {
    const TensorTypeInfo *info = tensor_type_info(type);
    if (kind != PLAIN && act_is_blocks(act_form(type, ACT_Q16))) {
        for (int64_t i = 0; i < n / info->block_n; i++) make_block(type, kind, row + i * info->block_bytes);
        return;
    }
    float *x = checked(malloc((size_t)n * sizeof *x));
    for (int64_t k = 0; k < n; k++) x[k] = kind_value(kind);
    if (type == TYPE_F16 && kind == HUGE_VALUES)
        for (int64_t k = 0; k < n; k++) x[k] *= 6e-26f;
    blocks_quantize(type, x, n, row);
    free(x);
}

typedef struct Problem {
    TensorType type;
    ActForm form; /* form of the activations */
    int64_t n_out, n_in;
    unsigned char *file_rows;
    size_t row_bytes;
    PackedMatrix w;
    float *x;                            /* [N_ROWS][n_in] */
    unsigned char *acts, *acts_of_table; /* as "ref" converts them, and in the form of another table */
    size_t act_bytes;
    float *want; /* [N_ROWS][n_out], from ref */
} Problem;

static const Kernels *ref(void) { return kernels_select("ref"); }

/* Makes weights of one kind, or of a different kind in each row if `kind` is N_KINDS, and activations likewise. */
static void problem_open(Problem *p, TensorType type, ActForm blocks, int64_t n_out, int64_t n_in, Kind weights,
                         Kind acts) {
    memset(p, 0, sizeof *p);
    p->type = type;
    p->form = act_form(type, blocks);
    p->n_out = n_out;
    p->n_in = n_in;
    assert_true(tensor_type_row_bytes(type, n_in, &p->row_bytes));
    p->file_rows = checked(malloc((size_t)n_out * p->row_bytes));
    for (int64_t o = 0; o < n_out; o++)
        make_row(type, weights == N_KINDS ? (Kind)(o % N_KINDS) : weights, n_in,
                 p->file_rows + (size_t)o * p->row_bytes);
    assert_int_equal(packed_init(&p->w, type, blocks, n_out, n_in, NULL), FR_OK);
    packed_fill(&p->w, p->file_rows, 0, packed_n_tiles(&p->w));
    p->act_bytes = act_row_bytes(p->form, n_in);
    p->x = checked(malloc(N_ROWS * (size_t)n_in * sizeof *p->x));
    p->acts = checked(mem_calloc(N_ROWS, p->act_bytes));
    p->acts_of_table = checked(mem_calloc(N_ROWS, p->act_bytes));
    p->want = checked(malloc(N_ROWS * (size_t)n_out * sizeof *p->want));
    for (int64_t r = 0; r < N_ROWS; r++) {
        Kind kind = acts == N_KINDS ? (Kind)(r % N_KINDS) : acts;
        for (int64_t k = 0; k < n_in; k++) p->x[r * n_in + k] = kind_value(kind);
        ref()->act_convert(p->form, p->x + r * n_in, n_in, p->acts + (size_t)r * p->act_bytes);
    }
    ref()->matmul(&p->w, p->acts, N_ROWS, p->want, n_out, 0, packed_n_tiles(&p->w));
}

static void problem_close(Problem *p) {
    packed_free(&p->w);
    mem_free(p->acts);
    mem_free(p->acts_of_table);
    free(p->file_rows);
    free(p->x);
    free(p->want);
}

/* ---- ref against double ------------------------------------------------------------------------- */

/* Returns the activation as it is rounded for the weight type. */
static double act_value(const Problem *p, int64_t r, int64_t k) {
    const unsigned char *row = p->acts + (size_t)r * p->act_bytes;
    const ActBlock *b = (const void *)(row + (size_t)(k / ACT_BLOCK) * act_block_bytes(p->form));
    uint16_t h;
    float f;
    switch (p->form) {
    case ACT_F32: memcpy(&f, row + k * 4, 4); return (double)f;
    case ACT_BF16: memcpy(&h, row + k * 2, 2); return (double)bf16_to_float(h);
    case ACT_Q8: return (double)b->scale * b->plane[0][k % ACT_BLOCK];
    default: return (double)b->scale * (256 * b->plane[0][k % ACT_BLOCK] + b->plane[1][k % ACT_BLOCK]);
    }
}

/* The error of a chain of n roundings: n * 2^-24 of the sum of magnitudes. A block with a minimum adds code * scale and
 * the minimum apart; both are below 4 times the largest weight of the block. */
static void check_against_double(TensorType type, ActForm blocks, int64_t n_out, int64_t n_in) {
    Problem p;
    problem_open(&p, type, blocks, n_out, n_in, PLAIN, PLAIN);
    float *w = checked(malloc((size_t)n_in * sizeof *w));
    double worst = 0;
    for (int64_t o = 0; o < n_out; o++) {
        blocks_dequantize(type, p.file_rows + (size_t)o * p.row_bytes, n_in, w);
        for (int64_t r = 0; r < 3; r++) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < n_in; k++) {
                double x = act_value(&p, r, k), w_max = 0;
                for (int64_t j = k / 32 * 32; j < k / 32 * 32 + 32 && j < n_in; j++)
                    w_max = fmax(w_max, fabs((double)w[j]));
                sum += (double)w[k] * x;
                magnitude += 4 * w_max * fabs(x);
            }
            double error = fabs((double)p.want[r * n_out + o] - sum);
            double bound = magnitude * (double)(n_in + 8) * 0x1p-24;
            worst = fmax(worst, error / magnitude * 0x1p24);
            if (error > bound)
                fail_msg("%s %lldx%lld output (%lld,%lld): %.9g, in double %.9g; error %g above %g",
                         tensor_type_info(type)->name, (long long)n_out, (long long)n_in, (long long)r, (long long)o,
                         (double)p.want[r * n_out + o], sum, error, bound);
        }
    }
    /* A kernel that loses terms of 1/1000 could stay below a bound for thousands of roundings, but not below this
     * one. */
    if (worst > 8) fail_msg("%s: an error of %.1f * 2^-24 of the magnitude", tensor_type_info(type)->name, worst);
    free(w);
    problem_close(&p);
}

static void the_specification_multiplies(void **state) {
    (void)state;
    for (int type = 0; type < TYPE_COUNT; type++)
        for (int form = ACT_Q16; form <= ACT_Q8; form++) {
            check_against_double((TensorType)type, (ActForm)form, 17, 256);
            check_against_double((TensorType)type, (ActForm)form, 33, 2048);
            if (type >= TYPE_Q8_0 && type <= TYPE_Q5_1) check_against_double((TensorType)type, (ActForm)form, 5, 96);
        }
    for (int type = TYPE_F32; type <= TYPE_BF16; type++) check_against_double((TensorType)type, ACT_Q16, 5, 37);
}

/* ---- tables against ref ------------------------------------------------------------------------- */

static uint32_t bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static const uint32_t CANARY = 0x7fc0dead;

/* Runs tiles [begin, end) of n_rows rows into a field of canaries, and checks every float of it. */
static void check_part(const Problem *p, const Kernels *t, int64_t n_rows, int64_t begin, int64_t end) {
    int64_t stride = p->n_out + PAD, n = PAD + n_rows * stride;
    float *y = checked(malloc((size_t)n * sizeof *y));
    for (int64_t i = 0; i < n; i++) memcpy(y + i, &CANARY, 4);
    for (int64_t r = 0; r < n_rows; r++) {
        size_t at = (size_t)r * p->act_bytes;
        acts_for_table(t, p->form, p->n_in, p->acts + at, p->acts_of_table + at);
    }
    t->matmul(&p->w, p->acts_of_table, n_rows, y + PAD, stride, begin, end);
    for (int64_t i = 0; i < n; i++) {
        int64_t r = (i - PAD) / stride, o = (i - PAD) % stride;
        bool inside = i >= PAD && o >= begin * TILE_ROWS && o < end * TILE_ROWS && o < p->n_out;
        uint32_t want = inside ? bits(p->want[r * p->n_out + o]) : CANARY;
        if (bits(y[i]) != want && !(inside && isnan(y[i]) && isnan(p->want[r * p->n_out + o])))
            fail_msg("%s %s %lldx%lld, %lld rows, tiles %lld-%lld: (%lld,%lld) is %a [%08x], not %a [%08x]", t->name,
                     tensor_type_info(p->type)->name, (long long)p->n_out, (long long)p->n_in, (long long)n_rows,
                     (long long)begin, (long long)end, (long long)r, (long long)o, (double)y[i], bits(y[i]),
                     inside ? (double)p->want[r * p->n_out + o] : NAN, want);
    }
    free(y);
}

static void check_acts(const Problem *p, const Kernels *t) {
    unsigned char *row = checked(mem_calloc(1, p->act_bytes));
    for (int64_t r = 0; r < N_ROWS; r++) {
        t->act_convert(p->form, p->x + r * p->n_in, p->n_in, row);
        acts_for_table(t, p->form, p->n_in, p->acts + (size_t)r * p->act_bytes, p->acts_of_table);
        if (memcmp(row, p->acts_of_table, p->act_bytes) != 0)
            fail_msg("%s: activations for %s, n = %lld, row %lld differ", t->name, tensor_type_info(p->type)->name,
                     (long long)p->n_in, (long long)r);
    }
    mem_free(row);
}

static void check_form(TensorType type, ActForm blocks, int64_t n_out, int64_t n_in, Kind weights, Kind acts) {
    Problem p;
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    problem_open(&p, type, blocks, n_out, n_in, weights, acts);
    int64_t n_tiles = packed_n_tiles(&p.w);
    for (int i = 1; i < n_tables; i++) {
        check_acts(&p, tables[i]);
        for (int64_t n_rows = 1; n_rows <= 33; n_rows++) check_part(&p, tables[i], n_rows, 0, n_tiles);
        check_part(&p, tables[i], N_ROWS, 0, n_tiles);
        for (int64_t begin = 0; begin < n_tiles; begin++)
            for (int64_t end = begin; end <= n_tiles; end += 1 + n_tiles / 4)
                check_part(&p, tables[i], 1 + (begin * 7 + end * 3) % 12, begin, end);
    }
    problem_close(&p);
}

static void check_tables(TensorType type, int64_t n_out, int64_t n_in, Kind weights, Kind acts) {
    check_form(type, ACT_Q16, n_out, n_in, weights, acts);
    if (act_is_blocks(act_form(type, ACT_Q8))) check_form(type, ACT_Q8, n_out, n_in, weights, acts);
}

static void tables_agree_on_every_shape(void **state) {
    (void)state;
    static const int64_t n_outs[] = {1,  15,  16, 17,
                                     48, 137, 157}; /* with 9 and 10 tiles, one row takes halves in turns */
    static const int64_t small[] = {32, 96, 160}, odd[] = {1, 2, 7, 33};
    for (int type = 0; type < TYPE_COUNT; type++) {
        for (size_t i = 0; i < sizeof n_outs / sizeof *n_outs; i++)
            check_tables((TensorType)type, n_outs[i], i % 2 ? 256 : 512, PLAIN, PLAIN);
        check_tables((TensorType)type, 17, 4096, PLAIN, PLAIN);
        if (tensor_type_info((TensorType)type)->block_n <= 32)
            for (size_t i = 0; i < 3; i++) check_tables((TensorType)type, 33, small[i], PLAIN, PLAIN);
        if (tensor_type_info((TensorType)type)->block_n == 1)
            for (size_t i = 0; i < 4; i++) check_tables((TensorType)type, 70, odd[i], PLAIN, PLAIN);
    }
}

static void tables_agree_on_extreme_values(void **state) {
    (void)state;
    for (int type = 0; type < TYPE_COUNT; type++) {
        for (int weights = ANY_BITS; weights < N_KINDS; weights++)
            check_tables((TensorType)type, 16, 256, (Kind)weights, N_KINDS);
        check_tables((TensorType)type, 48, 512, N_KINDS, N_KINDS);
        check_tables((TensorType)type, 20, 256, EXTREME, EXTREME);
    }
}

/* Tests any type, form, shape and kind of values with every number of rows from 1 to 64, and some part of the tiles. */
static void tables_agree_on_random_problems(void **state) {
    (void)state;
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    for (int i = 0; i < 4 * TYPE_COUNT; i++) {
        TensorType type = (TensorType)(i % TYPE_COUNT);
        ActForm form = i / TYPE_COUNT % 2 ? ACT_Q8 : ACT_Q16;
        int64_t block = tensor_type_info(type)->block_n, n_out = 1 + random_u32() % 70;
        int64_t n_in = block * (1 + random_u32() % (700 / (uint32_t)block + 1));
        Problem p;
        problem_open(&p, type, form, n_out, n_in, (Kind)(random_u32() % (N_KINDS + 1)),
                     (Kind)(random_u32() % (N_KINDS + 1)));
        int64_t n_tiles = packed_n_tiles(&p.w);
        for (int t = 1; t < n_tables; t++)
            for (int64_t n_rows = 1; n_rows <= N_ROWS; n_rows++)
                check_part(&p, tables[t], n_rows, (int64_t)(random_u32() % (uint32_t)n_tiles), n_tiles);
        problem_close(&p);
    }
}

/* Tests one row up to as many as a class of rows has, with 8, 9 and 10 tiles: from 8 on their halves can be read in
 * turns. */
static void every_way_of_reading_has_the_same_bits(void **state) {
    (void)state;
    static const int64_t n_outs[] = {128, 137, 157};
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    for (int type = 0; type < TYPE_COUNT; type++)
        for (ActForm form = ACT_Q16; form <= ACT_Q8; form++) {
            Problem p;
            problem_open(&p, (TensorType)type, form, n_outs[type % 3], 512, N_KINDS, N_KINDS);
            for (int t = 1; t < n_tables; t++)
                for (int way = 0; way < READ_WAYS; way++) {
                    read_ways_force(tables[t], way);
                    for (int64_t n_rows = 1; n_rows <= 16; n_rows += n_rows < 5 ? 1 : 4)
                        check_part(&p, tables[t], n_rows, 0, packed_n_tiles(&p.w));
                    read_ways_force(tables[t], -1);
                }
            problem_close(&p);
        }
}

/* Tests the numbers of rows that can take pairs of tiles, with even and odd numbers of tiles. */
static void pairs_of_tiles_have_the_same_bits(void **state) {
    (void)state;
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    for (int type = 0; type < TYPE_COUNT; type++)
        for (ActForm form = ACT_Q16; form <= ACT_Q8; form++) {
            Problem p;
            problem_open(&p, (TensorType)type, form, type % 2 ? 44 : 60, 256, N_KINDS, N_KINDS);
            for (int t = 1; t < n_tables; t++)
                for (int pairs = 0; pairs < 2 && tables[t]->pairs; pairs++) {
                    pairs_force(tables[t], pairs);
                    for (int64_t n_rows = PAIR_ROWS_MIN - 1; n_rows <= 36; n_rows += n_rows < 18 ? 1 : 6)
                        check_part(&p, tables[t], n_rows, 0, packed_n_tiles(&p.w));
                    pairs_force(tables[t], -1);
                }
            problem_close(&p);
        }
}

/* Tests sums that end near zero, where subnormals are flushed or not. */
static void tables_agree_on_subnormal_sums(void **state) {
    (void)state;
    for (int type = TYPE_F32; type <= TYPE_BF16; type++) {
        Problem p;
        int n_tables;
        const Kernels *const *tables = all_tables(&n_tables);
        problem_open(&p, (TensorType)type, ACT_Q16, 64, 64, PLAIN, PLAIN);
        for (int64_t i = 0; i < N_ROWS * 64; i++) p.x[i] = ldexpf(random_float(), -120 - (int)(i / 64 % 16));
        for (int64_t r = 0; r < N_ROWS; r++)
            ref()->act_convert(p.form, p.x + r * 64, 64, p.acts + (size_t)r * p.act_bytes);
        ref()->matmul(&p.w, p.acts, N_ROWS, p.want, 64, 0, 4);
        int64_t n_subnormal = 0;
        for (int64_t i = 0; i < N_ROWS * 64; i++) n_subnormal += fpclassify(p.want[i]) == FP_SUBNORMAL;
        if (type == TYPE_BF16) assert_int_equal(n_subnormal, 0);
        else assert_true(n_subnormal > 10);
        for (int i = 1; i < n_tables; i++) {
            check_acts(&p, tables[i]);
            check_part(&p, tables[i], N_ROWS, 0, 4);
        }
        problem_close(&p);
    }
}

/* A little less than 2^-126 is subnormal before rounding and normal afterwards: vdpbf16ps tests after rounding. */
static void bf16_keeps_what_rounds_to_a_normal_number(void **state) {
    (void)state;
    enum { N_OUT = 16 };
    static const uint16_t weights[2] = {0x8000 | (127 - 80) << 7, 127 << 7}; /* -2^-80, 1; the odd input comes first */
    const float x[2] = {0x1p-80f, 0x1p-126f};
    uint16_t rows[N_OUT][2], acts[32];
    float y[N_OUT];
    PackedMatrix w;
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    for (int o = 0; o < N_OUT; o++) memcpy(rows[o], weights, sizeof weights);
    assert_int_equal(packed_init(&w, TYPE_BF16, ACT_Q16, N_OUT, 2, NULL), FR_OK);
    packed_fill(&w, rows, 0, 1);
    for (int i = 0; i < n_tables; i++) {
        tables[i]->act_convert(ACT_BF16, x, 2, acts);
        tables[i]->matmul(&w, acts, 1, y, N_OUT, 0, 1);
        for (int o = 0; o < N_OUT; o++)
            if (bits(y[o]) != bits(0x1p-126f)) fail_msg("%s: output %d is %a", tables[i]->name, o, (double)y[o]);
    }
    packed_free(&w);
}

/* ---- the choice of a table --------------------------------------------------------------------------------- */

static void tables_are_found_by_name(void **state) {
    (void)state;
    int n;
    const Kernels *const *tables = kernels_available(&n);
    assert_string_equal(tables[0]->name, "ref");
    for (int i = 0; i < n; i++) assert_ptr_equal(kernels_select(tables[i]->name), tables[i]);
    const Kernels *best = kernels_select(NULL);
    assert_ptr_equal(kernels_select("auto"), best);
    if (strcmp(tables[n - 1]->name, "avx512-bf16") != 0) assert_ptr_equal(best, tables[n - 1]);
    else if (strcmp(best->name, "avx512") != 0)
        assert_ptr_equal(best, tables[n - 1]); /* avx512 is chosen on Intel's
                                                                                        * CPUs */
    assert_null(kernels_select("mmx"));
    print_message("tables:");
    for (int i = 0; i < n; i++) print_message(" %s", tables[i]->name);
    print_message("\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_found_by_name),
        cmocka_unit_test(the_specification_multiplies),
        cmocka_unit_test(tables_agree_on_every_shape),
        cmocka_unit_test(tables_agree_on_extreme_values),
        cmocka_unit_test(every_way_of_reading_has_the_same_bits),
        cmocka_unit_test(pairs_of_tiles_have_the_same_bits),
        cmocka_unit_test(tables_agree_on_subnormal_sums),
        cmocka_unit_test(tables_agree_on_random_problems),
        cmocka_unit_test(bf16_keeps_what_rounds_to_a_normal_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
