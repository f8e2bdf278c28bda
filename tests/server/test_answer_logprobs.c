/* test_answer_logprobs.c - tokens are sorted into the items that have their text. */
#include "testing.h"

#include "server/api/answers.h"

#include <stdlib.h>
#include <string.h>

static ServedModel model;

static int open_model(void **state) {
    (void)state;
    fr_error err;
    return fr_model_open(&model.model, "models/draft.gguf", NULL, &err);
}

static int close_model(void **state) {
    (void)state;
    fr_model_close(model.model);
    return 0;
}

static int32_t token_of(const char *text) {
    int32_t *ids, token;
    int64_t n;
    fr_error err;
    assert_int_equal(fr_tokenize(model.model, text, strlen(text), FR_TOKENIZE_SPECIAL, &ids, &n, &err), FR_OK);
    token = ids[n - 1];
    fr_free(ids);
    return token;
}

/* Adds the n-th token with `n_bytes` bytes of final text, and one alternative with the number of the token. */
static void add(AnswerLogprobs *l, int32_t token, size_t n_bytes) {
    const fr_top_logprob top = {.token = token, .logprob = -token};
    const TokenRecord t = {.token = token, .n_text = (uint32_t)n_bytes, .n_top = 1, .logprob = -0.5};
    assert_true(answer_logprobs_add(l, &model, &t, "xxxxxxxx", &top));
}

static void check(const TokenBatch *b, const int32_t *tokens, size_t n) {
    assert_non_null(b);
    assert_int_equal(b->n, n);
    for (size_t i = 0; i < n; i++) {
        fr_top_logprob top;
        memcpy(&top, b->top.data + i * sizeof top, sizeof top);
        assert_int_equal(b->tokens[i].token, tokens[i]);
        assert_int_equal(top.token, tokens[i]);
        assert_true(top.logprob == -tokens[i]);
    }
}

/* White space of the format comes before the text, the end of a text is a control token, and a token may be half a
 * character, whose text comes with the next token. */
static void an_item_gets_the_tokens_of_its_bytes(void **state) {
    (void)state;
    const int32_t line = token_of("\n"), dog = token_of("dog"), cat = token_of("cat"), half = token_of("\xC3"),
                  eos = token_of("</s>");
    AnswerLogprobs l = {.n_items = 0};
    add(&l, line, 1);
    add(&l, line, 1);
    assert_null(answer_logprobs_of(&l, 0));
    add(&l, dog, 3);
    assert_true(answer_logprobs_take(&l, 2, 3));
    check(&l.fresh, (int32_t[]){dog}, 1);
    answer_logprobs_drop(&l);
    add(&l, half, 0);
    add(&l, cat, 5);
    add(&l, eos, 0);
    assert_true(answer_logprobs_take(&l, 2, 5));
    check(&l.fresh, (int32_t[]){half, cat}, 2);
    answer_logprobs_drop(&l);
    check(answer_logprobs_of(&l, 2), (int32_t[]){dog, half, cat}, 3);
    assert_null(answer_logprobs_of(&l, 0));
    add(&l, line, 1);
    answer_logprobs_drop(&l); /* a mark, or reasoning */
    add(&l, dog, 4);
    assert_true(answer_logprobs_take(&l, 3, 4));
    check(answer_logprobs_of(&l, 3), (int32_t[]){dog}, 1);
    assert_null(answer_logprobs_of(&l, 9));
    answer_logprobs_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_item_gets_the_tokens_of_its_bytes)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}
