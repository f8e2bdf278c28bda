/* test_index_cli.c - `forerun index` as a program: which corpora it accepts and refuses, and that `replay` drafts
 * from the index. */
#include "cli_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#define CORPUS "build/test-index.jsonl"
#define PLAIN "build/test-index.txt"
#define INDEX "build/test-index.index"
#define TARGET "--vocab models/target.gguf "

static void spill(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void spill_text(const char *path, const char *text) { spill(path, text, strlen(text)); }

static void it_takes_all_kinds_of_corpora(void **state) {
    (void)state;
    spill_text(PLAIN, "one plain text\nof two lines\n");
    spill_text(CORPUS, "{\"text\": \"one\"}\n\n{\"prompt\": \"two \", \"response\": \"three\"}\n"
                       "{\"messages\": [{\"role\": \"user\", \"content\": \"four\"}, {\"content\": \"five\"}]}");
    cli_expect("index " TARGET CORPUS " -o " INDEX, 0, " in 4 documents, ");
    cli_expect("index " TARGET PLAIN " -o " INDEX, 0, " in 1 document, ");
    cli_expect("index " TARGET CORPUS " " PLAIN " -o " INDEX, 0, " in 5 documents, ");
    cli_expect("index " TARGET CORPUS " " PLAIN " --limit 1 -o " INDEX, 0, " in 1 document, ");
}

/* 3000 documents, which are more than a chunk, give the same index with and without compression. */
static void zstd_changes_nothing(void **state) {
    (void)state;
    static char text[400000], packed[500000];
    size_t n = 0;
    for (int i = 0; i < 3000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "{\"text\": \"document %d %d %d tells of number %d\"}\n",
                              i * 7919, i * i, i * 104729, i);
    spill(CORPUS, text, n);
    size_t half = ZSTD_compress(packed, sizeof packed, text, n / 2, 3); /* two frames, as `cat` makes them */
    assert_false(ZSTD_isError(half));
    size_t rest = ZSTD_compress(packed + half, sizeof packed - half, text + n / 2, n - n / 2, 3);
    assert_false(ZSTD_isError(rest));
    spill(CORPUS ".zst", packed, half + rest);
    cli_expect("index " TARGET CORPUS " -o " INDEX, 0, " in 3000 documents, ");
    cli_expect("index " TARGET CORPUS ".zst -o " INDEX ".2", 0, " in 3000 documents, ");
    assert_int_equal(system("cmp " INDEX " " INDEX ".2"), 0);
    spill(CORPUS ".zst", packed, half + rest - 1);
    cli_expect("index " TARGET CORPUS ".zst -o " INDEX, 1, "cut off");
    memset(packed, 0, 4);
    spill(CORPUS ".zst", packed, half);
    cli_expect("index " TARGET CORPUS ".zst -o " INDEX, 1, "damaged zstd data");
    assert_int_equal(system("cmp " INDEX " " INDEX ".2"), 0); /* the old file stays */
}

static void replay_drafts_from_it(void **state) {
    (void)state;
    spill_text(CORPUS, "{\"prompt\": \"Tell me.\", \"response\": \"the quick brown fox jumps over the lazy dog\"}\n");
    cli_expect("index " TARGET CORPUS " -o " INDEX, 0, " in 1 document, ");
    cli_expect("replay " TARGET CORPUS " --draft none", 0, "      1.000 ");
    char got[4096];
    assert_int_equal(cli_run("replay " TARGET CORPUS " --draft rest:index=" INDEX, got, sizeof got), 0);
    const char *all = strstr(got, "\nall ");
    assert_non_null(all);
    long tokens = 0, steps = 0;
    assert_int_equal(sscanf(all, " all %ld %ld", &tokens, &steps), 2);
    assert_true(steps > 0 && tokens > 3 * steps);
}

/* JSON cannot represent such a name: it becomes null, and no other key is lost. */
static void a_name_that_is_not_utf_8_is_null(void **state) {
    (void)state;
    spill_text(PLAIN, "one plain text\n");
    cli_expect("index " TARGET PLAIN " -o build/test-\xff.index", 0, " in 1 document, ");
    cli_expect("compare -m models/target.gguf -p Once -n 2 --draft rest:index=build/test-\xff.index --json", 0,
               "\"method\": null");
    cli_expect("compare -m models/target.gguf -p Once -n 2 --draft rest:index=build/test-\xff.index --json", 0,
               "\"identical\": true");
    unlink("build/test-\xff.index");
}

static void it_refuses_with_a_reason(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } lines[] = {
        {"{\"text\": \"a\"}\n{\"text\": 1}\n", "a string \"text\""},
        {"\n{\"text\": ", "line 2 is not JSON"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "line 1 has a message without"},
        {"{\"prompt\": \"a\"}", "line 1 must have"},
        {"[]", "a string \"text\", or strings"},
        {"", "holds no text"},
    };
    unlink(INDEX);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        spill_text(CORPUS, lines[i].text);
        cli_expect("index " TARGET CORPUS " -o " INDEX, 1, lines[i].words);
        assert_int_equal(access(INDEX, F_OK), -1);
    }
    cli_expect("index " TARGET CORPUS, 2, "missing output file: pass -o FILE");
    cli_expect("index " CORPUS " -o " INDEX, 2, "missing vocabulary: pass -m FILE");
    cli_expect("index " TARGET "-o " INDEX, 2, "missing corpus: pass CORPUS");
    cli_expect("index " TARGET CORPUS " --limit 0 -o " INDEX, 2, "must be an integer of at least 1");
    cli_expect("index " TARGET "/nowhere.jsonl -o " INDEX, 1, "/nowhere.jsonl: cannot be opened");
    cli_expect("index --vocab /nowhere.gguf " CORPUS " -o " INDEX, 1, "/nowhere.gguf");
    cli_expect("index --help", 0, "forerun index --vocab");
    cli_expect("replay " TARGET CORPUS " --draft rest:index=" CORPUS, 1, "too short for a corpus index");
}

static int clean(void **state) {
    (void)state;
    static const char *const paths[] = {CORPUS, CORPUS ".zst", PLAIN, INDEX, INDEX ".2"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) unlink(paths[i]);
    return 0;
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_takes_all_kinds_of_corpora), cmocka_unit_test(zstd_changes_nothing),
        cmocka_unit_test(replay_drafts_from_it),         cmocka_unit_test(a_name_that_is_not_utf_8_is_null),
        cmocka_unit_test(it_refuses_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
