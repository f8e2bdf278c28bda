/* test_product_ways.c - the choice of ways of products by their time (compute/cpu/kernels/product_ways.h): with a table
 * whose products only take time, the fastest way is chosen, small differences do not count, and the measurement ends
 * in time. */
#include "testing.h"

#include "base/system.h"
#include "compute/cpu/kernels/product_ways.h"

#include <string.h>

static int n_timed;
static int n_others_timed; /* reads that are not of one row of Q8_0 with 16-bit activations */
static void wait_ns(double ns) {
    double end = clock_cpu_s() + 1e-9 * ns; /* processor time, which does not depend on other programs */
    while (clock_cpu_s() < end) {}
    n_timed++;
}

/* Other programs may disturb every run of one way. Therefore some measurements are tried until one has the expected
 * result; a wrong choice never has it. */
static void assert_measured(bool (*as_expected)(void)) {
    bool ok = false;
    for (int i = 0; i < 8 && !ok; i++) ok = as_expected();
    assert_true(ok);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static ReadChoice choice;
static double read_ns[READ_WAYS]; /* the times of one row; two to four rows take these times in the opposite order of
                                   * ways */

static void read_for_a_while(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride,
                             int64_t tile_begin, int64_t tile_end) {
    (void)x, (void)y, (void)y_stride, (void)tile_begin, (void)tile_end;
    int way = choice.forced - 1;
    n_others_timed += n_rows != 1 || w->type != TYPE_Q8_0 || w->act != ACT_Q16;
    wait_ns(n_rows == 1 ? read_ns[way] : read_ns[READ_WAYS - 1 - way]);
}

static int chosen(int64_t n_rows) { return read_way(&choice, TYPE_Q8_0, ACT_Q16, n_rows); }

enum { LONG_S = 100 }; /* more than the measurement of all reads takes */

static void measure_reads(double cpu_s_max) {
    const Kernels k = {.matmul = read_for_a_while, .reads = &choice};
    choice = (ReadChoice){0};
    read_ways_measure(&k, cpu_s_max);
    assert_int_equal(choice.forced, 0);
}

static bool way_5_is_chosen(void) {
    for (int way = 0; way < READ_WAYS; way++) read_ns[way] = 8000 + 3000 * ((way + 4) % READ_WAYS);
    measure_reads(LONG_S); /* way 5 is the fastest one for one row */
    bool ok = chosen(1) == 5 && read_way(&choice, TYPE_IQ4_XS, ACT_Q16, 1) == 5;
    for (int64_t n = 2; n <= 64; n++) ok &= chosen(n) == READ_WAYS - 1 - 5;
    return ok && read_way(&choice, TYPE_Q8_0, ACT_Q8, 1) == 5 &&
           read_way(&choice, TYPE_Q8_0, ACT_Q8, 2) == READ_WAYS - 1 - 5;
}

static void the_fastest_way_of_reading_is_chosen(void **state) {
    (void)state;
    assert_measured(way_5_is_chosen);
}

static bool the_default_is_chosen(void) {
    for (int way = 0; way < READ_WAYS; way++) read_ns[way] = way == READ_ONE ? 50000 : 49500;
    measure_reads(LONG_S);
    return chosen(1) == READ_ONE;
}

static void a_way_that_is_hardly_faster_is_not_chosen(void **state) {
    (void)state;
    assert_measured(the_default_is_chosen);
}

/* After 20 ms of processor time the ways that have not been measured yet keep their defaults, so that a slow machine
 * opens a table in time: where one row of the first type takes longer than that, no other product is timed. */
static bool only_the_first_class_is_measured(void) {
    for (int way = 0; way < READ_WAYS; way++) read_ns[way] = way == 5 ? 1e6 : 2e6;
    n_others_timed = 0;
    measure_reads(READ_CPU_S_MAX);
    return chosen(1) == 5 && chosen(2) == READ_SEVERAL && read_way(&choice, TYPE_Q4_K, ACT_Q16, 1) == READ_ONE &&
           n_others_timed == 0;
}

static void the_measurement_is_short(void **state) {
    (void)state;
    assert_measured(only_the_first_class_is_measured);
}

static void nothing_measured_is_the_default(void **state) {
    (void)state;
    choice = (ReadChoice){0};
    assert_int_equal(chosen(1), READ_ONE);
    assert_int_equal(chosen(2), READ_SEVERAL);
    assert_int_equal(chosen(64), READ_SEVERAL);
}

/* A table that was selected once keeps its ways, whatever is measured later. */
static void a_table_is_measured_once(void **state) {
    (void)state;
    const Kernels *k = kernels_select(NULL);
    if (!k->reads) skip();
    ReadChoice before = *k->reads;
    assert_true(before.is_measured);
    assert_ptr_equal(kernels_select(NULL), k);
    assert_memory_equal(&before, k->reads, sizeof before);
}

/* ---- pairs of tiles ---------------------------------------------------------------------------------------------- */

static PairChoice pair_choice;
static double one_tile_ns, pair_ns;
static void multiply_in_pairs_or_not(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride,
                                     int64_t tile_begin, int64_t tile_end) {
    (void)x, (void)y, (void)y_stride, (void)tile_begin, (void)tile_end;
    wait_ns(takes_pairs(&pair_choice, w->type, w->act, n_rows) ? pair_ns : one_tile_ns);
}

/* Returns whether products of every type and form take pairs from PAIR_ROWS_MIN rows on, or never. */
static bool pairs_are(bool used) {
    static const TensorType types[] = {TYPE_Q8_0, TYPE_Q4_K, TYPE_Q6_K, TYPE_NVFP4};
    for (ActForm form = ACT_Q16; form <= ACT_Q8; form++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            for (int64_t n = 1; n <= 64; n++)
                if (takes_pairs(&pair_choice, types[i], form, n) != (used && n >= PAIR_ROWS_MIN)) return false;
    return true;
}

static bool pairs_are_after(double one_tile, double pair, bool used) {
    const Kernels k = {.matmul = multiply_in_pairs_or_not, .pairs = &pair_choice};
    pair_choice = (PairChoice){0};
    one_tile_ns = one_tile, pair_ns = pair;
    pairs_measure(&k);
    return pair_choice.forced == 0 && pairs_are(used);
}

static bool fast_pairs_are_used(void) { return pairs_are_after(60000, 40000, true); }
static bool slow_pairs_are_not_used(void) { return pairs_are_after(40000, 60000, false); }
static bool equal_pairs_are_not_used(void) { return pairs_are_after(60000, 59800, false); }

static void pairs_are_used_if_they_are_clearly_faster(void **state) {
    (void)state;
    pair_choice = (PairChoice){0};
    assert_true(pairs_are(true)); /* the default, where nothing was measured */
    assert_measured(fast_pairs_are_used);
    assert_measured(slow_pairs_are_not_used);
    assert_measured(equal_pairs_are_not_used);
}

/* ---- tile instructions ------------------------------------------------------------------------------------------- */

/* [way] ns for a product, and ns for each row */
static double whole_ns[N_TILE_WAYS], row_ns[N_TILE_WAYS];
static void multiply_for_a_while(TileWay way, const PackedMatrix *w, const void *x, int64_t n_rows, float *y,
                                 int64_t y_stride, int64_t tile_begin, int64_t tile_end) {
    (void)w, (void)x, (void)y, (void)y_stride, (void)tile_begin, (void)tile_end;
    wait_ns(whole_ns[way] + row_ns[way] * (double)n_rows);
}

static TileWays timed(double vectors_row_ns, double tiles_ns, double pairs_ns) {
    TileWays ways;
    const TileProducts tiles = {.matmul = multiply_for_a_while, .ways = &ways};
    const Kernels k = {.tiles = &tiles};
    row_ns[WAY_VECTORS] = vectors_row_ns;
    whole_ns[WAY_TILES] = tiles_ns;
    whole_ns[WAY_TILE_PAIRS] = pairs_ns;
    tile_ways_measure(&k);
    return ways;
}

/* Returns whether `way` is chosen exactly from `least` rows on. */
static bool begins_at(const TileWays *ways, TensorType type, ActForm form, TileWay way, int least) {
    for (int n = 1; n <= 80; n++)
        if ((tile_way(ways, type, form, n) == way) != (n >= least)) return false;
    return true;
}

static bool tiles_begin_at_6_rows(void) {
    TileWays ways = timed(4000, 22000, 26000);
    return begins_at(&ways, TYPE_Q8_0, ACT_Q16, WAY_TILES, 6) && begins_at(&ways, TYPE_Q4_K, ACT_Q8, WAY_TILES, 6) &&
           begins_at(&ways, TYPE_Q2_K, ACT_Q8, WAY_TILES, 6) && tile_rows_min(&ways, ACT_Q16) == 6;
}

static bool pairs_of_tiles_begin_at_9_rows(void) {
    TileWays ways = timed(4000, 42000, 34000);
    return begins_at(&ways, TYPE_IQ4_XS, ACT_Q16, WAY_TILE_PAIRS, 9) && tile_rows_min(&ways, ACT_Q8) == 9 &&
           tile_way(&ways, TYPE_F32, ACT_F32, 64) == WAY_VECTORS;
}

static bool vectors_are_always_faster(void) {
    n_timed = 0;
    TileWays ways = timed(100, 50000, 50000);
    return begins_at(&ways, TYPE_Q8_0, ACT_Q8, WAY_VECTORS, 1) && tile_rows_min(&ways, ACT_Q8) == TILE_WAY_ROWS + 1 &&
           n_timed <= 2000;
}

static void the_fastest_tiles_are_chosen_for_each_number_of_rows(void **state) {
    (void)state;
    assert_measured(tiles_begin_at_6_rows);
    assert_measured(pairs_of_tiles_begin_at_9_rows);
    assert_measured(vectors_are_always_faster);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_way_of_reading_is_chosen),
        cmocka_unit_test(a_way_that_is_hardly_faster_is_not_chosen),
        cmocka_unit_test(the_measurement_is_short),
        cmocka_unit_test(nothing_measured_is_the_default),
        cmocka_unit_test(a_table_is_measured_once),
        cmocka_unit_test(pairs_are_used_if_they_are_clearly_faster),
        cmocka_unit_test(the_fastest_tiles_are_chosen_for_each_number_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
