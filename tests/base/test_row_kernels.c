/* test_row_kernels.c - unit tests of base/row_kernels.h: compares each pass in plain C with a plain loop, over lengths
 * that leave remainders, temperatures from tiny to huge, and rows with NaN and infinities; and every other table with
 * plain C, bit by bit. */
#include "testing.h"

#include "all_tables.h"
#include "verify/gumbel.h"

#include <math.h>
#include <string.h>

enum { MAX_N = 700 };

static const RowKernels *const plain = &row_kernels_plain;

/* Row `i` has nearly normal numbers, some of them NaN, -inf or equal to others. */
static int32_t make_row(uint64_t i, float *row) {
    int32_t n = 1 + (int32_t)(rng_uniform(1, RNG_TEST, i, 9999) * MAX_N);
    for (int32_t k = 0; k < n; k++) {
        double u = rng_uniform(1, RNG_TEST, i, (uint32_t)k);
        row[k] = u < 0.02   ? NAN
                 : u < 0.04 ? -INFINITY
                 : u < 0.1  ? 3.5f
                            : (float)(4 * gumbel_noise(2, RNG_TEST, i, (int32_t)k));
    }
    return n;
}

static int32_t slow_argmax(const float *row, int32_t n) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (row[i] > -INFINITY && (best < 0 || row[i] > row[best])) best = i;
    return best;
}

static double slow_mass(const float *row, int32_t n, float max, double temperature) {
    double mass = 0;
    for (int32_t i = 0; i < n; i++)
        if (row[i] > -INFINITY) mass += exp(((double)row[i] - (double)max) / temperature);
    return mass;
}

static void passes_equal_plain_loops(void **state) {
    (void)state;
    const float temperatures[] = {1e-38f, 1e-3f, 0.3f, 0.8f, 1, 3, 1e6f};
    for (uint64_t i = 0; i < 3000; i++) {
        float row[MAX_N];
        int32_t ids[MAX_N], n = make_row(i, row), best = slow_argmax(row, n);
        assert_int_equal(plain->argmax(row, n), best);
        if (best < 0) continue;
        float temperature = temperatures[i % 7], floor = i % 5 ? row[i % (uint64_t)n] : -INFINITY;
        double want = slow_mass(row, n, row[best], (double)temperature);
        double got = plain->mass(row, n, row[best], temperature);
        if (!(fabs(got - want) <= 1e-6 * want)) fail_msg("row %d: mass %.9g instead of %.9g", (int)i, got, want);
        want = slow_mass(row, n, row[best], 1), got = plain->exp_sum(row, n, row[best]);
        if (!(fabs(got - want) <= 1e-14 * want)) fail_msg("row %d: sum %.17g instead of %.17g", (int)i, got, want);
        int32_t n_above = plain->above(row, n, floor, ids), k = 0;
        for (int32_t t = 0; t < n; t++)
            if (row[t] >= floor && row[t] > -INFINITY) assert_int_equal(ids[k++], t);
        assert_int_equal(n_above, k);
        uint32_t blocks[MAX_N / 4];
        int32_t begin = n / 8 * 4, end = n / 4 * 4, n_blocks = plain->blocks_above(row, begin, end, floor, blocks);
        k = 0;
        for (int32_t t = begin; t < end; t += 4)
            if (plain->above(row + t, 4, floor, ids) > 0) assert_int_equal(blocks[k++], t / 4);
        assert_int_equal(n_blocks, k);
    }
}

/* Tests one lane at a time, over the whole range of the exponential. */
static void an_exponential_is_exact_to_its_type(void **state) {
    (void)state;
    double worst = 0, worst_double = 0;
    for (int32_t i = 0; i < 87 * 4096; i++) {
        float x = -(float)i / 4096;
        double off = fabs(plain->mass(&x, 1, 0, 1) / exp((double)x) - 1);
        if (off > worst) worst = off;
        if (x < -64) assert_true(plain->exp_sum(&x, 1, 0) == 0);
        else if ((off = fabs(plain->exp_sum(&x, 1, 0) / exp((double)x) - 1)) > worst_double) worst_double = off;
    }
    assert_true(worst < 5e-7);
    assert_true(worst_double < 4e-16);
}

static void rows_without_a_number_have_no_maximum(void **state) {
    (void)state;
    const float row[] = {NAN, -INFINITY, NAN, -INFINITY, NAN};
    int32_t ids[5];
    assert_int_equal(plain->argmax(row, 5), -1);
    assert_int_equal(plain->above(row, 5, -INFINITY, ids), 0);
    const float far[] = {-3e38f, 3e38f, -INFINITY};
    assert_true(plain->mass(far, 3, 3e38f, 1) == 1);
    assert_true(plain->exp_sum(far, 3, 3e38f) == 1);
}

/* A contender is a token whose word is so small that the logarithm of its bits does not exceed the limit. */
static void contenders_are_those_that_the_header_describes(void **state) {
    (void)state;
    const float row[] = {0, 0, 0, 0, -1, NAN, -INFINITY, 5};
    const uint32_t blocks[] = {0, 1}, words[] = {0, 1u << 20, 1u << 31, UINT32_MAX, 0, 0, 0, UINT32_MAX};
    int32_t at[8];
    /* log2(w / 2) <= 30 + (x - 0): in units of 2^-23, with the bias of the exponent */
    const Contest c = {.max = 0, .scale = 0x1p23f, .offset = (30 + 127) * 0x1p23f};
    int32_t n = plain->contenders(&c, row, blocks, words, 2, at);
    const int32_t want[] = {0, 1, 2, 4, 7};
    assert_int_equal(n, 5);
    assert_memory_equal(at, want, sizeof want);
}

/* ---- the other tables -------------------------------------------------------------------------------------- */

static void check_scans(const RowKernels *k, const float *row, int32_t n, float floor, const char *name) {
    bool finite = true;
    for (int32_t i = 0; i < n; i++) finite = finite && isfinite(row[i]);
    if (plain->is_finite(row, n) != finite || k->is_finite(row, n) != finite) fail_msg("%s: is_finite of %d", name, n);
    for (int32_t i = 0; i < n; i++)
        if (isfinite(row[i]) != k->is_finite(row + i, 1)) fail_msg("%s: is_finite of one", name);
    int32_t want[MAX_N], got[MAX_N], n_want, n_got;
    if (k->argmax(row, n) != plain->argmax(row, n)) fail_msg("%s: argmax of %d", name, n);
    n_want = plain->above(row, n, floor, want), n_got = k->above(row, n, floor, got);
    if (n_want != n_got || memcmp(want, got, (size_t)n_want * sizeof *want) != 0) fail_msg("%s: above of %d", name, n);
    int32_t begin = n / 8 * 4, end = n / 4 * 4;
    uint32_t *blocks = (uint32_t *)want, *got_blocks = (uint32_t *)got;
    n_want = plain->blocks_above(row, begin, end, floor, blocks);
    n_got = k->blocks_above(row, begin, end, floor, got_blocks);
    if (n_want != n_got || memcmp(blocks, got_blocks, (size_t)n_want * sizeof *blocks) != 0)
        fail_msg("%s: blocks above of %d", name, n);
}

static void check_sums(const RowKernels *k, const float *row, int32_t n, float max, float temperature,
                       const char *name) {
    double want[2] = {plain->mass(row, n, max, temperature), plain->exp_sum(row, n, max)};
    double got[2] = {k->mass(row, n, max, temperature), k->exp_sum(row, n, max)};
    if (memcmp(want, got, sizeof want) != 0)
        fail_msg("%s: sums of %d: %.17g and %.17g instead of %.17g and %.17g", name, n, got[0], got[1], want[0],
                 want[1]);
}

static void check_draws(const RowKernels *k, const float *row, int32_t n, float max, uint64_t i, const char *name) {
    uint32_t blocks[MAX_N / 4], want[MAX_N], got[MAX_N + 1];
    int32_t at[MAX_N], got_at[MAX_N], n_blocks = plain->blocks_above(row, 0, n / 4 * 4, max - 8, blocks);
    uint64_t seed = i * 0x9e3779b97f4a7c15u, a = i % 3 ? i : UINT64_MAX - i;
    for (int32_t b = 0; b < n_blocks; b++) rng_words(seed, RNG_TARGET, a, blocks[b], want + 4 * b);
    got[4 * n_blocks] = 77;
    k->words(seed, RNG_TARGET, a, blocks, n_blocks, got);
    if (got[4 * n_blocks] != 77 || memcmp(want, got, (size_t)n_blocks * 4 * sizeof *want) != 0)
        fail_msg("%s: words of %d blocks", name, n_blocks);
    for (int c = 0; c < 4; c++) {
        const Contest contest = {max, c == 3 ? 0 : 0x1.7p23f / (float)(1 + c),
                                 c == 3 ? INFINITY : (float)(158 - 2 * c) * 0x1p23f};
        int32_t n_want = plain->contenders(&contest, row, blocks, want, n_blocks, at);
        int32_t n_got = k->contenders(&contest, row, blocks, want, n_blocks, got_at);
        if (n_want != n_got || memcmp(at, got_at, (size_t)n_want * sizeof *at) != 0)
            fail_msg("%s: contenders of %d blocks", name, n_blocks);
    }
}

static void all_tables_give_the_same_bits(void **state) {
    (void)state;
    const float temperatures[] = {1, 1e-38f, 1e-3f, 0.8f, 3, 1e6f};
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    for (int t = 0; t < n_tables; t++)
        for (uint64_t i = 0; i < 2000; i++) {
            float all[MAX_N + 3], *row = all + i % 4; /* also at addresses where no vector is aligned */
            int32_t n = make_row(i, row);
            if (i % 11 == 0) row[n / 2] = -3e38f, row[n / 3] = 3e38f;
            for (int32_t c = 0; c < n && i % 3 == 0; c++) /* all finite, except perhaps a few */
                if (!isfinite(row[c])) row[c] = c % 100 == 99 ? row[c] : 0;
            const RowKernels *k = tables[t]->rows;
            check_scans(k, row, n, i % 5 ? row[i % (uint64_t)n] : -INFINITY, tables[t]->name);
            int32_t best = plain->argmax(row, n);
            if (best < 0) continue;
            check_sums(k, row, n, row[best], temperatures[i % 6], tables[t]->name);
            check_draws(k, row, n, row[best], i, tables[t]->name);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_equal_plain_loops),
        cmocka_unit_test(an_exponential_is_exact_to_its_type),
        cmocka_unit_test(rows_without_a_number_have_no_maximum),
        cmocka_unit_test(contenders_are_those_that_the_header_describes),
        cmocka_unit_test(all_tables_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
