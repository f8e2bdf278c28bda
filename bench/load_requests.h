/* load_requests.h - what bench_serve sends: requests of four APIs that differ in prompt and sampling, and requests that
 * must be refused. */
#ifndef BENCH_LOAD_REQUESTS_H
#define BENCH_LOAD_REQUESTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One API: the beginning of a body for a prompt, and the path of the text in an answer and in an event of a stream. */
typedef struct LoadForm {
    const char *path, *begin, *whole, *piece;
    const char *n_tokens; /* the key of the number of generated tokens */
} LoadForm;

static const LoadForm load_forms[] = {
    {"/v1/completions", "\"prompt\": \"%s\"", "choices.0.text", "choices.0.text", "\"completion_tokens\":"},
    {"/v1/chat/completions", "\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]", "choices.0.message.content",
     "choices.0.delta.content", "\"completion_tokens\":"},
    {"/v1/messages", "\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]", "content.0.text", "delta.text",
     "\"output_tokens\":"},
    {"/completion", "\"prompt\": \"%s\"", "content", "content", "\"tokens_predicted\":"},
};
static const char *const load_prompts[] = {
    "Once upon a time",
    "One day a cat",
    "Tell me a story about a dog who found a ball in the park. The dog was happy and ran to his friend.",
    "The little girl said",
    "Lily and Tom went to the sea. They saw a big boat, a small boat, and a bird on the sand",
    "Who lives in the forest?",
    "It was raining",
};
static const char *const load_samplings[] = {
    "\"temperature\": 0",
    "\"temperature\": 1, \"seed\": 5",
    "\"temperature\": 0.7, \"top_p\": 0.9, \"seed\": 6",
    "\"temperature\": 1.2, \"top_k\": 40, \"seed\": 7",
    "\"temperature\": 0.8, \"seed\": 8, \"ignore_eos\": true",
};
#define LOAD_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
/* 4, 7 and 5 have no common divisor: the first 140 requests are all different. */
enum { LOAD_KINDS_MAX = 140, LOAD_HEAD_MAX = 512, LOAD_REQUEST_MAX = 2048 };

static inline const LoadForm *load_form(int kind) { return &load_forms[kind % LOAD_COUNT(load_forms)]; }

/* The first 35 are different requests to /v1/chat/completions. */
static inline int load_kind_of_chat(int i) { return (LOAD_COUNT(load_forms) * i + 1) % LOAD_KINDS_MAX; }

/* A whole HTTP request. draft NULL: the server's own drafters. variant: 0, or a number that makes it another request.
 * times: the events of a stream contain the times at which its tokens were chosen. */
static inline int load_format(char out[LOAD_REQUEST_MAX], int kind, uint32_t variant, int max_tokens, bool streams,
                              const char *draft, bool times, const char *headers) {
    const LoadForm *f = load_form(kind);
    char body[LOAD_REQUEST_MAX / 2], prompt[LOAD_REQUEST_MAX / 4], sampling[64];
    snprintf(prompt, sizeof prompt, "%s", load_prompts[kind % LOAD_COUNT(load_prompts)]);
    snprintf(sampling, sizeof sampling, "%s", load_samplings[kind % LOAD_COUNT(load_samplings)]);
    if (variant) {
        snprintf(prompt, sizeof prompt, "%u %s", variant % 100000, load_prompts[kind % LOAD_COUNT(load_prompts)]);
        snprintf(sampling, sizeof sampling, "\"temperature\": 1, \"seed\": %u", variant);
    }
    int n = snprintf(body, sizeof body, "{");
    n += snprintf(body + n, sizeof body - (size_t)n, f->begin, prompt);
    n += snprintf(body + n, sizeof body - (size_t)n, ", %s, \"max_tokens\": %d, \"stream\": %s", sampling, max_tokens,
                  streams ? "true" : "false");
    if (draft) n += snprintf(body + n, sizeof body - (size_t)n, ", \"draft\": \"%s\"", draft);
    if (streams && times) n += snprintf(body + n, sizeof body - (size_t)n, ", \"forerun\": {\"tokens\": true}");
    if (streams && strcmp(f->n_tokens, "\"completion_tokens\":") == 0)
        n += snprintf(body + n, sizeof body - (size_t)n, ", \"stream_options\": {\"include_usage\": true}");
    n += snprintf(body + n, sizeof body - (size_t)n, "}");
    return snprintf(out, LOAD_REQUEST_MAX,
                    "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Type: application/json\r\nContent-Length: "
                    "%d\r\n\r\n%s",
                    f->path, headers, n, body);
}

/* Each of them gets an answer with status 4xx. */
static const char *const load_malformed[] = {
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n{\"prompt\": 1",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 25\r\n\r\n{\"messages\": \"no list!!!\"}",
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 25\r\n\r\n{\"prompt\": \"a\", \"no\": 17}",
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n",
    "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "\x01\x02\x03 not HTTP\r\n\r\n",
};

/* Returns the value at a path such as "choices.0.text"; NULL: there is none. */
static inline const json_t *load_value_at(const json_t *at, const char *path) {
    char part[64];
    while (at && *path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(part)) : json_object_get(at, part);
        path += n + (path[n] == '.');
    }
    return at;
}

static inline const char *load_text_at(const json_t *at, const char *path) {
    return json_string_value(load_value_at(at, path));
}

#endif
