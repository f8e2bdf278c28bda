/* test_train_mtp.c - the trained layers of mtp: the drafter that opens the file computes what the network computes, at
 * every step, for targets of several architectures; training lowers the loss; the file is laid out as a companion of
 * the target, and is read again into the parameters that wrote it. */
#include "learned_rig.h"
#include "random_model.h"
#include "trainer_rig.h"

#include "train/drafter_trainer.h"
#include "train/gemm.h"
#include "train/nets.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TARGET "build/train-mtp-target.gguf"
#define FILE_PATH "build/train-mtp.gguf"

enum { N_TEXT = 14, DEPTH = 3, LENGTH = 40, N_SEQUENCES = 4, MAX_TENSORS = 48, V = 300, H = 64 };

#define SHAPE(a) .arch = a, .n_layer = 2, .n_embd = H, .n_head = 4, .n_head_kv = 2, .n_ff = 96, .n_vocab = V

typedef struct Variant {
    RandomModel target;
    int32_t n_layers;
    bool takes_norm;
} Variant;

static const Variant variants[] = {
    {{SHAPE("llama"), .types = {TYPE_Q8_0, TYPE_F16}, .n_types = 2, .seed = 11}, 1, false},
    {{SHAPE("qwen2"), .tied = true, .seed = 12}, 3, false},
    {{SHAPE("qwen3"), .seed = 13}, 2, true},
    {{SHAPE("qwen35"), .n_key_heads = 2, .n_value_heads = 4, .delta_dim = 16, .n_conv = 3, .attention_interval = 2,
      .n_rot = 8, .seed = 14},
     2,
     false},
};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

/* A target, what computes its hidden states for the tests, and a trainer of its layers. */
typedef struct Rig {
    Gguf *gguf;
    FrozenTarget frozen;
    MtpNet net;
    Trainer *trainer;
    float *weights[MAX_TENSORS];
} Rig;

static MtpNet net_of(const Model *m, const Variant *v) {
    const Hparams *h = &m->hparams;
    const LayerSpec *l = &m->layers[h->n_layer - 1];
    return (MtpNet){.layer = {.method = "mtp",
                              .C = H,
                              .n_ff = h->n_ff,
                              .n_head = h->n_head,
                              .n_head_kv = h->n_head_kv,
                              .head_dim = h->head_dim,
                              .rms_eps = h->rms_eps,
                              .rope = &m->ropes[0],
                              .has_attn_norm = true,
                              .has_head_norms = l->q_norm != NULL,
                              .has_biases = l->q_bias != NULL,
                              .gates_output = l->gates_output},
                    .V = V,
                    .n_layers = v->n_layers,
                    .loss = {.token_weight = 1, .n_steps = DEPTH},
                    .norm_start = 1,
                    .takes_norm = v->takes_norm,
                    .target = m,
                    .ffn_norm = l->gates_output ? "post_attention_norm.weight" : "ffn_norm.weight"};
}

static Trainer *open_trainer(Rig *r) {
    FrozenTarget target;
    Trainer *t = NULL;
    fr_error err;
    const DrafterTrainerOptions options = {.class = &mtp_net_class,
                                           .net = &r->net,
                                           .max_length = LENGTH,
                                           .type = TYPE_F32,
                                           .n_threads = 2};
    if (frozen_open(&target, r->gguf, LENGTH, 2, &err) || drafter_trainer_open(&t, &target, &options, &err))
        fail_msg("%s", err.message);
    return t;
}

static void open_rig(Rig *r, const Variant *v) {
    fr_error err;
    *r = (Rig){.gguf = NULL};
    if (random_model_write(&v->target, TARGET, &err)) fail_msg("%s", err.message);
    r->gguf = rig_gguf(TARGET);
    if (frozen_open(&r->frozen, r->gguf, LENGTH, 2, &err)) fail_msg("%s", err.message);
    r->net = net_of(r->frozen.model, v);
    r->trainer = open_trainer(r);
    trainer_rig_weights(r->trainer, r->weights, MAX_TENSORS);
    trainer_rig_run(r->trainer, &(TrainerRun){N_SEQUENCES, LENGTH, V, 10, 4e-3, FILE_PATH});
}

static void close_rig(Rig *r) {
    r->trainer->class->close(r->trainer);
    frozen_close(&r->frozen);
    gguf_close(r->gguf);
}

/* ---- the network's probabilities ------------------------------------------------------------------ */

/* log q of the last of a path's n tokens, which are drafted after a text of N_TEXT: minus the loss of step n at that
 * position. */
static double log_q(Rig *r, const int32_t *tokens, const float *hidden, int32_t n) {
    double only[DEPTH] = {0};
    int32_t p = N_TEXT - 2 + n;
    uint8_t loss_mask[N_TEXT + DEPTH] = {0};
    const TrainSequence seq = {p + 1, tokens, loss_mask, hidden, r->frozen.embd, r->frozen.head, NULL, NULL, 0, 0};
    MtpNet one = r->net;
    TrainSums sums = {0};
    loss_mask[p] = 1;
    only[n - 1] = 1;
    one.loss.hard_labels = true;
    one.loss.step_weights = only;
    void *acts = mtp_net_class.acts_open(&one, p + 1, NULL);
    assert_non_null(acts);
    mtp_net_class.learn(&one, r->weights, NULL, acts, &seq, 0, &sums);
    mtp_net_class.acts_close(acts);
    return -sums.loss;
}

/* Every node of the drafter's tree has the probability that the network gives to its path. */
static void check_tree(Rig *r) {
    int32_t tokens[N_TEXT + DEPTH + 1] = {0}, at_depth[DEPTH + 1] = {0};
    static float hidden[(N_TEXT + DEPTH) * H];
    LearnedReader reader;
    static Tree tree;
    double log_p[TREE_MAX_NODES] = {0};
    fr_error err;
    rig_tokens(21, V, tokens, N_TEXT);
    if (frozen_read(&r->frozen, tokens, N_TEXT - 1, hidden, NULL, &err)) fail_msg("%s", err.message);
    learned_rig_open_reader(&reader, r->frozen.weights);
    Drafter *d = learned_rig_open_drafter(&reader, "mtp:file=" FILE_PATH ",depth=3,top=3", 1);
    learned_rig_feed(&reader, d, 0, tokens, N_TEXT, 5);
    rig_propose(d, 0, tokens[N_TEXT - 1], 20, V, &tree);
    for (int32_t i = 1; i < tree.n; i++) {
        const TreeNode *node = &tree.nodes[i];
        at_depth[node->depth]++;
        for (int32_t at = i; at > 0; at = tree.nodes[at].parent)
            tokens[N_TEXT - 1 + tree.nodes[at].depth] = tree.nodes[at].token;
        log_p[i] = log_p[node->parent] + log_q(r, tokens, hidden, node->depth);
        if (!(fabs(log((double)node->p_accept) - log_p[i]) < 0.02))
            fail_msg("%s, node %d of depth %d: the drafter gives %g, the network %g",
                     arch_name(r->frozen.model->hparams.arch), i, node->depth, (double)node->p_accept, exp(log_p[i]));
    }
    for (int32_t depth = 1; depth <= DEPTH; depth++) assert_true(at_depth[depth] >= 3);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* ---- tests -------------------------------------------------------------------------------------- */

static void the_drafter_computes_what_was_trained(void **state) {
    (void)state;
    for (int i = 0; i < N_VARIANTS; i++) {
        Rig r;
        open_rig(&r, &variants[i]);
        check_tree(&r);
        close_rig(&r);
    }
}

static void the_file_is_a_companion(void **state) {
    (void)state;
    Rig r;
    open_rig(&r, &variants[0]);
    Gguf *g = rig_gguf(FILE_PATH);
    GgufString text = {"", 0};
    int64_t n = 0;
    assert_true(gguf_get_string(g, "general.architecture", &text) && text.n == 5 && memcmp(text.data, "llama", 5) == 0);
    assert_true(gguf_get_i64(g, "llama.block_count", &n) && n == 3);
    assert_true(gguf_get_i64(g, "llama.nextn_predict_layers", &n) && n == 1);
    assert_int_equal(gguf_kv_count(g, gguf_find_key(g, "tokenizer.ggml.tokens")), V);
    assert_non_null(gguf_find_tensor(g, "blk.2.attn_norm.weight"));
    assert_null(gguf_find_tensor(g, "blk.1.attn_norm.weight"));
    const GgufTensor *copy = gguf_find_tensor(g, "token_embd.weight"), *of = gguf_find_tensor(r.gguf, copy->name);
    assert_memory_equal(copy->data, of->data, of->bytes);
    gguf_close(g);
    close_rig(&r);
}

/* The file is read into the parameters that wrote it. */
static void training_goes_on_from_a_file(void **state) {
    (void)state;
    for (int i = 0; i < N_VARIANTS; i++) {
        Rig r;
        uint64_t fingerprint;
        fr_error err;
        open_rig(&r, &variants[i]);
        Trainer *next = open_trainer(&r);
        if (init_file_read(next, &mtp_net_class, &r.net, r.frozen.model, FILE_PATH, &fingerprint, &err))
            fail_msg("%s", err.message);
        for (int32_t k = 0; k < next->class->n_params(next); k++)
            assert_memory_equal(next->class->param(next, k)->value, r.weights[k],
                                (size_t)next->class->param(next, k)->n * sizeof(float));
        next->class->close(next);
        close_rig(&r);
    }
}

int main(void) {
    if (gemm_open(GEMM_F32, 4, NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_drafter_computes_what_was_trained),
        cmocka_unit_test(the_file_is_a_companion),
        cmocka_unit_test(training_goes_on_from_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
