/* test_columns.c - output for people fits into 80 columns, and has colour only on a terminal without NO_COLOR. */
#include "cli_rig.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 80 };

static char text[1 << 18];

/* Checks that no line of the output is wider, and that it has no escape sequence. */
static void expect_narrow(const char *args) {
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    assert_true(text[0] != '\0');
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        int columns = 0;
        for (const char *p = line; *p; p++) columns += ((unsigned char)*p & 0xc0) != 0x80;
        if (columns > COLUMNS || strchr(line, '\033')) fail_msg("forerun %s: %d columns: %s", args, columns, line);
    }
}

static void tables_fit(void **state) {
    (void)state;
    char args[1024], questions[600];
    snprintf(questions, sizeof questions, "%s/questions.jsonl", cli_rig_folder());
    FILE *f = fopen(questions, "w");
    assert_non_null(f);
    fputs("{\"question_id\": 1, \"category\": \"sums\", \"turns\": [\"Who are you?\"]}\n", f);
    assert_int_equal(fclose(f), 0);
    expect_narrow("compare -m models/target.gguf -p 'Once upon a time' -n 24 --runs 2 --no-text --draft suffix "
                  "--draft lookahead-trie --draft lyanna:file=models/lyanna.gguf --draft auto");
    snprintf(
        args, sizeof args,
        "bench -m models/target.gguf %s -n 16 --runs 2 --draft suffix --draft eagle:file=models/eagle.gguf 2>/dev/null",
        questions);
    expect_narrow(args);
    snprintf(args, sizeof args,
             "bench -m models/target.gguf %s -n 16 --runs 2 --draft suffix --parallel 1,2 2>/dev/null", questions);
    expect_narrow(args);
    expect_narrow("perf -m models/target.gguf --rows 1,8 --parts 1 --seconds 0 --ctx 32 2>/dev/null");
    expect_narrow("perf -m models/target.gguf --figures --seconds 0 2>/dev/null");
    expect_narrow("perf -m models/target.gguf --threads 1,2 --seconds 0 2>/dev/null");
    expect_narrow("study toy");
    f = fopen(questions, "w");
    assert_non_null(f);
    fputs("{\"prompt\": \"Once upon a time\"}\n", f);
    assert_int_equal(fclose(f), 0);
    snprintf(args, sizeof args, "study length -f %s -n 2 --runs 2 --temp 1 2>/dev/null", questions);
    expect_narrow(args);
    expect_narrow("--help");
    expect_narrow("help train");
}

static void summaries_of_files_fit(void **state) {
    (void)state;
    expect_narrow("inspect --tensors models/target.gguf | sed '/^Chat template/,/^Key-values/d'"); /* the template is
                                                                                                    * shown unchanged */
    expect_narrow("inspect --tensors models/lyanna.gguf");
    expect_narrow("inspect models/draft.gguf | sed '/^Chat template/,/^Key-values/d'");
}

/* `script` gives the program a terminal. */
static void no_color_is_respected(void **state) {
    (void)state;
    if (system("command -v script >/dev/null") != 0) skip();
    static const char *const commands[] = {
        "inspect models/draft.gguf",
        "run -m models/target.gguf -p \"Once upon a time\" -n 24 --draft suffix --color=auto",
        "compare -m models/target.gguf -p \"Once upon a time\" -n 24 --runs 1 --draft suffix --color=auto"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        for (int no_color = 0; no_color < 2; no_color++) {
            char command[2048];
            snprintf(command, sizeof command,
                     "TERM=xterm NO_COLOR=%s script -qec '%s/../forerun %s' /dev/null </dev/null", no_color ? "1" : "",
                     cli_rig_folder(), commands[i]);
            FILE *out = popen(command, "r");
            assert_non_null(out);
            text[fread(text, 1, sizeof text - 1, out)] = '\0';
            assert_int_equal(pclose(out), 0);
            bool has_color = false;
            for (const char *p = strstr(text, "\033["); p; p = strstr(p + 1, "\033["))
                has_color = has_color || p[2 + strspn(p + 2, "0123456789;")] == 'm';
            if (has_color == no_color) fail_msg("NO_COLOR=%s forerun %s:\n%s", no_color ? "1" : "", commands[i], text);
        }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_fit),
        cmocka_unit_test(summaries_of_files_fit),
        cmocka_unit_test(no_color_is_respected),
    };
    (void)argc;
    cli_rig_begin(argv[0]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
