/* test_serve_choices.c - several choices together with tools, schemas, reasoning, log-probabilities and stops, streamed
 * and not: each is the answer of a request for only that choice, and usage counts them together.
 *
 * The models are the shipped one's weights with other templates: `caller` lists tools, and `ponderer` can be told that
 * the prompt has reasoned, so that a grammar holds at once and may write the reasoning itself. */
#include "serve_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, SEED = 11 };

static ServeRig server;
static int less; /* the token "<", with which calls and reasoning begin */

static int start(void **state) {
    (void)state;
    char caller[700], ponderer[700], args[2000];
    snprintf(caller, sizeof caller, "%s/choices-caller.gguf", serve_rig_folder());
    snprintf(ponderer, sizeof ponderer, "%s/choices-ponderer.gguf", serve_rig_folder());
    serve_write_model(
        caller, "{% if tools %}{{ tools|length }} tools {% endif %}{% for m in messages %}<|im_start|>{{ m.role }} "
                "{{ m.content }}<|im_end|>{% endfor %}");
    serve_write_model(ponderer, "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
                                "{% if thought is defined %}<think>{{ thought }}</think>{% endif %}");
    snprintf(args, sizeof args,
             "-t 2 -c 256 --parallel 8 --draft ngram-trie --draft suffix -m " SERVE_MODEL
             " -m caller=%s -m ponderer=%s",
             caller, ponderer);
    serve_start(&server, args);
    less = serve_last_token(&server, "a<");
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&server);
}

/* ---- an answer without the parts that differ between requests
 * --------------------------------------------------------------- */

static json_t *new_choice(void) {
    return json_pack("{s:s, s:s, s:[], s:[], s:n}", "content", "", "reasoning", "", "calls", "logprobs", "finish");
}

static void add_text(json_t *to, const char *key, const json_t *text) {
    if (!json_is_string(text)) return;
    json_object_set_new(to, key,
                        json_sprintf("%s%s", json_string_value(json_object_get(to, key)), json_string_value(text)));
}

static void add_call(json_t *to, const json_t *call) {
    json_t *calls = json_object_get(to, "calls");
    const json_t *name = json_at(call, "function.name");
    if (name) json_array_append_new(calls, json_pack("{s:s, s:s}", "name", json_string_value(name), "arguments", ""));
    add_text(json_array_get(calls, json_array_size(calls) - 1), "arguments", json_at(call, "function.arguments"));
}

/* Adds a choice, or a piece of one. */
static void add_piece(json_t *to, const json_t *choice) {
    const json_t *message = json_object_get(choice, "message") ? json_object_get(choice, "message")
                                                               : json_object_get(choice, "delta");
    const json_t *calls = json_object_get(message, "tool_calls"), *finish = json_object_get(choice, "finish_reason");
    add_text(to, "content", json_object_get(message, "content"));
    add_text(to, "reasoning", json_object_get(message, "reasoning_content"));
    for (size_t i = 0; i < json_array_size(calls); i++) add_call(to, json_array_get(calls, i));
    if (json_at(choice, "logprobs.content"))
        json_array_extend(json_object_get(to, "logprobs"), (json_t *)(uintptr_t)json_at(choice, "logprobs.content"));
    if (json_is_string(finish)) json_object_set(to, "finish", (json_t *)(uintptr_t)finish);
}

/* [n choices, usage] of an answer, or of its events. */
static json_t *read_whole(const json_t *answer) {
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(json_at(answer, "choices")); i++) {
        json_t *choice = new_choice();
        assert_int_equal(json_int_at(json_array_get(json_at(answer, "choices"), i), "index"), i);
        add_piece(choice, json_array_get(json_at(answer, "choices"), i));
        json_array_append_new(all, choice);
    }
    return all;
}

static json_t *read_stream(const Answer *a, int n, json_t **usage) {
    json_t *all = json_array();
    char *copy = strdup(a->body), *rest = copy;
    assert_int_equal(a->status, 200);
    for (int i = 0; i < n; i++) json_array_append_new(all, new_choice());
    for (char *line; (line = strsep(&rest, "\n"));) {
        json_t *event = strncmp(line, "data: {", 7) == 0 ? json_loads(line + 6, 0, NULL) : NULL;
        const json_t *choice = json_at(event, "choices.0");
        if (choice) add_piece(json_array_get(all, (size_t)json_int_at(choice, "index")), choice);
        else if (event) *usage = json_incref((json_t *)(uintptr_t)json_at(event, "usage"));
        json_decref(event);
    }
    free(copy);
    return all;
}

/* ---- requests
 * -------------------------------------------------------------------------------------------------------- */

#define TOOLS \
    ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": " \
    "\"object\", \"properties\": {\"city\": {\"enum\": [\"Rome\", \"Oslo\", \"Lima\", \"Bonn\"]}, \"days\": " \
    "{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 99}}, \"required\": [\"city\", \"days\"], " \
    "\"additionalProperties\": false}}}]"
#define FORMAT \
    ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"dog\", \"schema\": {\"type\": " \
    "\"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12}, \"age\": {\"type\": " \
    "\"integer\", \"minimum\": 1, \"maximum\": 20}}, \"required\": [\"name\", \"age\"], \"additionalProperties\": " \
    "false}}}"
#define LOGPROBS ", \"logprobs\": true, \"top_logprobs\": 3"
#define TOWARDS_CALLS ", \"logit_bias\": {\"%d\": 60}"
#define REASONING \
    ", \"chat_template_kwargs\": {\"thought\": \"x\"}, \"grammar\": \"root ::= \\\"<think>\\\" [a-z] [a-z ]{4,39} " \
    "\\\"</think>\\\" [a-z]{4,9}\""

/* The properties of each choice. */
typedef enum Wanted { HAS_TEXT = 1, HAS_CALLS = 2, HAS_REASONING = 4, HAS_LOGPROBS = 8 } Wanted;

typedef struct Case {
    const char *model, *fields;
    int wanted;
} Case;

static const Case cases[] = {
    {"target", "", HAS_TEXT},
    {"target", LOGPROBS ", \"stop\": [\" the\", \"mom\"]", HAS_TEXT | HAS_LOGPROBS},
    {"target", FORMAT LOGPROBS, HAS_TEXT | HAS_LOGPROBS},
    {"target", FORMAT ", \"stop\": [\", \"]", HAS_TEXT},
    {"caller", TOOLS LOGPROBS ", \"stop\": [\" a\"]", HAS_TEXT | HAS_LOGPROBS},
    {"caller", TOOLS ", \"tool_choice\": \"required\", \"parallel_tool_calls\": false" LOGPROBS, HAS_CALLS},
    {"caller", TOOLS ", \"tool_choice\": \"required\", \"stop\": [\"\\\"days\"]", HAS_CALLS},
    {"caller", TOOLS FORMAT TOWARDS_CALLS ", \"parallel_tool_calls\": false", HAS_CALLS},
    {"caller", TOOLS FORMAT LOGPROBS, HAS_TEXT | HAS_LOGPROBS},
    {"caller", TOOLS FORMAT ", \"tool_choice\": \"required\", \"parallel_tool_calls\": false", HAS_CALLS},
    {"caller", TOOLS FORMAT ", \"tool_choice\": \"none\"", HAS_TEXT},
    {"ponderer", REASONING, HAS_TEXT | HAS_REASONING},
    {"ponderer", REASONING LOGPROBS, HAS_TEXT | HAS_REASONING | HAS_LOGPROBS},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void make_body(char *body, size_t size, const Case *c, int n, int seed, const char *draft, bool streams) {
    char fields[1400];
    snprintf(fields, sizeof fields, c->fields, less);
    snprintf(body, size,
             "{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"A dog\"}], \"max_tokens\": 90, "
             "\"temperature\": 0.9, \"n\": %d, \"seed\": %d, \"draft\": \"%s\"%s%s}",
             c->model, n, seed, draft, fields,
             streams ? ", \"stream\": true, \"stream_options\": {\"include_usage\": true}" : "");
}

static void check_kind(const Case *c, const json_t *choice) {
    char *text = json_dumps(choice, 0);
    const json_t *arguments = json_at(choice, "calls.0.arguments");
    bool fits = !json_string_length(json_at(choice, "content")) == !(c->wanted & HAS_TEXT) &&
                !json_array_size(json_at(choice, "calls")) == !(c->wanted & HAS_CALLS) &&
                !json_string_length(json_at(choice, "reasoning")) == !(c->wanted & HAS_REASONING) &&
                !json_array_size(json_at(choice, "logprobs")) == !(c->wanted & HAS_LOGPROBS) &&
                !arguments == !(c->wanted & HAS_CALLS);
    if (!fits) fail_msg("%s%s\n%s", c->model, c->fields, text);
    free(text);
}

static void check_equal(const Case *c, const char *what, const json_t *a, const json_t *b) {
    if (json_equal(a, b)) return;
    char *left = json_dumps(a, 0), *right = json_dumps(b, 0);
    fail_msg("%s%s: %s\n%s\n%s", c->model, c->fields, what, left, right);
}

static json_int_t tokens_of(const json_t *usage, const char *path) { return json_int_at(usage, path); }

/* The n choices of a request, streamed and not, with a draft. */
static void check_together(const Case *c, const char *draft, const json_t *alone, json_int_t n_tokens,
                           json_int_t n_reasoning) {
    char body[2400];
    json_t *usage = NULL;
    make_body(body, sizeof body, c, N, SEED, draft, false);
    json_t *answer = serve_json(&server, "/v1/chat/completions", 200, body), *whole = read_whole(answer);
    make_body(body, sizeof body, c, N, SEED, draft, true);
    Answer a = serve_post(&server, "/v1/chat/completions", body);
    json_t *streamed = read_stream(&a, N, &usage);
    check_equal(c, "alone and together", alone, whole);
    check_equal(c, "whole and streamed", whole, streamed);
    const json_t *both[] = {json_at(answer, "usage"), usage};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tokens_of(both[i], "completion_tokens"), n_tokens);
        assert_int_equal(tokens_of(both[i], "completion_tokens_details.reasoning_tokens"), n_reasoning);
    }
    json_decref(answer), json_decref(whole), json_decref(streamed), json_decref(usage);
    answer_free(&a);
}

static void each_choice_equals_a_request_for_it(void **state) {
    (void)state;
    for (int k = 0; k < N_CASES; k++) {
        const Case *c = &cases[k];
        json_t *alone = json_array();
        json_int_t n_tokens = 0, n_reasoning = 0;
        for (int i = 0; i < N; i++) {
            char body[2400];
            make_body(body, sizeof body, c, 1, SEED + i, "none", false);
            json_t *answer = serve_json(&server, "/v1/chat/completions", 200, body), *one = read_whole(answer);
            check_kind(c, json_array_get(one, 0));
            json_array_extend(alone, one);
            n_tokens += tokens_of(json_at(answer, "usage"), "completion_tokens");
            n_reasoning += tokens_of(json_at(answer, "usage"), "completion_tokens_details.reasoning_tokens");
            json_decref(answer), json_decref(one);
        }
        assert_true((n_reasoning > 0) == ((c->wanted & HAS_REASONING) != 0));
        check_together(c, "none", alone, n_tokens, n_reasoning);
        check_together(c, "ngram-trie", alone, n_tokens, n_reasoning);
        json_decref(alone);
    }
}

/* Ids of calls are distinct, also between choices. */
static void calls_of_all_choices_have_ids_of_their_own(void **state) {
    (void)state;
    char body[2400];
    const char *ids[N];
    make_body(body, sizeof body, &cases[5], N, SEED, "none", false);
    json_t *answer = serve_json(&server, "/v1/chat/completions", 200, body);
    for (int i = 0; i < N; i++) {
        char path[64];
        snprintf(path, sizeof path, "choices.%d.message.tool_calls.0.id", i);
        ids[i] = json_text_at(answer, path);
        for (int k = 0; k < i; k++) assert_string_not_equal(ids[i], ids[k]);
    }
    json_decref(answer);
}

/* ---- tokens of reasoning
 * ------------------------------------------------------------------------------------------------ */

/* Counted naively: the first tokens whose text has the whole mark. */
static json_int_t count_naively(const json_t *ids, const char *mark) {
    for (size_t n = 1; n <= json_array_size(ids); n++) {
        json_t *first = json_array();
        for (size_t i = 0; i < n; i++) json_array_append(first, json_array_get(ids, i));
        json_t *request = json_pack("{s:s, s:o}", "model", "ponderer", "tokens", first);
        char *body = json_dumps(request, 0);
        json_t *text = serve_json(&server, "/detokenize", 200, body);
        bool found = strstr(json_text_at(text, "content"), mark) != NULL;
        json_decref(request), json_decref(text);
        free(body);
        if (found) return (json_int_t)n;
    }
    return (json_int_t)json_array_size(ids); /* it has not ended */
}

static void tokens_of_reasoning_are_counted(void **state) {
    (void)state;
    static const char chat[] =
        "{\"model\": \"ponderer\", \"messages\": [{\"role\": \"user\", \"content\": \"A dog\"}], "
        "\"max_tokens\": %d, \"seed\": 5, \"return_tokens\": true, \"draft\": \"%s\"" REASONING "}",
                      response[] = "{\"model\": \"ponderer\", \"input\": \"A dog\", \"max_output_tokens\": %d, "
                                   "\"seed\": 5, \"draft\": \"%s\"" REASONING ", \"stream\": %s}";
    static const char *const drafts[] = {"none", "ngram-trie"};
    static const int lengths[] = {100, 12, 2};
    for (int i = 0; i < 6; i++) {
        char body[1000];
        snprintf(body, sizeof body, chat, lengths[i / 2], drafts[i % 2]);
        json_t *answer = serve_json(&server, "/v1/chat/completions", 200, body);
        json_int_t n = json_int_at(answer, "usage.completion_tokens_details.reasoning_tokens"),
                   n_all = json_int_at(answer, "usage.completion_tokens");
        const char *reasoning = json_string_value(json_at(answer, "choices.0.message.reasoning_content"));
        if (reasoning) assert_int_equal(n, count_naively(json_at(answer, "choices.0.tokens"), "</think>"));
        else assert_int_equal(n, 0); /* cut before the mark was whole */
        if (i < 2) assert_true(n > 0 && n < n_all);
        snprintf(body, sizeof body, response, lengths[i / 2], drafts[i % 2], "false");
        json_t *whole = serve_json(&server, "/v1/responses", 200, body);
        assert_int_equal(json_int_at(whole, "usage.output_tokens_details.reasoning_tokens"), n);
        snprintf(body, sizeof body, response, lengths[i / 2], drafts[i % 2], "true");
        Answer a = serve_post(&server, "/v1/responses", body);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "\"reasoning_tokens\":%d}", (int)n);
        assert_non_null(strstr(a.body, wanted));
        answer_free(&a);
        json_decref(answer), json_decref(whole);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_choice_equals_a_request_for_it),
        cmocka_unit_test(calls_of_all_choices_have_ids_of_their_own),
        cmocka_unit_test(tokens_of_reasoning_are_counted),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
