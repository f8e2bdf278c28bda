/* test_serve_memory.c - the memory of the server does not grow after its first requests.
 *
 * Requests never repeat, have drafters that remember answers, and are streamed or not; some are refused, some
 * interrupted: after a warm-up the process must not grow. A leak of 4 KiB per request is more than is allowed here. */
#include "serve_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_CLIENTS = 8, N_WARM = 40, N_ROUNDS = 50, LEAK_BYTES = 4096 };

typedef struct Sender {
    pthread_t thread;
    const ServeRig *server;
    int index, n_requests, round;
} Sender;

static long resident_kib(const ServeRig *s) {
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)s->pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) sscanf(line, "VmRSS: %ld", &kib);
    fclose(f);
    return kib;
}

/* The prompt has the number of the request before everything else, so that no prefix is shared. */
static void send_one(const ServeRig *s, int number) {
    static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/v1/messages", "/completion"};
    char body[512], prompt[200], text[1024];
    int kind = number % 4;
    snprintf(prompt, sizeof prompt,
             kind == 1 || kind == 2 ? "\"messages\": [{\"role\": \"user\", \"content\": \"%d dogs\"}]"
                                    : "\"prompt\": \"%d dogs\"",
             number);
    snprintf(body, sizeof body, "{%s, \"max_tokens\": %d, \"temperature\": 1, \"seed\": %d, \"stream\": %s%s}", prompt,
             8 + number % 40, number, number % 3 ? "true" : "false", number % 11 == 0 ? ", \"no_such_field\": 1" : "");
    if (number % 7 == 0) { /* hangs up */
        int fd = serve_connect(s);
        serve_format_post(text, sizeof text, paths[kind], body);
        serve_send(fd, text);
        usleep(1000u * (unsigned)(number % 5));
        close(fd);
        return;
    }
    Answer a = serve_post(s, paths[kind], body);
    if (a.status != (number % 11 == 0 ? 400 : 200)) fail_msg("%s: status %d", body, a.status);
    answer_free(&a);
}

static void *send_all(void *arg) {
    Sender *t = arg;
    for (int i = 0; i < t->n_requests; i++) send_one(t->server, 1 + (t->round * 1000 + i) * N_CLIENTS + t->index);
    return NULL;
}

static void send_round(const ServeRig *s, int round, int n_requests) {
    Sender senders[N_CLIENTS];
    for (int i = 0; i < N_CLIENTS; i++) {
        senders[i] = (Sender){.server = s, .index = i, .n_requests = n_requests, .round = round};
        assert_int_equal(pthread_create(&senders[i].thread, NULL, send_all, &senders[i]), 0);
    }
    for (int i = 0; i < N_CLIENTS; i++) pthread_join(senders[i].thread, NULL);
}

static void memory_does_not_grow_with_requests(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a sanitizer keeps freed memory\n");
    skip();
#endif
    ServeRig s;
    serve_start(&s, "-t 2 --quiet --draft ngram-trie --draft lookahead-trie --draft suffix --draft recycling");
    send_round(&s, 0, N_WARM);
    long before = resident_kib(&s);
    send_round(&s, 1, N_ROUNDS);
    long grown = resident_kib(&s) - before, allowed = N_ROUNDS * N_CLIENTS * (LEAK_BYTES / 1024) / 4;
    print_message("%ld KiB after %d requests, %+ld KiB after %d more\n", before, N_WARM * N_CLIENTS, grown,
                  N_ROUNDS * N_CLIENTS);
    if (grown > allowed) fail_msg("grown by %ld KiB, want at most %ld", grown, allowed);
    assert_int_equal(serve_stop(&s), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_does_not_grow_with_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
