/* test_draft_api.c - POST /draft of a server with a small model, and texts whose drafter `remote` asks it: they are
 * those of plain decoding, also if the server is stopped or dies. */
#include "serve_rig.h"

#include "cli_rig.h"
#include "text/vocab.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SMALL_MODEL "models/draft.gguf"
#define PROMPT_IDS "[1, 403, 1501, 263, 931]"

static ServeRig server;
static char vocabulary[17];

static int start(void **state) {
    (void)state;
    Gguf *g;
    uint64_t number = 0;
    fr_error err;
    if (gguf_open(&g, SERVE_MODEL, &err) || vocab_fingerprint(g, &number, &err)) fail_msg("%s", err.message);
    snprintf(vocabulary, sizeof vocabulary, "%016" PRIx64, number);
    gguf_close(g);
    serve_start(&server, "-m " SMALL_MODEL " -t 1 -c 256 --parallel 4 --draft none");
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&server);
}

static void a_draft_is_what_the_model_generates_greedily(void **state) {
    (void)state;
    char body[256];
    snprintf(body, sizeof body, "{\"tokens\": " PROMPT_IDS ", \"n\": 6, \"vocabulary\": \"%s\"}", vocabulary);
    json_t *draft = serve_json(&server, "/draft", 200, body),
           *text = serve_json(&server, "/completion", 200,
                              "{\"prompt\": " PROMPT_IDS
                              ", \"n_predict\": 6, \"temperature\": 0, \"ignore_eos\": true, \"return_tokens\": true}");
    assert_int_equal(json_array_size(json_at(draft, "tokens")), 6);
    assert_true(
        json_equal((json_t *)(uintptr_t)json_at(draft, "tokens"), (json_t *)(uintptr_t)json_at(text, "tokens")));
    json_decref(draft), json_decref(text);
    snprintf(body, sizeof body, "{\"tokens\": [], \"vocabulary\": \"%s\"}", vocabulary);
    draft = serve_json(&server, "/draft", 200, body);
    assert_int_equal(json_array_size(json_at(draft, "tokens")), 0);
    json_decref(draft);
}

static void questions_that_cannot_be_answered_are_refused(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *fields, *param; /* %s: the vocabulary */
    } cases[] = {
        {409, "\"tokens\": [1], \"vocabulary\": \"0123456789abcdef\"", "vocabulary"},
        {409, "\"tokens\": [], \"vocabulary\": \"\"", "vocabulary"},
        {400, "\"tokens\": [1]", "vocabulary"},
        {400, "\"vocabulary\": \"%s\"", "tokens"},
        {400, "\"tokens\": \"Once\", \"vocabulary\": \"%s\"", "tokens"},
        {400, "\"tokens\": [1, 4096000], \"vocabulary\": \"%s\"", "tokens"},
        {400, "\"tokens\": [1, -1], \"vocabulary\": \"%s\"", "tokens"},
        {400, "\"tokens\": [1.5], \"vocabulary\": \"%s\"", "tokens"},
        {400, "\"tokens\": [1], \"n\": 0, \"vocabulary\": \"%s\"", "n"},
        {400, "\"tokens\": [1], \"n\": 65, \"vocabulary\": \"%s\"", "n"},
        {400, "\"tokens\": [1], \"vocabulary\": \"%s\", \"temperature\": 1", "temperature"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char fields[256], body[300];
        const char *at = strstr(cases[i].fields, "%s");
        snprintf(fields, sizeof fields, "%s", cases[i].fields);
        if (at)
            snprintf(fields, sizeof fields, "%.*s%s%s", (int)(at - cases[i].fields), cases[i].fields, vocabulary,
                     at + 2);
        snprintf(body, sizeof body, "{%s}", fields);
        json_t *j = serve_json(&server, "/draft", cases[i].status, body);
        assert_string_equal(json_text_at(j, "error.param"), cases[i].param);
        json_decref(j);
    }
}

/* ---- texts ---------------------------------------------------------------------------------------------------- */

/* Runs the target, and returns its statistics with its text. */
static json_t *run(const char *args, const char *draft) {
    static char out[1 << 16];
    char command[800], path[600];
    snprintf(path, sizeof path, "%s/remote-stats.json", cli_rig_folder());
    snprintf(command, sizeof command,
             "run -m " SERVE_MODEL " -t 1 -c 300 -p 'Once upon a time' %s --stats-json %s --draft %s", args, path,
             draft);
    int status = cli_run(command, out, sizeof out);
    json_t *j = json_load_file(path, 0, NULL);
    if (status || !j) fail_msg("forerun %s: status %d, '%s'", command, status, out);
    unlink(path);
    return j;
}

static json_int_t accepted_beside_plain(const char *args, const char *draft) {
    json_t *plain = run(args, "none"), *drafted = run(args, draft);
    json_int_t accepted = json_int_at(drafted, "accepted");
    assert_string_equal(json_text_at(drafted, "text"), json_text_at(plain, "text"));
    assert_string_equal(json_text_at(drafted, "logits_hash"), json_text_at(plain, "logits_hash"));
    json_decref(plain), json_decref(drafted);
    return accepted;
}

static void texts_are_those_of_plain_decoding(void **state) {
    (void)state;
    char draft[100];
    snprintf(draft, sizeof draft, "remote:server=127.0.0.1:%d,timeout=20000", server.port);
    assert_true(accepted_beside_plain("-n 30 --temp 0", draft) >= 10);
    assert_true(accepted_beside_plain("-n 30 --temp 0.8 --seed 3", draft) > 0);
    snprintf(draft, sizeof draft, "pld+remote:server=127.0.0.1:%d,timeout=20000,length=2", server.port);
    assert_true(accepted_beside_plain("-n 30 --temp 0", draft) > 0);
    snprintf(draft, sizeof draft, "run -m " SERVE_MODEL " -p x -n 1 --verify chain --draft remote:server=127.0.0.1:%d",
             server.port);
    cli_expect(draft, 2, "depends on time, and with --verify chain the text would depend on it, too");
}

static void write_key(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A server with keys drafts only for those who have one. */
static void a_key_opens_the_server(void **state) {
    (void)state;
    static const char *const bad[] = {"", "\n", "two words\n", "sk-\x01\n"};
    ServeRig s;
    char path[600], draft[700], command[900];
    snprintf(path, sizeof path, "%s/remote-key.txt", cli_rig_folder());
    setenv("FORERUN_API_KEY", "sk-1", 1);
    serve_start(&s, "-m " SMALL_MODEL " -t 1 -c 256 --parallel 4 --draft none");
    unsetenv("FORERUN_API_KEY");
    snprintf(draft, sizeof draft, "remote:server=127.0.0.1:%d,timeout=20000,key-file=%s", s.port, path);
    write_key(path, "sk-1\r\n");
    assert_true(accepted_beside_plain("-n 30 --temp 0", draft) >= 10);
    snprintf(command, sizeof command, "run -m " SERVE_MODEL " -p x -n 1 --draft %s", draft);
    write_key(path, "sk-1");
    assert_true(accepted_beside_plain("-n 10 --temp 0", draft) > 0);
    write_key(path, "sk-2\n");
    cli_expect(command, 1, "refuses to draft (status 401)");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_key(path, bad[i]);
        cli_expect(command, 2, "must be a key of 1 to 256 visible characters");
    }
    char long_key[258];
    snprintf(long_key, sizeof long_key, "%0257d", 7);
    write_key(path, long_key);
    cli_expect(command, 2, "must be a key of 1 to 256 visible characters");
    unlink(path);
    cli_expect(command, 1, "remote-key.txt");
    snprintf(command, sizeof command, "run -m " SERVE_MODEL " -p x -n 1 --draft remote:server=127.0.0.1:%d", s.port);
    cli_expect(command, 1, "refuses to draft (status 401)");
    assert_int_equal(serve_stop(&s), 0);
}

#define GENERATED "forerun_generation_tokens_total{model_name=\"draft\"}"
static double generated_before;

/* Sends a signal to the server when it has answered some questions. */
static void *signal_server(void *number) {
    for (int i = 0; i < 6000 && serve_metric(&server, GENERATED) < generated_before + 20; i++) usleep(10000);
    kill(server.pid, *(const int *)number);
    return NULL;
}

/* The text goes on without drafts while the server is stopped, and after it was killed. */
static void a_server_that_ends_does_not_end_the_text(void **state) {
    (void)state;
    static const int signals[] = {SIGSTOP, SIGKILL};
    char draft[100];
    snprintf(draft, sizeof draft, "remote:server=127.0.0.1:%d,timeout=50", server.port);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        generated_before = serve_metric(&server, GENERATED);
        assert_int_equal(pthread_create(&thread, NULL, signal_server, (void *)(uintptr_t)&signals[i]), 0);
        accepted_beside_plain("-n 250 --ignore-eos", draft);
        pthread_join(thread, NULL);
        if (i == 0) kill(server.pid, SIGCONT);
        print_message("the text went on after signal %d\n", signals[i]);
    }
    assert_int_equal(serve_wait_end(&server), -SIGKILL);
    snprintf(draft, sizeof draft, "run -m " SERVE_MODEL " -p x -n 1 --draft remote:server=127.0.0.1:%d", server.port);
    cli_expect(draft, 0, "does not draft yet (Connection refused)");
    serve_start(&server, "-m " SMALL_MODEL " -t 1 -c 256");
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_is_what_the_model_generates_greedily),
        cmocka_unit_test(questions_that_cannot_be_answered_are_refused),
        cmocka_unit_test(texts_are_those_of_plain_decoding),
        cmocka_unit_test(a_key_opens_the_server),
        cmocka_unit_test(a_server_that_ends_does_not_end_the_text),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
