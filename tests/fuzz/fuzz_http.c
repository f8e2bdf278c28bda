/* fuzz_http.c - the body of a request in chunks, as the server's reader takes it from a socket.
 *
 * Byte 0 chooses how large the pieces are that arrive at once; the others follow the head of a request. The reader must
 * take a body, refuse it or wait for more exactly where a second decoder does, which finds lines by regular
 * expressions. */
#include "server/http/http_server.h"

#include <fcntl.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_BYTES = 4096, MOST_BODY = 1 << 20 };

static const char head[] = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* ---- the second decoder ---------------------------------------------------------------------------------- */

typedef enum Verdict { WAITS, TAKEN, REFUSED } Verdict;

typedef struct Forms {
    regex_t size, trailer;
} Forms;

#define NAME "[-!#$%&'*+.^_`|~0-9A-Za-z]+"

static const Forms *forms(void) {
    static Forms f;
    static bool is_ready;
    if (!is_ready) {
        fr_assert(regcomp(&f.size,
                          "^[0-9a-fA-F]{1,8}([ \t]*;[ \t]*" NAME "([ \t]*=[ \t]*(" NAME "|\"([^\"\\\\]|\\\\.)*\"))?)*$",
                          REG_EXTENDED | REG_NOSUB) == 0);
        fr_assert(regcomp(&f.trailer, "^" NAME ":", REG_EXTENDED | REG_NOSUB) == 0);
    }
    is_ready = true;
    return &f;
}

/* Reads the line at `at` with its CR LF cut off, as a string. REFUSED: it ends otherwise, or has a control
 * character. */
static Verdict next_line(const char *bytes, size_t n, size_t *at, char line[MOST_BYTES]) {
    const char *begin = bytes + *at, *lf = memchr(begin, '\n', n - *at);
    if (!lf) return WAITS;
    size_t length = (size_t)(lf - begin);
    *at += length + 1;
    if (length == 0 || begin[length - 1] != '\r') return REFUSED;
    memcpy(line, begin, --length);
    line[length] = '\0';
    for (size_t i = 0; i < length; i++)
        if (((unsigned char)line[i] < ' ' && line[i] != '\t') || line[i] == 0x7F) return REFUSED;
    return TAKEN;
}

static Verdict decode(const char *bytes, size_t n, Buf *body) {
    char line[MOST_BYTES];
    size_t at = 0, size = 1;
    Verdict verdict;
    while (size > 0) {
        if ((verdict = next_line(bytes, n, &at, line)) != TAKEN) return verdict;
        if (regexec(&forms()->size, line, 0, NULL, 0) != 0) return REFUSED;
        size = strtoul(line, NULL, 16);
        if (size > n - at) return WAITS;
        fr_assert(size == 0 || buf_append(body, bytes + at, size));
        at += size;
        if (size == 0) break;
        if ((verdict = next_line(bytes, n, &at, line)) != TAKEN) return verdict;
        if (line[0]) return REFUSED;
    }
    while ((verdict = next_line(bytes, n, &at, line)) == TAKEN && line[0])
        if (regexec(&forms()->trailer, line, 0, NULL, 0) != 0) return REFUSED;
    return verdict;
}

/* ---- the reader ------------------------------------------------------------------------------------------ */

typedef struct Seen {
    Verdict verdict;
    int status; /* the status of a refusal */
    char *body;
    size_t n;
} Seen;

static void on_request(void *user, HttpExchange *x) {
    Seen *seen = user;
    fr_assert(seen->verdict == WAITS);
    seen->verdict = TAKEN;
    seen->body = http_exchange_take_body(x, &seen->n);
}

static bool on_refusal(void *user, Buf *out, const char *path, int status, const char *why) {
    Seen *seen = user;
    fr_assert(seen->verdict == WAITS && strcmp(path, "/") == 0 && *why);
    seen->verdict = REFUSED;
    seen->status = status;
    return buf_append(out, why, strlen(why));
}

static struct event_base *events(void) {
    static struct event_base *base;
    if (!base) fr_assert((base = event_base_new()) != NULL);
    return base;
}

static void send_piece(int fd, const void *bytes, size_t n) {
    fr_assert(n == 0 || send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
    event_base_loop(events(), EVLOOP_NONBLOCK);
}

static void read_from_socket(Seen *seen, const uint8_t *bytes, size_t n, size_t n_piece) {
    HttpServer s = {.base = events(),
                    .options = {.limits = {.max_body_bytes = MOST_BODY,
                                           .max_all_bodies = MOST_BODY,
                                           .max_unsent_bytes = MOST_BODY,
                                           .max_connections = 1,
                                           .request_timeout_s = 1000,
                                           .idle_timeout_s = 1000},
                                .on_request = on_request,
                                .write_error = on_refusal,
                                .user = seen}};
    int fds[2];
    fr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    http_connection_open(&s, fds[0], "peer");
    send_piece(fds[1], head, sizeof head - 1);
    for (size_t at = 0; at < n && seen->verdict != REFUSED; at += n_piece)
        send_piece(fds[1], bytes + at, n - at < n_piece ? n - at : n_piece);
    while (s.first) http_connection_close(s.first);
    event_base_loop(events(), EVLOOP_NONBLOCK); /* what the connection left to do later */
    close(fds[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (n < 1 || n > MOST_BYTES) return 0;
    Buf body = {.max_bytes = MOST_BODY};
    Seen seen = {.verdict = WAITS};
    Verdict verdict = decode((const char *)bytes + 1, n - 1, &body);
    read_from_socket(&seen, bytes + 1, n - 1, bytes[0] ? bytes[0] : MOST_BYTES);
    fr_assert(seen.verdict == verdict);
    fr_assert(verdict != REFUSED || seen.status == 400);
    fr_assert(verdict != TAKEN || (seen.n == body.n && (body.n == 0 || memcmp(seen.body, body.data, body.n) == 0)));
    free(seen.body);
    buf_free(&body);
    return 0;
}
