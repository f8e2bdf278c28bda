/* remote_host.c - a client of HTTP/1.1 for short questions to one host, over sockets that never block.
 *
 * It understands what `forerun serve` answers: a head, and a body of the length that Content-Length announces. Anything
 * else is a failure of the call. The connection stays open for the next call, unless the host closes it or the call
 * fails. The bytes come from the network, so no length is trusted: a head has at most MAX_HEAD bytes and a body at most
 * MAX_BODY, and memory is taken as bytes come. Proof: tests/draft/test_draft_remote.c. */
#include "draft/models/remote_host.h"

#include "base/system.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MAX_HEAD = 16 << 10, MAX_BODY = 1 << 20, MAX_QUESTION = 64 << 20, PIECE = 16 << 10, MOST_WAITED = 64 };

#ifndef MSG_NOSIGNAL /* macOS has an option of sockets instead */
#define MSG_NOSIGNAL 0
#endif

/* Cuts HOST:PORT or [HOST]:PORT. */
static bool cut_name(const char *name, char host[128], char port[8]) {
    const char *colon = strrchr(name, ':');
    if (!colon || colon == name || strlen(colon + 1) == 0 || strlen(colon + 1) >= 8) return false;
    size_t n = (size_t)(colon - name);
    if (name[0] == '[' && name[n - 1] == ']') name++, n -= 2;
    if (n == 0 || n >= 128) return false;
    memcpy(host, name, n);
    host[n] = '\0';
    strcpy(port, colon + 1);
    return strspn(port, "0123456789") == strlen(port) && atoi(port) > 0 && atoi(port) < 65536;
}

int remote_host_find(RemoteHost *h, const char *name, fr_error *err) {
    char host[128], port[8];
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    if (strlen(name) >= sizeof h->name || !cut_name(name, host, port))
        return error_set(err, FR_ERR_ARGUMENT, "remote: 'server=%.80s' must be HOST:PORT", name);
    int status = getaddrinfo(host, port, &hints, &found);
    if (status)
        return error_set(err, FR_ERR_IO, "remote: the host of 'server=%.80s' cannot be found: %s", name,
                         gai_strerror(status));
    strcpy(h->name, name);
    memcpy(&h->address, found->ai_addr, found->ai_addrlen);
    h->address_bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return FR_OK;
}

int remote_host_read_key(RemoteHost *h, const char *path, fr_error *err) {
    FILE *f = fopen(path, "r");
    if (!f) return error_set(err, FR_ERR_IO, "remote: the key file %.200s cannot be read: %s", path, strerror(errno));
    char *key = fgets(h->key, sizeof h->key, f);
    fclose(f);
    size_t n = key ? strcspn(key, "\r\n") : 0;
    bool is_whole = n > 0 && n < sizeof h->key - 1;
    for (size_t i = 0; i < n && is_whole; i++) is_whole = key[i] > ' ' && key[i] <= '~';
    if (is_whole) key[n] = '\0';
    return is_whole ? FR_OK
                    : error_set(err, FR_ERR_ARGUMENT,
                                "remote: the first line of %.200s must be a key of 1 to %d visible characters", path,
                                (int)sizeof h->key - 2);
}

/* ---- a connection ------------------------------------------------------------------------------------------ */

static void hang_up(RemoteCall *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

static void fail(RemoteCall *c, const char *why) {
    hang_up(c);
    c->state = REMOTE_FAILED;
    snprintf(c->why, sizeof c->why, "%s", why);
}

/* Begins to connect, unless the connection of the last call still exists. */
static bool hold_connection(RemoteCall *c) {
    char byte;
    const int one = 1;
    if (c->fd >= 0) {
        if (recv(c->fd, &byte, 1, MSG_PEEK) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        hang_up(c); /* the host has closed it, or has sent something without being asked */
    }
    c->fd = socket(c->host->address.ss_family, SOCK_STREAM, 0);
    if (c->fd < 0 || fcntl(c->fd, F_SETFL, O_NONBLOCK) || fcntl(c->fd, F_SETFD, FD_CLOEXEC)) return false;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
#ifdef SO_NOSIGPIPE
    setsockopt(c->fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
    return connect(c->fd, (const struct sockaddr *)&c->host->address, c->host->address_bytes) == 0 ||
           errno == EINPROGRESS;
}

static bool can_wait(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == EINPROGRESS || errno == ENOTCONN;
}

static void send_more(RemoteCall *c) {
    int failure = 0;
    socklen_t n = sizeof failure;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &failure, &n) == 0 && failure) {
        fail(c, strerror(failure)); /* it could not be connected */
        return;
    }
    while (c->sent_bytes < c->question.n) {
        ssize_t sent = send(c->fd, c->question.data + c->sent_bytes, c->question.n - c->sent_bytes, MSG_NOSIGNAL);
        if (sent < 0) {
            if (!can_wait()) fail(c, strerror(errno));
            return;
        }
        c->sent_bytes += (size_t)sent;
    }
}

/* ---- the answer --------------------------------------------------------------------------------------------- */

/* Returns the value of a field of a head that ends with an empty line, or NULL. */
static const char *find_field(const char *head, const char *name) {
    size_t n = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line && line[2] != '\r'; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':') return line + 3 + n + strspn(line + 3 + n, " ");
    return NULL;
}

/* Looks for a whole answer in what has come; it is followed by a '\0'. */
static void read_answer(RemoteCall *c) {
    char *end = strstr(c->answer.data, "\r\n\r\n"), *rest;
    if (!end) {
        if (c->answer.n > MAX_HEAD || strlen(c->answer.data) < c->answer.n) fail(c, "the answer is not HTTP");
        return;
    }
    const char *length = find_field(c->answer.data, "Content-Length"),
               *connection = find_field(c->answer.data, "Connection");
    long body_bytes = length ? strtol(length, &rest, 10) : -1;
    if (sscanf(c->answer.data, "HTTP/1.1 %3d ", &c->status) != 1 || body_bytes < 0 || body_bytes > MAX_BODY ||
        *rest != '\r') {
        fail(c, "the answer is not HTTP/1.1 with a Content-Length");
        return;
    }
    c->body = end + 4;
    c->body_bytes = (size_t)body_bytes;
    size_t come = c->answer.n - (size_t)(c->body - c->answer.data);
    if (come < c->body_bytes) return;
    if (come > c->body_bytes) {
        fail(c, "the answer is longer than its Content-Length");
        return;
    }
    c->state = REMOTE_ANSWERED;
    if (connection && strncasecmp(connection, "close", 5) == 0) hang_up(c);
}

static void receive_more(RemoteCall *c) {
    while (c->state == REMOTE_RUNS) {
        if (!buf_reserve(&c->answer, PIECE + 1)) {
            fail(c, "the answer is too long");
            return;
        }
        ssize_t n = recv(c->fd, c->answer.data + c->answer.n, PIECE, 0);
        if (n < 0) {
            if (!can_wait()) fail(c, strerror(errno));
            return;
        }
        if (n == 0) {
            fail(c, "the connection was closed before a whole answer came");
            return;
        }
        c->answer.n += (size_t)n;
        c->answer.data[c->answer.n] = '\0';
        read_answer(c);
    }
}

/* ---- calls --------------------------------------------------------------------------------------------------- */

void remote_call_begin(RemoteCall *c, const RemoteHost *host, const char *path, const Buf *body) {
    char head[768];
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: %s\r\n%s%s%sContent-Type: application/json\r\nContent-Length: "
                     "%zu\r\n\r\n",
                     path, host->name, *host->key ? "Authorization: Bearer " : "", host->key, *host->key ? "\r\n" : "",
                     body->n);
    c->host = host;
    c->state = REMOTE_RUNS;
    c->sent_bytes = 0;
    c->question.max_bytes = MAX_QUESTION, c->answer.max_bytes = MAX_HEAD + MAX_BODY + 2 * PIECE;
    buf_clear(&c->question);
    buf_clear(&c->answer);
    if (!buf_append(&c->question, head, (size_t)n) || !buf_append(&c->question, body->data, body->n))
        fail(c, "memory ran out");
    else if (!hold_connection(c)) fail(c, strerror(errno));
    else send_more(c);
}

static void go_on(RemoteCall *c) {
    if (c->sent_bytes < c->question.n) send_more(c);
    if (c->state == REMOTE_RUNS && c->sent_bytes == c->question.n) receive_more(c);
}

void remote_calls_wait(RemoteCall *const *calls, int n, double until_s) {
    for (;;) {
        struct pollfd waited[MOST_WAITED];
        nfds_t n_waited = 0;
        for (int i = 0; i < n; i++) {
            if (calls[i]->state != REMOTE_RUNS) continue;
            go_on(calls[i]);
            if (calls[i]->state != REMOTE_RUNS || n_waited == MOST_WAITED) continue;
            bool sends = calls[i]->sent_bytes < calls[i]->question.n;
            waited[n_waited++] = (struct pollfd){.fd = calls[i]->fd, .events = sends ? POLLOUT : POLLIN};
        }
        double left_s = until_s - clock_s();
        if (n_waited == 0 || left_s <= 0) return;
        poll(waited, n_waited, 1 + (int)(1e3 * left_s));
    }
}

void remote_call_cancel(RemoteCall *c) {
    hang_up(c);
    c->state = REMOTE_IDLE;
}

void remote_call_free(RemoteCall *c) {
    remote_call_cancel(c);
    buf_free(&c->question);
    buf_free(&c->answer);
}
