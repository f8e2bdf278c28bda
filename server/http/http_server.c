/* http_server.c - the listening socket, the list of connections, and the timer that closes slow ones.
 *
 * Where all places are taken, a new connection takes that of the one that has waited longest without a complete request:
 * whoever fills the places with silence or with slow heads loses them to whoever sends requests. Connections that are
 * being answered are never closed for others. */
#include "server/http/http_connection.h"

#include "base/system.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHECKS_PER_SECOND = 10, BACKLOG = 1024, SEND_BUFFER = 128 << 10 };

static void on_timer(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    HttpServer *s = user;
    double now_s = clock_s();
    for (HttpExchange *x = s->first, *next; x; x = next) {
        next = x->next;
        http_connection_check(x, now_s);
    }
}

/* Closes the connection that has waited longest for a request. False: all are being answered. */
static bool make_room(HttpServer *s) {
    for (HttpExchange *x = s->first; x; x = x->next)
        if (x->state != HTTP_ANSWERS) {
            http_connection_close(x);
            return true;
        }
    return false;
}

static void describe_peer(const struct sockaddr *address, char *out, size_t n) {
    char host[INET6_ADDRSTRLEN] = "?";
    int port = 0;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        port = ntohs(in->sin_port);
        snprintf(out, n, "%s:%d", host, port);
    } else if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)address;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        port = ntohs(in->sin6_port);
        snprintf(out, n, "[%s]:%d", host, port);
    } else snprintf(out, n, "?");
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int n,
                      void *user) {
    (void)listener, (void)n;
    HttpServer *s = user;
    char peer[64];
    const int one = 1, send_buffer = SEND_BUFFER; /* else the system holds megabytes for a client that does not read */
    if (s->n_connections >= s->options.limits.max_connections && !make_room(s)) {
        static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
                                   "Connection: close\r\n\r\n";
        if (!s->options.tls) (void)!write(fd, busy, sizeof busy - 1);
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    describe_peer(address, peer, sizeof peer);
    http_connection_open(s, fd, peer);
}

/* Out of file descriptors, as a rule: connections wait in the system's queue until some are closed. */
static void on_accept_error(struct evconnlistener *listener, void *user) {
    (void)listener;
    HttpServer *s = user;
    if (!make_room(s)) usleep(1000);
}

static int listen_at(HttpServer *s, const struct addrinfo *at) {
    s->listener = evconnlistener_new_bind(s->base, on_accept, s,
                                          LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE, BACKLOG,
                                          at->ai_addr, (int)at->ai_addrlen);
    return s->listener ? 0 : errno;
}

/* Which port the system chose. */
static int bound_port(int fd) {
    struct sockaddr_storage address = {0};
    socklen_t n = sizeof address;
    char port[16] = "0";
    if (getsockname(fd, (struct sockaddr *)&address, &n) == 0)
        (void)getnameinfo((const struct sockaddr *)&address, n, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    return atoi(port);
}

static int bind_socket(HttpServer *s, fr_error *err) {
    const HttpServerOptions *o = &s->options;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    int failure = getaddrinfo(o->host, port, &hints, &list), why = 0;
    if (failure)
        return error_set(err, FR_ERR_ARGUMENT, "--host: '%.200s' is no address to listen at: %s", o->host,
                         gai_strerror(failure));
    for (const struct addrinfo *at = list; at && !s->listener; at = at->ai_next) why = listen_at(s, at);
    freeaddrinfo(list);
    if (!s->listener)
        return error_set(err, FR_ERR_IO, "cannot listen at %s, port %d: %s; choose another with --port", o->host,
                         o->port, strerror(why));
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    s->port = bound_port(evconnlistener_get_fd(s->listener));
    return FR_OK;
}

int http_server_open(HttpServer **out, struct event_base *base, const HttpServerOptions *options, fr_error *err) {
    const struct timeval period = {.tv_usec = 1000000 / CHECKS_PER_SECOND};
    *out = NULL;
    HttpServer *s = calloc(1, sizeof *s);
    if (!s) return error_memory(err, "a server", sizeof *s);
    s->base = base;
    s->options = *options;
    int status = bind_socket(s, err);
    s->timer = status ? NULL : event_new(base, -1, EV_PERSIST, on_timer, s);
    if (!status && (!s->timer || event_add(s->timer, &period))) status = error_memory(err, "a timer", 1);
    if (status) http_server_close(s);
    else *out = s;
    return status;
}

void http_server_close(HttpServer *s) {
    if (!s) return;
    while (s->first) http_connection_close(s->first);
    if (s->listener) evconnlistener_free(s->listener);
    if (s->timer) event_free(s->timer);
    free(s);
}

int http_server_port(const HttpServer *s) { return s->port; }
int http_server_n_connections(const HttpServer *s) { return s->n_connections; }

void http_server_drain(HttpServer *s) {
    s->drains = true;
    for (HttpExchange *x = s->first, *next; x; x = next) {
        next = x->next;
        if (x->state == HTTP_READS_HEAD && x->is_idle) http_connection_close(x);
    }
}
