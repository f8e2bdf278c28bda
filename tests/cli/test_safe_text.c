/* test_safe_text.c - error messages, names and generated texts contain no control sequences for terminals. */
#include "testing.h"

#include "cli/safe_text.h"

#include <stdlib.h>
#include <string.h>

static const char hostile[] = "\033]0;title\007 \r\n\t\x7f \xc2\x9b"
                              "31m \xff\xc0\x80 \xe2\x80\xae gr\xc3\xbc\xc3\x9f";

static void expect_no_controls(const char *text, const char *allowed) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if ((*p < 0x20 || *p == 0x7f) && !strchr(allowed, *p)) fail_msg("byte %02x is left in '%s'", *p, text);
        if (*p == 0xc2 && p[1] < 0xa0) fail_msg("a control character of two bytes is left in '%s'", text);
        if (*p == 0xff || *p == 0xc0) fail_msg("a byte that is not UTF-8 is left in '%s'", text);
    }
}

static void an_error_is_one_line_of_plain_utf8(void **state) {
    (void)state;
    fr_error err;
    assert_int_equal(error_set(&err, FR_ERR_FORMAT, "file: %s", hostile), FR_ERR_FORMAT);
    expect_no_controls(err.message, "");
    assert_non_null(strstr(err.message, "file: \\x1b]0;title\\x07 \\x0d\\n\\x09\\x7f \\xc2\\x9b31m \\xff\\xc0\\x80 "));
    assert_non_null(strstr(err.message, "gr\xc3\xbc\xc3\x9f")); /* text in other languages stays readable */
}

static void every_byte_and_every_length_fits_in_an_error(void **state) {
    (void)state;
    fr_error err;
    static char text[2000];
    for (int c = 1; c < 256; c++)
        for (int offset = 0; offset < 8; offset++) {
            memset(text, 'a', sizeof text - 1);
            memset(text + sizeof err.message - 12 + offset, c, 300);
            error_set(&err, FR_ERR_FORMAT, "%s", text);
            assert_true(strlen(err.message) < sizeof err.message);
            expect_no_controls(err.message, "");
            memset(text, c, sizeof text - 1);
            error_set(&err, FR_ERR_FORMAT, "%s", text);
            assert_in_range(strlen(err.message), sizeof err.message - 8, sizeof err.message - 1);
        }
    static const char *const malformed[] = {
        "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf0\x80\x80\x80", "\xe2\x82",
        "\xf0\x9f\x98", "\x80",         "\xf8\x88\x80\x80"};
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        error_set(&err, FR_ERR_FORMAT, "%s", malformed[i]);
        assert_int_equal(strlen(err.message), 4 * strlen(malformed[i]));
    }
    error_set(&err, FR_ERR_FORMAT, "\xe2\x82\xac \xf0\x9f\x98\x80");
    assert_string_equal(err.message, "\xe2\x82\xac \xf0\x9f\x98\x80");
}

static void names_are_escaped_and_cut(void **state) {
    (void)state;
    SafeText t;
    expect_no_controls(safe_text(&t, hostile), "");
    assert_null(strstr(t.text, "\xe2\x80\xae")); /* the direction of writing must not change, either */
    char longer[1000];
    memset(longer, '\033', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_true(strlen(safe_text(&t, longer)) < sizeof t.text);
    assert_string_equal(t.text + strlen(t.text) - 3, "...");
    assert_string_equal(safe_text(&t, "math \xc3\xbc"), "math \xc3\xbc");
    assert_string_equal(safe_text(&t, ""), "");
    char *got;
    size_t n;
    FILE *f = open_memstream(&got, &n);
    safe_text_write(f, hostile, strlen(hostile), 20);
    fclose(f);
    expect_no_controls(got, "");
    assert_non_null(strstr(got, "... ("));
    free(got);
}

static void a_generated_text_keeps_its_lines(void **state) {
    (void)state;
    Buf b = {.max_bytes = 1000};
    assert_true(safe_text_append_lines(&b, hostile, strlen(hostile)));
    expect_no_controls(b.data, "\n\t");
    assert_non_null(strchr(b.data, '\n'));
    buf_clear(&b);
    static const char family[] = "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7"; /* joined by an invisible character */
    assert_true(safe_text_append_lines(&b, family, strlen(family)));
    assert_string_equal(b.data, family);
    static const char *const directions[] = {"\xd8\x9c",     "\xe2\x80\x8e", "\xe2\x80\x8f", "\xe2\x80\xaa",
                                             "\xe2\x80\xab", "\xe2\x80\xac", "\xe2\x80\xad", "\xe2\x80\xae",
                                             "\xe2\x81\xa6", "\xe2\x81\xa7", "\xe2\x81\xa8", "\xe2\x81\xa9"};
    for (size_t i = 0; i < sizeof directions / sizeof *directions; i++) {
        buf_clear(&b);
        assert_true(safe_text_append_lines(&b, directions[i], strlen(directions[i])));
        assert_int_equal(b.n, 4 * strlen(directions[i])); /* each byte as \\xNN */
    }
    static const char arabic[] = "\xd8\xb3\xd9\x84\xd8\xa7\xd9\x85 \xd7\xa9\xd7\x9c"; /* written from right to left */
    buf_clear(&b);
    assert_true(safe_text_append_lines(&b, arabic, strlen(arabic)));
    assert_string_equal(b.data, arabic);
    b.max_bytes = b.n;
    assert_false(safe_text_append_lines(&b, "x", 1));
    buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_is_one_line_of_plain_utf8),
        cmocka_unit_test(every_byte_and_every_length_fits_in_an_error),
        cmocka_unit_test(names_are_escaped_and_cut),
        cmocka_unit_test(a_generated_text_keeps_its_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
