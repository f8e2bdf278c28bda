/* test_train_unroll.c - the trained layers of eagle and lyanna: the drafter that opens the file computes what the
 * network computes, at every step of its own predictions; training lowers the loss. Also tests noise and hot tokens. */
#include "learned_rig.h"
#include "random_model.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/optimizer.h"
#include "train/drafter_trainer.h"
#include "train/dataset.h"
#include "train/nets.h"
#include "train/gemm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TARGET "build/train-unroll-target.gguf"

enum { N_TEXT = 14, DEPTH = 3, LENGTH = 40, N_SEQUENCES = 4, MAX_TENSORS = 32 };

static Gguf *gguf;
static FrozenTarget frozen; /* computes the target's hidden states for the tests */

static void open_target(const char *arch) {
    RandomModel m = {.arch = arch,
                     .n_layer = 2,
                     .n_embd = 64,
                     .n_head = 4,
                     .n_head_kv = 2,
                     .n_ff = 96,
                     .n_vocab = 300,
                     .types = {TYPE_Q8_0, TYPE_F16},
                     .n_types = 2,
                     .seed = 11};
    fr_error err;
    if (strcmp(arch, "gemma2") == 0 || strcmp(arch, "gemma3") == 0) m.window = 9;
    if (strcmp(arch, "qwen35") == 0) {
        m.n_key_heads = 2, m.n_value_heads = 4, m.delta_dim = 16, m.n_conv = 3, m.attention_interval = 2;
        m.n_rot = 8; /* only a part of each head is rotated */
    }
    if (random_model_write(&m, TARGET, &err)) fail_msg("%s", err.message);
    gguf = rig_gguf(TARGET);
    if (frozen_open(&frozen, gguf, LENGTH, 2, &err)) fail_msg("%s", err.message);
}

static void close_target(void) {
    frozen_close(&frozen);
    gguf_close(gguf);
}

/* ---- networks ----------------------------------------------------------------------------------- */

static UnrollShape layer_of(const char *method, int32_t n_steps) {
    const Hparams *h = &frozen.model->hparams;
    return (UnrollShape){.method = method,
                         .C = h->n_embd,
                         .n_ff = 80,
                         .n_head = h->n_head,
                         .n_head_kv = h->n_head_kv,
                         .head_dim = h->head_dim,
                         .rms_eps = h->rms_eps,
                         .rope = &frozen.model->ropes[0],
                         .n_steps = n_steps,
                         .fc_std = start_token_std(frozen.embd, h->n_vocab, h->n_embd),
                         .fuses_token = true,
                         .state_gradient = 1,
                         .qk_start_anew = frozen.model->layers[h->n_layer - 1].q_norm != NULL};
}

static const int32_t *hot;
static int32_t n_hot, rank, gate_rank;
static bool first_token, is_parallel, has_confidence, is_separate, lacks_norm;

static InfoShape info_of(const char *method) {
    const Hparams *h = &frozen.model->hparams;
    return (InfoShape){method, h->n_embd, h->n_vocab, rank, n_hot, hot, h->rms_eps};
}

/* The drafter uses the target's LM head and has its bound. */
static void set_bound(UnrollNet *n) { n->loss.target_cap = n->loss.logit_cap = frozen.model->hparams.logit_cap; }

static void set_confidence(UnrollNet *n) {
    n->confidence = (ConfidenceShape){n->layer.method, n->layer.C, has_confidence};
    n->loss.has_margins = has_confidence;
}

static UnrollNet eagle_of(HeadLossOptions loss) {
    UnrollNet n = {.layer = layer_of("eagle", loss.n_steps), .info = info_of("eagle"), .loss = loss};
    n.layer.fuses_each_step = true;
    set_bound(&n);
    set_confidence(&n);
    return n;
}

static UnrollNet lyanna_of(HeadLossOptions loss) {
    UnrollNet n = {.layer = layer_of("lyanna", loss.n_steps), .info = info_of("lyanna"), .loss = loss};
    n.layer.has_attn_norm = !lacks_norm;
    n.layer.fuses_token = first_token;
    n.layer.is_parallel = is_parallel;
    if (is_separate) {
        n.layer.n_ff_later = 96;
        n.layer.later_fuses = first_token && !is_parallel;
        n.layer.state_gradient = 0.2;
        n.info_skips_first = true;
    }
    n.gate = (GateShape){"lyanna", n.info.C, n.info.V, gate_rank, n.layer.fc_std};
    set_bound(&n);
    set_confidence(&n);
    return n;
}

/* ---- training ----------------------------------------------------------------------------------- */

static const HeadLossOptions learning = {
    .token_weight = 1, .hidden_weight = 0.5, .regression = REGRESSION_SMOOTH_L1, .n_steps = DEPTH};

static Trainer *open_trainer(const NetClass *class, const void *net) {
    FrozenTarget target;
    Trainer *t = NULL;
    fr_error err;
    const DrafterTrainerOptions options = {.class = class,
                                           .net = net,
                                           .max_length = LENGTH,
                                           .type = TYPE_F32,
                                           .n_threads = 2};
    if (frozen_open(&target, gguf, LENGTH, 2, &err) || drafter_trainer_open(&t, &target, &options, &err))
        fail_msg("%s", err.message);
    return t;
}

/* Takes a few steps on one batch of random tokens, and writes the trainer's file to `path`. */
static Trainer *train(const NetClass *class, const void *net, const char *path) {
    int32_t n_vocab = frozen.model->hparams.n_vocab, tokens[N_SEQUENCES * (LENGTH + 1)];
    uint8_t loss_mask[N_SEQUENCES * LENGTH];
    Trainer *t = open_trainer(class, net);
    AdamW adamw;
    fr_error err;
    double first = 0, last = 0;
    rig_tokens(5, n_vocab, tokens, N_SEQUENCES * (LENGTH + 1));
    for (int32_t i = 0; i < N_SEQUENCES * LENGTH; i++) loss_mask[i] = i % LENGTH > 9;
    const AdamWOptions adamw_options = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const TrainBatch batch = {N_SEQUENCES, LENGTH, tokens, loss_mask, 0};
    if (adamw_open(&adamw, &adamw_options, t, &err)) fail_msg("%s", err.message);
    for (int step = 0; step < 8; step++) {
        TrainSums sums = {0};
        trainer_zero_gradients(t);
        if (t->class->learn(t, &batch, 1.0 / 120, &sums, &err)) fail_msg("%s", err.message);
        adamw_step(&adamw, t, 3e-3, 1);
        last = sums.loss / (double)sums.n;
        if (step == 0) first = last;
    }
    if (!(last < 0.9 * first)) fail_msg("%s: the loss went from %g to %g", class->method, first, last);
    if (t->class->write(t, path, NULL, &err)) fail_msg("%s", err.message);
    adamw_close(&adamw);
    return t;
}

/* ---- the network's probabilities ------------------------------------------------------------------ */

static float *weights[MAX_TENSORS];
static void take_weights(Trainer *t) {
    assert_true(t->class->n_params(t) <= MAX_TENSORS);
    for (int32_t i = 0; i < t->class->n_params(t); i++) weights[i] = t->class->param(t, i)->value;
}

/* Returns the network's loss at position p: a mean over the steps. */
static TrainSums loss_at(const NetClass *class, const void *net, const int32_t *tokens, const float *hidden,
                         int32_t p) {
    uint8_t loss_mask[N_TEXT + DEPTH] = {0};
    TrainSums sums = {0};
    loss_mask[p] = 1;
    void *acts = class->acts_open(net, p + 1, NULL);
    assert_non_null(acts);
    const TrainSequence seq = {p + 1, tokens, loss_mask, hidden, frozen.embd, frozen.head, NULL, NULL, 0, 0};
    class->learn(net, weights, NULL, acts, &seq, 0, &sums);
    class->acts_close(acts);
    return sums;
}

static TrainSums sums_at(bool is_eagle, const HeadLossOptions *loss, const int32_t *tokens, const float *hidden,
                         int32_t p) {
    UnrollNet net = is_eagle ? eagle_of(*loss) : lyanna_of(*loss);
    return loss_at(is_eagle ? &eagle_net_class : &lyanna_net_class, &net, tokens, hidden, p);
}

/* log q of the last of a path's n tokens, which are drafted after a text of N_TEXT: the summed loss of n steps at that
 * position minus that of n - 1 steps. */
static double log_q(bool is_eagle, const int32_t *tokens, const float *hidden, int32_t n) {
    double sums[2] = {0};
    for (int32_t i = 0; i < 2 && n - i > 0; i++) {
        const HeadLossOptions loss = {.token_weight = 1, .hard_labels = true, .n_steps = n - i};
        sums[i] = (n - i) * sums_at(is_eagle, &loss, tokens, hidden, N_TEXT - 2 + n).loss;
    }
    return sums[1] - sums[0];
}

/* Every node of the drafter's tree has the probability that the network gives to its path. */
static void check_tree(bool is_eagle, const char *path) {
    int32_t n_vocab = frozen.model->hparams.n_vocab, tokens[N_TEXT + DEPTH + 1] = {0}, at_depth[DEPTH + 1] = {0};
    float *hidden = mem_calloc((size_t)(N_TEXT + DEPTH) * (size_t)frozen.model->hparams.n_embd, sizeof *hidden);
    LearnedReader reader;
    static Tree tree;
    double log_p[TREE_MAX_NODES] = {0};
    char spec[128];
    fr_error err;
    assert_non_null(hidden);
    snprintf(spec, sizeof spec, "%s:file=%s,depth=%d,top=3", is_eagle ? "eagle" : "lyanna", path, DEPTH);
    rig_tokens(21, n_vocab, tokens, N_TEXT);
    if (frozen_read(&frozen, tokens, N_TEXT - 1, hidden, NULL, &err)) fail_msg("%s", err.message);
    learned_rig_open_reader(&reader, frozen.weights);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
    learned_rig_feed(&reader, d, 0, tokens, N_TEXT, 5);
    rig_propose(d, 0, tokens[N_TEXT - 1], 20, n_vocab, &tree);
    for (int32_t i = 1; i < tree.n; i++) {
        const TreeNode *node = &tree.nodes[i];
        at_depth[node->depth]++;
        for (int32_t at = i; at > 0; at = tree.nodes[at].parent)
            tokens[N_TEXT - 1 + tree.nodes[at].depth] = tree.nodes[at].token;
        log_p[i] = log_p[node->parent] + log_q(is_eagle, tokens, hidden, node->depth);
        if (!(fabs(log((double)node->p_accept) - log_p[i]) < 0.02))
            fail_msg("%s: node %d of depth %d: the drafter gives %g, the network %g", spec, i, node->depth,
                     (double)node->p_accept, exp(log_p[i]));
    }
    for (int32_t depth = 1; depth <= DEPTH; depth++) assert_true(at_depth[depth] >= 3);
    drafter_close(d);
    learned_rig_close_reader(&reader);
    mem_free(hidden);
}

/* Returns the probability that the network's confidence head gives to the best token at step n after the text: its loss
 * is -log of that probability, or of one minus it if the token is wrong. */
static double chance(bool is_eagle, const int32_t *tokens, const float *hidden, int32_t n) {
    double loss = 0;
    bool is_right = false;
    for (int32_t i = 0; i < 2 && n - i > 0; i++)
        for (int32_t k = 0; k < 2; k++) {
            const HeadLossOptions options = {.token_weight = 1, .n_steps = n - i};
            has_confidence = k;
            TrainSums sums = sums_at(is_eagle, &options, tokens, hidden, N_TEXT - 2 + n);
            loss += (i == k ? -1 : 1) * (n - i) * sums.loss;
            if (i == 0) is_right = sums.right[n - 1];
        }
    return is_right ? exp(-loss) : 1 - exp(-loss);
}

/* The best child of each node has the probability that the network's head predicts, with a greedy target, for which it
 * is trained. */
static void check_confidence(bool is_eagle, const char *path) {
    int32_t n_vocab = frozen.model->hparams.n_vocab, tokens[N_TEXT + DEPTH + 1] = {0}, n_checked = 0;
    float *hidden = mem_calloc((size_t)(N_TEXT + DEPTH) * (size_t)frozen.model->hparams.n_embd, sizeof *hidden);
    LearnedReader reader;
    static Tree tree;
    char spec[128];
    fr_error err;
    assert_non_null(hidden);
    snprintf(spec, sizeof spec, "%s:file=%s,depth=%d,top=3", is_eagle ? "eagle" : "lyanna", path, DEPTH);
    rig_tokens(21, n_vocab, tokens, N_TEXT);
    if (frozen_read(&frozen, tokens, N_TEXT - 1, hidden, NULL, &err)) fail_msg("%s", err.message);
    learned_rig_open_reader(&reader, frozen.weights);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
    learned_rig_feed(&reader, d, 0, tokens, N_TEXT, 5);
    const SamplingOptions greedy = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};
    d->class->set_sampling(d, 0, &greedy, N_TEXT);
    rig_propose(d, 0, tokens[N_TEXT - 1], 20, n_vocab, &tree);
    for (int32_t i = 1; i < tree.n; i++) {
        const TreeNode *node = &tree.nodes[i];
        bool is_best = true;
        for (int32_t k = 1; k < tree.n; k++)
            if (tree.nodes[k].parent == node->parent && tree.nodes[k].p_accept > node->p_accept) is_best = false;
        if (!is_best) continue;
        for (int32_t at = i; at > 0; at = tree.nodes[at].parent)
            tokens[N_TEXT - 1 + tree.nodes[at].depth] = tree.nodes[at].token;
        double got = (double)(node->p_accept / tree.nodes[node->parent].p_accept),
               want = chance(is_eagle, tokens, hidden, node->depth);
        if (!(fabs(got - want) < 0.02))
            fail_msg("%s: node %d of depth %d: the drafter gives %g, the network's head %g", spec, i, node->depth, got,
                     want);
        n_checked++;
    }
    assert_true(n_checked >= DEPTH);
    drafter_close(d);
    learned_rig_close_reader(&reader);
    mem_free(hidden);
}

/* ---- tests -------------------------------------------------------------------------------------- */

static void eagle_drafts_as_the_network_computes(void **state) {
    (void)state;
    static const struct {
        const char *arch; /* both rope styles; biases, norms on heads, factors, windows, bounded logits, recurrence */
        int32_t rank;
    } cases[] = {{"llama", 0},    {"llama", 16},  {"qwen2", 0},  {"qwen3", 16},
                 {"granite", 16}, {"gemma2", 16}, {"gemma3", 0}, {"qwen35", 16}};
    n_hot = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rank = cases[i].rank;
        open_target(cases[i].arch);
        const UnrollNet net = eagle_of(learning);
        Trainer *t = train(&eagle_net_class, &net, "build/train-eagle.gguf");
        take_weights(t);
        check_tree(true, "build/train-eagle.gguf");
        t->class->close(t);
        close_target();
    }
}

/* Gives the head numbers that matter, because a few steps of training from zeros would change them little. */
static void the_confidence_is_the_networks(void **state) {
    (void)state;
    open_target("llama");
    rank = 16, n_hot = 0, gate_rank = 0, first_token = true, is_parallel = false;
    for (int32_t is_eagle = 0; is_eagle < 2; is_eagle++) {
        const char *path = "build/train-confidence.gguf";
        has_confidence = true;
        const UnrollNet net = is_eagle ? eagle_of(learning) : lyanna_of(learning);
        Trainer *t = train(is_eagle ? &eagle_net_class : &lyanna_net_class, &net, path);
        take_weights(t);
        const Param *head = t->class->param(t, t->class->n_params(t) - 1);
        for (int64_t i = 0; i < head->n; i++) {
            assert_true(head->value[i] != 0);
            head->value[i] = (float)sin((double)(i + 1)) / 4;
        }
        head->value[head->n - CONFIDENCE_SCALARS + CONFIDENCE_SLOPE] = 0.5f;
        fr_error err;
        if (t->class->write(t, path, NULL, &err)) fail_msg("%s", err.message);
        check_confidence(is_eagle, path);
        has_confidence = false;
        t->class->close(t);
    }
    close_target();
}

static void lyanna_drafts_as_the_network_computes(void **state) {
    (void)state;
    static int32_t third[100];
    for (int32_t i = 0; i < 100; i++) third[i] = 3 * i;
    open_target("llama");
    static const struct {
        int32_t rank, n_hot;
        bool first_token;
        int32_t gate_rank;
        bool is_parallel, is_separate, lacks_norm;
    } cases[] = {{16, 0, true, 0, false, false, false}, {16, 100, true, 8, false, false, false},
                 {0, 0, true, 0, true, false, false},   {8, 0, false, 0, false, false, false},
                 {0, 0, false, 16, true, false, false}, {16, 0, true, 32, true, false, false},
                 {16, 0, true, 0, false, true, false},  {16, 100, false, 8, false, true, false},
                 {16, 0, true, 8, true, true, false},   {16, 0, true, 0, false, true, true},
                 {8, 0, true, 0, false, false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rank = cases[i].rank, n_hot = cases[i].n_hot, first_token = cases[i].first_token, hot = third;
        gate_rank = cases[i].gate_rank, is_parallel = cases[i].is_parallel, is_separate = cases[i].is_separate;
        lacks_norm = cases[i].lacks_norm;
        const UnrollNet net = lyanna_of(learning);
        Trainer *t = train(&lyanna_net_class, &net, "build/train-lyanna.gguf");
        take_weights(t);
        check_tree(false, "build/train-lyanna.gguf");
        t->class->close(t);
    }
    is_separate = lacks_norm = false;
    close_target();
}

static double loss_of(const UnrollNet *net, const TrainSequence *seq) {
    TrainSums sums = {0};
    void *acts = lyanna_net_class.acts_open(net, seq->T, NULL);
    assert_non_null(acts);
    lyanna_net_class.learn(net, weights, NULL, acts, seq, 0, &sums);
    lyanna_net_class.acts_close(acts);
    return sums.loss;
}

/* The loss of a few chains is a function of the seed and the sequence's number, and its mean is the loss of all. */
static void chains_are_drawn_without_bias(void **state) {
    (void)state;
    enum { N = 100, T = LENGTH };
    int32_t tokens[T + 1];
    uint8_t loss_mask[T];
    fr_error err;
    open_target("llama");
    rank = 16, n_hot = 0, gate_rank = 0, first_token = is_separate = true, is_parallel = false;
    UnrollNet net = lyanna_of(learning);
    Trainer *t = train(&lyanna_net_class, &net, "build/train-lyanna.gguf");
    float *hidden = mem_alloc((size_t)(T * net.layer.C) * sizeof *hidden);
    take_weights(t);
    rig_tokens(5, frozen.model->hparams.n_vocab, tokens, T + 1);
    for (int32_t i = 0; i < T; i++) loss_mask[i] = i % 5 != 2;
    if (frozen_read(&frozen, tokens, T, hidden, NULL, &err)) fail_msg("%s", err.message);
    TrainSequence seq = {T, tokens, loss_mask, hidden, frozen.embd, frozen.head, NULL, NULL, 3, 0};
    double all = loss_of(&net, &seq), sum = 0;
    int32_t n_repeated = 0;
    net.layer.n_anchors = 4;
    for (seq.i_sequence = 0; seq.i_sequence < N; seq.i_sequence++) {
        double one = loss_of(&net, &seq);
        n_repeated += one == loss_of(&net, &seq);
        sum += one;
    }
    assert_int_equal(n_repeated, N);
    if (!(fabs(sum / N / all - 1) < 0.05)) fail_msg("the mean is %g, and the loss of all chains %g", sum / N, all);
    seq.i_sequence = 0;
    double first = loss_of(&net, &seq);
    seq.seed = 4;
    assert_true(loss_of(&net, &seq) != first);
    net.layer.n_anchors = T;
    assert_true(fabs(loss_of(&net, &seq) / all - 1) < 1e-5);
    is_separate = false;
    mem_free(hidden);
    t->class->close(t);
    close_target();
}

/* The output of fc for a token has a mean square of about 1, as hidden states have. */
static void token_columns_start_at_the_right_size(void **state) {
    (void)state;
    const float embd[] = {3, 4, 0, 0, 0, 5}; /* two rows whose squares sum to 25 */
    assert_true(fabs(start_token_std(embd, 2, 3) - 1.0 / 5) < 1e-12);
}

/* A layer that has learned nothing passes the state on, whatever the size of the target's residual stream, so it
 * predicts h_{p-1} + fc's columns of the token for h_p. */
static void the_layer_adds_nothing_at_first(void **state) {
    (void)state;
    enum { P = 6 };
    int32_t tokens[N_TEXT];
    open_target("llama");
    int64_t C = frozen.model->hparams.n_embd;
    float *hidden = mem_alloc((size_t)(N_TEXT * C) * sizeof *hidden);
    fr_error err;
    rank = 0, n_hot = 0, gate_rank = 0, first_token = true, is_parallel = false;
    rig_tokens(3, frozen.model->hparams.n_vocab, tokens, N_TEXT);
    if (frozen_read(&frozen, tokens, N_TEXT, hidden, NULL, &err)) fail_msg("%s", err.message);
    for (int32_t is_eagle = 0; is_eagle < 2; is_eagle++) {
        const HeadLossOptions loss = {.hidden_weight = 1, .regression = REGRESSION_MSE, .n_steps = 1};
        const UnrollNet net = is_eagle ? eagle_of(loss) : lyanna_of(loss);
        Trainer *t = open_trainer(is_eagle ? &eagle_net_class : &lyanna_net_class, &net);
        take_weights(t);
        double want = 0;
        for (int64_t r = 0; r < C; r++) {
            double f = (double)hidden[(P - 1) * C + r];
            for (int64_t k = 0; k < C; k++)
                f += (double)weights[UNROLL_FC][r * 2 * C + k] * (double)frozen.embd[tokens[P] * C + k];
            want += pow(f - (double)hidden[P * C + r], 2) / (double)C;
        }
        double got = sums_at(is_eagle, &loss, tokens, hidden, P).loss;
        if (!(fabs(got - want) < 1e-4 * want))
            fail_msg("%s: %g instead of %g", is_eagle ? "eagle" : "lyanna", got, want);
        t->class->close(t);
    }
    mem_free(hidden);
    close_target();
}

/* With n_hidden_steps 1 the regression of the first of three steps is a third of the mean over the steps. */
static void later_steps_may_learn_only_tokens(void **state) {
    (void)state;
    enum { P = 6 };
    int32_t tokens[N_TEXT];
    open_target("llama");
    float *hidden = mem_alloc((size_t)(N_TEXT * frozen.model->hparams.n_embd) * sizeof *hidden);
    fr_error err;
    rig_tokens(3, frozen.model->hparams.n_vocab, tokens, N_TEXT);
    if (frozen_read(&frozen, tokens, N_TEXT, hidden, NULL, &err)) fail_msg("%s", err.message);
    HeadLossOptions loss = {.hidden_weight = 1, .regression = REGRESSION_MSE, .n_steps = 1};
    const UnrollNet net = eagle_of(loss);
    Trainer *t = open_trainer(&eagle_net_class, &net);
    take_weights(t);
    double first = sums_at(true, &loss, tokens, hidden, P).loss;
    loss.n_steps = 3;
    assert_true(3 * sums_at(true, &loss, tokens, hidden, P).loss > 1.5 * first);
    loss.n_hidden_steps = 1;
    assert_true(fabs(3 * sums_at(true, &loss, tokens, hidden, P).loss - first) < 1e-6 * first);
    t->class->close(t);
    mem_free(hidden);
    close_target();
}

/* Uniform in (-width, width), and a function of only seed, sequence number and component. */
static void noise_is_uniform(void **state) {
    (void)state;
    enum { N = 4001 };
    static float noise[4][N];
    double sum = 0, squares = 0;
    noise_uniform(noise[0], N, 0.5, 7, 3);
    noise_uniform(noise[1], 10, 0.5, 7, 3);
    noise_uniform(noise[2], N, 0.5, 7, 4);
    noise_uniform(noise[3], N, 0.5, 8, 3);
    assert_memory_equal(noise[1], noise[0], 10 * sizeof(float));
    for (int i = 0; i < N; i++) {
        double x = (double)noise[0][i];
        assert_true(x > -0.5 && x < 0.5 && noise[2][i] != noise[0][i] && noise[3][i] != noise[0][i]);
        sum += x, squares += x * x;
    }
    assert_true(fabs(sum / N) < 0.02);                /* 4 standard errors of the mean */
    assert_true(fabs(squares / N - 1.0 / 12) < 5e-3); /* (2 width)^2 / 12 */
}

/* Noise changes the training loss, reproducibly and for any number of threads, and not the validation loss. */
static void noise_changes_training_and_not_validation(void **state) {
    (void)state;
    enum { N = 2 };
    rank = n_hot = 0;
    open_target("llama");
    const UnrollNet net = eagle_of(learning);
    int32_t tokens[N * (LENGTH + 1)];
    uint8_t loss_mask[N * LENGTH];
    fr_error err;
    rig_tokens(5, frozen.model->hparams.n_vocab, tokens, N * (LENGTH + 1));
    memset(loss_mask, 1, sizeof loss_mask);
    double loss[4][3];
    for (int k = 0; k < 4; k++) { /* without noise; with noise; the same; with two threads */
        FrozenTarget target;
        Trainer *t;
        const DrafterTrainerOptions o = {.class = &eagle_net_class,
                                         .net = &net,
                                         .max_length = LENGTH,
                                         .type = TYPE_F32,
                                         .noise = k ? 0.3 : 0,
                                         .n_threads = 1 + k / 3};
        if (frozen_open(&target, gguf, LENGTH, 1, &err) || drafter_trainer_open(&t, &target, &o, &err))
            fail_msg("%s", err.message);
        for (int i = 0; i < 3; i++) { /* validation; training at two sequence numbers */
            TrainSums sums = {0};
            const TrainBatch batch = {N, LENGTH, tokens, loss_mask, i == 2 ? 40 : 0};
            if (t->class->learn(t, &batch, i ? 1e-3 : 0, &sums, &err)) fail_msg("%s", err.message);
            loss[k][i] = sums.loss;
        }
        t->class->close(t);
    }
    close_target();
    assert_true(loss[0][1] == loss[0][0] && loss[0][2] == loss[0][0]);
    for (int k = 1; k < 4; k++) {
        assert_true(fabs(loss[k][0] - loss[0][0]) < 1e-9 * loss[0][0]);
        assert_true(fabs(loss[k][1] - loss[0][0]) > 1e-6 * loss[0][0] &&
                    fabs(loss[k][1] - loss[k][2]) > 1e-6 * loss[0][0]);
        for (int i = 0; i < 3; i++) assert_true(fabs(loss[k][i] - loss[1][i]) < 1e-9 * loss[1][i]);
    }
}

static void hot_tokens_are_the_most_frequent_ones(void **state) {
    (void)state;
    int32_t tokens[] = {7, 2, 2, 9, 7, 7, 4, 9, 4, 1}, *found;
    uint8_t loss_mask[10] = {0};
    Sequences s;
    fr_error err;
    loss_mask[9] = 1;
    sequences_begin(&s, 10, 4, true);
    const Document d = {.tokens = tokens, .loss_mask = loss_mask, .n = 10};
    assert_int_equal(sequences_add(&s, &d, &err), FR_OK);
    assert_int_equal(hot_tokens_choose(&s, 10, 3, &found, &err),
                     FR_OK); /* 7 occurs three times; 2, 4 and 9 twice: ties go to the lower ones */
    assert_int_equal(found[0], 2);
    assert_int_equal(found[1], 4);
    assert_int_equal(found[2], 7);
    mem_free(found);
    sequences_free(&s);
}

int main(void) {
    if (gemm_open(GEMM_F32, 4, NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eagle_drafts_as_the_network_computes),
        cmocka_unit_test(lyanna_drafts_as_the_network_computes),
        cmocka_unit_test(the_confidence_is_the_networks),
        cmocka_unit_test(chains_are_drawn_without_bias),
        cmocka_unit_test(token_columns_start_at_the_right_size),
        cmocka_unit_test(the_layer_adds_nothing_at_first),
        cmocka_unit_test(later_steps_may_learn_only_tokens),
        cmocka_unit_test(noise_is_uniform),
        cmocka_unit_test(noise_changes_training_and_not_validation),
        cmocka_unit_test(hot_tokens_are_the_most_frequent_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
