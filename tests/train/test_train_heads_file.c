/* The trainers of medusa, hydra and redrafter: the file each writes is, to the drafter of that name, the network that was
 * trained; it says what the target says to begin with, learns what held out texts are like, and is refused by other targets. */
#include "learned_rig.h"

#include "base/rng.h"
#include "spec/tree/static_tree.h"
#include "train/loop/adamw.h"
#include "train/loop/drafter_trainer.h"
#include "train/ops/gemm.h"
#include "train/nets/net_hydra.h"
#include "train/nets/net_medusa.h"
#include "train/nets/net_redrafter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/heads-target.gguf"
#define FILE_OF_IT "build/heads-drafter.gguf"

enum { H = 64, V = 300, N_STEPS = 3, N_TEXT = 14, LENGTH = 40 };

static Gguf *target_gguf;
static Model *target;

typedef enum Kind { MEDUSA, MEDUSA_TARGET, HYDRA, HYDRA_TARGET, REDRAFTER, REDRAFTER_ZERO, REDRAFTER_INFO, N_KINDS } Kind;
static const char *const method_of[N_KINDS] = {"medusa", "medusa", "hydra", "hydra", "redrafter", "redrafter", "redrafter"};

typedef struct Pupil {
    Trainer *trainer;
    union {
        MedusaNet medusa;
        HydraNet hydra;
        RedrafterNet redrafter;
    } net;
} Pupil;

/* Of n_steps steps; its first values are those of training. */
static Pupil *open_pupil(Kind kind, int32_t n_steps, bool hard_labels) {
    const HeadLossOptions loss = {.token_weight = 1, .hard_labels = hard_labels, .n_steps = n_steps};
    FrozenTarget f = {0};
    fr_error err;
    Pupil *p = calloc(1, sizeof *p);
    assert_non_null(p);
    if (frozen_open(&f, target_gguf, LENGTH, 1, &err)) fail_msg("%s", err.message);
    DrafterTrainerOptions o = {.net = &p->net, .max_length = LENGTH, .type = TYPE_F32, .seed = 4, .n_threads = 1};
    if (kind <= MEDUSA_TARGET) {
        p->net.medusa = (MedusaNet){H, V, n_steps, 1, kind == MEDUSA, loss};
        o.class = &medusa_net_class;
    } else if (kind <= HYDRA_TARGET) {
        p->net.hydra = (HydraNet){H, V, n_steps, kind == HYDRA ? 1 : 2, kind == HYDRA, 0, loss};
        o.class = &hydra_net_class;
    } else {
        p->net.redrafter = (RedrafterNet){H, V, 2, {.method = "redrafter", .C = H, .V = V, .rank = kind == REDRAFTER_INFO ? 8 : 0, .rms_eps = 1e-5f},
                                          kind == REDRAFTER, 0.5, loss};
        o.class = &redrafter_net_class;
    }
    if (drafter_trainer_open(&p->trainer, &f, &o, &err)) fail_msg("%s", err.message);
    return p;
}

static void close_pupil(Pupil *p) {
    p->trainer->class->close(p->trainer);
    free(p);
}

static TrainSums learn(Pupil *p, const TrainBatch *b, double weight) {
    fr_error err;
    TrainSums sums = {0};
    if (p->trainer->class->learn(p->trainer, b, weight, &sums, &err)) fail_msg("%s", err.message);
    return sums;
}

/* Random values, the same for tensors of one name. */
static void scatter_values(Pupil *p) {
    for (int32_t i = 0; i < p->trainer->class->n_params(p->trainer); i++) {
        const Param *x = p->trainer->class->param(p->trainer, i);
        uint64_t name = 0;
        for (const char *c = x->name; *c; c++) name = name * 31 + (unsigned char)*c;
        for (int64_t k = 0; k < x->n; k++) x->value[k] = (float)(0.4 * (rng_uniform(name, RNG_TEST, (uint64_t)k, 0) - 0.5));
    }
}

/* ---- the file is the network --------------------------------------------------------------------- */

static Tree tree;

/* What the drafter proposes behind a text, from the file that this kind's trainer writes. */
static void propose(Kind kind, const int32_t *text) {
    static const char *const options[N_KINDS] = {",top=2", ",top=2", ",top=2", ",top=2", ",width=4,length=3", ",width=4,length=3",
                                                 ",width=4,length=3"};
    char spec[128];
    fr_error err;
    LearnedReader reader;
    Pupil *p = open_pupil(kind, N_STEPS, true);
    scatter_values(p);
    if (p->trainer->class->write(p->trainer, FILE_OF_IT, NULL, &err)) fail_msg("%s", err.message);
    close_pupil(p);
    snprintf(spec, sizeof spec, "%s:file=" FILE_OF_IT "%s", method_of[kind], options[kind]);
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
    learned_rig_feed(&reader, d, 0, text, N_TEXT, 5);
    rig_propose(d, 0, text[N_TEXT - 1], 14, V, &tree);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* The network's probability of the last token at its step `depth`, below a text of n_tokens whose pending token is
 * N_TEXT - 1. A lesson's loss at one place is the mean over the steps that lead there: that of n steps, times n, is that of
 * n - 1 steps and the n-th. */
static double probability(Pupil *const *pupils, const int32_t *tokens, int32_t depth) {
    int32_t place = N_TEXT - 2 + depth;
    uint8_t loss_mask[LENGTH] = {0};
    loss_mask[place] = 1;
    const TrainBatch b = {1, place + 1, tokens, loss_mask, 0};
    double loss = depth * learn(pupils[depth], &b, 0).loss;
    if (depth > 1) loss -= (depth - 1) * learn(pupils[depth - 1], &b, 0).loss;
    return exp(-loss);
}

/* The worst difference between what a node's p_accept says of its token and what the network of `kind` says. */
static double worst_difference(Kind kind, const int32_t *text) {
    Pupil *pupils[N_STEPS + 1] = {NULL};
    double worst = 0;
    int32_t tokens[N_TEXT + N_STEPS + 1];
    memcpy(tokens, text, N_TEXT * sizeof *tokens);
    for (int32_t k = 1; k <= N_STEPS; k++) {
        pupils[k] = open_pupil(kind, k, true);
        scatter_values(pupils[k]);
    }
    for (int32_t i = 1; i < tree.n; i++) {
        const TreeNode *node = &tree.nodes[i];
        for (int32_t at = i; at > 0; at = tree.nodes[at].parent) tokens[N_TEXT - 1 + tree.nodes[at].depth] = tree.nodes[at].token;
        double said = (double)node->p_accept / (node->parent ? (double)tree.nodes[node->parent].p_accept : 1);
        double difference = fabs(probability(pupils, tokens, node->depth) / said - 1);
        if (!(difference <= worst)) worst = difference;
    }
    for (int32_t k = 1; k <= N_STEPS; k++) close_pupil(pupils[k]);
    return worst;
}

static void the_drafter_runs_what_was_trained(void **state) {
    (void)state;
    int32_t text[N_TEXT];
    for (Kind kind = 0; kind < N_KINDS; kind++) {
        int32_t deepest = 0;
        rig_tokens(30 + (uint64_t)kind, V, text, N_TEXT);
        propose(kind, text);
        for (int32_t i = 1; i < tree.n; i++) deepest = tree.nodes[i].depth > deepest ? tree.nodes[i].depth : deepest;
        assert_true(tree.n > 6 && deepest == N_STEPS);
        double difference = worst_difference(kind, text);
        if (!(difference < 5e-3)) fail_msg("%s, case %d: the file and the network differ by %g", method_of[kind], (int)kind, difference);
    }
    propose(REDRAFTER, text); /* negative controls: the other start; without the info */
    assert_true(worst_difference(REDRAFTER_ZERO, text) > 0.02);
    propose(REDRAFTER_INFO, text);
    assert_true(worst_difference(REDRAFTER_ZERO, text) > 0.02);
}

static void another_target_refuses_it(void **state) {
    (void)state;
    int32_t text[N_TEXT];
    fr_error err;
    Drafter *d;
    learned_rig_write_target("build/heads-other.gguf", 8);
    Gguf *g = rig_gguf("build/heads-other.gguf");
    Model *other = rig_model(g, NULL);
    for (Kind kind = 0; kind < N_KINDS; kind += 2) {
        char spec[64];
        rig_tokens(1, V, text, N_TEXT);
        propose(kind, text);
        snprintf(spec, sizeof spec, "%s:file=" FILE_OF_IT, method_of[kind]);
        const DrafterEnv env = {.n_vocab = V, .max_sequences = 1, .target = g, .target_model = other, .n_ctx = 64, .n_threads = 1};
        assert_int_equal(drafter_open(&d, spec, &env, 0, &err), FR_ERR_MISMATCH);
        assert_non_null(strstr(err.message, "target"));
    }
    model_close(other);
    gguf_close(g);
}

/* ---- learning ------------------------------------------------------------------------------------ */

enum { N_TRAIN = 6, N_VALID = 3, ALPHABET = 24 };
static int32_t words[N_TRAIN + N_VALID][LENGTH + 1];
static uint8_t loss_mask[N_TRAIN + N_VALID][LENGTH];
static const TrainBatch training = {N_TRAIN, LENGTH, words[0], loss_mask[0], 0};
static const TrainBatch held_out = {N_VALID, LENGTH, words[N_TRAIN], loss_mask[N_TRAIN], 0};

/* Each token has two that may follow. */
static void fill_words(void) {
    for (int32_t i = 0; i < N_TRAIN + N_VALID; i++)
        for (int32_t k = 0; k <= LENGTH; k++) {
            double coin = rng_uniform(3, RNG_TEST, (uint64_t)i, (uint32_t)k);
            words[i][k] = k ? 5 + (words[i][k - 1] * 7 + (coin < 0.3 ? 3 : 11)) % ALPHABET : 5 + i;
            if (k < LENGTH) loss_mask[i][k] = k > 6;
        }
}

static double right_share(const TrainSums *s) {
    double right = 0, of = 0;
    for (int32_t i = 0; i < s->n_heads; i++) right += (double)s->right[i], of += (double)s->of[i];
    return right / of;
}

/* Steps of training on those words. */
static void train(Pupil *p, int n_steps) {
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

static void held_out_texts_are_guessed_better(void **state) {
    (void)state;
    fill_words();
    for (Kind kind = 0; kind < N_KINDS; kind++) {
        Pupil *p = open_pupil(kind, N_STEPS, false);
        TrainSums before = learn(p, &held_out, 0);
        assert_int_equal(before.n_heads, N_STEPS);
        assert_int_equal(before.n, N_VALID * (LENGTH - 7));
        train(p, 40);
        TrainSums after = learn(p, &held_out, 0);
        if (!(after.loss < 0.9 * before.loss)) fail_msg("case %d: loss %g, before %g", (int)kind, after.loss, before.loss);
        if (kind >= HYDRA) assert_true(right_share(&after) > right_share(&before) + 0.1); /* medusa is not told the tokens */
        close_pupil(p);
    }
}

/* ---- the static tree ----------------------------------------------------------------------------- */

/* Whether the tree that medusa draws from its file has the shape that these chances ask for. */
static bool has_shape(const double *chance) {
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
    static_tree_build(&shape, chance, N_STEPS, 8, INT32_MAX);
    bool same = tree.n == (shape.n < BUDGET + 1 ? shape.n : BUDGET + 1);
    for (int32_t i = 1; i < tree.n && same; i++) same = tree.nodes[i].parent == shape.nodes[i].parent;
    return same;
}

/* What was measured on held out texts, written and read back, is the shape of the static tree; without it, the prior is. */
static void the_static_tree_is_the_measured_one(void **state) {
    (void)state;
    fr_error err;
    float accuracy[TRAIN_MAX_STEPS * TRAIN_RANKS];
    double measured[N_STEPS * 8], prior[N_STEPS * 8];
    fill_words();
    Pupil *p = open_pupil(MEDUSA, N_STEPS, false);
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
    close_pupil(p);
}

/* Before they learn, heads say at each step what the target says at the place they start from. */
static void heads_begin_as_the_target(void **state) {
    (void)state;
    fill_words();
    double loss[N_KINDS];
    for (Kind kind = MEDUSA; kind <= HYDRA_TARGET; kind++) {
        Pupil *p = open_pupil(kind, N_STEPS, false);
        TrainSums s = learn(p, &held_out, 0);
        loss[kind] = s.loss / (double)s.n;
        if (!(fabs(loss[kind] - loss[MEDUSA]) < 1e-5 * loss[MEDUSA])) fail_msg("case %d: %g, not %g", (int)kind, loss[kind], loss[MEDUSA]);
        close_pupil(p);
    }
    assert_true(loss[MEDUSA] > 0.1);
}

static int open_all(void **state) {
    (void)state;
    gemm_open(GEMM_F32);
    learned_rig_write_target(TARGET, 6);
    target_gguf = rig_gguf(TARGET);
    target = rig_model(target_gguf, NULL);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    model_close(target);
    gguf_close(target_gguf);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_drafter_runs_what_was_trained),
        cmocka_unit_test(another_target_refuses_it),
        cmocka_unit_test(held_out_texts_are_guessed_better),
        cmocka_unit_test(the_static_tree_is_the_measured_one),
        cmocka_unit_test(heads_begin_as_the_target),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
