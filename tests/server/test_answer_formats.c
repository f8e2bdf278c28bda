/* test_answer_formats.c - tool calls and reasoning in answers and events of the APIs, for texts that no shipped model
 * writes: the formats get a call whose tokens are pieces of such a text, cut at every place. */
#include "serve_rig.h"

#include "server/api/answers.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char written[] = "<think>Hm.</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": "
                              "{\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>{\"name\": \"time\"}</tool_call>";

typedef struct Rig {
    ServedModel model;
    Answers answers;
    AnswerReader reader;
    ReasoningCount reasoning;
    ApiCall call;
    Choice choice;
    GenerationResult result;
    int32_t prompt[3];
} Rig;

static void rig_begin(Rig *r, const Endpoint *endpoint) {
    *r = (Rig){.model.name = "target"};
    r->answers = (Answers){.form = {.tools = tool_form_of("chatml"), .reasons = true},
                           .readers = &r->reader,
                           .reasoning = &r->reasoning,
                           .n_readers = 1};
    answer_reader_init(&r->reader, &r->answers.form);
    r->call =
        (ApiCall){.endpoint = endpoint, .own = &r->answers, .choices = &r->choice, .n_choices = 1, .id = "id-abcdef"};
    r->call.plan = (Plan){.model = &r->model, .prompts = {{.tokens = r->prompt, .n = 3}}, .n_prompts = 1, .n = 1};
    r->result.finish = FR_FINISH_EOS;
    r->choice = (Choice){.call = &r->call, .result = &r->result};
}

static TokenBatch piece(const char *text, size_t n) {
    TokenBatch b = {.text.max_bytes = 1 << 16};
    TokenRecord token = {.token = 1, .n_text = (uint32_t)n};
    assert_true(token_batch_append(&b, &token, text, NULL));
    return b;
}

/* Returns the events of the text in two pieces. */
static char *stream(const Endpoint *endpoint, const char *text, size_t cut) {
    Rig r;
    Buf out = {.max_bytes = 1 << 20};
    rig_begin(&r, endpoint);
    r.call.n_running = 1;
    endpoint->format->begin_stream(&out, &r.call);
    TokenBatch first = piece(text, cut), second = piece(text + cut, strlen(text) - cut);
    endpoint->format->stream_text(&out, &r.call, &r.choice, &first);
    endpoint->format->stream_text(&out, &r.call, &r.choice, &second);
    r.call.n_running = 0;
    endpoint->format->end_choice(&out, &r.call, &r.choice);
    if (endpoint->format->end_stream) endpoint->format->end_stream(&out, &r.call);
    token_batch_free(&first), token_batch_free(&second);
    answer_reader_free(&r.reader);
    return out.data;
}

static json_t *answer(const Endpoint *endpoint, const char *text, fr_finish finish) {
    Rig r;
    Buf buf = {.max_bytes = 1 << 20};
    json_error_t why;
    rig_begin(&r, endpoint);
    r.result.finish = finish;
    TokenBatch all = piece(text, strlen(text));
    assert_true(endpoint->format->keep(&r.choice, &all));
    JsonOut out = json_out_begin(&buf);
    endpoint->format->write_answer(&out, &r.call);
    assert_false(out.failed);
    json_t *json = json_loads(buf.data, 0, &why);
    if (!json) fail_msg("%s: %s", why.text, buf.data);
    token_batch_free(&all);
    answer_reader_free(&r.reader);
    buf_free(&buf);
    return json;
}

/* Collects the values at `path` in all events, one after the other. */
static void check_streamed(char *events, const char *path, const char *wanted) {
    Answer a = {.body = events};
    char *text = serve_stream_text(&a, path);
    if (strcmp(text, wanted) != 0) fail_msg("%s: '%s' instead of '%s' in\n%s", path, text, wanted, events);
    free(text);
}

static void check_text(const json_t *json, const char *path, const char *wanted) {
    assert_string_equal(json_text_at(json, path), wanted);
}

static void chat_completions(void **state) {
    (void)state;
    const Endpoint *e = chat_completions_endpoints;
    json_t *j = answer(e, written, FR_FINISH_EOS);
    check_text(j, "choices.0.message.content", "Let me look.");
    check_text(j, "choices.0.message.reasoning_content", "Hm.");
    check_text(j, "choices.0.message.tool_calls.0.type", "function");
    check_text(j, "choices.0.message.tool_calls.0.function.name", "weather");
    check_text(j, "choices.0.message.tool_calls.0.function.arguments", "{\"city\": \"Rome\"}");
    check_text(j, "choices.0.message.tool_calls.1.function.name", "time");
    check_text(j, "choices.0.message.tool_calls.1.function.arguments", "{}");
    assert_string_not_equal(json_text_at(j, "choices.0.message.tool_calls.0.id"),
                            json_text_at(j, "choices.0.message.tool_calls.1.id"));
    check_text(j, "choices.0.finish_reason", "tool_calls");
    json_decref(j);
    j = answer(e, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"", FR_FINISH_LENGTH);
    assert_true(json_is_null(json_at(j, "choices.0.message.content")));
    check_text(j, "choices.0.finish_reason", "length");
    json_decref(j);
    for (size_t cut = 0; cut < sizeof written; cut++) {
        char *events = stream(e, written, cut);
        check_streamed(events, "choices.0.delta.content", "Let me look.");
        check_streamed(events, "choices.0.delta.reasoning_content", "Hm.");
        check_streamed(events, "choices.0.delta.tool_calls.0.function.name", "weathertime");
        check_streamed(events, "choices.0.delta.tool_calls.0.function.arguments", "{\"city\": \"Rome\"}{}");
        check_streamed(events, "choices.0.finish_reason", "tool_calls");
        free(events);
    }
}

static void messages(void **state) {
    (void)state;
    const Endpoint *e = messages_endpoints;
    json_t *j = answer(e, written, FR_FINISH_EOS);
    check_text(j, "content.0.type", "thinking");
    check_text(j, "content.0.thinking", "Hm.");
    check_text(j, "content.1.text", "Let me look.");
    check_text(j, "content.2.type", "tool_use");
    check_text(j, "content.2.name", "weather");
    check_text(j, "content.2.input.city", "Rome");
    assert_int_equal(json_object_size(json_at(j, "content.3.input")), 0);
    check_text(j, "stop_reason", "tool_use");
    json_decref(j);
    for (size_t cut = 0; cut < sizeof written; cut++) {
        char *events = stream(e, written, cut);
        check_streamed(events, "delta.thinking", "Hm.");
        check_streamed(events, "delta.text", "Let me look.");
        check_streamed(events, "content_block.name", "weathertime");
        check_streamed(events, "content_block.type", "thinkingtexttool_usetool_use");
        check_streamed(events, "delta.partial_json", "{\"city\": \"Rome\"}{}");
        check_streamed(events, "delta.stop_reason", "tool_use");
        free(events);
    }
}

static void responses(void **state) {
    (void)state;
    const Endpoint *e = responses_endpoints;
    json_t *j = answer(e, written, FR_FINISH_EOS);
    check_text(j, "status", "completed");
    check_text(j, "output.0.type", "reasoning");
    check_text(j, "output.0.content.0.text", "Hm.");
    check_text(j, "output.1.content.0.text", "Let me look.");
    check_text(j, "output.2.type", "function_call");
    check_text(j, "output.2.name", "weather");
    check_text(j, "output.2.arguments", "{\"city\": \"Rome\"}");
    check_text(j, "output.3.arguments", "{}");
    json_decref(j);
    j = answer(e, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"", FR_FINISH_LENGTH);
    check_text(j, "status", "incomplete");
    check_text(j, "incomplete_details.reason", "max_output_tokens");
    check_text(j, "output.0.status", "incomplete");
    json_decref(j);
    for (size_t cut = 0; cut < sizeof written; cut++) {
        char *events = stream(e, written, cut);
        check_streamed(events, "delta", "Hm.Let me look.{\"city\": \"Rome\"}{}");
        check_streamed(events, "text", "Hm.Let me look.");
        check_streamed(events, "arguments", "{\"city\": \"Rome\"}{}");
        check_streamed(events, "part.text", "Hm.Let me look.");
        const char *delta = strstr(events, "event: response.function_call_arguments.delta\n");
        assert_non_null(delta);
        assert_true(strstr(delta, "\"delta\":") < strstr(delta, "\n\n"));
        check_streamed(events, "item.name", "weatherweathertimetime");
        check_streamed(events, "response.status", "in_progressin_progresscompleted");
        free(events);
    }
}

/* Marks that are control tokens have no text; the reader gets their spelling, after the text before them. */
static void marks_without_text(void **state) {
    (void)state;
    Rig r;
    TokenBatch b = {.text.max_bytes = 1 << 16};
    static const char arguments[] = "{\"a\": 1}";
    const TokenRecord tokens[] = {{.token = 5, .n_text = 3},
                                  {.token = 7},
                                  {.token = 6, .n_text = 1},
                                  {.token = 8},
                                  {.token = 9, .n_text = sizeof arguments - 1}};
    const char *const texts[] = {"Hm.", "", "f", "", arguments};
    rig_begin(&r, chat_completions_endpoints);
    r.answers.form = (AnswerForm){.tools = tool_form_of("mistral")};
    r.answers.n_hidden = 2;
    r.answers.hidden[0].token = 7, r.answers.hidden[0].mark = "[TOOL_CALLS]";
    r.answers.hidden[1].token = 8, r.answers.hidden[1].mark = "[ARGS]";
    answer_reader_init(&r.reader, &r.answers.form);
    for (int i = 0; i < 5; i++) assert_true(token_batch_append(&b, &tokens[i], texts[i], NULL));
    assert_true(answers_feed(&r.choice, &b, NULL, NULL) && answers_end(&r.choice, NULL, NULL));
    assert_int_equal(answers_count_reasoning(&r.call), 0);
    assert_int_equal(r.reader.n_items, 2);
    assert_string_equal(r.reader.items[0].text.data, "Hm.");
    assert_string_equal(r.reader.items[1].name, "f");
    assert_string_equal(r.reader.items[1].text.data, arguments);
    token_batch_free(&b);
    answer_reader_free(&r.reader);
}

/* Tokens up to the one with the last byte of the mark, which may be a token without text. */
static void tokens_of_reasoning_are_counted(void **state) {
    (void)state;
    static const char *const texts[][6] = {
        {"<th", "ink>", "Hm. <", "/think>\n", "Yes", NULL}, /* the mark is cut, and text follows in its last token */
        {"<think>", "Hm.", "</think>", "", "Yes", NULL},    /* a token without text after it is not reasoning */
        {"<think>", "Hm.", "", " So", NULL},                /* it has not ended */
        {"\n", "<th", "e end", NULL},                       /* it has not begun */
        {"*", "Hm.", "", "+", "Yes", NULL},                 /* the marks are control tokens */
    };
    static const int64_t wanted[] = {4, 3, 4, 0, 4};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        for (size_t n_first = 0; texts[i][n_first]; n_first++) {
            Rig r;
            TokenBatch batches[2] = {{.text.max_bytes = 1 << 16}, {.text.max_bytes = 1 << 16}};
            rig_begin(&r, chat_completions_endpoints);
            r.answers.n_hidden = 2;
            r.answers.hidden[0].token = '*', r.answers.hidden[0].mark = "<think>";
            r.answers.hidden[1].token = '+', r.answers.hidden[1].mark = "</think>";
            for (size_t k = 0; texts[i][k]; k++) {
                bool is_mark = strchr("*+", *texts[i][k]) && *texts[i][k];
                const TokenRecord token = {.token = is_mark ? *texts[i][k] : 1,
                                           .n_text = is_mark ? 0 : (uint32_t)strlen(texts[i][k])};
                assert_true(token_batch_append(&batches[k >= n_first], &token, texts[i][k], NULL));
            }
            for (int k = 0; k < 2; k++) assert_true(answers_feed(&r.choice, &batches[k], NULL, NULL));
            assert_true(answers_end(&r.choice, NULL, NULL));
            if (answers_count_reasoning(&r.call) != wanted[i])
                fail_msg("case %zu: %d tokens", i, (int)answers_count_reasoning(&r.call));
            for (int k = 0; k < 2; k++) token_batch_free(&batches[k]);
            answer_reader_free(&r.reader);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_completions),
        cmocka_unit_test(messages),
        cmocka_unit_test(responses),
        cmocka_unit_test(marks_without_text),
        cmocka_unit_test(tokens_of_reasoning_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
