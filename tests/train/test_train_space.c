/* test_train_space.c - the trainer of space: the drafter that runs a trainer's file computes the network that was
 * trained, training improves held-out texts, and targets whose layers the network does not compute are refused. */
#include "learned_rig.h"

#include "base/rng.h"
#include "random_model.h"
#include "train/optimizer.h"
#include "train/drafter_trainer.h"
#include "train/nets.h"
#include "train/gemm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA "build/train-space-llama.gguf"
#define QWEN2 "build/train-space-qwen2.gguf"
#define QWEN3 "build/train-space-qwen3.gguf"
#define FILE_OF_IT "build/train-space-drafter.gguf"

enum { V = 300, N_STEPS = 3, N_TEXT = 14, LENGTH = 40, H = 64 };

static int write_targets(void **state) {
    (void)state;
    RandomModel m = {.n_layer = 2, .n_embd = H, .n_head = 4, .n_head_kv = 2, .n_ff = 96, .n_vocab = V, .seed = 9};
    static const char *const archs[] = {"llama", "qwen2", "qwen3"}, *const paths[] = {LLAMA, QWEN2, QWEN3};
    fr_error err;
    for (int i = 0; i < 3; i++) {
        m.arch = archs[i];
        if (random_model_write(&m, paths[i], &err)) fail_msg("%s", err.message);
    }
    if (gemm_open(GEMM_F32, 1, &err)) fail_msg("%s", err.message);
    return 0;
}

typedef struct Trained {
    Gguf *gguf;
    Trainer *trainer;
    SpaceNet net;
} Trained;

static void open_trained(Trained *p, const char *target, int32_t n_steps, bool hard_labels) {
    FrozenTarget f = {0};
    fr_error err;
    p->gguf = rig_gguf(target);
    p->net = (SpaceNet){.V = V,
                        .n_blocks = 1,
                        .mask_std = 0.3,
                        .loss = {.token_weight = 1, .hard_labels = hard_labels, .n_steps = n_steps}};
    if (frozen_open(&f, p->gguf, LENGTH, 1, &err) || frozen_load_layers(&f, &p->net.target, &err))
        fail_msg("%s", err.message);
    const DrafterTrainerOptions o =
        {.class = &space_net_class, .net = &p->net, .max_length = LENGTH, .type = TYPE_F32, .seed = 4, .n_threads = 1};
    if (drafter_trainer_open(&p->trainer, &f, &o, &err)) fail_msg("%s", err.message);
}

static void close_trained(Trained *p) {
    p->trainer->class->close(p->trainer);
    gguf_close(p->gguf);
}

static TrainSums learn(Trained *p, const TrainBatch *b, double weight) {
    fr_error err;
    TrainSums sums = {0};
    if (p->trainer->class->learn(p->trainer, b, weight, &sums, &err)) fail_msg("%s", err.message);
    return sums;
}

/* Random values, the same for tensors of the same name. The tensor of the masks has a row for each step. */
static void scatter_values(Trained *p) {
    for (int32_t i = 0; i < p->trainer->class->n_params(p->trainer); i++) {
        const Param *x = p->trainer->class->param(p->trainer, i);
        uint64_t name = 0;
        for (const char *c = x->name; *c; c++) name = name * 31 + (unsigned char)*c;
        for (int64_t k = 0; k < x->n; k++)
            x->value[k] = (float)(0.6 * (rng_uniform(name, RNG_TEST, (uint64_t)k, 0) - 0.5));
    }
}

/* ---- the file is the network ---------------------------------------------------------------------- */

/* Writes the proposal of the file's drafter after a step that accepted nothing: the masks followed the token before the
 * last of the text. */
static void propose(const char *target, const int32_t *text, Tree *out) {
    Trained p;
    LearnedReader reader;
    Row rows[LENGTH];
    ExtraRow extra[N_STEPS];
    const float *hidden[N_STEPS];
    fr_error err;
    open_trained(&p, target, N_STEPS, true);
    scatter_values(&p);
    if (p.trainer->class->write(p.trainer, FILE_OF_IT, NULL, &err)) fail_msg("%s", err.message);
    Weights *weights = rig_weights(p.gguf, NULL);
    learned_rig_open_reader(&reader, weights);
    Drafter *d = learned_rig_open_drafter(&reader, "space:file=" FILE_OF_IT ",top=3", 1);
    static Tree tree;
    tree_reset(&tree, text[N_TEXT - 2]);
    if (d->class->begin(d, 0, text, N_TEXT - 1, &err)) fail_msg("%s", err.message);
    assert_int_equal(d->class->add_rows(d, 0, &tree, N_STEPS, extra), N_STEPS);
    for (int32_t i = 0; i < N_TEXT - 1 + N_STEPS; i++)
        rows[i] = (Row){.token = i < N_TEXT - 1 ? text[i] : 0,
                        .sequence = reader.sequence,
                        .parent = i - 1,
                        .input = i < N_TEXT - 1 ? NULL : extra[i - (N_TEXT - 1)].input,
                        .want_hidden = true};
    if (executor_reserve(reader.executor, reader.sequence, N_TEXT - 1 + N_STEPS, &err) ||
        executor_forward(reader.executor, rows, N_TEXT - 1 + N_STEPS, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < N_STEPS; i++) hidden[i] = executor_hidden(reader.executor, N_TEXT - 1 + i);
    const VerifyResult verdict = {.n_path = 0, .next_token = text[N_TEXT - 1]};
    const VerifiedTree v = {.tree = &tree, .verdict = &verdict, .n_extra = N_STEPS, .extra_hidden = hidden};
    if (d->class->observe_tree(d, 0, &v, &err) || d->class->observe(d, 0, text + N_TEXT - 1, 1, &err))
        fail_msg("%s", err.message);
    rig_propose(d, 0, text[N_TEXT - 1], 40, V, out);
    drafter_close(d);
    learned_rig_close_reader(&reader);
    rig_weights_close(weights);
    close_trained(&p);
}

/* Returns the probability that step `depth` of the network gives to the last of `tokens`: n times the loss of n steps
 * is n - 1 times that of n - 1 steps plus the loss of step n. */
static double probability(Trained *trained, const int32_t *tokens, int32_t depth) {
    int32_t p = N_TEXT - 2 + depth;
    uint8_t loss_mask[LENGTH] = {0};
    loss_mask[p] = 1;
    const TrainBatch b = {1, p + 1, tokens, loss_mask, 0};
    double loss = depth * learn(&trained[depth], &b, 0).loss;
    if (depth > 1) loss -= (depth - 1) * learn(&trained[depth - 1], &b, 0).loss;
    return exp(-loss);
}

/* The file rounds nothing; the drafter's rows have activations of 16 bits. */
static void the_file_is_the_network(void **state) {
    (void)state;
    static const char *const targets[] = {LLAMA, QWEN2};
    static Tree tree;
    int32_t text[N_TEXT], tokens[N_TEXT + N_STEPS + 1];
    rig_tokens(12, V, text, N_TEXT);
    for (int i = 0; i < 2; i++) {
        Trained trained[N_STEPS + 1];
        propose(targets[i], text, &tree);
        assert_true(tree.n > 10);
        for (int32_t k = 1; k <= N_STEPS; k++)
            open_trained(&trained[k], targets[i], k, true), scatter_values(&trained[k]);
        int32_t deepest = 0;
        for (int32_t node = 1; node < tree.n; node++) {
            int32_t depth = tree.nodes[node].depth, parent = tree.nodes[node].parent;
            memcpy(tokens, text, sizeof text);
            for (int32_t k = node; k > 0; k = tree.nodes[k].parent)
                tokens[N_TEXT - 1 + tree.nodes[k].depth] = tree.nodes[k].token;
            double want = probability(trained, tokens, depth);
            double got = (double)(tree.nodes[node].p_accept / tree.nodes[parent].p_accept);
            if (!(fabs(got - want) < 0.01 * want))
                fail_msg("%s: depth %d: the drafter has %g, the network %g", targets[i], depth, got, want);
            if (depth > deepest) deepest = depth;
        }
        assert_int_equal(deepest, N_STEPS);
        for (int32_t k = 1; k <= N_STEPS; k++) close_trained(&trained[k]);
    }
}

/* ---- learning ------------------------------------------------------------------------------------- */

/* Texts that count upwards in steps of one, two or three. */
static void make_texts(int32_t *tokens, int32_t n, uint64_t seed) {
    for (int32_t i = 0; i < n; i++) {
        int32_t first = rig_token(seed, (uint64_t)i, V), by = 1 + rig_token(seed + 1, (uint64_t)i, 3);
        for (int32_t t = 0; t <= LENGTH; t++) tokens[i * (LENGTH + 1) + t] = (first + t * by) % V;
    }
}

static void training_improves_held_out_texts(void **state) {
    (void)state;
    enum { N = 4 };
    static int32_t tokens[N * (LENGTH + 1)], held_out[N * (LENGTH + 1)];
    static uint8_t loss_mask[N * LENGTH];
    Trained p;
    fr_error err;
    memset(loss_mask, 1, sizeof loss_mask);
    make_texts(held_out, N, 900);
    open_trained(&p, LLAMA, 2, false);
    const TrainBatch test = {N, LENGTH, held_out, loss_mask, 0};
    AdamW adam;
    const AdamWOptions o = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    if (adamw_open(&adam, &o, p.trainer, &err)) fail_msg("%s", err.message);
    double before = learn(&p, &test, 0).loss;
    for (uint64_t step = 0; step < 30; step++) {
        make_texts(tokens, N, 2 * step);
        const TrainBatch b = {N, LENGTH, tokens, loss_mask, (int64_t)step * N};
        trainer_zero_gradients(p.trainer);
        learn(&p, &b, 1.0 / (N * LENGTH));
        adamw_step(&adam, p.trainer, 0.01, clip_scale(trainer_gradient_norm(p.trainer, 1), 1));
    }
    double after = learn(&p, &test, 0).loss;
    if (!(after < 0.9 * before)) fail_msg("held-out loss %g before, %g after", before, after);
    adamw_close(&adam);
    close_trained(&p);
}

static void other_layers_are_refused(void **state) {
    (void)state;
    FrozenTarget f = {0};
    MaskTarget t;
    fr_error err;
    Gguf *g = rig_gguf(QWEN3);
    if (frozen_open(&f, g, LENGTH, 1, &err)) fail_msg("%s", err.message);
    assert_int_equal(frozen_load_layers(&f, &t, &err), FR_ERR_UNSUPPORTED);
    if (!strstr(err.message, "llama and qwen2 only")) fail_msg("%s", err.message);
    frozen_close(&f);
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_is_the_network),
        cmocka_unit_test(training_improves_held_out_texts),
        cmocka_unit_test(other_layers_are_refused),
    };
    return cmocka_run_group_tests(tests, write_targets, NULL);
}
