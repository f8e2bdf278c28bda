/* test_muon.c - the optimiser Muon: its step is that of the formulas in double, its directions are those of a singular
 * value decomposition, and vectors and embeddings are AdamW's. */
#include "train/optimizer.h"

#include "base/rng.h"
#include "testing.h"
#include "train/gemm.h"

#include <math.h>
#include <string.h>

enum { MAX = 48 * 20, N_PARAMS = 5 };

/* Three matrices (wide, tall, square), a vector and an embedding. */
static const int64_t rows[N_PARAMS] = {12, 0, 48, 0, 16}, sizes[N_PARAMS] = {12 * 40, 30, 48 * 20, 60, 16 * 16};
static float values[N_PARAMS][MAX], grads[N_PARAMS][MAX];
static Param params[N_PARAMS];
static int32_t n_params(const Trainer *t) { return (void)t, N_PARAMS; }
static Param *param(Trainer *t, int32_t i) { return (void)t, &params[i]; }
static const TrainerClass class = {.name = "toy", .n_params = n_params, .param = param};
static const AdamWOptions usual = {0.9, 0.95, 1e-8, 0.1};

static double normal(uint64_t i) {
    double u = rng_uniform(1, RNG_TEST, i, 0), v = rng_uniform(1, RNG_TEST, i, 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

typedef struct Optimizer {
    Trainer trainer;
    AdamW adamw;
    Muon muon;
} Optimizer;

static void begin(Optimizer *o, int n_threads) {
    for (int i = 0; i < N_PARAMS; i++) {
        params[i] = (Param){"toy", sizes[i], values[i], grads[i], i != 1, rows[i]};
        for (int64_t k = 0; k < sizes[i]; k++) values[i][k] = (float)normal((uint64_t)(i * MAX + k));
    }
    o->trainer.class = &class;
    assert_int_equal(adamw_open(&o->adamw, &usual, &o->trainer, NULL), FR_OK);
    o->adamw.leaves_matrices = true;
    assert_int_equal(muon_open(&o->muon, &o->trainer, n_threads, NULL), FR_OK);
}

static void end(Optimizer *o) {
    muon_close(&o->muon);
    adamw_close(&o->adamw);
}

static void new_gradients(int step) {
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t k = 0; k < sizes[i]; k++) grads[i][k] = (float)normal((uint64_t)(9000 * step + i * MAX + k));
}

/* x = a x + (b A + c A A) x with A = x x^T, five times; x: [m][n] of any shape, without a transposition */
static void orthogonalize(double *x, int64_t m, int64_t n) {
    static double gram[48 * 48], square[48 * 48], old[MAX];
    double sum = 0;
    for (int64_t i = 0; i < m * n; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < m * n; i++) x[i] /= sqrt(sum);
    for (int step = 0; step < 5; step++) {
        memcpy(old, x, (size_t)(m * n) * sizeof *x);
        for (int64_t i = 0; i < m * m; i++) {
            gram[i] = 0;
            for (int64_t k = 0; k < n; k++) gram[i] += old[i / m * n + k] * old[i % m * n + k];
        }
        for (int64_t i = 0; i < m * m; i++) {
            square[i] = 0;
            for (int64_t k = 0; k < m; k++) square[i] += gram[i / m * m + k] * gram[k * m + i % m];
        }
        for (int64_t i = 0; i < m * n; i++) {
            x[i] = 3.4445 * old[i];
            for (int64_t k = 0; k < m; k++)
                x[i] += (2.0315 * square[i / n * m + k] - 4.7750 * gram[i / n * m + k]) * old[k * n + i % n];
        }
    }
}

static void steps_are_those_of_the_formulas(void **state) {
    (void)state;
    Optimizer o;
    static double w[N_PARAMS][MAX], momentum[N_PARAMS][MAX], x[MAX];
    static float before[N_PARAMS][MAX];
    begin(&o, 2);
    memset(momentum, 0, sizeof momentum);
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t k = 0; k < sizes[i]; k++) w[i][k] = (double)values[i][k];
    for (int step = 0; step < 3; step++) {
        double rate = 0.01 * (step + 1), scale = 0.5;
        new_gradients(step);
        memcpy(before, values, sizeof values);
        muon_step(&o.muon, &o.adamw, &o.trainer, rate, scale);
        for (int i = 0; i < N_PARAMS; i++) {
            if (!rows[i]) {
                assert_memory_equal(values[i], before[i], sizeof before[i]);
                continue;
            }
            int64_t cols = sizes[i] / rows[i];
            for (int64_t k = 0; k < sizes[i]; k++) {
                double g = scale * (double)grads[i][k];
                momentum[i][k] = 0.95 * momentum[i][k] + g;
                x[k] = 0.95 * momentum[i][k] + g;
            }
            orthogonalize(x, rows[i], cols);
            double size = 0.2 * sqrt(fmax((double)rows[i], (double)cols));
            for (int64_t k = 0; k < sizes[i]; k++) {
                w[i][k] = (1 - rate * 0.1) * w[i][k] - rate * size * x[k];
                if (!(fabs((double)values[i][k] - w[i][k]) < 2e-5))
                    fail_msg("matrix %d, step %d, element %d: %g, not %g", i, step, (int)k, (double)values[i][k],
                             w[i][k]);
            }
        }
        memcpy(before, values, sizeof values);
        adamw_step(&o.adamw, &o.trainer, rate, scale);
        for (int i = 0; i < N_PARAMS; i++)
            assert_true((memcmp(values[i], before[i], sizeof before[i]) == 0) == (rows[i] > 0));
    }
    end(&o);
}

/* Orthonormal rows u: [n][dim], by Gram and Schmidt. */
static void orthonormal_rows(double *u, int n, int64_t dim, uint64_t seed) {
    for (int i = 0; i < n; i++) {
        double *row = u + i * dim, sum = 0;
        for (int64_t k = 0; k < dim; k++) row[k] = normal(seed + (uint64_t)(i * dim + k));
        for (int pass = 0; pass < 2; pass++)
            for (int j = 0; j < i; j++) {
                double dot = 0;
                for (int64_t k = 0; k < dim; k++) dot += row[k] * u[j * dim + k];
                for (int64_t k = 0; k < dim; k++) row[k] -= dot * u[j * dim + k];
            }
        for (int64_t k = 0; k < dim; k++) sum += row[k] * row[k];
        for (int64_t k = 0; k < dim; k++) row[k] /= sqrt(sum);
    }
}

/* The gradient U S V^T, whose singular values differ by a factor of 100, becomes U T V^T with all of T near 1. */
static void all_directions_are_equally_long(void **state) {
    (void)state;
    enum { N = 4 };
    static const double strength[N] = {1, 0.3, 0.05, 0.01};
    Optimizer o;
    begin(&o, 1);
    memset(grads, 0, sizeof grads);
    static double u[N * 48], v[N * 48];
    for (int i = 0; i < N_PARAMS; i++) {
        if (!rows[i]) continue;
        int64_t m = rows[i], n = sizes[i] / m;
        orthonormal_rows(u, N, m, 100000);
        orthonormal_rows(v, N, n, 200000);
        for (int64_t k = 0; k < m * n; k++)
            for (int j = 0; j < N; j++) grads[i][k] += (float)(strength[j] * u[j * m + k / n] * v[j * n + k % n]);
        memset(values[i], 0, sizeof values[i]);
    }
    muon_step(&o.muon, &o.adamw, &o.trainer, 1, 1);
    for (int i = 0; i < N_PARAMS; i++) {
        if (!rows[i]) continue;
        int64_t m = rows[i], n = sizes[i] / m;
        orthonormal_rows(u, N, m, 100000);
        orthonormal_rows(v, N, n, 200000);
        for (int a = 0; a < N; a++)
            for (int b = 0; b < N; b++) {
                double sum = 0;
                for (int64_t k = 0; k < m * n; k++) sum += u[a * m + k / n] * (double)values[i][k] * v[b * n + k % n];
                sum /= -0.2 * sqrt(fmax((double)m, (double)n));
                if (a == b ? !(sum > 0.6 && sum < 1.3) : !(fabs(sum) < 0.01))
                    fail_msg("matrix %d: direction %d along %d has length %g", i, a, b, sum);
            }
    }
    end(&o);
}

static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    static float first[N_PARAMS][MAX];
    for (int n_threads = 1; n_threads <= 7; n_threads += 2) {
        Optimizer o;
        begin(&o, n_threads);
        for (int step = 0; step < 2; step++) {
            new_gradients(step);
            muon_step(&o.muon, &o.adamw, &o.trainer, 0.01, 0.5);
        }
        if (n_threads == 1) memcpy(first, values, sizeof values);
        else assert_memory_equal(values, first, sizeof values);
        end(&o);
    }
}

/* Without a gradient, for example in a part of a drafter that is not used, a matrix decays and nothing is NaN. */
static void a_zero_gradient_gives_no_direction(void **state) {
    (void)state;
    Optimizer o;
    begin(&o, 1);
    memset(grads, 0, sizeof grads);
    float before = values[0][5];
    muon_step(&o.muon, &o.adamw, &o.trainer, 0.5, 1);
    assert_true(values[0][5] == (float)(1 - 0.5 * 0.1) * before);
    end(&o);
}

static int open_products(void **state) {
    (void)state;
    fr_error err;
    if (gemm_open(GEMM_F32, 7, &err)) fail_msg("%s", err.message);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_the_formulas),
        cmocka_unit_test(all_directions_are_equally_long),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(a_zero_gradient_gives_no_direction),
    };
    return cmocka_run_group_tests(tests, open_products, NULL);
}
