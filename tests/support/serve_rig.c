/* serve_rig.c - starts the server as a child, and a small client for HTTP/1.1.
 *
 * The client does not use a library, because tests send what no library would send: half a request, two at once,
 * nothing. */
#include "serve_rig.h"

#include "base/system.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[512];

void serve_rig_begin(const char *argv0) {
    const char *slash = strrchr(argv0, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - argv0) : 1, slash ? argv0 : ".");
    char *whole = realpath(folder, NULL);
    if (!whole || setenv("XDG_CACHE_HOME", whole, 1)) fail_msg("%s: no place for a cache", folder);
    free(whole);
    signal(SIGPIPE, SIG_IGN);
}

const char *serve_rig_folder(void) { return folder; }

/* ---- the server -------------------------------------------------------------------------------------------- */

static int read_port(int fd) {
    char line[512];
    size_t n = 0;
    double end_s = clock_s() + SERVE_WAIT_S;
    while (n < sizeof line - 1 && !memchr(line, '\n', n) && clock_s() < end_s) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 100) <= 0) continue;
        ssize_t got = read(fd, line + n, sizeof line - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    line[n] = '\0';
    const char *colon = strrchr(line, ':');
    return colon ? atoi(colon + 1) : 0;
}

void serve_start(ServeRig *s, const char *args) {
    static int count;
    char command[2048];
    int out[2];
    snprintf(s->log, sizeof s->log, "%s/serve-%d-%d.log", folder, (int)getpid(), count++);
    snprintf(command, sizeof command, "exec %s/../forerun serve %s%s --port 0 2>%s", folder,
             strstr(args, "-m ") ? "" : "-m " SERVE_MODEL " ", args, s->log);
    if (pipe2(out, O_CLOEXEC)) fail_msg("no pipe");
    s->pid = fork();
    if (s->pid == 0) {
#ifdef __linux__
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails does not stop its server */
#endif
        dup2(out[1], STDOUT_FILENO);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    s->port = read_port(out[0]);
    close(out[0]);
    if (s->pid < 0 || s->port == 0) fail_msg("the server did not start: %s", command);
}

/* Padded with spaces to the length of the old template, so that nothing else in the file moves. */
void serve_write_model(const char *path, const char *chat_template) {
    static const char key[] = "tokenizer.chat_template";
    FILE *f = fopen(SERVE_MODEL, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    char *bytes = malloc(size);
    rewind(f);
    assert_int_equal(fread(bytes, 1, size, f), size);
    fclose(f);
    char *at = memmem(bytes, size, key, sizeof key - 1);
    assert_non_null(at);
    at += sizeof key - 1 + 4; /* the type; then the length */
    uint64_t n;
    memcpy(&n, at, sizeof n);
    assert_true(n > strlen(chat_template));
    memset(at + 8, ' ', n);
    memcpy(at + 8, chat_template, strlen(chat_template));
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
    free(bytes);
}

void serve_start_with_thinker(ServeRig *s, const char *name, const char *chat_template, const char *args) {
    char path[700], all[1000];
    snprintf(path, sizeof path, "%s/%s", serve_rig_folder(), name);
    serve_write_model(path, chat_template);
    snprintf(all, sizeof all, "-t 2 -c 256 %s --draft ngram-trie -m " SERVE_MODEL " -m thinker=%s", args, path);
    serve_start(s, all);
}

int serve_wait_end(ServeRig *s) {
    int status = 0;
    double end_s = clock_s() + SERVE_WAIT_S;
    while (waitpid(s->pid, &status, WNOHANG) == 0) {
        if (clock_s() > end_s) {
            kill(s->pid, SIGKILL);
            waitpid(s->pid, &status, 0);
            fail_msg("the server did not end");
        }
        usleep(5000);
    }
    unlink(s->log);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int serve_stop(ServeRig *s) {
    kill(s->pid, SIGTERM);
    return serve_wait_end(s);
}

/* ---- one connection ---------------------------------------------------------------------------------------- */

int serve_connect(const ServeRig *s) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) fail_msg("no connection: %s", strerror(errno));
    return fd;
}

/* It is no failure here if the other side has closed the connection. */
void serve_send(int fd, const char *bytes) {
    for (size_t n = strlen(bytes); n > 0;) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        bytes += sent;
        n -= (size_t)sent;
    }
}

/* Reads the available bytes into the buffer, at most `most`. False: the end, or SERVE_WAIT_S without a byte. */
static bool read_more(int fd, Buf *b, size_t most) {
    char piece[65536];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, SERVE_WAIT_S * 1000) <= 0) return false;
    ssize_t n = recv(fd, piece, most < sizeof piece ? most : sizeof piece, 0);
    return n > 0 && buf_append(b, piece, (size_t)n);
}

bool serve_read_until(int fd, const char *text) {
    Buf b = {.max_bytes = 64 << 20};
    bool found = false;
    while (!found && read_more(fd, &b, SIZE_MAX)) found = strstr(b.data, text) != NULL;
    buf_free(&b);
    return found;
}

bool serve_is_closed(int fd) {
    char piece[65536];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, SERVE_WAIT_S * 1000) <= 0) return false;
        if (recv(fd, piece, sizeof piece, 0) <= 0) return true;
    }
}

static const char *find_header(const char *head, const char *name) {
    size_t n = strlen(name);
    for (const char *line = head; line; line = strstr(line, "\r\n"), line = line ? line + 2 : NULL)
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') return line + n + 1 + strspn(line + n + 1, " ");
    return NULL;
}

/* Returns where the chunk at `at` ends; 0: it is not complete. *size is its size. */
static size_t chunk_end(const Buf *b, size_t at, size_t *size, size_t *data) {
    const char *line_end = strstr(b->data + at, "\r\n");
    if (!line_end) return 0;
    *size = strtoul(b->data + at, NULL, 16);
    *data = (size_t)(line_end - b->data) + 2;
    return *data + *size + 2 <= b->n ? *data + *size + 2 : 0;
}

static void read_chunks(int fd, Buf *b, size_t at, Answer *a) {
    Buf body = {.max_bytes = 256 << 20};
    size_t size = 1, data, end;
    (void)buf_append(&body, "", 0);
    while (size > 0) {
        while (!(end = chunk_end(b, at, &size, &data)))
            if (!read_more(fd, b, SIZE_MAX)) break;
        if (!end) break;
        if (size > 0) (void)buf_append(&body, b->data + data, size);
        at = end;
    }
    a->is_whole = size == 0;
    a->body = body.data;
    a->n_body = body.n;
}

static void read_body(int fd, Buf *b, size_t at, Answer *a) {
    const char *length = find_header(a->head, "Content-Length"), *coding = find_header(a->head, "Transfer-Encoding");
    if (coding) {
        read_chunks(fd, b, at, a);
        return;
    }
    size_t n = length ? strtoul(length, NULL, 10) : SIZE_MAX;
    while (b->n - at < n && read_more(fd, b, length ? n - (b->n - at) : SIZE_MAX)) {}
    a->n_body = b->n - at < n ? b->n - at : n;
    a->is_whole = length ? a->n_body == n : true;
    a->body = malloc(a->n_body + 1);
    memcpy(a->body, b->data + at, a->n_body);
    a->body[a->n_body] = '\0';
}

Answer serve_read_answer(int fd) {
    Answer a = {0};
    Buf b = {.max_bytes = 256 << 20};
    const char *end = NULL;
    /* byte by byte, so that no byte of a following answer is read */
    while (!end && read_more(fd, &b, 1)) {
        end = b.n >= 4 && memcmp(b.data + b.n - 4, "\r\n\r\n", 4) == 0 ? b.data + b.n : NULL;
        if (end && strncmp(b.data, "HTTP/1.1 100", 12) == 0) buf_clear(&b), end = NULL;
    }
    if (end && sscanf(b.data, "HTTP/1.%*d %d", &a.status) == 1) {
        size_t at = b.n;
        a.head = strndup(b.data, at);
        if (a.status == 204) a.is_whole = true, a.body = strdup("");
        else read_body(fd, &b, at, &a);
    }
    buf_free(&b);
    return a;
}

void answer_free(Answer *a) {
    free(a->head);
    free(a->body);
    *a = (Answer){0};
}

/* ---- requests ----------------------------------------------------------------------------------------------- */

void serve_format_post(char *out, size_t size, const char *path, const char *body) {
    snprintf(out, size,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             path, strlen(body), body);
}

Answer serve_request(const ServeRig *s, const char *method, const char *path, const char *headers, const char *body) {
    char head[4096];
    int fd = serve_connect(s);
    snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path, headers);
    serve_send(fd, head);
    if (body) snprintf(head, sizeof head, "Content-Length: %zu\r\n", strlen(body));
    serve_send(fd, body ? head : "");
    serve_send(fd, "\r\n");
    serve_send(fd, body ? body : "");
    Answer a = serve_read_answer(fd);
    close(fd);
    return a;
}

Answer serve_get(const ServeRig *s, const char *path) { return serve_request(s, "GET", path, "", NULL); }
Answer serve_post(const ServeRig *s, const char *path, const char *body) {
    return serve_request(s, "POST", path, "Content-Type: application/json\r\n", body);
}

json_t *serve_json(const ServeRig *s, const char *path, int status, const char *body) {
    json_error_t why;
    Answer a = body ? serve_post(s, path, body) : serve_get(s, path);
    if (a.status != status)
        fail_msg("%s %.200s: want status %d, got %d: %.500s", path, body ? body : "", status, a.status, a.body);
    json_t *json = json_loads(a.body, 0, &why);
    if (!json) fail_msg("%s: no JSON: %s: %.500s", path, why.text, a.body);
    answer_free(&a);
    return json;
}

int serve_last_token(const ServeRig *s, const char *text) {
    char body[100];
    snprintf(body, sizeof body, "{\"content\": \"%s\"}", text);
    json_t *tokens = serve_json(s, "/tokenize", 200, body);
    const json_t *ids = json_at(tokens, "tokens");
    int token = (int)json_integer_value(json_array_get(ids, json_array_size(ids) - 1));
    json_decref(tokens);
    return token;
}

const json_t *json_at(const json_t *root, const char *path) {
    char part[64];
    while (root && *path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(part)) : json_object_get(root, part);
        path += n + (path[n] == '.');
    }
    return root;
}

const char *json_text_at(const json_t *root, const char *path) {
    const char *text = json_string_value(json_at(root, path));
    if (!text) fail_msg("no text at %s", path);
    return text;
}

json_int_t json_int_at(const json_t *root, const char *path) {
    const json_t *value = json_at(root, path);
    if (!json_is_integer(value)) fail_msg("no integer at %s", path);
    return json_integer_value(value);
}

double serve_metric(const ServeRig *s, const char *begin) {
    Answer a = serve_get(s, "/metrics");
    char line[256];
    double value = -1;
    snprintf(line, sizeof line, "\n%s", begin);
    const char *at = a.body ? strstr(a.body, line) : NULL;
    const char *space = at ? strchr(at, ' ') : NULL;
    if (space) value = atof(space);
    else fail_msg("/metrics has no %s", begin);
    answer_free(&a);
    return value;
}

void serve_wait_metric(const ServeRig *s, const char *begin, double value) {
    double end_s = clock_s() + SERVE_WAIT_S, got;
    while ((got = serve_metric(s, begin)) != value) {
        if (clock_s() > end_s) fail_msg("%s stays %g, want %g", begin, got, value);
        usleep(5000);
    }
}

char *serve_stream_text(const Answer *a, const char *path) {
    Buf text = {.max_bytes = 64 << 20};
    char *copy = strdup(a->body), *rest = copy;
    (void)buf_append(&text, "", 0);
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (strncmp(line, "data: ", 6) != 0 || strcmp(line, "data: [DONE]") == 0) continue;
        json_t *event = json_loads(line + 6, 0, NULL);
        if (!event) fail_msg("no JSON: %s", line);
        const char *piece = json_string_value(json_at(event, path));
        if (piece) (void)buf_append(&text, piece, strlen(piece));
        json_decref(event);
    }
    free(copy);
    return text.data;
}
