/* test_serve_reasoning.c - reasoning between the marks of templates other than <think> and </think>: it is separated
 * from the text, bounded, and continued. */
#include "serve_rig.h"

#include "random_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STORY "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a boat.\"}]"

/* Starts a server for the shipped weights with two other templates: `magistral` marks reasoning as Mistral's models do,
 * and `harmony` as gpt-oss does. Both begin it. */
static void start_other_marks(ServeRig *s) {
    static const char *const names[] = {"magistral", "harmony"}, *const begins[] = {"[THINK]",
                                                                                    "<|channel|>analysis<|message|>"};
    char text[400], path[2][700], args[2000];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/reasoning-%s.gguf", serve_rig_folder(), names[i]);
        snprintf(text, sizeof text,
                 "{%% for m in messages %%}{{ m.role }}: {{ m.content }} {%% endfor %%}"
                 "{%% if add_generation_prompt %%}bot: %s{%% endif -%%}",
                 begins[i]);
        serve_write_model(path[i], text);
    }
    snprintf(args, sizeof args,
             "-t 2 -c 256 --tree-budget 8 --draft ngram-trie --draft suffix -m magistral=%s "
             "-m harmony=%s",
             path[0], path[1]);
    serve_start(s, args);
}

/* A budget closes the reasoning by the template's own mark, and the text is the same with and without drafts. */
static void budgets_close_reasoning_by_the_marks_of_the_template(void **state) {
    (void)state;
    static const char *const models[] = {"magistral", "harmony"};
    ServeRig s;
    start_other_marks(&s);
    for (int i = 0; i < 2; i++) {
        char body[600], schema[600];
        json_t *answers[2];
        for (int k = 0; k < 2; k++) {
            snprintf(body, sizeof body,
                     "{\"model\": \"%s\", \"max_tokens\": 60, \"temperature\": 0, \"reasoning_budget_tokens\": 7, "
                     "%s" STORY "}",
                     models[i], k ? "\"draft\": \"none\", " : "");
            answers[k] = serve_json(&s, "/v1/chat/completions", 200, body);
        }
        const char *reasoning = json_text_at(answers[0], "choices.0.message.reasoning_content"),
                   *text = json_text_at(answers[0], "choices.0.message.content");
        assert_true(strlen(reasoning) > 0 && strlen(text) > 0);
        assert_null(strstr(text, "[/THINK]"));
        assert_null(strstr(text, "<|"));
        assert_string_equal(json_text_at(answers[1], "choices.0.message.reasoning_content"), reasoning);
        assert_string_equal(json_text_at(answers[1], "choices.0.message.content"), text);
        assert_true(json_int_at(answers[0], "usage.completion_tokens_details.accepted_prediction_tokens") > 0);
        snprintf(schema, sizeof schema,
                 "{\"model\": \"%s\", \"max_tokens\": 60, \"temperature\": 0, \"reasoning_budget_tokens\": 7, "
                 "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"n\", \"schema\": "
                 "{\"enum\": [\"yes\", \"no\"]}}}, " STORY "}",
                 models[i]);
        json_t *held = serve_json(&s, "/v1/chat/completions", 200, schema);
        assert_string_equal(json_text_at(held, "choices.0.message.reasoning_content"), reasoning);
        const char *word = json_text_at(held, "choices.0.message.content");
        assert_true(strcmp(word, "\"yes\"") == 0 || strcmp(word, "\"no\"") == 0);
        json_decref(held), json_decref(answers[0]), json_decref(answers[1]);
    }
    assert_int_equal(serve_stop(&s), 0);
}

/* Control tokens have no text in an answer, but the server recognizes them as marks of reasoning. */
static void marks_may_be_control_tokens(void **state) {
    (void)state;
    static const char *const names[] = {"<|channel|>",   "<|message|>", "<|start|>", "<|end|>",
                                        "<|constrain|>", "<|return|>",  "<|call|>"};
    const RandomModel m = {
        SMALL_LLAMA,
        .n_vocab = 300,
        .controls = names,
        .n_controls = 7,
        .chat_template = "{% if tools %}t{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
                         "{% if add_generation_prompt %}<|channel|>analysis<|message|>{% endif -%}",
        .seed = 5};
    char path[700], args[800];
    fr_error err;
    ServeRig s;
    snprintf(path, sizeof path, "%s/reasoning-controls.gguf", serve_rig_folder());
    assert_int_equal(random_model_write(&m, path, &err), FR_OK);
    snprintf(args, sizeof args, "-t 1 -c 512 -m %s", path);
    serve_start(&s, args);
    json_t *j = serve_json(
        &s, "/v1/chat/completions", 200,
        "{\"max_tokens\": 50, \"temperature\": 0, \"ignore_eos\": true, "
        "\"reasoning_budget_tokens\": 4, \"messages\": [{\"role\": \"user\", \"content\": \"tea\"}]}");
    const char *reasoning = json_text_at(j, "choices.0.message.reasoning_content"),
               *text = json_text_at(j, "choices.0.message.content");
    assert_true(strlen(reasoning) > 0 && strlen(text) > 0);
    assert_null(strstr(reasoning, "assistant"));
    assert_null(strstr(text, "final"));
    assert_in_range(json_int_at(j, "usage.completion_tokens_details.reasoning_tokens"), 5, 30);
    json_decref(j);
    j = serve_json(
        &s, "/v1/chat/completions", 200,
        "{\"max_tokens\": 400, \"seed\": 1, \"reasoning_budget_tokens\": 4, \"tool_choice\": \"required\", "
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": {\"a\": {\"const\": 1}}, \"required\": [\"a\"], \"additionalProperties\": "
        "false}}}], \"messages\": [{\"role\": \"user\", \"content\": \"tea\"}]}");
    assert_string_equal(json_text_at(j, "choices.0.message.tool_calls.0.function.name"), "f");
    assert_non_null(strchr(json_text_at(j, "choices.0.message.tool_calls.0.function.arguments"), '1'));
    assert_string_equal(json_text_at(j, "choices.0.finish_reason"), "tool_calls");
    assert_true(json_is_null(json_at(j, "choices.0.message.content")));
    json_decref(j);
    assert_int_equal(serve_stop(&s), 0);
}

/* A begun answer has its reasoning between the marks of the template. */
static void a_begun_answer_has_the_marks_of_the_template(void **state) {
    (void)state;
    static const struct {
        const char *model, *end;
    } cases[] = {{"magistral", "bot: [THINK]So it is.[/THINK]The end"},
                 {"harmony", "bot: <|channel|>analysis<|message|>So it is.<|end|><|start|>assistant<|channel|>final"
                             "<|message|>The end"}};
    ServeRig s;
    start_other_marks(&s);
    for (int i = 0; i < 2; i++) {
        char body[600];
        snprintf(body, sizeof body,
                 "{\"model\": \"%s\", \"max_tokens\": 4, \"verbose\": true, \"continue_final_message\": true, "
                 "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
                 "\"reasoning_content\": \"So it is.\", \"content\": \"The end\"}]}",
                 cases[i].model);
        json_t *j = serve_json(&s, "/v1/chat/completions", 200, body);
        const char *prompt = json_text_at(j, "__verbose.prompt");
        size_t n = strlen(prompt), n_end = strlen(cases[i].end);
        if (n < n_end || strcmp(prompt + n - n_end, cases[i].end) != 0) fail_msg("%s", prompt);
        json_decref(j);
    }
    json_t *show = serve_json(&s, "/api/show", 200, "{\"model\": \"harmony\"}");
    char *all = json_dumps(json_at(show, "capabilities"), JSON_COMPACT);
    assert_non_null(strstr(all, "thinking"));
    free(all);
    json_decref(show);
    assert_int_equal(serve_stop(&s), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets_close_reasoning_by_the_marks_of_the_template),
        cmocka_unit_test(marks_may_be_control_tokens),
        cmocka_unit_test(a_begun_answer_has_the_marks_of_the_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
