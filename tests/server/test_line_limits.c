/* test_line_limits.c - texts that end by their lines: the same cut however the text is divided into tokens and batches.
 */
#include "testing.h"

#include "server/api/api.h"

#include <stdlib.h>
#include <string.h>

/* Feeds a text in pieces of n_piece bytes, each a token, n_batch of them at once. Returns what is kept; malloc'ed. */
static char *keep(const char *text, int n_indent, double max_s, size_t n_piece, size_t n_batch, LineLimits *l) {
    Plan plan = {.n_indent = n_indent, .max_predict_s = max_s};
    size_t n = strlen(text), n_kept = 0;
    char *kept = calloc(1, n + 1);
    *l = (LineLimits){.n_blanks = 0};
    for (size_t at = 0; at < n;) {
        TokenBatch fresh = {.tokens = NULL};
        for (size_t i = 0; i < n_batch && at < n; i++) {
            size_t m = n - at < n_piece ? n - at : n_piece;
            assert_true(token_batch_append(&fresh, &(TokenRecord){.token = 1, .n_text = (uint32_t)m}, text + at, NULL));
            at += m;
        }
        bool is_over = line_limits_apply(l, &plan, &fresh);
        assert_int_equal(is_over, l->is_over);
        size_t n_text = 0;
        for (size_t i = 0; i < fresh.n; i++) n_text += fresh.tokens[i].n_text;
        assert_int_equal(n_text, fresh.text.n); /* the tokens have the text that is left */
        if (fresh.text.n) memcpy(kept + n_kept, fresh.text.data, fresh.text.n);
        n_kept += fresh.text.n;
        token_batch_free(&fresh);
    }
    return kept;
}

static void lines_need_their_indent(void **state) {
    (void)state;
    static const struct {
        const char *text, *kept;
        int n_indent;
    } cases[] = {
        {"x = 1;\n    y();\n    z();\n}\nint", "x = 1;\n    y();\n    z();\n", 4},
        {"x = 1;\n    y();\n  z();\n", "x = 1;\n    y();\n  ", 4},
        {"x;\n\t\ty;\n\tz;", "x;\n\t\ty;\n\t", 2},
        {"no line ends", "no line ends", 8},
        {"first\n", "first\n", 8},
        {"first\n\n    second", "first\n", 2},
        {"a\n        deeper\n            still\n", "a\n        deeper\n            still\n", 4},
        {"anything\ngoes\n", "anything\ngoes\n", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece <= 5; piece++)
            for (size_t batch = 1; batch <= 4; batch++) {
                LineLimits l;
                char *kept = keep(cases[i].text, cases[i].n_indent, 0, piece, batch, &l);
                if (strcmp(kept, cases[i].kept) != 0) fail_msg("case %zu: '%s', not '%s'", i, kept, cases[i].kept);
                assert_int_equal(l.is_over, strcmp(cases[i].text, cases[i].kept) != 0);
                assert_int_equal(l.has_new_line, strchr(cases[i].kept, '\n') != NULL);
                free(kept);
            }
}

/* After the time is over, the text ends with the batch that ends a line. */
static void time_ends_with_a_line(void **state) {
    (void)state;
    LineLimits l;
    char *kept = keep("one\ntwo\nthree", 0, 1e-12, 1, 1, &l);
    assert_string_equal(kept, "one\n");
    free(kept);
    kept = keep("one and no more", 0, 1e-12, 1, 1, &l);
    assert_string_equal(kept, "one and no more");
    assert_false(l.is_over);
    free(kept);
    kept = keep("one\ntwo\nthree", 0, 1e6, 1, 1, &l);
    assert_string_equal(kept, "one\ntwo\nthree");
    free(kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines_need_their_indent),
                                       cmocka_unit_test(time_ends_with_a_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
