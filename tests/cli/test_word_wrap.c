/* test_word_wrap.c - a generated text is wrapped at the width of the terminal, wherever its tokens end. What is written
 * is interpreted as a terminal would. */
#include "testing.h"

#include "cli/run/generate.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COLUMNS = 24 };

static char written[1 << 16], screen[1 << 16];

/* Writes the text in tokens of n_token bytes, every other one drafted, and returns what a terminal shows: backspaces
 * and "erase to the end of the line" are obeyed, colours and spaces at the ends of lines are left out. */
static const char *show(const char *text, size_t n_token, bool use_color) {
    static const char path[] = "build/test-word-wrap.txt";
    TextOutput o = text_output_open(use_color, false);
    o.n_columns = COLUMNS;
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_non_null(freopen(path, "w", stdout));
    for (size_t i = 0; i < strlen(text); i += n_token) {
        size_t n = strlen(text) - i < n_token ? strlen(text) - i : n_token;
        const fr_token_event event = {.text = text + i, .n_bytes = n, .source = (i / n_token) % 2 ? 0 : -1};
        assert_int_equal(text_output_write(&o, &event), 0);
    }
    fflush(stdout);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    close(saved);
    text_output_close(&o);
    FILE *f = fopen(path, "rb");
    written[fread(written, 1, sizeof written - 1, f)] = '\0';
    fclose(f);
    unlink(path);
    size_t n = 0;
    for (const char *p = written; *p; p++) {
        if (*p == '\b') n--;
        else if (*p == '\033') p = strpbrk(p, "mK");
        else {
            while (*p == '\n' && n > 0 && screen[n - 1] == ' ') n--;
            screen[n++] = *p;
        }
    }
    screen[n] = '\0';
    return screen;
}

static void lines_end_between_words(void **state) {
    (void)state;
    static const char text[] =
        "Once upon a time there was a little girl, named Lily.\n  She loved\nto play outside and "
        "incomprehensibilities-of-every-kind in the sun.";
    static const char expected[] = "Once upon a time there\n"
                                   "was a little girl,\n"
                                   "named Lily.\n"
                                   "  She loved\n"
                                   "to play outside and\n"
                                   "incomprehensibilities-o\n"
                                   "f-every-kind in the\n"
                                   "sun.";
    for (size_t n = 1; n < 30; n++) {
        assert_string_equal(show(text, n, false), expected);
        assert_string_equal(show(text, n, true), expected);
    }
}

/* A word keeps its colours when it moves. */
static void a_moved_word_keeps_its_colors(void **state) {
    (void)state;
    show("0123456789 012345678 abXYZ", 23, true); /* "XYZ" is drafted */
    if (!strstr(written, "ab\033[32m\b\b\033[K\033[0m\nab\033[32mXYZ\033[0m")) fail_msg("%s", written);
}

static void wide_characters_take_two_columns(void **state) {
    (void)state;
    static const char text[] = "一二三四五六七八九十一二三四";
    assert_string_equal(show(text, 3, false), "一二三四五六七八九十一\n二三四");
}

/* A text that goes to a file has no added line ends. */
static void files_are_not_wrapped(void **state) {
    (void)state;
    TextOutput o = text_output_open(false, false);
    if (!isatty(STDOUT_FILENO)) assert_int_equal(o.n_columns, 0);
    text_output_close(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_end_between_words),
        cmocka_unit_test(a_moved_word_keeps_its_colors),
        cmocka_unit_test(wide_characters_take_two_columns),
        cmocka_unit_test(files_are_not_wrapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
