/* test_same_text.c - finds the end of a text that is tokenized differently, and compares the result with a comparison
 * of the whole texts. */
#include "testing.h"

#include "cli/chat/chat_session.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

static fr_model *model;
static const Tokenizer *tokenizer; /* the model's tokenizer */

static int open_vocab(void **state) {
    (void)state;
    int status = fr_model_open(&model, "models/target.gguf", NULL, NULL);
    if (!status) tokenizer = model->tokenizer;
    return status;
}

static int close_vocab(void **state) {
    (void)state;
    fr_model_close(model);
    return 0;
}

/* Appends the tokens of a text with its special tokens; `each` encodes it character by character, as no tokenizer
 * would. */
static int64_t append(int32_t *tokens, int64_t n, const char *text, bool each) {
    size_t n_text = strlen(text), n_part = each ? 1 : n_text;
    for (size_t i = 0; i < n_text; i += n_part) {
        if (each) { /* a byte token, or a piece of one letter */
            char letter[4] = {text[i]};
            tokens[n++] = text[i] == ' ' ? tokenizer_find(tokenizer, "\xe2\x96\x81", 3)
                                         : tokenizer_find(tokenizer, letter, 1);
            assert_true(tokens[n - 1] >= 0);
            continue;
        }
        int32_t *own;
        int64_t n_own;
        assert_int_equal(tokenizer_encode(tokenizer, text, n_text, TOKENIZE_SPECIAL, &own, &n_own, NULL), 0);
        memcpy(tokens + n, own, (size_t)n_own * sizeof *own);
        n += n_own;
        free(own);
    }
    return n;
}

static void other_cuts_of_a_text_are_found(void **state) {
    (void)state;
    int32_t a[100], b[100];
    int64_t n_question = append(b, 0, "USER: Why", false);
    memcpy(a, b, sizeof a);
    int64_t n_a = append(a, n_question, "because of the king", true);
    int64_t end_b = append(b, n_question, "because of the king", false);
    if (a[n_question] == b[n_question]) fail_msg("the two are cut in the same way");
    int64_t n_b = append(b, end_b, "</s>", false);
    n_b = append(b, n_b, " And then", false);
    assert_int_equal(same_text_end(model, a, n_a, a, n_a), n_a);
    int64_t found = same_text_end(model, a, n_a, b, n_b); /* although b has a space before "because" */
    assert_int_equal(found, end_b);
    assert_int_equal(same_text_end(model, a, n_a, b, end_b), end_b);
    assert_int_equal(same_text_end(model, a, n_a, b, end_b - 1), -1); /* the text ends too early */
    assert_int_equal(same_text_end(model, a, n_a - 1, b, n_b), -1);   /* no token ends there */
    a[n_a] = tokenizer_find(tokenizer, "</s>", 4);
    assert_int_equal(same_text_end(model, a, n_a + 1, b, n_b), end_b + 1);
    a[n_a] = tokenizer_bos(tokenizer);
    assert_int_equal(same_text_end(model, a, n_a + 1, b, n_b), -1); /* another special token */
    a[n_a] = tokenizer_find(tokenizer, "<0x0A>", 6);
    assert_int_equal(same_text_end(model, a, n_a + 1, b, n_b), end_b); /* white space at the end */
    a[n_a] = a[n_a - 1];
    assert_int_equal(same_text_end(model, a, n_a + 1, b, n_b), -1); /* another text */
    assert_int_equal(same_text_end(model, a, 0, b, n_b), 0);
    assert_int_equal(same_text_end(model, a, n_a, b, 0), -1);
}

/* The spelling of a special token in a text is not the token. */
static void special_tokens_are_not_their_spelling(void **state) {
    (void)state;
    int32_t a[20], b[20];
    int64_t n_a = append(a, 0, "</s>", false), n_b = append(b, 0, "</s>", true);
    assert_int_equal(n_a, 1);
    assert_int_equal(same_text_end(model, a, n_a, b, n_b), -1);
    assert_int_equal(same_text_end(model, b, n_b, a, n_a), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_cuts_of_a_text_are_found),
        cmocka_unit_test(special_tokens_are_not_their_spelling),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
