/* test_serve_fields.c - the fields of requests: which are refused by name, which are accepted without an effect, and
 * what unknown ones lead to. */
#include "serve_rig.h"

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

static void refusals_name_the_field(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *param;
    } cases[] = {
        {"/v1/completions", "{\"prompt\": \"x\", \"temperature\": -1}", "temperature"},
        {"/v1/completions", "{\"prompt\": \"x\", \"temperature\": \"hot\"}", "temperature"},
        {"/v1/completions", "{\"prompt\": \"x\", \"temperature\": 1e300}", "temperature"},
        {"/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 0}", "max_tokens"},
        {"/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 1.5}", "max_tokens"},
        {"/v1/completions", "{\"prompt\": \"x\", \"n\": 0}", "n"},
        {"/v1/completions", "{\"prompt\": \"x\", \"n\": 1000000}", "n"},
        {"/v1/completions", "{\"prompt\": \"x\", \"stream\": \"yes\"}", "stream"},
        {"/v1/completions", "{\"prompt\": \"x\", \"stop\": \"\"}", "stop"},
        {"/v1/completions", "{\"prompt\": \"x\", \"stop\": [1]}", "stop"},
        {"/v1/completions", "{\"prompt\": \"x\", \"mirostat\": 2}", "mirostat"},
        {"/v1/completions", "{\"prompt\": \"x\", \"temprature\": 1}", "temprature"},
        {"/v1/completions", "{\"prompt\": \"x\", \"stream_options\": {\"include_usage\": true}}", "stream_options"},
        {"/v1/completions", "{\"prompt\": [100000]}", "prompt"},
        {"/v1/completions", "{\"prompt\": [[1], [-1]]}", "prompt"},
        {"/v1/completions", "{\"prompt\": {}}", "prompt"},
        {"/v1/completions", "{}", "prompt"},
        {"/v1/chat/completions", "{\"messages\": []}", "messages"},
        {"/v1/chat/completions", "{\"messages\": \"hi\"}", "messages"},
        {"/v1/chat/completions", "{\"messages\": [{\"content\": \"hi\"}]}", "messages"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\"}]}", "messages"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
         "messages"},
        {"/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"modalities\": [\"audio\"]}", "modalities"},
        {"/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tool_choice\": \"required\"}", "tool_choice"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
         "messages"},
        {"/v1/chat/completions",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": \"x\"}]}", "messages"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [5]}]}",
         "messages"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": []}]}",
         "messages"},
        {"/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"chat_template_kwargs\": {\"messages\": []}}",
         "chat_template_kwargs"},
        {"/v1/completions", "{\"prompt\": \"x\", \"prediction\": {\"type\": \"image\", \"content\": \"x\"}}",
         "prediction"},
        {"/v1/completions", "{\"prompt\": \"x\", \"prediction\": {\"type\": \"content\", \"content\": [1]}}",
         "prediction"},
        {"/completion", "{\"prompt\": \"x\", \"lora\": [{\"id\": 0, \"scale\": 1}]}", "lora"},
        {"/tokenize", "{\"text\": \"x\"}", "text"},
        {"/detokenize", "{\"tokens\": \"x\"}", "tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = serve_json(&server, cases[i].path, 400, cases[i].body);
        assert_string_equal(json_text_at(j, "error.type"), "invalid_request_error");
        assert_string_equal(json_text_at(j, "error.param"), cases[i].param);
        assert_true(strlen(json_text_at(j, "error.message")) > 10);
        json_decref(j);
    }
}

/* Errors in a body are reported in the terms of the request. */
static void a_zero_byte_is_refused_in_words(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/v1/completions", 400, "{\"prompt\": \"a\\u0000b\"}");
    assert_non_null(strstr(json_text_at(j, "error.message"), "character \\u0000"));
    json_decref(j);
}

/* The template of this model joins contents to text: next to calls they may be null. */
static void the_content_beside_calls_may_be_null(void **state) {
    (void)state;
    static const char format[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": %s, "
        "\"tool_calls\": [{\"id\": \"x\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
        "\"{}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"x\", \"content\": \"b\"}]}";
    char body[600];
    snprintf(body, sizeof body, format, "null");
    json_t *null = serve_json(&server, "/apply-template", 200, body);
    snprintf(body, sizeof body, format, "\"\"");
    json_t *empty = serve_json(&server, "/apply-template", 200, body);
    assert_string_equal(json_text_at(null, "prompt"), json_text_at(empty, "prompt"));
    json_decref(null), json_decref(empty);
}

/* The same fields are accepted with values that have no effect. */
static void fields_without_effect_are_accepted(void **state) {
    (void)state;
    json_decref(
        serve_json(&server, "/v1/chat/completions", 200,
                   "{\"model\": \"gpt-4o\", \"messages\": [{\"role\": \"developer\", \"content\": \"a\"}, {\"role\": "
                   "\"user\", \"content\": \"b\"}], "
                   "\"max_completion_tokens\": 2, \"n\": 1, \"temperature\": null, \"logit_bias\": {}, \"tools\": [], "
                   "\"functions\": null, \"tool_choice\": \"auto\", "
                   "\"response_format\": {\"type\": \"text\"}, \"reasoning_effort\": \"low\", "
                   "\"logprobs\": false, \"mirostat\": 0, \"typical_p\": 1, \"metadata\": {\"a\": \"b\"}, "
                   "\"service_tier\": \"auto\", "
                   "\"modalities\": [\"text\"], \"stop\": null, \"min_p\": 0.1, \"top_k\": -1, \"chat_id\": \"\"}"));
}

/* What llama-server's own page, and clients of the other servers, send with every message. */
static void the_defaults_of_all_clients_are_accepted(void **state) {
    (void)state;
    static const char *const fields[] = {
        "\"return_progress\": false, \"reasoning_format\": \"auto\", \"reasoning_control\": true, "
        "\"sse_ping_interval\": -1, \"timings_per_token\": true, \"backend_sampling\": false",
        "\"samplers\": [\"penalties\", \"dry\", \"top_k\", \"typ_p\", \"top_p\", \"min_p\", \"xtc\", \"temperature\"], "
        "\"t_max_predict_ms\": 0, \"typ_p\": 1, \"n_cmpl\": 1, \"cache_reuse\": 0, \"top_n_sigma\": -1",
        "\"samplers\": \"edkypmxt\", \"speculative.n_max\": 16, \"speculative.p_min\": 0.75, \"lora\": [], "
        "\"dry_sequence_breakers\": [\"\\n\", \":\"], \"n_discard\": 0, \"adaptive_target\": -1",
        "\"samplers\": \"top_k;typ_p;top_p;min_p;temperature\", \"id_slot\": -1, \"n_keep\": 0, "
        "\"reasoning_budget_tokens\": -1",
        "\"best_of\": 1, \"use_beam_search\": false, \"stop_token_ids\": [], \"min_tokens\": 0, \"priority\": 0, "
        "\"skip_special_tokens\": true, \"include_reasoning\": true, \"truncate_prompt_tokens\": null",
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char body[1000];
        snprintf(body, sizeof body,
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": %d, %s%s}", i ? 2 : -1,
                 fields[i], i ? "" : ", \"stop\": [\"e\", \"a\", \"i\", \"o\"]");
        json_t *j = serve_json(&server, "/v1/chat/completions", 200, body);
        assert_null(json_at(j, "warnings"));
        json_decref(j);
    }
    json_t *j = serve_json(&server, "/completion", 200,
                           "{\"prompt\": \"x\", \"n_predict\": 1, \"reasoning_format\": \"none\", "
                           "\"parse_tool_calls\": false, \"reasoning_budget_tokens\": -1}");
    assert_null(json_at(j, "warnings"));
    json_decref(j);
    j = serve_json(&server, "/v1/completions", 200,
                   "{\"prompt\": \"x\", \"max_tokens\": 1, \"store\": true, \"verbosity\": \"low\"}");
    assert_int_equal(json_array_size(json_at(j, "warnings")), 2);
    assert_non_null(strstr(json_text_at(j, "warnings.0"), "'store'"));
    json_decref(j);
}

static void unknown_fields_are_ignored_if_the_operator_wants_it(void **state) {
    (void)state;
    ServeRig s;
    serve_start(&s, "-t 1 -c 256 --draft none --quiet --unknown-fields ignore");
    json_t *j = serve_json(&s, "/v1/completions", 200, "{\"prompt\": \"x\", \"max_tokens\": 1, \"temprature\": 1}");
    assert_int_equal(json_array_size(json_at(j, "warnings")), 1);
    assert_non_null(strstr(json_text_at(j, "warnings.0"), "'temprature'"));
    json_decref(j);
    j = serve_json(&s, "/v1/completions", 400, "{\"prompt\": \"x\", \"mirostat\": 2}"); /* known, and not supported */
    assert_string_equal(json_text_at(j, "error.param"), "mirostat");
    json_decref(j);
    assert_int_equal(serve_stop(&s), 0);
}

static void a_prompt_beyond_the_context_is_refused(void **state) {
    (void)state;
    char *body = malloc(8000);
    int n = snprintf(body, 8000, "{\"max_tokens\": 1, \"prompt\": [1");
    for (int i = 0; i < 256; i++) n += snprintf(body + n, 8000 - (size_t)n, ", 5");
    snprintf(body + n, 8000 - (size_t)n, "]}");
    json_t *j = serve_json(&server, "/v1/completions", 400, body);
    assert_string_equal(json_text_at(j, "error.code"), "context_length_exceeded");
    json_decref(j);
    free(body);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(a_zero_byte_is_refused_in_words),
        cmocka_unit_test(the_content_beside_calls_may_be_null),
        cmocka_unit_test(fields_without_effect_are_accepted),
        cmocka_unit_test(the_defaults_of_all_clients_are_accepted),
        cmocka_unit_test(unknown_fields_are_ignored_if_the_operator_wants_it),
        cmocka_unit_test(a_prompt_beyond_the_context_is_refused),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
