/* test_speed.c - what measurements are called, and that no row of a table contradicts itself: made from given
 * measurements, so that nothing here depends on time. */
#include "testing.h"

#include "cli/bench/bench.h"
#include "cli/speed.h"
#include "cli/stats_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void speed_ups_get_the_verdict_that_the_runs_show(void **state) {
    (void)state;
    static const struct {
        double value, sd, accept;
        SpeedVerdict want;
    } cases[] = {
        {2.10, 0.05, 2.86, SPEED_FASTER},    {0.81, 0.05, 2.50, SPEED_SLOWER},
        {1.04, 0.05, 2.50, SPEED_EVEN},      {0.96, 0.05, 2.50, SPEED_EVEN},
        {1.009, 0, 2.50, SPEED_EVEN},        {1.02, 0, 2.50, SPEED_FASTER}, /* equal runs: 1 % at least */
        {2.10, NAN, 2.86, SPEED_ONE_RUN},    {0.10, NAN, 2.86, SPEED_ONE_RUN},
        {17.22, NAN, 2.86, SPEED_DISTURBED}, {2.87, 0.05, 2.86, SPEED_DISTURBED},
        {2.86, 0.05, 2.86, SPEED_FASTER},    /* no more than the acceptance length */
        {3.00, 2.50, 2.86, SPEED_DISTURBED}, /* a great spread does not excuse it */
        {1.03, 0.04, 1.00, SPEED_EVEN},      /* nothing is accepted: noise of the measurement */
        {1.03, 0.02, 1.00, SPEED_DISTURBED}, {1.10, 0.50, 1.00, SPEED_DISTURBED},
        {1.005, NAN, 1.00, SPEED_ONE_RUN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SpeedUp got = speed_up(cases[i].value, cases[i].sd, cases[i].accept);
        if (got.verdict != cases[i].want)
            fail_msg("%.3f ± %.2f at %.2f is '%s', not '%s'", cases[i].value, cases[i].sd, cases[i].accept,
                     speed_verdict_name(got.verdict), speed_verdict_name(cases[i].want));
    }
}

static void the_median_run_is_one_of_the_runs(void **state) {
    (void)state;
    assert_int_equal(speed_median_run((double[]){7}, 1), 0);
    assert_int_equal(speed_median_run((double[]){9, 1, 5}, 3), 2);
    assert_int_equal(speed_median_run((double[]){9, 1}, 2), 1); /* the slower one */
    assert_int_equal(speed_median_run((double[]){4, 4, 4, 4}, 4), 1);
    assert_true(isnan(speed_deviation((double[]){7}, 1)));
    assert_true(fabs(speed_deviation((double[]){1, 2, 3}, 3) - 1) < 1e-12);
}

/* Writes what `print` writes on standard output. */
static void printed_by(void (*print)(const void *), const void *user, char *out, size_t size) {
    FILE *file = tmpfile();
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(file && saved >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    print(user);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    fclose(file);
}

static void print_one(const void *user) { speed_up_print(user); }

static void a_single_run_is_printed_without_an_adjective(void **state) {
    (void)state;
    char text[200];
    SpeedUp s = speed_up(1.5, NAN, 2.86);
    printed_by(print_one, &s, text, sizeof text);
    assert_string_equal(text, "  1.50x       one run  ");
    s = speed_up(1.5, 0.031, 2.86);
    printed_by(print_one, &s, text, sizeof text);
    assert_string_equal(text, "  1.50x ±0.03 faster   ");
    s = speed_up(17.22, NAN, 2.86);
    printed_by(print_one, &s, text, sizeof text);
    assert_string_equal(text, " 17.22x       disturbed");
    s = speed_up(129.03, 20.11, 2.86); /* on a machine that did something else */
    printed_by(print_one, &s, text, sizeof text);
    assert_string_equal(text, " 129.0x ±20.1 disturbed");
}

/* Two runs of one question: plain decoding and a drafter, with 100 tokens each. */
static void bench_sums_up_given_measurements(void **state) {
    (void)state;
    static const double seconds[2][2] = {{1.0, 0.5}, {3.0, 0.5}}; /* [run][method] */
    static const int64_t steps[2] = {100, 40};
    BenchRecord records[4] = {0};
    for (int run = 0; run < 2; run++)
        for (int m = 0; m < 2; m++) {
            BenchRecord *x = &records[run * 2 + m];
            x->n_turns = 1;
            x->stats.counts.n_generated = 100;
            x->stats.counts.n_steps = steps[m];
            x->stats.counts.decode_s = seconds[run][m];
        }
    BenchQuestion question = {.i_category = 0};
    const BenchQuestions questions = {.items = &question, .n = 1, .n_categories = 1};
    BenchResults r = {.questions = &questions,
                      .n_methods = 2,
                      .n_questions = 1,
                      .n_runs = 1,
                      .n_parallel = 1,
                      .records = records,
                      .reference = records};
    BenchRow row;
    bench_row(&r, -1, 1, &row); /* the first run only: twice as fast */
    assert_true(row.verdict == SPEED_ONE_RUN && row.speed_up.mean == 2 && isnan(row.speed_up.sd));
    r.n_runs = 2; /* plain decoding was three times slower in the second run: 2 and 6 times, at 2.5 tokens per step */
    bench_row(&r, -1, 1, &row);
    assert_true(row.verdict == SPEED_DISTURBED && row.speed_up.mean == 4);
    bench_row(&r, -1, 0, &row);
    assert_true(row.verdict == SPEED_BASELINE && row.speed_up.mean == 1);
}

static void loops_are_recognised(void **state) {
    (void)state;
    int32_t tokens[200];
    for (int period = 1; period <= 20; period++)
        for (int n_before = 0; n_before <= 80; n_before += 40) { /* tokens that occur only once each */
            for (int i = 0; i < 200; i++) tokens[i] = i < n_before ? 1000 + i : i % period;
            if (stats_repeats(tokens, 200)) continue;
            fail_msg("no loop: a period of %d after %d tokens", period, n_before);
        }
    for (int i = 0; i < 200; i++) tokens[i] = i % 100;
    assert_false(stats_repeats(tokens, 150));                /* a third is repeated once, as a quotation is */
    for (int i = 0; i < 200; i++) tokens[i] = i % 2 ? 7 : i; /* a list: every other token is the same */
    assert_false(stats_repeats(tokens, 200));
    for (int i = 0; i < 200; i++) tokens[i] = 7;
    assert_false(stats_repeats(tokens, 23));
    assert_true(stats_repeats(tokens, 24));
}

static void times_fit_into_a_column_of_six(void **state) {
    (void)state;
    static const struct {
        double ms;
        const char *text;
    } cases[] = {{0, "0.000"},        {1.23456, "1.235"},   {99.9994, "99.999"},
                 {99.9996, "100.00"}, {410.1364, "410.14"}, {999.994, "999.99"},
                 {999.996, "1000.0"}, {9999.96, "10000"},   {99999, "99999"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.*f", speed_ms_digits(cases[i].ms), cases[i].ms);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speed_ups_get_the_verdict_that_the_runs_show),
        cmocka_unit_test(the_median_run_is_one_of_the_runs),
        cmocka_unit_test(a_single_run_is_printed_without_an_adjective),
        cmocka_unit_test(bench_sums_up_given_measurements),
        cmocka_unit_test(loops_are_recognised),
        cmocka_unit_test(times_fit_into_a_column_of_six),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
