/* test_math_functions.c - unit tests of base/math_functions.h: compares each function with the C library's in long
 * double, which has at least 11 bits more, near every kind of argument. test_golden_bits compares their bits with
 * golden ones.
 *
 *     build/release/tests/test_math_functions all      every float as an argument: an hour of one processor
 */
#include "testing.h"

#include "base/math_functions.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

static double math_sin(double x) {
    double sine, cosine;
    math_sin_cos(x, &sine, &cosine);
    return sine;
}
static double math_cos(double x) {
    double sine, cosine;
    math_sin_cos(x, &sine, &cosine);
    return cosine;
}

static const struct {
    const char *name;
    double (*f)(double);
    long double (*reference)(long double);
    double max_ulp; /* math_functions.h */
} functions[] = {
    {"exp", math_exp, expl, 0.54}, {"log", math_log, logl, 0.51}, {"log1p", math_log1p, log1pl, 0.51},
    {"tanh", math_tanh, tanhl, 2}, {"sin", math_sin, sinl, 0.8},  {"cos", math_cos, cosl, 0.8},
};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

static double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns the error in units of the last place; infinity where a special value is missed. Subnormal results are rounded
 * twice. */
static double error_ulp(double got, long double want) {
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (isinf((double)want) || want == 0) return got == (double)want && !signbit(got) == !signbit(want) ? 0 : INFINITY;
    if (!isfinite(got)) return INFINITY;
    int e = ilogbl(want);
    double error = (double)(fabsl((long double)got - want) / ldexpl(1, (e < -1022 ? -1022 : e) - 52));
    return e < -1022 ? fmax(0, error - 0.25) : error;
}

/* Arguments of every kind: any bits, and numbers near 0, near 1, of everyday size, and near multiples of pi/2. */
static double argument(uint64_t i) {
    uint32_t w[4];
    rng_words(5, RNG_TEST, 0, (uint32_t)i, w);
    double u = (w[0] + w[1] * 0x1p-32) * 0x1p-32, sign = w[2] % 2 ? -1 : 1;
    switch (i % 8) {
    case 0: return double_of((uint64_t)w[0] << 32 | w[1]);
    case 1: return 1 + sign * ldexp(u, -(int)(w[3] % 54));
    case 2: return sign * ldexp(u, -(int)(w[3] % 60));
    case 3: return sign * 20 * u;
    case 4: return sign * 760 * u;
    case 5: return (w[0] % 100000) * (M_PI / 2) + sign * ldexp(u, -(int)(w[3] % 60));
    case 6: return sign * ldexp(u, (int)(w[3] % 40));
    default: return ldexp(u, -1022 - (int)(w[3] % 50));
    }
}

static void errors_are_within_their_bounds(void **state) {
    (void)state;
    for (int k = 0; k < N_FUNCTIONS; k++) {
        double worst = 0, at = 0;
        for (uint64_t i = 0; i < 200000; i++) {
            double x = argument(i), error = error_ulp(functions[k].f(x), functions[k].reference((long double)x));
            if (error > worst) worst = error, at = x;
        }
        print_message("%-5s at most %.4f ulp off, at %a\n", functions[k].name, worst, at);
        if (!(worst <= functions[k].max_ulp)) fail_msg("%s(%a): %g ulp off", functions[k].name, at, worst);
    }
}

static void powers_are_within_their_bounds(void **state) {
    (void)state;
    double worst = 0, at[2] = {0};
    for (uint64_t i = 0; i < 300000; i++) {
        double x = argument(2 * i), y = argument(2 * i + 1);
        if (i % 3) x = fabs(x), y = 700 * y / (fabs(y) + 1) / fabs(log(x)); /* a result that is a normal number */
        double error = error_ulp(math_pow(x, y), powl((long double)x, (long double)y));
        if (error > worst) worst = error, at[0] = x, at[1] = y;
    }
    print_message("pow   at most %.4f ulp off, at %a, %a\n", worst, at[0], at[1]);
    if (!(worst <= 0.6)) fail_msg("pow(%a, %a): %g ulp off", at[0], at[1], worst);
    for (int base = -20; base <= 20; base++) {
        double exact = 1;
        for (int n = 0; fabs(exact) < 0x1p53 && n < 50; n++, exact *= base) assert_true(math_pow(base, n) == exact);
    }
    assert_true(math_pow(2, -1074) == 0x1p-1074 && math_pow(0.5, -1023) == 0x1p1023 && math_pow(6.25, 0.5) == 2.5);
}

static bool same(double a, double b) { return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0; }

/* Zeros, infinities, NaN, and what is next to them: as C11, annex F, has it. */
static void special_values_are_those_of_c11(void **state) {
    (void)state;
    const double inf = INFINITY, tiny = 0x1p-1074, huge = DBL_MAX;
    const double values[] = {0,  -0.0, tiny, -tiny,      0.5,  -0.5,  1,   -1,   2,
                             -2, 3,    -3,   0x1p53 + 2, huge, -huge, inf, -inf, NAN};
    enum { N = sizeof values / sizeof *values };
    assert_true(same(math_exp(inf), inf) && same(math_exp(-inf), 0) && same(math_exp(-0.0), 1) && isnan(math_exp(NAN)));
    assert_true(same(math_exp(709.8), inf) && isfinite(math_exp(709.78)) && math_exp(-745.13) > 0 &&
                same(math_exp(-745.14), 0));
    assert_true(same(math_log(0), -inf) && same(math_log(-0.0), -inf) && same(math_log(inf), inf) &&
                same(math_log(1), 0));
    assert_true(isnan(math_log(-1)) && isnan(math_log(-inf)) && isnan(math_log(NAN)));
    assert_true(same(math_log1p(-1), -inf) && same(math_log1p(-0.0), -0.0) && same(math_log1p(inf), inf));
    assert_true(isnan(math_log1p(-1.5)) && isnan(math_log1p(-inf)) && isnan(math_log1p(NAN)) &&
                same(math_log1p(tiny), tiny));
    assert_true(same(math_tanh(inf), 1) && same(math_tanh(-inf), -1) && same(math_tanh(-0.0), -0.0) &&
                isnan(math_tanh(NAN)));
    assert_true(same(math_sin(-0.0), -0.0) && same(math_cos(-0.0), 1) && isnan(math_sin(inf)) && isnan(math_cos(-inf)));
    assert_true(isnan(math_sin(NAN)) && same(math_sin(tiny), tiny));
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double got = math_pow(values[i], values[j]), want = pow(values[i], values[j]);
            bool is_special = !isfinite(want) || want == 0 || fabs(want) == 1;
            if (is_special ? !same(got, want) : !(fabs(got - want) <= 1e-15 * fabs(want)))
                fail_msg("pow(%g, %g) = %g instead of %g", values[i], values[j], got, want);
        }
}

/* Rounded to a float, the functions are those of the floats' exact values, rounded once. */
static void compare_floats(uint32_t step) {
    for (int k = 0; k < N_FUNCTIONS; k++) {
        uint64_t n_off = 0, n = 0;
        for (uint64_t i = 0; i <= UINT32_MAX; i += step, n++) {
            uint32_t bits = (uint32_t)i;
            float x;
            memcpy(&x, &bits, sizeof x);
            float got = (float)functions[k].f((double)x), want = (float)functions[k].reference((long double)x);
            n_off += !(got == want || (isnan(got) && isnan(want)));
        }
        print_message("%-5s of %llu floats: %llu results are not the nearest float\n", functions[k].name,
                      (unsigned long long)n, (unsigned long long)n_off);
        assert_true(n_off == 0);
    }
}

static void floats_are_rounded_correctly(void **state) {
    (void)state;
    compare_floats(20011);
}

static void every_float_is_rounded_correctly(void **state) {
    (void)state;
    compare_floats(1);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_within_their_bounds),
        cmocka_unit_test(powers_are_within_their_bounds),
        cmocka_unit_test(special_values_are_those_of_c11),
        cmocka_unit_test(floats_are_rounded_correctly),
    };
    const struct CMUnitTest all[] = {cmocka_unit_test(every_float_is_rounded_correctly)};
    return argc > 1 && strcmp(argv[1], "all") == 0 ? cmocka_run_group_tests(all, NULL, NULL)
                                                   : cmocka_run_group_tests(tests, NULL, NULL);
}
