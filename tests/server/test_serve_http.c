/* test_serve_http.c - the server with clients that are malformed, slow, numerous or not allowed. */
#include "serve_rig.h"

#include "base/system.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static ServeRig server, locked;

static int start(void **state) {
    (void)state;
    char path[600], args[900];
    snprintf(path, sizeof path, "%s/serve-keys.txt", serve_rig_folder());
    FILE *keys = fopen(path, "w");
    assert_non_null(keys);
    fputs("# keys\nsecret-one\r\n\n  \nsecret-two \n", keys);
    fclose(keys);
    serve_start(&server,
                "-t 1 -c 128 --parallel 4 --max-body 1 --request-timeout 1 --max-connections 400 --draft none");
    snprintf(args, sizeof args, "-t 1 -c 64 --draft none --cors-origin https://good.example --api-key-file %s", path);
    serve_start(&locked, args);
    unlink(path);
    return 0;
}

static int stop(void **state) {
    (void)state;
    return serve_stop(&locked) || serve_stop(&server);
}

#define BODY "{\"prompt\": \"One\", \"max_tokens\": 2}"

/* Returns the status of the answer to these bytes; 0: the connection was closed without an answer. */
static int status_of(const char *bytes) {
    int fd = serve_connect(&server);
    serve_send(fd, bytes);
    Answer a = serve_read_answer(fd);
    int status = a.status;
    answer_free(&a);
    close(fd);
    return status;
}

static void malformed_requests_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        int status;
    } cases[] = {
        {"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
        {"GET /health HTTP/1.0\r\n\r\n", 200},
        {"\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
        {"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
        {"GET /he%61lth HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
        {"GET /health HTTP/1.1\nHost: localhost\n\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\n\n", 400},
        {"\n\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET http://other/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET http://localhost/health HTTP/1.0\r\n\r\n", 400},
        {"GET /health HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
        {"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 200},
        {"GET /health HTTP/1.1\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: y\r\n\r\n", 400},
        {"GET /health\r\n\r\n", 400},
        {"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\n folded: y\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\rz\r\n\r\n", 400},
        {"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", 505},
        {"hello\r\n\r\n", 400},
        {"\x16\x03\x01\x02\n\n", 400}, /* the beginning of TLS */
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: "
         "chunked\r\n\r\n0\r\n\r\n",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n", 413},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n", 413},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n",
         400},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: miracles\r\nContent-Length: 2\r\n\r\n{}", 417},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
        {"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
        {"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int got = status_of(cases[i].bytes);
        if (got != cases[i].status) fail_msg("%s: want %d, got %d", cases[i].bytes, cases[i].status, got);
    }
}

/* A body that one program could read otherwise than another one must not be read at all. */
static void chunks_are_read_strictly(void **state) {
    (void)state;
    static const struct {
        const char *chunks;
        int status;
    } cases[] = {
        {"1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 200},
        {"1D\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0000\r\n\r\n", 200},
        {"1d;a;b=c ; d = \"e\\\"f\"\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0;x\r\nTrailer: x\r\n\r\n", 200},
        {"0x1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"1d junk\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"1d \r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {" 1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"+1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"-1\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"00000001d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"1d;\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"1d;a=\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"1d;a=\"b\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"1d;a\rb\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"1d\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"1d;a\nb\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n", 400},
        {"1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\n0\r\n\r\n", 400},
        {"1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}0\r\n\r\n", 400},
        {"1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\n\r\n", 400},
        {"1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\n", 400},
        {"1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\nA: b\n\r\n", 400},
        {"1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\nno header\r\n\r\n", 400},
        {"1d\r\n{\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\nA : b\r\n\r\n", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char request[400];
        snprintf(request, sizeof request,
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%s",
                 cases[i].chunks);
        int got = status_of(request);
        if (got != cases[i].status) fail_msg("%s: want %d, got %d", cases[i].chunks, cases[i].status, got);
    }
}

/* n bytes of `piece` again and again, after a head that announces them. */
static int status_of_long(const char *head, const char *piece, size_t n) {
    size_t n_head = strlen(head), n_piece = strlen(piece);
    char *all = malloc(n_head + n + 1);
    memcpy(all, head, n_head);
    for (size_t i = 0; i < n; i++) all[n_head + i] = piece[i % n_piece];
    all[n_head + n] = '\0';
    int status = status_of(all);
    free(all);
    return status;
}

static void what_is_too_long_is_refused(void **state) {
    (void)state;
    assert_int_equal(status_of_long("GET /health HTTP/1.1\r\nHost: localhost\r\nA: ", "y", 40000), 431);
    assert_int_equal(
        status_of_long(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n", "y",
            1100000),
        413);
}

static void hostile_json_is_refused(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "",
        "x",
        "[]",
        "null",
        "{\"prompt\": \"a\"",
        "{\"prompt\": \"\xff\xfe\"}",
        "{\"prompt\": \"\\ud800\"}",
        "{\"prompt\": \"a\\u0000b\"}",
        "{\"prompt\": \"x\", \"seed\": 99999999999999999999999}",
        "{\"prompt\": \"x\", \"temperature\": 1e999}",
        "{\"prompt\": \"x\", \"max_tokens\": NaN}",
        "{\"prompt\": \"x\"} {}",
        "{\"prompt\": nul}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        json_t *j = serve_json(&server, "/v1/completions", 400, bodies[i]);
        assert_non_null(json_at(j, "error.message"));
        json_decref(j);
    }
    char head[200];
    snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n",
             1 << 20);
    assert_int_equal(status_of_long(head, "[", 1 << 20), 400);
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{\"prompt\": [", (1 << 20));
    assert_int_equal(status_of_long(head, "1,", (1 << 20) - 12), 413); /* 24 MiB of values in 1 MiB of text */
    assert_int_equal(status_of("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), 200);
}

/* The memory for the values of a body may run out at any value. AddressSanitizer reports leaks when the server ends. */
static void memory_for_a_body_ends_anywhere(void **state) {
    (void)state;
    enum { N_TEXT = 200000, LEAST = 300000, STEP = 3000, N_STEPS = 30 };
    static const char head[] = "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"";
    char *body = malloc(sizeof head + N_TEXT + 2 * (LEAST + STEP * N_STEPS) + 64);
    int n_refused = 0, n_read = 0;
    for (int i = 0; i < N_STEPS; i++) {
        size_t n = (size_t)sprintf(body, "%s", head);
        memset(body + n, 'x', N_TEXT);
        n += N_TEXT;
        n += (size_t)sprintf(body + n, "\"}]}], \"metadata\": [1");
        for (int k = 0; k < LEAST + i * STEP; k++) body[n++] = ',', body[n++] = '1';
        sprintf(body + n, "]}");
        Answer a = serve_post(&server, "/v1/chat/completions", body);
        if (a.status == 413) n_refused++;
        else n_read += a.status == 400; /* beyond the context */
        answer_free(&a);
    }
    free(body);
    if (n_refused == 0 || n_read == 0 || n_refused + n_read != N_STEPS)
        fail_msg("%d of %d refused, %d read", n_refused, N_STEPS, n_read);
}

static void requests_share_a_connection(void **state) {
    (void)state;
    char post[600];
    int fd = serve_connect(&server);
    serve_format_post(post, sizeof post, "/v1/completions", BODY);
    for (int i = 0; i < 3; i++) { /* one after the other */
        serve_send(fd, post);
        Answer a = serve_read_answer(fd);
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
    for (int i = 0; i < 3; i++)
        serve_send(fd, i == 1 ? "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" : post); /* at once */
    for (int i = 0; i < 3; i++) {
        Answer a = serve_read_answer(fd);
        assert_int_equal(a.status, 200);
        assert_true((strstr(a.body, "\"ok\"") != NULL) == (i == 1));
        answer_free(&a);
    }
    serve_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nExpect: "
                   "100-continue\r\n\r\n");
    assert_true(serve_read_until(fd, "HTTP/1.1 100 Continue\r\n\r\n"));
    serve_send(fd, "a;x=y\r\n{\"prompt\":\r\n15\r\n \"One\",\"max_tokens\":2\r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n");
    Answer a = serve_read_answer(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
}

/* Sending a byte now and then does not extend the time limit of a request. */
static void slow_senders_are_closed(void **state) {
    (void)state;
    static const char request[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{   ";
    static const char endless[] = "GET /health HTTP/1.1\r\nA: ";
    double start_s = clock_s();
    int fd = serve_connect(&server), in_body = serve_connect(&server);
    serve_send(in_body, request);
    for (size_t i = 0; clock_s() < start_s + 20; i++) {
        char byte[2] = {i < sizeof endless - 1 ? endless[i] : 'y', '\0'};
        struct pollfd p = {.fd = fd, .events = POLLIN};
        serve_send(fd, byte);
        if (poll(&p, 1, 100) > 0) break;
    }
    Answer a = serve_read_answer(fd), b = serve_read_answer(in_body);
    assert_int_equal(a.status, 408);
    assert_int_equal(b.status, 408);
    assert_true(clock_s() - start_s < 15);
    answer_free(&a), answer_free(&b);
    close(fd), close(in_body);
}

/* All of them are connected before the first is answered. */
static void a_burst_of_connections_is_answered(void **state) {
    (void)state;
    static const int sizes[] = {128, 256, 384};
    static int fds[384];
    char post[600];
    serve_format_post(post, sizeof post, "/v1/completions", BODY);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < sizes[k]; i++) fds[i] = serve_connect(&server);
        for (int i = 0; i < sizes[k]; i++) serve_send(fds[i], post);
        for (int i = 0; i < sizes[k]; i++) {
            Answer a = serve_read_answer(fds[i]);
            if (a.status != 200) fail_msg("%d at once: connection %d has status %d", sizes[k], i, a.status);
            answer_free(&a);
            close(fds[i]);
        }
    }
}

/* Connections that send nothing are closed in favour of those that do. */
static void silent_connections_do_not_shut_others_out(void **state) {
    (void)state;
    enum { N = 500 }; /* more than --max-connections */
    static int fds[N];
    for (int i = 0; i < N; i++) fds[i] = serve_connect(&server);
    Answer a = serve_get(&server, "/health");
    assert_int_equal(a.status, 200);
    answer_free(&a);
    for (int i = 0; i < N; i++) close(fds[i]);
}

/* 33 bodies of a megabyte fit into 32 MiB, as long as none of them is complete. */
static void bodies_have_a_limit_together(void **state) {
    (void)state;
    enum { N = 40, N_FIT = 33, SIZE = 1000000 };
    ServeRig s;
    int fds[N];
    char *piece = malloc(SIZE + 1);
    serve_start(&s, "-t 1 -c 64 --max-body 1 --draft none");
    memset(piece, ' ', SIZE);
    piece[SIZE] = '\0';
    for (int i = 0; i < N; i++) {
        fds[i] = serve_connect(&s);
        serve_send(fds[i], "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n");
        serve_send(fds[i], piece);
    }
    serve_wait_metric(&s, "forerun_http_responses_total{status=\"5xx\"}", N - N_FIT);
    for (int i = 0; i < N; i++) close(fds[i]);
    json_decref(serve_json(&s, "/v1/completions", 200, BODY)); /* the memory for the bytes is free again */
    free(piece);
    assert_int_equal(serve_stop(&s), 0);
}

static int status_with(const char *method, const char *path, const char *headers) {
    Answer a = serve_request(&locked, method, path, headers, strcmp(method, "POST") == 0 ? BODY : NULL);
    int status = a.status;
    answer_free(&a);
    return status;
}

static void keys_are_needed_where_there_are_any(void **state) {
    (void)state;
    static const char *const good[] = {"Authorization: Bearer secret-one\r\n", "authorization: bearer  secret-two\r\n",
                                       "x-api-key: secret-two\r\n"};
    static const char *const bad[] = {"",
                                      "Authorization: Bearer secret-on\r\n",
                                      "Authorization: Bearer\r\n",
                                      "Authorization: Basic secret-one\r\n",
                                      "x-api-key:\r\n",
                                      "Authorization: Bearer # keys\r\n",
                                      "Authorization: Bearer secret-one secret-two\r\n"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(status_with("POST", "/v1/completions", good[i]), 200);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(status_with("POST", "/v1/completions", bad[i]), 401);
        assert_int_equal(status_with("GET", "/metrics", bad[i]), 401);
    }
    assert_int_equal(status_with("GET", "/health", ""), 200);
}

static void foreign_pages_are_refused_unless_listed(void **state) {
    (void)state;
#define KEY "x-api-key: secret-one\r\n"
    assert_int_equal(status_with("POST", "/v1/completions", KEY "Origin: https://evil.example\r\n"), 403);
    assert_int_equal(status_with("OPTIONS", "/v1/completions",
                                 "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n"),
                     403);
    assert_int_equal(status_with("POST", "/v1/completions", KEY "Origin: http://localhost\r\n"),
                     200); /* its own page */
    assert_int_equal(status_with("POST", "/v1/completions", KEY "Origin: null\r\n"), 403);
    Answer a = serve_request(&locked, "OPTIONS", "/v1/completions",
                             "Origin: https://good.example\r\nAccess-Control-Request-Method: "
                             "POST\r\nAccess-Control-Request-Headers: authorization\r\n",
                             NULL);
    assert_int_equal(a.status, 204);
    assert_non_null(strstr(a.head, "Access-Control-Allow-Origin: https://good.example\r\n"));
    assert_non_null(strstr(a.head, "Access-Control-Allow-Headers: authorization\r\n"));
    answer_free(&a);
    a = serve_request(&locked, "POST", "/v1/completions", KEY "Origin: https://good.example\r\n", BODY);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.head, "Access-Control-Allow-Origin: https://good.example\r\n"));
    answer_free(&a);
    /* A name that its owner lets resolve to this machine is not an origin of the server itself, unless a key is
     * required as well. */
    assert_int_equal(
        status_of("GET /v1/models HTTP/1.1\r\nHost: evil.example:80\r\nOrigin: http://evil.example:80\r\n\r\n"), 403);
    assert_int_equal(status_of("GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:80\r\nOrigin: http://127.0.0.1:80\r\n\r\n"),
                     200);
    a = serve_request(&server, "GET", "/health", "", NULL);
    assert_null(strstr(a.head, "Access-Control"));
    answer_free(&a);
}

/* Returns the status of a request to a server that names this host. */
static int status_with_host(const ServeRig *s, const char *host) {
    char request[300];
    int fd = serve_connect(s);
    snprintf(request, sizeof request, "GET /v1/models HTTP/1.1\r\nHost: %s\r\n%s\r\n", host,
             s == &locked ? "x-api-key: secret-one\r\n" : "");
    serve_send(fd, request);
    Answer a = serve_read_answer(fd);
    int status = a.status;
    if (status == 403) assert_non_null(strstr(a.body, "--allowed-host"));
    answer_free(&a);
    close(fd);
    return status;
}

/* A page whose owner makes its name mean this machine sends no Origin with a GET, and no foreign one with anything
 * else. */
static void requests_to_foreign_names_are_refused(void **state) {
    (void)state;
    static const char *const own[] = {"localhost",        "LocalHost:80", "a.localhost:1", "127.0.0.1",
                                      "192.168.1.7:8080", "[::1]:80",     "[fe80::1]"};
    static const char *const foreign[] = {"evil.example",
                                          "evil.example:8080",
                                          "localhost.evil.example",
                                          "evillocalhost",
                                          "",
                                          "127.0.0.1.evil.example",
                                          "127.0.0.1x",
                                          "[::1].evil.example",
                                          "[evil]",
                                          "[::1",
                                          "1234",
                                          "localhost:80x",
                                          "evil.example:localhost"};
    ServeRig named, open;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (status_with_host(&server, own[i]) != 200) fail_msg("%s is refused", own[i]);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (status_with_host(&server, foreign[i]) != 403) fail_msg("%s is allowed", foreign[i]);
    assert_int_equal(status_of("OPTIONS /v1/completions HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
    assert_int_equal(status_of("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
    assert_int_equal(status_with_host(&locked, "evil.example"), 200); /* it has the key, which no page has */
    serve_start(&named, "-t 1 -c 64 --draft none --host 0.0.0.0 --allowed-host mybox.local --allowed-host other");
    assert_int_equal(status_with_host(&named, "MyBox.local:8080"), 200);
    assert_int_equal(status_with_host(&named, "other"), 200);
    assert_int_equal(status_with_host(&named, "192.168.1.7:8080"), 200);
    assert_int_equal(status_with_host(&named, "evil.example"), 403);
    assert_int_equal(serve_stop(&named), 0);
    serve_start(&open, "-t 1 -c 64 --draft none --allowed-host '*'");
    assert_int_equal(status_with_host(&open, "evil.example"), 200);
    assert_int_equal(serve_stop(&open), 0);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_requests_are_refused),
        cmocka_unit_test(chunks_are_read_strictly),
        cmocka_unit_test(what_is_too_long_is_refused),
        cmocka_unit_test(hostile_json_is_refused),
        cmocka_unit_test(memory_for_a_body_ends_anywhere),
        cmocka_unit_test(requests_share_a_connection),
        cmocka_unit_test(slow_senders_are_closed),
        cmocka_unit_test(a_burst_of_connections_is_answered),
        cmocka_unit_test(silent_connections_do_not_shut_others_out),
        cmocka_unit_test(bodies_have_a_limit_together),
        cmocka_unit_test(keys_are_needed_where_there_are_any),
        cmocka_unit_test(foreign_pages_are_refused_unless_listed),
        cmocka_unit_test(requests_to_foreign_names_are_refused),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
