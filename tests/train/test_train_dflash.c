/* test_train_dflash.c - the trained layers of dflash: the drafter that opens the file computes what the network
 * computes, for every slot; training lowers the loss; anchors are drawn without bias; the file is laid out as others
 * publish it, and is read again into the parameters that wrote it. */
#include "learned_rig.h"
#include "random_model.h"
#include "trainer_rig.h"

#include "draft/learned/learned_files.h"
#include "train/dflash_net.h"
#include "train/drafter_trainer.h"
#include "train/gemm.h"
#include "train/nets.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TARGET "build/train-dflash-target.gguf"
#define FILE_PATH "build/train-dflash.gguf"

enum { N_TEXT = 14, BLOCK = 4, LENGTH = 40, N_SEQUENCES = 4, MAX_TENSORS = 40, V = 300, H = 64, MASK = 7 };

static Gguf *gguf;
static FrozenTarget frozen; /* computes the target's hidden states for the tests */
static Rope rope;
static const int32_t layers[] = {0, 2, 1};
static float *weights[MAX_TENSORS];

static void open_target(FrozenTarget *f) {
    fr_error err;
    const KeptLayers kept = {3, {layers[0], layers[1], layers[2]}};
    if (frozen_open(f, gguf, LENGTH, 2, &err) || frozen_keep_layers(f, &kept, &err)) fail_msg("%s", err.message);
}

/* A target whose embedding and logits are scaled. */
static int begin(void **state) {
    (void)state;
    RandomModel m = {.arch = "granite",
                     .n_layer = 2,
                     .n_embd = H,
                     .n_head = 4,
                     .n_head_kv = 2,
                     .n_ff = 96,
                     .n_vocab = V,
                     .tied = true,
                     .seed = 11};
    const RopeParams params = {.style = ROPE_HALVES, .n_rot = 16, .base = 10000, .factor = 1};
    fr_error err;
    if (random_model_write(&m, TARGET, &err) || rope_init(&rope, &params, NULL, &err)) fail_msg("%s", err.message);
    gguf = rig_gguf(TARGET);
    open_target(&frozen);
    assert_true(frozen.model->hparams.embedding_scale != 1);
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
    int32_t n_layer, n_anchors;
    bool from_anchor, is_causal, has_head_norms;
    int32_t conv_taps, selector_rank;
} Variant;

static const Variant variants[] = {{2, 64, true, false, true, 0, 0},
                                   {2, 12, false, false, true, 0, 0},
                                   {1, 64, true, true, false, 0, 0},
                                   {2, 64, false, false, true, 2, 6},
                                   {1, 64, true, true, false, 3, 0}};
enum { WITH_ALL_PARTS = 3 };

static DflashNet net_of(const Variant *v) {
    return (DflashNet){.C = H,
                       .V = V,
                       .n_layer = v->n_layer,
                       .n_ff = 80,
                       .n_head = 4,
                       .n_head_kv = 2,
                       .head_dim = 16,
                       .n_streams = 3,
                       .block = BLOCK,
                       .mask = MASK,
                       .n_anchors = v->n_anchors,
                       .from_anchor = v->from_anchor,
                       .is_causal = v->is_causal,
                       .has_head_norms = v->has_head_norms,
                       .qk_start_anew = true,
                       .conv_taps = v->conv_taps,
                       .conv_group = 16,
                       .selector_rank = v->selector_rank,
                       .selector_top = 7,
                       .selector_weight = 1,
                       .rms_eps = 1e-5f,
                       .embedding_scale = frozen.model->hparams.embedding_scale,
                       .rope = &rope,
                       .loss = {.token_weight = 1, .n_steps = v->from_anchor ? BLOCK : BLOCK - 1},
                       .n_ctx = 2048,
                       .layers = layers};
}

static Trainer *open_trainer(const DflashNet *net) {
    FrozenTarget target;
    Trainer *t = NULL;
    fr_error err;
    const DrafterTrainerOptions options = {.class = &dflash_net_class,
                                           .net = net,
                                           .max_length = LENGTH,
                                           .type = TYPE_F32,
                                           .n_threads = 2};
    open_target(&target);
    if (drafter_trainer_open(&t, &target, &options, &err)) fail_msg("%s", err.message);
    return t;
}

/* Takes a few steps, and writes the trainer's file. */
static Trainer *train(const DflashNet *net) {
    Trainer *t = open_trainer(net);
    trainer_rig_run(t, &(TrainerRun){N_SEQUENCES, LENGTH, V, 12, 5e-3, FILE_PATH});
    trainer_rig_weights(t, weights, MAX_TENSORS);
    return t;
}

/* Runs the network on a sequence, without gradients. Returns the summed loss. */
static double loss_of(const DflashNet *net, const TrainSequence *seq) {
    TrainSums sums = {0};
    void *acts = dflash_net_class.acts_open(net, seq->T, NULL);
    assert_non_null(acts);
    dflash_net_class.learn(net, weights, NULL, acts, seq, 0, &sums);
    dflash_net_class.acts_close(acts);
    return sums.loss;
}

/* ---- the network's probabilities ------------------------------------------------------------------ */

static float hidden[LENGTH * H], streams[LENGTH * 3 * H];

/* log q of a token that is predicted at a step after a text of N_TEXT and a token before it: minus the loss of that
 * step at its position. No other block predicts there at that step. With a selector it is only the selector's loss. */
static double log_q(const DflashNet *net, const int32_t *text, int32_t step, int32_t before, int32_t token) {
    int32_t p = N_TEXT - 2 + step, tokens[N_TEXT + BLOCK + 1] = {0};
    uint8_t loss_mask[N_TEXT + BLOCK] = {0};
    double only[BLOCK] = {0};
    const TrainSequence seq = {p + 1, tokens, loss_mask, hidden, frozen.embd, frozen.head, streams, NULL, 0, 0};
    DflashNet one = *net;
    memcpy(tokens, text, N_TEXT * sizeof *tokens);
    tokens[p] = before, tokens[p + 1] = token;
    loss_mask[p] = 1;
    only[step - 1] = 1;
    one.n_anchors = LENGTH;
    one.loss.hard_labels = true;
    one.loss.step_weights = only;
    double loss = loss_of(&one, &seq);
    one.selector_weight = 0;
    return net->selector_rank ? loss_of(&one, &seq) - loss : -loss;
}

/* Every node of the drafter's tree has the probability that the network gives to its path. */
static void check_tree(const DflashNet *net) {
    int32_t tokens[N_TEXT], at_depth[BLOCK + 1] = {0};
    LearnedReader reader;
    static Tree tree;
    double log_p[TREE_MAX_NODES] = {0};
    fr_error err;
    rig_tokens(21, V, tokens, N_TEXT);
    if (frozen_read(&frozen, tokens, N_TEXT - 1, hidden, streams, &err)) fail_msg("%s", err.message);
    learned_rig_open_reader(&reader, frozen.weights);
    Drafter *d = learned_rig_open_drafter(&reader, "dflash:file=" FILE_PATH ",top=3", 1);
    learned_rig_feed(&reader, d, 0, tokens, N_TEXT, 5);
    rig_propose(d, 0, tokens[N_TEXT - 1], 60, V, &tree);
    for (int32_t i = 1; i < tree.n; i++) {
        const TreeNode *node = &tree.nodes[i];
        at_depth[node->depth]++;
        log_p[i] = log_p[node->parent] + log_q(net, tokens, node->depth, tree.nodes[node->parent].token, node->token);
        if (!(fabs(log((double)node->p_accept) - log_p[i]) < 1e-2)) /* the drafter's keys and values are F16 */
            fail_msg("node %d of depth %d: the drafter gives %g, the network %g", i, node->depth,
                     (double)node->p_accept, exp(log_p[i]));
    }
    for (int32_t depth = 1; depth <= net->loss.n_steps; depth++) assert_true(at_depth[depth] >= 3);
    assert_int_equal(at_depth[BLOCK] > 0, net->from_anchor);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* ---- tests -------------------------------------------------------------------------------------- */

static void the_drafter_computes_what_was_trained(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const DflashNet net = net_of(&variants[i]);
        Trainer *t = train(&net);
        check_tree(&net);
        t->class->close(t);
    }
}

/* The loss of a few anchors is a function of the seed and the sequence's number, and its mean is the loss of all. */
static void anchors_are_drawn_without_bias(void **state) {
    (void)state;
    enum { N = 100 };
    int32_t tokens[LENGTH + 1];
    uint8_t loss_mask[LENGTH];
    DflashNet net = net_of(&variants[0]);
    Trainer *t = train(&net);
    fr_error err;
    rig_tokens(5, V, tokens, LENGTH + 1);
    for (int32_t i = 0; i < LENGTH; i++) loss_mask[i] = i % 5 != 2;
    if (frozen_read(&frozen, tokens, LENGTH, hidden, streams, &err)) fail_msg("%s", err.message);
    TrainSequence seq = {LENGTH, tokens, loss_mask, hidden, frozen.embd, frozen.head, streams, NULL, 3, 0};
    double all = loss_of(&net, &seq), sum = 0;
    int32_t n_repeated = 0;
    net.n_anchors = 4;
    for (seq.i_sequence = 0; seq.i_sequence < N; seq.i_sequence++) {
        double one = loss_of(&net, &seq);
        n_repeated += one == loss_of(&net, &seq);
        sum += one;
    }
    assert_int_equal(n_repeated, N);
    if (!(fabs(sum / N / all - 1) < 0.05)) fail_msg("the mean is %g, and the loss of all anchors %g", sum / N, all);
    seq.i_sequence = 0;
    double first = loss_of(&net, &seq);
    seq.seed = 4;
    assert_true(loss_of(&net, &seq) != first);
    t->class->close(t);
}

static void the_file_is_laid_out_as_published(void **state) {
    (void)state;
    const DflashNet net = net_of(&variants[0]);
    Trainer *t = train(&net);
    Gguf *g = rig_gguf(FILE_PATH);
    GgufString text = {"", 0};
    int64_t n = 0;
    assert_true(gguf_get_string(g, "general.architecture", &text) && text.n == 6 &&
                memcmp(text.data, "dflash", 6) == 0);
    assert_true(gguf_get_i64(g, "dflash.block_count", &n) && n == 2);
    assert_true(gguf_get_i64(g, "dflash.block_size", &n) && n == BLOCK);
    assert_true(gguf_get_i64(g, "tokenizer.ggml.mask_token_id", &n) && n == MASK);
    assert_int_equal(gguf_kv_count(g, gguf_find_key(g, "dflash.target_layers")), 3);
    assert_int_equal(gguf_kv_count(g, gguf_find_key(g, "tokenizer.ggml.tokens")), V);
    assert_non_null(gguf_find_tensor(g, "blk.1.attn_q_norm.weight"));
    gguf_close(g);
    t->class->close(t);
}

/* The file is read into the parameters that wrote it. */
static void training_goes_on_from_a_file(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const DflashNet net = net_of(&variants[i]);
        Trainer *t = train(&net), *next = open_trainer(&net);
        uint64_t fingerprint;
        fr_error err;
        if (init_file_read(next, &dflash_net_class, &net, frozen.model, FILE_PATH, &fingerprint, &err))
            fail_msg("%s", err.message);
        for (int32_t k = 0; k < t->class->n_params(t); k++)
            assert_memory_equal(next->class->param(next, k)->value, weights[k],
                                (size_t)t->class->param(t, k)->n * sizeof(float));
        next->class->close(next);
        t->class->close(t);
    }
}

static void parts_of_dflash_2_are_laid_out_as_published(void **state) {
    (void)state;
    const DflashNet net = net_of(&variants[WITH_ALL_PARTS]);
    Trainer *t = train(&net);
    Gguf *g = rig_gguf(FILE_PATH);
    const struct {
        const char *name;
        int64_t value;
    } keys[] = {{"dflash.conv_kernel_size", 2},
                {"dflash.conv_group_size", 16},
                {"dflash.selector_rank", 6},
                {"dflash.selector_top_k", 7}},
      tensors[] = {{"blk.1.attn_conv_proj.weight", 2 * 2 * H / 16},
                   {"blk.0.ffn_conv_proj.weight", 2 * 2 * H / 16},
                   {"selector_predecessor.weight", V},
                   {"selector_successor.weight", V},
                   {"selector_hidden.weight", 6}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t n = 0;
        assert_true(gguf_get_i64(g, keys[i].name, &n) && n == keys[i].value);
    }
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const GgufTensor *x = gguf_find_tensor(g, tensors[i].name);
        assert_true(x && x->dims[1] == tensors[i].value);
    }
    const GgufTensor *base = gguf_find_tensor(g, "blk.1.ffn_conv_base");
    assert_true(base && base->dims[0] == H && base->dims[1] == 2 && base->dims[2] == 2);
    gguf_close(g);
    t->class->close(t);
}

/* Parts that are added to a drafter change nothing before they are trained. */
static void added_parts_begin_without_effect(void **state) {
    (void)state;
    int32_t tokens[LENGTH + 1];
    uint8_t loss_mask[LENGTH];
    const DflashNet before = net_of(&variants[0]);
    DflashNet after = before;
    Trainer *t = train(&before);
    fr_error err;
    uint64_t fingerprint;
    rig_tokens(5, V, tokens, LENGTH + 1);
    memset(loss_mask, 1, sizeof loss_mask);
    if (frozen_read(&frozen, tokens, LENGTH, hidden, streams, &err)) fail_msg("%s", err.message);
    const TrainSequence seq = {LENGTH, tokens, loss_mask, hidden, frozen.embd, frozen.head, streams, NULL, 3, 0};
    double loss = loss_of(&before, &seq);
    after.conv_taps = 3, after.selector_rank = 5, after.selector_weight = 0;
    after.adds_conv = after.adds_selector = true;
    Trainer *next = open_trainer(&after);
    if (init_file_read(next, &dflash_net_class, &after, frozen.model, FILE_PATH, &fingerprint, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < next->class->n_params(next); i++) weights[i] = next->class->param(next, i)->value;
    assert_true(next->class->n_params(next) == t->class->n_params(t) + 2 * 4 + 3);
    if (loss_of(&after, &seq) != loss) fail_msg("the loss was %g and is %g", loss, loss_of(&after, &seq));
    next->class->close(next);
    t->class->close(t);
}

int main(void) {
    if (gemm_open(GEMM_F32, 4, NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_drafter_computes_what_was_trained),
        cmocka_unit_test(anchors_are_drawn_without_bias),
        cmocka_unit_test(the_file_is_laid_out_as_published),
        cmocka_unit_test(training_goes_on_from_a_file),
        cmocka_unit_test(parts_of_dflash_2_are_laid_out_as_published),
        cmocka_unit_test(added_parts_begin_without_effect),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
