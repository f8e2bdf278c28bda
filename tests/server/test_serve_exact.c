/* test_serve_exact.c - a request gets the same text by itself and among 31 others, with any drafter, streamed or not.
 *
 * 32 requests that differ in prompt, sampling, drafter, budget, stops, choices, schema, biases and log-probabilities
 * are sent one after the other to a server that drafts nothing and shares nothing, and then all at once, twice, to one
 * that drafts, shares prefixes, and has places for some of them and pages for fewer; meanwhile other clients hang
 * up. */
#include "serve_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 32, N_CHOICES = 2 };

typedef struct Case {
    pthread_t thread;
    const ServeRig *server;
    char body[1400], *texts[N_CHOICES];
    json_t *logprobs[N_CHOICES]; /* the columns of all events, or NULL */
    bool streams, hangs_up;
    int n_choices, status;
} Case;

static const char *const prompts[] = {"Once upon a time", "One day a cat", "Once upon a time there was a dog who",
                                      "The little"};
static const char *const samplings[] = {
    "\"temperature\": 0", "\"temperature\": 1, \"seed\": 5", "\"temperature\": 0.7, \"top_p\": 0.9, \"seed\": 6",
    "\"temperature\": 1.3, \"top_k\": 40, \"min_p\": 0.02, \"seed\": 7, \"frequency_penalty\": 0.5",
    "\"temperature\": 0, \"repeat_penalty\": 1.2"};
static const char *const drafts[] = {
    "\"none\"", "\"ngram-trie\"", "\"suffix\"", "[\"ngram-trie\", \"lookahead-trie\"]", "\"eagle\"", "\"sps\"", "null"};

/* Adds more fields to every other request. */
static const char *const extras[] = {
    "",
    ", \"logprobs\": 3",
    "",
    ", \"json_schema\": {\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"age\": {\"type\": "
    "\"integer\"}, \"friends\": {\"type\": \"array\", \"items\": {\"enum\": [\"cat\", \"dog\"]}}}, \"required\": "
    "[\"name\", "
    "\"age\", \"friends\"]}",
    ", \"logit_bias\": {\"4033\": -100, \"263\": 2.5}, \"logprobs\": 0",
    ", \"grammar\": \"root ::= (\\\"the \\\" [a-z]+ \\\" \\\")+\", \"logprobs\": 20",
    "",
    ", \"response_format\": {\"type\": \"json_object\"}, \"logit_bias\": [[\"the\", false]]"};
enum { N_EXTRAS = sizeof extras / sizeof *extras };

static void make_case(Case *c, int i, const ServeRig *server, bool may_draft) {
    *c = (Case){.server = server, .n_choices = i % 5 == 4 ? 2 : 1, .streams = may_draft && i % 3 == 1};
    snprintf(c->body, sizeof c->body,
             "{\"prompt\": \"%s\", \"max_tokens\": %d, %s, \"n\": %d%s%s, \"draft\": %s%s, \"stream\": %s}",
             prompts[i % 4], 20 + i * 2, samplings[i % 5], c->n_choices,
             i % 7 == 3 ? ", \"stop\": [\" the \", \".\\n\"]" : "", extras[i % N_EXTRAS],
             may_draft ? drafts[i % 7] : "\"none\"", may_draft && i % 4 == 2 ? ", \"tree_budget\": 6" : "",
             c->streams ? "true" : "false");
}

static void add_columns(json_t **to, const json_t *columns) {
    const char *name;
    json_t *column;
    if (!json_is_object(columns)) return;
    if (!*to) *to = json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
    json_object_foreach((json_t *)(uintptr_t)columns, name, column)
        json_array_extend(json_object_get(*to, name), column);
}

/* Returns the text of one choice, from the events of all. */
static char *streamed_text(const Answer *a, int index, json_t **logprobs) {
    char *text = calloc(1, a->n_body + 1), *copy = strdup(a->body), *rest = copy;
    for (char *line; (line = strsep(&rest, "\n"));) {
        json_t *event = strncmp(line, "data: {", 7) == 0 ? json_loads(line + 6, 0, NULL) : NULL;
        const json_t *choice = json_at(event, "choices.0");
        if (json_integer_value(json_at(choice, "index")) == index && json_at(choice, "text"))
            strcat(text, json_string_value(json_at(choice, "text")));
        if (json_integer_value(json_at(choice, "index")) == index) add_columns(logprobs, json_at(choice, "logprobs"));
        json_decref(event);
    }
    free(copy);
    return text;
}

static void *run_case(void *arg) {
    Case *c = arg;
    if (c->hangs_up) {
        char text[2048];
        int fd = serve_connect(c->server);
        serve_format_post(text, sizeof text, "/v1/completions", c->body);
        serve_send(fd, text);
        usleep(2000u * (unsigned)(strlen(c->body) % 20));
        close(fd);
        return NULL;
    }
    Answer a = serve_post(c->server, "/v1/completions", c->body);
    c->status = a.is_whole ? a.status : -1;
    json_t *j = c->status == 200 && !c->streams ? json_loads(a.body, 0, NULL) : NULL;
    for (int k = 0; k < c->n_choices && c->status == 200; k++) {
        char path[64];
        snprintf(path, sizeof path, "choices.%d.logprobs", k);
        add_columns(&c->logprobs[k], json_at(j, path));
        snprintf(path, sizeof path, "choices.%d.text", k);
        const char *text = json_string_value(json_at(j, path));
        c->texts[k] = c->streams ? streamed_text(&a, k, &c->logprobs[k]) : text ? strdup(text) : NULL;
    }
    json_decref(j);
    answer_free(&a);
    return NULL;
}

static void free_texts(Case *c) {
    for (int k = 0; k < N_CHOICES; k++) {
        free(c->texts[k]), c->texts[k] = NULL;
        json_decref(c->logprobs[k]), c->logprobs[k] = NULL;
    }
}

static void run_together(Case *cases, int n) {
    for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&cases[i].thread, NULL, run_case, &cases[i]), 0);
    for (int i = 0; i < n; i++) pthread_join(cases[i].thread, NULL);
}

static void a_request_gets_the_same_text_by_itself_and_among_others(void **state) {
    (void)state;
    static Case alone[N], together[N + 8];
    ServeRig plain, crowded;
    int n_characters = 0, n_with_logprobs = 0;
    serve_start(&plain, "-t 1 -c 256 --parallel 2 --draft none --quiet");
    for (int i = 0; i < N; i++) {
        make_case(&alone[i], i, &plain, false);
        run_case(&alone[i]);
        assert_int_equal(alone[i].status, 200);
    }
    assert_int_equal(serve_stop(&plain), 0);
    serve_start(
        &crowded,
        "-t 2 -c 256 --kv-tokens 600 --parallel 12 --quiet --draft ngram-trie --draft suffix --draft lookahead-trie "
        "--draft eagle:file=models/eagle.gguf --draft sps:model=models/draft.gguf");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N + 8; i++) {
            make_case(&together[i], i % N, &crowded, true);
            together[i].hangs_up = i >= N;
        }
        run_together(together, N + 8);
        for (int i = 0; i < N; i++) {
            if (together[i].status != 200) fail_msg("%s: status %d", together[i].body, together[i].status);
            for (int k = 0; k < alone[i].n_choices; k++) {
                if (!together[i].texts[k] || strcmp(together[i].texts[k], alone[i].texts[k]) != 0)
                    fail_msg("%s, choice %d:\nalone    '%s'\ntogether '%s'", together[i].body, k, alone[i].texts[k],
                             together[i].texts[k]);
                if (alone[i].logprobs[k] && !json_equal(together[i].logprobs[k], alone[i].logprobs[k]))
                    fail_msg("%s, choice %d: other log-probabilities", together[i].body, k);
                n_with_logprobs += alone[i].logprobs[k] != NULL;
                n_characters += (int)strlen(alone[i].texts[k]);
            }
            free_texts(&together[i]);
        }
    }
    assert_true(n_characters > 5000);
    assert_true(n_with_logprobs >= 24);
    for (int i = 0; i < N; i++) free_texts(&alone[i]);
    assert_int_equal(serve_stop(&crowded), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_gets_the_same_text_by_itself_and_among_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
