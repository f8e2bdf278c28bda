/* test_rope.c - compares the frequencies of every rope scaling with a direct evaluation of the published formulas. */
#include "testing.h"

#include "model/rope.h"

#include <math.h>
#include <stdlib.h>

static void expect_close(const char *what, int i, double ours, double theirs) {
    if (!(fabs(ours - theirs) <= 1e-12 * fabs(theirs)))
        fail_msg("%s, pair %d: %.17g, should be %.17g", what, i, ours, theirs);
}

static Rope open_rope(const RopeParams *p, const float *factors) {
    Rope rope;
    fr_error err = {0};
    if (rope_init(&rope, p, factors, &err)) fail_msg("%s", err.message);
    return rope;
}

static RopeParams plain(int32_t n_rot, double base) { return (RopeParams){.n_rot = n_rot, .base = base, .factor = 1}; }

static void plain_and_linear_frequencies(void **state) {
    (void)state;
    static const struct {
        int32_t n_rot;
        double base, factor;
    } cases[] = {{2, 10000, 1}, {64, 10000, 1}, {128, 1e6, 1}, {128, 10000, 4}, {6, 500000, 2.5}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        RopeParams p = plain(cases[c].n_rot, cases[c].base);
        if (cases[c].factor > 1) p.scaling = ROPE_SCALING_LINEAR, p.factor = cases[c].factor;
        Rope rope = open_rope(&p, NULL);
        for (int i = 0; i < p.n_rot / 2; i++)
            expect_close("linear", i, rope.freqs[i], 1 / pow(p.base, 2.0 * i / p.n_rot) / p.factor);
        expect_close("magnitude", 0, rope.magnitude, 1);
        rope_free(&rope);
    }
}

/* Llama 3.1: wavelengths below old/high are kept, above old/low divided by the factor, blended between.
 * Files hold factor_i = theta_i / theta'_i. */
static void llama_3_factors(void **state) {
    (void)state;
    enum { N_ROT = 128 };
    const double base = 500000, factor = 8, low = 1, high = 4, old = 8192;
    float factors[N_ROT / 2];
    double wanted[N_ROT / 2];
    int n_kept = 0, n_divided = 0;
    for (int i = 0; i < N_ROT / 2; i++) {
        double theta = pow(base, -2.0 * i / N_ROT), length = 2 * M_PI / theta;
        double smooth = (old / length - low) / (high - low);
        bool fast = length<old / high, slow = length> old / low;
        wanted[i] = fast ? theta : slow ? theta / factor : (1 - smooth) * theta / factor + smooth * theta;
        factors[i] = (float)(theta / wanted[i]);
        n_kept += fast, n_divided += slow;
    }
    assert_true(n_kept > 0 && n_divided > 0 && n_kept + n_divided < N_ROT / 2);
    RopeParams p = plain(N_ROT, base);
    Rope rope = open_rope(&p, factors);
    for (int i = 0; i < N_ROT / 2; i++) /* the file's factors are single precision */
        if (fabs(rope.freqs[i] / wanted[i] - 1) > 1e-7)
            fail_msg("pair %d: %.9g, should be %.9g", i, rope.freqs[i], wanted[i]);
    rope_free(&rope);
}

/* arXiv 2309.00071, eq. 17-23, with the ramp over the pair index, as in the published code. */
static void yarn_frequencies(void **state) {
    (void)state;
    static const struct {
        int32_t n_rot;
        double base, factor;
        int32_t old;
        double ext, fast, slow;
    } cases[] = {
        {128, 1e6, 4, 32768, 1, 32, 1},   {128, 10000, 16, 4096, 1, 32, 1}, {64, 10000, 8, 2048, 1, 16, 2},
        {64, 10000, 8, 2048, 0.5, 32, 1}, {64, 10000, 8, 2048, 0, 32, 1},   {8, 10000, 2, 64, 1, 32, 1},
        {64, 10000, 8, 2048, 1, 1, 32}, /* the ramp runs the other way */
        {64, 10000, 0.5, 2048, 1, 32, 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double d = cases[c].n_rot, b = cases[c].base, s = cases[c].factor, turn = cases[c].old / (2 * M_PI);
        double first = fmax(0, floor(d / 2 * log(turn / cases[c].fast) / log(b)));
        double last = fmin(d - 1, ceil(d / 2 * log(turn / cases[c].slow) / log(b)));
        RopeParams p = {.n_rot = cases[c].n_rot,
                        .base = b,
                        .scaling = ROPE_SCALING_YARN,
                        .factor = s,
                        .n_ctx_orig = cases[c].old,
                        .ext_factor = cases[c].ext,
                        .beta_fast = cases[c].fast,
                        .beta_slow = cases[c].slow};
        Rope rope = open_rope(&p, NULL);
        for (int i = 0; i < p.n_rot / 2; i++) {
            double theta = pow(b, -2.0 * i / d), ramp = (i - first) / (last - first);
            double keep = (1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp)) * cases[c].ext;
            double wanted = keep * theta + (1 - keep) * theta / s;
            if (fabs(rope.freqs[i] / wanted - 1) > 1e-9)
                fail_msg("case %zu, pair %d: %.12g, should be %.12g", c, i, rope.freqs[i], wanted);
        }
        expect_close("magnitude", (int)c, rope.magnitude, 1);
        rope_free(&rope);
    }
    expect_close("extended", 0, rope_yarn_magnitude(8, 0.7), 1 + 0.07 * log(8));
    expect_close("not extended", 0, rope_yarn_magnitude(0.5, 1), 1);
}

/* Numbers computed by hand: a model of 128 rotated components at base 10^6 and 32768 tokens, extended four times, keeps
 * pairs up to 23, divides pairs from 40 on, and scales by 0.1 ln 4 + 1. */
static void yarn_of_a_known_model(void **state) {
    (void)state;
    RopeParams p = {.n_rot = 128,
                    .base = 1e6,
                    .scaling = ROPE_SCALING_YARN,
                    .factor = 4,
                    .n_ctx_orig = 32768,
                    .ext_factor = 1,
                    .magnitude = rope_yarn_magnitude(4, 1),
                    .beta_fast = 32,
                    .beta_slow = 1};
    Rope rope = open_rope(&p, NULL);
    expect_close("kept", 23, rope.freqs[23], pow(1e6, -23.0 / 64));
    expect_close("divided", 40, rope.freqs[40], pow(1e6, -40.0 / 64) / 4);
    assert_true(rope.freqs[24] < pow(1e6, -24.0 / 64) * 0.99);
    assert_true(rope.freqs[39] > pow(1e6, -39.0 / 64) / 4 * 1.01);
    if (fabs(rope.magnitude - 1.1386294361) > 1e-9) fail_msg("magnitude %.12g", rope.magnitude);
    rope_free(&rope);
}

static void angles_are_rounded_once(void **state) {
    (void)state;
    RopeParams p = plain(64, 10000);
    Rope rope = open_rope(&p, NULL);
    rope.magnitude = 1.25;
    static const int32_t positions[] = {0, 1, 7, 4095, 131071, 1 << 27};
    float cs[64];
    for (size_t k = 0; k < sizeof positions / sizeof *positions; k++) {
        rope_angles(&rope, positions[k], cs);
        for (int i = 0; i < 32; i++) {
            float c = (float)(1.25 * cos(positions[k] * rope.freqs[i]));
            float s = (float)(1.25 * sin(positions[k] * rope.freqs[i]));
            if (cs[2 * i] != c || cs[2 * i + 1] != s)
                fail_msg("position %d, pair %d: cos %.9g sin %.9g, should be %.9g and %.9g", positions[k], i,
                         (double)cs[2 * i], (double)cs[2 * i + 1], (double)c, (double)s);
        }
    }
    rope_free(&rope);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_and_linear_frequencies),
        cmocka_unit_test(llama_3_factors),
        cmocka_unit_test(yarn_frequencies),
        cmocka_unit_test(yarn_of_a_known_model),
        cmocka_unit_test(angles_are_rounded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
