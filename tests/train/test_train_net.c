/* test_train_net.c - the whole network of train/llama_net.c in double: compares the gradient of every tensor with
 * finite differences, on a shape with grouped queries in which no two widths are equal, and with predictions outside
 * the loss mask. */
#define TRAIN_DOUBLE
/* Each operation comes before those that use it: clang cannot clone a function for several instruction sets once it has
 * been used.
 * */
#include "train/attention_ops.c"
#include "train/ops.c"
#include "train/llama_net.c"

#include "base/rng.h"
#include "gradient_check.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>

enum { N_WEIGHTS_MAX = 4096, T_MAX = 150 };

static const LlamaShape shape = {.n_layer = 2,
                                 .n_embd = 10,
                                 .n_head = 4,
                                 .n_head_kv = 2,
                                 .head_dim = 6,
                                 .n_ff = 7,
                                 .n_vocab = 13,
                                 .rms_eps = 1e-5f,
                                 .rope_base = 100};

typedef struct Net {
    double w[N_WEIGHTS_MAX], dw[N_WEIGHTS_MAX];
    LlamaLayer layers[2], dlayers[2];
    LlamaWeights weights, grads;
    LlamaActs acts;
    int32_t tokens[T_MAX + 1];
    uint8_t loss_mask[T_MAX];
    int32_t T;
    double weight;
} Net;

static Net net;

static double loss(void *ctx) {
    Net *n = ctx;
    llama_forward(&shape, &n->weights, &n->acts, n->tokens, n->T);
    return n->weight * llama_learn(&shape, &n->weights, NULL, &n->acts, n->tokens, n->loss_mask, n->T, 0).loss;
}

static void open_net(int32_t T, double weight) {
    int64_t n = llama_n_weights(&shape);
    assert_true(n <= N_WEIGHTS_MAX && T <= T_MAX);
    memset(&net, 0, sizeof net);
    net.T = T, net.weight = weight;
    net.weights = llama_place_weights(&shape, net.layers, net.w);
    net.grads = llama_place_weights(&shape, net.dlayers, net.dw);
    assert_int_equal(llama_acts_open(&net.acts, &shape, T, NULL), FR_OK);
    for (uint64_t i = 0; i < (uint64_t)n; i++) net.w[i] = rng_uniform(9, RNG_TEST, i, 0) - 0.5;
    for (int32_t i = 0; i <= T; i++) net.tokens[i] = (i * i + i / 5) % shape.n_vocab;
    for (int32_t i = 0; i < T; i++) net.loss_mask[i] = i % 3 != 1;
}

static void learn_net(void) {
    llama_forward(&shape, &net.weights, &net.acts, net.tokens, net.T);
    llama_learn(&shape, &net.weights, &net.grads, &net.acts, net.tokens, net.loss_mask, net.T, net.weight);
}

/* Returns the worst error over all tensors, each tried at up to max_tried elements; the name of the worst goes to
 * *name. */
static double worst_error(int max_tried, char *name) {
    double worst = 0;
    int64_t at = 0;
    for (int32_t i = 0; i < llama_n_tensors(&shape); i++) {
        LlamaTensor t = llama_tensor(&shape, i);
        GradientVar var = {t.name, net.w + at, net.dw + at, t.n_rows * t.n};
        double error = gradient_error(&var, loss, &net, max_tried);
        if (!(error <= worst)) {
            worst = error;
            memcpy(name, t.name, sizeof t.name);
        }
        at += var.n;
    }
    assert_int_equal(at, llama_n_weights(&shape));
    return worst;
}

static void gradients_match_finite_differences(void **state) {
    (void)state;
    char name[64] = "";
    open_net(11, 0.7);
    learn_net();
    double error = worst_error(60, name);
    if (!(error < 1e-7)) fail_msg("%s: wrong by %g", name, error);
    llama_acts_close(&net.acts);
}

/* Tests more rows than LLAMA_HEAD_ROWS and than a block of attention. */
static void sequences_longer_than_a_block(void **state) {
    (void)state;
    char name[64] = "";
    open_net(LLAMA_HEAD_ROWS + 3, 0.01);
    learn_net();
    double error = worst_error(5, name);
    if (!(error < 1e-7)) fail_msg("%s: wrong by %g", name, error);
    llama_acts_close(&net.acts);
}

/* Negative control: the sign of one tensor's gradient is flipped, tensor after tensor; each must be detected. */
static void a_wrong_sign_is_detected(void **state) {
    (void)state;
    char name[64] = "";
    open_net(11, 0.7);
    learn_net();
    int64_t at = 0;
    for (int32_t i = 0; i < llama_n_tensors(&shape); i++) {
        LlamaTensor t = llama_tensor(&shape, i);
        int64_t n = t.n_rows * t.n;
        for (int64_t k = at; k < at + n; k++) net.dw[k] = -net.dw[k];
        double error = worst_error(4, name);
        if (!(error > 1) || strcmp(name, t.name) != 0)
            fail_msg("the sign of %s is flipped, but the worst error is in %s: %g", t.name, name, error);
        for (int64_t k = at; k < at + n; k++) net.dw[k] = -net.dw[k];
        at += n;
    }
    llama_acts_close(&net.acts);
}

/* Predictions outside the loss mask change neither the loss nor the gradient. */
static void positions_outside_the_mask_change_nothing(void **state) {
    (void)state;
    open_net(11, 1);
    memset(net.loss_mask, 0, sizeof net.loss_mask);
    learn_net();
    for (int64_t i = 0; i < llama_n_weights(&shape); i++) assert_true(net.dw[i] == 0);
    net.loss_mask[4] = 1;
    LlamaResult one = llama_learn(&shape, &net.weights, NULL, &net.acts, net.tokens, net.loss_mask, net.T, 1);
    double logits[11 * 13], probs[11 * 13], row_loss[11];
    linear_forward(logits, net.acts.normed, net.weights.token_embd, NULL, net.T, shape.n_embd, shape.n_vocab);
    cross_entropy_forward(row_loss, probs, logits, net.tokens + 1, net.T, shape.n_vocab);
    assert_int_equal(one.n, 1);
    assert_true(fabs(one.loss - row_loss[4]) < 1e-12);
    llama_acts_close(&net.acts);
}

/* Ties go to the lowest token, as in the sampler. */
static void ties_go_to_the_lowest_token(void **state) {
    (void)state;
    const double logits[4] = {1, 3, 3, 2};
    assert_true(is_first_best(logits, 1, 4));
    assert_false(is_first_best(logits, 2, 4));
    assert_false(is_first_best(logits, 3, 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(sequences_longer_than_a_block),
        cmocka_unit_test(a_wrong_sign_is_detected),
        cmocka_unit_test(positions_outside_the_mask_change_nothing),
        cmocka_unit_test(ties_go_to_the_lowest_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
