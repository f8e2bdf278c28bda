/* test_demo.c - the program of `make demo`, without a terminal: it prints the text once and a row for each method, in
 * 80 columns. */
#include "cli_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[1 << 16];

static int demo(const char *args) {
    char command[1024];
    snprintf(command, sizeof command, "%s/../demo %s 2>&1", cli_rig_folder(), args);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    return pclose(out);
}

static int n_of(const char *words) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, words)); p++) n++;
    return n;
}

static void it_shows_one_text_and_a_table(void **state) {
    (void)state;
    assert_int_equal(demo("models/target.gguf auto eagle:file=models/eagle.gguf"), 0);
    assert_int_equal(n_of("Lily and Ben went to the beach."), 1);
    assert_int_equal(n_of("plain decoding "), 1);
    assert_int_equal(n_of("same text"), 2);
    assert_int_equal(n_of("\n  auto "), 1);
    assert_int_equal(n_of("\n  eagle "), 1);
    assert_null(strchr(text, '\033'));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strlen(line) > 80) fail_msg("too long a line: %s", line);
}

static void it_refuses_with_a_reason(void **state) {
    (void)state;
    assert_int_not_equal(demo("models/target.gguf"), 0);
    assert_int_equal(n_of("usage: demo TARGET.gguf DRAFT..."), 1);
    assert_int_not_equal(demo("models/none.gguf suffix"), 0);
    assert_int_equal(n_of("models/none.gguf"), 1);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_shows_one_text_and_a_table),
        cmocka_unit_test(it_refuses_with_a_reason),
    };
    (void)argc;
    cli_rig_begin(argv[0]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
