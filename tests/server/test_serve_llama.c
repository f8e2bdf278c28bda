/* test_serve_llama.c - what llama.cpp's page, editors and benchmarks send to its server and read from it, beyond the
 * APIs that other tests cover.
 *
 * Besides the shipped model there is `thinker`, the same weights with a template that begins reasoning. */
#include "serve_rig.h"

#include "random_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ServeRig server;

static int start(void **state) {
    (void)state;
    serve_start_with_thinker(&server, "llama-thinker.gguf", SERVE_THINKER, "--parallel 3");
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&server);
}

#define STORY "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a boat.\"}]"

/* The text of an answer of /completion to a body without its closing brace; malloc'ed. */
static char *complete(const char *body) {
    char whole[3000];
    snprintf(whole, sizeof whole, "%s}", body);
    json_t *j = serve_json(&server, "/completion", 200, whole);
    char *text = strdup(json_text_at(j, "content"));
    json_decref(j);
    return text;
}

static void expect_equal_texts(const char *a, const char *b) {
    char *text_a = complete(a), *text_b = complete(b);
    if (strcmp(text_a, text_b) != 0 || !*text_a) fail_msg("%s: '%s'\n%s: '%s'", a, text_a, b, text_b);
    free(text_a), free(text_b);
}

/* llama.cpp's page reads the next prompt ahead in this way. */
static void a_prompt_is_read_without_an_answer(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/v1/chat/completions", 200, "{\"n_predict\": 0, \"stream\": false, " STORY "}"),
           *next = serve_json(&server, "/v1/chat/completions", 200, "{\"n_predict\": 2, " STORY "}");
    assert_string_equal(json_text_at(j, "choices.0.message.content"), "");
    assert_string_equal(json_text_at(j, "choices.0.finish_reason"), "length");
    assert_int_equal(json_int_at(j, "usage.completion_tokens"), 0);
    assert_int_equal(json_int_at(next, "usage.completion_tokens"), 2);
    assert_in_range(json_int_at(next, "usage.prompt_tokens_details.cached_tokens"),
                    json_int_at(j, "usage.prompt_tokens") - 1, json_int_at(j, "usage.prompt_tokens"));
    json_decref(j), json_decref(next);
    j = serve_json(&server, "/completion", 200, "{\"prompt\": \"Once\", \"n_predict\": 0}");
    assert_string_equal(json_text_at(j, "content"), "");
    assert_int_equal(json_int_at(j, "tokens_predicted"), 0);
    assert_int_equal(json_int_at(j, "generation_settings.n_predict"), 0);
    json_decref(j);
    Answer a = serve_post(&server, "/v1/chat/completions", "{\"n_predict\": 0, \"stream\": true, " STORY "}");
    char *text = serve_stream_text(&a, "choices.0.delta.content");
    assert_string_equal(text, "");
    assert_non_null(strstr(a.body, "[DONE]"));
    free(text);
    answer_free(&a);
}

static void the_number_of_tokens_has_llama_cpps_names(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
    } cases[] = {
        {"/v1/completions", "{\"ignore_eos\": true, \"prompt\": \"Once\", \"n_predict\": 5}"},
        {"/v1/completions", "{\"ignore_eos\": true, \"prompt\": \"Once\", \"max_completion_tokens\": 5}"},
        {"/v1/completions", "{\"ignore_eos\": true, \"prompt\": \"Once\", \"n_predict\": 5, \"max_tokens\": 9}"},
        {"/v1/chat/completions", "{\"ignore_eos\": true, \"n_predict\": 5, \"max_tokens\": 9, " STORY "}"},
        {"/v1/chat/completions", "{\"ignore_eos\": true, \"max_completion_tokens\": 5, \"max_tokens\": 9, " STORY "}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = serve_json(&server, cases[i].path, 200, cases[i].body);
        if (json_int_at(j, "usage.completion_tokens") != 5) fail_msg("%s", cases[i].body);
        json_decref(j);
    }
    json_t *j = serve_json(&server, "/completion", 200,
                           "{\"ignore_eos\": true, \"prompt\": \"Once\", \"max_completion_tokens\": 5}");
    assert_int_equal(json_int_at(j, "tokens_predicted"), 5);
    json_decref(j);
    j = serve_json(&server, "/v1/chat/completions", 400, "{\"n_predict\": -2, " STORY "}");
    assert_string_equal(json_text_at(j, "error.param"), "n_predict");
    json_decref(j);
}

static void a_prompt_mixes_ids_and_texts(void **state) {
    (void)state;
    char ids[300], mixed[400], plain[400];
    json_t *first = serve_json(&server, "/tokenize", 200, "{\"content\": \"The red\"}"),
           *second = serve_json(&server, "/tokenize", 200, "{\"content\": \"dog ran\"}");
    char *a = json_dumps(json_at(first, "tokens"), JSON_COMPACT),
         *b = json_dumps(json_at(second, "tokens"), JSON_COMPACT);
    a[strlen(a) - 1] = '\0';
    snprintf(ids, sizeof ids, "%s,%s", a, b + 1);
    snprintf(plain, sizeof plain, "{\"temperature\": 0, \"n_predict\": 8, \"prompt\": %s", ids);
    snprintf(mixed, sizeof mixed, "{\"temperature\": 0, \"n_predict\": 8, \"prompt\": %s, \"dog ran\"]", a);
    expect_equal_texts(plain, mixed);
    free(a), free(b);
    json_decref(first), json_decref(second);
    expect_equal_texts("{\"temperature\": 0, \"n_predict\": 8, \"prompt\": \"The red dog\"",
                       "{\"temperature\": 0, \"n_predict\": 8, \"prompt\": {\"prompt_string\": \"The red dog\"}");
    json_t *j = serve_json(&server, "/completion", 200,
                           "{\"temperature\": 0, \"n_predict\": 4, \"prompt\": [\"The red dog\", {\"prompt_string\": "
                           "\"The red dog\"}, [1, 5, \"x\"]]}");
    assert_int_equal(json_array_size(j), 3);
    assert_string_equal(json_text_at(j, "0.content"), json_text_at(j, "1.content"));
    json_decref(j);
    static const char *const bad[] = {
        "{\"prompt\": [1, true]}", "{\"prompt\": [1, 99999999, \"x\"]}", "{\"prompt\": {\"prompt_string\": 5}}",
        "{\"prompt\": {\"prompt_string\": \"x\", \"multimodal_data\": \"aGk=\"}}",
        "{\"prompt\": [\"x\", {\"prompt_string\": \"x\", \"multimodal_data\": [\"aGk=\"]}]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        j = serve_json(&server, "/completion", 400, bad[i]);
        assert_string_equal(json_text_at(j, "error.param"), "prompt");
        json_decref(j);
    }
}

/* A sampler that is not in the list is off: the text is that of its neutral value. */
static void samplers_that_are_left_out_are_off(void **state) {
    (void)state;
#define ONCE "{\"prompt\": \"Once upon a time\", \"n_predict\": 20, \"seed\": 5, "
    expect_equal_texts(ONCE "\"temperature\": 0", ONCE "\"temperature\": 0, \"samplers\": [\"temperature\"]");
    expect_equal_texts(ONCE "\"temperature\": 1, \"top_p\": 1, \"min_p\": 0, \"top_k\": 7",
                       ONCE "\"temperature\": 0.2, \"top_k\": 7, \"samplers\": [\"penalties\", \"top_k\"]");
    expect_equal_texts(ONCE "\"temperature\": 1, \"top_p\": 0.5, \"min_p\": 0, \"top_k\": 0",
                       ONCE "\"top_p\": 0.5, \"repeat_penalty\": 3, \"samplers\": \"top-p;xtc\"");
    expect_equal_texts(ONCE "\"temperature\": 2, \"top_p\": 1, \"min_p\": 0.2, \"top_k\": 0, \"repeat_penalty\": 2",
                       ONCE "\"temperature\": 2, \"min_p\": 0.2, \"repeat_penalty\": 2, \"samplers\": \"etm\"");
    json_t *j = serve_json(&server, "/completion", 200, ONCE "\"samplers\": [\"top_k\", \"top_p\", \"infill\"]}");
    assert_non_null(strstr(json_text_at(j, "warnings.0"), "'infill'"));
    json_decref(j);
    j = serve_json(&server, "/completion", 400, ONCE "\"samplers\": 5}");
    assert_string_equal(json_text_at(j, "error.param"), "samplers");
    json_decref(j);
    json_t *props = serve_json(&server, "/props", 200, NULL); /* its list leaves out nothing */
    char *all = json_dumps(json_at(props, "default_generation_settings.params.samplers"), JSON_COMPACT), body[400];
    snprintf(body, sizeof body, ONCE "\"repeat_penalty\": 2, \"samplers\": %s", all);
    expect_equal_texts(ONCE "\"repeat_penalty\": 2", body);
    free(all);
    json_decref(props);
}

/* Values of llama.cpp's schema that ask for nothing. */
static void neutral_values_are_accepted(void **state) {
    (void)state;
    static const char *const paths[] = {"/completion", "/v1/completions", "/v1/chat/completions"};
    static const char *const fields[] = {
        "\"stream_options\": {\"include_usage\": false}, \"sse_ping_interval\": 0",
        "\"top_n_sigma\": -5, \"adaptive_target\": -0.5, \"slot_id\": -1",
        "\"reasoning_budget_start_tag\": \"<think>\", \"reasoning_budget_end_tag\": \"</think>\"",
        "\"reasoning_budget_end_tags\": [\"</think>\"]",
        "\"reasoning_budget_message\": \"\", \"parse_tool_calls\": false",
        "\"tool_choice\": \"none\", \"stop\": [\"\"], \"t_max_prompt_ms\": 500",
        "\"reasoning_format\": \"none\", \"reasoning_control\": true"};
    for (int p = 0; p < 3; p++)
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            char body[400];
            snprintf(body, sizeof body, "{%s, \"n_predict\": 2, %s}", p == 2 ? STORY : "\"prompt\": \"x\"", fields[i]);
            json_t *j = serve_json(&server, paths[p], 200, body);
            assert_null(json_at(j, "warnings"));
            json_decref(j);
        }
    static const char *const refused[] = {"top_n_sigma\": 1.5", "adaptive_target\": 0.5",
                                          "reasoning_budget_message\": \"enough\"", "parse_tool_calls\": false"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char body[500];
        snprintf(
            body, sizeof body,
            "{\"model\": \"thinker\", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], " STORY
            ", \"%s}",
            refused[i]);
        json_t *j = serve_json(&server, "/v1/chat/completions", 400, body);
        assert_int_equal(strncmp(json_text_at(j, "error.param"), refused[i], 10), 0);
        json_decref(j);
    }
}

/* A step adds several tokens, and each is an event. */
static void each_token_is_an_event(void **state) {
    (void)state;
    static const char *const paths[] = {"/completion", "/v1/completions"};
    for (int i = 0; i < 2; i++) {
        Answer a = serve_post(
            &server, paths[i],
            "{\"prompt\": \"red dog, red dog, red dog, red dog,\", \"temperature\": 0, \"n_predict\": 40, "
            "\"tree_budget\": 8, \"ignore_eos\": true, \"stream\": true, \"return_tokens\": true}");
        int n_events = 0;
        json_int_t n_accepted = 0;
        char *rest = a.body;
        for (char *line; (line = strsep(&rest, "\n"));) {
            json_t *event = strncmp(line, "data: {", 7) == 0 ? json_loads(line + 6, 0, NULL) : NULL;
            const json_t *tokens = i ? json_at(event, "choices.0.tokens") : json_at(event, "tokens");
            if (json_at(event, "timings")) n_accepted = json_int_at(event, "timings.draft_n_accepted");
            else if (tokens) {
                n_events++;
                assert_int_equal(json_array_size(tokens), 1);
                if (i == 0) assert_int_equal(json_int_at(event, "tokens_predicted"), n_events);
            }
            json_decref(event);
        }
        assert_int_equal(n_events, 40);
        assert_true(n_accepted > 5);
        answer_free(&a);
    }
}

static void biases_may_be_of_texts(void **state) {
    (void)state;
    expect_equal_texts(ONCE "\"temperature\": 0, \"logit_bias\": [[\"there\", false]]",
                       ONCE "\"temperature\": 0, \"logit_bias\": {\"there\": -100}");
    json_t *j = serve_json(&server, "/completion", 200, ONCE "\"logit_bias\": {\"5\": -100, \"6\": 1.5}}");
    assert_true(json_is_null(json_at(j, "generation_settings.logit_bias.0.bias")));
    assert_int_equal(json_int_at(j, "generation_settings.logit_bias.1.token"), 6);
    json_decref(j);
}

/* The settings are complete, or the places that the client asks for. */
static void an_answer_has_the_fields_that_are_asked_for(void **state) {
    (void)state;
    static const char *const settings[] = {
        "adaptive_target", "adaptive_decay", "dry_multiplier", "typical_p", "samplers",
        "logit_bias",      "lora",           "max_tokens",     "seed",      "min_keep"};
    json_t *j = serve_json(&server, "/completion", 200, ONCE "\"temperature\": 0}");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_non_null(json_object_get(json_at(j, "generation_settings"), settings[i]));
    assert_true(json_is_false(json_at(j, "has_new_line")));
    json_t *part = serve_json(&server, "/completion", 200,
                              ONCE "\"temperature\": 0, \"response_fields\": [\"content\", \"timings/predicted_n\", "
                                   "\"generation_settings/n_predict\", \"none/such\", \"prompt\"]}");
    assert_int_equal(json_object_size(part), 4);
    assert_string_equal(json_text_at(part, "content"), json_text_at(j, "content"));
    assert_int_equal(json_integer_value(json_object_get(part, "timings/predicted_n")), 20);
    assert_int_equal(json_integer_value(json_object_get(part, "generation_settings/n_predict")), 20);
    json_decref(j), json_decref(part);
    part = serve_json(&server, "/completion", 200,
                      "{\"prompt\": [\"a\", \"b\"], \"n_predict\": 2, \"response_fields\": [\"index\"]}");
    assert_int_equal(json_object_size(json_at(part, "1")), 1);
    assert_int_equal(json_int_at(part, "1.index"), 1);
    json_decref(part);
    Answer a = serve_post(&server, "/completion",
                          ONCE "\"stream\": true, \"response_fields\": [\"tokens_predicted\"]}");
    assert_non_null(strstr(a.body, "data: {\"tokens_predicted\":20}\n\n"));
    answer_free(&a);
    j = serve_json(&server, "/completion", 400, ONCE "\"response_fields\": [\"content\", 5]}");
    assert_string_equal(json_text_at(j, "error.param"), "response_fields");
    json_decref(j);
}

static void a_verbose_answer_has_its_prompt(void **state) {
    (void)state;
    json_t *prompt = serve_json(&server, "/apply-template", 200, "{\"temperature\": 0.5, \"stream\": true, " STORY "}"),
           *j = serve_json(&server, "/v1/chat/completions", 200, "{\"verbose\": true, \"max_tokens\": 6, " STORY "}"),
           *quiet = serve_json(&server, "/v1/chat/completions", 200,
                               "{\"verbose\": false, \"max_tokens\": 1, " STORY "}");
    assert_string_equal(json_text_at(j, "__verbose.prompt"), json_text_at(prompt, "prompt"));
    assert_int_equal(json_int_at(j, "__verbose.tokens_predicted"), 6);
    assert_non_null(strstr(json_text_at(j, "__verbose.content"), json_text_at(j, "choices.0.message.content")));
    assert_null(json_at(quiet, "__verbose"));
    json_decref(prompt), json_decref(j), json_decref(quiet);
}

static void a_prompt_beyond_the_context_is_measured(void **state) {
    (void)state;
    char *body = malloc(9000);
    strcpy(body, "{\"messages\": [{\"role\": \"user\", \"content\": \"");
    for (int i = 0; i < 600; i++) strcat(body, "red dog ");
    strcat(body, "\"}]}");
    json_t *j = serve_json(&server, "/v1/chat/completions", 400, body);
    assert_string_equal(json_text_at(j, "error.type"), "exceed_context_size_error");
    assert_non_null(strstr(json_text_at(j, "error.message"), "exceeds the available context size"));
    assert_true(json_int_at(j, "error.n_prompt_tokens") > 600);
    assert_int_equal(json_int_at(j, "error.n_ctx"), 256);
    json_decref(j);
    free(body);
}

/* The lists that llama.cpp's page reads when it begins. */
static void the_server_describes_itself(void **state) {
    (void)state;
    json_t *models = serve_json(&server, "/v1/models", 200, NULL), *props = serve_json(&server, "/props", 200, NULL),
           *of_one = serve_json(&server, "/props?autoload=false&model=%74hinker", 200, NULL),
           *slots = serve_json(&server, "/slots?fail_on_no_slot=1", 200, NULL);
    assert_string_equal(json_text_at(models, "models.0.name"), "target");
    assert_string_equal(json_text_at(models, "models.0.capabilities.0"), "completion");
    assert_string_equal(json_text_at(models, "data.0.aliases.0"), "target");
    assert_int_equal(json_int_at(models, "data.0.meta.n_ctx"), 256);
    assert_true(json_int_at(models, "data.0.meta.n_params") > 1000);
    assert_string_equal(json_text_at(props, "role"), "model");
    assert_string_equal(json_text_at(props, "model_alias"), "target");
    assert_true(json_is_false(json_at(props, "modalities.video")));
    assert_true(json_is_number(json_at(props, "default_generation_settings.params.xtc_threshold")));
    assert_string_equal(json_text_at(of_one, "model_alias"), "thinker");
    assert_true(json_is_true(json_at(slots, "0.speculative")));
    json_decref(models), json_decref(props), json_decref(of_one), json_decref(slots);
    json_decref(serve_json(&server, "/props?model=large", 404, NULL));
}

static void small_endpoints_answer(void **state) {
    (void)state;
    static const struct {
        const char *method, *path, *body, *says;
        int status;
    } cases[] = {
        {"POST", "/v1/streams/lookup", "{\"conversation_ids\": [\"a\"]}", "[]", 200},
        {"POST", "/v1/streams/lookup", "{\"conversation_ids\": \"a\"}", "conversation_ids", 400},
        {"GET", "/v1/stream?conv_id=a&from=0", NULL, "error", 404},
        {"DELETE", "/v1/stream?conv_id=a", NULL, "", 204},
        {"GET", "/lora-adapters", NULL, "[]", 200},
        {"POST", "/lora-adapters", "[]", "\"success\":true", 200},
        {"POST", "/lora-adapters", "[{\"id\": 0, \"scale\": 1}]", "not supported", 400},
        {"POST", "/lora-adapters", "{}", "list", 400},
        {"POST", "/completion", "[]", "object", 400},
        {"POST", "/props", "{}", "not_supported_error", 501},
        {"GET", "/tools", NULL, "feature_disabled", 403},
        {"POST", "/cors-proxy?url=http://localhost", "{}", "feature_disabled", 403},
        {"POST", "/v1/audio/transcriptions", "{}", "audio", 501},
        {"POST", "/v1/chat/completions/control", "{\"id\": \"x\", \"action\": \"reasoning_end\"}", "\"success\":false",
         200},
        {"POST", "/v1/chat/completions/control", "{\"id\": \"x\", \"action\": \"pause\"}", "action", 400},
        {"POST", "/v1/chat/completions/control", "{\"action\": \"reasoning_end\"}", "'id' is missing", 400},
        {"POST", "/v1/reranking", "{\"query\": \"a\"}", "documents", 400},
        {"POST", "/responses", "{}", "input", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Answer a = serve_request(&server, cases[i].method, cases[i].path, "", cases[i].body);
        if (a.status != cases[i].status || !strstr(a.body, cases[i].says))
            fail_msg("%s %s: %d %s", cases[i].method, cases[i].path, a.status, a.body);
        answer_free(&a);
    }
    Answer preflight = serve_request(&server, "OPTIONS", "/v1/stream", "", NULL);
    assert_non_null(strstr(preflight.head, "DELETE"));
    answer_free(&preflight);
    json_t *chat = serve_json(&server, "/v1/chat/completions", 200, "{\"max_tokens\": 1, " STORY "}"),
           *count = serve_json(&server, "/chat/completions/input_tokens", 200, "{" STORY "}"),
           *response = serve_json(&server, "/v1/responses/input_tokens", 200,
                                  "{\"input\": \"Tell me a story about a boat.\"}");
    assert_int_equal(json_int_at(count, "input_tokens"), json_int_at(chat, "usage.prompt_tokens"));
    assert_int_equal(json_int_at(response, "input_tokens"), json_int_at(chat, "usage.prompt_tokens"));
    assert_string_equal(json_text_at(count, "object"), "response.input_tokens");
    json_decref(chat), json_decref(count), json_decref(response);
}

static void texts_are_ranked_in_a_list(void **state) {
    (void)state;
    json_t *jina = serve_json(&server, "/rerank", 200,
                              "{\"query\": \"the dog ran\", \"documents\": [\"Numbers: 4\", \"the dog ran\"]}"),
           *list = serve_json(
               &server, "/rerank", 200,
               "{\"query\": \"the dog ran\", \"texts\": [\"Numbers: 4\", \"the dog ran\"], \"top_n\": 1, "
               "\"return_text\": true}");
    assert_int_equal(json_array_size(list), 1);
    assert_int_equal(json_int_at(list, "0.index"), 1);
    assert_string_equal(json_text_at(list, "0.text"), "the dog ran");
    assert_true(json_equal(json_at(list, "0.score"), json_at(jina, "results.0.relevance_score")));
    json_decref(jina), json_decref(list);
}

static void tokens_have_pieces_of_text_or_bytes(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/tokenize", 200, "{\"content\": \"a \xF0\x9F\xA4\x97\", \"with_pieces\": true}");
    const json_t *tokens = json_at(j, "tokens");
    size_t n = json_array_size(tokens), n_bytes = 0;
    assert_true(n > 2);
    assert_true(json_is_string(json_object_get(json_array_get(tokens, 0), "piece")));
    for (size_t i = 0; i < n; i++) n_bytes += json_array_size(json_object_get(json_array_get(tokens, i), "piece"));
    assert_int_equal(n_bytes, 4); /* of the picture, which is no token */
    json_decref(j);
}

static void a_template_is_applied_without_an_answer(void **state) {
    (void)state;
    json_t *open = serve_json(&server, "/apply-template", 200,
                              "{\"model\": \"thinker\", \"add_generation_prompt\": false, " STORY "}"),
           *begun = serve_json(&server, "/apply-template", 200, "{\"model\": \"thinker\", " STORY "}");
    assert_null(strstr(json_text_at(open, "prompt"), "<think>"));
    assert_non_null(strstr(json_text_at(begun, "prompt"), "<think>"));
    json_decref(open), json_decref(begun);
}

/* Writes a chat whose last message, of the assistant, is continued. */
static json_t *go_on(int status, const char *how, const char *last) {
    char body[900];
    snprintf(body, sizeof body,
             "{\"model\": \"thinker\", \"max_tokens\": 12, \"temperature\": 0, \"verbose\": true, "
             "\"continue_final_message\": %s, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": "
             "\"assistant\", %s}]}",
             how, last);
    return serve_json(&server, "/v1/chat/completions", status, body);
}

static void reasoning_and_text_are_continued(void **state) {
    (void)state;
    static const struct {
        const char *how, *last, *ends, *text;
    } cases[] = {
        {"true", "\"content\": \"Once upon\"", "<think>\n</think>\n\nOnce upon", "content"},
        {"true", "\"content\": \"Once upon\", \"reasoning_content\": \"Let me see.\"",
         "<think>Let me see.\n</think>\n\nOnce upon", "content"},
        {"true", "\"content\": \"\", \"reasoning_content\": \"Once upon\"", "<think>Once upon", "reasoning_content"},
        {"\"reasoning_content\"", "\"content\": \"No\", \"reasoning_content\": \"Once upon\"", "<think>Once upon",
         "reasoning_content"},
        {"\"content\"", "\"content\": \"So.</think>Once upon\"", "<think>So.</think>Once upon", "content"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *j = go_on(200, cases[i].how, cases[i].last);
        const char *prompt = json_text_at(j, "__verbose.prompt");
        if (strlen(prompt) < strlen(cases[i].ends) ||
            strcmp(prompt + strlen(prompt) - strlen(cases[i].ends), cases[i].ends))
            fail_msg("'%s' does not end with '%s'", prompt, cases[i].ends);
        const json_t *text = json_object_get(json_at(j, "choices.0.message"), cases[i].text);
        if (json_string_length(text) < 5) fail_msg("case %zu: no %s", i, cases[i].text);
        json_decref(j);
    }
    json_decref(go_on(400, "true, \"add_generation_prompt\": true", "\"content\": \"a\""));
    json_decref(go_on(400, "\"both\"", "\"content\": \"a\""));
    json_decref(go_on(400, "5", "\"content\": \"a\""));
    json_decref(go_on(400, "true", "\"content\": \"a\", \"tool_calls\": [{\"function\": {\"name\": \"f\"}}]"));
}

/* The client ends the reasoning of a chat that is being generated. The context has room for some seconds. */
static void reasoning_is_ended_by_the_client(void **state) {
    (void)state;
    enum { ROOM = 4 << 20 };
    char request[1000], control[200], args[800], id[80] = "", *got = calloc(1, ROOM);
    size_t n = 0;
    ServeRig s;
    snprintf(args, sizeof args, "-t 1 -c 4096 --draft none --quiet -m thinker=%s/llama-thinker.gguf",
             serve_rig_folder());
    serve_start(&s, args);
    serve_format_post(request, sizeof request, "/v1/chat/completions",
                      "{\"stream\": true, \"reasoning_control\": true, \"ignore_eos\": true, \"seed\": 1, " STORY "}");
    int fd = serve_connect(&s);
    serve_send(fd, request);
    json_t *reply = NULL;
    const char *reasoning = NULL, *text = NULL;
    for (ssize_t r; !text && n < ROOM - 1 && (r = read(fd, got + n, ROOM - 1 - n)) > 0;) {
        n += (size_t)r;
        reasoning = strstr(got, "reasoning_content");
        if (reasoning) text = strstr(reasoning, "\"delta\":{\"content\":\"");
        if (reply || !reasoning || sscanf(strstr(got, "\"id\":\""), "\"id\":\"%79[^\"]", id) != 1) continue;
        snprintf(control, sizeof control, "{\"id\": \"%s\", \"action\": \"reasoning_end\"}", id);
        reply = serve_json(&s, "/v1/chat/completions/control", 200, control);
    }
    close(fd);
    assert_true(json_is_true(json_at(reply, "success")));
    assert_non_null(text); /* it follows the reasoning */
    json_decref(reply);
    free(got);
    assert_int_equal(serve_stop(&s), 0);
}

/* A stream that reports its progress has the timings with it, also that of responses. */
static void progress_has_timings(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"/completion", "{\"prompt\": \"A little green bird sat on a fence\""},
                                           {"/v1/responses", "{\"input\": \"A little green bird sat on the roof\""}};
    for (int i = 0; i < 2; i++) {
        char body[300];
        snprintf(body, sizeof body,
                 "%s, \"stream\": true, \"n_predict\": 4, \"return_progress\": true, "
                 "\"timings_per_token\": true}",
                 cases[i][1]);
        Answer a = serve_post(&server, cases[i][0], body);
        int n_progress = 0;
        char *rest = a.body;
        for (char *line; (line = strsep(&rest, "\n"));) {
            json_t *event = strncmp(line, "data: {", 7) == 0 ? json_loads(line + 6, 0, NULL) : NULL;
            if (json_at(event, "prompt_progress")) {
                assert_non_null(json_at(event, "timings.prompt_n"));
                n_progress++;
            }
            const char *type = json_string_value(json_object_get(event, "type"));
            if (type && strstr(type, "output_text.delta")) assert_non_null(json_at(event, "timings"));
            if (type && strcmp(type, "response.incomplete") == 0)
                assert_non_null(json_at(event, "timings.predicted_n"));
            json_decref(event);
        }
        assert_true(n_progress > 0);
        answer_free(&a);
    }
}

/* llama.cpp's page sends its tools with every message, whatever the template knows. */
static void tools_without_a_place_are_ignored_on_request(void **state) {
    (void)state;
#define CLOCK \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_datetime\"}}], \"temperature\": 0, " STORY
    ServeRig s;
    serve_start(&s, "-t 1 -c 256 --draft none --quiet --unknown-fields ignore");
    json_t *j = serve_json(&s, "/v1/chat/completions", 200, "{\"max_tokens\": 12, " CLOCK "}"),
           *plain = serve_json(&s, "/v1/chat/completions", 200, "{\"max_tokens\": 12, \"temperature\": 0, " STORY "}"),
           *forced = serve_json(&s, "/v1/chat/completions", 400, "{\"tool_choice\": \"required\", " CLOCK "}"),
           *strict = serve_json(&server, "/v1/chat/completions", 400, "{" CLOCK "}");
    assert_string_equal(json_text_at(j, "choices.0.message.content"), json_text_at(plain, "choices.0.message.content"));
    assert_non_null(strstr(json_text_at(j, "warnings.0"), "no place for 'tools'"));
    assert_null(json_at(plain, "warnings"));
    assert_string_equal(json_text_at(forced, "error.param"), "tools");
    assert_non_null(strstr(json_text_at(strict, "error.message"), "--unknown-fields ignore"));
    json_decref(j), json_decref(plain), json_decref(forced), json_decref(strict);
    assert_int_equal(serve_stop(&s), 0);
}

/* The request of an editor: other files, limits of lines, and only what it reads of the answer. The marks of the random
 * model are its last tokens. */
static void an_editor_gets_its_text(void **state) {
    (void)state;
    enum { N = 300, PRE = N - 3, SUF, MID };
    const RandomModel m = {SMALL_LLAMA, .n_vocab = N, .fill_marks = true, .seed = 5};
    static const char limits[] =
        "\"temperature\": 0, \"n_predict\": 12, \"ignore_eos\": true, \"return_tokens\": true, "
        "\"response_fields\": [\"tokens\", \"tokens_evaluated\"]";
    char path[700], args[800], body[900];
    fr_error err;
    ServeRig s;
    snprintf(path, sizeof path, "%s/llama-filler.gguf", serve_rig_folder());
    assert_int_equal(random_model_write(&m, path, &err), FR_OK);
    snprintf(args, sizeof args, "-t 1 -c 128 -m %s", path);
    serve_start(&s, args);
    snprintf(body, sizeof body,
             "{\"input_prefix\": \"tea\", \"input_suffix\": \"so\", \"prompt\": \"i\", \"input_extra\": "
             "[{\"filename\": \"a\", \"text\": \"not\"}], %s}",
             limits);
    json_t *filled = serve_json(&s, "/infill", 200, body);
    snprintf(body, sizeof body,
             "{\"prompt\": [1, \"\\n\\n--- another file ---\\n\\n\", \"not\", %d, \"tea\", %d, \"so\", %d, \"i\"], %s}",
             PRE, SUF, MID, limits);
    json_t *same = serve_json(&s, "/completion", 200, body);
    assert_int_equal(json_array_size(json_at(filled, "tokens")), 12);
    assert_true(json_equal(filled, same));
    json_decref(filled), json_decref(same);
    char extra[400] = "";
    for (int i = 0; i < 300; i++) strcat(extra, "a");
    snprintf(body, sizeof body,
             "{\"input_prefix\": \"tea\", \"input_suffix\": \"so\", \"prompt\": \"i\", \"input_extra\": [{\"text\": "
             "\"%s\"}], \"n_predict\": 4, \"stream\": false, \"stop\": [\"\"], \"n_indent\": 2, \"top_k\": 40, "
             "\"top_p\": 0.9, \"samplers\": [\"top_k\", \"top_p\", \"infill\"], \"cache_prompt\": true, "
             "\"t_max_prompt_ms\": 500, \"t_max_predict_ms\": 1000, \"response_fields\": [\"content\", "
             "\"timings/prompt_n\", \"truncated\", \"tokens_evaluated\"]}",
             extra);
    json_t *j = serve_json(&s, "/infill", 200, body);
    assert_int_equal(json_object_size(j), 4);
    assert_int_equal(json_int_at(j, "tokens_evaluated"), 96); /* the context without the quarter for the answer */
    json_decref(j);
    static const char *const bad[] = {"[{}]", "[{\"filename\": \"ok\"}]", "[{\"filename\": 1, \"text\": \"a\"}]",
                                      "[{\"text\": 1}]", "{}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(body, sizeof body, "{\"input_prefix\": \"a\", \"input_suffix\": \"b\", \"input_extra\": %s}", bad[i]);
        j = serve_json(&s, "/infill", 400, body);
        assert_string_equal(json_text_at(j, "error.param"), "input_extra");
        json_decref(j);
    }
    assert_int_equal(serve_stop(&s), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_read_without_an_answer),
        cmocka_unit_test(the_number_of_tokens_has_llama_cpps_names),
        cmocka_unit_test(a_prompt_mixes_ids_and_texts),
        cmocka_unit_test(samplers_that_are_left_out_are_off),
        cmocka_unit_test(neutral_values_are_accepted),
        cmocka_unit_test(each_token_is_an_event),
        cmocka_unit_test(biases_may_be_of_texts),
        cmocka_unit_test(an_answer_has_the_fields_that_are_asked_for),
        cmocka_unit_test(a_verbose_answer_has_its_prompt),
        cmocka_unit_test(a_prompt_beyond_the_context_is_measured),
        cmocka_unit_test(the_server_describes_itself),
        cmocka_unit_test(small_endpoints_answer),
        cmocka_unit_test(texts_are_ranked_in_a_list),
        cmocka_unit_test(tokens_have_pieces_of_text_or_bytes),
        cmocka_unit_test(a_template_is_applied_without_an_answer),
        cmocka_unit_test(reasoning_and_text_are_continued),
        cmocka_unit_test(reasoning_is_ended_by_the_client),
        cmocka_unit_test(progress_has_timings),
        cmocka_unit_test(tools_without_a_place_are_ignored_on_request),
        cmocka_unit_test(an_editor_gets_its_text),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
