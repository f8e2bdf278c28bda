/* test_train_heads_file.c - the trainers of medusa, hydra and redrafter: the drafter that runs a trainer's file
 * computes the network that was trained; untrained heads repeat the target; training improves held-out texts; another
 * target refuses the file. */
#include "learned_rig.h"

#include "base/rng.h"
#include "tree/tree_shapes.h"
#include "train/optimizer.h"
#include "train/drafter_trainer.h"
#include "train/gemm.h"
#include "train/nets.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/heads-target.gguf"
#define FILE_OF_IT "build/heads-drafter.gguf"

enum { H = 64, V = 300, N_STEPS = 3, N_TEXT = 14, LENGTH = 40 };

static Gguf *target_gguf;
static Weights *target;

typedef enum Kind {
    MEDUSA,
    MEDUSA_TARGET,
    HYDRA,
    HYDRA_TARGET,
    HYDRA_PLUS,
    REDRAFTER,
    REDRAFTER_ZERO,
    REDRAFTER_INFO,
    N_KINDS
} Kind;
static const char *const method_of[N_KINDS] = {"medusa", "medusa",    "hydra",     "hydra",
                                               "hydra",  "redrafter", "redrafter", "redrafter"};

typedef struct TrainedDrafter {
    Trainer *trainer;
    union {
        MedusaNet medusa;
        HydraNet hydra;
        RedrafterNet redrafter;
    } net;
} TrainedDrafter;

/* Puts a layer before the heads and gives them biases, as in published files. */
static void make_hydra_plus(HydraNet *net, const Model *m) {
    const Hparams *h = &m->hparams;
    net->has_skip_bias = net->has_output_bias = net->has_prefix = true;
    net->norm_start = start_norm(m);
    net->prefix = (UnrollShape){.method = "hydra.prefix",
                                .C = H,
                                .n_ff = 48,
                                .n_head = h->n_head,
                                .n_head_kv = h->n_head_kv,
                                .head_dim = h->head_dim,
                                .rms_eps = h->rms_eps,
                                .rope = &m->ropes[0],
                                .n_steps = 1,
                                .has_attn_norm = true};
}

/* Opens a trainer for n_steps steps, with the initial values of training. */
static TrainedDrafter *open_drafter_trainer(Kind kind, int32_t n_steps, bool hard_labels) {
    const HeadLossOptions loss = {.token_weight = 1, .hard_labels = hard_labels, .n_steps = n_steps};
    FrozenTarget f = {0};
    fr_error err;
    TrainedDrafter *p = calloc(1, sizeof *p);
    assert_non_null(p);
    if (frozen_open(&f, target_gguf, LENGTH, 1, &err)) fail_msg("%s", err.message);
    DrafterTrainerOptions o = {.net = &p->net, .max_length = LENGTH, .type = TYPE_F32, .seed = 4, .n_threads = 1};
    if (kind <= MEDUSA_TARGET) {
        p->net.medusa = (MedusaNet){H, V, n_steps, 1, kind == MEDUSA, loss};
        o.class = &medusa_net_class;
    } else if (kind <= HYDRA_PLUS) {
        p->net.hydra = (HydraNet){.C = H,
                                  .V = V,
                                  .n_heads = n_steps,
                                  .n_blocks = kind == HYDRA ? 1 : 2,
                                  .has_own_output = kind != HYDRA_TARGET,
                                  .loss = loss};
        if (kind == HYDRA_PLUS) make_hydra_plus(&p->net.hydra, f.model);
        o.class = &hydra_net_class;
    } else {
        p->net.redrafter = (RedrafterNet){
            H,
            V,
            2,
            {.method = "redrafter", .C = H, .V = V, .rank = kind == REDRAFTER_INFO ? 8 : 0, .rms_eps = 1e-5f},
            kind == REDRAFTER,
            0.5,
            loss};
        o.class = &redrafter_net_class;
    }
    if (drafter_trainer_open(&p->trainer, &f, &o, &err)) fail_msg("%s", err.message);
    return p;
}

static void close_drafter_trainer(TrainedDrafter *p) {
    p->trainer->class->close(p->trainer);
    free(p);
}

static TrainSums learn(TrainedDrafter *p, const TrainBatch *b, double weight) {
    fr_error err;
    TrainSums sums = {0};
    if (p->trainer->class->learn(p->trainer, b, weight, &sums, &err)) fail_msg("%s", err.message);
    return sums;
}

/* Random values, the same for tensors of the same name. */
static void scatter_values(TrainedDrafter *p) {
    for (int32_t i = 0; i < p->trainer->class->n_params(p->trainer); i++) {
        const Param *x = p->trainer->class->param(p->trainer, i);
        uint64_t name = 0;
        for (const char *c = x->name; *c; c++) name = name * 31 + (unsigned char)*c;
        for (int64_t k = 0; k < x->n; k++)
            x->value[k] = (float)(0.4 * (rng_uniform(name, RNG_TEST, (uint64_t)k, 0) - 0.5));
    }
}

/* ---- the file is the network --------------------------------------------------------------------- */

static Tree tree;

/* Returns the tree that the drafter proposes after a text, from the file that the trainer of this kind writes. */
static void propose(Kind kind, const int32_t *text) {
    static const char *const options[N_KINDS] = {
        ",top=2",           ",top=2", ",top=2", ",top=2", ",top=2", ",width=4,length=3", ",width=4,length=3",
        ",width=4,length=3"};
    char spec[128];
    fr_error err;
    LearnedReader reader;
    TrainedDrafter *p = open_drafter_trainer(kind, N_STEPS, true);
    scatter_values(p);
    if (p->trainer->class->write(p->trainer, FILE_OF_IT, NULL, &err)) fail_msg("%s", err.message);
    close_drafter_trainer(p);
    snprintf(spec, sizeof spec, "%s:file=" FILE_OF_IT "%s", method_of[kind], options[kind]);
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
    learned_rig_feed(&reader, d, 0, text, N_TEXT, 5);
    rig_propose(d, 0, text[N_TEXT - 1], 14, V, &tree);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* Returns the probability that step `depth` of the network gives to the last of `tokens`, after a text whose pending
 * token is number N_TEXT - 1. The loss at one position is the mean over the steps that predict there; n times that of n
 * steps is n - 1 times that of n - 1 steps plus the loss of step n. */
static double probability(TrainedDrafter *const *trained, const int32_t *tokens, int32_t depth) {
    int32_t p = N_TEXT - 2 + depth;
    uint8_t loss_mask[LENGTH] = {0};
    loss_mask[p] = 1;
    const TrainBatch b = {1, p + 1, tokens, loss_mask, 0};
    double loss = depth * learn(trained[depth], &b, 0).loss;
    if (depth > 1) loss -= (depth - 1) * learn(trained[depth - 1], &b, 0).loss;
    return exp(-loss);
}

/* Returns the largest relative difference between the probability of a token by its node's p_accept and by the network
 * of `kind`. */
static double worst_difference(Kind kind, const int32_t *text) {
    TrainedDrafter *trained[N_STEPS + 1] = {NULL};
    double worst = 0;
    int32_t tokens[N_TEXT + N_STEPS + 1];
    memcpy(tokens, text, N_TEXT * sizeof *tokens);
    for (int32_t k = 1; k <= N_STEPS; k++) {
        trained[k] = open_drafter_trainer(kind, k, true);
        scatter_values(trained[k]);
    }
    for (int32_t i = 1; i < tree.n; i++) {
        const TreeNode *node = &tree.nodes[i];
        for (int32_t at = i; at > 0; at = tree.nodes[at].parent)
            tokens[N_TEXT - 1 + tree.nodes[at].depth] = tree.nodes[at].token;
        double drafted = (double)node->p_accept / (node->parent ? (double)tree.nodes[node->parent].p_accept : 1);
        double difference = fabs(probability(trained, tokens, node->depth) / drafted - 1);
        if (!(difference <= worst)) worst = difference;
    }
    for (int32_t k = 1; k <= N_STEPS; k++) close_drafter_trainer(trained[k]);
    return worst;
}

static void the_drafter_runs_the_trained_network(void **state) {
    (void)state;
    int32_t text[N_TEXT];
    for (Kind kind = 0; kind < N_KINDS; kind++) {
        int32_t deepest = 0;
        rig_tokens(30 + (uint64_t)kind, V, text, N_TEXT);
        propose(kind, text);
        for (int32_t i = 1; i < tree.n; i++) deepest = tree.nodes[i].depth > deepest ? tree.nodes[i].depth : deepest;
        assert_true(tree.n > 6 && deepest == N_STEPS);
        double difference = worst_difference(kind, text);
        if (!(difference < 5e-3))
            fail_msg("%s, case %d: the file and the network differ by %g", method_of[kind], (int)kind, difference);
    }
    propose(REDRAFTER, text); /* negative controls: another start state; no token info */
    assert_true(worst_difference(REDRAFTER_ZERO, text) > 0.02);
    propose(REDRAFTER_INFO, text);
    assert_true(worst_difference(REDRAFTER_ZERO, text) > 0.02);
}

static void the_file_is_refused_with_another_target(void **state) {
    (void)state;
    int32_t text[N_TEXT];
    fr_error err;
    Drafter *d;
    learned_rig_write_target("build/heads-other.gguf", 8);
    Gguf *g = rig_gguf("build/heads-other.gguf");
    Weights *other = rig_weights(g, NULL);
    Device *device = rig_device(other, 1);
    for (Kind kind = 0; kind < N_KINDS; kind += 2) {
        char spec[64];
        rig_tokens(1, V, text, N_TEXT);
        propose(kind, text);
        snprintf(spec, sizeof spec, "%s:file=" FILE_OF_IT, method_of[kind]);
        const DrafterEnv env =
            {.n_vocab = V, .max_sequences = 1, .target = g, .weights = other, .device = device, .n_ctx = 64};
        assert_int_equal(drafter_open(&d, spec, &env, 0, &err), FR_ERR_MISMATCH);
        assert_non_null(strstr(err.message, "target"));
    }
    device_close(device);
    rig_weights_close(other);
    gguf_close(g);
}

/* ---- learning ------------------------------------------------------------------------------------ */

enum { N_TRAIN = 6, N_VALID = 3, ALPHABET = 24 };
static int32_t texts[N_TRAIN + N_VALID][LENGTH + 1];
static uint8_t loss_mask[N_TRAIN + N_VALID][LENGTH];
static const TrainBatch training = {N_TRAIN, LENGTH, texts[0], loss_mask[0], 0};
static const TrainBatch held_out = {N_VALID, LENGTH, texts[N_TRAIN], loss_mask[N_TRAIN], 0};

/* Every token has two possible successors. */
static void fill_texts(void) {
    for (int32_t i = 0; i < N_TRAIN + N_VALID; i++)
        for (int32_t k = 0; k <= LENGTH; k++) {
            double u = rng_uniform(3, RNG_TEST, (uint64_t)i, (uint32_t)k);
            texts[i][k] = k ? 5 + (texts[i][k - 1] * 7 + (u < 0.3 ? 3 : 11)) % ALPHABET : 5 + i;
            if (k < LENGTH) loss_mask[i][k] = k > 6;
        }
}

static double accuracy_of(const TrainSums *s) {
    double right = 0, of = 0;
    for (int32_t i = 0; i < s->n_heads; i++) right += (double)s->right[i], of += (double)s->of[i];
    return right / of;
}

/* n_steps training steps on those texts. */
static void train(TrainedDrafter *p, int n_steps) {
    const AdamWOptions o = {0.9, 0.95, 1e-8, 0.1};
    AdamW a;
    assert_int_equal(adamw_open(&a, &o, p->trainer, NULL), FR_OK);
    for (int i = 0; i < n_steps; i++) {
        trainer_zero_gradients(p->trainer);
        learn(p, &training, 1.0 / (N_TRAIN * (LENGTH - 7)));
        adamw_step(&a, p->trainer, 3e-3, clip_scale(trainer_gradient_norm(p->trainer, 1), 1));
    }
    adamw_close(&a);
}

static void training_improves_held_out_texts(void **state) {
    (void)state;
    fill_texts();
    for (Kind kind = 0; kind < N_KINDS; kind++) {
        TrainedDrafter *p = open_drafter_trainer(kind, N_STEPS, false);
        TrainSums before = learn(p, &held_out, 0);
        assert_int_equal(before.n_heads, N_STEPS);
        assert_int_equal(before.n, N_VALID * (LENGTH - 7));
        train(p, 40);
        TrainSums after = learn(p, &held_out, 0);
        if (!(after.loss < 0.9 * before.loss))
            fail_msg("case %d: loss %g, before %g", (int)kind, after.loss, before.loss);
        if (kind >= HYDRA)
            assert_true(accuracy_of(&after) > accuracy_of(&before) + 0.1); /* medusa does not see the tokens */
        close_drafter_trainer(p);
    }
}

/* ---- the static tree ----------------------------------------------------------------------------- */

/* Does the static tree of the medusa file have the shape that these acceptance probabilities give? */
static bool has_shape(const double *p_accept) {
    enum { BUDGET = 20 };
    static StaticTree shape;
    int32_t text[N_TEXT];
    LearnedReader reader;
    rig_tokens(7, V, text, N_TEXT);
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, "medusa:tree=static,top=8,file=" FILE_OF_IT, 1);
    learned_rig_feed(&reader, d, 0, text, N_TEXT, 5);
    rig_propose(d, 0, text[N_TEXT - 1], BUDGET, V, &tree);
    drafter_close(d);
    learned_rig_close_reader(&reader);
    static_tree_build(&shape, p_accept, N_STEPS, 8, INT32_MAX);
    bool same = tree.n == (shape.n < BUDGET + 1 ? shape.n : BUDGET + 1);
    for (int32_t i = 1; i < tree.n && same; i++) same = tree.nodes[i].parent == shape.nodes[i].parent;
    return same;
}

/* The accuracy measured on held-out texts goes into the file and determines the shape of the static tree; without it
 * the prior does. */
static void the_static_tree_is_the_measured_one(void **state) {
    (void)state;
    fr_error err;
    float accuracy[TRAIN_MAX_STEPS * TRAIN_RANKS];
    double measured[N_STEPS * 8], prior[N_STEPS * 8];
    fill_texts();
    TrainedDrafter *p = open_drafter_trainer(MEDUSA, N_STEPS, false);
    train(p, 10);
    TrainSums sums = learn(p, &held_out, 0), nothing = {.n_heads = 1};
    assert_false(drafter_trainer_accuracy(&nothing, accuracy));
    assert_true(drafter_trainer_accuracy(&sums, accuracy));
    for (int32_t i = 0; i < N_STEPS * 8; i++) measured[i] = (double)accuracy[i / 8 * TRAIN_RANKS + i % 8];
    static_tree_prior(prior, N_STEPS, 8);
    const DrafterTraining record = {.accuracy = accuracy, .n_heads = N_STEPS, .n_ranks = TRAIN_RANKS};
    if (p->trainer->class->write(p->trainer, FILE_OF_IT, &record, &err)) fail_msg("%s", err.message);
    assert_true(has_shape(measured));
    assert_false(has_shape(prior));
    if (p->trainer->class->write(p->trainer, FILE_OF_IT, NULL, &err)) fail_msg("%s", err.message);
    assert_true(has_shape(prior));
    assert_false(has_shape(measured));
    close_drafter_trainer(p);
}

/* Before training, heads give at each step the target's distribution at the position they start from. */
static void untrained_heads_repeat_the_target(void **state) {
    (void)state;
    fill_texts();
    double loss[N_KINDS];
    for (Kind kind = MEDUSA; kind <= HYDRA_PLUS; kind++) {
        TrainedDrafter *p = open_drafter_trainer(kind, N_STEPS, false);
        TrainSums s = learn(p, &held_out, 0);
        loss[kind] = s.loss / (double)s.n;
        double tolerance = kind == HYDRA_PLUS ? 0.01 : 1e-5; /* its norm makes all states as long */
        if (!(fabs(loss[kind] - loss[MEDUSA]) < tolerance * loss[MEDUSA]))
            fail_msg("case %d: %g, not %g", (int)kind, loss[kind], loss[MEDUSA]);
        close_drafter_trainer(p);
    }
    assert_true(loss[MEDUSA] > 0.1);
}

static int open_all(void **state) {
    (void)state;
    assert_int_equal(gemm_open(GEMM_F32, 4, NULL), FR_OK);
    learned_rig_write_target(TARGET, 6);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_drafter_runs_the_trained_network),
        cmocka_unit_test(the_file_is_refused_with_another_target),
        cmocka_unit_test(training_improves_held_out_texts),
        cmocka_unit_test(the_static_tree_is_the_measured_one),
        cmocka_unit_test(untrained_heads_repeat_the_target),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
