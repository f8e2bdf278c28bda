/* test_draft_remote.c - unit tests of the drafter `remote` with hosts that answer, hang, die in the middle of an
 * answer, answer what is no draft, refuse, or are not there: proposals are what the host answered or nothing, and no
 * call takes longer than the timeout. */
#include "draft_rig.h"

#include "base/system.h"
#include "text/vocab.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_CTX = 64, LENGTH = 4, N_KEPT = 16 };

/* ---- a host --------------------------------------------------------------------------------------------------- */

/* What it does with a question that has tokens. Others are answered by an empty chain, unless it REFUSES. */
typedef enum Habit { ANSWERS, HANGS, DIES, LIES, REFUSES } Habit;

static struct {
    atomic_int habit, n_questions;
    const char *lie; /* the bytes of the answer */
    int listener, kept[N_KEPT], n_kept;
    char name[32]; /* HOST:PORT */
    char question[4096];
    pthread_t thread;
} host;

/* Reads a question, and keeps its body. False: the connection was closed. */
static bool read_question(int fd) {
    size_t n = 0, n_body = 0;
    char *body = NULL, text[4096];
    while (!body || strlen(body) < n_body) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
        text[n] = '\0';
        if (!(body = strstr(text, "\r\n\r\n"))) continue;
        body += 4;
        n_body = strtoul(strstr(text, "Content-Length: ") + 16, NULL, 10);
    }
    strcpy(host.question, body);
    return true;
}

static void send_text(int fd, const char *text) { (void)!send(fd, text, strlen(text), MSG_NOSIGNAL); }

static void answer(int fd, const char *status, const char *body) {
    char text[512];
    snprintf(text, sizeof text, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             status, strlen(body), body);
    send_text(fd, text);
}

/* Answers the tokens that follow the last one of the question: 1, 2, 3, ... more. */
static void answer_question(int fd) {
    char chain[128];
    const char *end = strchr(host.question, ']');
    int last = 0;
    for (const char *at = host.question; at < end; at++)
        if (*at == '[' || *at == ',') last = atoi(at + 1);
    snprintf(chain, sizeof chain, "{\"tokens\":[%d,%d,%d]}", last + 1, last + 2, last + 3);
    answer(fd, "200 OK", chain);
}

/* Returns false if the connection is to be closed. */
static bool serve_one(int fd) {
    Habit habit = (Habit)atomic_load(&host.habit);
    if (!read_question(fd)) return false;
    if (habit == REFUSES) answer(fd, "409 Conflict", "{\"error\":\"another\x1b[31m vocabulary\"}");
    else if (strncmp(host.question, "{\"tokens\":[]", 12) == 0) answer(fd, "200 OK", "{\"tokens\":[]}");
    else {
        atomic_fetch_add(&host.n_questions, 1);
        if (habit == ANSWERS) answer_question(fd);
        if (habit == DIES) send_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{\"tokens\":[1,2");
        if (habit == LIES) send_text(fd, host.lie);
        if (habit == HANGS && host.n_kept < N_KEPT) host.kept[host.n_kept++] = fd;
        return habit == ANSWERS;
    }
    return true;
}

static void *run_host(void *unused) {
    for (int fd; (fd = accept(host.listener, NULL, NULL)) >= 0;) {
        int n_kept = host.n_kept;
        while (serve_one(fd)) {}
        if (host.n_kept == n_kept) close(fd);
    }
    return unused;
}

static int open_host(void **state) {
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    host.listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(host.listener, (struct sockaddr *)&at, sizeof at) || listen(host.listener, 8)) return -1;
    if (getsockname(host.listener, (struct sockaddr *)&at, &n)) return -1;
    snprintf(host.name, sizeof host.name, "127.0.0.1:%d", ntohs(at.sin_port));
    return pthread_create(&host.thread, NULL, run_host, NULL);
}

static int close_host(void **state) {
    (void)state;
    shutdown(host.listener, SHUT_RDWR);
    pthread_join(host.thread, NULL);
    for (int i = 0; i < host.n_kept; i++) close(host.kept[i]);
    return close(host.listener);
}

/* ---- the drafter ------------------------------------------------------------------------------------------------ */

static Gguf *vocabulary; /* of 4096 tokens */
static int32_t n_vocab = 4096;

static int open_with(Drafter **out, const char *server, int timeout_ms, fr_error *err) {
    char spec[128];
    const DrafterEnv env = {.n_vocab = n_vocab, .max_sequences = 2, .vocab = vocabulary, .n_ctx = N_CTX};
    snprintf(spec, sizeof spec, "remote:server=%s,length=%d,timeout=%d", server, LENGTH, timeout_ms);
    return drafter_open(out, spec, &env, 0, err);
}

/* Opens a drafter of the host, with a text in sequence 1. */
static Drafter *open_text(int timeout_ms) {
    static const int32_t prompt[] = {7, 8, 9};
    Drafter *d;
    fr_error err;
    if (open_with(&d, host.name, timeout_ms, &err)) fail_msg("%s", err.message);
    assert_int_equal(d->class->begin(d, 1, prompt, 3, &err), FR_OK);
    return d;
}

/* Proposes after the pending token, and fails if that takes longer than most_s. Returns the status. */
static int propose(Drafter *d, int32_t pending, double most_s, Tree *t, fr_error *err) {
    const int32_t sequence = 1, budget = 8;
    double start_s = clock_s();
    tree_reset(t, pending);
    int status = d->class->propose(d, &sequence, &budget, &t, 1, err);
    if (clock_s() - start_s > most_s) fail_msg("a proposal took %.2f s", clock_s() - start_s);
    assert_int_equal(tree_validate(t, pending, n_vocab, budget, NULL), FR_OK);
    return status;
}

enum { PATIENT_MS = 20000 }; /* for hosts that answer at once on an idle machine */

static void a_chain_is_what_the_host_answers(void **state) {
    (void)state;
    static Tree t;
    fr_error err;
    uint64_t number;
    char want[128];
    const int32_t more[] = {20, 30};
    atomic_store(&host.habit, ANSWERS);
    Drafter *d = open_text(PATIENT_MS);
    assert_string_equal(d->class->notice(d), "");
    assert_int_equal(propose(d, 9, 20, &t, &err), FR_OK);
    assert_int_equal(vocab_fingerprint(vocabulary, &number, &err), FR_OK);
    snprintf(want, sizeof want, "{\"tokens\":[7,8,9],\"n\":%d,\"vocabulary\":\"%016" PRIx64 "\"}", LENGTH, number);
    assert_string_equal(host.question, want);
    assert_int_equal(t.n, 4);
    for (int i = 1; i < 4; i++) assert_int_equal(t.nodes[i].token, 9 + i);
    int n_questions = atomic_load(&host.n_questions);
    assert_int_equal(propose(d, 9, 20, &t, &err), FR_OK); /* of the same text, without another question */
    assert_int_equal(t.n, 4);
    assert_int_equal(atomic_load(&host.n_questions), n_questions);
    assert_int_equal(d->class->observe(d, 1, more, 2, &err), FR_OK);
    assert_int_equal(propose(d, 30, 20, &t, &err), FR_OK);
    assert_non_null(strstr(host.question, "[7,8,9,20,30]"));
    assert_int_equal(t.nodes[1].token, 31);
    d->class->end(d, 1);
    drafter_close(d);
}

/* A step waits once. The next ones do not wait, and after a pause the host is asked again. */
static void a_host_that_hangs_costs_one_timeout(void **state) {
    (void)state;
    static Tree t;
    fr_error err;
    enum { TIMEOUT_MS = 100, N_STEPS = 2000 };
    const int32_t more = 11;
    atomic_store(&host.habit, HANGS);
    Drafter *d = open_text(TIMEOUT_MS);
    double start_s = clock_s();
    assert_int_equal(propose(d, 9, 5, &t, &err), FR_OK);
    assert_true(clock_s() - start_s >= 1e-3 * TIMEOUT_MS);
    assert_int_equal(t.n, 1);
    int n_questions = atomic_load(&host.n_questions);
    double cpu_s = clock_cpu_s();
    for (int i = 0; i < N_STEPS; i++) assert_int_equal(propose(d, 9, 1, &t, &err), FR_OK);
    print_message("%d steps beside a call that hangs: %.3f s\n", N_STEPS, clock_cpu_s() - cpu_s);
    assert_int_equal(t.n, 1);
    assert_int_equal(atomic_load(&host.n_questions), n_questions);
    d->class->end(d, 1); /* gives the call up */
    atomic_store(&host.habit, ANSWERS);
    assert_int_equal(d->class->begin(d, 1, &more, 1, &err), FR_OK);
    for (start_s = clock_s(), t.n = 1; t.n == 1 && clock_s() - start_s < 20; usleep(10000))
        assert_int_equal(propose(d, 11, 5, &t, &err), FR_OK);
    assert_int_equal(t.nodes[1].token, 12);
    drafter_close(d);
}

static void a_host_that_dies_is_not_an_error(void **state) {
    (void)state;
    static Tree t;
    fr_error err;
    static const char *const broken[] = {
        "",
        "HTTP/1.1 200 OK\r\n",
        "SSH-2.0-OpenSSH_9.2p1\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n{\"tokens\":[1]}",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{\"tokens\":[1]}",
        "HTTP/1.1 200 OK\r\nContent-Length: 14x\r\n\r\n{\"tokens\":[1]}",
        "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"tokens\":[1]}{\"tokens\":[2]}",
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}",
    };
    for (size_t i = 0; i <= sizeof broken / sizeof *broken; i++) {
        bool lies = i < sizeof broken / sizeof *broken;
        host.lie = lies ? broken[i] : NULL;
        atomic_store(&host.habit, lies ? LIES : DIES);
        Drafter *d = open_text(PATIENT_MS);
        if (propose(d, 9, 15, &t, &err)) fail_msg("%zu: %s", i, err.message);
        assert_int_equal(t.n, 1);
        int n_questions = atomic_load(&host.n_questions);
        assert_int_equal(propose(d, 9, 1, &t, &err), FR_OK); /* in the pause */
        assert_int_equal(atomic_load(&host.n_questions), n_questions);
        drafter_close(d);
    }
}

static void answers_that_are_no_drafts_are_errors(void **state) {
    (void)state;
    static Tree t;
    static const char *const bodies[] = {
        "",
        "{}",
        "{\"tokens\":[4096]}",
        "{\"tokens\":[1,-2]}",
        "{\"tokens\":[1,18446744073709551617]}",
        "{\"tokens\":[1,2,3,4,5]}",
        "{\"tokens\":[1,]}",
        "{\"tokens\":[,1]}",
        "{\"tokens\":[1 2]}",
        "{\"tokens\":[1.5]}",
        "{\"tokens\":[\"1\"]}",
        "{\"tokens\":[1]} ",
        "{\"tokens\":[1",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char lie[256];
        fr_error err = {.message = ""};
        snprintf(lie, sizeof lie, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(bodies[i]), bodies[i]);
        host.lie = lie;
        atomic_store(&host.habit, LIES);
        Drafter *d = open_text(PATIENT_MS);
        if (propose(d, 9, 15, &t, &err) != FR_ERR_MISMATCH) fail_msg("'%s' was taken for a draft", bodies[i]);
        assert_non_null(strstr(err.message, "gives an answer that is no draft"));
        assert_int_equal(t.n, 1);
        drafter_close(d);
    }
}

static void refusals_name_the_host_and_its_reason(void **state) {
    (void)state;
    static Tree t;
    Drafter *d;
    fr_error err;
    char want[128];
    snprintf(want, sizeof want, "remote: %s refuses to draft (status 409): {\"error\":\"another?[31m vocabulary\"}",
             host.name);
    atomic_store(&host.habit, REFUSES);
    assert_int_equal(open_with(&d, host.name, PATIENT_MS, &err), FR_ERR_MISMATCH);
    assert_string_equal(err.message, want);
    atomic_store(&host.habit, ANSWERS);
    d = open_text(PATIENT_MS);
    atomic_store(&host.habit, REFUSES); /* another model has been started there */
    assert_int_equal(propose(d, 9, 15, &t, &err), FR_ERR_MISMATCH);
    assert_string_equal(err.message, want);
    drafter_close(d);
}

static void nobody_there_is_a_notice(void **state) {
    (void)state;
    static Tree t;
    Drafter *d;
    fr_error err;
    const int32_t token = 5;
    assert_int_equal(open_with(&d, "127.0.0.1:1", PATIENT_MS, &err), FR_OK);
    assert_non_null(strstr(d->class->notice(d), "remote: 127.0.0.1:1 does not draft yet"));
    assert_int_equal(d->class->begin(d, 1, &token, 1, &err), FR_OK);
    for (int i = 0; i < 1000; i++) assert_int_equal(propose(d, 5, 1, &t, &err), FR_OK);
    assert_int_equal(t.n, 1);
    drafter_close(d);
}

static void names_of_hosts_are_checked(void **state) {
    (void)state;
    static const char *const bad[] = {"localhost", ":80", "h:", "h:0", "h:65536", "h:80x", "[]:80"};
    Drafter *d;
    fr_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(open_with(&d, bad[i], 1, &err), FR_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "must be HOST:PORT"));
    }
    assert_int_equal(open_with(&d, "[::1]:1", 1, &err), FR_OK);
    drafter_close(d);
    const DrafterEnv env = {.n_vocab = 9, .max_sequences = 1};
    assert_int_equal(drafter_open(&d, "remote:server=h:1", &env, 0, &err), FR_ERR_UNSUPPORTED);
    assert_int_equal(drafter_open(&d, "remote", &env, 0, &err), FR_ERR_ARGUMENT);
    assert_string_equal(err.message, "remote: missing server: write remote:server=HOST:PORT");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_is_what_the_host_answers),
        cmocka_unit_test(a_host_that_hangs_costs_one_timeout),
        cmocka_unit_test(a_host_that_dies_is_not_an_error),
        cmocka_unit_test(answers_that_are_no_drafts_are_errors),
        cmocka_unit_test(refusals_name_the_host_and_its_reason),
        cmocka_unit_test(nobody_there_is_a_notice),
        cmocka_unit_test(names_of_hosts_are_checked),
    };
    fr_error err;
    if (gguf_open(&vocabulary, "models/draft.gguf", &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, open_host, close_host);
    gguf_close(vocabulary);
    return failed;
}
