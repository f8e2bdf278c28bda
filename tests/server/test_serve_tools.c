/* test_serve_tools.c - calls of tools and constrained answers of the conversation APIs, against a running server:
 * forced calls, reasoning before a schema, and the reports of schemas that cannot be enforced.
 *
 * The models are the shipped one's weights with other templates: `thinker` begins reasoning, `caller` lists tools,
 * `ponderer` leaves it to the model whether it reasons, and `messenger` has the template of gpt-oss. */
#include "serve_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ServeRig server;

static int start(void **state) {
    (void)state;
    char thinker[700], caller[700], ponderer[700], messenger[700], args[4000];
    snprintf(thinker, sizeof thinker, "%s/tools-thinker.gguf", serve_rig_folder());
    snprintf(caller, sizeof caller, "%s/caller.gguf", serve_rig_folder());
    serve_write_model(thinker, "{% if tools %}{{ tools|length }} tools {% endif %}{% for m in messages %}{{ m.role }}: "
                               "{{ m.content }} {% endfor %}<think>");
    serve_write_model(
        caller, "{% if tools %}{{ tools|length }} tools {% endif %}{% for m in messages %}<|im_start|>{{ m.role }} "
                "{{ m.content }}<|im_end|>{% endfor %}");
    snprintf(ponderer, sizeof ponderer, "%s/ponderer.gguf", serve_rig_folder());
    serve_write_model(ponderer, "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
                                "{% if thought is defined %}<think>{{ thought }}</think>{% endif %}");
    snprintf(messenger, sizeof messenger, "%s/messenger.gguf", serve_rig_folder());
    serve_write_model(messenger, "{% if tools %}{{ tools|length }} tools {% endif %}{% for m in messages %}<|start|>"
                                 "{{ m.role }}<|channel|>{{ m.content }}{% endfor %}<|start|>assistant");
    snprintf(args, sizeof args,
             "-t 2 -c 256 --parallel 4 --draft ngram-trie -m " SERVE_MODEL
             " -m thinker=%s -m caller=%s -m ponderer=%s -m messenger=%s",
             thinker, caller, ponderer, messenger);
    serve_start(&server, args);
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&server);
}

#define HI "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

#define TOOLS \
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": \"object\", " \
    "\"properties\": {\"city\": {\"$ref\": \"#/$defs/city\"}}, \"required\": [\"city\"], \"additionalProperties\": " \
    "false, \"$defs\": {\"city\": {\"enum\": [\"Rome\", \"Oslo\"]}}}}}, {\"type\": \"function\", \"function\": " \
    "{\"name\": \"now\"}}]"
#define CITY \
    "{\"type\": \"object\", \"properties\": {\"city\": {\"enum\": [\"Rome\", \"Oslo\"]}}, \"required\": " \
    "[\"city\"], \"additionalProperties\": false}"
#define CALL "\"model\": \"caller\", \"max_tokens\": 150, \"seed\": 3, " HI

static void check_arguments(const char *text) {
    json_t *arguments = json_loads(text, 0, NULL);
    const char *city = json_string_value(json_at(arguments, "city"));
    if (!city || (strcmp(city, "Rome") != 0 && strcmp(city, "Oslo") != 0)) fail_msg("arguments '%s'", text);
    json_decref(arguments);
}

/* A grammar makes the model write what gpt-oss writes. */
static void a_message_to_a_function_is_a_call(void **state) {
    (void)state;
    static const char format[] =
        "{\"model\": \"messenger\", \"max_tokens\": 150, \"temperature\": 0, \"tools\": " TOOLS
        ", \"draft\": \"%s\", \"grammar\": \"root ::= \\\"<|channel|>commentary to=functions.weather "
        "<|constrain|>json<|message|>{\\\\\\\"city\\\\\\\": \\\\\\\"Rome\\\\\\\"}\\\"\", " HI "}";
    for (int i = 0; i < 2; i++) {
        char body[2000];
        snprintf(body, sizeof body, format, i ? "none" : "ngram-trie");
        json_t *j = serve_json(&server, "/v1/chat/completions", 200, body);
        assert_string_equal(json_text_at(j, "choices.0.message.tool_calls.0.function.name"), "weather");
        check_arguments(json_text_at(j, "choices.0.message.tool_calls.0.function.arguments"));
        assert_string_equal(json_text_at(j, "choices.0.finish_reason"), "tool_calls");
        json_decref(j);
    }
}

/* Sends a chat to the model with the template of gpt-oss, with and without drafts, which must not matter, and checks
 * its call, if there is one. Returns the message. */
static json_t *messenger(const char *fields, int seed) {
    static const char *const parts[] = {"choices.0.message.content", "choices.0.message.reasoning_content",
                                        "choices.0.message.tool_calls.0.function", "choices.0.finish_reason"};
    json_t *answers[2], *message;
    for (int d = 0; d < 2; d++) {
        char body[3000];
        snprintf(
            body, sizeof body,
            "{\"model\": \"messenger\", \"max_tokens\": 200, \"temperature\": 0.9, \"seed\": %d, \"draft\": \"%s\", "
            "\"tools\": " TOOLS ", %s}",
            seed, d ? "ngram-trie" : "none", fields);
        answers[d] = serve_json(&server, "/v1/chat/completions", 200, body);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_true(json_equal(json_at(answers[0], parts[i]), json_at(answers[1], parts[i])) ||
                    (!json_at(answers[0], parts[i]) && !json_at(answers[1], parts[i])));
    message = json_incref((json_t *)(uintptr_t)json_at(answers[0], "choices.0.message"));
    const char *name = json_string_value(json_at(message, "tool_calls.0.function.name"));
    assert_true(json_array_size(json_at(message, "tool_calls")) <= 1);
    if (name) {
        const char *arguments = json_text_at(message, "tool_calls.0.function.arguments");
        if (strcmp(name, "weather") == 0) check_arguments(arguments);
        else assert_string_equal(name, "now");
        assert_string_equal(json_text_at(answers[0], "choices.0.finish_reason"), "tool_calls");
    }
    json_decref(answers[0]), json_decref(answers[1]);
    return message;
}

static const char *called(const json_t *message) {
    return json_string_value(json_at(message, "tool_calls.0.function.name"));
}

/* A call follows at once, after the beginning of a text, or after reasoning, which a budget ends. */
static void a_message_to_a_function_is_forced(void **state) {
    (void)state;
    static const char *const choices[] = {"\"required\"",
                                          "{\"type\": \"function\", \"function\": {\"name\": \"weather\"}}"},
                             *const begins[] = {
                                 "", ", {\"role\": \"assistant\", \"content\": \"It\"}",
                                 ", {\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"So\"}"};
    for (int i = 0; i < 6; i++) {
        char fields[500];
        snprintf(fields, sizeof fields,
                 "\"tool_choice\": %s, \"reasoning_budget\": 6, \"messages\": [{\"role\": \"user\", \"content\": "
                 "\"Hi\"}%s], \"continue_final_message\": %s",
                 choices[i / 3], begins[i % 3], i % 3 ? "true" : "false");
        json_t *message = messenger(fields, 3);
        assert_non_null(called(message));
        if (i / 3 == 1) assert_string_equal(called(message), "weather");
        assert_true(json_is_string(json_at(message, "reasoning_content")) == (i % 3 == 2));
        json_decref(message);
    }
}

/* Beside a schema for the answer, the answer is a message in the channel `final` that matches it, or a call. Biases
 * make the model begin with "<|channel|>f" or not. Without tools there is only the answer. */
static void a_message_to_the_user_has_its_schema(void **state) {
    (void)state;
    int less = serve_last_token(&server, "a<"), f = serve_last_token(&server, ">f");
    for (int i = 0; i < 3; i++) {
        char fields[700];
        bool calls = i == 1;
        snprintf(fields, sizeof fields,
                 "\"tool_choice\": \"%s\", \"logit_bias\": {\"%d\": %d, \"%d\": %d}, \"response_format\": {\"type\": "
                 "\"json_schema\", "
                 "\"json_schema\": {\"strict\": true, \"schema\": " CITY "}}, " HI,
                 i == 2 ? "none" : "auto", less, calls ? -60 : 60, f, calls ? -60 : 60);
        json_t *message = messenger(fields, 3);
        assert_true(calls ? called(message) != NULL : !called(message));
        if (!calls) check_arguments(json_text_at(message, "content"));
        json_decref(message);
    }
}

static void messages_are_free_but_for_their_headers(void **state) {
    (void)state;
    int n_texts = 0;
    for (int seed = 1; seed <= 8; seed++) {
        json_t *message = messenger("\"tool_choice\": \"auto\", " HI, seed);
        const char *content = json_string_value(json_at(message, "content")),
                   *reasoning = json_string_value(json_at(message, "reasoning_content"));
        assert_true(called(message) || content || reasoning);
        n_texts += (content && *content) || (reasoning && *reasoning);
        json_decref(message);
    }
    assert_true(n_texts > 0);
}

/* The grammar forces a call, whatever the model would have written; it is the same with and without drafts. */
static void a_call_is_forced(void **state) {
    (void)state;
    static const char named[] = "{" CALL ", \"tools\": " TOOLS
                                ", \"tool_choice\": {\"type\": \"function\", \"function\": "
                                "{\"name\": \"weather\"}}, \"draft\": \"%s\", \"stream\": %s}",
                      any[] = "{" CALL ", \"tools\": " TOOLS ", \"tool_choice\": \"required\"}";
    char body[1000];
    snprintf(body, sizeof body, named, "none", "false");
    json_t *plain = serve_json(&server, "/v1/chat/completions", 200, body);
    snprintf(body, sizeof body, named, "ngram-trie", "false");
    json_t *drafted = serve_json(&server, "/v1/chat/completions", 200, body),
           *one = serve_json(&server, "/v1/chat/completions", 200, any);
    snprintf(body, sizeof body, named, "ngram-trie", "true");
    Answer a = serve_post(&server, "/v1/chat/completions", body);
    char *streamed = serve_stream_text(&a, "choices.0.delta.tool_calls.0.function.arguments");
    const char *text = json_text_at(plain, "choices.0.message.tool_calls.0.function.arguments");
    assert_string_equal(json_text_at(plain, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(json_text_at(plain, "choices.0.message.tool_calls.0.function.name"), "weather");
    assert_true(json_is_null(json_at(plain, "choices.0.message.content")));
    check_arguments(text);
    assert_string_equal(json_text_at(drafted, "choices.0.message.tool_calls.0.function.arguments"), text);
    assert_string_equal(streamed, text);
    assert_non_null(json_at(one, "choices.0.message.tool_calls.0.function.name"));
    free(streamed);
    answer_free(&a);
    json_decref(plain), json_decref(drafted), json_decref(one);
}

static void a_call_is_forced_in_messages_and_responses(void **state) {
    (void)state;
    json_t *message = serve_json(&server, "/v1/messages", 200,
                                 "{" CALL ", \"tools\": [{\"name\": \"weather\", \"input_schema\": " CITY
                                 "}], \"tool_choice\": {\"type\": \"tool\", \"name\": \"weather\"}}"),
           *any = serve_json(&server, "/v1/messages", 200,
                             "{" CALL ", \"tools\": [{\"name\": \"weather\", \"input_schema\": " CITY
                             "}], \"tool_choice\": {\"type\": \"any\"}}"),
           *response = serve_json(&server, "/v1/responses", 200,
                                  "{\"model\": \"caller\", \"max_output_tokens\": 150, \"seed\": 3, \"input\": \"Hi\", "
                                  "\"tools\": [{\"type\": \"function\", \"name\": \"weather\", \"strict\": true, "
                                  "\"parameters\": " CITY "}], \"tool_choice\": {\"type\": \"function\", \"name\": "
                                  "\"weather\"}}");
    assert_string_equal(json_text_at(message, "stop_reason"), "tool_use");
    assert_string_equal(json_text_at(message, "content.0.type"), "tool_use");
    assert_true(json_equal(json_at(message, "content.0.input"), json_at(any, "content.0.input")));
    assert_non_null(json_at(message, "content.0.input.city"));
    assert_string_equal(json_text_at(response, "output.0.type"), "function_call");
    assert_string_equal(json_text_at(response, "tool_choice"), "required");
    check_arguments(json_text_at(response, "output.0.arguments"));
    json_decref(message), json_decref(any), json_decref(response);
}

/* allowed_tools: some of the tools, in the prompt and in the answer. */
static void some_tools_are_allowed(void **state) {
    (void)state;
    static const char chat[] = "{" CALL ", \"tools\": " TOOLS ", \"tool_choice\": {\"type\": \"allowed_tools\", "
                               "\"allowed_tools\": {\"mode\": \"%s\", \"tools\": [{\"type\": \"function\", "
                               "\"function\": {\"name\": \"%s\"}}]}}}";
    char body[1000];
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "weather" : "now";
        snprintf(body, sizeof body, chat, "required", name);
        json_t *j = serve_json(&server, "/v1/chat/completions", 200, body);
        assert_string_equal(json_text_at(j, "choices.0.message.tool_calls.0.function.name"), name);
        json_decref(j);
    }
    json_t *j = serve_json(&server, "/v1/responses", 200,
                           "{\"model\": \"caller\", \"max_output_tokens\": 150, \"input\": \"Hi\", \"tools\": "
                           "[{\"type\": \"function\", \"name\": \"a\"}, {\"type\": \"function\", \"name\": \"b\"}], "
                           "\"tool_choice\": {\"type\": \"allowed_tools\", \"mode\": \"required\", \"tools\": "
                           "[{\"type\": \"function\", \"name\": \"b\"}]}}");
    assert_string_equal(json_text_at(j, "output.0.name"), "b");
    json_decref(j);
    static const char *const bad[][2] = {{"never", "now"}, {"auto", "then"}};
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body, chat, bad[i][0], bad[i][1]);
        j = serve_json(&server, "/v1/chat/completions", 400, body);
        assert_string_equal(json_text_at(j, "error.param"), "tool_choice");
        json_decref(j);
    }
}

static void choices_of_tools_that_cannot_be(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{" CALL ", \"tool_choice\": \"required\"}",
        "{" CALL ", \"tools\": " TOOLS ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"x\"}}}",
        "{" CALL ", \"tools\": " TOOLS ", \"tool_choice\": \"some\"}",
        "{" CALL ", \"tools\": " TOOLS ", \"tool_choice\": {\"type\": \"allowed_tools\"}}",
        "{" CALL ", \"tools\": " TOOLS ", \"tool_choice\": \"required\", \"json_schema\": {}}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        json_t *j = serve_json(&server, "/v1/chat/completions", 400, bodies[i]);
        assert_string_equal(json_text_at(j, "error.param"), "tool_choice");
        json_decref(j);
    }
    json_t *j = serve_json(&server, "/v1/chat/completions", 400,
                           "{" CALL ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"x\", "
                           "\"parameters\": {\"not\": {}}}}], \"tool_choice\": \"required\"}");
    assert_string_equal(json_text_at(j, "error.param"), "tools");
    json_decref(j);
}

/* These calls could not be read back, or would have no object of arguments. */
static void tools_that_cannot_be_called(void **state) {
    (void)state;
    char functions[][300] = {"\"name\": \"\"",
                             "\"name\": \"a\\\"b\"",
                             "\"name\": \"a\\\\b\"",
                             "\"name\": \"a\\nb\"",
                             "",
                             "\"name\": \"f\", \"parameters\": 5",
                             "\"name\": \"f\", \"parameters\": {\"type\": \"string\"}",
                             "\"name\": \"f\", \"parameters\": {\"type\": [\"object\", \"null\"]}"};
    snprintf(functions[4], sizeof functions[4], "\"name\": \"%0128d\"", 7);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        char body[700];
        snprintf(body, sizeof body, "{" CALL ", \"tools\": [{\"type\": \"function\", \"function\": {%.290s}}]}",
                 functions[i]);
        json_t *j = serve_json(&server, "/v1/chat/completions", 400, body);
        assert_string_equal(json_text_at(j, "error.param"), "tools");
        json_decref(j);
    }
}

/* With "auto" the model calls a tool or answers in the schema of response_format, as it likes: "<" is the beginning of
 * a call. */
static void beside_tools_an_answer_has_its_schema_or_is_a_call(void **state) {
    (void)state;
    static const char chat
        [] = "{\"model\": \"caller\", \"max_tokens\": 300, \"seed\": 3, " HI
             ", \"parallel_tool_calls\": false, \"tools\": " TOOLS
             ", \"draft\": \"%s\", \"logit_bias\": {\"%d\": %d}, \"response_format\": {\"type\": "
             "\"json_schema\", \"json_schema\": {\"strict\": true, \"schema\": " CITY "}}}",
    response[] =
        "{\"model\": \"caller\", \"input\": \"Hi\", \"seed\": 3, \"max_output_tokens\": 300, \"parallel_tool_calls\": "
        "false, \"tools\": [{\"type\": \"function\", \"name\": \"weather\", \"parameters\": " CITY
        "}], \"draft\": \"%s\", \"logit_bias\": {\"%d\": %d}, \"text\": {\"format\": {\"type\": "
        "\"json_schema\", \"schema\": " CITY "}}}";
    int less = serve_last_token(&server, "a<");
    for (int calls = 0; calls < 2; calls++) {
        char body[1400];
        snprintf(body, sizeof body, chat, "none", less, calls ? 60 : -100);
        json_t *plain = serve_json(&server, "/v1/chat/completions", 200, body);
        snprintf(body, sizeof body, chat, "ngram-trie", less, calls ? 60 : -100);
        json_t *drafted = serve_json(&server, "/v1/chat/completions", 200, body);
        snprintf(body, sizeof body, response, "ngram-trie", less, calls ? 60 : -100);
        json_t *items = serve_json(&server, "/v1/responses", 200, body);
        const char *content = json_string_value(json_at(plain, "choices.0.message.content"));
        const char *arguments = json_string_value(json_at(plain, "choices.0.message.tool_calls.0.function.arguments"));
        assert_true(calls ? !content && arguments : content && !arguments);
        if (content) check_arguments(content);
        assert_string_equal(json_text_at(plain, "choices.0.finish_reason"), calls ? "tool_calls" : "stop");
        assert_string_equal(json_text_at(items, "output.0.type"), calls ? "function_call" : "message");
        const char *again = json_string_value(json_at(
            drafted, calls ? "choices.0.message.tool_calls.0.function.arguments" : "choices.0.message.content"));
        assert_string_equal(again, calls ? arguments : content);
        json_decref(plain), json_decref(drafted), json_decref(items);
    }
}

static void a_message_has_the_format_of_its_schema(void **state) {
    (void)state;
    json_t *j = serve_json(
        &server, "/v1/messages", 200,
        "{\"model\": \"target\", \"max_tokens\": 100, \"temperature\": 0, \"output_config\": {\"format\": "
        "{\"type\": \"json_schema\", \"schema\": " CITY "}}, " HI "}");
    check_arguments(json_text_at(j, "content.0.text"));
    assert_string_equal(json_text_at(j, "stop_reason"), "end_turn");
    json_t *older = serve_json(&server, "/v1/messages", 200,
                               "{\"model\": \"target\", \"max_tokens\": 100, \"temperature\": 0, \"output_format\": "
                               "{\"type\": \"json_schema\", \"schema\": " CITY "}, " HI "}");
    assert_string_equal(json_text_at(older, "content.0.text"), json_text_at(j, "content.0.text"));
    json_decref(j), json_decref(older);
}

/* If the template has begun reasoning, the schema holds after it, and any text may come before. */
static void reasoning_comes_before_the_schema(void **state) {
    (void)state;
    static const char format[] =
        "{\"model\": \"%s\", \"max_tokens\": 40, \"temperature\": 0, \"response_format\": "
        "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"const\": \"done\"}}}, " HI "}";
    char body[400];
    snprintf(body, sizeof body, format, "thinker");
    json_t *thinking = serve_json(&server, "/v1/chat/completions", 200, body);
    snprintf(body, sizeof body, format, "target");
    json_t *direct = serve_json(&server, "/v1/chat/completions", 200, body);
    assert_string_equal(json_text_at(direct, "choices.0.message.content"), "\"done\"");
    assert_string_equal(json_text_at(thinking, "choices.0.message.content"), "");
    assert_true(strlen(json_text_at(thinking, "choices.0.message.reasoning_content")) > 10);
    json_decref(thinking), json_decref(direct);
}

/* Reasoning that reaches its budget is closed, and the schema follows. Each API has its own field. */
static void a_budget_closes_reasoning(void **state) {
    (void)state;
    static const char format[] =
        "{\"model\": \"thinker\", \"max_tokens\": 60, \"temperature\": 0, \"draft\": \"%s\", \"reasoning_budget\": %d, "
        "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"const\": \"done\"}}}, " HI
        "}";
    char body[500];
    json_int_t n_longer = 0;
    for (int budget = 0; budget <= 8; budget += 4) {
        char text[2][400];
        for (int d = 0; d < 2; d++) {
            snprintf(body, sizeof body, format, d ? "ngram-trie" : "none", budget);
            json_t *j = serve_json(&server, "/v1/chat/completions", 200, body);
            assert_string_equal(json_text_at(j, "choices.0.message.content"), "\"done\"");
            const char *reasoning = json_string_value(json_at(j, "choices.0.message.reasoning_content"));
            snprintf(text[d], sizeof text[d], "%s", reasoning ? reasoning : "");
            n_longer = json_int_at(j, "usage.completion_tokens_details.reasoning_tokens");
            json_decref(j);
        }
        assert_string_equal(text[0], text[1]);
        assert_int_equal(text[0][0] == 0, budget == 0);
        assert_true(n_longer >= budget);
    }
    json_t *j = serve_json(
        &server, "/v1/messages", 200,
        "{\"model\": \"thinker\", \"max_tokens\": 60, \"temperature\": 0, \"thinking\": {\"type\": "
        "\"enabled\", \"budget_tokens\": 6}, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}");
    assert_string_equal(json_text_at(j, "content.0.type"), "thinking");
    assert_string_equal(json_text_at(j, "content.1.type"), "text");
    json_decref(j);
}

/* A model whose template has reasoning may begin it by itself; the schema then holds after it, otherwise at once. "<"
 * is the first byte of the opening; a bias makes the model write it, also within its reasoning. */
static void a_model_that_reasons_by_itself_has_a_schema_too(void **state) {
    (void)state;
    static const char format[] =
        "{\"model\": \"ponderer\", \"max_tokens\": 20, \"temperature\": 0, \"draft\": \"%s\", \"logit_bias\": {\"%d\": "
        "%d}, %s\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"const\": "
        "\"done\"}}}, " HI "}";
    static const struct {
        int bias;
        const char *fields, *content, *reasoning;
    } cases[] = {
        {-60, "", "\"done\"", NULL},
        {60, "", "", "<<<"},
        /* if the prompt contains the reasoning, nothing comes before the schema */
        {60, "\"chat_template_kwargs\": {\"thought\": \"x\"}, ", "\"done\"", NULL},
    };
    int less = serve_last_token(&server, "a<");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[700];
        snprintf(body, sizeof body, format, "none", less, cases[i].bias, cases[i].fields);
        json_t *plain = serve_json(&server, "/v1/chat/completions", 200, body);
        snprintf(body, sizeof body, format, "ngram-trie", less, cases[i].bias, cases[i].fields);
        json_t *drafted = serve_json(&server, "/v1/chat/completions", 200, body);
        const char *reasoning = json_string_value(json_at(plain, "choices.0.message.reasoning_content"));
        assert_string_equal(json_text_at(plain, "choices.0.message.content"), cases[i].content);
        if (!cases[i].reasoning) assert_null(reasoning);
        else assert_true(reasoning && strstr(reasoning, cases[i].reasoning) == reasoning);
        assert_true(json_equal(json_at(plain, "choices"), json_at(drafted, "choices")));
        json_decref(plain), json_decref(drafted);
    }
}

/* With "auto" the text is free until a call begins; schemas that cannot be enforced are reported or refused. */
static void tools_of_auto_hold_calls_to_their_schemas(void **state) {
    (void)state;
    static const char format[] = "{\"model\": \"caller\", \"max_tokens\": 40, \"seed\": 3, " HI
                                 ", \"draft\": \"%s\", \"tools\": [{\"type\": "
                                 "\"function\", \"function\": {\"name\": \"f\", \"strict\": %s, \"parameters\": %s}}]}";
    char body[700];
    snprintf(body, sizeof body, format, "none", "true", CITY);
    json_t *plain = serve_json(&server, "/v1/chat/completions", 200, body);
    snprintf(body, sizeof body, format, "ngram-trie", "true", CITY);
    json_t *drafted = serve_json(&server, "/v1/chat/completions", 200, body);
    assert_true(json_equal(json_at(plain, "choices"), json_at(drafted, "choices")));
    assert_true(strlen(json_text_at(plain, "choices.0.message.content")) > 10);
    assert_null(json_at(plain, "warnings"));
    snprintf(body, sizeof body, format, "none", "false", "{\"not\": {}}");
    json_t *loose = serve_json(&server, "/v1/chat/completions", 200, body);
    assert_string_equal(json_text_at(loose, "choices.0.message.content"),
                        json_text_at(plain, "choices.0.message.content"));
    assert_non_null(strstr(json_text_at(loose, "warnings.0"), "tool 'f' are not constrained by its schema"));
    snprintf(body, sizeof body, format, "none", "true", "{\"not\": {}}");
    json_t *refused = serve_json(&server, "/v1/chat/completions", 400, body);
    assert_string_equal(json_text_at(refused, "error.param"), "tools");
    json_decref(plain), json_decref(drafted), json_decref(loose), json_decref(refused);
}

/* oneOf whose alternatives cannot be distinguished is read as anyOf, which is reported, or refused if the request is
 * strict. */
static void parts_of_a_schema_that_are_not_enforced_are_reported(void **state) {
    (void)state;
    static const char format[] =
        "{\"max_tokens\": 20, " HI ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": "
        "{\"name\": \"x\", \"strict\": %s, \"schema\": {\"oneOf\": [{\"enum\": [1, 2]}, {\"enum\": "
        "[2, 3]}]}}}, \"stream\": %s}";
    char body[500];
    snprintf(body, sizeof body, format, "false", "false");
    json_t *told = serve_json(&server, "/v1/chat/completions", 200, body);
    assert_non_null(strstr(json_text_at(told, "warnings.0"), "oneOf"));
    snprintf(body, sizeof body, format, "false", "true");
    Answer a = serve_post(&server, "/v1/chat/completions", body);
    assert_non_null(strstr(a.body, "\"warnings\":[\""));
    snprintf(body, sizeof body, format, "true", "false");
    json_t *refused = serve_json(&server, "/v1/chat/completions", 400, body);
    assert_non_null(strstr(json_text_at(refused, "error.message"), "'strict' cannot be kept"));
    answer_free(&a);
    json_decref(told), json_decref(refused);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_to_a_function_is_a_call),
        cmocka_unit_test(a_message_to_a_function_is_forced),
        cmocka_unit_test(a_message_to_the_user_has_its_schema),
        cmocka_unit_test(messages_are_free_but_for_their_headers),
        cmocka_unit_test(a_call_is_forced),
        cmocka_unit_test(a_call_is_forced_in_messages_and_responses),
        cmocka_unit_test(some_tools_are_allowed),
        cmocka_unit_test(choices_of_tools_that_cannot_be),
        cmocka_unit_test(tools_that_cannot_be_called),
        cmocka_unit_test(beside_tools_an_answer_has_its_schema_or_is_a_call),
        cmocka_unit_test(a_message_has_the_format_of_its_schema),
        cmocka_unit_test(reasoning_comes_before_the_schema),
        cmocka_unit_test(a_budget_closes_reasoning),
        cmocka_unit_test(a_model_that_reasons_by_itself_has_a_schema_too),
        cmocka_unit_test(tools_of_auto_hold_calls_to_their_schemas),
        cmocka_unit_test(parts_of_a_schema_that_are_not_enforced_are_reported),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
