/* test_json_out.c - jansson reads back the values that were written; and the region that bounds jansson's memory. */
#include "testing.h"

#include "cli/json_memory.h"
#include "server/http/json_out.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void values_come_back(void **state) {
    (void)state;
    Buf buf = {.max_bytes = 1 << 16};
    assert_true(buf_append(&buf, "data: ", 6));
    JsonOut j = json_out_begin(&buf);
    json_out_mark(&j, '{');
    json_out_key_text(&j, "te\"xt", "a\n\"\\\x01\x7f\t\xC3\xA4\xF0\x9F\x98\x80");
    json_out_key_text(&j, "none", NULL);
    json_out_key_int(&j, "int", INT64_MIN);
    json_out_key_real(&j, "real", -0.1);
    json_out_key_real(&j, "inf", INFINITY);
    json_out_key_bool(&j, "bool", true);
    json_out_open(&j, "list", '[');
    json_out_mark(&j, '[');
    json_out_mark(&j, ']');
    json_out_mark(&j, '{');
    json_out_mark(&j, '}');
    json_out_bytes(&j, "ends with [", 11);
    json_out_bytes(&j, "a\0b", 3);
    json_out_uint(&j, UINT64_MAX >> 1);
    json_out_mark(&j, ']');
    json_out_key_null(&j, "last");
    json_out_mark(&j, '}');
    assert_false(j.failed);
    json_error_t why;
    json_t *root = json_loadb(buf.data + 6, buf.n - 6, JSON_ALLOW_NUL, &why);
    if (!root) fail_msg("%s: %s", why.text, buf.data);
    assert_string_equal(json_string_value(json_object_get(root, "te\"xt")),
                        "a\n\"\\\x01\x7f\t\xC3\xA4\xF0\x9F\x98\x80");
    assert_true(json_integer_value(json_object_get(root, "int")) == INT64_MIN);
    assert_true(fabs(json_real_value(json_object_get(root, "real")) + 0.1) < 1e-9);
    assert_true(json_is_null(json_object_get(root, "inf")));
    const json_t *list = json_object_get(root, "list");
    assert_int_equal(json_array_size(list), 5);
    assert_int_equal(json_string_length(json_array_get(list, 3)), 3);
    assert_true(json_integer_value(json_array_get(list, 4)) == INT64_MAX);
    json_decref(root);
    buf_free(&buf);
}

/* A double is read back bit for bit, and is written with as few digits as that needs. */
static void exact_numbers_come_back(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {-3.7537274962783953, "-3.7537274962783953"},
                 {1e300, "1e+300"},
                 {0, "0"},
                 {1.0 / 3, "0.33333333333333331"},
                 {NAN, "null"},
                 {-INFINITY, "null"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Buf buf = {.max_bytes = 100};
        JsonOut j = json_out_begin(&buf);
        json_out_exact(&j, cases[i].value);
        assert_true(buf_append(&buf, "", 1));
        assert_string_equal(buf.data, cases[i].text);
        if (isfinite(cases[i].value)) assert_true(strtod(buf.data, NULL) == cases[i].value);
        buf_free(&buf);
    }
    assert_true(json_out_is_text("a\xC3\xA4\0", 4));
    assert_false(json_out_is_text("a\xC3", 2));
    assert_false(json_out_is_text("\xA4", 1));
}

/* Bytes that are not UTF-8 become U+FFFD, whatever is around them. */
static void broken_utf8_is_replaced(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *text;
    } cases[] = {{"\xFF", "\xEF\xBF\xBD"},
                 {"a\xC3", "a\xEF\xBF\xBD"},
                 {"\xC3(", "\xEF\xBF\xBD("},
                 {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
                 {"\xF0\x9F\x98", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Buf buf = {.max_bytes = 1 << 10};
        JsonOut j = json_out_begin(&buf);
        json_out_text(&j, cases[i].bytes);
        json_t *root = json_loadb(buf.data, buf.n, JSON_DECODE_ANY, NULL);
        assert_non_null(root);
        assert_string_equal(json_string_value(root), cases[i].text);
        json_decref(root);
        buf_free(&buf);
    }
}

static void a_full_buffer_is_reported(void **state) {
    (void)state;
    Buf buf = {.max_bytes = 20};
    JsonOut j = json_out_begin(&buf);
    json_out_mark(&j, '{');
    json_out_key_text(&j, "key", "a text that is too long");
    json_out_mark(&j, '}');
    assert_true(j.failed);
    buf_free(&buf);
}

typedef struct Work {
    const char *text;
    size_t n_read;
} Work;

static void load(void *user) {
    Work *w = user;
    w->n_read = json_array_size(json_loads(w->text, 0, NULL));
}

/* The values of a text need many times its bytes; when the limit is reached, the work ends and nothing leaks. */
static void memory_of_jansson_is_bounded(void **state) {
    (void)state;
    enum { N_VALUES = 20000 };
    char *text = malloc(2 * N_VALUES + 2);
    text[0] = '[';
    for (int i = 0; i < N_VALUES; i++) text[2 * i + 1] = '1', text[2 * i + 2] = i + 1 < N_VALUES ? ',' : ']';
    text[2 * N_VALUES + 1] = '\0';
    Work w = {.text = text};
    assert_true(json_memory_limit(16 << 20, load, &w));
    assert_int_equal(w.n_read, N_VALUES);
    w.n_read = 0;
    assert_false(json_memory_limit(1 << 19, load, &w));
    assert_int_equal(w.n_read, 0);
    json_t *outside = json_loads(text, 0, NULL); /* jansson uses malloc again */
    assert_int_equal(json_array_size(outside), N_VALUES);
    json_decref(outside);
    free(text);
}

int main(void) {
    json_memory_install();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_back),
        cmocka_unit_test(exact_numbers_come_back),
        cmocka_unit_test(broken_utf8_is_replaced),
        cmocka_unit_test(a_full_buffer_is_reported),
        cmocka_unit_test(memory_of_jansson_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
