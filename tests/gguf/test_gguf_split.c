/* test_gguf_split.c - models in several files have the same tensors as in one file; parts that are missing, damaged, of
 * another model, or that make false claims are refused. */
#include "model_rig.h"

#include "cli_rig.h"
#include "gguf/gguf.h"
#include "gguf/gguf_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR "build/test-gguf-split"
#define WHOLE DIR "/whole.gguf"
#define FIRST DIR "/m-00001-of-00003.gguf"
#define SECOND DIR "/m-00002-of-00003.gguf"
#define THIRD DIR "/m-00003-of-00003.gguf"

/* The values of a part's keys; n_tensors is the number of all tensors. */
typedef struct Keys {
    int64_t no, count, n_tensors;
} Keys;

/* Writes tensors [begin, end) of the whole model as a part. */
static void write_part(const Gguf *whole, const char *path, Keys keys, int64_t begin, int64_t end) {
    GgufWriter *w = gguf_writer_new();
    fr_error err;
    gguf_set_u32(w, "split.no", (uint32_t)keys.no);
    gguf_set_u32(w, "split.count", (uint32_t)keys.count);
    gguf_set_u32(w, "split.tensors.count", (uint32_t)keys.n_tensors);
    if (keys.no == 0) gguf_copy_kvs(w, whole, NULL);
    for (int64_t i = begin; i < end; i++) {
        const GgufTensor *t = gguf_tensor(whole, i);
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    if (gguf_writer_finish(w, path, &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
}

static Gguf *whole;
static int64_t n_all;

static int begin(void **state) {
    (void)state;
    mkdir(DIR, 0777);
    const RandomModel m = {.arch = "llama",
                           .n_layer = 2,
                           .n_embd = 32,
                           .n_head = 2,
                           .n_head_kv = 1,
                           .n_ff = 48,
                           .n_vocab = 300,
                           .seed = 5};
    if (random_model_write(&m, WHOLE, NULL)) return -1;
    whole = rig_gguf(WHOLE);
    n_all = gguf_n_tensors(whole);
    return 0;
}

/* The first part has no tensors, as with llama.cpp's gguf-split --no-tensor-first-split. */
static void write_parts(void) {
    write_part(whole, FIRST, (Keys){0, 3, n_all}, 0, 0);
    write_part(whole, SECOND, (Keys){1, 3, n_all}, 0, 7);
    write_part(whole, THIRD, (Keys){2, 3, n_all}, 7, n_all);
}

static int end(void **state) {
    (void)state;
    gguf_close(whole);
    return system("rm -rf " DIR);
}

static void names(void **state) {
    (void)state;
    char path[GGUF_MAX_PATH];
    assert_int_equal(gguf_split_count("a-00001-of-00003.gguf"), 3);
    assert_int_equal(gguf_split_count("-00001-of-00003.gguf"), 1);
    assert_int_equal(gguf_split_count("a-00002-of-00003.gguf"), 1);
    assert_int_equal(gguf_split_count("a-00001-of-0000x.gguf"), 1);
    assert_int_equal(gguf_split_count("a-00001-of-99999.gguf"), 1);
    assert_int_equal(gguf_split_count("a-00001-of-00003.ggu"), 1);
    assert_int_equal(gguf_split_count("x/a-00001-of-00012.gguf"), 12);
    assert_true(gguf_split_path("x/a-00001-of-00012.gguf", 11, path));
    assert_string_equal(path, "x/a-00012-of-00012.gguf");
}

static void parts_are_the_whole(void **state) {
    (void)state;
    write_parts();
    Gguf *g = rig_gguf(FIRST);
    assert_int_equal(gguf_n_files(g), 3);
    assert_int_equal(gguf_n_tensors(g), n_all);
    for (int64_t i = 0; i < n_all; i++) {
        const GgufTensor *a = gguf_tensor(whole, i), *b = gguf_find_tensor(g, a->name);
        assert_ptr_equal(b, gguf_tensor(g, i));
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->dims, b->dims, sizeof a->dims);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    assert_int_equal(gguf_check(g, NULL), 0);
    assert_int_equal(truncate(THIRD, 100), 0);
    assert_int_equal(gguf_check(g, NULL), FR_ERR_IO);
    gguf_close(g);
}

static void expect_refusal(const char *path, const char *words) {
    Gguf *g;
    fr_error err = {0};
    if (gguf_open(&g, path, &err) == FR_OK) fail_msg("%s was opened, but should be refused: %s", path, words);
    assert_null(g);
    if (!strstr(err.message, words)) fail_msg("'%s' lacks '%s'", err.message, words);
}

static void bad_parts_are_refused(void **state) {
    (void)state;
    write_parts();
    expect_refusal(SECOND, "is part 2 of 3 of a model; give the first part, which ends in -00001-of-00003.gguf");
    unlink(SECOND);
    expect_refusal(FIRST, "part 2 of 3 of the model: " SECOND ": cannot be opened: No such file");
    assert_int_equal(rename(FIRST, DIR "/renamed.gguf"), 0);
    expect_refusal(DIR "/renamed.gguf", "found by its name: it must end in -00001-of-00003.gguf");
    write_parts();
    write_part(whole, SECOND, (Keys){2, 3, n_all}, 0, 7);
    expect_refusal(FIRST, "is part 3 of 3 by its keys, and 2 of 3 by its name");
    write_part(whole, SECOND, (Keys){0, 1, n_all}, 0, 7);
    expect_refusal(FIRST, "is part 1 of 1 by its keys");
    write_part(whole, SECOND, (Keys){1, 3, n_all}, 0, 8);
    expect_refusal(FIRST, "promises 21 tensors in 3 parts, which have 22");
    write_part(whole, FIRST, (Keys){0, 3, n_all + 1}, 0, 0);
    expect_refusal(FIRST, "is in another part already");
    write_parts();
    assert_int_equal(truncate(THIRD, 3000), 0);
    expect_refusal(FIRST, "part 3 of 3 of the model: " THIRD ": ");
}

static void hostile_keys_are_refused(void **state) {
    (void)state;
    const Keys bad[] = {{0, 1001, 0}, {0, UINT32_MAX, 0}, {3, 3, 0}, {UINT32_MAX, 3, 0}, {7, 0, 0}};
    write_parts();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_part(whole, FIRST, bad[i], 0, 0);
        expect_refusal(FIRST, "must be an integer from 0 to ");
    }
    GgufWriter *w = gguf_writer_new();
    gguf_set_string(w, "split.count", "3", 1);
    assert_int_equal(gguf_writer_finish(w, FIRST, NULL), 0);
    gguf_writer_free(w);
    expect_refusal(FIRST, "split.count must be an integer");
}

static void commands_read_all_parts(void **state) {
    (void)state;
    char one[4000], three[4000];
    write_parts();
    cli_expect("inspect " FIRST, 0, "in 3 files");
    assert_int_equal(cli_run("tokenize -m " WHOLE " -p 'an example'", one, sizeof one), 0);
    assert_int_equal(cli_run("tokenize -m " FIRST " -p 'an example'", three, sizeof three), 0);
    assert_string_equal(one, three);
    assert_int_equal(cli_run("logits -m " WHOLE " --tokens 1,5,9 -o - | cksum", one, sizeof one), 0);
    assert_int_equal(cli_run("logits -m " FIRST " --tokens 1,5,9 -o - | cksum", three, sizeof three), 0);
    assert_string_equal(one, three);
    cli_expect("quantize " FIRST " " THIRD " --type F16 2>&1", 2, "OUT and IN are the same file");
    cli_expect("quantize " FIRST " " DIR "/one.gguf --type F16 2>&1", 0, "F16");
    Gguf *g = rig_gguf(DIR "/one.gguf");
    assert_int_equal(gguf_find_key(g, "split.count"), -1);
    assert_int_equal(gguf_n_tensors(g), n_all);
    gguf_close(g);
}

#define TEXT_OF(model) "run -m " model " -p 'an example' -n 3 -t 1 -c 64 --seed 1 --ignore-eos --draft none --stats"
#define HASH " 2>&1 | grep -o 'logits [0-9a-f]*'"

/* Each rank finds its slices in all parts, and in their packed weights. */
static void ranks_read_all_parts(void **state) {
    (void)state;
    char one[64], several[64];
    write_parts();
    assert_int_equal(cli_run(TEXT_OF(WHOLE) HASH, one, sizeof one), 0);
    for (int is_packed = 0; is_packed < 2; is_packed++) {
        if (is_packed) cli_expect("repack -m " FIRST " 2>&1", 0, "");
        assert_int_equal(cli_run(TEXT_OF(FIRST) " --ranks 3" HASH, several, sizeof several), 0);
        assert_string_equal(one, several);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(parts_are_the_whole),
        cmocka_unit_test(bad_parts_are_refused),
        cmocka_unit_test(hostile_keys_are_refused),
        cmocka_unit_test(commands_read_all_parts),
        cmocka_unit_test(ranks_read_all_parts),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
