/* test_train_llama.c - the trainer of a Llama-style target: its loss falls, it is deterministic, and inference with the
 * file that it writes computes the network that was trained. */
#include "train/llama.h"
#include "train/ops.h"

#include "base/mem.h"
#include "base/rng.h"
#include "model_rig.h"
#include "testing.h"
#include "train/optimizer.h"
#include "train/gemm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = 70, N_SEQUENCES = 5, N_VOCAB = 300 };

static int32_t tokens[N_SEQUENCES][LENGTH + 1];
static uint8_t loss_mask[N_SEQUENCES][LENGTH];
static const TrainBatch batch = {N_SEQUENCES, LENGTH, &tokens[0][0], &loss_mask[0][0], 0};

static LlamaOptions options_of(const Gguf *vocabulary, int n_threads) {
    return (LlamaOptions){.shape = {.n_layer = 2,
                                    .n_embd = 32,
                                    .n_head = 4,
                                    .n_head_kv = 2,
                                    .head_dim = 16,
                                    .n_ff = 96,
                                    .rms_eps = 1e-5f,
                                    .rope_base = 10000},
                          .max_length = LENGTH,
                          .n_ctx = 128,
                          .type = TYPE_F32,
                          .name = "tiny",
                          .vocabulary = vocabulary,
                          .seed = 3,
                          .n_threads = n_threads};
}

static Trainer *open_trainer(const LlamaOptions *o) {
    fr_error err = {0};
    Trainer *t = NULL;
    if (llama_trainer_open(&t, o, &err)) fail_msg("%s", err.message);
    return t;
}

static Gguf *open_vocabulary(void) {
    return rig_random_gguf(&(RandomModel){.arch = "llama",
                                          .n_layer = 1,
                                          .n_embd = 32,
                                          .n_head = 2,
                                          .n_head_kv = 2,
                                          .n_ff = 32,
                                          .n_vocab = N_VOCAB,
                                          .tied = true,
                                          .seed = 1});
}

static int make_batch(void **state) {
    (void)state;
    for (int32_t i = 0; i < N_SEQUENCES; i++)
        for (int32_t k = 0; k <= LENGTH; k++) {
            tokens[i][k] = (i * 31 + k * k) % N_VOCAB;
            if (k < LENGTH) loss_mask[i][k] = k % 7 != i;
        }
    return 0;
}

static TrainSums learn(Trainer *t, double weight) {
    fr_error err = {0};
    TrainSums sums = {0};
    if (t->class->learn(t, &batch, weight, &sums, &err)) fail_msg("%s", err.message);
    return sums;
}

/* n steps of AdamW on the one batch; the mean loss of the last. */
static double train(Trainer *t, int n) {
    AdamW a;
    AdamWOptions o = {0.9, 0.95, 1e-8, 0.1};
    double loss = 0;
    assert_int_equal(adamw_open(&a, &o, t, NULL), FR_OK);
    for (int i = 0; i < n; i++) {
        trainer_zero_gradients(t);
        TrainSums sums = learn(t, 1.0 / (N_SEQUENCES * LENGTH));
        loss = sums.loss / (double)sums.n;
        adamw_step(&a, t, 3e-3, clip_scale(trainer_gradient_norm(t, 1), 1));
    }
    adamw_close(&a);
    return loss;
}

/* ---- learning ---------------------------------------------------------------------------------------- */

static void loss_falls(GemmPrecision precision) {
    assert_int_equal(gemm_open(precision, 4, NULL), FR_OK);
    Gguf *g = open_vocabulary();
    LlamaOptions o = options_of(g, 2);
    Trainer *t = open_trainer(&o);
    TrainSums first = learn(t, 0);
    double start = first.loss / (double)first.n;
    assert_true(fabs(start - log(N_VOCAB)) < 0.1); /* with small initial values the distribution is nearly uniform */
    double end = train(t, 120);
    TrainSums last = learn(t, 0);
    if (!(end < 0.3 * start)) fail_msg("loss %g after 120 steps from %g", end, start);
    assert_int_equal(last.n_heads, 1);
    assert_int_equal(last.of[0], last.n);
    assert_true(last.right[0] > 9 * last.n / 10);
    assert_int_equal(last.n, first.n);
    t->class->close(t);
    gguf_close(g);
    assert_int_equal(gemm_open(GEMM_F32, 4, NULL), FR_OK);
}

static void loss_falls_on_a_repeated_text(void **state) {
    (void)state;
    loss_falls(GEMM_F32);
    if (gemm_has_instructions(GEMM_BF16)) loss_falls(GEMM_BF16); /* in plain C it would take minutes */
}

/* With weight 0 no gradient changes; two halves of the weight add up to the whole. */
static void gradients_add_up(void **state) {
    (void)state;
    Gguf *g = open_vocabulary();
    LlamaOptions o = options_of(g, 2);
    Trainer *t = open_trainer(&o);
    learn(t, 0);
    assert_true(trainer_gradient_norm(t, 1) == 0);
    learn(t, 1);
    double whole = trainer_gradient_norm(t, 1);
    trainer_zero_gradients(t);
    learn(t, 0.5);
    learn(t, 0.5);
    double halves = trainer_gradient_norm(t, 1);
    assert_true(whole > 0.1 && fabs(halves - whole) < 1e-5 * whole);
    t->class->close(t);
    gguf_close(g);
}

/* The float network of the program: along its own gradient, the loss must change by the square of the gradient's norm
 * (test_train_net.c checks each tensor, in double). */
static void gradient_of_the_float_network(void **state) {
    (void)state;
    Gguf *g = open_vocabulary();
    LlamaOptions o = options_of(g, 1);
    Trainer *t = open_trainer(&o);
    learn(t, 1);
    double norm = trainer_gradient_norm(t, 1), h = 0.02 / norm, at[2];
    for (int side = 0; side < 2; side++) {
        for (int32_t i = 0; i < t->class->n_params(t); i++) {
            Param *p = t->class->param(t, i);
            for (int64_t k = 0; k < p->n; k++) p->value[k] += (float)((side ? -2 : 1) * h) * p->grad[k];
        }
        at[side] = learn(t, 0).loss;
    }
    double slope = (at[0] - at[1]) / (2 * h * norm * norm);
    if (fabs(slope - 1) > 0.01) fail_msg("along its gradient the loss changes %g times what it should", slope);
    t->class->close(t);
    gguf_close(g);
}

/* The smallest batch: one prediction, fewer sequences than threads. */
static void a_batch_of_one_prediction(void **state) {
    (void)state;
    Gguf *g = open_vocabulary();
    LlamaOptions o = options_of(g, 3);
    Trainer *t = open_trainer(&o);
    const int32_t two[2] = {5, 6};
    const uint8_t yes = 1;
    TrainSums sums = {0};
    assert_int_equal(t->class->learn(t, &(TrainBatch){1, 1, two, &yes, 0}, 1, &sums, NULL), FR_OK);
    assert_int_equal(sums.n, 1);
    assert_true(fabs(sums.loss - log(N_VOCAB)) < 0.5 && trainer_gradient_norm(t, 1) > 0.1);
    t->class->close(t);
    gguf_close(g);
}

/* ---- determinism ------------------------------------------------------------------------------------- */

/* Returns the values of all tensors after three steps; the caller frees them. */
static float *values_after(const Gguf *g, uint64_t seed, int n_threads, int64_t *n) {
    LlamaOptions o = options_of(g, n_threads);
    o.seed = seed;
    Trainer *t = open_trainer(&o);
    train(t, 3);
    *n = llama_trainer_n_weights(t);
    float *all = mem_calloc((size_t)*n, sizeof *all), *at = all;
    assert_non_null(all);
    for (int32_t i = 0; i < t->class->n_params(t); at += t->class->param(t, i)->n, i++)
        memcpy(at, t->class->param(t, i)->value, (size_t)t->class->param(t, i)->n * sizeof *at);
    t->class->close(t);
    return all;
}

static void same_seed_same_bits(void **state) {
    (void)state;
    Gguf *g = open_vocabulary();
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        int64_t n;
        float *a = values_after(g, 3, n_threads, &n), *b = values_after(g, 3, n_threads % 3 + 1, &n);
        float *other = values_after(g, 4, n_threads, &n);
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
        assert_memory_not_equal(a, other, (size_t)n * sizeof *a);
        mem_free(b), mem_free(other);
        assert_int_equal(gemm_open(GEMM_BF16, 4, NULL), FR_OK);
        b = values_after(g, 3, n_threads, &n), other = values_after(g, 3, n_threads, &n);
        assert_int_equal(gemm_open(GEMM_F32, 4, NULL), FR_OK);
        assert_memory_equal(b, other, (size_t)n * sizeof *b);
        assert_memory_not_equal(a, b, (size_t)n * sizeof *a);
        mem_free(a), mem_free(b), mem_free(other);
    }
    gguf_close(g);
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static Gguf *write_and_open(Trainer *t) {
    char path[] = "build/trained-XXXXXX";
    (void)mkdir("build", 0777);
    int fd = mkstemp(path);
    if (fd < 0) fail_msg("%s: cannot make a temporary file", path);
    close(fd);
    fr_error err = {0};
    if (t->class->write(t, path, NULL, &err)) fail_msg("%s", err.message);
    Gguf *g = rig_gguf(path);
    unlink(path);
    return g;
}

/* Computes the logits that the trainer's network computes with its values. */
static void logits_of_trainer(Trainer *t, LlamaShape shape, float *logits) {
    LlamaLayer layers[2];
    LlamaActs acts;
    LlamaWeights w = llama_place_weights(&shape, layers, t->class->param(t, 0)->value);
    assert_int_equal(llama_acts_open(&acts, &shape, LENGTH, NULL), FR_OK);
    llama_forward(&shape, &w, &acts, tokens[0], LENGTH);
    linear_forward(logits, acts.normed, w.token_embd, NULL, LENGTH, shape.n_embd, shape.n_vocab);
    llama_acts_close(&acts);
}

static double distance_to_executor(TensorType type) {
    Gguf *vocabulary = open_vocabulary();
    LlamaOptions o = options_of(vocabulary, 2);
    o.type = type;
    Trainer *t = open_trainer(&o);
    train(t, 30);
    float *mine = mem_calloc(LENGTH * N_VOCAB, sizeof *mine), *theirs = mem_calloc(LENGTH * N_VOCAB, sizeof *theirs);
    assert_true(mine && theirs);
    o.shape.n_vocab = N_VOCAB;
    logits_of_trainer(t, o.shape, mine);
    Gguf *g = write_and_open(t);
    assert_true(gguf_find_tensor(g, "blk.1.ffn_down.weight")->type == type);
    assert_true(gguf_find_tensor(g, "blk.1.ffn_norm.weight")->type == TYPE_F32);
    Weights *model = rig_weights(g, NULL);
    RigOptions eo = rig_options(LENGTH, LENGTH);
    Executor *e = rig_executor(model, &eo);
    rig_append(e, rig_sequence(e), tokens[0], LENGTH, LENGTH, N_VOCAB, theirs);
    double distance = rig_rel_rms(theirs, mine, LENGTH * N_VOCAB);
    rig_executor_close(e);
    rig_weights_close(model);
    gguf_close(g);
    mem_free(mine), mem_free(theirs);
    t->class->close(t);
    gguf_close(vocabulary);
    return distance;
}

static void inference_matches_the_trained_network(void **state) {
    (void)state;
    static const struct {
        TensorType type;
        double least, most; /* a smaller distance would mean that another type was written */
    } cases[] = {{TYPE_F32, 0, 3e-6}, {TYPE_F16, 1e-5, 2e-3}, {TYPE_Q8_0, 5e-4, 3e-2}};
    for (int i = 0; i < 3; i++) {
        double d = distance_to_executor(cases[i].type);
        if (!(d >= cases[i].least && d <= cases[i].most))
            fail_msg("%s: the executor's logits are %g away from the trainer's", tensor_type_info(cases[i].type)->name,
                     d);
    }
}

static void the_file_has_the_vocabulary_and_the_training_precision(void **state) {
    (void)state;
    Gguf *vocabulary = open_vocabulary();
    LlamaOptions o = options_of(vocabulary, 1);
    Trainer *t = open_trainer(&o);
    Gguf *g = write_and_open(t);
    int n_keys = 0;
    for (int64_t i = 0; i < gguf_n_kv(vocabulary); i++) {
        const char *key = gguf_key(vocabulary, i);
        if (strncmp(key, "tokenizer.", 10) != 0) continue;
        int64_t k = gguf_find_key(g, key);
        assert_true(k >= 0 && gguf_kv_type(g, k) == gguf_kv_type(vocabulary, i));
        assert_int_equal(gguf_kv_count(g, k), gguf_kv_count(vocabulary, i));
        n_keys++;
    }
    assert_true(n_keys >= 4);
    GgufString precision = {0};
    assert_true(gguf_get_string(g, "forerun.training.precision", &precision));
    assert_true(precision.n == 3 && memcmp(precision.data, "f32", 3) == 0);
    gguf_close(g);
    t->class->close(t);
    gguf_close(vocabulary);
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static void bad_options_and_batches_are_refused(void **state) {
    (void)state;
    Gguf *g = open_vocabulary();
    const LlamaOptions good = options_of(g, 1);
    LlamaOptions bad[7] = {good, good, good, good, good, good, good};
    bad[0].shape.n_layer = 0;
    bad[1].shape.n_head_kv = 3;
    bad[2].shape.head_dim = 15;
    bad[3].max_length = 0;
    bad[4].n_ctx = LENGTH - 1;
    bad[5].type = TYPE_Q4_K;
    bad[6].type = TYPE_Q8_0, bad[6].shape.n_ff = 90;
    for (int i = 0; i < 7; i++) {
        Trainer *t = NULL;
        fr_error err = {0};
        assert_int_equal(llama_trainer_open(&t, &bad[i], &err), FR_ERR_ARGUMENT);
        assert_null(t);
        assert_true(strlen(err.message) > 20);
    }
    Trainer *t = open_trainer(&good);
    int32_t strange[3] = {1, N_VOCAB, 2}, longer[LENGTH + 2] = {0};
    uint8_t all[LENGTH + 1] = {0};
    TrainSums sums = {0};
    assert_int_equal(t->class->learn(t, &(TrainBatch){1, 2, strange, all, 0}, 1, &sums, NULL), FR_ERR_ARGUMENT);
    assert_int_equal(t->class->learn(t, &(TrainBatch){1, LENGTH + 1, longer, all, 0}, 1, &sums, NULL), FR_ERR_ARGUMENT);
    assert_int_equal(t->class->learn(t, &(TrainBatch){1, 1, strange + 1, all, 0}, 1, &sums, NULL), FR_ERR_ARGUMENT);
    assert_int_equal(sums.n, 0);
    assert_true(t->class->write(t, "/nowhere/at/all.gguf", NULL, NULL) != FR_OK);
    t->class->close(t);
    gguf_close(g);
}

/* ---- the float exponential --------------------------------------------------------------------------- */

static void the_float_exponential_is_accurate(void **state) {
    (void)state;
    double worst = 0;
    for (int i = -86000; i <= 87000; i++) {
        float x = (float)i * 1e-3f;
        double error = fabs((double)real_exp(x) / exp((double)x) - 1);
        if (error > worst) worst = error;
    }
    if (!(worst < 2.5e-7)) fail_msg("real_exp is wrong by %g of itself", worst);
    assert_true(real_exp(0) == 1 && real_exp(-1e30f) < 1e-37f && real_exp(-1e30f) >= 0 && isfinite(real_exp(1e30f)));
    assert_true(real_exp(-INFINITY) < 1e-37f && isfinite(real_exp(INFINITY)));
    assert_true(isnan(real_exp(NAN)) && isnan(real_exp(-NAN))); /* under UBSan: without a conversion to an integer */
}

int main(void) {
    if (gemm_open(GEMM_F32, 4, NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_falls_on_a_repeated_text),
        cmocka_unit_test(gradients_add_up),
        cmocka_unit_test(gradient_of_the_float_network),
        cmocka_unit_test(a_batch_of_one_prediction),
        cmocka_unit_test(same_seed_same_bits),
        cmocka_unit_test(inference_matches_the_trained_network),
        cmocka_unit_test(the_file_has_the_vocabulary_and_the_training_precision),
        cmocka_unit_test(bad_options_and_batches_are_refused),
        cmocka_unit_test(the_float_exponential_is_accurate),
    };
    return cmocka_run_group_tests(tests, make_batch, NULL);
}
