/* test_train_heads.c - the networks of medusa, hydra and redrafter in double: their loss equals that of a plain
 * implementation here, and the gradient of every tensor equals finite differences, on odd shapes and with predictions
 * outside the loss mask. */
#include "double_nets.h"

#include "base/rng.h"
#include "gradient_check.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>

enum { C = 5, V = 11, MAX_T = 150, MAX_TENSORS = 64, MAX_WEIGHTS = 4096 };

static double hidden[MAX_T * C], embd[V * C], head[V * C];
static int32_t tokens[MAX_T + 1];
static uint8_t loss_mask[MAX_T];

/* ---- the cases ---------------------------------------------------------------------------------- */

static const double step_weights[] = {0.5, 2, 0.25, 1};

static const MedusaNet medusas[] = {
    {C, V, 3, 1, true, {.token_weight = 1, .n_steps = 3}},
    {C, V, 2, 3, false, {.token_weight = 0.5, .n_steps = 2, .step_weights = step_weights}},
    {C, V, 2, 2, true, {.token_weight = 1, .hard_labels = true, .n_steps = 2}},
};
static const HydraNet hydras[] = {
    {.C = C, .V = V, .n_heads = 3, .n_blocks = 1, .has_own_output = true, .loss = {.token_weight = 1, .n_steps = 3}},
    {.C = C,
     .V = V,
     .n_heads = 4,
     .n_blocks = 2,
     .loss = {.token_weight = 0.5, .n_steps = 4, .step_weights = step_weights}},
    {.C = C,
     .V = V,
     .n_heads = 2,
     .n_blocks = 3,
     .has_own_output = true,
     .loss = {.token_weight = 1, .hard_labels = true, .n_steps = 2}},
};
#define NO_INFO \
    { .rank = 0 }
#define INFO \
    { .method = "redrafter", .C = C, .V = V, .rank = 3, .rms_eps = 1e-5f }
static const RedrafterNet redrafters[] = {
    {C, V, 1, NO_INFO, true, 0, {.token_weight = 1, .n_steps = 4}},
    {C, V, 2, NO_INFO, false, 0, {.token_weight = 0.5, .n_steps = 3}},
    {C, V, 0, NO_INFO, true, 0, {.token_weight = 1, .hard_labels = true, .n_steps = 2}},
    {C, V, 2, INFO, false, 0, {.token_weight = 0.5, .n_steps = 3, .step_weights = step_weights}},
    {C, V, 0, INFO, true, 0, {.token_weight = 1, .hard_labels = true, .n_steps = 2}},
    {C, V, 1, NO_INFO, false, 0, {.token_weight = 1, .n_steps = 1}},
    {C, V, 1, NO_INFO, true, 0, {.token_weight = 1, .n_steps = 1}},
};

typedef void (*Logits)(const void *net, real *const *w, const TrainSequence *seq, int32_t t, int32_t step, double *out);
static void medusa_logits(const void *net, real *const *w, const TrainSequence *seq, int32_t t, int32_t step,
                          double *out);
static void hydra_logits(const void *net, real *const *w, const TrainSequence *seq, int32_t t, int32_t step,
                         double *out);
static void redrafter_logits(const void *net, real *const *w, const TrainSequence *seq, int32_t t, int32_t step,
                             double *out);

static const struct Case {
    const NetClass *class;
    const void *net;
    const HeadLossOptions *loss;
    Logits logits;
} cases[] = {
    {&medusa_net_class, &medusas[0], &medusas[0].loss, medusa_logits},
    {&medusa_net_class, &medusas[1], &medusas[1].loss, medusa_logits},
    {&medusa_net_class, &medusas[2], &medusas[2].loss, medusa_logits},
    {&hydra_net_class, &hydras[0], &hydras[0].loss, hydra_logits},
    {&hydra_net_class, &hydras[1], &hydras[1].loss, hydra_logits},
    {&hydra_net_class, &hydras[2], &hydras[2].loss, hydra_logits},
    {&redrafter_net_class, &redrafters[0], &redrafters[0].loss, redrafter_logits},
    {&redrafter_net_class, &redrafters[1], &redrafters[1].loss, redrafter_logits},
    {&redrafter_net_class, &redrafters[2], &redrafters[2].loss, redrafter_logits},
    {&redrafter_net_class, &redrafters[3], &redrafters[3].loss, redrafter_logits},
    {&redrafter_net_class, &redrafters[4], &redrafters[4].loss, redrafter_logits},
    {&redrafter_net_class, &redrafters[5], &redrafters[5].loss, redrafter_logits},
    {&redrafter_net_class, &redrafters[6], &redrafters[6].loss, redrafter_logits},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* A case with random weights and a sequence. */
typedef struct Run {
    const struct Case *of;
    double values[MAX_WEIGHTS], grads[MAX_WEIGHTS], *w[MAX_TENSORS], *dw[MAX_TENSORS];
    int32_t n_tensors;
    TrainSequence seq;
    void *acts;
    double weight;
} Run;

static Run run;

static void open_run(const struct Case *of, int32_t T, double weight) {
    int64_t at = 0;
    memset(&run, 0, sizeof run);
    run.of = of, run.weight = weight;
    run.n_tensors = of->class->n_tensors(of->net);
    assert_true(run.n_tensors <= MAX_TENSORS);
    for (int32_t i = 0; i < run.n_tensors; i++) {
        NetTensor x = of->class->tensor(of->net, i);
        run.w[i] = run.values + at, run.dw[i] = run.grads + at;
        at += net_tensor_count(&x);
        assert_true(at <= MAX_WEIGHTS);
    }
    for (int64_t i = 0; i < at; i++) run.values[i] = rng_uniform(5, RNG_TEST, (uint64_t)i, 0) - 0.5;
    for (int32_t i = 0; i < T; i++) loss_mask[i] = i > 4 && i % 4 != 1; /* a prompt, and gaps */
    run.seq = (TrainSequence){T, tokens, loss_mask, hidden, embd, head, NULL, NULL, 0, 0};
    run.acts = of->class->acts_open(of->net, T + 3, NULL);
    assert_non_null(run.acts);
}

static void close_run(void) { run.of->class->acts_close(run.acts); }

static TrainSums learn_run(double *const *dw, double weight) {
    TrainSums sums = {0};
    run.of->class->learn(run.of->net, run.w, dw, run.acts, &run.seq, weight, &sums);
    return sums;
}

/* ---- the logits of a step, in a plain implementation ------------------------------------------- */

/* y = W x + b; b may be NULL */
static void plain_linear(const double *w, const double *b, const double *x, int32_t n_in, int32_t n_out, double *y) {
    for (int32_t o = 0; o < n_out; o++) {
        y[o] = b ? b[o] : 0;
        for (int32_t i = 0; i < n_in; i++) y[o] += w[o * n_in + i] * x[i];
    }
}
static double plain_silu(double x) { return x / (1 + exp(-x)); }
static void plain_block(const double *w, const double *b, double *x, int32_t n) {
    double y[2 * C];
    plain_linear(w, b, x, n, n, y);
    for (int32_t i = 0; i < n; i++) x[i] += plain_silu(y[i]);
}

static void medusa_logits(const void *net, real *const *w, const TrainSequence *seq, int32_t t, int32_t step,
                          double *out) {
    const MedusaNet *n = net;
    double x[C];
    w += (step - 1) * (2 * n->n_blocks + n->has_own_output);
    memcpy(x, seq->hidden + t * C, sizeof x);
    for (int32_t k = 0; k < n->n_blocks; k++) plain_block(w[2 * k], w[2 * k + 1], x, C);
    plain_linear(n->has_own_output ? w[2 * n->n_blocks] : seq->head, NULL, x, C, V, out);
}

static void hydra_logits(const void *net, real *const *w, const TrainSequence *seq, int32_t t, int32_t step,
                         double *out) {
    const HydraNet *n = net;
    double c[5 * C], x[C], y[C];
    int32_t each = 3 + 2 * (n->n_blocks - 1);
    w += (step - 1) * (each + n->has_own_output);
    memcpy(c, seq->hidden + t * C, C * sizeof *c);
    for (int32_t s = 1; s <= step; s++) memcpy(c + s * C, seq->embd + seq->tokens[t + s] * C, C * sizeof *c);
    plain_linear(w[2], NULL, c, (step + 1) * C, C, x);
    plain_linear(w[0], w[1], c, (step + 1) * C, C, y);
    for (int32_t i = 0; i < C; i++) x[i] += plain_silu(y[i]);
    for (int32_t k = 1; k < n->n_blocks; k++) plain_block(w[1 + 2 * k], w[2 + 2 * k], x, C);
    plain_linear(n->has_own_output ? w[each] : seq->head, NULL, x, C, V, out);
}

/* out += gain * RMSNorm(token W1 W2); token: its embedding */
static void plain_info(real *const *w, int32_t rank, const double *token, double *out) {
    double low[C], up[V], square = 0;
    plain_linear(w[0], NULL, token, C, rank, low);
    plain_linear(w[1], NULL, low, rank, V, up);
    for (int32_t i = 0; i < V; i++) square += up[i] * up[i];
    for (int32_t i = 0; i < V; i++) out[i] += w[2][i] * up[i] / sqrt(square / V + (double)1e-5f);
}

static void redrafter_logits(const void *net, real *const *w, const TrainSequence *seq, int32_t t, int32_t step,
                             double *out) {
    const RedrafterNet *n = net;
    double x[2 * C] = {0}, from_token[C], from_state[C];
    for (int32_t s = 1; s <= step; s++) {
        const double *e = seq->embd + seq->tokens[t + s] * C;
        plain_linear(w[0], NULL, e, C, C, from_token);
        plain_linear(w[1], w[2], x, C, C, from_state);
        for (int32_t i = 0; i < C; i++)
            x[i] = s == 1 && n->starts_at_embedding ? e[i] : plain_silu(from_token[i] + from_state[i]);
    }
    memcpy(x + C, seq->hidden + t * C, C * sizeof *x);
    for (int32_t k = 0; k < n->n_blocks; k++) plain_block(w[3 + 2 * k], w[4 + 2 * k], x, 2 * C);
    w += 3 + 2 * n->n_blocks;
    plain_linear(w[0], NULL, x, 2 * C, V, out);
    if (n->info.rank) plain_info(w + 1, n->info.rank, seq->embd + seq->tokens[t + step] * C, out);
}

static void log_softmax(double *x) {
    double sum = 0;
    for (int32_t i = 0; i < V; i++) sum += exp(x[i]);
    for (int32_t i = 0; i < V; i++) x[i] -= log(sum);
}

/* Returns the weight of a step in the mean over the steps. */
static double share_of(const HeadLossOptions *o, int32_t step) {
    double sum = 0;
    for (int32_t s = 0; s < o->n_steps; s++) sum += o->step_weights ? o->step_weights[s] : 1;
    return (o->step_weights ? o->step_weights[step - 1] : 1) / sum;
}

/* Returns the sums over all steps at all positions. */
static TrainSums plain_sums(const struct Case *of, const TrainSequence *seq) {
    TrainSums sums = {0};
    const HeadLossOptions *o = of->loss;
    for (int32_t p = 1; p < seq->T; p++) {
        double dist[V], log_q[V];
        if (!seq->loss_mask[p]) continue;
        sums.n++;
        plain_linear(seq->head, NULL, seq->hidden + p * C, C, V, dist);
        log_softmax(dist);
        for (int32_t s = 1; s <= o->n_steps && s <= p; s++) {
            int32_t best = 0, best_of_dist = 0, rank = 0;
            of->logits(of->net, run.w, seq, p - s, s, log_q);
            log_softmax(log_q);
            double loss = o->hard_labels ? -log_q[seq->tokens[p + 1]] : 0;
            for (int32_t i = 0; i < V && !o->hard_labels; i++) loss += exp(dist[i]) * (dist[i] - log_q[i]);
            sums.loss += o->token_weight * share_of(o, s) * loss;
            for (int32_t i = 1; i < V; i++) {
                if (log_q[i] > log_q[best]) best = i;
                if (dist[i] > dist[best_of_dist]) best_of_dist = i;
            }
            sums.of[s - 1]++;
            sums.right[s - 1] += best == best_of_dist;
            for (int32_t i = 0; i < V; i++) rank += log_q[i] > log_q[best_of_dist];
            sums.at_rank[s - 1][rank]++;
        }
    }
    return sums;
}

static void expect_plain_sums(const char *what) {
    TrainSums want = plain_sums(run.of, &run.seq), got = learn_run(NULL, 0), with_gradients = learn_run(run.dw, 1);
    if (!(fabs(got.loss - want.loss) < 1e-9 * (1 + want.loss)))
        fail_msg("%s: loss %g, want %g", what, got.loss, want.loss);
    assert_true(with_gradients.loss == got.loss);
    assert_int_equal(got.n, want.n);
    for (int32_t s = 0; s < run.of->loss->n_steps; s++) {
        assert_int_equal(got.of[s], want.of[s]);
        assert_int_equal(got.right[s], want.right[s]);
        for (int32_t r = 0; r < TRAIN_RANKS; r++) assert_int_equal(got.at_rank[s][r], want.at_rank[s][r]);
    }
}

static void the_loss_equals_the_plain_one(void **state) {
    (void)state;
    static const int32_t lengths[] = {23, 6, 2, HEAD_LOSS_ROWS * 8 / 7};
    for (int i = 0; i < N_CASES; i++)
        for (int k = 0; k < 4; k++) {
            char what[64];
            open_run(&cases[i], lengths[k], 1);
            snprintf(what, sizeof what, "case %d, %d tokens", i, lengths[k]);
            expect_plain_sums(what);
            memset(loss_mask, 1, sizeof loss_mask);
            expect_plain_sums(what);
            close_run();
        }
}

/* ---- gradients ----------------------------------------------------------------------------------- */

static double loss_of_run(void *ctx) {
    (void)ctx;
    return run.weight * learn_run(NULL, 0).loss;
}

/* Returns the worst error over all tensors; the name of the worst goes to *name. */
static double worst_error(int max_tried, char *name) {
    double worst = 0;
    for (int32_t i = 0; i < run.n_tensors; i++) {
        NetTensor x = run.of->class->tensor(run.of->net, i);
        GradientVar var = {x.name, run.w[i], run.dw[i], net_tensor_count(&x)};
        double error = gradient_error(&var, loss_of_run, NULL, max_tried);
        if (!(error <= worst)) {
            worst = error;
            memcpy(name, x.name, sizeof x.name);
        }
    }
    return worst;
}

/* Tests also more positions than HEAD_LOSS_ROWS. Gradients are added to those of an earlier call. */
static void gradients_match_finite_differences(void **state) {
    (void)state;
    static const struct {
        int32_t T;
        bool all;
        int max_tried;
    } sizes[] = {{13, false, 40}, {HEAD_LOSS_ROWS + 5, true, 3}};
    for (int i = 0; i < N_CASES; i++)
        for (int k = 0; k < 2; k++) {
            char name[64] = "";
            open_run(&cases[i], sizes[k].T, 0.7);
            if (sizes[k].all) memset(loss_mask, 1, sizeof loss_mask);
            learn_run(run.dw, 0.2);
            learn_run(run.dw, 0.5);
            double error = worst_error(sizes[k].max_tried, name);
            if (!(error < 1e-7)) fail_msg("case %d, %d tokens: %s is wrong by %g", i, sizes[k].T, name, error);
            close_run();
        }
}

/* Negative control: the sign of one tensor's gradient is flipped, tensor after tensor; each must be detected. A tensor
 * that does not influence the loss would not be: in a redrafter of one step that starts at the embedding, W, U and b do
 * not. */
static void a_wrong_sign_is_detected(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES - 1; i++) {
        open_run(&cases[i], 13, 0.7);
        learn_run(run.dw, 0.7);
        for (int32_t k = 0; k < run.n_tensors; k++) {
            char name[64] = "";
            NetTensor x = run.of->class->tensor(run.of->net, k);
            if (i == N_CASES - 2 && strcmp(x.name, "redrafter.u.weight") == 0)
                continue; /* with one step from a zero state it has no influence */
            for (int64_t j = 0; j < net_tensor_count(&x); j++) run.dw[k][j] = -run.dw[k][j];
            double error = worst_error(4, name);
            if (!(error > 1) || strcmp(name, x.name) != 0)
                fail_msg("case %d: the sign of %s is flipped, but the worst error is in %s: %g", i, x.name, name,
                         error);
            for (int64_t j = 0; j < net_tensor_count(&x); j++) run.dw[k][j] = -run.dw[k][j];
        }
        close_run();
    }
}

/* An empty mask gives no loss and no gradient. The loss at one position does not depend on the other positions of the
 * mask. */
static void positions_outside_the_mask_change_nothing(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        double sum = 0, whole;
        open_run(&cases[i], 13, 1);
        whole = learn_run(NULL, 0).loss;
        uint8_t all[MAX_T];
        memcpy(all, loss_mask, sizeof all);
        memset(loss_mask, 0, sizeof loss_mask);
        assert_true(learn_run(run.dw, 1).loss == 0);
        for (int32_t k = 0; k < MAX_WEIGHTS; k++) assert_true(run.grads[k] == 0);
        for (int32_t p = 0; p < 13; p++) {
            loss_mask[p] = all[p];
            sum += learn_run(NULL, 0).loss;
            loss_mask[p] = 0;
        }
        assert_true(fabs(sum - whole) < 1e-9 * whole);
        close_run();
    }
}

static int fill(void **state) {
    (void)state;
    for (uint64_t i = 0; i < MAX_T * C; i++) hidden[i] = 2 * rng_uniform(1, RNG_TEST, i, 0) - 1;
    for (uint64_t i = 0; i < V * C; i++)
        embd[i] = rng_uniform(2, RNG_TEST, i, 0) - 0.5, head[i] = 2 * rng_uniform(3, RNG_TEST, i, 0) - 1;
    for (int32_t i = 0; i <= MAX_T; i++) tokens[i] = (i * i + i / 5) % V;
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_equals_the_plain_one),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(a_wrong_sign_is_detected),
        cmocka_unit_test(positions_outside_the_mask_change_nothing),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
