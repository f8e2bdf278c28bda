/* test_train_eagle3.c - the trained layers of eagle3: the drafter that opens the file computes what the network
 * computes, at every step of its own outputs or place of a block; training lowers the loss; the file is laid out as
 * others publish it, and is read again into the parameters that wrote it. */
#include "learned_rig.h"
#include "random_model.h"
#include "trainer_rig.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/drafter_trainer.h"
#include "train/gemm.h"
#include "train/nets.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TARGET "build/train-eagle3-target.gguf"
#define FILE_PATH "build/train-eagle3.gguf"

enum { N_TEXT = 14, DEPTH = 3, LENGTH = 40, N_SEQUENCES = 4, MAX_TENSORS = 48, V = 300, H = 64, N_OWN = 90 };

static Gguf *gguf;
static FrozenTarget frozen; /* computes the target's hidden states for the tests */
static Rope rope;
static const int32_t layers[] = {0, 2, 1};
static int32_t tokens_of[N_OWN], own_of[V];
static int64_t map[N_OWN];
static float *weights[MAX_TENSORS];

static void open_target(FrozenTarget *f) {
    fr_error err;
    const KeptLayers kept = {3, {layers[0], layers[1], layers[2]}};
    if (frozen_open(f, gguf, LENGTH, 2, &err) || frozen_keep_layers(f, &kept, &err)) fail_msg("%s", err.message);
}

static int begin(void **state) {
    (void)state;
    RandomModel m = {.arch = "llama",
                     .n_layer = 2,
                     .n_embd = H,
                     .n_head = 4,
                     .n_head_kv = 2,
                     .n_ff = 96,
                     .n_vocab = V,
                     .types = {TYPE_Q8_0, TYPE_F16},
                     .n_types = 2,
                     .seed = 11};
    const RopeParams params = {.style = ROPE_PAIRS, .n_rot = 16, .base = 10000, .factor = 1};
    fr_error err;
    if (random_model_write(&m, TARGET, &err) || rope_init(&rope, &params, NULL, &err)) fail_msg("%s", err.message);
    gguf = rig_gguf(TARGET);
    open_target(&frozen);
    for (int32_t i = 0; i < V; i++) own_of[i] = -1;
    for (int32_t i = 0; i < N_OWN; i++) map[i] = tokens_of[i] = (7 * i + 3) % V, own_of[tokens_of[i]] = i;
    return 0;
}

static int end(void **state) {
    (void)state;
    frozen_close(&frozen);
    gguf_close(gguf);
    rope_free(&rope);
    return 0;
}

/* ---- networks ----------------------------------------------------------------------------------- */

typedef struct Variant {
    bool has_own_output, norms_streams, norms_each, keeps_normed, continues_normed, has_own_vocabulary;
    int32_t n_later, n_anchors; /* n_anchors: P-EAGLE; 0: none */
    bool has_head_norms, has_biases, is_gemma;
} Variant;

static Eagle3Net net_of(const Variant *v) {
    Eagle3Net n = {.layer = {.method = "eagle3",
                             .C = H,
                             .n_ff = 80,
                             .n_head = 4,
                             .n_head_kv = 2,
                             .head_dim = 16,
                             .rms_eps = 1e-5f,
                             .rope = &rope,
                             .n_steps = DEPTH,
                             .reads_pairs = true,
                             .state_gradient = 1,
                             .has_head_norms = v->has_head_norms,
                             .has_biases = v->has_biases,
                             .has_output_bias = v->has_biases,
                             .n_anchors = v->n_anchors},
                   .n_later = v->n_later,
                   .block = v->n_anchors ? DEPTH : 0,
                   .mask = 11,
                   .V = V,
                   .n_target = H,
                   .n_streams = 3,
                   .has_own_output = v->has_own_output,
                   .norms_streams = v->norms_streams,
                   .norms_each = v->norms_each,
                   .keeps_normed = v->keeps_normed,
                   .continues_normed = v->continues_normed,
                   .loss = {.token_weight = 1, .n_steps = DEPTH},
                   .n_ctx = 2048,
                   .layers = layers};
    if (v->is_gemma) n.form = (OwnForm){.is_gemma = true, .attn_scale = 0.7, .out_scales = {0.8f, 1.2f}};
    if (v->has_own_vocabulary) n.own.tokens = tokens_of, n.own.map = map, n.loss.own_of = own_of, n.loss.n_own = N_OWN;
    return n;
}

static Trainer *open_trainer(const Eagle3Net *net) {
    FrozenTarget target;
    Trainer *t = NULL;
    fr_error err;
    const DrafterTrainerOptions options = {.class = &eagle3_net_class,
                                           .net = net,
                                           .max_length = LENGTH,
                                           .type = TYPE_F32,
                                           .n_threads = 2};
    open_target(&target);
    if (drafter_trainer_open(&t, &target, &options, &err)) fail_msg("%s", err.message);
    return t;
}

/* Takes a few steps, and writes the trainer's file. */
static Trainer *train(const Eagle3Net *net) {
    Trainer *t = open_trainer(net);
    trainer_rig_run(t, &(TrainerRun){N_SEQUENCES, LENGTH, V, 8, 3e-3, FILE_PATH});
    trainer_rig_weights(t, weights, MAX_TENSORS);
    return t;
}

/* ---- the network's probabilities ------------------------------------------------------------------ */

/* log q of the last of a path's n tokens, which are drafted after a text of N_TEXT: the summed loss of n steps at that
 * position minus that of n - 1 steps. */
static double log_q(const Eagle3Net *net, const int32_t *tokens, const float *hidden, const float *streams, int32_t n) {
    double sums[2] = {0};
    int32_t p = N_TEXT - 2 + n;
    uint8_t loss_mask[N_TEXT + DEPTH] = {0};
    const TrainSequence seq = {p + 1, tokens, loss_mask, hidden, frozen.embd, frozen.head, streams, NULL, 0, 0};
    loss_mask[p] = 1;
    for (int32_t i = 0; i < 2 && n - i > 0; i++) {
        Eagle3Net part = *net;
        TrainSums of_part = {0};
        part.loss.hard_labels = true;
        part.loss.n_steps = part.layer.n_steps = n - i;
        void *acts = eagle3_net_class.acts_open(&part, p + 1, NULL);
        assert_non_null(acts);
        eagle3_net_class.learn(&part, weights, NULL, acts, &seq, 0, &of_part);
        eagle3_net_class.acts_close(acts);
        sums[i] = (n - i) * of_part.loss;
    }
    return sums[1] - sums[0];
}

/* Every node of the drafter's tree has the probability that the network gives to its path. */
static void check_tree(const Eagle3Net *net) {
    int32_t tokens[N_TEXT + DEPTH + 1] = {0}, at_depth[DEPTH + 1] = {0};
    static float hidden[(N_TEXT + DEPTH) * H], streams[(N_TEXT + DEPTH) * 3 * H];
    LearnedReader reader;
    static Tree tree;
    double log_p[TREE_MAX_NODES] = {0};
    fr_error err;
    rig_tokens(21, V, tokens, N_TEXT);
    if (frozen_read(&frozen, tokens, N_TEXT - 1, hidden, streams, &err)) fail_msg("%s", err.message);
    learned_rig_open_reader(&reader, frozen.weights);
    Drafter *d = learned_rig_open_drafter(&reader, "eagle3:file=" FILE_PATH ",depth=3,top=3", 1);
    learned_rig_feed(&reader, d, 0, tokens, N_TEXT, 5);
    rig_propose(d, 0, tokens[N_TEXT - 1], 20, V, &tree);
    for (int32_t i = 1; i < tree.n; i++) {
        const TreeNode *node = &tree.nodes[i];
        at_depth[node->depth]++;
        for (int32_t at = i; at > 0; at = tree.nodes[at].parent)
            tokens[N_TEXT - 1 + tree.nodes[at].depth] = tree.nodes[at].token;
        log_p[i] = log_p[node->parent] + log_q(net, tokens, hidden, streams, node->depth);
        if (!(fabs(log((double)node->p_accept) - log_p[i]) < 0.02))
            fail_msg("node %d of depth %d: the drafter gives %g, the network %g", i, node->depth,
                     (double)node->p_accept, exp(log_p[i]));
    }
    for (int32_t depth = 1; depth <= DEPTH; depth++) assert_true(at_depth[depth] >= 3);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* ---- tests -------------------------------------------------------------------------------------- */

static const Variant variants[] = {
    {.has_own_output = true, .norms_streams = true},
    {.has_own_output = true, .has_own_vocabulary = true},
    {.norms_each = true, .keeps_normed = true, .continues_normed = true},
    {.has_own_output = true, .n_later = 2},
    {.has_own_output = true, .n_later = 1, .has_head_norms = true, .has_biases = true},
    {.norms_streams = true, .has_biases = true},
    {.has_own_output = true, .n_later = 1, .has_head_norms = true, .is_gemma = true},
    {.norms_each = true, .has_biases = true, .is_gemma = true, .n_anchors = 12},
    {.has_own_output = true, .has_head_norms = true, .n_anchors = 12},
    {.has_own_output = true, .norms_streams = true, .n_anchors = 1000},
    {.norms_each = true, .has_own_vocabulary = true, .has_own_output = true, .n_later = 1, .n_anchors = 9}};

static void the_drafter_computes_what_was_trained(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const Eagle3Net net = net_of(&variants[i]);
        Trainer *t = train(&net);
        check_tree(&net);
        t->class->close(t);
    }
}

/* A new LM head is the target's, for its own tokens, and so is the norm before it. */
static void the_head_begins_as_the_targets(void **state) {
    (void)state;
    const Eagle3Net net = net_of(&variants[1]);
    Trainer *t = open_trainer(&net);
    int32_t n = t->class->n_params(t), n_checked = 0;
    for (int32_t i = 0; i < n; i++) {
        const Param *p = t->class->param(t, i);
        if (strcmp(p->name, EAGLE3_OUTPUT_NORM) == 0)
            assert_memory_equal(p->value, frozen.model->output_norm, H * sizeof(float)), n_checked++;
        if (strcmp(p->name, EAGLE3_OUTPUT) != 0) continue;
        assert_int_equal(p->n, N_OWN * H);
        assert_int_equal(p->n_rows, 0); /* AdamW trains it */
        for (int32_t k = 0; k < N_OWN; k++)
            assert_memory_equal(p->value + k * H, frozen.head + tokens_of[k] * H, H * sizeof(float));
        n_checked++;
    }
    assert_int_equal(n_checked, 2);
    t->class->close(t);
}

static void the_file_is_laid_out_as_published(void **state) {
    (void)state;
    const Eagle3Net net = net_of(&variants[1]);
    Trainer *t = train(&net);
    Gguf *g = rig_gguf(FILE_PATH);
    GgufString text = {"", 0};
    int64_t n = 0;
    assert_true(gguf_get_string(g, "general.architecture", &text) && text.n == 6 &&
                memcmp(text.data, "eagle3", 6) == 0);
    assert_true(gguf_get_i64(g, "eagle3.block_count", &n) && n == 1);
    assert_true(gguf_get_i64(g, "eagle3.target_hidden_size", &n) && n == H);
    assert_int_equal(gguf_kv_count(g, gguf_find_key(g, "eagle3.target_layers")), 3);
    assert_int_equal(gguf_kv_count(g, gguf_find_key(g, "tokenizer.ggml.tokens")), V);
    const GgufTensor *d2t = gguf_find_tensor(g, "d2t");
    assert_true(d2t && d2t->is_i64 && memcmp(d2t->data, map, sizeof map) == 0);
    gguf_close(g);
    t->class->close(t);
}

/* The file is read into the parameters that wrote it. */
static void training_goes_on_from_a_file(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const Eagle3Net net = net_of(&variants[i]);
        Trainer *t = train(&net), *next = open_trainer(&net);
        uint64_t fingerprint;
        fr_error err;
        if (init_file_read(next, &eagle3_net_class, &net, frozen.model, FILE_PATH, &fingerprint, &err))
            fail_msg("%s", err.message);
        for (int32_t k = 0; k < t->class->n_params(t); k++)
            assert_memory_equal(next->class->param(next, k)->value, weights[k],
                                (size_t)t->class->param(t, k)->n * sizeof(float));
        next->class->close(next);
        t->class->close(t);
    }
}

int main(void) {
    if (gemm_open(GEMM_F32, 4, NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_drafter_computes_what_was_trained),
        cmocka_unit_test(the_head_begins_as_the_targets),
        cmocka_unit_test(the_file_is_laid_out_as_published),
        cmocka_unit_test(training_goes_on_from_a_file),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
