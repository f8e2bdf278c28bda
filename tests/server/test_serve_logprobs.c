/* test_serve_logprobs.c - log-probabilities and logit_bias in the forms of all APIs: the same with any drafter,
 * streamed or not, bit for bit, because numbers are written with all their digits. */
#include "serve_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ServeRig server;

static int start(void **state) {
    (void)state;
    serve_start(&server, "-t 2 -c 256 --parallel 8 --draft ngram-trie --draft suffix");
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&server);
}

#define CHAT "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story\"}]"

/* One form of the answer: the path of its list of tokens, in the whole answer and in an event, and of the number of
 * tokens. */
typedef struct Form {
    const char *path, *fields, *in_answer, *in_event, *text;
} Form;

static const Form forms[] = {
    {"/v1/chat/completions", CHAT ", \"max_tokens\": 40, \"logprobs\": true, \"top_logprobs\": 3",
     "choices.0.logprobs.content", "choices.0.logprobs.content", "choices.0.message.content"},
    {"/completion", "\"prompt\": \"One day\", \"n_predict\": 40, \"n_probs\": 3", "completion_probabilities",
     "completion_probabilities", "content"},
    {"/v1/responses",
     "\"input\": \"Tell me a story\", \"max_output_tokens\": 40, \"top_logprobs\": 3, \"include\": "
     "[\"message.output_text.logprobs\"]",
     "output.0.content.0.logprobs", "logprobs", "output.0.content.0.text"},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

static json_t *ask(const Form *f, const char *draft) {
    char body[700];
    snprintf(body, sizeof body, "{%s, \"temperature\": 0.8, \"seed\": 5, \"tree_budget\": 8, \"draft\": %s}", f->fields,
             draft);
    return serve_json(&server, f->path, 200, body);
}

/* Checks that the tokens join to the text, and that each has three alternatives with falling probabilities. */
static void check_list(const json_t *list, const char *text) {
    char joined[2048] = "";
    double sum = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i), *top = json_at(token, "top_logprobs");
        double logprob = json_real_value(json_at(token, "logprob")), before = 0;
        strcat(joined, json_text_at(token, "token"));
        assert_int_equal(json_array_size(json_at(token, "bytes")), strlen(json_text_at(token, "token")));
        assert_int_equal(json_array_size(top), 3);
        for (size_t k = 0; k < 3; k++) {
            double other = json_real_value(json_at(json_array_get(top, k), "logprob"));
            assert_true(other <= before);
            if (strcmp(json_text_at(json_array_get(top, k), "token"), json_text_at(token, "token")) == 0)
                assert_true(other == logprob);
            before = other;
        }
        sum += logprob;
    }
    assert_string_equal(joined, text);
    assert_true(sum < -10);
}

static json_t *streamed_list(const Form *f) {
    char body[700];
    json_t *all = json_array();
    snprintf(body, sizeof body, "{%s, \"temperature\": 0.8, \"seed\": 5, \"tree_budget\": 8, \"stream\": true}",
             f->fields);
    Answer a = serve_post(&server, f->path, body);
    char *rest = a.body;
    for (char *line; (line = strsep(&rest, "\n"));) {
        json_t *event = strncmp(line, "data: {", 7) == 0 ? json_loads(line + 6, 0, NULL) : NULL;
        const char *type = json_string_value(json_at(event, "type"));
        if (!type || strcmp(type, "response.output_text.delta") == 0)
            json_array_extend(all, (json_t *)(uintptr_t)json_at(event, f->in_event));
        json_decref(event);
    }
    answer_free(&a);
    return all;
}

static void they_are_plain_decodings_with_any_drafter_streamed_or_not(void **state) {
    (void)state;
    for (int i = 0; i < N_FORMS; i++) {
        json_t *plain = ask(&forms[i], "\"none\""), *drafted = ask(&forms[i], "[\"suffix\", \"ngram-trie\"]");
        const json_t *list = json_at(plain, forms[i].in_answer);
        json_t *streamed = streamed_list(&forms[i]);
        assert_true(json_int_at(drafted, "timings.draft_n_accepted") > 0);
        assert_int_equal(json_int_at(plain, "timings.draft_n"), 0);
        check_list(list, json_text_at(plain, forms[i].text));
        assert_true(json_array_size(list) == 40);
        assert_true(json_equal(list, json_at(drafted, forms[i].in_answer)));
        assert_true(json_equal(list, streamed));
        json_decref(plain), json_decref(drafted), json_decref(streamed);
    }
}

/* The old form: columns, with a map of the most probable tokens and the chosen one. */
static void completions_have_columns(void **state) {
    (void)state;
    static const char format[] = "{\"prompt\": \"One day\", \"max_tokens\": 30, \"temperature\": 1.5, \"seed\": 3, "
                                 "\"logprobs\": 2, \"return_tokens\": true, \"draft\": %s}";
    char body[300];
    snprintf(body, sizeof body, format, "null");
    json_t *drafted = serve_json(&server, "/v1/completions", 200, body);
    snprintf(body, sizeof body, format, "[]");
    json_t *plain = serve_json(&server, "/v1/completions", 200, body);
    const json_t *columns = json_at(plain, "choices.0.logprobs"), *tokens = json_at(columns, "tokens");
    const char *text = json_text_at(plain, "choices.0.text");
    assert_true(json_equal(columns, json_at(drafted, "choices.0.logprobs")));
    assert_int_equal(json_array_size(tokens), 30);
    for (size_t i = 0; i < 30; i++) {
        const char *token = json_string_value(json_array_get(tokens, i));
        const json_t *map = json_array_get(json_at(columns, "top_logprobs"), i);
        json_int_t at = json_integer_value(json_array_get(json_at(columns, "text_offset"), i));
        assert_int_equal(strncmp(text + at, token, strlen(token)), 0);
        assert_true(json_object_size(map) == 2 || json_object_size(map) == 3);
        assert_true(json_real_value(json_object_get(map, token)) ==
                    json_real_value(json_array_get(json_at(columns, "token_logprobs"), i)));
    }
    json_decref(drafted), json_decref(plain);
    json_t *none = serve_json(&server, "/v1/completions", 200, "{\"prompt\": \"x\", \"logprobs\": null}");
    assert_true(json_is_null(json_at(none, "choices.0.logprobs")));
    json_decref(none);
}

/* With a banned first token the text differs; a strong bias decides it; drafts change nothing. */
static void biases_ban_and_force_tokens(void **state) {
    (void)state;
    static const char format[] = "{\"prompt\": \"Once upon a time\", \"n_predict\": 24, \"temperature\": 0, "
                                 "\"return_tokens\": true, \"draft\": %s, \"logit_bias\": %s}";
    char body[400], bias[160];
    snprintf(body, sizeof body, format, "null", "{}");
    json_t *free_text = serve_json(&server, "/completion", 200, body);
    long long first = (long long)json_int_at(free_text, "tokens.0");
    const char *const bans[] = {"{\"%lld\": -100}", "[[%lld, false]]", "[[%lld, -60], [%lld, -40]]"};
    char *banned_text = NULL;
    for (int i = 0; i < 3; i++) {
        snprintf(bias, sizeof bias, bans[i], first, first);
        snprintf(body, sizeof body, format, i ? "null" : "\"none\"", bias);
        json_t *banned = serve_json(&server, "/completion", 200, body);
        const json_t *tokens = json_at(banned, "tokens");
        for (size_t k = 0; k < json_array_size(tokens); k++)
            assert_true(json_integer_value(json_array_get(tokens, k)) != first);
        if (!banned_text) banned_text = strdup(json_text_at(banned, "content"));
        assert_string_equal(json_text_at(banned, "content"), banned_text);
        json_decref(banned);
    }
    free(banned_text);
    snprintf(bias, sizeof bias, "{\"%lld\": 100}", first);
    snprintf(body, sizeof body, format, "null", bias);
    json_t *forced = serve_json(&server, "/completion", 200, body);
    for (size_t k = 0; k < 24; k++)
        assert_int_equal(json_integer_value(json_array_get(json_at(forced, "tokens"), k)), first);
    json_decref(forced), json_decref(free_text);
    snprintf(body, sizeof body, format, "null", "[[\"there\", false], [\"little girl\", -100]]");
    json_t *by_text = serve_json(&server, "/completion", 200, body);
    assert_null(strstr(json_text_at(by_text, "content"), " there"));
    assert_null(strstr(json_text_at(by_text, "content"), " little"));
    json_decref(by_text);
}

static void refusals_name_the_field(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *param;
    } cases[] = {
        {"/v1/chat/completions", "{" CHAT ", \"logprobs\": true, \"top_logprobs\": 21}", "top_logprobs"},
        {"/v1/chat/completions", "{" CHAT ", \"logprobs\": true, \"top_logprobs\": -1}", "top_logprobs"},
        {"/v1/chat/completions", "{" CHAT ", \"top_logprobs\": 2}", "top_logprobs"},
        {"/v1/chat/completions", "{" CHAT ", \"logprobs\": 5}", "logprobs"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logprobs\": 21}", "logprobs"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logprobs\": true}", "logprobs"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logprobs\": 1, \"echo\": true}", "logprobs"},
        {"/completion", "{\"prompt\": \"x\", \"n_probs\": 21}", "n_probs"},
        {"/completion", "{\"prompt\": \"x\", \"n_probs\": 1, \"post_sampling_probs\": true}", "post_sampling_probs"},
        {"/v1/responses", "{\"input\": \"x\", \"top_logprobs\": 21}", "top_logprobs"},
        {"/v1/responses", "{\"input\": \"x\", \"include\": [\"file_search_call.results\"]}", "include"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": {\"4096\": 1}}", "logit_bias"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": {\"-1\": 1}}", "logit_bias"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": {\"99999999999999999999\": 1}}", "logit_bias"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": {\"the\": 1}}", "logit_bias"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": {\"5\": 101}}", "logit_bias"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": {\"5\": \"1\"}}", "logit_bias"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": [[5]]}", "logit_bias"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": [[5, true]]}", "logit_bias"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": [[100000, 1]]}", "logit_bias"},
        {"/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": 3}", "logit_bias"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = serve_json(&server, cases[i].path, 400, cases[i].body);
        if (strcmp(json_text_at(j, "error.param"), cases[i].param) != 0)
            fail_msg("%s: '%s' is named", cases[i].body, json_text_at(j, "error.param"));
        json_decref(j);
    }
    json_decref(serve_json(&server, "/v1/completions", 200, "{\"prompt\": \"x\", \"max_tokens\": 2}"));
}

/* n choices that begin at once read their prompt once. */
static void choices_share_one_prefill(void **state) {
    (void)state;
    static const char prompt[] = "In a small house by the sea lived a sailor with a wooden leg and a parrot";
    char body[300];
    snprintf(body, sizeof body, "{\"content\": \"%s\", \"add_special\": true}", prompt);
    json_t *count = serve_json(&server, "/tokenize", 200, body);
    double n = (double)json_int_at(count, "count"), hits = serve_metric(&server, "forerun_prefix_cache_hits_total"),
           queries = serve_metric(&server, "forerun_prefix_cache_queries_total");
    snprintf(body, sizeof body, "{\"prompt\": \"%s\", \"max_tokens\": 8, \"n\": 8, \"seed\": 1}", prompt);
    json_t *j = serve_json(&server, "/v1/completions", 200, body);
    assert_int_equal(json_int_at(j, "usage.prompt_tokens"), n);
    assert_true(json_int_at(j, "usage.prompt_tokens_details.cached_tokens") <= 1); /* BOS */
    assert_true(serve_metric(&server, "forerun_prefix_cache_queries_total") - queries == 8 * n);
    hits = serve_metric(&server, "forerun_prefix_cache_hits_total") - hits;
    if (hits < 7 * (n - 1)) fail_msg("%g of %g prompt tokens were shared", hits, 8 * n);
    json_decref(j), json_decref(count);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_plain_decodings_with_any_drafter_streamed_or_not),
        cmocka_unit_test(completions_have_columns),
        cmocka_unit_test(biases_ban_and_force_tokens),
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(choices_share_one_prefill),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
