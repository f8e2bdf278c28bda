/* test_serve_shapes.c - the Messages and Responses APIs, tools and reasoning, against a running server.
 *
 * Besides the shipped model there is `thinker`, the same weights with a template that lists tools and begins
 * reasoning. */
#include "serve_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ServeRig server;

static int start(void **state) {
    (void)state;
    serve_start_with_thinker(&server, "thinker.gguf",
                             "{% if tools %}{{ tools|length }} tools {% endif %}{% for m in messages %}{{ m.role }}: "
                             "{{ m.content }} {% endfor %}<think>",
                             "--parallel 4");
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&server);
}

static double dot(const json_t *a, const json_t *b) {
    double sum = 0;
    assert_int_equal(json_array_size(a), json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++)
        sum += json_real_value(json_array_get(a, i)) * json_real_value(json_array_get(b, i));
    return sum;
}

static void embeddings_are_vectors_of_length_one(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/v1/embeddings", 200,
                           "{\"model\": \"target\", \"input\": [\"The dog ran.\", \"A dog was running.\", \"Add 2 and "
                           "3.\", [1, 5, 9]], \"encoding_format\": \"float\", \"user\": \"x\"}");
    assert_string_equal(json_text_at(j, "object"), "list");
    assert_int_equal(json_array_size(json_at(j, "data")), 4);
    assert_int_equal(json_int_at(j, "data.2.index"), 2);
    assert_int_equal(json_int_at(j, "usage.prompt_tokens"), json_int_at(j, "usage.total_tokens"));
    const json_t *dog = json_at(j, "data.0.embedding"), *other = json_at(j, "data.1.embedding"),
                 *sum = json_at(j, "data.2.embedding");
    assert_true(dot(dog, dog) > 1 - 1e-6 && dot(dog, dog) < 1 + 1e-6);
    assert_true(dot(dog, other) > dot(dog, sum));
    json_t *alone = serve_json(&server, "/v1/embeddings", 200, "{\"input\": \"The dog ran.\"}"),
           *packed = serve_json(&server, "/v1/embeddings", 200,
                                "{\"input\": \"The dog ran.\", \"encoding_format\": \"base64\"}");
    assert_true(json_equal(json_at(alone, "data.0.embedding"), dog));
    assert_int_equal(strlen(json_text_at(packed, "data.0.embedding")), (json_array_size(dog) * 4 + 2) / 3 * 4);
    json_decref(j), json_decref(alone), json_decref(packed);
}

static void impossible_embeddings_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *body, *says;
    } cases[] = {
        {"{}", "'input' must be a string"},
        {"{\"input\": []}", "'input' must be a string"},
        {"{\"input\": [\"a\", 5]}", "'input': item 1 must be"},
        {"{\"input\": [99999999]}", "input"},
        {"{\"input\": \"a\", \"dimensions\": 3}", "'dimensions' must be"},
        {"{\"input\": \"a\", \"encoding_format\": \"int8\"}", "'encoding_format' must be"},
        {"{\"input\": \"a\", \"temperature\": 1}", "'temperature' is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = serve_json(&server, "/v1/embeddings", 400, cases[i].body);
        if (!strstr(json_text_at(j, "error.message"), cases[i].says))
            fail_msg("%s: %s", cases[i].body, json_text_at(j, "error.message"));
        json_decref(j);
    }
}

static void a_message_has_blocks_usage_and_a_stop_reason(void **state) {
    (void)state;
    json_t *j = serve_json(
        &server, "/v1/messages", 200,
        "{\"model\": \"claude\", \"max_tokens\": 20, \"system\": [{\"type\": \"text\", \"text\": \"Be "
        "kind.\", \"cache_control\": {\"type\": \"ephemeral\"}}], \"metadata\": {\"user_id\": \"x\"}, "
        "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Tell me \"}, "
        "{\"type\": \"text\", \"text\": \"a story\"}]}], \"temperature\": 0, \"model\": \"target\"}");
    assert_string_equal(json_text_at(j, "type"), "message");
    assert_string_equal(json_text_at(j, "role"), "assistant");
    assert_string_equal(json_text_at(j, "content.0.type"), "text");
    assert_string_equal(json_text_at(j, "stop_reason"), "max_tokens");
    assert_true(json_is_null(json_at(j, "stop_sequence")));
    assert_int_equal(json_int_at(j, "usage.output_tokens"), 20);
    json_t *chat = serve_json(&server, "/v1/chat/completions", 200,
                              "{\"max_tokens\": 20, \"temperature\": 0, \"messages\": [{\"role\": \"system\", "
                              "\"content\": \"Be kind.\"}, {\"role\": \"user\", \"content\": \"Tell me a story\"}]}");
    assert_string_equal(json_text_at(j, "content.0.text"), json_text_at(chat, "choices.0.message.content"));
    assert_int_equal(json_int_at(j, "usage.input_tokens") + json_int_at(j, "usage.cache_read_input_tokens"),
                     json_int_at(chat, "usage.prompt_tokens"));
    json_t *count = serve_json(&server, "/v1/messages/count_tokens", 200,
                               "{\"model\": \"target\", \"system\": \"Be kind.\", \"messages\": [{\"role\": \"user\", "
                               "\"content\": \"Tell me a story\"}]}");
    assert_int_equal(json_int_at(count, "input_tokens"), json_int_at(chat, "usage.prompt_tokens"));
    json_decref(j), json_decref(chat), json_decref(count);
}

#define STORY \
    "\"max_tokens\": 60, \"temperature\": 0, \"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story\"}]"

static void the_stop_sequence_is_named(void **state) {
    (void)state;
    json_t *plain = serve_json(&server, "/v1/messages", 200, "{\"model\": \"target\", " STORY "}");
    char word[64], body[512];
    const char *second = strchr(json_text_at(plain, "content.0.text") + 8, ' ');
    assert_non_null(second);
    snprintf(word, sizeof word, "%.6s", second);
    snprintf(body, sizeof body, "{\"model\": \"target\", \"stop_sequences\": [\"zzz\", \"%s\"], " STORY "}", word);
    json_t *j = serve_json(&server, "/v1/messages", 200, body);
    assert_string_equal(json_text_at(j, "stop_reason"), "stop_sequence");
    assert_string_equal(json_text_at(j, "stop_sequence"), word);
    json_decref(plain), json_decref(j);
}

static void a_stream_of_a_message(void **state) {
    (void)state;
    Answer a = serve_post(&server, "/v1/messages", "{\"model\": \"target\", \"stream\": true, " STORY "}");
    json_t *whole = serve_json(&server, "/v1/messages", 200, "{\"model\": \"target\", " STORY "}");
    static const char *const order[] = {"event: message_start\ndata: {\"type\":\"message_start\"",
                                        "event: ping\n",
                                        "event: content_block_start\n",
                                        "event: content_block_delta\n",
                                        "event: content_block_stop\n",
                                        "event: message_delta\n",
                                        "event: message_stop\n"};
    const char *at = a.body;
    assert_int_equal(a.status, 200);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        at = strstr(at, order[i]);
        if (!at) fail_msg("no %s in its place: %s", order[i], a.body);
    }
    char *text = serve_stream_text(&a, "delta.text"), *reason = serve_stream_text(&a, "delta.stop_reason");
    assert_string_equal(text, json_text_at(whole, "content.0.text"));
    assert_string_equal(reason, "max_tokens");
    assert_null(strstr(a.body, "[DONE]"));
    free(text), free(reason);
    json_decref(whole);
    answer_free(&a);
}

#define HI "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

static void errors_of_messages_have_their_shape(void **state) {
    (void)state;
    static const struct {
        const char *body, *names;
    } cases[] = {
        {"{\"model\": \"target\", " HI "}", "max_tokens"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"messages\": []}", "messages"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"messages\": [{\"role\": \"system\", \"content\": \"x\"}]}",
         "system"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"image\"}]}]}",
         "image"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}, "
         "{\"role\": "
         "\"assistant\", \"content\": \"y \"}]}",
         "trailing whitespace"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"stop_sequences\": [\"\"], " HI "}", "stop_sequences"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"thinking\": {\"type\": \"enabled\"}, " HI "}", "budget_tokens"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"thinking\": {\"type\": \"deep\"}, " HI "}", "thinking.type"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"container\": \"c\", " HI "}", "container"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"n\": 2, " HI "}", "'n'"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"tools\": [{\"type\": \"bash_20250124\", \"name\": "
         "\"bash\"}], " HI "}",
         "tools"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"tools\": [{\"name\": \"f\", \"input_schema\": {}}], " HI "}",
         "no place for them"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"output_config\": {\"depth\": \"low\"}, " HI "}", "depth"},
        {"{\"model\": \"target\", \"max_tokens\": 5, \"output_config\": {\"format\": {\"type\": \"json_schema\", "
         "\"schema\": {\"not\": {}}}}, " HI "}",
         "output_config.format"},
        {"{", "JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = serve_json(&server, "/v1/messages", 400, cases[i].body);
        assert_string_equal(json_text_at(j, "type"), "error");
        assert_string_equal(json_text_at(j, "error.type"), "invalid_request_error");
        if (!strstr(json_text_at(j, "error.message"), cases[i].names))
            fail_msg("%s: '%s' does not name %s", cases[i].body, json_text_at(j, "error.message"), cases[i].names);
        json_decref(j);
    }
    json_t *j = serve_json(&server, "/v1/messages", 404, "{\"model\": \"claude\", \"max_tokens\": 5, " HI "}");
    assert_string_equal(json_text_at(j, "error.type"), "not_found_error");
    json_decref(j);
}

/* The model continues the last message of the assistant: prompt and beginning together are what it would have
 * written. */
static void an_answer_can_be_begun(void **state) {
    (void)state;
    json_t *whole = serve_json(&server, "/v1/messages", 200, "{\"model\": \"target\", " STORY "}");
    char begin[400], joined[1400];
    snprintf(begin, sizeof begin, "%s", json_text_at(whole, "content.0.text"));
    *strrchr(begin, ' ') = '\0'; /* a token of this vocabulary begins with its space */
    size_t n = strlen(begin);
    json_t *request = json_pack("{s:s, s:i, s:i, s:{s:s, s:i}, s:{s:s}, s:{s:[]}, s:[{s:s, s:s}, {s:s, s:s}]}", "model",
                                "target", "max_tokens", 8, "temperature", 0, "thinking", "type", "enabled",
                                "budget_tokens", 2000, "output_config", "effort", "low", "context_management", "edits",
                                "messages", "role", "user", "content", "Tell me a story", "role", "assistant",
                                "content", begin);
    char *body = json_dumps(request, 0);
    json_t *rest = serve_json(&server, "/v1/messages", 200, body);
    json_decref(request);
    free(body);
    snprintf(joined, sizeof joined, "%s%s", begin, json_text_at(rest, "content.0.text"));
    assert_int_equal(strncmp(joined, json_text_at(whole, "content.0.text"), n + 5), 0);
    json_t *chat = serve_json(&server, "/v1/chat/completions", 200,
                              "{\"max_tokens\": 8, \"temperature\": 0, \"continue_final_message\": true, "
                              "\"add_generation_prompt\": false, \"messages\": [{\"role\": \"user\", \"content\": "
                              "\"Hi\"}, {\"role\": \"assistant\", \"content\": \"Once upon a\"}]}");
    assert_int_equal(strncmp(json_text_at(chat, "choices.0.message.content"), " time", 5), 0);
    json_decref(whole), json_decref(rest), json_decref(chat);
}

static void models_have_what_anthropics_clients_read(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/v1/models", 200, NULL);
    assert_string_equal(json_text_at(j, "data.0.type"), "model");
    assert_string_equal(json_text_at(j, "data.0.display_name"), "target");
    assert_int_equal(strlen(json_text_at(j, "data.0.created_at")), 20);
    assert_true(json_is_false(json_at(j, "has_more")));
    json_decref(j);
}

static void objects_without_effect_are_accepted(void **state) {
    (void)state;
    json_decref(serve_json(
        &server, "/v1/responses", 200,
        "{\"model\": \"target\", \"input\": \"x\", \"max_output_tokens\": 2, \"text\": {\"format\": {\"type\": "
        "\"text\"}, \"verbosity\": \"medium\"}, \"reasoning\": {\"effort\": \"low\", \"summary\": \"auto\"}}"));
}

#define KING "\"messages\": [{\"role\": \"user\", \"content\": \"Who was the king?\"}]"

/* The template begins reasoning and knows tools. */
static void reasoning_and_tools_by_the_template(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/v1/chat/completions", 200,
                           "{\"model\": \"thinker\", \"max_tokens\": 20, \"temperature\": 0, \"tools\": [{\"type\": "
                           "\"function\", \"function\": {\"name\": \"f\"}}], " KING "}"),
           *plain = serve_json(
               &server, "/v1/chat/completions", 200,
               "{\"model\": \"thinker\", \"max_tokens\": 20, \"temperature\": 0, \"tool_choice\": \"none\", "
               "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], " KING "}");
    assert_string_equal(json_text_at(j, "choices.0.message.content"), "");
    assert_true(strlen(json_text_at(j, "choices.0.message.reasoning_content")) > 10);
    assert_true(json_int_at(j, "usage.prompt_tokens") > json_int_at(plain, "usage.prompt_tokens"));
    json_decref(j), json_decref(plain);
    j = serve_json(
        &server, "/v1/messages", 200,
        "{\"model\": \"thinker\", \"max_tokens\": 20, \"temperature\": 0, \"tools\": [{\"name\": \"f\", "
        "\"input_schema\": {\"type\": \"object\"}}], \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
        "{\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", \"id\": \"t1\", \"name\": \"f\", "
        "\"input\": {}}]}, {\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", \"tool_use_id\": "
        "\"t1\", \"content\": [{\"type\": \"text\", \"text\": \"42\"}]}]}]}");
    assert_string_equal(json_text_at(j, "content.0.type"), "thinking");
    json_decref(j);
    json_decref(serve_json(
        &server, "/v1/chat/completions", 400,
        "{\"model\": \"target\", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], " HI "}"));
}

#define RESPONSE "{\"model\": \"target\", \"max_output_tokens\": 60, \"temperature\": 0, "

static void a_response_is_the_chat_completion_of_its_items(void **state) {
    (void)state;
    json_t *chat = serve_json(&server, "/v1/chat/completions", 200, "{\"model\": \"target\", " STORY "}"),
           *text = serve_json(&server, "/v1/responses", 200,
                              RESPONSE "\"input\": \"Tell me a story\", \"store\": false}"),
           *items = serve_json(&server, "/v1/responses", 200,
                               RESPONSE
                               "\"input\": [{\"type\": \"message\", \"role\": \"user\", \"content\": [{\"type\": "
                               "\"input_text\", \"text\": \"Tell me a story\"}]}]}");
    const char *wanted = json_text_at(chat, "choices.0.message.content");
    assert_string_equal(json_text_at(text, "output.0.content.0.text"), wanted);
    assert_string_equal(json_text_at(items, "output.0.content.0.text"), wanted);
    assert_string_equal(json_text_at(text, "output.0.role"), "assistant");
    assert_int_equal(json_int_at(text, "usage.input_tokens"), json_int_at(chat, "usage.prompt_tokens"));
    assert_int_equal(json_int_at(text, "usage.output_tokens"), json_int_at(chat, "usage.completion_tokens"));
    Answer a = serve_post(&server, "/v1/responses", RESPONSE "\"stream\": true, \"input\": \"Tell me a story\"}");
    char *delta = serve_stream_text(&a, "delta"), *done = serve_stream_text(&a, "response.output.0.content.0.text");
    assert_string_equal(delta, wanted);
    assert_string_equal(done, wanted);
    assert_non_null(
        strstr(a.body, "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,"));
    free(delta), free(done);
    answer_free(&a);
    json_decref(chat), json_decref(text), json_decref(items);
}

static void items_of_tools_reach_the_template(void **state) {
    (void)state;
    static const char format[] =
        "{\"model\": \"thinker\", \"max_output_tokens\": 5, \"temperature\": 0, \"instructions\": \"Be kind\", "
        "\"tools\": [{\"type\": "
        "\"function\", \"name\": \"f\", \"parameters\": {}}], \"input\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
        "{\"type\": \"function_call\", \"call_id\": \"c\", \"name\": \"f\", \"arguments\": \"{}\"}, {\"type\": "
        "\"function_call_output\", \"call_id\": \"c\", \"output\": \"%s\"}]}";
    char body[1024];
    snprintf(body, sizeof body, format, "42");
    json_t *j = serve_json(&server, "/v1/responses", 200, body);
    snprintf(body, sizeof body, format, "42 and many more words than before");
    json_t *longer = serve_json(&server, "/v1/responses", 200, body);
    assert_string_equal(json_text_at(j, "output.0.type"), "reasoning");
    assert_true(json_int_at(longer, "usage.input_tokens") > json_int_at(j, "usage.input_tokens"));
    json_decref(j), json_decref(longer);
}

static void refusals_of_responses_name_the_field(void **state) {
    (void)state;
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{}", "input"},
        {"{\"input\": []}", "input"},
        {"{\"input\": \"x\", \"previous_response_id\": \"resp_1\"}", "previous_response_id"},
        {"{\"input\": \"x\", \"background\": true}", "background"},
        {"{\"input\": \"x\", \"text\": {\"format\": {\"type\": \"xml\"}}}", "text.format"},
        {"{\"input\": \"x\", \"text\": 5}", "text"},
        {"{\"input\": \"x\", \"text\": {\"verbosity\": \"low\"}}", "text"},
        {"{\"input\": \"x\", \"reasoning\": 5}", "reasoning"},
        {"{\"input\": \"x\", \"reasoning\": {\"effort\": 5}}", "reasoning"},
        {"{\"input\": \"x\", \"reasoning\": {\"budget\": 5}}", "reasoning"},
        {"{\"input\": \"x\", \"tools\": [{\"type\": \"web_search\"}]}", "tools"},
        {"{\"input\": \"x\", \"max_output_tokens\": 0}", "max_output_tokens"},
        {"{\"input\": [{\"type\": \"item_reference\", \"id\": \"x\"}]}", "input"},
        {"{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_image\"}]}]}", "messages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = serve_json(&server, "/v1/responses", 400, cases[i].body);
        assert_string_equal(json_text_at(j, "error.type"), "invalid_request_error");
        assert_string_equal(json_text_at(j, "error.param"), cases[i].param);
        json_decref(j);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_are_vectors_of_length_one),
        cmocka_unit_test(impossible_embeddings_are_refused),
        cmocka_unit_test(a_message_has_blocks_usage_and_a_stop_reason),
        cmocka_unit_test(the_stop_sequence_is_named),
        cmocka_unit_test(a_stream_of_a_message),
        cmocka_unit_test(errors_of_messages_have_their_shape),
        cmocka_unit_test(reasoning_and_tools_by_the_template),
        cmocka_unit_test(a_response_is_the_chat_completion_of_its_items),
        cmocka_unit_test(items_of_tools_reach_the_template),
        cmocka_unit_test(refusals_of_responses_name_the_field),
        cmocka_unit_test(an_answer_can_be_begun),
        cmocka_unit_test(models_have_what_anthropics_clients_read),
        cmocka_unit_test(objects_without_effect_are_accepted),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
