/* test_train_ops.c - the operations of train/ops.h in double: compares every derivative of every operation with finite
 * differences, on odd shapes. The check has its own negative control: each derivative is also tried with its sign
 * flipped, which must be detected. */
#define TRAIN_DOUBLE
#include "train/attention_ops.c"
#include "train/ops.c"

#include "base/rng.h"
#include "gradient_check.h"
#include "testing.h"
#include "train/optimizer.h"

#include <math.h>
#include <stdio.h>

enum { N_MAX = 4096, TRIED = 40 };

/* The data of all operations: inputs a, b, c with their derivatives, an output y, and the weights g of the loss sum_i
 * g_i y_i, which are also the derivative of that loss by y. */
static struct {
    int64_t rows, n, n_out, n_kv; /* n_kv: key-value heads */
    int kind;
    double a[N_MAX], b[N_MAX], c[N_MAX], da[N_MAX], db[N_MAX], dc[N_MAX];
    double y[N_MAX], g[N_MAX], kept[4 * N_MAX], scratch[4 * N_MAX];
    int32_t tokens[64];
} r;

static double normal(uint64_t i) {
    double u = rng_uniform(5, RNG_TEST, i, 0), v = rng_uniform(5, RNG_TEST, i, 1);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static void fill(int64_t rows, int64_t n, int64_t n_out, int64_t n_kv, int kind) {
    memset(&r, 0, sizeof r);
    r.rows = rows, r.n = n, r.n_out = n_out, r.n_kv = n_kv, r.kind = kind;
    for (uint64_t i = 0; i < N_MAX; i++) {
        r.a[i] = normal(4 * i), r.b[i] = normal(4 * i + 1), r.c[i] = normal(4 * i + 2), r.g[i] = normal(4 * i + 3);
    }
    for (int32_t i = 0; i < 64; i++) r.tokens[i] = (i * 7 + i / 3) % (int32_t)n;
}

static double weighted(int64_t n) { return real_dot(r.y, r.g, n); }

/* One operation: its loss, its backward function, and the sizes of a, b, c that have derivatives (0: no such input). */
typedef struct Op {
    const char *name;
    double (*loss)(void *);
    void (*backward)(void);
    int64_t n_a, n_b, n_c;
} Op;

static void rope_back(void);

/* Backward functions accumulate: two calls give twice the gradient (except rope, which works in place). */
static void check_accumulation(const Op *op, const GradientVar *vars) {
    double once[3];
    for (int i = 0; i < 3; i++) once[i] = real_dot(vars[i].dx, vars[i].x, vars[i].n);
    op->loss(NULL); /* finite differences have stored numbers of other inputs */
    op->backward();
    for (int i = 0; i < 3; i++) {
        double twice = real_dot(vars[i].dx, vars[i].x, vars[i].n);
        if (fabs(twice - 2 * once[i]) > 1e-9 * (1 + fabs(once[i])))
            fail_msg("%s, input %s: the backward function does not accumulate", op->name, vars[i].name);
    }
}

static void check_op(const Op *op) {
    static double flipped[N_MAX];
    op->loss(NULL); /* the forward pass stores the numbers that the backward pass needs */
    op->backward();
    GradientVar vars[] = {{"a", r.a, r.da, op->n_a}, {"b", r.b, r.db, op->n_b}, {"c", r.c, r.dc, op->n_c}};
    GradientVar unflipped[] = {vars[0], vars[1], vars[2]};
    for (int i = 0; i < 3; i++) {
        if (vars[i].n == 0) continue;
        assert_true(vars[i].n <= N_MAX);
        double error = gradient_error(&vars[i], op->loss, NULL, TRIED);
        if (!(error < 1e-7)) fail_msg("%s, input %s: wrong by %g", op->name, vars[i].name, error);
        for (int64_t k = 0; k < vars[i].n; k++) flipped[k] = -vars[i].dx[k];
        vars[i].dx = flipped;
        error = gradient_error(&vars[i], op->loss, NULL, TRIED);
        if (!(error > 1)) fail_msg("%s, input %s: a wrong sign is not detected (%g)", op->name, vars[i].name, error);
    }
    if (op->backward != rope_back) check_accumulation(op, unflipped);
}

/* ---- linear, norm, embedding ------------------------------------------------------------------------- */

static double linear_loss(void *ctx) {
    (void)ctx;
    linear_forward(r.y, r.a, r.b, r.kind ? r.c : NULL, r.rows, r.n, r.n_out);
    return weighted(r.rows * r.n_out);
}
static void linear_back(void) {
    linear_backward(r.da, r.db, r.kind ? r.dc : NULL, r.g, r.a, r.b, r.rows, r.n, r.n_out);
}

static void linear(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1}, {1, 17, 3}, {5, 7, 11}, {33, 16, 2}};
    for (int i = 0; i < 4; i++)
        for (int bias = 0; bias < 2; bias++) {
            fill(shapes[i][0], shapes[i][1], shapes[i][2], 0, bias);
            check_op(&(Op){"linear", linear_loss, linear_back, r.rows * r.n, r.n * r.n_out, bias ? r.n_out : 0});
        }
}

static double rmsnorm_loss(void *ctx) {
    (void)ctx;
    rmsnorm_forward(r.y, r.kept, r.a, r.kind ? NULL : r.b, r.rows, r.n, 1e-5);
    return weighted(r.rows * r.n);
}
static void rmsnorm_back(void) {
    rmsnorm_backward(r.da, r.kind ? NULL : r.db, r.g, r.a, r.kind ? NULL : r.b, r.kept, r.rows, r.n);
}

static void rmsnorm(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 2}, {3, 17}, {7, 64}, {2, 33}};
    for (int i = 0; i < 4; i++)
        for (int kind = 0; kind < 2; kind++) { /* with weights and without */
            fill(shapes[i][0], shapes[i][1], 0, 0, kind);
            check_op(&(Op){"rmsnorm", rmsnorm_loss, rmsnorm_back, r.rows * r.n, kind ? 0 : r.n, 0});
        }
}

static double embedding_loss(void *ctx) {
    (void)ctx;
    embedding_forward(r.y, r.a, r.tokens, r.rows, 6);
    return weighted(r.rows * 6);
}
static void embedding_back(void) { embedding_backward(r.da, r.g, r.tokens, r.rows, 6); }

static void embedding(void **state) {
    (void)state;
    fill(20, 9, 0, 0, 0); /* 20 tokens out of 9: some occur more than once */
    check_op(&(Op){"embedding", embedding_loss, embedding_back, 9 * 6, 0, 0});
}

/* ---- silu, rope, attention --------------------------------------------------------------------------- */

enum { SILU, SWIGLU, GEGLU };
static double activation_loss(void *ctx) {
    (void)ctx;
    if (r.kind == SILU) silu_forward(r.y, r.a, r.n);
    else if (r.kind == SWIGLU) swiglu_forward(r.y, r.a, r.b, r.n);
    else geglu_forward(r.y, r.a, r.b, r.n);
    return weighted(r.n);
}
static void activation_back(void) {
    if (r.kind == SILU) silu_backward(r.da, r.g, r.a, r.n);
    else if (r.kind == SWIGLU) swiglu_backward(r.da, r.db, r.g, r.a, r.b, r.n);
    else geglu_backward(r.da, r.db, r.g, r.a, r.b, r.n);
}

static void activations(void **state) {
    (void)state;
    static const char *names[] = {"silu", "swiglu", "geglu"};
    for (int kind = SILU; kind <= GEGLU; kind++) {
        fill(1, 37, 0, 0, kind);
        for (int i = 0; i < 8; i++) r.a[i] *= 20; /* tests also inputs for which the sigmoid saturates */
        check_op(&(Op){names[kind], activation_loss, activation_back, r.n, kind ? r.n : 0, 0});
    }
    const double x = 0.7, up = 2; /* the definition with tanh */
    double y;
    geglu_forward(&y, &x, &up, 1);
    assert_true(fabs(y - x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)))) < 1e-10);
}

enum { ROPE_HEADS = 3, ROPE_DIM = 10, ROPE_ROT = 8 };
static double rope_loss(void *ctx) {
    (void)ctx;
    memcpy(r.y, r.a, sizeof r.y);
    rope_forward((RopeStyle)r.kind, r.y, r.kept, r.rows, ROPE_HEADS, ROPE_DIM, ROPE_ROT);
    return weighted(r.rows * ROPE_HEADS * ROPE_DIM);
}
static void rope_back(void) {
    memcpy(r.da, r.g, sizeof r.da);
    rope_backward((RopeStyle)r.kind, r.da, r.kept, r.rows, ROPE_HEADS, ROPE_DIM, ROPE_ROT);
}

static void rope(void **state) {
    (void)state;
    for (int style = ROPE_PAIRS; style <= ROPE_HALVES; style++) {
        fill(5, 4, 0, 0, style);
        for (int i = 0; i < 5 * ROPE_ROT / 2; i++) r.kept[2 * i] = cos(i), r.kept[2 * i + 1] = sin(i);
        check_op(&(Op){"rope", rope_loss, rope_back, r.rows * ROPE_HEADS * ROPE_DIM, 0, 0});
    }
}

static AttentionShape attention_of_rig(void) { return (AttentionShape){r.rows, r.n_out, r.n_kv, r.n}; }
static double attention_loss(void *ctx) {
    (void)ctx;
    AttentionShape s = attention_of_rig();
    attention_forward(r.y, r.kept, r.a, r.b, r.c, &s);
    return weighted(s.n_rows * s.n_head * s.head_dim);
}
static void attention_back(void) {
    AttentionShape s = attention_of_rig();
    attention_backward(r.da, r.db, r.dc, r.g, r.kept, r.a, r.b, r.c, r.scratch, &s);
}

static void attention(void **state) {
    (void)state;
    /* tokens, head width, heads, key-value heads; 67 tokens are more than one block */
    static const int64_t shapes[][4] = {{2, 2, 1, 1}, {7, 6, 4, 2}, {9, 4, 6, 2}, {5, 8, 3, 3}, {67, 6, 3, 1}};
    for (int i = 0; i < 5; i++) {
        const int64_t *s = shapes[i];
        fill(s[0], s[1], s[2], s[3], 0);
        int64_t n_kv = s[0] * s[3] * s[1];
        assert_true(s[2] * s[0] * s[0] <= 4 * N_MAX);
        check_op(&(Op){"attention", attention_loss, attention_back, s[0] * s[2] * s[1], n_kv, n_kv});
    }
}

/* Row t of attention must not depend on later keys. */
static void attention_is_causal(void **state) {
    (void)state;
    fill(67, 6, 2, 1, 0);
    attention_loss(NULL);
    double before[N_MAX];
    memcpy(before, r.y, sizeof before);
    for (int64_t i = 66 * 6; i < 67 * 6; i++) r.b[i] += 3, r.c[i] += 3;
    attention_loss(NULL);
    assert_memory_equal(before, r.y, 66 * 12 * sizeof *before);
    assert_true(before[66 * 12] != r.y[66 * 12]);
}

/* ---- losses ------------------------------------------------------------------------------------------ */

enum { HARD, SOFT, VARIATION, N_LOSSES };
/* a: logits; b: a distribution for each row (not normalised); the loss of row t has the weight
 * g_t. The total variation distance is that of the softmax of the logits. */
static double softmax_loss(void *ctx) {
    (void)ctx;
    if (r.kind == HARD) cross_entropy_forward(r.y, r.kept, r.a, r.tokens, r.rows, r.n);
    if (r.kind >= SOFT) soft_cross_entropy_forward(r.y, r.kept, r.a, r.b, r.rows, r.n);
    if (r.kind == VARIATION) total_variation_forward(r.y, r.kept, r.b, r.rows, r.n);
    return weighted(r.rows);
}
static void softmax_loss_back(void) {
    if (r.kind == HARD) cross_entropy_backward(r.da, r.g, r.kept, r.tokens, r.rows, r.n);
    if (r.kind == SOFT) soft_cross_entropy_backward(r.da, r.g, r.kept, r.b, r.rows, r.n);
    if (r.kind == VARIATION) total_variation_backward(r.da, r.g, r.kept, r.b, r.rows, r.n);
}

static void softmax_losses(void **state) {
    (void)state;
    static const char *names[] = {"cross-entropy", "soft cross-entropy", "total variation"};
    for (int kind = HARD; kind < N_LOSSES; kind++)
        for (int64_t n = 3; n <= 35; n += 16) {
            fill(6, n, 0, 0, kind);
            for (int64_t i = 0; i < 6 * n; i++) r.b[i] = fabs(r.b[i]) / (kind == VARIATION ? (double)n : 1);
            r.g[2] = r.g[5] = 0; /* rows outside the loss mask */
            check_op(&(Op){names[kind], softmax_loss, softmax_loss_back, 6 * n, 0, 0});
            for (int64_t i = 0; i < n; i++) assert_true(r.da[2 * n + i] == 0 && r.da[5 * n + i] == 0);
        }
}

/* Known values, so that a loss and its derivative cannot be wrong together. */
static void values_of_losses(void **state) {
    (void)state;
    const double logits[2] = {0, log(3)}, dist[2] = {0.5, 0.5}, y[3] = {2, 0, -0.5}, wanted[3] = {0};
    double loss, probs[2], slope;
    cross_entropy_forward(&loss, probs, logits, (int32_t[]){0}, 1, 2);
    assert_true(fabs(loss - log(4)) < 1e-15 && fabs(probs[0] - 0.25) < 1e-15);
    soft_cross_entropy_forward(&loss, probs, logits, dist, 1, 2);
    assert_true(fabs(loss - 0.5 * log(4) - 0.5 * log(4.0 / 3)) < 1e-15);
    total_variation_forward(&loss, probs, dist, 1, 2); /* of (1/4, 3/4) */
    assert_true(fabs(loss - 0.25) < 1e-15);
    for (int sign = -1; sign <= 1; sign += 2) {
        assert_true(fabs(logistic_loss(sign * log(3), 0.5, &slope) - log(4) + log(3) / 2) < 1e-15);
        assert_true(fabs(slope - sign * 0.25) < 1e-15);
    }
    regression_forward(REGRESSION_MSE, &loss, y, wanted, 1, 3);
    assert_true(fabs(loss - 4.25 / 3) < 1e-15);
    regression_forward(REGRESSION_L1, &loss, y, wanted, 1, 3);
    assert_true(fabs(loss - 2.5 / 3) < 1e-15);
    regression_forward(REGRESSION_SMOOTH_L1, &loss, y, wanted, 1, 3);
    assert_true(fabs(loss - 1.625 / 3) < 1e-15);
}

static double regression_loss(void *ctx) {
    (void)ctx;
    regression_forward((Regression)r.kind, r.y, r.a, r.b, r.rows, r.n);
    return weighted(r.rows);
}
static void regression_back(void) { regression_backward((Regression)r.kind, r.da, r.g, r.a, r.b, r.rows, r.n); }

static void regression(void **state) {
    (void)state;
    static const char *names[] = {"MSE", "L1", "SmoothL1"};
    for (int kind = REGRESSION_MSE; kind <= REGRESSION_SMOOTH_L1; kind++) {
        fill(5, 13, 0, 0, kind);
        r.g[1] = 0;
        check_op(&(Op){names[kind], regression_loss, regression_back, 5 * 13, 0, 0});
    }
}

/* ---- the optimiser and its rate ---------------------------------------------------------------------- */

static float weight[3], grad[3];
static Param params[] = {{"matrix", 2, weight, grad, true, 0}, {"norm", 1, weight + 2, grad + 2, false, 0}};
static int32_t n_params(const Trainer *t) { return (void)t, 2; }
static Param *param(Trainer *t, int32_t i) { return (void)t, &params[i]; }
static const TrainerClass toy_class = {.name = "toy", .n_params = n_params, .param = param};

/* Three steps, each written out as in the paper. */
static void adamw_as_in_the_paper(void **state) {
    (void)state;
    Trainer toy = {&toy_class};
    AdamW a;
    AdamWOptions o = {0.9, 0.95, 1e-8, 0.1};
    double w[3] = {1, -2, 3}, m[3] = {0}, v[3] = {0};
    assert_int_equal(adamw_open(&a, &o, &toy, NULL), FR_OK);
    for (int i = 0; i < 3; i++) weight[i] = (float)w[i];
    for (int step = 1; step <= 3; step++) {
        double rate = 0.01 * step, scale = 0.5;
        for (int i = 0; i < 3; i++) grad[i] = (float)normal((uint64_t)(step * 3 + i));
        adamw_step(&a, &toy, rate, scale);
        for (int i = 0; i < 3; i++) {
            double g = (double)grad[i] * scale;
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.95 * v[i] + 0.05 * g * g;
            double decay = i < 2 ? 0.1 * w[i] : 0;
            w[i] -= rate * (m[i] / (1 - pow(0.9, step)) / (sqrt(v[i] / (1 - pow(0.95, step))) + 1e-8) + decay);
            if (fabs((double)weight[i] - w[i]) > 1e-6)
                fail_msg("step %d, %d: %g, not %g", step, i, (double)weight[i], w[i]);
        }
    }
    assert_int_equal(a.n_steps, 3);
    adamw_close(&a);
}

enum { N_WIDE = 7 };
static float wide_values[2][5000], wide_grads[5000];
static Param wide[2][N_WIDE];
static int32_t wide_n(const Trainer *t) { return (void)t, N_WIDE; }
static Param *wide_param_0(Trainer *t, int32_t i) { return (void)t, &wide[0][i]; }
static Param *wide_param_1(Trainer *t, int32_t i) { return (void)t, &wide[1][i]; }

/* Parameters of odd lengths, some of them shorter than a piece: the bits do not depend on the number of threads, and
 * elements do not affect each other. */
static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    static const int64_t lengths[N_WIDE] = {1, 2777, 3, 17, 160, 2000, 42};
    static const TrainerClass classes[] = {{.name = "one", .n_params = wide_n, .param = wide_param_0},
                                           {.name = "many", .n_params = wide_n, .param = wide_param_1}};
    const AdamWOptions o = {0.9, 0.95, 1e-8, 0.1};
    for (int n_threads = 2; n_threads <= 100; n_threads += 49) {
        Trainer trainers[] = {{&classes[0]}, {&classes[1]}};
        AdamW a[2];
        for (int k = 0; k < 2; k++) {
            int64_t at = 0;
            for (int i = 0; i < N_WIDE; at += lengths[i++])
                wide[k][i] = (Param){"wide", lengths[i], wide_values[k] + at, wide_grads + at, i % 2 == 0, 0};
            assert_true(at == 5000);
            for (int i = 0; i < 5000; i++) wide_values[k][i] = (float)normal((uint64_t)i);
            assert_int_equal(adamw_open(&a[k], &o, &trainers[k], NULL), FR_OK);
            a[k].n_threads = k ? n_threads : 1;
        }
        for (int step = 0; step < 3; step++) {
            double squares = 0, norm;
            for (int i = 0; i < 5000; i++) wide_grads[i] = (float)normal((uint64_t)(7000 * step + i));
            for (int i = 0; i < 5000; i++) squares += (double)wide_grads[i] * (double)wide_grads[i];
            norm = trainer_gradient_norm(&trainers[0], 1);
            assert_true(fabs(norm - sqrt(squares)) < 1e-10 && trainer_gradient_norm(&trainers[1], n_threads) == norm);
            for (int k = 0; k < 2; k++) adamw_step(&a[k], &trainers[k], 0.01, 0.5);
        }
        assert_memory_equal(wide_values[1], wide_values[0], sizeof wide_values[0]);
        for (int k = 0; k < 2; k++) adamw_close(&a[k]);
    }
}

static void clipping(void **state) {
    (void)state;
    Trainer toy = {&toy_class};
    grad[0] = 2, grad[1] = -3, grad[2] = 6;
    assert_true(fabs(trainer_gradient_norm(&toy, 1) - 7) < 1e-12);
    assert_true(clip_scale(7, 3.5) == 0.5 && clip_scale(7, 8) == 1 && clip_scale(7, 0) == 1);
    trainer_zero_gradients(&toy);
    assert_true(trainer_gradient_norm(&toy, 1) == 0);
}

static void rates_of_a_schedule(void **state) {
    (void)state;
    Schedule s = {SCHEDULE_LINEAR, 2, 0.1, 4, 6, 30};
    static const struct {
        int64_t step;
        double linear, cosine;
    } cases[] = {{0, 0.5, 0.5}, {3, 2, 2},      {4, 2, 2},      {9, 2, 2},     {10, 2, 2},
                 {15, 1.55, 0}, {20, 1.1, 1.1}, {30, 0.2, 0.2}, {99, 0.2, 0.2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double cosine = cases[i].cosine;
        if (cases[i].step == 15) cosine = 2 * (0.1 + 0.9 * (1 + sqrt(0.5)) / 2);
        s.decay = SCHEDULE_LINEAR;
        assert_true(fabs(schedule_rate(&s, cases[i].step) - cases[i].linear) < 1e-12);
        s.decay = SCHEDULE_COSINE;
        assert_true(fabs(schedule_rate(&s, cases[i].step) - cosine) < 1e-12);
    }
    s = (Schedule){SCHEDULE_COSINE, 1, 0, 0, 0, 1};
    assert_true(schedule_rate(&s, 0) == 1 && schedule_rate(&s, 1) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),
        cmocka_unit_test(rmsnorm),
        cmocka_unit_test(embedding),
        cmocka_unit_test(activations),
        cmocka_unit_test(rope),
        cmocka_unit_test(attention),
        cmocka_unit_test(attention_is_causal),
        cmocka_unit_test(softmax_losses),
        cmocka_unit_test(values_of_losses),
        cmocka_unit_test(regression),
        cmocka_unit_test(adamw_as_in_the_paper),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(clipping),
        cmocka_unit_test(rates_of_a_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
