/* test_tokenizer_cli.c - `forerun tokenize` as a program: its output and exit statuses. */
#include "cli_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "tokenize -m models/target.gguf "

static void it_prints_what_it_promises(void **state) {
    (void)state;
    static const struct {
        const char *args, *want;
        int status;
    } cases[] = {
        {TARGET "-p ''", "\n", 0},
        {TARGET "--bos -p ''", "1\n", 0},
        {TARGET "--special -p '</s>'", "2\n", 0},
        {TARGET "--json --bos --special -p '</s>'", "{\"n_tokens\": 2, \"tokens\": [1, 2]}\n", 0},
        {TARGET "--json --pieces --special -p '</s>'", "{\"n_tokens\": 1, \"tokens\": [2], \"pieces\": [\"</s>\"]}\n",
         0},
        {TARGET "--pieces -d '1'", "", 2},
        {TARGET "-d '1 13,64'", "\n=\n", 0},
        {TARGET "--special -d '1 2'", "<s></s>\n", 0},
        {TARGET "--json -d '230 13'", "{\"text\": \"\xEF\xBF\xBD\\n\"}\n", 0},
        {TARGET "-d ' '", "\n", 0},
        {TARGET "-d '4096'", "", 2},
        {TARGET "-p a -f b", "", 2},
        {TARGET "stray", "", 2},
        {"tokenize -p a", "", 2},
        {"tokenize -m /nowhere.gguf -p a", "", 1},
        {TARGET "-f /nowhere.txt", "", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[4096], args[600];
        snprintf(args, sizeof args, "%s 2>/dev/null", cases[i].args);
        int status = cli_run(args, got, sizeof got);
        if (status != cases[i].status || strcmp(got, cases[i].want) != 0)
            fail_msg("%s: want %d \"%s\", got %d \"%s\"", cases[i].args, cases[i].status, cases[i].want, status, got);
    }
}

static void text_becomes_tokens_and_text_again(void **state) {
    (void)state;
    char from_stdin[4096], from_file[4096], back[4096], args[5000];
    snprintf(args, sizeof args, TARGET "< tests/data/tokenize.txt");
    assert_int_equal(cli_run(args, from_stdin, sizeof from_stdin), 0);
    snprintf(args, sizeof args, TARGET "-f tests/data/tokenize.txt");
    assert_int_equal(cli_run(args, from_file, sizeof from_file), 0);
    assert_string_equal(from_stdin, from_file);
    from_stdin[strcspn(from_stdin, "\n")] = 0;
    snprintf(args, sizeof args, TARGET "-d '%s'", from_stdin);
    assert_int_equal(cli_run(args, back, sizeof back), 0);
    assert_string_equal(back,
                        "Once upon a time,\nh\xC3\xA9llo \xF0\x9F\xA6\x99  there\n\n"); /* the file and a newline */
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_prints_what_it_promises),
        cmocka_unit_test(text_becomes_tokens_and_text_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
