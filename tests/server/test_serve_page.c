/* test_serve_page.c - the page at /: how it is served, the addresses in it, the field "forerun" that it uses, and the
 * page in a real Chromium if playwright-core is installed (tests/server/page.mjs). */
#include "serve_rig.h"

#include "base/system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ServeRig server;

static int start(void **state) {
    (void)state;
    char path[700], args[900];
    snprintf(path, sizeof path, "%s/serve-page-keys.txt", serve_rig_folder());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("secret\n", f);
    fclose(f);
    snprintf(args, sizeof args, "-t 2 -c 512 --tree-budget 8 --api-key-file %s --draft ngram-trie --draft suffix",
             path);
    serve_start(&server, args);
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&server);
}

/* Finds everything that could make a browser contact another host: "//" after a scheme, or at the beginning of a
 * string. */
static void names_no_other_host(const char *text) {
    for (const char *at = text + 1; (at = strstr(at, "//")); at += 2) {
        if (strncmp(at, "//www.w3.org/2000/svg\"", 22) == 0) continue; /* the name of a namespace */
        if (strchr(":\"'`(=", at[-1])) fail_msg("an address: %.60s", at - 10);
    }
    assert_null(strstr(text, "@import"));
    assert_null(strstr(text, "url("));
    assert_null(strstr(text, "innerHTML"));
    assert_null(strstr(text, "insertAdjacentHTML"));
    assert_null(strstr(text, "document.write"));
    assert_null(strstr(text, "eval("));
}

static void the_page_is_served_with_a_strict_policy(void **state) {
    (void)state;
    static const char *const files[][3] = {
        {"/", "Content-Type: text/html; charset=utf-8\r\n", "<!doctype html>"},
        {"/page.css", "Content-Type: text/css; charset=utf-8\r\n", "color-scheme"},
        {"/figures.js", "Content-Type: text/javascript; charset=utf-8\r\n", "\"use strict\""},
        {"/markdown.js", "Content-Type: text/javascript; charset=utf-8\r\n", "\"use strict\""},
        {"/answer.js", "Content-Type: text/javascript; charset=utf-8\r\n", "\"use strict\""},
        {"/page.js", "Content-Type: text/javascript; charset=utf-8\r\n", "\"use strict\""},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        Answer a = serve_get(&server, files[i][0]); /* without a key */
        assert_int_equal(a.status, 200);
        assert_true(a.is_whole);
        assert_non_null(strstr(a.head, files[i][1]));
        assert_non_null(strstr(a.head, "Content-Security-Policy: default-src 'none'; script-src 'self';"));
        assert_null(strstr(a.head, "unsafe"));
        assert_non_null(strstr(a.head, "X-Content-Type-Options: nosniff\r\n"));
        assert_non_null(strstr(a.head, "Referrer-Policy: no-referrer\r\n"));
        assert_non_null(strstr(a.body, files[i][2]));
        assert_int_equal(strlen(a.body), a.n_body);
        names_no_other_host(a.body);
        answer_free(&a);
    }
    Answer head = serve_request(&server, "HEAD", "/", "", NULL), post = serve_post(&server, "/", "{}");
    assert_int_equal(head.status, 200);
    assert_int_equal(head.n_body, 0);
    assert_int_equal(post.status, 405);
    answer_free(&head), answer_free(&post);
    head = serve_get(&server, "/props");
    assert_int_equal(head.status, 401);
    answer_free(&head);
}

#define PROMPT "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a dog.\"}], \"temperature\": 0"

static Answer post_chat(const char *more) {
    char body[600];
    snprintf(body, sizeof body, "{" PROMPT ", \"max_tokens\": 60%s}", more);
    return serve_request(&server, "POST", "/v1/chat/completions", "Authorization: Bearer secret\r\n", body);
}

/* Each step is a tree whose accepted nodes, from the root down, are the step's tokens except the last. */
static int64_t check_step(const json_t *step, const json_t *tokens, size_t first) {
    const json_t *tree = json_object_get(step, "tree");
    size_t n = (size_t)json_int_at(step, "n"), at = 0, k = 0;
    assert_true(json_array_size(tree) >= 1);
    assert_int_equal(json_int_at(json_array_get(tree, 0), "parent"), -1);
    for (size_t i = 1; i < json_array_size(tree); i++) {
        const json_t *node = json_array_get(tree, i);
        double p = json_number_value(json_object_get(node, "p"));
        assert_true(json_int_at(node, "parent") < (json_int_t)i && p >= 0 && p <= 1);
        assert_true(json_is_string(json_object_get(node, "source")));
        if (!json_is_true(json_object_get(node, "accepted"))) continue;
        const json_t *token = json_array_get(tokens, first + k);
        assert_int_equal(json_int_at(node, "parent"), at);
        assert_string_equal(json_text_at(node, "text"), json_text_at(token, "text"));
        assert_string_equal(json_text_at(node, "source"), json_text_at(token, "source"));
        at = i;
        k++;
    }
    assert_true(k + 1 == n || k == n); /* the text may end within the accepted path */
    return (int64_t)n;
}

/* The times at which the tokens were chosen: in order, and within the time of the answer. */
static void check_times(const json_t *tokens, double most_ms) {
    double last = 0;
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        double ms = json_real_value(json_object_get(json_array_get(tokens, i), "ms"));
        if (!(ms > 0 && ms >= last && ms <= most_ms))
            fail_msg("token %zu after %g ms, the one before after %g, all after %g", i, ms, last, most_ms);
        last = ms;
    }
    assert_true(last > json_real_value(json_at(tokens, "0.ms"))); /* they are not the time of the whole answer */
}

static void a_stream_names_the_drafter_of_each_token(void **state) {
    (void)state;
    Answer plain = post_chat("");
    double start_s = clock_s();
    Answer a = post_chat(", \"stream\": true, \"forerun\": {\"trees\": true}");
    double took_ms = (clock_s() - start_s) * 1e3;
    assert_int_equal(a.status, 200);
    char *text = serve_stream_text(&a, "choices.0.delta.content"), *rest = a.body, whole[4000] = "";
    json_t *tokens = json_array(), *steps = json_array();
    double plain_ms = 0;
    json_int_t n_accepted = -1;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (strncmp(line, "data: {", 7) != 0) continue;
        json_t *event = json_loads(line + 6, 0, NULL);
        json_array_extend(tokens, (json_t *)(uintptr_t)json_at(event, "choices.0.forerun.tokens"));
        json_array_extend(steps, (json_t *)(uintptr_t)json_at(event, "choices.0.forerun.steps"));
        if (json_at(event, "timings")) {
            plain_ms = json_number_value(json_at(event, "timings.plain_per_token_ms"));
            n_accepted = json_int_at(event, "timings.draft_n_accepted");
        }
        json_decref(event);
    }
    json_int_t n_drafted_tokens = 0;
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        strcat(whole, json_text_at(json_array_get(tokens, i), "text"));
        const char *source = json_string_value(json_object_get(json_array_get(tokens, i), "source"));
        if (!source) continue;
        assert_true(strcmp(source, "ngram-trie") == 0 || strcmp(source, "suffix") == 0);
        n_drafted_tokens++;
    }
    assert_string_equal(whole + 1, text); /* without the blank of the template */
    assert_int_equal(n_drafted_tokens, n_accepted);
    assert_true(n_accepted > 0);
    assert_true(plain_ms > 0);
    check_times(tokens, took_ms);
    size_t n_in_steps = 0;
    for (size_t i = 0; i < json_array_size(steps); i++)
        n_in_steps += (size_t)check_step(json_array_get(steps, i), tokens, n_in_steps);
    assert_int_equal(n_in_steps, json_array_size(tokens));
    json_t *answer = json_loads(plain.body, 0, NULL);
    assert_string_equal(json_text_at(answer, "choices.0.message.content"), text);
    json_decref(answer), json_decref(tokens), json_decref(steps);
    free(text);
    answer_free(&a), answer_free(&plain);
}

static void the_field_is_sent_only_on_request(void **state) {
    (void)state;
    Answer a = post_chat(", \"stream\": true"), b = post_chat(", \"stream\": true, \"forerun\": {\"tokens\": true}"),
           c = post_chat(", \"forerun\": {\"tokens\": true}"),
           d = post_chat(", \"stream\": true, \"forerun\": {\"x\": true}");
    assert_null(strstr(a.body, "\"forerun\":"));
    assert_non_null(strstr(b.body, "\"forerun\":{\"tokens\":["));
    assert_null(strstr(b.body, "\"steps\""));
    assert_int_equal(c.status, 400);
    assert_int_equal(d.status, 400);
    assert_non_null(strstr(d.body, "'forerun.x' is not supported"));
    answer_free(&a), answer_free(&b), answer_free(&c), answer_free(&d);
}

static void props_have_the_costs(void **state) {
    (void)state;
    Answer a = serve_request(&server, "GET", "/props", "Authorization: Bearer secret\r\n", NULL);
    json_t *props = json_loads(a.body, 0, NULL);
    const json_t *costs = json_at(props, "forward_ms");
    assert_int_equal(json_array_size(costs), 32);
    for (size_t i = 0; i < 32; i++) {
        double ms = json_number_value(json_array_get(costs, i));
        assert_true(ms > 0);
        assert_true(i == 0 || ms >= json_number_value(json_array_get(costs, i - 1)));
    }
    assert_true(json_number_value(json_at(props, "context_ms")) >= 0);
    json_decref(props);
    answer_free(&a);
}

static void the_page_works_in_chromium(void **state) {
    (void)state;
    const char *folder = getenv("FORERUN_NODE_MODULES"), *browser = getenv("CHROMIUM");
    char path[1024], command[1200];
    ServeRig s;
    snprintf(path, sizeof path, "%s/node_modules/playwright-core/package.json", folder ? folder : "");
    if (!folder || access(path, R_OK) != 0 || access(browser ? browser : "/usr/bin/chromium", X_OK) != 0 ||
        system("command -v node >/dev/null 2>&1") != 0) {
        print_message(
            "skipped: no chromium, no node, or no npm's playwright-core (set FORERUN_NODE_MODULES to the folder "
            "that holds its node_modules)\n");
        skip();
    }
    serve_start(&s, "-t 2 -c 2048 --tree-budget 8 --draft ngram-trie --draft suffix");
    snprintf(command, sizeof command, "timeout 300 node tests/server/page.mjs http://127.0.0.1:%d", s.port);
    int status = system(command);
    assert_int_equal(serve_stop(&s), 0);
    assert_int_equal(status, 0);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_is_served_with_a_strict_policy),
        cmocka_unit_test(a_stream_names_the_drafter_of_each_token),
        cmocka_unit_test(the_field_is_sent_only_on_request),
        cmocka_unit_test(props_have_the_costs),
        cmocka_unit_test(the_page_works_in_chromium),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
