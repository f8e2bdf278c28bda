/* test_grow_model.c - tools/grow_model as a program: a grown model generates the text of the small one, with logits
 * that are equal bit for bit if nothing is rounded (width times 4, the same vocabulary) and within float rounding
 * otherwise; added tokens are never generated. */
#include "model_rig.h"
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_TOKENS = 24, N_VOCAB = 300, MAX_VOCAB = 512 };

static char program[512]; /* the grow_model of the same build as this test */
static const char *const SMALL = "build/grow-small.gguf", *const BIG = "build/grow-big.gguf",
                         *const OTHER = "build/grow-other.gguf";

static void write_small(const char *arch, bool tied, TensorType type) {
    const RandomModel m = {.arch = arch,
                           .n_layer = 2,
                           .n_embd = 64,
                           .n_head = 4,
                           .n_head_kv = 2,
                           .head_dim = 32,
                           .n_ff = 96,
                           .n_vocab = N_VOCAB,
                           .tied = tied,
                           .types = {type},
                           .n_types = 1,
                           .rope_factors = true,
                           .seed = 5};
    fr_error err;
    if (random_model_write(&m, SMALL, &err)) fail_msg("%s", err.message);
}

/* Returns the exit status; the output goes to `said`. */
static int run(const char *from, const char *options, const char *to, char said[512]) {
    char command[1024];
    snprintf(command, sizeof command, "%s %s %s -o %s 2>&1", program, from, options, to);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    said[fread(said, 1, 511, f)] = '\0';
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void grow(const char *from, const char *options, const char *to) {
    char said[512];
    if (run(from, options, to, said)) fail_msg("grow_model %s: %s", options, said);
}

/* Computes the logits after each of N_TOKENS tokens; returns the size of the vocabulary. */
static int32_t logits_of(const char *path, float *logits) {
    Gguf *g = rig_gguf(path);
    Weights *m = rig_weights(g, NULL);
    const RigOptions options = rig_options(64, 8);
    Executor *e = rig_executor(m, &options);
    int32_t tokens[N_TOKENS], n_vocab = m->model->hparams.n_vocab;
    assert_true(n_vocab <= MAX_VOCAB);
    rig_tokens(3, N_VOCAB, tokens, N_TOKENS);
    rig_append(e, rig_sequence(e), tokens, N_TOKENS, 8, n_vocab, logits);
    rig_executor_close(e);
    rig_weights_close(m);
    gguf_close(g);
    return n_vocab;
}

static float small[N_TOKENS * MAX_VOCAB], big[N_TOKENS * MAX_VOCAB];

/* Returns the relative rms difference of the logits of the small model's tokens in the grown model. Checks that new
 * tokens are far below them. */
static double distance(const char *a, const char *b) {
    int32_t n_a = logits_of(a, small), n_b = logits_of(b, big);
    double off = 0, all = 0;
    for (int32_t i = 0; i < N_TOKENS; i++)
        for (int32_t t = 0; t < n_b; t++) {
            double y = (double)big[i * n_b + t];
            if (t >= n_a) assert_true(y < -1e4);
            if (t >= n_a) continue;
            double x = (double)small[i * n_a + t];
            off += (x - y) * (x - y);
            all += x * x;
        }
    return sqrt(off / all);
}

static void a_width_times_four_changes_no_bit(void **state) {
    (void)state;
    const TensorType types[] = {TYPE_Q8_0, TYPE_Q4_0, TYPE_F16, TYPE_BF16, TYPE_F32};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        write_small("llama", i % 2, types[i]);
        grow(SMALL, "--dim 256 --layers 5 --kv-heads 3 --heads 12 --ffn 160", BIG);
        if (distance(SMALL, BIG) != 0) fail_msg("%s: logits differ", tensor_type_info(types[i])->name);
    }
}

static void any_width_and_vocabulary_change_roundings(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        write_small("llama", tied, TYPE_Q8_0);
        grow(SMALL, "--dim 160 --layers 3 --vocab 411", BIG);
        assert_true(distance(SMALL, BIG) < 2e-4); /* int16 activations round some element differently */
        grow(SMALL, "--dim 512 --vocab 411", BIG);
        assert_true(distance(SMALL, BIG) < 2e-4);
    }
    write_small("llama", false, TYPE_F32);
    grow(SMALL, "--dim 160 --layers 3 --vocab 411", BIG);
    assert_true(distance(SMALL, BIG) < 5e-6);
}

static void another_type_is_another_small_model(void **state) {
    (void)state;
    write_small("llama", true, TYPE_Q8_0);
    grow(SMALL, "--type Q4_0", OTHER);
    assert_true(distance(SMALL, OTHER) > 1e-3);
    grow(SMALL, "--type Q4_0 --dim 256 --layers 3", BIG);
    assert_true(distance(OTHER, BIG) == 0);
}

static void what_is_no_growth_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *options, *want;
    } cases[] = {{"--dim 32", "cannot shrink"},
                 {"--vocab 400", "wider model"},
                 {"--heads 5 --kv-heads 2", "same number"},
                 {"--dim 100", "whole blocks"},
                 {"--type Q9", "unknown type"}};
    char said[512];
    write_small("llama", true, TYPE_Q8_0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(run(SMALL, cases[i].options, BIG, said), 2);
        if (!strstr(said, cases[i].want)) fail_msg("%s: %s", cases[i].options, said);
    }
    assert_int_equal(run(SMALL, "--layers 9", SMALL, said), 2);
    assert_non_null(strstr(said, "-o and the model are the same file"));
    assert_int_equal(run(SMALL, "--layers 9", "/nowhere/x", said), 1);
    assert_non_null(strstr(said, "-o: /nowhere/x: cannot be written"));
    write_small("qwen2", true, TYPE_Q8_0);
    assert_int_equal(run(SMALL, "--dim 128", BIG, said), 1);
    assert_non_null(strstr(said, "qwen2"));
}

static int remove_files(void **state) {
    (void)state;
    unlink(SMALL);
    unlink(BIG);
    unlink(OTHER);
    return 0;
}

int main(int argc, char **argv) {
    (void)argc;
    const char *slash = strrchr(argv[0], '/');
    int n_folder = slash ? (int)(slash - argv[0]) + 1 : 0;
    snprintf(program, sizeof program, "%.*s../grow_model", n_folder, argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_width_times_four_changes_no_bit),
        cmocka_unit_test(any_width_and_vocabulary_change_roundings),
        cmocka_unit_test(another_type_is_another_small_model),
        cmocka_unit_test(what_is_no_growth_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, remove_files);
}
