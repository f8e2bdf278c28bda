/* test_corpus_index.c - the file of a corpus index: bad files and other vocabularies are refused, damaged files do no
 * harm, and a failed write leaves no file. test_draft_rest.c tests sorting and searching. */
#include "draft_rig.h"
#include "random_model.h"

#include "research/corpus_build.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX "build/test-corpus.index"
#define MODEL "build/test-corpus.gguf"
#define TARGET "models/target.gguf"

/* One index of 64 tokens and known documents. */
static void write_known(const int32_t *tokens, int32_t n) {
    CorpusBuild b = {.n_vocab = 64};
    assert_int_equal(corpus_build_add(&b, tokens, n, NULL), FR_OK);
    assert_int_equal(corpus_build_end(&b, NULL), FR_OK);
    assert_int_equal(corpus_build_add(&b, (int32_t[]){1, 2}, 2, NULL), FR_OK);
    assert_int_equal(corpus_build_end(&b, NULL), FR_OK);
    assert_int_equal(corpus_build_write(&b, INDEX, NULL, NULL), FR_OK);
    corpus_build_free(&b);
}

static void check_refused(const char *spec, const DrafterEnv *env, fr_code code, const char *message) {
    Drafter *d = NULL;
    fr_error err = {0};
    int status = drafter_open(&d, spec, env, 0, &err);
    if (status != code || !strstr(err.message, message))
        fail_msg("%s: %d \"%s\", want \"%s\"", spec, status, err.message, message);
    assert_null(d);
}

static char *slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    static char bytes[1 << 16];
    *n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    char *copy = malloc(*n); /* exactly this size, so that the address sanitizer detects a read beyond it */
    assert_non_null(copy);
    memcpy(copy, bytes, *n);
    return copy;
}

static void spill(const char *path, const char *bytes, size_t n) {
    unlink(path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void bad_files_are_refused(void **state) {
    (void)state;
    const DrafterEnv env = {.n_vocab = 64, .max_sequences = 1};
    size_t n;
    int32_t text[50];
    rig_fill_text(text, 50, 4);
    write_known(text, 50);
    char *good = slurp(INDEX, &n), *bad = malloc(n + 1);
    check_refused("rest", &env, FR_ERR_ARGUMENT, "forerun index");
    check_refused("rest:index=/nowhere", &env, FR_ERR_IO, "/nowhere: cannot be opened");
    check_refused("rest:index=build", &env, FR_ERR_IO, "is not a regular file but a folder");
    check_refused("rest:index=Makefile", &env, FR_ERR_FORMAT, "is not a corpus index");
    check_refused("rest:index=" INDEX ",min_match=17", &env, FR_ERR_ARGUMENT, "min_match");
    check_refused("rest:index=" INDEX, &(DrafterEnv){.n_vocab = 65, .max_sequences = 1}, FR_ERR_MISMATCH,
                  "(64 tokens)");
    memcpy(bad, good, n);
    bad[n] = 0;
    spill(INDEX, bad, n + 1);
    check_refused("rest:index=" INDEX, &env, FR_ERR_FORMAT, "cut off or damaged");
    for (size_t k = 0; k < n; k++) {
        spill(INDEX, good, k);
        check_refused("rest:index=" INDEX, &env, FR_ERR_FORMAT, k < 128 ? "too short" : "cut off or damaged");
    }
    bad[8]++; /* the version */
    spill(INDEX, bad, n);
    check_refused("rest:index=" INDEX, &env, FR_ERR_UNSUPPORTED, "of version 2");
    free(good);
    free(bad);
}

static void an_index_for_another_vocabulary_is_refused(void **state) {
    (void)state;
    const RandomModel m = {.arch = "llama",
                           .n_layer = 1,
                           .n_embd = 32,
                           .n_head = 2,
                           .n_head_kv = 2,
                           .n_ff = 32,
                           .n_vocab = 300,
                           .seed = 1};
    fr_error err = {0};
    Gguf *target = NULL, *draft = NULL, *other = NULL;
    uint64_t a = 0, b = 1, c = 0;
    if (random_model_write(&m, MODEL, &err) || gguf_open(&other, MODEL, &err) || gguf_open(&target, TARGET, &err) ||
        gguf_open(&draft, "models/draft.gguf", &err))
        fail_msg("%s", err.message);
    assert_int_equal(vocab_fingerprint(target, &a, &err), FR_OK);
    assert_int_equal(vocab_fingerprint(draft, &b, &err), FR_OK);
    assert_int_equal(vocab_fingerprint(other, &c, &err), FR_OK);
    assert_true(a == b && a != c); /* the shipped draft model has the target's vocabulary */
    CorpusBuild build = {.n_vocab = 4096};
    assert_int_equal(corpus_build_add(&build, (int32_t[]){1, 2, 3}, 3, NULL), FR_OK);
    assert_int_equal(corpus_build_end(&build, NULL), FR_OK);
    assert_int_equal(corpus_build_write(&build, INDEX, target, &err), FR_OK);
    corpus_build_free(&build);
    CorpusIndex x;
    assert_int_equal(corpus_open(&x, INDEX, 4096, draft, &err), FR_OK);
    corpus_close(&x);
    assert_int_equal(corpus_open(&x, INDEX, 5000, target, &err), FR_OK); /* padded embeddings */
    corpus_close(&x);
    const DrafterEnv env = {.n_vocab = 4096, .max_sequences = 1, .vocab = other};
    check_refused("rest:index=" INDEX, &env, FR_ERR_MISMATCH, "with the vocabulary of target.gguf (4096 tokens)");
    gguf_close(target);
    gguf_close(draft);
    gguf_close(other);
    unlink(MODEL);
}

static void a_failed_write_leaves_no_file(void **state) {
    (void)state;
    fr_error err = {0};
    CorpusBuild b = {.n_vocab = 64};
    unlink(INDEX);
    assert_int_equal(corpus_build_end(&b, &err), FR_OK);
    assert_int_equal(corpus_build_write(&b, INDEX, NULL, &err), FR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "holds no text"));
    assert_int_equal(access(INDEX, F_OK), -1);
    assert_int_equal(corpus_build_add(&b, (int32_t[]){3, 64}, 2, &err), FR_ERR_ARGUMENT);
    assert_int_equal(corpus_build_end(&b, &err), FR_OK);
    assert_int_equal(corpus_build_write(&b, "/nowhere/x.index", NULL, &err), FR_ERR_IO);
    corpus_build_free(&b);
}

/* Whatever the bytes after the header are, searches stay inside the file and trees are valid. */
static void damaged_files_do_no_harm(void **state) {
    (void)state;
    static Tree tree;
    int32_t text[300];
    size_t n;
    rig_fill_text(text, 300, 4);
    write_known(text, 300);
    char *good = slurp(INDEX, &n), *bad = malloc(n);
    assert_non_null(bad);
    for (int round = 0; round < 300; round++) {
        memcpy(bad, good, n);
        for (int k = 1 << rig_below(10); k > 0; k--) bad[128 + rig_below((int32_t)n - 128)] = (char)rig_below(256);
        CorpusIndex x;
        fr_error err = {0};
        if (corpus_open_memory(&x, bad, n, "damaged", 64, NULL, &err)) fail_msg("%s", err.message);
        CorpusSpan s;
        corpus_longest(&x, text + round % 100, 100, 1, 16, &s);
        for (int64_t i = 0; i < (int64_t)x.header->n_places; i++)
            assert_in_range(corpus_token(&x, i, round) + 1, 0, 64);
        corpus_close(&x);
        spill(INDEX, bad, n);
        Drafter *d = rig_open_drafter("rest:index=" INDEX ",min_match=1", 64, 1);
        rig_feed(d, 0, text + round % 100, 20, 100);
        rig_propose(d, 0, text[round % 100 + 99], 60, 64, &tree);
        drafter_close(d);
    }
    free(good);
    free(bad);
}

static int clean(void **state) {
    (void)state;
    unlink(INDEX);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(an_index_for_another_vocabulary_is_refused),
        cmocka_unit_test(a_failed_write_leaves_no_file),
        cmocka_unit_test(damaged_files_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
