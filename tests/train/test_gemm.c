/* test_gemm.c - the BF16 products of training: AVX-512 and tiles give the bits of plain C on shapes around every edge
 * and read nothing outside the matrices; plain C is as near to double precision as BF16 inputs allow, and no nearer; so
 * is a whole layer. The loops over single numbers give the same bits for every instruction set. */
#include "train/gemm.h"

#include "base/rng.h"
#include "plain_tiles.h"
#include "small_ops.h"
#include "testing.h"
#include "train/ops.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- matrices that end at a protected page ------------------------------------------------------------- */

enum { GAP = 3 }; /* the gap between two rows, whose numbers must not be changed */
static const float canary = 77;

typedef struct Matrix {
    int64_t rows, columns, stride;
    float *at;
    size_t mapped;
    char *map;
} Matrix;

static Matrix make_matrix(int64_t rows, int64_t columns) {
    Matrix x = {rows, columns, columns + GAP, NULL, 0, NULL};
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)((rows - 1) * x.stride + columns) * sizeof(float);
    x.mapped = (bytes + page - 1) / page * page + page;
    x.map = mmap(NULL, x.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(x.map != MAP_FAILED);
    assert_int_equal(mprotect(x.map + x.mapped - page, page, PROT_NONE), 0);
    x.at = (float *)(void *)(x.map + x.mapped - page - bytes);
    for (size_t i = 0; i < bytes / sizeof(float); i++) x.at[i] = canary;
    return x;
}

static void drop_matrix(Matrix *x) { munmap(x->map, x->mapped); }

static float number(uint64_t stream, uint64_t i) { return (float)(2 * rng_uniform(stream, RNG_TEST, i, 0) - 1); }

/* One number in four is 0, subnormal, nearly subnormal, or huge. */
static float wild_number(uint64_t stream, uint64_t i) {
    static const float wild[] = {0,          -0.0f,          FLT_MIN / 2, -FLT_TRUE_MIN, 1.5f * FLT_MIN, -0x1.01p-70f,
                                 0x1.81p50f, -0x1.fffffep60f};
    float x = number(stream, i);
    return rng_uniform(stream, RNG_TEST, i, 1) < 0.25 ? wild[(size_t)(8 * rng_uniform(stream, RNG_TEST, i, 2))] : x;
}

static void fill(Matrix *x, uint64_t stream, bool is_wild) {
    for (int64_t i = 0; i < x->rows; i++)
        for (int64_t j = 0; j < x->columns; j++) {
            uint64_t at = (uint64_t)(i * x->columns + j);
            x->at[i * x->stride + j] = is_wild ? wild_number(stream, at) : number(stream, at);
        }
}

static bool gaps_are_whole(const Matrix *x) {
    for (int64_t i = 0; i + 1 < x->rows; i++)
        for (int k = 0; k < GAP; k++)
            if (x->at[i * x->stride + x->columns + k] != canary) return false;
    return true;
}

/* ---- one product ------------------------------------------------------------------------------------- */

typedef struct Case {
    int64_t m, n, k;
    bool transpose_a, transpose_b, accumulate, is_wild;
    float alpha;
    Matrix a, b, c;
} Case;

static Case make_case(int64_t m, int64_t n, int64_t k, int variant) {
    Case t = {.m = m,
              .n = n,
              .k = k,
              .transpose_a = variant & 1,
              .transpose_b = variant & 2,
              .accumulate = variant & 4,
              .is_wild = variant & 8,
              .alpha = variant & 4 ? 0.3f : 1};
    t.a = t.transpose_a ? make_matrix(k, m) : make_matrix(m, k);
    t.b = t.transpose_b ? make_matrix(n, k) : make_matrix(k, n);
    t.c = make_matrix(m, n);
    fill(&t.a, 1, t.is_wild), fill(&t.b, 2, t.is_wild), fill(&t.c, 3, false);
    return t;
}

static void drop_case(Case *t) { drop_matrix(&t->a), drop_matrix(&t->b), drop_matrix(&t->c); }

static Bf16Product product_of(const Case *t) {
    return (Bf16Product){t->m,
                         t->n,
                         t->k,
                         {t->a.at, t->a.stride, !t->transpose_a},
                         {t->b.at, t->b.stride, t->transpose_b},
                         t->alpha,
                         t->accumulate,
                         t->c.at,
                         t->c.stride};
}

static const int64_t shapes[][3] = {{1, 1, 1},    {7, 31, 2},   {8, 32, 32},   {9, 33, 33},  {16, 16, 31},
                                    {17, 47, 64}, {5, 64, 255}, {24, 48, 256}, {3, 17, 257}, {33, 15, 300},
                                    {8, 1, 513},  {513, 3, 5},  {530, 33, 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_VARIANTS = 16 };

#if defined(__x86_64__)
static void check_same_bits(void (*multiply_plain)(const Bf16Product *), void (*multiply_fast)(const Bf16Product *)) {
    if (!gemm_has_instructions(GEMM_BF16)) {
        print_message("skipped: this CPU has no AVX-512 BF16\n");
        skip();
    }
    for (int i = 0; i < N_SHAPES; i++)
        for (int variant = 0; variant < N_VARIANTS; variant++) {
            Case plain = make_case(shapes[i][0], shapes[i][1], shapes[i][2], variant);
            Case fast = make_case(shapes[i][0], shapes[i][1], shapes[i][2], variant);
            Bf16Product p = product_of(&plain), q = product_of(&fast);
            multiply_plain(&p);
            multiply_fast(&q);
            assert_true(gaps_are_whole(&fast.c));
            for (int64_t r = 0; r < plain.m; r++)
                for (int64_t j = 0; j < plain.n; j++) {
                    float one = plain.c.at[r * plain.c.stride + j], other = fast.c.at[r * fast.c.stride + j];
                    if (memcmp(&one, &other, sizeof one) != 0)
                        fail_msg("%lld x %lld x %lld, variant %d, at %lld %lld: %a, in plain C %a", (long long)plain.m,
                                 (long long)plain.n, (long long)plain.k, variant, (long long)r, (long long)j,
                                 (double)other, (double)one);
                }
            drop_case(&plain), drop_case(&fast);
        }
}

static void avx512_has_the_bits_of_plain_c(void **state) {
    (void)state;
    check_same_bits(gemm_bf16_plain, gemm_bf16_avx512);
}

/* Tests tiles in plain C, and the CPU's tiles if it has any. */
static void tiles_have_the_bits_of_plain_c(void **state) {
    (void)state;
    check_same_bits(gemm_bf16_tiles_plain, gemm_bf16_plain_tiles);
    if (gemm_has_instructions(GEMM_BF16_TILES)) check_same_bits(gemm_bf16_tiles_plain, gemm_bf16_tiles_amx);
    assert_true(plain_tiles_counts.n_configured > 0 &&
                plain_tiles_counts.n_configured == plain_tiles_counts.n_released);
}
#endif

/* The two orders of sums differ, so a kernel that uses the wrong one is detected. */
static void the_two_orders_of_sums_differ(void **state) {
    (void)state;
    Case pairs = make_case(16, 16, 64, 0), tiles = make_case(16, 16, 64, 0);
    Bf16Product p = product_of(&pairs), q = product_of(&tiles);
    gemm_bf16_plain(&p);
    gemm_bf16_tiles_plain(&q);
    int64_t n_different = 0;
    for (int64_t i = 0; i < 16 * 16; i++)
        n_different += pairs.c.at[i / 16 * pairs.c.stride + i % 16] != tiles.c.at[i / 16 * tiles.c.stride + i % 16];
    assert_true(n_different > 16);
    drop_case(&pairs), drop_case(&tiles);
}

/* One output of 34 inputs, worked out by hand: a chain loses numbers that are small compared with its sum, and the odd
 * chain is separate from the even one. */
static void a_sum_of_tiles_is_that_worked_out_by_hand(void **state) {
    (void)state;
    float a[34] = {0}, b[34], c = 5;
    for (int i = 0; i < 34; i++) b[i] = 1;
    a[0] = 0x1p24f, a[1] = 1, a[2] = 1, a[3] = 1, a[4] = -0x1p24f; /* even: 2^24 + 1 is 2^24, then 0; odd: 2 */
    a[32] = 0x1p-126f, a[33] = -0x1.8p-126f;                       /* their sum is subnormal, so it becomes zero */
    const Bf16Product p = {1, 1, 34, {a, 34, true}, {b, 34, true}, 1, false, &c, 1};
    gemm_bf16_tiles_plain(&p);
    assert_true(c == 2);
    gemm_bf16_plain(&p); /* 1 + 2^24 is 2^24, likewise the next two; then 0 */
    assert_true(c == 0);
}

/* Returns the largest error of a product, in units of sum |alpha a b| + |c|. */
static double worst_error(const Case *t) {
    Matrix before = make_matrix(t->m, t->n);
    fill(&before, 3, false);
    double worst = 0;
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n; j++) {
            double old = t->accumulate ? (double)before.at[i * before.stride + j] : 0, sum = old, size = fabs(old);
            for (int64_t l = 0; l < t->k; l++) {
                double a = (double)t->a.at[t->transpose_a ? l * t->a.stride + i : i * t->a.stride + l];
                double b = (double)t->b.at[t->transpose_b ? j * t->b.stride + l : l * t->b.stride + j];
                sum += (double)t->alpha * a * b, size += fabs((double)t->alpha * a * b);
            }
            double error = fabs((double)t->c.at[i * t->c.stride + j] - sum) / size;
            worst = error > worst ? error : worst;
        }
    drop_matrix(&before);
    return worst;
}

/* gemm.h gives the bound. Control: with inputs in float the error is a thousandth of that, so a product that does not
 * round its inputs is detected. */
static void errors_are_those_of_bf16(void **state) {
    (void)state;
    for (int precision = GEMM_F32; precision <= GEMM_BF16_TILES; precision++) {
        double worst = 0;
        assert_int_equal(gemm_open((GemmPrecision)precision, 4, NULL), FR_OK);
        for (int i = 0; i < N_SHAPES; i++)
            for (int variant = 0; variant < 8; variant++) {
                Case t = make_case(shapes[i][0], shapes[i][1], shapes[i][2], variant);
                gemm(t.transpose_a, t.transpose_b, t.m, t.n, t.k, t.alpha, t.a.at, t.a.stride, t.b.at, t.b.stride,
                     t.accumulate, t.c.at, t.c.stride);
                double error = worst_error(&t), bound = precision == GEMM_F32 ? 0 : 0x1.01p-7;
                bound += (double)t.k * 0x1p-23 + 0x1p-22;
                if (!(error <= bound))
                    fail_msg("%s, shape %d, variant %d: the error is %g, the bound %g", gemm_description(), i, variant,
                             error, bound);
                worst = error > worst ? error : worst;
                drop_case(&t);
            }
        if (precision != GEMM_F32) assert_true(worst > 0x1p-9);
    }
    assert_int_equal(gemm_open(GEMM_F32, 4, NULL), FR_OK);
}

/* ---- a layer ------------------------------------------------------------------------------------------ */

enum { T = 37, IN = 70, OUT = 50 };

static void fill_array(float *x, int64_t n, uint64_t stream) {
    for (int64_t i = 0; i < n; i++) x[i] = number(stream, (uint64_t)i);
}

/* |a - b| / |b| */
static double distance(const float *a, const float *b, int64_t n) {
    double apart = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        apart += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(apart / size);
}

/* y, dx, dw, db, concatenated */
enum { Y = 0, DX = Y + T * OUT, DW = DX + T * IN, DB = DW + OUT * IN, LAYER = DB + OUT };

static void run_layer(GemmPrecision precision, float out[LAYER]) {
    static float x[T * IN], w[OUT * IN], b[OUT], dy[T * OUT];
    fill_array(x, T * IN, 4), fill_array(w, OUT * IN, 5), fill_array(b, OUT, 6), fill_array(dy, T * OUT, 7);
    fill_array(out, LAYER, 8); /* backward functions add */
    assert_int_equal(gemm_open(precision, 4, NULL), FR_OK);
    linear_forward(out + Y, x, w, b, T, IN, OUT);
    linear_backward(out + DX, out + DW, out + DB, dy, x, w, T, IN, OUT);
    assert_int_equal(gemm_open(GEMM_F32, 4, NULL), FR_OK);
}

static void a_layer_in_bf16_is_near_the_layer_in_float(void **state) {
    (void)state;
    static float in_float[LAYER], in_bf16[LAYER], again[LAYER];
    static const int parts[] = {Y, DX, DW, LAYER};
    run_layer(GEMM_F32, in_float), run_layer(GEMM_BF16, in_bf16), run_layer(GEMM_BF16, again);
    assert_memory_equal(in_bf16, again, sizeof again);
    for (int i = 0; i < 3; i++) {
        double apart = distance(in_bf16 + parts[i], in_float + parts[i], parts[i + 1] - parts[i]);
        if (!(apart > 1e-4 && apart < 4e-3)) fail_msg("part %d is %g away", i, apart);
    }
    assert_memory_equal(in_bf16 + DB, in_float + DB, OUT * sizeof(float)); /* the bias takes no matrix product */
}

/* ---- loops for several instruction sets --------------------------------------------------------------- */

enum { ROWS = 70, HEADS = 2, DIM = 34, WIDTH = HEADS * DIM, N = ROWS * WIDTH };
static const AttentionShape attention_shape = {ROWS, HEADS, 1, DIM};

/* The inputs of an op, and the outputs of its two versions. */
static float in[5][N], wrote[2][3][N], probs[2][HEADS * ROWS * ROWS], scratch[ATTENTION_BLOCK * ROWS];

/* Calls both versions of NAME with `o` for the outputs and `p` for attention weights, and compares all of them. */
#define BOTH(NAME, ...) \
    do { \
        for (int f = 0; f < 2; f++) { \
            float(*o)[N] = wrote[f], *p = probs[f]; \
            for (int k = 0; k < 3; k++) memcpy(o[k], in[4], sizeof in[4]); \
            (void)p; \
            if (f == 0) NAME(__VA_ARGS__); \
            else small_##NAME(__VA_ARGS__); \
        } \
        if (memcmp(wrote[0], wrote[1], sizeof wrote[0]) != 0 || memcmp(probs[0], probs[1], sizeof probs[0]) != 0) \
            fail_msg(#NAME " has other bits on the smallest CPU"); \
    } while (0)

static void all_instruction_sets_give_the_same_bits(void **state) {
    (void)state;
    static int32_t targets[ROWS];
    for (int i = 0; i < 5; i++) fill_array(in[i], N, (uint64_t)(20 + i));
    for (int i = 0; i < N; i++) in[0][i] *= 9;
    for (int i = 0; i < ROWS; i++) targets[i] = i * 5 % WIDTH;
    const float *x = in[0], *y = in[1], *z = in[2], *u = in[3];
    BOTH(silu_forward, o[0], x, N - 1);
    BOTH(silu_backward, o[0], y, x, N - 1);
    BOTH(swiglu_forward, o[0], x, y, N - 1);
    BOTH(swiglu_backward, o[0], o[1], z, x, y, N - 1);
    BOTH(geglu_forward, o[0], x, y, N - 1);
    BOTH(geglu_backward, o[0], o[1], z, x, y, N - 1);
    BOTH(rmsnorm_forward, o[0], o[1], x, y, ROWS, WIDTH, 1e-5f);
    BOTH(rmsnorm_forward, o[0], o[1], x, NULL, ROWS, WIDTH, 1e-5f);
    BOTH(rmsnorm_backward, o[0], o[1], y, x, z, u, ROWS, WIDTH);
    BOTH(rmsnorm_backward, o[0], NULL, y, x, NULL, u, ROWS, WIDTH);
    BOTH(rope_forward, ROPE_PAIRS, o[0], y, ROWS, HEADS, DIM, DIM);
    BOTH(rope_backward, ROPE_HALVES, o[0], y, ROWS, HEADS, DIM, DIM - 2);
    BOTH(cross_entropy_forward, o[0], o[1], x, targets, ROWS, WIDTH);
    BOTH(cross_entropy_backward, o[0], y, z, targets, ROWS, WIDTH);
    BOTH(soft_cross_entropy_forward, o[0], o[1], x, y, ROWS, WIDTH);
    BOTH(soft_cross_entropy_backward, o[0], u, z, y, ROWS, WIDTH);
    BOTH(total_variation_forward, o[0], x, y, ROWS, WIDTH);
    BOTH(total_variation_backward, o[0], u, x, y, ROWS, WIDTH);
    BOTH(attention_forward, o[0], p, x, y, z, &attention_shape);
    BOTH(attention_backward, o[0], o[1], o[2], u, probs[0], x, y, z, scratch, &attention_shape);
}

#if defined(__x86_64__)
/* A run is resumed in the precision with which it began, so the default must not change from run to run. */
static void the_measured_default_is_the_same_each_time(void **state) {
    (void)state;
    if (!gemm_has_instructions(GEMM_BF16)) skip();
    bool first = gemm_bf16_is_faster();
    for (int i = 0; i < 50; i++) assert_int_equal(gemm_bf16_is_faster(), first);
}
#endif

/* OpenBLAS must not choose its kernels by its list of processors, which lacks those that are newer than its release. */
static void float_products_use_what_the_processor_has(void **state) {
    (void)state;
    fr_error err;
    if (gemm_open(GEMM_F32, 1, &err)) fail_msg("%s", err.message);
    const char *expected = "float (OpenBLAS";
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) expected = "float (OpenBLAS Haswell)";
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        expected = "float (OpenBLAS SkylakeX)";
#endif
    if (strncmp(gemm_description(), expected, strlen(expected)) != 0)
        fail_msg("%s instead of %s", gemm_description(), expected);
}

int main(void) {
    unsetenv("OPENBLAS_CORETYPE"); /* the first test that opens OpenBLAS would otherwise keep the user's choice */
    const struct CMUnitTest tests[] = {
#if defined(__x86_64__)
        cmocka_unit_test(avx512_has_the_bits_of_plain_c),
        cmocka_unit_test(tiles_have_the_bits_of_plain_c),
        cmocka_unit_test(the_measured_default_is_the_same_each_time),
#endif
        cmocka_unit_test(the_two_orders_of_sums_differ),
        cmocka_unit_test(a_sum_of_tiles_is_that_worked_out_by_hand),
        cmocka_unit_test(errors_are_those_of_bf16),
        cmocka_unit_test(float_products_use_what_the_processor_has),
        cmocka_unit_test(a_layer_in_bf16_is_near_the_layer_in_float),
        cmocka_unit_test(all_instruction_sets_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
