/* test_serve_replicas.c - two replicas behind HAProxy with the shipped configuration, one of which is killed.
 *
 * 16 clients send requests whose plain answers are known. In their midst one replica gets SIGKILL. A request of which
 * no byte had come must be answered all the same, by the other replica; an answer that had begun must be visibly
 * incomplete, and the client's second try must get it. No answer may differ. */
#include "serve_rig.h"

#include "base/system.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONFIG "deploy/haproxy.cfg"
#define TOKENS "forerun_generation_tokens_total"
enum { N_CLIENTS = 16, N_KINDS = 24, N_BEFORE = 3, N_AFTER = 3, MAX_TRIES = 20 };

typedef struct Replicas {
    ServeRig proxy, one, two;
} Replicas;

typedef struct Sender {
    pthread_t thread;
    const ServeRig *proxy;
    int index, n_requests;
    char why[600]; /* what went wrong */
} Sender;

static char *plain[N_KINDS];
static atomic_int n_answered, n_cut;

/* ---- the proxy --------------------------------------------------------------------------------------------- */

static int free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static void set_address(const char *name, int port) {
    char text[64];
    snprintf(text, sizeof text, "127.0.0.1:%d", port);
    setenv(name, text, 1);
}

static void start_proxy(Replicas *r) {
    char command[1200];
    char *folder = realpath(serve_rig_folder(), NULL);
    r->proxy.port = free_port();
    set_address("FORERUN_BIND", r->proxy.port);
    set_address("FORERUN_ONE", r->one.port);
    set_address("FORERUN_TWO", r->two.port);
    setenv("FORERUN_LOG", "127.0.0.1:9", 1); /* no program listens there */
    snprintf(command, sizeof command, "%s/haproxy-%d.sock", folder, (int)getpid());
    setenv("FORERUN_STATS", command, 1);
    snprintf(command, sizeof command, "exec haproxy -db -f " CONFIG " >%s/haproxy.log 2>&1", folder);
    free(folder);
    r->proxy.pid = fork();
    if (r->proxy.pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)r->proxy.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (double end_s = clock_s() + SERVE_WAIT_S;;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
            refused = connect(fd, (struct sockaddr *)&to, sizeof to);
        close(fd);
        if (!refused) return;
        if (clock_s() > end_s || waitpid(r->proxy.pid, NULL, WNOHANG) != 0) fail_msg("haproxy did not start");
        usleep(10000);
    }
}

static void start_replicas(Replicas *r) {
    if (system("command -v haproxy >/dev/null 2>&1") != 0) {
        print_message("skipped: no haproxy\n");
        skip();
    }
    serve_start(&r->one, "-t 1 -c 256 --parallel 4 --quiet --draft ngram-trie");
    serve_start(&r->two, "-t 1 -c 256 --parallel 4 --quiet --draft ngram-trie");
    start_proxy(r);
}

static void stop_proxy(Replicas *r) {
    kill(r->proxy.pid, SIGTERM);
    waitpid(r->proxy.pid, NULL, 0);
}

/* ---- clients ------------------------------------------------------------------------------------------------ */

static bool is_streamed(int kind) { return kind % 2; }

static void make_body(char *body, size_t size, int kind, bool streams, const char *draft) {
    snprintf(body, size,
             "{\"messages\": [{\"role\": \"user\", \"content\": \"Story %d\"}], \"max_tokens\": %d, \"seed\": %d, "
             "\"ignore_eos\": true, \"stream\": %s%s}",
             kind, 120 + 2 * kind, kind, streams ? "true" : "false", draft);
}

static char *text_of(const Answer *a, bool streams) {
    if (streams) return serve_stream_text(a, "choices.0.delta.content");
    json_t *json = json_loads(a->body, 0, NULL);
    const char *text = json_string_value(json_at(json, "choices.0.message.content"));
    char *copy = text ? strdup(text) : NULL;
    json_decref(json);
    return copy;
}

/* True: the answer is complete. An unexpected failure goes into `why`. */
static bool try_once(Sender *t, int kind) {
    char body[512];
    make_body(body, sizeof body, kind, is_streamed(kind), "");
    Answer a = serve_post(t->proxy, "/v1/chat/completions", body);
    bool is_whole = a.status == 200 && a.is_whole && (!is_streamed(kind) || strstr(a.body, "data: [DONE]"));
    if (is_whole) {
        char *text = text_of(&a, is_streamed(kind));
        if (!text || strcmp(text, plain[kind]) != 0)
            snprintf(t->why, sizeof t->why, "kind %d: want '%.200s', got '%.200s'", kind, plain[kind],
                     text ? text : "");
        free(text);
        n_answered++;
    } else if (a.status == 200 && a.n_body > 0) n_cut++;
    else snprintf(t->why, sizeof t->why, "kind %d: no byte had come, and status %d", kind, a.status);
    answer_free(&a);
    return is_whole;
}

static void *send_all(void *arg) {
    Sender *t = arg;
    for (int i = 0; i < t->n_requests && !t->why[0]; i++) {
        int kind = (t->index * 5 + i * 7) % N_KINDS, n_tries = 0;
        while (!t->why[0] && !try_once(t, kind))
            if (++n_tries == MAX_TRIES) snprintf(t->why, sizeof t->why, "kind %d: cut %d times", kind, n_tries);
    }
    return NULL;
}

/* ---- tests -------------------------------------------------------------------------------------------------- */

static void the_configuration_has_no_warnings(void **state) {
    (void)state;
    if (system("command -v haproxy >/dev/null 2>&1") != 0) {
        print_message("skipped: no haproxy\n");
        skip();
    }
    assert_int_equal(system("haproxy -c -f " CONFIG " 2>&1 | grep -Eq 'WARNING|ALERT'"), 256);
    assert_int_equal(system("haproxy -q -c -f " CONFIG), 0);
}

static void requests_with_one_first_message_go_to_one_replica(void **state) {
    (void)state;
    Replicas r;
    char body[512];
    int n_to_one = 0;
    start_replicas(&r);
    for (int i = 0; i < 6; i++) {
        double one = serve_metric(&r.one, TOKENS), two = serve_metric(&r.two, TOKENS);
        for (int k = 0; k < 3; k++) {
            snprintf(body, sizeof body,
                     "{\"model\": \"m\", \"messages\": [{\"role\": \"system\", \"content\": \"Be %d\"}, {\"role\": "
                     "\"user\", "
                     "\"content\": \"%d\"}], \"max_tokens\": 1}",
                     i, k);
            json_decref(serve_json(&r.proxy, "/v1/chat/completions", 200, body));
        }
        one = serve_metric(&r.one, TOKENS) - one, two = serve_metric(&r.two, TOKENS) - two;
        if (!(one == 3 && two == 0) && !(one == 0 && two == 3)) fail_msg("message %d: %g and %g tokens", i, one, two);
        n_to_one += one > 0;
    }
    assert_in_range(n_to_one, 1, 5); /* both replicas got some */
    stop_proxy(&r);
    assert_int_equal(serve_stop(&r.one), 0);
    assert_int_equal(serve_stop(&r.two), 0);
}

/* A proxy may buffer answers; these tokens must come when they are generated. */
static void a_stream_comes_token_by_token(void **state) {
    (void)state;
    Replicas r;
    char body[512], request[1024];
    start_replicas(&r);
    make_body(body, sizeof body, 50, true, ", \"draft\": \"none\"");
    snprintf(request, sizeof request,
             "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
             "%zu\r\n\r\n%s",
             strlen(body), body);
    double least = 1; /* the least of several times, because other programs run beside the test */
    for (int i = 0; i < 6; i++) {
        int fd = serve_connect(&r.proxy);
        double start_s = clock_s();
        serve_send(fd, request);
        assert_true(serve_read_until(fd, "\"content\":\""));
        double first_s = clock_s() - start_s;
        bool is_later = serve_read_until(fd, "data: [DONE]"); /* not in one piece with the first text */
        double part = is_later ? first_s / (clock_s() - start_s) : 1;
        if (part < least) least = part;
        close(fd);
    }
    print_message("the first text came after %.2f of the time\n", least);
    assert_true(least < 0.3);
    stop_proxy(&r);
    assert_int_equal(serve_stop(&r.one), 0);
    assert_int_equal(serve_stop(&r.two), 0);
}

static void a_killed_replica_costs_no_request_that_has_no_byte(void **state) {
    (void)state;
    Replicas r;
    Sender senders[N_CLIENTS];
    start_replicas(&r);
    for (int kind = 0; kind < N_KINDS; kind++) {
        char body[512];
        make_body(body, sizeof body, kind, false, ", \"draft\": \"none\"");
        json_t *json = serve_json(&r.one, "/v1/chat/completions", 200, body);
        plain[kind] = strdup(json_text_at(json, "choices.0.message.content"));
        json_decref(json);
    }
    n_answered = n_cut = 0;
    double before = serve_metric(&r.two, TOKENS);
    for (int i = 0; i < N_CLIENTS; i++) {
        senders[i] = (Sender){.proxy = &r.proxy, .index = i, .n_requests = N_BEFORE + N_AFTER};
        assert_int_equal(pthread_create(&senders[i].thread, NULL, send_all, &senders[i]), 0);
    }
    for (double end_s = clock_s() + SERVE_WAIT_S; n_answered < N_CLIENTS * N_BEFORE && clock_s() < end_s;) usleep(1000);
    assert_true(serve_metric(&r.two, TOKENS) > before);
    kill(r.two.pid, SIGKILL);
    assert_int_equal(serve_wait_end(&r.two), -SIGKILL);
    for (int i = 0; i < N_CLIENTS; i++) pthread_join(senders[i].thread, NULL);
    for (int i = 0; i < N_CLIENTS; i++)
        if (senders[i].why[0]) fail_msg("client %d: %s", i, senders[i].why);
    print_message("%d answers, %d cut and sent again\n", n_answered, n_cut);
    assert_int_equal(n_answered, N_CLIENTS * (N_BEFORE + N_AFTER));
    assert_in_range(n_cut, 0, 4); /* at most the requests that ran in the replica: --parallel */
    stop_proxy(&r);
    assert_int_equal(serve_stop(&r.one), 0);
    for (int kind = 0; kind < N_KINDS; kind++) free(plain[kind]);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_configuration_has_no_warnings),
        cmocka_unit_test(requests_with_one_first_message_go_to_one_replica),
        cmocka_unit_test(a_stream_comes_token_by_token),
        cmocka_unit_test(a_killed_replica_costs_no_request_that_has_no_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
