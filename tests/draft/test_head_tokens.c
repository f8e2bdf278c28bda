/* test_head_tokens.c - learned drafters whose file lists the tokens of their LM head: a list of all tokens changes no
 * bit of a tree, a shorter one leaves the logits of its tokens as they are, and wrong lists are refused. The text of
 * such a drafter is checked with those of all drafters (all_drafters.c). */
#include "all_drafters.h"
#include "learned_rig.h"

#include "base/mem.h"
#include "draft/learned/learned.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { V = ALL_DRAFTERS_VOCAB, N_TEXT = 20, BUDGET = 8 };

static Gguf *target_gguf;
static Weights *target;
static int32_t text[N_TEXT], all_tokens[V], odd_tokens[V / 2];

static int open_all(void **state) {
    (void)state;
    all_drafters_write_files();
    target_gguf = rig_gguf(ALL_DRAFTERS_TARGET);
    target = rig_weights(target_gguf, NULL);
    for (int32_t i = 0; i < N_TEXT; i++) text[i] = ALL_DRAFTERS_TOKEN(i);
    for (int32_t i = 0; i < V; i++) all_tokens[i] = i;
    for (int32_t i = 0; i < V / 2; i++) odd_tokens[i] = 2 * i + 1;
    return 0;
}

static int close_all(void **state) {
    (void)state;
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* Copies a drafter's file, with a list of n tokens. */
static void write_with_list(const char *from, const int32_t *tokens, int32_t n, const char *path) {
    fr_error err;
    Gguf *g = rig_gguf(from);
    GgufWriter *w = gguf_writer_new();
    gguf_copy_kvs(w, g, "no such prefix");
    gguf_set_i32s(w, DRAFTER_KEY("head_tokens"), tokens, n);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    if (gguf_writer_finish(w, path, &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
    gguf_close(g);
}

/* The tree that a drafter proposes after the text. */
static void propose(const char *spec, Tree *tree) {
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
    learned_rig_feed(&reader, d, 0, text, N_TEXT, N_TEXT);
    rig_propose(d, 0, text[N_TEXT - 1], BUDGET, V, tree);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* Names of files in build; a method is the part before the first '-'. */
static const char *const drafters[] = {"redrafter", "medusa", "hydra",         "eagle",
                                       "lyanna",    "dflash", "dflash-markov", "dflash-2"};
enum { N_FILES = sizeof drafters / sizeof *drafters };

/* The spec of a file with the method of drafters[i]. */
static const char *spec_of(size_t i, const char *file) {
    static char spec[100];
    snprintf(spec, sizeof spec, "%.*s:file=build/%s.gguf", (int)strcspn(drafters[i], "-"), drafters[i], file);
    return spec;
}

static void a_list_of_all_tokens_changes_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        char name[60], from[80];
        static Tree want, got;
        snprintf(name, sizeof name, "all-%s", drafters[i]);
        snprintf(from, sizeof from, "build/%s.gguf", name);
        write_with_list(from, all_tokens, V, "build/head-tokens-all.gguf");
        propose(spec_of(i, name), &want);
        assert_true(want.n > 1);
        propose(spec_of(i, "head-tokens-all"), &got);
        rig_assert_same_tree(&want, &got, drafters[i]);
    }
}

static void expect_odd(const Tree *tree, const char *what) {
    assert_true(tree->n > 1);
    for (int32_t k = 1; k < tree->n; k++)
        if (tree->nodes[k].token % 2 == 0) fail_msg("%s drafted token %d", what, tree->nodes[k].token);
}

static void only_tokens_of_the_list_are_drafted(void **state) {
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        char from[60];
        static Tree tree;
        snprintf(from, sizeof from, "build/all-%s.gguf", drafters[i]);
        write_with_list(from, odd_tokens, V / 2, "build/head-tokens-odd.gguf");
        propose(spec_of(i, "head-tokens-odd"), &tree);
        expect_odd(&tree, drafters[i]);
    }
}

/* Two layers for multi-token prediction with an LM head of their own. */
static void a_companion_may_have_a_list(void **state) {
    (void)state;
    static Tree want, got;
    Gguf *g = rig_gguf(ALL_DRAFTERS_NEXTN);
    Weights *of_all = target;
    target = rig_weights(g, NULL);
    propose("mtp", &want);
    write_with_list(ALL_DRAFTERS_NEXTN, all_tokens, V, "build/head-tokens-all.gguf");
    propose("mtp:file=build/head-tokens-all.gguf", &got);
    rig_assert_same_tree(&want, &got, "mtp");
    write_with_list(ALL_DRAFTERS_NEXTN, odd_tokens, V / 2, "build/head-tokens-odd.gguf");
    propose("mtp:file=build/head-tokens-odd.gguf", &got);
    expect_odd(&got, "mtp");
    rig_weights_close(target);
    gguf_close(g);
    target = of_all;
}

/* A map of a published file may name any tokens of the target, also those beyond the size of the drafter's head. */
static void tokens_of_a_map_are_drafted(void **state) {
    (void)state;
    static Tree tree;
    propose("eagle3:file=build/all-eagle3.gguf", &tree);
    int32_t deepest = 0, largest = 0;
    for (int32_t k = 1; k < tree.n; k++) {
        if (tree.nodes[k].depth > deepest) deepest = tree.nodes[k].depth;
        if (tree.nodes[k].token > largest) largest = tree.nodes[k].token;
    }
    assert_true(deepest > 1 && largest >= V / 2);
}

static DrafterEnv env_of(LearnedReader *r) {
    return (DrafterEnv){.n_vocab = V,
                        .max_sequences = 1,
                        .target = target_gguf,
                        .weights = target,
                        .device = executor_context(r->executor)->device,
                        .n_ctx = 64,
                        .kept = &r->kept};
}

/* Compares the logits of both kinds of heads for random rows with those of the whole heads. */
static void logits_of_the_list_have_the_same_bits(void **state) {
    (void)state;
    enum { ROWS = 3 };
    static const char *const files[2] = {"build/all-medusa.gguf", "build/head-tokens-medusa.gguf"};
    const int32_t sizes[2] = {V, V / 2};
    LearnedDrafter d[2] = {0};
    Buffer *x[2], *of_target[2], *own[2];
    Linear *output[2];
    LearnedReader reader;
    fr_error err;
    learned_rig_open_reader(&reader, target);
    write_with_list(files[0], odd_tokens, V / 2, files[1]);
    for (int i = 0; i < 2; i++) {
        const DrafterEnv env = env_of(&reader);
        const LearnedBuffer buffers[] = {{&x[i], ROWS * ALL_DRAFTERS_EMBD},
                                         {&of_target[i], ROWS * V},
                                         {&own[i], ROWS * V}};
        if (learned_open(&d[i], files[i], "medusa", &env, &err) || learned_open_buffers(&d[i], buffers, 3, &err) ||
            learned_head_reserve(&d[i], ROWS, &err) ||
            learned_output_open(&d[i], "medusa.1.output", ALL_DRAFTERS_EMBD, false, ROWS, &output[i], &err))
            fail_msg("%s", err.message);
        assert_int_equal(d[i].head.n, sizes[i]);
        float rows[ROWS * ALL_DRAFTERS_EMBD];
        for (int32_t k = 0; k < ROWS * ALL_DRAFTERS_EMBD; k++) rows[k] = (float)(k * 37 % 101) / 50 - 1;
        learned_write(x[i], 0, rows, ROWS * ALL_DRAFTERS_EMBD);
        learned_head(&d[i], x[i], ROWS, of_target[i]);
        learned_output(&d[i], output[i], x[i], ROWS, own[i]);
    }
    for (int32_t k = 0; k < ROWS * V; k++) {
        bool is_listed = k % V % 2 == 1;
        float want[2] = {is_listed ? of_target[0]->floats[k] : -INFINITY, is_listed ? own[0]->floats[k] : -INFINITY};
        assert_memory_equal(&of_target[1]->floats[k], &want[0], sizeof *want);
        assert_memory_equal(&own[1]->floats[k], &want[1], sizeof *want);
    }
    for (int i = 0; i < 2; i++) {
        learned_linear_close(&d[i], output[i]);
        learned_release(&d[i]);
    }
    learned_rig_close_reader(&reader);
}

static void wrong_lists_are_refused(void **state) {
    (void)state;
    static const int32_t falls[] = {5, 4}, too_large[] = {5, V};
    write_with_list("build/all-medusa.gguf", falls, 2, "build/head-tokens-bad.gguf");
    learned_rig_check_refused(target, "medusa:file=build/head-tokens-bad.gguf", FR_ERR_FORMAT,
                              "entry 1 of forerun-drafter.head_tokens");
    write_with_list("build/all-eagle.gguf", too_large, 2, "build/head-tokens-bad.gguf");
    learned_rig_check_refused(target, "eagle:file=build/head-tokens-bad.gguf", FR_ERR_FORMAT,
                              "must rise and stay below 300");
    write_with_list("build/all-eagle3.gguf", odd_tokens, V / 2, "build/head-tokens-bad.gguf");
    learned_rig_check_refused(target, "eagle3:file=build/head-tokens-bad.gguf", FR_ERR_FORMAT,
                              "has the key head_tokens");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_all_tokens_changes_nothing),  cmocka_unit_test(only_tokens_of_the_list_are_drafted),
        cmocka_unit_test(a_companion_may_have_a_list),           cmocka_unit_test(tokens_of_a_map_are_drafted),
        cmocka_unit_test(logits_of_the_list_have_the_same_bits), cmocka_unit_test(wrong_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
