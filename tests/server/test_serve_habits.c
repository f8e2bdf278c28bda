/* test_serve_habits.c - what clients of vLLM, SGLang, Ollama and Anthropic send by habit, and what they expect of HTTP,
 * beyond the requests that other tests cover.
 *
 * Besides the shipped model there is `thinker`, the same weights with a template that begins reasoning. */
#include "serve_rig.h"

#include "random_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ServeRig server;

static int start(void **state) {
    (void)state;
    serve_start_with_thinker(&server, "habits-thinker.gguf", SERVE_THINKER, "--parallel 4");
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&server);
}

#define STORY "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a boat.\"}]"

/* Sends a body that lacks its last brace, with one more field. Returns the answer, which the caller releases. */
static json_t *send_field(const char *path, int status, const char *body, const char *field) {
    char whole[2000];
    snprintf(whole, sizeof whole, "%s, %s}", body, field);
    return serve_json(&server, path, status, whole);
}

static void values_that_ask_for_nothing_are_accepted(void **state) {
    (void)state;
    static const char chat[] = "/v1/chat/completions", chat_body[] = "{\"max_tokens\": 1, " STORY,
                      text[] = "/v1/completions", text_body[] = "{\"max_tokens\": 1, \"prompt\": \"x\"",
                      ollama[] = "/api/generate",
                      ollama_body[] = "{\"stream\": false, \"prompt\": \"x\", \"options\": {\"num_predict\": 1}";
    static const struct {
        const char *path, *body, *field;
    } cases[] = {
        {chat, chat_body, "\"truncation_side\": \"left\", \"session_id\": \"s\", \"stream_interval\": 4"},
        {chat, chat_body, "\"routed_experts_prompt_start\": 0, \"return_mm_kwargs\": true, \"watermarking\": false"},
        {chat, chat_body, "\"separate_reasoning\": true, \"stream_reasoning\": true, \"rid\": \"r\""},
        {chat, chat_body, "\"add_special_tokens\": false, \"best_of\": 1"},
        {text, text_body, "\"add_special_tokens\": true, \"best_of\": 2, \"n\": 2"},
        {text, text_body, "\"thinking_token_budget\": -1, \"preserved_tokens\": []"},
        {text, text_body, "\"min_tokens\": 1, \"ignore_eos\": true"}, /* as benchmarks ask for a length */
        {text, text_body, "\"stream_options\": {\"include_usage\": null, \"include_obfuscation\": true}"},
        {"/v1/responses", "{\"max_output_tokens\": 1, \"input\": \"x\"",
         "\"include\": [\"reasoning.encrypted_content\"], \"max_tool_calls\": 4, \"moderation\": null"},
        {"/v1/messages", "{\"max_tokens\": 1, " STORY,
         "\"diagnostics\": {\"previous_message_id\": null}, \"user_profile_id\": \"u\", \"workspace_id\": \"w\", "
         "\"thinking\": {\"type\": \"adaptive\", \"display\": null}, \"output_config\": {\"task_budget\": null}"},
        {"/v1/messages", "{\"max_tokens\": 1, " STORY,
         "\"stream_options\": {\"include_usage\": true}, \"fallbacks\": \"default\", \"fallback_credit_token\": \"t\", "
         "\"billing_policy\": {\"type\": \"x\"}, \"output_format\": null"},
        {"/v1/responses", "{\"max_output_tokens\": 1, \"input\": \"x\"",
         "\"access_programs\": {}, \"background\": false"},
        {ollama, ollama_body, "\"width\": 0, \"height\": 0, \"steps\": 0, \"logprobs\": false"},
        {"/v1/embeddings", "{\"input\": \"x\"",
         "\"normalize\": true, \"embed_dtype\": \"float32\", \"endianness\": \"native\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = send_field(cases[i].path, 200, cases[i].body, cases[i].field);
        if (json_at(j, "warnings")) fail_msg("%s: %s", cases[i].path, cases[i].field);
        json_decref(j);
    }
    json_t *j = serve_json(
        &server, ollama, 200,
        "{\"stream\": false, \"prompt\": \"x\", \"options\": {\"num_predict\": 1, \"temperature\": 0, \"logits_all\": "
        "true, \"embedding_only\": false}}");
    assert_int_equal(json_int_at(j, "eval_count"), 1);
    json_decref(j);
}

/* Advice that cannot be followed is reported. */
static void advice_without_effect_is_reported(void **state) {
    (void)state;
    json_t *j = send_field("/v1/messages", 200, "{\"max_tokens\": 1, " STORY,
                           "\"output_config\": {\"task_budget\": {\"type\": \"tokens\", \"total\": 20000}}");
    assert_non_null(strstr(json_text_at(j, "warnings.0"), "task_budget"));
    json_decref(j);
    j = send_field("/v1/chat/completions", 200, "{\"max_tokens\": 1, " STORY, "\"add_special_tokens\": true");
    assert_non_null(strstr(json_text_at(j, "warnings.0"), "add_special_tokens"));
    json_decref(j);
    static const char *const fields[] = {"\"preserved_tokens\": [\"<x>\"]", "\"extra_key\": \"k\"",
                                         "\"moderation\": {\"model\": \"m\"}"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char name[40];
        snprintf(name, sizeof name, "%.*s", (int)(strchr(fields[i] + 1, '"') - fields[i] - 1), fields[i] + 1);
        j = send_field("/v1/chat/completions", 200, "{\"max_tokens\": 1, " STORY, fields[i]);
        assert_non_null(strstr(json_text_at(j, "warnings.0"), name));
        json_decref(j);
    }
}

static void values_that_change_the_answer_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *param;
    } cases[] = {
        {"/v1/completions", "{\"prompt\": \"x\", \"best_of\": 2}", "best_of"},
        {"/v1/completions", "{\"prompt\": \"x\", \"thinking_token_budget\": 8}", "thinking_token_budget"},
        {"/v1/completions", "{\"prompt\": \"x\", \"n\": 2, \"best_of\": 1}", "best_of"},
        {"/v1/completions", "{\"prompt\": \"x\", \"min_tokens\": 4}", "min_tokens"},
        {"/v1/completions", "{\"prompt\": \"x\", \"min_tokens\": 4, \"ignore_eos\": true, \"stop\": \"a\"}",
         "min_tokens"},
        {"/v1/completions", "{\"prompt\": \"x\", \"add_special_tokens\": 1}", "add_special_tokens"},
        {"/v1/chat/completions", "{\"separate_reasoning\": false, " STORY "}", "separate_reasoning"},
        {"/v1/chat/completions", "{\"routed_experts_prompt_start\": 1, " STORY "}", "routed_experts_prompt_start"},
        {"/v1/chat/completions",
         "{\"stream\": true, \"stream_options\": {\"continuous_usage_stats\": \"often\"}, " STORY "}",
         "stream_options"},
        {"/v1/chat/completions", "{\"stream\": true, \"stream_options\": {\"includes_usage\": true}, " STORY "}",
         "stream_options"},
        {"/v1/embeddings", "{\"input\": \"x\", \"normalize\": false}", "normalize"},
        {"/v1/embeddings", "{\"input\": \"x\", \"embed_dtype\": \"float16\"}", "embed_dtype"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = serve_json(&server, cases[i].path, 400, cases[i].body);
        assert_string_equal(json_text_at(j, "error.param"), cases[i].param);
        json_decref(j);
    }
    static const char *const of_ollama[] = {
        "{\"prompt\": \"x\", \"width\": 512}", "{\"prompt\": \"x\", \"logprobs\": 1}",
        "{\"prompt\": \"x\", \"top_logprobs\": 3}", "{\"prompt\": \"x\", \"logprobs\": true, \"top_logprobs\": 21}"};
    for (size_t i = 0; i < sizeof of_ollama / sizeof *of_ollama; i++)
        json_decref(serve_json(&server, "/api/generate", 400, of_ollama[i]));
    json_decref(serve_json(&server, "/v1/messages", 400,
                           "{\"max_tokens\": 1, \"thinking\": {\"type\": \"adaptive\", \"display\": \"all\"}, " STORY
                           "}"));
}

/* A text of /v1/completions begins with BOS unless the client says otherwise; without BOS it has the tokens of
 * llama.cpp's /tokenize. */
static void a_text_may_begin_without_bos(void **state) {
    (void)state;
    json_t *ids = serve_json(&server, "/tokenize", 200, "{\"content\": \"Once upon a time\"}"), *with_ids;
    char *list = json_dumps(json_at(ids, "tokens"), JSON_COMPACT), body[600];
    snprintf(body, sizeof body, "{\"prompt\": %s, \"max_tokens\": 12, \"temperature\": 0}", list);
    with_ids = serve_json(&server, "/v1/completions", 200, body);
    json_t *bare = serve_json(&server, "/v1/completions", 200,
                              "{\"prompt\": \"Once upon a time\", \"max_tokens\": 12, \"temperature\": 0, "
                              "\"add_special_tokens\": false}"),
           *usual = serve_json(&server, "/v1/completions", 200,
                               "{\"prompt\": \"Once upon a time\", \"max_tokens\": 12, \"temperature\": 0}");
    assert_string_equal(json_text_at(bare, "choices.0.text"), json_text_at(with_ids, "choices.0.text"));
    assert_int_equal(json_int_at(bare, "usage.prompt_tokens") + 1, json_int_at(usual, "usage.prompt_tokens"));
    free(list);
    json_decref(ids), json_decref(with_ids), json_decref(bare), json_decref(usual);
}

/* Clients for role play end a text before each of many names. */
static void stops_may_be_many(void **state) {
    (void)state;
    static const char *const fields[][2] = {{"/v1/completions", "\"prompt\": \"Once upon a time\", \"stop\""},
                                            {"/v1/messages", STORY ", \"stop_sequences\""}};
    for (int i = 0; i < 2; i++)
        for (int n = 64; n <= 65; n++) {
            char body[3000];
            int at = snprintf(body, sizeof body, "{\"max_tokens\": 40, \"temperature\": 0, %s: [", fields[i][1]);
            for (int k = 1; k < n; k++) at += snprintf(body + at, sizeof body - (size_t)at, "\"\\nName %d:\", ", k);
            snprintf(body + at, sizeof body - (size_t)at, "\"e\"]}");
            json_t *j = serve_json(&server, fields[i][0], n == 64 ? 200 : 400, body);
            if (n == 64 && i == 0) assert_string_equal(json_text_at(j, "choices.0.finish_reason"), "stop");
            if (n == 64 && i == 1) assert_string_equal(json_text_at(j, "stop_sequence"), "e");
            json_decref(j);
        }
}

/* continuous_usage_stats: each event has the usage so far, which rises to that of the whole answer. */
static void events_have_the_usage_so_far(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
    } cases[] = {{"/v1/chat/completions", STORY}, {"/v1/completions", "\"prompt\": \"Once upon a time\""}};
    for (int i = 0; i < 2; i++) {
        char body[600];
        json_int_t last = 0;
        int n_events = 0;
        snprintf(body, sizeof body,
                 "{\"stream\": true, \"max_tokens\": 9, \"temperature\": 0, \"stream_options\": {\"include_usage\": "
                 "true, \"continuous_usage_stats\": true}, %s}",
                 cases[i].body);
        Answer a = serve_post(&server, cases[i].path, body);
        for (const char *at = a.body; (at = strstr(at, "data: {")); at++, n_events++) {
            json_t *j = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
            assert_true(json_int_at(j, "usage.prompt_tokens") > 0);
            assert_true(json_int_at(j, "usage.completion_tokens") >= last);
            last = json_int_at(j, "usage.completion_tokens");
            json_decref(j);
        }
        assert_int_equal(last, 9);
        assert_true(n_events >= 4); /* the first one, at least one step, the last one, and that of the usage */
        answer_free(&a);
    }
}

/* Ollama's log-probabilities are those of a chat, streamed and not. */
static void ollama_has_log_probabilities(void **state) {
    (void)state;
    json_t *chat = serve_json(&server, "/v1/chat/completions", 200,
                              "{\"max_tokens\": 8, \"temperature\": 0, \"logprobs\": true, \"top_logprobs\": 2, " STORY
                              "}"),
           *whole = serve_json(&server, "/api/chat", 200,
                               "{\"stream\": false, \"logprobs\": true, \"top_logprobs\": 2, \"options\": "
                               "{\"num_predict\": 8, \"temperature\": 0, \"repeat_penalty\": 1}, " STORY "}");
    assert_true(json_equal(json_at(chat, "choices.0.logprobs.content"), json_at(whole, "logprobs")));
    Answer a = serve_post(&server, "/api/chat",
                          "{\"logprobs\": true, \"top_logprobs\": 2, \"options\": {\"num_predict\": 8, "
                          "\"temperature\": 0, \"repeat_penalty\": 1}, " STORY "}");
    json_t *streamed = json_array();
    for (const char *line = a.body; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        json_t *j = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
        json_array_extend(streamed, json_object_get(j, "logprobs"));
        json_decref(j);
    }
    assert_int_equal(json_array_size(streamed), 8);
    assert_true(json_equal(streamed, json_at(whole, "logprobs")));
    answer_free(&a);
    json_decref(streamed), json_decref(chat), json_decref(whole);
    json_t *raw = serve_json(&server, "/api/generate", 200,
                             "{\"prompt\": \"Once\", \"raw\": true, \"stream\": false, \"logprobs\": true, "
                             "\"options\": {\"num_predict\": 4, \"temperature\": 0}}");
    assert_int_equal(json_array_size(json_at(raw, "logprobs")), 4);
    assert_int_equal(json_array_size(json_at(raw, "logprobs.0.top_logprobs")), 0);
    json_decref(raw);
}

/* "display": "omitted": there is a block of reasoning, but its text is left out, and the rest is the same. */
static void the_text_of_reasoning_is_left_out(void **state) {
    (void)state;
    static const char body[] = "{\"model\": \"thinker\", \"max_tokens\": 24, \"temperature\": 0, " STORY;
    json_t *shown = send_field("/v1/messages", 200, body,
                               "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 6, \"display\": "
                               "\"summarized\"}"),
           *hidden = send_field("/v1/messages", 200, body,
                                "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 6, \"display\": "
                                "\"omitted\"}");
    assert_true(strlen(json_text_at(shown, "content.0.thinking")) > 0);
    assert_string_equal(json_text_at(hidden, "content.0.type"), "thinking");
    assert_string_equal(json_text_at(hidden, "content.0.thinking"), "");
    assert_string_equal(json_text_at(hidden, "content.1.text"), json_text_at(shown, "content.1.text"));
    char whole[1000];
    snprintf(whole, sizeof whole,
             "%s, \"stream\": true, \"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 6, \"display\": "
             "\"omitted\"}}",
             body);
    Answer a = serve_post(&server, "/v1/messages", whole);
    char *text = serve_stream_text(&a, "delta.text"), *thinking = serve_stream_text(&a, "delta.thinking");
    assert_string_equal(text, json_text_at(shown, "content.1.text"));
    assert_string_equal(thinking, "");
    assert_non_null(strstr(a.body, "\"type\":\"thinking\""));
    free(text), free(thinking);
    answer_free(&a);
    json_decref(shown), json_decref(hidden);
}

/* Texts may come as documents, as results of a search, and as refusals. The answers are those to the same texts. */
static void texts_come_in_many_blocks(void **state) {
    (void)state;
    static const char form[] = "{\"max_tokens\": 10, \"temperature\": 0, \"messages\": [%s]}";
    static const struct {
        const char *path, *text, *plain, *blocks;
    } cases[] = {
        {"/v1/messages", "content.0.text", "{\"role\": \"user\", \"content\": \"Tales\\nThe dog ran. Why?\"}",
         "{\"role\": \"user\", \"content\": [{\"type\": \"document\", \"title\": \"Tales\", \"context\": null, "
         "\"source\": "
         "{\"type\": \"text\", \"media_type\": \"text/plain\", \"data\": \"The dog ran.\"}}, {\"type\": \"text\", "
         "\"text\": \" Why?\"}]}"},
        {"/v1/messages", "content.0.text", "{\"role\": \"user\", \"content\": \"The dog ran. Why?\"}",
         "{\"role\": \"user\", \"content\": [{\"type\": \"document\", \"source\": {\"type\": \"content\", \"content\": "
         "[{\"type\": \"text\", \"text\": \"The dog \"}, {\"type\": \"text\", \"text\": \"ran.\"}]}}, {\"type\": "
         "\"text\", \"text\": \" Why?\"}]}"},
        {"/v1/messages", "content.0.text", "{\"role\": \"user\", \"content\": \"Tales\\nThe dog ran.\"}",
         "{\"role\": \"user\", \"content\": [{\"type\": \"search_result\", \"source\": \"s\", \"title\": \"Tales\", "
         "\"content\": [{\"type\": \"text\", \"text\": \"The dog ran.\"}]}]}"},
        {"/v1/chat/completions", "choices.0.message.content",
         "{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"No.\"}, {\"role\": "
         "\"user\", \"content\": \"Why?\"}",
         "{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": null, \"refusal\": "
         "\"No.\"}, {\"role\": \"user\", \"content\": \"Why?\"}"},
        {"/v1/chat/completions", "choices.0.message.content",
         "{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"No.\"}, {\"role\": "
         "\"user\", \"content\": \"Why?\"}",
         "{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": [{\"type\": \"refusal\", "
         "\"refusal\": \"No.\"}]}, {\"role\": \"user\", \"content\": \"Why?\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char plain[1000], blocks[1000];
        snprintf(plain, sizeof plain, form, cases[i].plain);
        snprintf(blocks, sizeof blocks, form, cases[i].blocks);
        json_t *want = serve_json(&server, cases[i].path, 200, plain),
               *got = serve_json(&server, cases[i].path, 200, blocks);
        if (strcmp(json_text_at(want, cases[i].text), json_text_at(got, cases[i].text)) != 0)
            fail_msg("%s: %s", blocks, json_text_at(got, cases[i].text));
        json_decref(want), json_decref(got);
    }
    static const char *const bad[] = {
        "{\"type\": \"document\", \"source\": {\"type\": \"base64\", \"data\": \"aGk=\"}}",
        "{\"type\": \"document\", \"source\": {\"type\": \"url\", \"url\": \"https://example.org\"}}",
        "{\"type\": \"document\"}", "{\"type\": \"search_result\", \"title\": \"x\"}", "{\"type\": \"image\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char message[300], body[1000];
        snprintf(message, sizeof message, "{\"role\": \"user\", \"content\": [%s]}", bad[i]);
        snprintf(body, sizeof body, form, message);
        json_decref(serve_json(&server, "/v1/messages", 400, body));
    }
}

/* Instructions may come after the first message. */
static void instructions_may_come_later(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/v1/messages/count_tokens", 200,
                           "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"system\", "
                           "\"content\": [{\"type\": \"text\", \"text\": \"Be brief.\"}]}, {\"role\": \"user\", "
                           "\"content\": \"Why?\"}]}"),
           *chat = serve_json(
               &server, "/v1/chat/completions", 200,
               "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": "
               "\"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"Why?\"}]}");
    assert_int_equal(json_int_at(j, "input_tokens"), json_int_at(chat, "usage.prompt_tokens"));
    json_decref(j), json_decref(chat);
}

/* Clients of Ollama fetch a model before they use it, and let models fill in text. */
static void ollama_fetches_and_fills_in(void **state) {
    (void)state;
    static const char *const changes[] = {"/api/push", "/api/create", "/api/copy"};
    const RandomModel m = {SMALL_LLAMA, .n_vocab = 300, .fill_marks = true, .seed = 5};
    char path[700], args[800];
    fr_error err;
    ServeRig s;
    json_t *j = serve_json(&server, "/api/pull", 200, "{\"model\": \"thinker:latest\"}");
    assert_string_equal(json_text_at(j, "status"), "success");
    json_decref(j);
    j = serve_json(&server, "/api/pull", 404, "{\"name\": \"other\"}");
    assert_non_null(strstr(json_text_at(j, "error"), "'other'"));
    json_decref(j);
    for (int i = 0; i < 3; i++) {
        j = serve_json(&server, changes[i], 501, "{\"model\": \"thinker\"}");
        assert_non_null(json_text_at(j, "error"));
        json_decref(j);
    }
    Answer a = serve_request(&server, "DELETE", "/api/delete", "", "{\"model\": \"thinker\"}");
    assert_int_equal(a.status, 501);
    answer_free(&a);
    json_decref(serve_json(&server, "/api/generate", 400, "{\"prompt\": \"a\", \"suffix\": \"b\"}"));
    snprintf(path, sizeof path, "%s/habits-filler.gguf", serve_rig_folder());
    assert_int_equal(random_model_write(&m, path, &err), FR_OK);
    snprintf(args, sizeof args, "-t 1 -c 128 -m %s", path);
    serve_start(&s, args);
    json_t *filled = serve_json(&s, "/infill", 200,
                                "{\"input_prefix\": \"tea\", \"input_suffix\": \"so\", \"temperature\": 0, "
                                "\"n_predict\": 8, \"ignore_eos\": true}"),
           *same = serve_json(&s, "/api/generate", 200,
                              "{\"prompt\": \"tea\", \"suffix\": \"so\", \"stream\": false, \"options\": "
                              "{\"temperature\": 0, \"repeat_penalty\": 1, \"num_predict\": 8, \"ignore_eos\": true}}");
    assert_string_equal(json_text_at(same, "response"), json_text_at(filled, "content"));
    json_decref(filled), json_decref(same);
    assert_int_equal(serve_stop(&s), 0);
}

static void refusals_of_http_say_what_is_wrong(void **state) {
    (void)state;
    static const struct {
        const char *method, *path, *headers, *body, *line, *header;
    } cases[] = {
        {"GET", "/v1/chat/completions", "", NULL, "HTTP/1.1 405 Method Not Allowed\r\n", "Allow: OPTIONS, POST\r\n"},
        {"DELETE", "/v1/models", "", NULL, "HTTP/1.1 405 Method Not Allowed\r\n", "Allow: OPTIONS, GET, HEAD\r\n"},
        {"POST", "/v1/models/target", "", "{}", "HTTP/1.1 405 ", "Allow: OPTIONS, GET, HEAD\r\n"},
        {"POST", "/v1/completions", "Content-Encoding: gzip\r\n", "x", "HTTP/1.1 415 Unsupported Media Type\r\n", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Answer a = serve_request(&server, cases[i].method, cases[i].path, cases[i].headers, cases[i].body);
        if (strncmp(a.head, cases[i].line, strlen(cases[i].line)) != 0 || !strstr(a.head, cases[i].header))
            fail_msg("%s %s: %s", cases[i].method, cases[i].path, a.head);
        answer_free(&a);
    }
}

/* Also where a path has no endpoint, an error has the form of its API. */
static void unknown_paths_have_the_errors_of_their_api(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/api/blobs/sha256:0", 404, "{}");
    assert_true(json_is_string(json_at(j, "error")));
    json_decref(j);
    j = serve_json(&server, "/v1/messages/batches", 404, "{}");
    assert_string_equal(json_text_at(j, "type"), "error");
    assert_string_equal(json_text_at(j, "error.type"), "not_found_error");
    json_decref(j);
    j = serve_json(&server, "/v1/moderations", 404, "{}");
    assert_string_equal(json_text_at(j, "error.code"), "not_found");
    json_decref(j);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_ask_for_nothing_are_accepted),
        cmocka_unit_test(advice_without_effect_is_reported),
        cmocka_unit_test(values_that_change_the_answer_are_refused),
        cmocka_unit_test(a_text_may_begin_without_bos),
        cmocka_unit_test(stops_may_be_many),
        cmocka_unit_test(events_have_the_usage_so_far),
        cmocka_unit_test(ollama_has_log_probabilities),
        cmocka_unit_test(the_text_of_reasoning_is_left_out),
        cmocka_unit_test(texts_come_in_many_blocks),
        cmocka_unit_test(instructions_may_come_later),
        cmocka_unit_test(ollama_fetches_and_fills_in),
        cmocka_unit_test(refusals_of_http_say_what_is_wrong),
        cmocka_unit_test(unknown_paths_have_the_errors_of_their_api),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
