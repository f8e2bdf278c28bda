/* test_serve_api.c - the answers of the endpoints: texts, usage, events and defaults. */
#include "serve_rig.h"

#include "random_model.h"

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

static void the_server_describes_itself(void **state) {
    (void)state;
    json_t *health = serve_json(&server, "/health", 200, NULL), *models = serve_json(&server, "/v1/models", 200, NULL),
           *props = serve_json(&server, "/props", 200, NULL), *slots = serve_json(&server, "/slots", 200, NULL);
    assert_string_equal(json_text_at(health, "status"), "ok");
    assert_string_equal(json_text_at(models, "object"), "list");
    assert_string_equal(json_text_at(models, "data.0.id"), "target");
    assert_string_equal(json_text_at(models, "data.0.object"), "model");
    assert_int_equal(json_int_at(props, "n_ctx"), 256);
    assert_int_equal(json_int_at(props, "total_slots"), 8);
    assert_string_equal(json_text_at(props, "drafts.1"), "suffix");
    assert_int_equal(json_array_size(slots), 8);
    assert_string_equal(json_text_at(slots, "7.state"), "idle");
    assert_non_null(strstr(json_text_at(props, "chat_template"), "ASSISTANT"));
    assert_string_equal(json_text_at(props, "model_path"), SERVE_MODEL);
    assert_string_equal(json_text_at(props, "bos_token"), "<s>");
    assert_string_equal(json_text_at(props, "eos_token"), "</s>");
    assert_true(json_is_false(json_at(props, "modalities.vision")));
    assert_int_equal(json_int_at(props, "default_generation_settings.params.top_k"), 40);
    json_decref(health), json_decref(models), json_decref(props), json_decref(slots);
}

static void a_completion_has_text_usage_and_timings(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/v1/completions", 200,
                           "{\"prompt\": \"Once upon a time\", \"max_tokens\": 20, \"temperature\": 0, \"user\": "
                           "\"x\", \"store\": false}");
    assert_string_equal(json_text_at(j, "object"), "text_completion");
    assert_int_equal(strncmp(json_text_at(j, "choices.0.text"), ", there was", 11), 0);
    assert_string_equal(json_text_at(j, "choices.0.finish_reason"), "length");
    assert_int_equal(json_int_at(j, "usage.completion_tokens"), 20);
    assert_int_equal(json_int_at(j, "usage.prompt_tokens") + 20, json_int_at(j, "usage.total_tokens"));
    assert_int_equal(json_int_at(j, "timings.predicted_n"), 20);
    json_int_t accepted = json_int_at(j, "usage.completion_tokens_details.accepted_prediction_tokens");
    assert_int_equal(json_int_at(j, "timings.draft_n_accepted"), accepted);
    assert_int_equal(json_int_at(j, "timings.draft_n"),
                     accepted + json_int_at(j, "usage.completion_tokens_details.rejected_prediction_tokens"));
    json_decref(j);
    j = serve_json(&server, "/v1/completions", 200, "{\"prompt\": \"Once upon a time\", \"temperature\": 0}");
    assert_int_equal(json_int_at(j, "usage.completion_tokens"), 16); /* OpenAI's default */
    assert_true(json_int_at(j, "usage.prompt_tokens_details.cached_tokens") > 0);
    json_decref(j);
}

static void a_seed_gives_one_text_and_is_reported(void **state) {
    (void)state;
    json_t *first = serve_json(&server, "/v1/completions", 200, "{\"prompt\": \"One day\", \"max_tokens\": 24}");
    json_int_t seed = json_int_at(first, "seed");
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\": \"One day\", \"max_tokens\": 24, \"seed\": %lld}", (long long)seed);
    json_t *again = serve_json(&server, "/v1/completions", 200, body),
           *other = serve_json(&server, "/v1/completions", 200, "{\"prompt\": \"One day\", \"max_tokens\": 24}");
    assert_string_equal(json_text_at(first, "choices.0.text"), json_text_at(again, "choices.0.text"));
    assert_int_not_equal(json_int_at(other, "seed"), seed);
    json_decref(first), json_decref(again), json_decref(other);
}

/* Choice i has the request's seed plus i. */
static void several_choices_are_several_seeds(void **state) {
    (void)state;
    json_t *all = serve_json(&server, "/v1/completions", 200,
                             "{\"prompt\": [\"One day\", \"The cat\"], \"n\": 3, \"max_tokens\": 12, \"seed\": 7}");
    assert_int_equal(json_array_size(json_at(all, "choices")), 6);
    for (int i = 0; i < 6; i++) {
        char body[256], path[64];
        snprintf(body, sizeof body, "{\"prompt\": \"%s\", \"max_tokens\": 12, \"seed\": %d}",
                 i < 3 ? "One day" : "The cat", 7 + i % 3);
        json_t *alone = serve_json(&server, "/v1/completions", 200, body);
        snprintf(path, sizeof path, "choices.%d.text", i);
        assert_string_equal(json_text_at(all, path), json_text_at(alone, "choices.0.text"));
        snprintf(path, sizeof path, "choices.%d.index", i);
        assert_int_equal(json_int_at(all, path), i);
        json_decref(alone);
    }
    assert_int_equal(json_int_at(all, "usage.completion_tokens"), 72);
    json_decref(all);
}

static void stops_and_echo(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/v1/completions", 200,
                           "{\"prompt\": \"Once upon a time\", \"max_tokens\": 60, \"temperature\": 0, \"stop\": "
                           "[\"zzzz\", \" girl\"], \"echo\": true}");
    assert_string_equal(json_text_at(j, "choices.0.text"), "Once upon a time, there was a little");
    assert_string_equal(json_text_at(j, "choices.0.finish_reason"), "stop");
    json_decref(j);
}

/* The events of a stream join to the text of the whole answer. */
static void check_stream(const char *path, const char *body, const char *in_event, const char *in_answer,
                         bool has_done) {
    char streamed_body[600];
    snprintf(streamed_body, sizeof streamed_body, "{\"stream\": true, %s", body + 1);
    Answer a = serve_post(&server, path, streamed_body);
    assert_int_equal(a.status, 200);
    assert_true(a.is_whole);
    assert_non_null(strstr(a.head, "text/event-stream"));
    assert_true(!has_done == !strstr(a.body, "\n\ndata: [DONE]\n\n"));
    char *text = serve_stream_text(&a, in_event);
    json_t *whole = serve_json(&server, path, 200, body);
    assert_string_equal(text, json_text_at(whole, in_answer));
    assert_true(strlen(text) > 10);
    free(text);
    json_decref(whole);
    answer_free(&a);
}

static void a_stream_is_the_whole_answer_in_pieces(void **state) {
    (void)state;
    check_stream("/v1/completions", "{\"prompt\": \"One day\", \"max_tokens\": 40, \"seed\": 3}", "choices.0.text",
                 "choices.0.text", true);
    check_stream(
        "/v1/chat/completions",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story\"}], \"max_tokens\": 40, \"seed\": 3}",
        "choices.0.delta.content", "choices.0.message.content", true);
    check_stream("/completion", "{\"prompt\": \"One day\", \"n_predict\": 40, \"seed\": 3}", "content", "content",
                 false);
}

static void usage_of_a_stream_comes_last_and_only_on_request(void **state) {
    (void)state;
    Answer plain = serve_post(
        &server, "/v1/chat/completions",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 5, \"stream\": true}");
    Answer asked = serve_post(
        &server, "/v1/chat/completions",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 5, \"stream\": true, "
        "\"stream_options\": {\"include_usage\": true}}");
    assert_null(strstr(plain.body, "\"usage\""));
    assert_null(strstr(plain.body, "\"choices\":[]"));
    assert_non_null(strstr(asked.body, "\"choices\":[],\"usage\":{\"prompt_tokens\":"));
    assert_non_null(strstr(plain.body, "\"finish_reason\":\"length\""));
    assert_non_null(strstr(plain.body, "\"timings\":"));
    answer_free(&plain), answer_free(&asked);
}

static void tokens_and_templates(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/tokenize", 200, "{\"content\": \"Once upon a time\"}");
    char *tokens = json_dumps(json_at(j, "tokens"), JSON_COMPACT), body[512];
    snprintf(body, sizeof body, "{\"tokens\": %s}", tokens);
    json_t *back = serve_json(&server, "/detokenize", 200, body);
    assert_string_equal(json_text_at(back, "content"), "Once upon a time");
    json_decref(back);
    snprintf(body, sizeof body, "{\"prompt\": %s, \"max_tokens\": 4, \"temperature\": 0, \"echo\": true}", tokens);
    json_t *continued = serve_json(&server, "/v1/completions", 200, body);
    assert_int_equal(strncmp(json_text_at(continued, "choices.0.text"), "Once upon a time", 16), 0);
    json_decref(continued), json_decref(j);
    free(tokens);
    j = serve_json(&server, "/apply-template", 200,
                   "{\"messages\": [{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"Be\"}, "
                   "{\"type\": \"text\", "
                   "\"text\": \" kind\"}]}, {\"role\": \"user\", \"content\": \"hello\"}]}");
    assert_non_null(strstr(json_text_at(j, "prompt"), "Be kind"));
    assert_non_null(strstr(json_text_at(j, "prompt"), "hello"));
    json_decref(j);
}

/* vLLM's names: "prompt" begins with BOS by default, "content" of llama.cpp does not. */
static void tokenize_knows_both_conventions(void **state) {
    (void)state;
    json_t *native = serve_json(&server, "/tokenize", 200, "{\"content\": \"Once\"}"),
           *vllm = serve_json(&server, "/tokenize", 200, "{\"prompt\": \"Once\", \"return_token_strs\": true}"),
           *bare = serve_json(&server, "/tokenize", 200, "{\"prompt\": \"Once\", \"add_special_tokens\": false}"),
           *chat = serve_json(&server, "/tokenize", 200, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}"),
           *answer = serve_json(&server, "/v1/chat/completions", 200,
                                "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}");
    assert_int_equal(json_int_at(vllm, "count"), json_int_at(native, "count") + 1);
    assert_string_equal(json_text_at(vllm, "token_strs.0"), "<s>");
    assert_true(json_equal(json_at(native, "tokens"), json_at(bare, "tokens")));
    assert_int_equal(json_int_at(chat, "count"), json_int_at(answer, "usage.prompt_tokens"));
    json_decref(native), json_decref(vllm), json_decref(bare), json_decref(chat), json_decref(answer);
}

static void other_servers_paths_are_answered(void **state) {
    (void)state;
    json_t *version = serve_json(&server, "/version", 200, NULL), *load = serve_json(&server, "/load", 200, NULL);
    assert_non_null(json_text_at(version, "version"));
    assert_int_equal(json_int_at(load, "server_load"), 0);
    json_decref(version), json_decref(load);
    json_t *info = serve_json(&server, "/get_model_info", 200, NULL);
    assert_string_equal(json_text_at(info, "model_path"), SERVE_MODEL);
    assert_true(json_is_true(json_at(info, "is_generation")));
    assert_int_equal(json_int_at(info, "max_running_requests"), 8);
    json_decref(info);
    json_decref(serve_json(&server, "/ping", 200, NULL));
    json_decref(serve_json(&server, "/ping", 200, "{}"));
    json_t *j = serve_json(&server, "/completions", 200, "{\"prompt\": \"Once\", \"n_predict\": 3}");
    assert_int_equal(json_int_at(j, "tokens_predicted"), 3);
    json_decref(j);
    j = serve_json(&server, "/infill", 400, "{\"input_prefix\": \"int x\", \"input_suffix\": \"; return x;\"}");
    assert_non_null(strstr(json_text_at(j, "error.message"), "between a prefix and a suffix"));
    json_decref(j);
    json_t *own = serve_json(&server, "/embedding", 200, "{\"content\": \"a dog\"}"),
           *openai = serve_json(&server, "/v1/embeddings", 200, "{\"input\": \"a dog\"}");
    assert_true(json_equal(json_at(own, "0.embedding.0"), json_at(openai, "data.0.embedding")));
    json_decref(own), json_decref(openai);
}

/* Returns the answer of a server with a model that has the marks of fill-in-the-middle. */
static json_t *filled(ServeRig *s, const char *path, const char *fields) {
    char body[500];
    snprintf(body, sizeof body,
             "{%s, \"n_predict\": 12, \"temperature\": 0, \"return_tokens\": true, \"ignore_eos\": true}", fields);
    json_t *j = serve_json(s, path, 200, body);
    assert_int_equal(json_int_at(j, "tokens_predicted"), 12);
    return j;
}

static void a_text_is_filled_in(void **state) {
    (void)state;
    enum { N = 300, PRE = N - 3, SUF, MID };
    const RandomModel m = {SMALL_LLAMA, .n_vocab = N, .fill_marks = true, .seed = 5};
    char path[700], args[800], assembled[200];
    fr_error err;
    ServeRig s;
    snprintf(path, sizeof path, "%s/filler.gguf", serve_rig_folder());
    assert_int_equal(random_model_write(&m, path, &err), FR_OK);
    snprintf(args, sizeof args, "-t 1 -c 128 -m %s", path);
    serve_start(&s, args);
    json_t *j = filled(&s, "/infill", "\"input_prefix\": \"tea\", \"input_suffix\": \"so\", \"prompt\": \"i\"");
    json_t *of[3];
    static const char *const parts[] = {"tea", "so", "i"};
    char *at = assembled + sprintf(assembled, "\"prompt\": [1");
    for (int i = 0; i < 3; i++) {
        char body[100];
        snprintf(body, sizeof body, "{\"content\": \"%s\"}", parts[i]);
        of[i] = serve_json(&s, "/tokenize", 200, body);
        at += sprintf(at, ", %d", PRE + i);
        for (size_t k = 0; k < json_array_size(json_at(of[i], "tokens")); k++)
            at += sprintf(at, ", %d", (int)json_integer_value(json_array_get(json_at(of[i], "tokens"), k)));
        json_decref(of[i]);
    }
    sprintf(at, "]");
    json_t *same = filled(&s, "/completion", assembled);
    assert_string_equal(json_text_at(j, "content"), json_text_at(same, "content"));
    assert_true(json_equal(json_at(j, "tokens"), json_at(same, "tokens")));
    assert_int_equal(json_int_at(j, "tokens_evaluated"), json_int_at(same, "tokens_evaluated"));
    json_t *without = filled(&s, "/infill", "\"input_prefix\": \"tea\"");
    assert_true(!json_equal(json_at(j, "tokens"), json_at(without, "tokens")));
    json_decref(j), json_decref(same), json_decref(without);
    assert_int_equal(serve_stop(&s), 0);
}

static void documents_are_ranked_by_their_embeddings(void **state) {
    (void)state;
    json_t *j = serve_json(
        &server, "/v1/rerank", 200,
        "{\"query\": \"the dog ran\", \"documents\": [\"Numbers: 17, 4\", \"the dog ran\", {\"text\": \"the "
        "dog sat\"}], \"top_n\": 2}");
    assert_int_equal(json_array_size(json_at(j, "results")), 2);
    assert_int_equal(json_int_at(j, "results.0.index"), 1);
    assert_int_equal(json_int_at(j, "results.1.index"), 2);
    assert_true(json_number_value(json_at(j, "results.0.relevance_score")) > 0.9999);
    assert_true(json_int_at(j, "usage.prompt_tokens") > 10);
    json_decref(j);
    j = serve_json(&server, "/rerank", 400, "{\"query\": \"a\", \"documents\": []}");
    assert_string_equal(json_text_at(j, "error.param"), "documents");
    json_decref(j);
}

static void answers_have_ids_and_encodings_are_refused(void **state) {
    (void)state;
    static const char body[] = "{\"prompt\": \"Once\", \"max_tokens\": 1}";
    Answer a = serve_post(&server, "/v1/completions", body),
           b = serve_request(&server, "POST", "/v1/completions", "X-Request-Id: abc-17\r\n", body),
           c = serve_request(&server, "POST", "/v1/completions", "Content-Encoding: gzip\r\n", body);
    assert_non_null(strcasestr(a.head, "\r\nx-request-id: req_"));
    assert_non_null(strcasestr(a.head, "\r\nrequest-id: req_"));
    assert_non_null(strcasestr(b.head, "\r\nx-request-id: abc-17\r\n"));
    assert_int_equal(c.status, 415);
    assert_non_null(strstr(c.body, "gzip"));
    assert_non_null(strcasestr(c.head, "\r\nx-request-id: req_"));
    answer_free(&a), answer_free(&b), answer_free(&c);
}

/* The last event of a stream, and a whole answer, tell what was drafted, by vLLM's names. */
static void an_answer_has_the_metrics_of_its_drafts(void **state) {
    (void)state;
    json_t *j = serve_json(
        &server, "/v1/completions", 200,
        "{\"prompt\": \"The cat sat. The cat sat. The cat\", \"max_tokens\": 40, \"temperature\": 0, "
        "\"tree_budget\": 4}");
    assert_int_equal(json_int_at(j, "metrics.speculative_decoding.num_accepted_tokens"),
                     json_int_at(j, "timings.draft_n_accepted"));
    assert_int_equal(json_int_at(j, "metrics.speculative_decoding.num_draft_tokens"),
                     json_int_at(j, "timings.draft_n"));
    assert_true(json_int_at(j, "metrics.speculative_decoding.num_drafts") > 0);
    assert_true(json_array_size(json_at(j, "metrics.speculative_decoding.acceptance_rate_per_position")) > 0);
    json_decref(j);
}

static void metrics_have_vllms_names_on_request(void **state) {
    (void)state;
    ServeRig s;
    for (int both = 0; both < 2; both++) {
        char args[100];
        snprintf(args, sizeof args, "-t 1 -c 256 --quiet --draft none --metrics-names %s", both ? "both" : "vllm");
        serve_start(&s, args);
        json_decref(serve_json(&s, "/v1/completions", 200, "{\"prompt\": \"Once\", \"max_tokens\": 2}"));
        assert_true(serve_metric(&s, "vllm:generation_tokens_total{") == 2);
        assert_true(serve_metric(&s, "vllm:num_requests_running{") == 0);
        serve_wait_metric(&s, "vllm:kv_cache_usage_perc{", 0);
        assert_true(serve_metric(&s, "vllm:cache_config_info{") == 1);
        Answer a = serve_get(&s, "/metrics");
        assert_true((strstr(a.body, "forerun_generation_tokens_total") != NULL) == both);
        assert_non_null(strstr(a.body, "vllm:spec_decode_num_drafts_total{"));
        assert_non_null(strstr(a.body, "num_gpu_blocks=\"64\""));
        answer_free(&a);
        assert_int_equal(serve_stop(&s), 0);
    }
}

static void the_native_form_of_llama_cpp(void **state) {
    (void)state;
    json_t *j = serve_json(&server, "/completion", 200,
                           "{\"prompt\": \"Once upon a time\", \"n_predict\": 8, \"temperature\": 0, \"cache_prompt\": "
                           "true, \"return_tokens\": true}");
    assert_true(json_is_true(json_at(j, "stop")));
    assert_string_equal(json_text_at(j, "stop_type"), "limit");
    assert_int_equal(json_int_at(j, "tokens_predicted"), 8);
    assert_int_equal(json_array_size(json_at(j, "tokens")), 8);
    assert_string_equal(json_text_at(j, "prompt"), "Once upon a time");
    json_decref(j);
}

static void drafts_are_chosen_by_name_and_change_no_text(void **state) {
    (void)state;
    static const char *const choices[] = {"\"none\"", "\"suffix\"", "[\"ngram-trie\", \"suffix\"]", "[]"};
    char *first = NULL;
    for (int i = 0; i < 4; i++) {
        char body[256];
        snprintf(body, sizeof body,
                 "{\"prompt\": \"One day\", \"max_tokens\": 60, \"seed\": 11, \"draft\": %s, \"tree_budget\": 8}",
                 choices[i]);
        json_t *j = serve_json(&server, "/v1/completions", 200, body);
        bool drafts = i == 1 || i == 2;
        assert_true(drafts == (json_int_at(j, "timings.draft_n") > 0));
        if (!first) first = strdup(json_text_at(j, "choices.0.text"));
        assert_string_equal(json_text_at(j, "choices.0.text"), first);
        json_decref(j);
    }
    free(first);
    json_decref(
        serve_json(&server, "/v1/completions", 400, "{\"prompt\": \"x\", \"draft\": \"rest:index=/etc/passwd\"}"));
    json_decref(serve_json(&server, "/v1/completions", 400, "{\"prompt\": \"x\", \"draft\": \"pld\"}"));
}

/* A request without `draft` gets `auto`, whose budgets are planned over all requests. */
static void drafts_are_on_by_default(void **state) {
    (void)state;
    static const char format[] = "{\"prompt\": \"a b c d e a b c d e a b c d e a b c\", \"max_tokens\": 60, "
                                 "\"temperature\": 0%s}";
    ServeRig s;
    char body[200];
    serve_start(&s, "-t 1 -c 128 --quiet");
    json_t *props = serve_json(&s, "/props", 200, NULL);
    assert_string_equal(json_text_at(props, "drafts.0"), "auto");
    snprintf(body, sizeof body, format, "");
    json_t *drafted = serve_json(&s, "/v1/completions", 200, body);
    snprintf(body, sizeof body, format, ", \"draft\": \"none\"");
    json_t *plain = serve_json(&s, "/v1/completions", 200, body);
    assert_string_equal(json_text_at(drafted, "choices.0.text"), json_text_at(plain, "choices.0.text"));
    assert_int_equal(json_int_at(plain, "timings.draft_n"), 0);
    assert_true(json_int_at(drafted, "timings.n_steps") <= 60);
    json_decref(props), json_decref(drafted), json_decref(plain);
    assert_int_equal(serve_stop(&s), 0);
}

/* A prediction that is right is accepted, one that is wrong changes no text. */
static void a_prediction_is_a_drafter(void **state) {
    (void)state;
    static const char format[] =
        "{\"prompt\": \"Once upon a time\", \"max_tokens\": 60, \"seed\": 1, \"temperature\": 0.8, \"draft\": "
        "\"none\", \"tree_budget\": 16, \"prediction\": {\"type\": \"content\", \"content\": %s}}";
    char body[4096];
    snprintf(body, sizeof body, format, "\"\"");
    json_t *plain = serve_json(&server, "/v1/completions", 200, body);
    json_t *text = json_string(json_text_at(plain, "choices.0.text"));
    char *right = json_dumps(text, JSON_ENCODE_ANY);
    assert_int_equal(json_int_at(plain, "timings.draft_n"), 0);
    snprintf(body, sizeof body, format, right);
    json_t *predicted = serve_json(&server, "/v1/completions", 200, body);
    assert_string_equal(json_text_at(predicted, "choices.0.text"), json_string_value(text));
    assert_true(json_int_at(predicted, "usage.completion_tokens_details.accepted_prediction_tokens") > 40);
    snprintf(body, sizeof body, format,
             "[{\"type\": \"text\", \"text\": \"All of this \"}, {\"type\": \"text\", \"text\": \"is wrong.\"}]");
    json_t *wrong = serve_json(&server, "/v1/completions", 200, body);
    assert_string_equal(json_text_at(wrong, "choices.0.text"), json_string_value(text));
    assert_true(json_int_at(wrong, "usage.completion_tokens_details.rejected_prediction_tokens") > 0);
    json_decref(plain), json_decref(predicted), json_decref(wrong), json_decref(text);
    free(right);
    json_decref(serve_json(&server, "/v1/completions", 400, "{\"prompt\": \"x\", \"prediction\": \"text\"}"));
}

/* Fields that cannot be honoured are refused by name. */
/* The template writes a space before an answer: clients do not see it, and the answer that they send back is found in
 * the prefix cache, whole and streamed. */
static void an_answer_that_is_sent_back_is_cached(void **state) {
    (void)state;
    static const char first[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a fox\"}], "
                                "\"temperature\": 0, \"max_tokens\": 40%s}";
    char body[1000];
    snprintf(body, sizeof body, first, "");
    json_t *j = serve_json(&server, "/v1/chat/completions", 200, body);
    const char *text = json_text_at(j, "choices.0.message.content");
    assert_true(text[0] && text[0] != ' ');
    snprintf(body, sizeof body, first, ", \"stream\": true");
    Answer a = serve_post(&server, "/v1/chat/completions", body);
    char *streamed = serve_stream_text(&a, "choices.0.delta.content");
    assert_string_equal(streamed, text);
    json_t *messages = json_pack("{s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}], s:i}", "messages", "role", "user", "content",
                                 "Tell me a story about a fox", "role", "assistant", "content", text, "role", "user",
                                 "content", "And then?", "max_tokens", 1);
    char *again = json_dumps(messages, 0);
    json_t *second = serve_json(&server, "/v1/chat/completions", 200, again);
    json_int_t n = json_int_at(j, "usage.total_tokens");
    assert_in_range(json_int_at(second, "usage.prompt_tokens_details.cached_tokens"), n - 2, n);
    json_decref(second), json_decref(j), json_decref(messages);
    free(again), free(streamed);
    answer_free(&a);
}

static void a_model_is_found_by_its_name(void **state) {
    (void)state;
    json_t *all = serve_json(&server, "/v1/models", 200, NULL),
           *one = serve_json(&server, "/v1/models/target", 200, NULL);
    assert_true(json_equal(json_at(all, "data.0"), one));
    json_decref(all), json_decref(one);
    json_decref(serve_json(&server, "/v1/models/", 404, NULL));
    json_decref(serve_json(&server, "/v1/modelsx", 404, NULL));
}

static void the_stop_string_is_reported(void **state) {
    (void)state;
    static const char *const stops[][2] = {{"[\" girl\"]", " girl"},
                                           {"[\"zz\", \"little girl\", \" girl\"]", "little girl"},
                                           {"[\"zz\"]", ""}};
    for (int i = 0; i < 6; i++) {
        char body[300];
        snprintf(
            body, sizeof body,
            "{\"prompt\": \"Once upon a time\", \"n_predict\": 12, \"temperature\": 0, \"stop\": %s, \"stream\": %s}",
            stops[i / 2][0], i % 2 ? "true" : "false");
        Answer a = serve_post(&server, "/completion", body);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "\"stopping_word\":\"%s\"", stops[i / 2][1]);
        if (!strstr(a.body, wanted)) fail_msg("%s: %s", body, a.body);
        answer_free(&a);
    }
}

/* return_progress and timings_per_token: the prompt is read in several steps, and each event has its figures. */
static void a_stream_reports_progress_and_timings(void **state) {
    (void)state;
    static const char *const paths[] = {"/v1/chat/completions", "/completion"};
    char prompt[1400] = "", body[2000];
    for (int i = 0; i < 110; i++) strcat(prompt, i % 2 ? "cat " : "red ");
    for (int i = 0; i < 2; i++) {
        json_int_t n_read = 0, n_progress = 0, n_timings = 0;
        if (i == 0)
            snprintf(body, sizeof body,
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}], \"stream\": true, \"max_tokens\": 8, "
                     "\"return_progress\": true, \"timings_per_token\": true}",
                     prompt);
        else
            snprintf(body, sizeof body,
                     "{\"prompt\": \"blue %s\", \"stream\": true, \"max_tokens\": 8, \"return_progress\": true, "
                     "\"timings_per_token\": true}",
                     prompt);
        Answer a = serve_post(&server, paths[i], body);
        assert_int_equal(a.status, 200);
        char *rest = a.body;
        for (char *line; (line = strsep(&rest, "\n"));) {
            json_t *event = strncmp(line, "data: {", 7) == 0 ? json_loads(line + 6, 0, NULL) : NULL;
            if (json_at(event, "prompt_progress")) {
                assert_true(json_int_at(event, "prompt_progress.processed") > n_read);
                n_read = json_int_at(event, "prompt_progress.processed");
                assert_true(n_read <= json_int_at(event, "prompt_progress.total"));
                n_progress++;
            }
            n_timings += json_at(event, "timings.predicted_n") != NULL;
            json_decref(event);
        }
        assert_true(n_progress > 0);
        assert_true(n_timings > 1);
        answer_free(&a);
    }
}

static void models_are_chosen_by_name(void **state) {
    (void)state;
    ServeRig two;
    serve_start(&two, "-t 1 -c 64 --draft none -m " SERVE_MODEL " -m small=models/draft.gguf");
    json_t *first = serve_json(&two, "/v1/completions", 200, "{\"prompt\": \"One\", \"temperature\": 0}"),
           *small = serve_json(&two, "/v1/completions", 200,
                               "{\"prompt\": \"One\", \"temperature\": 0, \"model\": \"small\"}"),
           *other = serve_json(&two, "/v1/completions", 404, "{\"prompt\": \"One\", \"model\": \"large\"}");
    assert_string_equal(json_text_at(first, "model"), "target");
    assert_string_equal(json_text_at(small, "model"), "small");
    assert_string_not_equal(json_text_at(first, "choices.0.text"), json_text_at(small, "choices.0.text"));
    assert_string_equal(json_text_at(other, "error.code"), "model_not_found");
    json_decref(first), json_decref(small), json_decref(other);
    assert_int_equal(serve_stop(&two), 0);
}

/* vLLM's endpoints for routers: the tokens of a request are those that are counted when it is generated. */
static void prompts_are_rendered(void **state) {
    (void)state;
    static const char chat[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 2, \"top_k\": 5}",
                      two[] = "{\"prompt\": [\"One day\", [5, 6, 7]], \"max_tokens\": 2}";
    json_t *rendered = serve_json(&server, "/v1/chat/completions/render", 200, chat),
           *answered = serve_json(&server, "/v1/chat/completions", 200, chat);
    assert_int_equal(json_array_size(json_at(rendered, "token_ids")), json_int_at(answered, "usage.prompt_tokens"));
    assert_int_equal(json_int_at(rendered, "sampling_params.max_tokens"), 2);
    assert_int_equal(json_int_at(rendered, "sampling_params.top_k"), 5);
    assert_int_equal(strncmp(json_text_at(rendered, "request_id"), "chatcmpl-", 9), 0);
    json_decref(rendered), json_decref(answered);
    rendered = serve_json(&server, "/v1/completions/render", 200, two);
    answered = serve_json(&server, "/tokenize", 200, "{\"prompt\": \"One day\"}");
    assert_int_equal(json_array_size(rendered), 2);
    assert_true(json_equal(json_at(rendered, "0.token_ids"), json_at(answered, "tokens")));
    assert_int_equal(json_int_at(rendered, "1.token_ids.2"), 7);
    json_decref(rendered), json_decref(answered);
    json_decref(serve_json(&server, "/v1/chat/completions/render", 400, "{\"messages\": 3}"));
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_server_describes_itself),
        cmocka_unit_test(a_completion_has_text_usage_and_timings),
        cmocka_unit_test(a_seed_gives_one_text_and_is_reported),
        cmocka_unit_test(several_choices_are_several_seeds),
        cmocka_unit_test(stops_and_echo),
        cmocka_unit_test(a_stream_is_the_whole_answer_in_pieces),
        cmocka_unit_test(usage_of_a_stream_comes_last_and_only_on_request),
        cmocka_unit_test(tokens_and_templates),
        cmocka_unit_test(tokenize_knows_both_conventions),
        cmocka_unit_test(other_servers_paths_are_answered),
        cmocka_unit_test(a_text_is_filled_in),
        cmocka_unit_test(documents_are_ranked_by_their_embeddings),
        cmocka_unit_test(answers_have_ids_and_encodings_are_refused),
        cmocka_unit_test(an_answer_has_the_metrics_of_its_drafts),
        cmocka_unit_test(metrics_have_vllms_names_on_request),
        cmocka_unit_test(the_native_form_of_llama_cpp),
        cmocka_unit_test(drafts_are_chosen_by_name_and_change_no_text),
        cmocka_unit_test(drafts_are_on_by_default),
        cmocka_unit_test(a_prediction_is_a_drafter),
        cmocka_unit_test(an_answer_that_is_sent_back_is_cached),
        cmocka_unit_test(a_model_is_found_by_its_name),
        cmocka_unit_test(the_stop_string_is_reported),
        cmocka_unit_test(models_are_chosen_by_name),
        cmocka_unit_test(a_stream_reports_progress_and_timings),
        cmocka_unit_test(prompts_are_rendered),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
