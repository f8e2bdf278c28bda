/* test_serve_life.c - requests that do not end normally: hang-ups at each stage, clients that do not read, a full
 * queue, the end of the server. The model runs in the slow reference backend, so that there is time for it. */
#include "serve_rig.h"

#include "base/system.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RUNNING "forerun_num_requests_running{model_name=\"target\"}"
#define WAITING "forerun_num_requests_waiting{model_name=\"target\"}"
#define ABORTED "forerun_request_success_total{model_name=\"target\",finished_reason=\"abort\"}"
#define HUNG_UP "forerun_http_hangups_total"
#define LONG_STREAM \
    "{\"prompt\": \"Once\", \"max_tokens\": 900, \"ignore_eos\": true, \"stream\": true, \"draft\": \"none\"}"
#define LONG_WHOLE "{\"prompt\": \"Once\", \"max_tokens\": 900, \"ignore_eos\": true, \"draft\": \"none\"}"
#define SHORT "{\"prompt\": \"Once\", \"max_tokens\": 2, \"temperature\": 0}"

static int post(const ServeRig *s, const char *path, const char *body) {
    static char text[1 << 16];
    int fd = serve_connect(s);
    serve_format_post(text, sizeof text, path, body);
    serve_send(fd, text);
    return fd;
}

/* Returns a prompt of some hundred tokens, which takes the reference backend some time. */
static const char *long_prompt(void) {
    static char body[4096];
    int n = snprintf(body, sizeof body, "{\"max_tokens\": 2, \"prompt\": [1");
    for (int i = 0; i < 600; i++) n += snprintf(body + n, sizeof body - (size_t)n, ",%d", 300 + i % 50);
    snprintf(body + n, sizeof body - (size_t)n, "]}");
    return body;
}

/* Checks that no byte of an answer has come, so that a proxy could still send the request elsewhere. */
static void expect_silence(int fd) {
    char byte;
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
}

static void expect_free(const ServeRig *s, double hung_up, double aborted) {
    serve_wait_metric(s, RUNNING, 0);
    serve_wait_metric(s, WAITING, 0);
    serve_wait_metric(s, HUNG_UP, hung_up);
    serve_wait_metric(s, ABORTED, aborted);
    json_t *slots = serve_json(s, "/slots", 200, NULL);
    for (size_t i = 0; i < json_array_size(slots); i++)
        assert_string_equal(json_text_at(json_array_get(slots, i), "state"), "idle");
    json_decref(slots);
}

static void a_hang_up_frees_its_place_at_each_stage(void **state) {
    (void)state;
    ServeRig s;
    serve_start(&s, "-t 1 --parallel 1 --backend reference --draft none");
    int fd = post(&s, "/v1/completions", LONG_STREAM); /* while streaming */
    assert_true(serve_read_until(fd, "\"text\":"));
    close(fd);
    expect_free(&s, 1, 1);
    fd = post(&s, "/v1/completions", LONG_WHOLE); /* before the first byte of an answer that is not streamed */
    serve_wait_metric(&s, RUNNING, 1);
    int queued = post(&s, "/v1/completions", LONG_STREAM), half = post(&s, "/v1/completions", LONG_WHOLE);
    serve_wait_metric(&s, WAITING, 2);
    expect_silence(queued);
    close(queued); /* in the queue */
    serve_wait_metric(&s, WAITING, 1);
    shutdown(half, SHUT_WR); /* a client that closes only its own side counts as hung up, too */
    serve_wait_metric(&s, WAITING, 0);
    close(half);
    assert_true(serve_metric(&s, RUNNING) == 1);
    close(fd);
    expect_free(&s, 4, 4);
    fd = post(&s, "/v1/completions", long_prompt()); /* in prefill */
    serve_wait_metric(&s, RUNNING, 1);
    struct linger reset = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset); /* by RST */
    close(fd);
    expect_free(&s, 5, 5);
    json_decref(serve_json(&s, "/v1/completions", 200, SHORT));
    assert_int_equal(serve_stop(&s), 0);
}

/* From the hang-up until the engine has closed the request: the median, because other programs run beside the test. */
static double median_ms_to_free(const ServeRig *s, const char *body, const char *begun) {
    enum { N_TIMES = 9 };
    double times[N_TIMES];
    for (int i = 0; i < N_TIMES; i++) {
        int fd = post(s, "/v1/completions", body);
        if (begun) assert_true(serve_read_until(fd, begun));
        else serve_wait_metric(s, RUNNING, 1);
        double start_s = clock_s();
        close(fd);
        while (serve_metric(s, RUNNING) > 0 && clock_s() < start_s + SERVE_WAIT_S) {}
        times[i] = (clock_s() - start_s) * 1e3;
        for (int k = i; k > 0 && times[k - 1] > times[k]; k--) {
            double swap = times[k];
            times[k] = times[k - 1], times[k - 1] = swap;
        }
    }
    return times[N_TIMES / 2];
}

/* A step of this model takes some milliseconds. */
static void a_hang_up_frees_its_place_within_50_ms(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a sanitizer makes steps longer\n");
    skip();
#endif
    ServeRig s;
    serve_start(&s, "-t 1 -c 1024 --draft none --quiet");
    double streaming = median_ms_to_free(&s, LONG_STREAM, "\"text\":"), whole = median_ms_to_free(&s, LONG_WHOLE, NULL);
    print_message("%.1f ms streaming, %.1f ms not streaming\n", streaming, whole);
    assert_true(streaming < 50 && whole < 50);
    assert_int_equal(serve_stop(&s), 0);
}

static void a_full_queue_answers_429(void **state) {
    (void)state;
    ServeRig s;
    serve_start(&s, "-t 1 --parallel 1 --queue 1 --backend reference --draft none");
    int running = post(&s, "/v1/completions", LONG_STREAM);
    assert_true(serve_read_until(running, "\"text\":"));
    int queued = post(&s, "/v1/completions", SHORT);
    serve_wait_metric(&s, WAITING, 1);
    Answer refused = serve_post(&s, "/v1/completions", SHORT);
    assert_int_equal(refused.status, 429);
    assert_non_null(strstr(refused.head, "Retry-After: "));
    assert_non_null(strstr(refused.body, "rate_limit"));
    answer_free(&refused);
    close(running); /* its place goes to the waiting request */
    Answer served = serve_read_answer(queued);
    assert_int_equal(served.status, 200);
    answer_free(&served);
    close(queued);
    json_decref(serve_json(&s, "/v1/completions", 400, "{\"prompt\": \"Once\", \"n\": 3}")); /* this never fits */
    assert_int_equal(serve_stop(&s), 0);
}

/* 128 choices with some events each are more than a megabyte, which this client does not read. */
static void a_slow_reader_is_hung_up_on(void **state) {
    (void)state;
    ServeRig s;
    serve_start(&s, "-t 1 --parallel 16 --draft none");
    char *body = malloc(16384);
    int n = snprintf(
        body, 16384,
        "{\"n\": 128, \"max_tokens\": 200, \"ignore_eos\": true, \"stream\": true, \"echo\": true, \"prompt\": \"");
    for (int i = 0; i < 800; i++) n += snprintf(body + n, 16384 - (size_t)n, "little ");
    snprintf(body + n, 16384 - (size_t)n, "\"}");
    int fd = serve_connect(&s), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    char *text = malloc(32768);
    serve_format_post(text, 32768, "/v1/completions", body);
    serve_send(fd, text);
    serve_wait_metric(&s, HUNG_UP, 1);
    serve_wait_metric(&s, RUNNING, 0);
    assert_true(serve_metric(&s, ABORTED) > 0);
    json_decref(serve_json(&s, "/v1/completions", 200, SHORT));
    close(fd);
    free(body), free(text);
    assert_int_equal(serve_stop(&s), 0);
}

static void sigterm_finishes_running_requests_and_refuses_others(void **state) {
    (void)state;
    ServeRig s;
    serve_start(&s, "-t 1 -c 128 --parallel 1 --backend reference --draft none");
    int running = post(&s, "/v1/completions",
                       "{\"prompt\": \"Once\", \"max_tokens\": 100, \"ignore_eos\": true, \"stream\": true}"),
        queued = post(&s, "/v1/completions", SHORT);
    serve_wait_metric(&s, RUNNING, 1);
    serve_wait_metric(&s, WAITING, 1);
    kill(s.pid, SIGTERM);
    Answer a = {0};
    do { /* until the signal has arrived */
        answer_free(&a);
        a = serve_get(&s, "/health");
    } while (a.status == 200);
    assert_int_equal(a.status, 503);
    answer_free(&a);
    a = serve_post(&s, "/v1/completions", SHORT);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.head, "Retry-After: "));
    answer_free(&a);
    a = serve_read_answer(running);
    assert_true(a.is_whole);
    assert_non_null(strstr(a.body, "data: [DONE]"));
    answer_free(&a);
    a = serve_read_answer(queued);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(running), close(queued);
    assert_int_equal(serve_wait_end(&s), 0);
}

static void a_second_signal_ends_the_server(void **state) {
    (void)state;
    ServeRig s;
    serve_start(&s, "-t 1 --parallel 1 --backend reference --draft none");
    int running = post(&s, "/v1/completions", LONG_STREAM);
    assert_true(serve_read_until(running, "\"text\":"));
    kill(s.pid, SIGTERM);
    Answer a = {0};
    do {
        answer_free(&a);
        a = serve_get(&s, "/health");
    } while (a.status == 200);
    answer_free(&a);
    kill(s.pid, SIGINT);
    assert_int_equal(serve_wait_end(&s), 0);
    assert_true(serve_is_closed(running));
    close(running);
}

static void a_server_that_cannot_start_gives_the_reason(void **state) {
    (void)state;
    static const struct {
        const char *args, *text;
    } cases[] = {
        {"", "missing model"},
        {"-m none.gguf", "none.gguf"},
        {"-m " SERVE_MODEL " -m " SERVE_MODEL, "two models have the name"},
        {"-m " SERVE_MODEL " --host nowhere.invalid", "--host"},
        {"-m " SERVE_MODEL " --tls-cert README.md", "--tls-key"},
        {"-m " SERVE_MODEL " --tls-cert README.md --tls-key README.md", "--tls-cert"},
        {"-m " SERVE_MODEL " --api-key-file /dev/null", "/dev/null"},
        {"-m " SERVE_MODEL " --draft nothing", "--draft"},
        {"-m " SERVE_MODEL " --draft suffix+nothing", "unknown drafter 'suffix+nothing'"},
        {"-m " SERVE_MODEL " --draft pld+llma+suffix+recycling+lookahead+grammar+ngram-trie",
         "more than the 6 drafters"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[1024], text[4096];
        snprintf(command, sizeof command, "timeout 60 %s/../forerun serve --port 0 %s 2>&1", serve_rig_folder(),
                 cases[i].args);
        FILE *out = popen(command, "r");
        size_t n = fread(text, 1, sizeof text - 1, out);
        text[n] = '\0';
        int status = pclose(out);
        if (status == 0 || !strstr(text, cases[i].text)) fail_msg("%s: %d, %s", cases[i].args, status, text);
    }
}

/* A request may choose each part of a+b by itself. */
static void joined_drafters_are_listed_one_by_one(void **state) {
    (void)state;
    ServeRig s;
    serve_start(&s, "-t 1 --draft ngram-trie+suffix");
    json_t *props = serve_json(&s, "/props", 200, NULL), *drafts = json_object_get(props, "drafts");
    assert_int_equal(json_array_size(drafts), 2);
    assert_string_equal(json_string_value(json_array_get(drafts, 0)), "ngram-trie");
    assert_string_equal(json_string_value(json_array_get(drafts, 1)), "suffix");
    json_decref(props);
    serve_stop(&s);
}

/* A port that was free a moment ago. */
static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static bool can_connect(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool fits = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return fits;
}

/* The socket listens before the models are read: every call is answered with status 503 until they are. */
static void a_server_that_loads_says_so(void **state) {
    (void)state;
    static const char *const paths[] = {"/health", "/v1/models", "/nowhere", "/"};
    ServeRig s = {.port = free_port()};
    char command[1400], models[900] = "";
    for (int i = 0; i < 6; i++)
        snprintf(models + strlen(models), sizeof models - strlen(models), " -m m%d=" SERVE_MODEL, i);
    snprintf(command, sizeof command, "exec %s/../forerun serve%s -t 1 --quiet --draft none --port %d >/dev/null 2>&1",
             serve_rig_folder(), models, s.port);
    s.pid = fork();
    if (s.pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    int n_loading = 0;
    for (int i = 0; i < 6000 && !can_connect(s.port); i++) usleep(10000);
    for (int i = 0; i < 6000; i++) {
        Answer a = serve_get(&s, paths[i % 4]);
        json_t *j = a.status == 503 ? json_loads(a.body, 0, NULL) : NULL;
        bool is_loading = j && strcmp(json_text_at(j, "error.code"), "loading") == 0;
        n_loading += is_loading;
        json_decref(j);
        answer_free(&a);
        if (!is_loading) break;
        usleep(5000);
    }
    assert_true(n_loading >= 4);
    json_decref(serve_json(&s, "/health", 200, NULL));
    json_decref(serve_json(&s, "/v1/completions", 200, "{\"prompt\": \"Once\", \"max_tokens\": 2, \"model\": \"m5\"}"));
    assert_int_equal(serve_stop(&s), 0);
}

/* Returns a process whose parent is `parent`; 0: there is none. */
static pid_t child_of(pid_t parent) {
    DIR *d = opendir("/proc");
    pid_t found = 0;
    for (const struct dirent *e; d && !found && (e = readdir(d));) {
        char path[300], line[512] = "";
        int ppid = 0;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = atoi(e->d_name) > 0 ? fopen(path, "r") : NULL;
        if (!f) continue;
        const char *after = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
        fclose(f);
        if (after && sscanf(after, ") %*c %d", &ppid) == 1 && ppid == parent) found = (pid_t)atoi(e->d_name);
    }
    if (d) closedir(d);
    return found;
}

/* Checks that the metrics count what two processes exchange. */
static void check_exchanges(ServeRig *whole, ServeRig *divided) {
    static const char *const counters[] = {"forerun_rank_exchanges_total{", "forerun_rank_exchanged_bytes_total{",
                                           "forerun_rank_exchange_seconds_total{"};
    serve_wait_metric(divided, "forerun_ranks{", 2);
    assert_true(serve_metric(whole, "forerun_ranks{") == 0);
    assert_true(serve_metric(divided, "forerun_rank_divided_drafts{") == 0);
    for (int i = 0; i < 3; i++) {
        double before = serve_metric(divided, counters[i]), end_s = clock_s() + 10;
        json_decref(serve_json(divided, "/v1/completions", 200, SHORT));
        while (serve_metric(divided, counters[i]) <= before)
            if (clock_s() > end_s) fail_msg("%s does not rise", counters[i]);
        assert_true(serve_metric(whole, counters[i]) == 0);
    }
}

/* A model that is divided among processes: an answer is that of one process; when a process dies, the request that runs
 * gets an error, and the server ends, so that its supervisor starts it again. */
static void a_dead_rank_ends_the_server(void **state) {
    (void)state;
    ServeRig whole, s;
    serve_start(&whole, "-t 1 --draft none --quiet");
    serve_start(&s, "-t 1 --draft none --ranks 2");
    json_t *expected = serve_json(&whole, "/v1/completions", 200, SHORT),
           *got = serve_json(&s, "/v1/completions", 200, SHORT);
    assert_string_equal(json_text_at(expected, "choices.0.text"), json_text_at(got, "choices.0.text"));
    json_decref(expected);
    json_decref(got);
    check_exchanges(&whole, &s);
    assert_int_equal(serve_stop(&whole), 0);
    pid_t child = child_of(s.pid);
    if (!child) {
        print_message("skipped: /proc does not list processes\n");
        assert_int_equal(serve_stop(&s), 0);
        skip();
    }
    int fd = post(&s, "/v1/completions", LONG_WHOLE);
    serve_wait_metric(&s, RUNNING, 1);
    kill(child, SIGKILL);
    Answer a = serve_read_answer(fd);
    assert_int_equal(a.status, 500);
    assert_non_null(strstr(a.body, "rank 1 of 2 has died (signal 9)"));
    answer_free(&a);
    close(fd);
    assert_int_equal(serve_wait_end(&s), 1);
}

/* The target is quantised. A file without its target's fingerprint is one that others published. */
static void the_log_notes_a_drafter_for_16_bit_weights(void **state) {
    (void)state;
    ServeRig s;
    char command[4096], args[1024], text[4096];
    const char *folder = serve_rig_folder();
    snprintf(
        command, sizeof command,
        "echo '{\"text\": \"the cat sat on the mat\"}' >%s/eagle3.jsonl && %s/../forerun train eagle3 -m " SERVE_MODEL
        " --data %s/eagle3.jsonl --valid 0 --length 4 --batch 1 --steps 1 --hot-tokens 20 --force -o %s/eagle3.gguf "
        ">/dev/null 2>&1 && LC_ALL=C sed s/target.fingerprint/target.fingerprunt/ %s/eagle3.gguf >%s/published.gguf",
        folder, folder, folder, folder, folder, folder);
    if (system(command)) fail_msg("%s", command);
    snprintf(args, sizeof args, "-t 1 -c 64 --draft eagle3:file=%s/published.gguf", folder);
    serve_start(&s, args);
    FILE *log = fopen(s.log, "r");
    assert_non_null(log);
    text[fread(text, 1, sizeof text - 1, log)] = '\0';
    fclose(log);
    assert_int_equal(serve_stop(&s), 0);
    const char *note = strstr(text, ": was published for 16-bit weights");
    if (!note || strstr(note + 1, ": was published for")) fail_msg("'%s'", text);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hang_up_frees_its_place_at_each_stage),
        cmocka_unit_test(a_hang_up_frees_its_place_within_50_ms),
        cmocka_unit_test(a_full_queue_answers_429),
        cmocka_unit_test(a_slow_reader_is_hung_up_on),
        cmocka_unit_test(sigterm_finishes_running_requests_and_refuses_others),
        cmocka_unit_test(a_second_signal_ends_the_server),
        cmocka_unit_test(a_server_that_cannot_start_gives_the_reason),
        cmocka_unit_test(joined_drafters_are_listed_one_by_one),
        cmocka_unit_test(a_server_that_loads_says_so),
        cmocka_unit_test(the_log_notes_a_drafter_for_16_bit_weights),
        cmocka_unit_test(a_dead_rank_ends_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
