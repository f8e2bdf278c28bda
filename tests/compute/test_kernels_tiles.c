/* test_kernels_tiles.c - the code of table "amx" over tiles in plain C: it gives the bits of the specification for
 * every type, form of activations, way (compute/cpu/kernels/product_ways.h) and number of rows, reads and writes only
 * inside its arrays, and uses registers as the CPU allows. test_kernels_matmul.c runs the same table over its own
 * problems. */
#include "plain_tiles.h"
#include "testing.h"
#include "kernel_numbers.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"
#include "compute/cpu/kernels/kernels.h"
#include "compute/cpu/kernels/layout.h"
#include "compute/cpu/kernels/product_ways.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)

enum { ROWS_MAX = 80 };

/* ---- memory before a page that may not be accessed ------------------------------------------------------- */

typedef struct Guarded {
    unsigned char *map, *data;
    size_t map_bytes;
} Guarded;

static Guarded guarded_open(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page * page;
    Guarded g = {.map_bytes = n + page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map + n, page, PROT_NONE), 0);
    g.data = g.map + n - bytes;
    return g;
}

static void guarded_close(Guarded *g) { munmap(g->map, g->map_bytes); }

/* ---- problems ------------------------------------------------------------------------------------------------ */

typedef struct Problem {
    PackedMatrix w;
    Guarded weights;
    float *x; /* [ROWS_MAX][n_in] */
    float *want;
} Problem;

static const Kernels *ref(void) { return kernels_select("ref"); }

static void fill_weights(Problem *p) {
    size_t row_bytes;
    int64_t n_in = p->w.n_in, n_out = p->w.n_out;
    assert_true(tensor_type_row_bytes(p->w.type, n_in, &row_bytes));
    unsigned char *rows = malloc((size_t)n_out * row_bytes);
    float *row = malloc((size_t)n_in * sizeof *row);
    assert_true(rows && row);
    for (int64_t o = 0; o < n_out; o++) {
        for (int64_t k = 0; k < n_in; k++) row[k] = random_float() + (float)(o % 3 - 1);
        blocks_quantize(p->w.type, row, n_in, rows + (size_t)o * row_bytes);
    }
    packed_fill(&p->w, rows, 0, packed_n_tiles(&p->w));
    free(rows);
    free(row);
}

/* Puts the first n rows in the form of w at the end of their memory. */
static Guarded converted(const Problem *p, int64_t n) {
    size_t stride = act_row_bytes(p->w.act, p->w.n_in);
    Guarded g = guarded_open((size_t)n * stride);
    for (int64_t r = 0; r < n; r++)
        ref()->act_convert(p->w.act, p->x + r * p->w.n_in, p->w.n_in, g.data + (size_t)r * stride);
    return g;
}

static Problem problem_open(TensorType type, ActForm form, int64_t n_out, int64_t n_in) {
    Problem p;
    assert_int_equal(packed_shape(&p.w, type, form, n_out, n_in, NULL), FR_OK);
    p.weights = guarded_open(packed_bytes(&p.w));
    p.w.data = p.weights.data;
    fill_weights(&p);
    p.x = malloc(ROWS_MAX * (size_t)n_in * sizeof *p.x);
    p.want = malloc(ROWS_MAX * (size_t)n_out * sizeof *p.want);
    assert_true(p.x && p.want);
    for (int64_t i = 0; i < ROWS_MAX * n_in; i++) p.x[i] = random_float() * (float)(1 + i / n_in % 5);
    Guarded acts = converted(&p, ROWS_MAX);
    ref()->matmul(&p.w, acts.data, ROWS_MAX, p.want, n_out, 0, packed_n_tiles(&p.w));
    guarded_close(&acts);
    return p;
}

static void problem_close(Problem *p) {
    guarded_close(&p->weights);
    free(p->x);
    free(p->want);
}

/* Returns whether n rows are those of the specification; a matrix of more than two tiles takes two calls. */
static bool rows_agree(const Problem *p, TileWay way, int64_t n) {
    const TileProducts *tiles = kernels_plain_tiles()->tiles;
    int64_t n_tiles = packed_n_tiles(&p->w), cut = n_tiles > 2 ? n_tiles - 2 : 0;
    size_t bytes = (size_t)n * (size_t)p->w.n_out * sizeof(float);
    Guarded acts = converted(p, n), y = guarded_open(bytes);
    memset(y.data, 0xff, bytes);
    if (cut) tiles->matmul(way, &p->w, acts.data, n, (float *)(void *)y.data, p->w.n_out, 0, cut);
    tiles->matmul(way, &p->w, acts.data, n, (float *)(void *)y.data, p->w.n_out, cut, n_tiles);
    bool agree = memcmp(y.data, p->want, bytes) == 0;
    guarded_close(&acts);
    guarded_close(&y);
    return agree;
}

static void check_rows(TensorType type, ActForm form, int64_t n_out, int64_t n_in, int64_t step) {
    Problem p = problem_open(type, form, n_out, n_in);
    for (TileWay way = WAY_TILES; way < N_TILE_WAYS; way++)
        for (int64_t n = 1; n <= ROWS_MAX; n += step)
            if (!rows_agree(&p, way, n))
                fail_msg("%s %s %lldx%lld by %s: %lld rows differ from the specification", tensor_type_info(type)->name,
                         act_form_name(form), (long long)n_out, (long long)n_in, tile_way_name(way), (long long)n);
    problem_close(&p);
}

static bool tiles_run(void) {
    if (!kernels_select("avx512")) print_message("skipped: the tiles in plain C need AVX-512, which this CPU lacks\n");
    return kernels_select("avx512") != NULL;
}

#define EACH_TYPE_AND_FORM(type, form) \
    for (TensorType type = TYPE_Q8_0; type < TYPE_COUNT; type++) \
        for (ActForm form = ACT_Q16; form <= ACT_Q8; form++)

/* ---- results ------------------------------------------------------------------------------------------------- */

static void every_number_of_rows_has_the_specified_bits(void **state) {
    (void)state;
    if (!tiles_run()) skip();
    EACH_TYPE_AND_FORM(type, form) {
        check_rows(type, form, 17,
                   tensor_type_info(type)->block_n == 32 ? 544 : 512 + tensor_type_info(type)->block_n % 256, 1);
        check_rows(type, form, 1, tensor_type_info(type)->block_n, 3);
        check_rows(type, form, 40, tensor_type_info(type)->block_n * 9, 13);
    }
}

/* There are enough inputs for a pass to take 16 rows, and enough outputs for passes to alternate over groups of
 * tiles. */
static void passes_take_turns_over_long_rows(void **state) {
    (void)state;
    if (!tiles_run()) skip();
    check_rows(TYPE_Q8_0, ACT_Q16, 70, 8192, 26);
    check_rows(TYPE_Q4_K, ACT_Q8, 70, 8192, 26);
}

static void a_wrong_product_is_detected(void **state) {
    (void)state;
    if (!tiles_run()) skip();
    EACH_TYPE_AND_FORM(type, form) {
        Problem p = problem_open(type, form, 17, 512);
        plain_tiles_are_wrong = true;
        bool agree = rows_agree(&p, WAY_TILE_PAIRS, 20);
        plain_tiles_are_wrong = false;
        if (agree)
            fail_msg("%s %s: a byte was left out of every product", tensor_type_info(type)->name, act_form_name(form));
        problem_close(&p);
    }
}

/* Every product of a matrix configures and releases the registers once and has as few tile products as its rows need;
 * in pairs it loads an activation tile once for two products and a weight tile once for all rows. */
static void tiles_are_loaded_once_for_several_products(void **state) {
    (void)state;
    if (!tiles_run()) skip();
    static const struct {
        TensorType type;
        ActForm form;
        TileWay way;
        int64_t n_rows, n_products, n_loads; /* for two tiles of outputs and a slice */
    } cases[] = {
        {TYPE_Q8_0, ACT_Q16, WAY_VECTORS, 16, 0, 0},
        {TYPE_Q8_0, ACT_Q16, WAY_TILES, 16, 4, 4 + 2},
        {TYPE_Q8_0, ACT_Q16, WAY_TILE_PAIRS, 5, 4, 2 + 2},
        {TYPE_Q8_0, ACT_Q16, WAY_TILE_PAIRS, 16, 4, 2 + 2},
        {TYPE_Q8_0, ACT_Q16, WAY_TILE_PAIRS, 17, 8, 4 + 2},
        {TYPE_Q8_0, ACT_Q16, WAY_TILES, 64, 16, 16 + 2},
        {TYPE_Q8_0, ACT_Q16, WAY_TILE_PAIRS, 64, 16, 8 + 2},
        {TYPE_Q8_0, ACT_Q16, WAY_TILE_PAIRS, 80, 20, 10 + 4}, /* in two passes */
        {TYPE_Q4_K, ACT_Q8, WAY_TILE_PAIRS, 9, 2, 1 + 2},
        {TYPE_Q4_K, ACT_Q8, WAY_TILE_PAIRS, 33, 6, 3 + 2},
        {TYPE_Q6_K, ACT_Q16, WAY_TILE_PAIRS, 16, 8, 4 + 4},
        {TYPE_Q6_K, ACT_Q8, WAY_TILE_PAIRS, 33, 12, 6 + 4},
        {TYPE_BF16, ACT_Q16, WAY_TILE_PAIRS, 16, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Problem p = problem_open(cases[i].type, act_form(cases[i].type, cases[i].form), 32, 512);
        plain_tiles_counts = (TileCounts){0};
        assert_true(rows_agree(&p, cases[i].way, cases[i].n_rows));
        assert_int_equal(plain_tiles_counts.n_products, cases[i].n_products * 512 / ACT_BLOCK);
        assert_int_equal(plain_tiles_counts.n_loads, cases[i].n_loads * 512 / ACT_BLOCK);
        assert_int_equal(plain_tiles_counts.n_configured, cases[i].n_products > 0);
        assert_int_equal(plain_tiles_counts.n_released, cases[i].n_products > 0);
        problem_close(&p);
    }
}

/* ---- registers ----------------------------------------------------------------------------------------------- */

static jmp_buf after_fault;
static const char *fault;
static void on_fault(const char *what) {
    fault = what;
    longjmp(after_fault, 1);
}

/* The tiles in plain C refuse the same instructions as the CPU: step i of a wrong sequence fails. */
static void do_wrong(int i) {
    _Alignas(64) static unsigned char memory[TILE_MAX_ROWS * TILE_MAX_BYTES];
    TileConfig c = {.palette = 1, .rows = {16, 16, 8, 4}, .row_bytes = {64, 32, 64, 64}};
    switch (i) {
    case 0: plain_tile_zero(0); return;
    case 1: c.palette = 2; break;
    case 2: c.rows[1] = 17; break;
    case 3: c.row_bytes[1] = 68; break;
    case 4: c.row_bytes[1] = 0; break;
    case 5: c.rows[8] = 1, c.row_bytes[8] = 4; break;
    case 6: c.reserved[3] = 1; break;
    case 7: plain_tile_release(); return;
    default: break;
    }
    plain_tile_configure(&c);
    if (i == 8) plain_tile_zero(4);
    if (i == 9) plain_tile_load(0, memory, 32);
    if (i == 10) plain_tile_store(0, memory, 64);
    plain_tile_zero(0);
    plain_tile_load(1, memory, 32);
    plain_tile_load(2, memory, 64);
    plain_tile_load(3, memory, 64);
    if (i == 11) plain_tile_dot_bytes(0, 1, 3);
    if (i == 12) plain_tile_dot_bytes(0, 1, 1);
    if (i == 13) plain_tile_dot_bytes(2, 1, 2);
    plain_tile_dot_bytes(0, 1, 2);
    plain_tile_release();
    if (i == 14) plain_tile_load(1, memory, 32);
}

static void plain_tiles_refuse_what_a_cpu_refuses(void **state) {
    (void)state;
    if (!tiles_run()) skip();
    plain_tiles_on_fault = on_fault;
    for (volatile int i = 0; i <= 15; i++) {
        fault = NULL;
        if (setjmp(after_fault) == 0) do_wrong(i);
        if (i == 15) assert_null(fault);
        else if (!fault) fail_msg("step %d was not refused", i);
        if (fault && i >= 8 && i != 14) plain_tile_release();
    }
    plain_tiles_on_fault = NULL;
}

/* Checks the sums of the manual's pseudocode for bytes at both ends of their range. */
static void plain_tiles_multiply_signed_bytes(void **state) {
    (void)state;
    if (!tiles_run()) skip();
    static const unsigned char a[4] = {0x80, 0x7f, 0xff, 1}, b[4] = {0x80, 0xff, 0x7f, 0x81};
    int32_t sum;
    const TileConfig c = {.palette = 1, .rows = {1, 1, 1}, .row_bytes = {4, 4, 4}};
    plain_tile_configure(&c);
    plain_tile_zero(0);
    plain_tile_load(1, a, 4);
    plain_tile_load(2, b, 4);
    plain_tile_dot_bytes(0, 1, 2);
    plain_tile_store(0, &sum, 4);
    plain_tile_release();
    assert_int_equal(sum, -128 * -128 + 127 * -1 - 127 - 127);
}

static void a_missing_table_is_an_error_with_a_remedy(void **state) {
    (void)state;
    const Kernels *table;
    fr_error err;
    int status = kernels_find("amx", &table, &err);
    if (kernels_select("amx")) {
        assert_int_equal(status, FR_OK);
        return;
    }
    assert_int_equal(status, FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "Linux 5.16"));
    assert_non_null(strstr(err.message, "choose from ref"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_tiles_refuse_what_a_cpu_refuses),
        cmocka_unit_test(plain_tiles_multiply_signed_bytes),
        cmocka_unit_test(every_number_of_rows_has_the_specified_bits),
        cmocka_unit_test(passes_take_turns_over_long_rows),
        cmocka_unit_test(a_wrong_product_is_detected),
        cmocka_unit_test(tiles_are_loaded_once_for_several_products),
        cmocka_unit_test(a_missing_table_is_an_error_with_a_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else
int main(void) { return 0; } /* only x86-64 has tiles */
#endif
