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

enum { N_TEXT = 14, BLOCK = 4, LENGTH = 40, N_SEQUENCES = 4, MAX_TENSORS = 48, V = 300, H = 64, MASK = 7 };

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
    MarkovKind markov;
    int32_t window; /* of all layers but the last; 0: none */
    bool is_causal_there;
    enum { TARGETS_HEAD, OWN_HEAD, OWN_VOCABULARY } head; /* the last one with an embedding of its own */
    bool has_sinks, has_biases;
    bool is_gemma, values_are_keys;
    bool has_own_logits; /* a factor and a bound of logits that are not the target's */
} Variant;

static const Variant variants[] = {
    {.n_layer = 2, .n_anchors = 64, .from_anchor = true, .has_head_norms = true},
    {.n_layer = 2, .n_anchors = 12, .has_head_norms = true},
    {.n_layer = 1, .n_anchors = 64, .from_anchor = true, .is_causal = true},
    {.n_layer = 2, .n_anchors = 64, .has_head_norms = true, .conv_taps = 2, .selector_rank = 6},
    {.n_layer = 1, .n_anchors = 64, .from_anchor = true, .is_causal = true, .conv_taps = 3},
    {.n_layer = 2, .n_anchors = 64, .from_anchor = true, .has_head_norms = true, .window = 5},
    {.n_layer = 3, .n_anchors = 64, .has_head_norms = true, .window = 7, .is_causal_there = true},
    {.n_layer = 1, .n_anchors = 64, .from_anchor = true, .has_head_norms = true, .markov = MARKOV_VANILLA},
    {.n_layer = 1, .n_anchors = 64, .has_head_norms = true, .markov = MARKOV_GATED},
    {.n_layer = 1, .n_anchors = 64, .from_anchor = true, .is_causal = true, .conv_taps = 2, .markov = MARKOV_RECURRENT},
    {.n_layer = 1, .n_anchors = 64, .from_anchor = true, .has_head_norms = true, .has_own_logits = true},
    {.n_layer = 2, .n_anchors = 64, .from_anchor = true, .head = OWN_HEAD, .has_own_logits = true},
    {.n_layer = 2, .n_anchors = 64, .from_anchor = true, .has_sinks = true, .has_biases = true, .window = 6},
    {.n_layer = 1, .n_anchors = 64, .has_head_norms = true, .has_sinks = true},
    {.n_layer = 1, .n_anchors = 64, .has_head_norms = true, .head = OWN_VOCABULARY},
    {.n_layer = 1,
     .n_anchors = 64,
     .from_anchor = true,
     .markov = MARKOV_GATED,
     .head = OWN_VOCABULARY,
     .has_own_logits = true},
    {.n_layer = 1, .n_anchors = 64, .from_anchor = true, .selector_rank = 6, .head = OWN_VOCABULARY},
    {.n_layer = 2,
     .n_anchors = 64,
     .from_anchor = true,
     .has_head_norms = true,
     .window = 6,
     .is_gemma = true,
     .values_are_keys = true},
    {.n_layer = 2, .n_anchors = 64, .has_biases = true, .is_gemma = true, .conv_taps = 2},
};
enum { N_VARIANTS = sizeof variants / sizeof *variants, WITH_ALL_PARTS = 3, FIRST_MARKOV = 7, N_MARKOV = 3 };
enum { RANK = 6, N_OWN = 120 };

static int32_t own_tokens[N_OWN], own_of[V];
static int64_t own_map[N_OWN];
static float own_embedding[V * H];

static void give_own_parts(DflashNet *n, const Variant *v) {
    static const GgufTensor embedding = {.type = TYPE_F32, .n_dims = 2, .dims = {H, V, 1, 1}, .data = own_embedding};
    n->has_own_output = v->head != TARGETS_HEAD;
    if (v->has_own_logits) {
        n->logit_scale = 1.3f;
        n->loss.logit_factor = 1.3 / (v->head == TARGETS_HEAD ? (double)frozen.model->hparams.logit_scale : 1);
        n->has_logit_cap = true;
        n->loss.logit_cap = n->logit_cap = 2;
    }
    if (v->head != OWN_VOCABULARY) return;
    for (int32_t i = 0; i < V; i++) own_of[i] = -1;
    for (int32_t i = 0; i < N_OWN; i++) own_map[i] = own_tokens[i] = (7 * i + 3) % V, own_of[own_tokens[i]] = i;
    for (int32_t i = 0; i < V * H; i++) own_embedding[i] = sinf((float)i * 0.7f);
    n->own = (OwnVocabulary){own_tokens, own_embedding, own_map, &embedding};
    n->loss.own_of = own_of;
    n->loss.n_own = N_OWN;
}

static DflashNet net_of(const Variant *v) {
    DflashNet n = {.C = H,
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
                   .window = v->window,
                   .has_window = {v->window && v->n_layer > 1, v->window && v->n_layer > 2},
                   .windows_are_causal = v->is_causal_there,
                   .has_head_norms = v->has_head_norms,
                   .has_sinks = v->has_sinks,
                   .has_biases = v->has_biases,
                   .has_output_bias = v->has_biases,
                   .qk_start_anew = true,
                   .conv_taps = v->conv_taps,
                   .conv_group = 16,
                   .selector_rank = v->selector_rank,
                   .selector_top = 7,
                   .selector_weight = 1,
                   .markov = v->markov,
                   .markov_rank = RANK,
                   .rms_eps = 1e-5f,
                   .embedding_scale = frozen.model->hparams.embedding_scale,
                   .rope = &rope,
                   .loss = {.token_weight = 1, .n_steps = v->from_anchor ? BLOCK : BLOCK - 1},
                   .n_ctx = 2048,
                   .layers = layers};
    if (v->is_gemma)
        n.form = (OwnForm){.is_gemma = true,
                           .values_are_keys = v->values_are_keys,
                           .attn_scale = v->values_are_keys ? 1 : 0,
                           .out_scales = {v->values_are_keys ? 0.8f : 0, 1.2f}};
    give_own_parts(&n, v);
    return n;
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

/* A text of N_TEXT and the path to a node of a tree after it, of which only the step of the node is in the loss. No
 * other block predicts at its position at that step. */
typedef struct PathLoss {
    int32_t tokens[N_TEXT + BLOCK + 1];
    uint8_t loss_mask[N_TEXT + BLOCK];
    double step_weights[BLOCK];
    TrainSequence seq;
    DflashNet net;
} PathLoss;

static void set_path_loss(PathLoss *l, const DflashNet *net, const int32_t *text, const Tree *tree, int32_t node) {
    int32_t step = tree->nodes[node].depth, p = N_TEXT - 2 + step;
    *l = (PathLoss){.net = *net};
    memcpy(l->tokens, text, N_TEXT * sizeof *l->tokens);
    for (int32_t at = node; at > 0; at = tree->nodes[at].parent)
        l->tokens[N_TEXT - 1 + tree->nodes[at].depth] = tree->nodes[at].token;
    l->loss_mask[p] = 1;
    l->step_weights[step - 1] = 1;
    l->net.n_anchors = LENGTH;
    l->net.loss.hard_labels = true;
    l->net.loss.step_weights = l->step_weights;
    l->seq = (TrainSequence){p + 1, l->tokens, l->loss_mask, hidden, frozen.embd, frozen.head, streams, NULL, 0, 0};
}

/* log q of a node after its path: minus the loss of its step. With a selector it is only the selector's loss. */
static double log_q(const DflashNet *net, const int32_t *text, const Tree *tree, int32_t node) {
    PathLoss l;
    set_path_loss(&l, net, text, tree, node);
    double loss = loss_of(&l.net, &l.seq);
    l.net.selector_weight = 0;
    return net->selector_rank ? loss_of(&l.net, &l.seq) - loss : -loss;
}

/* The derivative of that loss with respect to the bias of the confidence head, whose weights are the last tensors:
 * sigmoid(z) - y. */
static double slope_of_bias(const PathLoss *l) {
    static float gradients[MAX_TENSORS][V * H];
    float *dw[MAX_TENSORS];
    int32_t n = dflash_net_class.n_tensors(&l->net);
    TrainSums sums = {0};
    for (int32_t i = 0; i < n; i++) dw[i] = memset(gradients[i], 0, sizeof gradients[i]);
    void *acts = dflash_net_class.acts_open(&l->net, l->seq.T, NULL);
    assert_non_null(acts);
    dflash_net_class.learn(&l->net, weights, dw, acts, &l->seq, 1, &sums);
    dflash_net_class.acts_close(acts);
    return (double)dw[n - 1][0];
}

/* What the confidence head gives to the drafts after the path to the parent of a node. It learns the probability that
 * one of them, drawn at random, is not rejected. */
static double confidence_at(const DflashNet *net, const int32_t *text, const Tree *tree, int32_t node) {
    PathLoss l;
    float *bias = weights[dflash_net_class.n_tensors(net) - 1], before = *bias;
    set_path_loss(&l, net, text, tree, node);
    double slope = slope_of_bias(&l);
    *bias = -100; /* sigmoid(z) becomes 0 */
    double minus_y = slope_of_bias(&l), loss = loss_of(&l.net, &l.seq);
    l.net.loss.tv_weight = 1;
    double rejected = loss_of(&l.net, &l.seq) - loss;
    *bias = before;
    if (!(fabs(1 - rejected + minus_y) < 1e-4)) fail_msg("the head learns %g instead of %g", -minus_y, 1 - rejected);
    return slope - minus_y;
}

/* Lets the drafter of the file propose a tree after a text of N_TEXT. */
static void propose(int32_t *tokens, Tree *tree) {
    LearnedReader reader;
    fr_error err;
    rig_tokens(21, V, tokens, N_TEXT);
    if (frozen_read(&frozen, tokens, N_TEXT - 1, hidden, streams, &err)) fail_msg("%s", err.message);
    learned_rig_open_reader(&reader, frozen.weights);
    Drafter *d = learned_rig_open_drafter(&reader, "dflash:file=" FILE_PATH ",top=3", 1);
    learned_rig_feed(&reader, d, 0, tokens, N_TEXT, 5);
    rig_propose(d, 0, tokens[N_TEXT - 1], 60, V, tree);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* Every node of the drafter's tree has the probability that the network gives to its path. */
static void check_tree(const DflashNet *net) {
    int32_t tokens[N_TEXT], at_depth[BLOCK + 1] = {0};
    static Tree tree;
    double log_p[TREE_MAX_NODES] = {0};
    propose(tokens, &tree);
    for (int32_t i = 1; i < tree.n; i++) {
        const TreeNode *node = &tree.nodes[i];
        at_depth[node->depth]++;
        log_p[i] = log_p[node->parent] + log_q(net, tokens, &tree, i);
        if (!(fabs(log((double)node->p_accept) - log_p[i]) < 1e-2)) /* the drafter's keys and values are F16 */
            fail_msg("node %d of depth %d: the drafter gives %g, the network %g", i, node->depth,
                     (double)node->p_accept, exp(log_p[i]));
    }
    for (int32_t depth = 1; depth <= net->loss.n_steps; depth++) assert_true(at_depth[depth] >= 3);
    assert_int_equal(at_depth[BLOCK] > 0, net->from_anchor);
}

/* The best child of each node, which is the first one, has the probability that the confidence head gives to it. */
static void check_confidence(const DflashNet *net) {
    int32_t tokens[N_TEXT], n_checked = 0;
    static Tree tree;
    propose(tokens, &tree);
    for (int32_t i = 1, k; i < tree.n; i++) {
        for (k = 1; tree.nodes[k].parent != tree.nodes[i].parent; k++) {}
        if (k < i) continue;
        double got = (double)(tree.nodes[i].p_accept / tree.nodes[tree.nodes[i].parent].p_accept),
               want = confidence_at(net, tokens, &tree, i);
        if (!(fabs(got - want) < 0.01))
            fail_msg("node %d of depth %d: the drafter gives %g, the network's head %g", i, tree.nodes[i].depth, got,
                     want);
        n_checked++;
    }
    assert_true(n_checked >= 8);
}

/* ---- tests -------------------------------------------------------------------------------------- */

/* Trains, and then gives the heads of DSpark numbers that matter, because a few steps change the initial ones
 * little. */
static Trainer *train_to_matter(const DflashNet *net) {
    Trainer *t = train(net);
    int32_t n = t->class->n_params(t);
    fr_error err;
    for (int32_t k = n - net->has_own_output - dflash_markov_n_tensors(net); k < n - net->has_own_output; k++) {
        Param *p = t->class->param(t, k);
        for (int64_t i = 0; i < p->n; i++) {
            assert_true(p->value[i] != 0);
            p->value[i] = (float)sin((double)(2 * i + k)) / 4;
        }
    }
    if (t->class->write(t, FILE_PATH, NULL, &err)) fail_msg("%s", err.message);
    return t;
}

static void the_drafter_computes_what_was_trained(void **state) {
    (void)state;
    for (int i = 0; i < N_VARIANTS; i++) {
        const DflashNet net = net_of(&variants[i]);
        Trainer *t = train_to_matter(&net);
        check_tree(&net);
        t->class->close(t);
    }
}

static void the_confidence_is_the_networks(void **state) {
    (void)state;
    for (int i = 0; i <= N_MARKOV; i++) { /* the first one has no Markov head */
        DflashNet net = net_of(&variants[i ? FIRST_MARKOV + i - 1 : 0]);
        net.has_confidence = true;
        net.confidence_is_narrow = net.markov == MARKOV_GATED || net.markov == MARKOV_NONE;
        Trainer *t = train_to_matter(&net);
        check_confidence(&net);
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
    for (int i = 0; i < N_VARIANTS; i++) {
        DflashNet net = net_of(&variants[i]);
        net.has_confidence = net.markov != MARKOV_NONE || i == 0;
        net.confidence_is_vector = net.markov == MARKOV_GATED;
        net.confidence_is_narrow = net.markov == MARKOV_RECURRENT || i == 0;
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

/* As in files of others; import_dflash.c writes the same names and shapes. */
static void heads_of_dspark_are_laid_out_as_published(void **state) {
    (void)state;
    static const struct {
        int variant;
        const char *name;
        int64_t n, n_rows; /* n_rows 0: a vector */
    } tensors[] = {{FIRST_MARKOV, "markov_w1.weight", RANK, V},
                   {FIRST_MARKOV, "markov_w2.weight", RANK, V},
                   {FIRST_MARKOV, "conf_proj.weight", H + RANK, 1},
                   {FIRST_MARKOV, "conf_proj.bias", 1, 0},
                   {FIRST_MARKOV + 1, "markov_gate.weight", H + RANK, RANK},
                   {FIRST_MARKOV + 1, "markov_gate.bias", RANK, 0},
                   {FIRST_MARKOV + 2, "markov_joint.weight", 2 * RANK + H, 3 * RANK},
                   {FIRST_MARKOV + 2, "markov_joint.bias", 3 * RANK, 0}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        DflashNet net = net_of(&variants[tensors[i].variant]);
        fr_error err;
        net.has_confidence = true;
        Trainer *t = open_trainer(&net);
        if (t->class->write(t, FILE_PATH, NULL, &err)) fail_msg("%s", err.message);
        Gguf *g = rig_gguf(FILE_PATH);
        const GgufTensor *x = gguf_find_tensor(g, tensors[i].name);
        if (!x || x->dims[0] != tensors[i].n || x->n_dims != (tensors[i].n_rows ? 2 : 1) ||
            (tensors[i].n_rows && x->dims[1] != tensors[i].n_rows))
            fail_msg("%s is missing or has another shape", tensors[i].name);
        gguf_close(g);
        t->class->close(t);
    }
}

/* Opens a trainer that goes on from the file of `t` with more parts, and compares the loss on a sequence. */
static void check_added_parts(const DflashNet *before, const DflashNet *after, int32_t n_added, Trainer *t) {
    int32_t tokens[LENGTH + 1];
    uint8_t loss_mask[LENGTH];
    fr_error err;
    uint64_t fingerprint;
    trainer_rig_weights(t, weights, MAX_TENSORS);
    rig_tokens(5, V, tokens, LENGTH + 1);
    memset(loss_mask, 1, sizeof loss_mask);
    if (frozen_read(&frozen, tokens, LENGTH, hidden, streams, &err)) fail_msg("%s", err.message);
    const TrainSequence seq = {LENGTH, tokens, loss_mask, hidden, frozen.embd, frozen.head, streams, NULL, 3, 0};
    double loss = loss_of(before, &seq);
    Trainer *next = open_trainer(after);
    if (init_file_read(next, &dflash_net_class, after, frozen.model, FILE_PATH, &fingerprint, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < next->class->n_params(next); i++) weights[i] = next->class->param(next, i)->value;
    assert_true(next->class->n_params(next) == t->class->n_params(t) + n_added);
    if (loss_of(after, &seq) != loss) fail_msg("the loss was %g and is %g", loss, loss_of(after, &seq));
    next->class->close(next);
}

/* Parts that are added to a drafter change nothing before they are trained. */
static void added_parts_begin_without_effect(void **state) {
    (void)state;
    static const int32_t n_added[] = {[MARKOV_VANILLA] = 2, [MARKOV_GATED] = 4, [MARKOV_RECURRENT] = 4};
    const DflashNet before = net_of(&variants[0]);
    DflashNet after = before;
    Trainer *t = train(&before);
    after.conv_taps = 3, after.selector_rank = 5, after.selector_weight = 0;
    after.adds_conv = after.adds_selector = true;
    check_added_parts(&before, &after, 2 * 4 + 3, t);
    for (MarkovKind kind = MARKOV_VANILLA; kind <= MARKOV_RECURRENT; kind++) {
        after = before;
        after.markov = kind;
        after.adds_markov = true;
        check_added_parts(&before, &after, n_added[kind], t);
    }
    t->class->close(t);
}

int main(void) {
    if (gemm_open(GEMM_F32, 4, NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_drafter_computes_what_was_trained),
        cmocka_unit_test(the_confidence_is_the_networks),
        cmocka_unit_test(anchors_are_drawn_without_bias),
        cmocka_unit_test(the_file_is_laid_out_as_published),
        cmocka_unit_test(training_goes_on_from_a_file),
        cmocka_unit_test(parts_of_dflash_2_are_laid_out_as_published),
        cmocka_unit_test(heads_of_dspark_are_laid_out_as_published),
        cmocka_unit_test(added_parts_begin_without_effect),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
