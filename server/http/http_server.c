/* http_server.c - the listening socket, the list of connections, and the timer that closes slow ones.
 *
 * If all places are taken, a new connection takes the place of the one that has waited longest without a complete
 * request: clients that fill the places with silence or with slow heads lose them to clients that send requests.
 * Connections that are being answered are never closed for others. */
#include "base/system.h"
#include "cli/cli.h"
#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
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

/* Closes the connection that has waited longest for a request. False: all connections are being answered. */
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
    const int one = 1,
              send_buffer = SEND_BUFFER; /* otherwise the system holds megabytes for a client that does not read */
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

/* Usually file descriptors have run out: new connections wait in the system's queue until some are closed. */
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

/* Returns the port that the system chose. */
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
        return error_set(err, FR_ERR_ARGUMENT, "--host: '%.200s' is no address to listen on: %s", o->host,
                         gai_strerror(failure));
    for (const struct addrinfo *at = list; at && !s->listener; at = at->ai_next) why = listen_at(s, at);
    freeaddrinfo(list);
    if (!s->listener)
        return error_set(err, FR_ERR_IO, "cannot listen on %s, port %d: %s; choose another port with --port", o->host,
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

/* ---- access: keys, hosts and CORS ---------------------------------------------------------------------------
 *
 * Keys are kept and compared as SHA-256 digests. Each comparison reads all bytes of all digests, so that its time
 * reveals nothing about a key. A page in a browser can send requests to any address that the browser reaches, even to
 * 127.0.0.1, and needs no permission for some of them; so a request from a foreign origin that the operator did not
 * list is refused before anything is computed. The owner of a name can also make it point to this machine after the
 * page has been loaded (DNS rebinding): then the page has the same origin as the server, and its requests have that
 * name as their Host. Numeric addresses and localhost cannot be made to point to another machine. */

enum { KEY_FILE_MAX = 1 << 20 };

int access_add_key(Access *a, const char *key, size_t n, fr_error *err) {
    if (a->n_keys == ACCESS_MAX_KEYS)
        return error_set(err, FR_ERR_ARGUMENT, "there are more than %d API keys", ACCESS_MAX_KEYS);
    SHA256((const unsigned char *)key, n, a->keys[a->n_keys++]);
    return FR_OK;
}

int access_add_key_file(Access *a, const char *path, fr_error *err) {
    char *text;
    size_t n;
    int before = a->n_keys, status = cli_read_file(path, KEY_FILE_MAX, &text, &n, err);
    if (status) return status;
    for (char *line = text, *rest; line && *line && !status; line = rest) {
        size_t length = strcspn(line, "\n");
        rest = line[length] ? line + length + 1 : NULL;
        while (length > 0 && strchr(" \t\r", line[length - 1])) length--;
        if (length > 0 && line[0] != '#') status = access_add_key(a, line, length, err);
    }
    OPENSSL_cleanse(text, n);
    free(text);
    if (!status && a->n_keys == before)
        status = error_set(err, FR_ERR_ARGUMENT, "%.200s: contains no API key; write each key on a line of its own",
                           path);
    return status;
}

static bool is_key(const Access *a, const char *key) {
    unsigned char digest[ACCESS_DIGEST];
    int n_equal = 0;
    SHA256((const unsigned char *)key, strlen(key), digest);
    for (int i = 0; i < a->n_keys; i++) n_equal += CRYPTO_memcmp(digest, a->keys[i], sizeof digest) == 0;
    return n_equal > 0;
}

bool access_has_key(const Access *a, const HttpHead *head) {
    const char *bearer = http_head_find(head, "Authorization"), *key = http_head_find(head, "x-api-key");
    if (a->n_keys == 0) return true;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) {
        bearer += 7;
        while (*bearer == ' ') bearer++;
        if (is_key(a, bearer)) return true;
    }
    return key && is_key(a, key);
}

static bool is_listed(const Access *a, const char *origin) {
    for (int i = 0; i < a->n_origins; i++)
        if (strcmp(a->origins[i], "*") == 0 || strcasecmp(a->origins[i], origin) == 0) return true;
    return false;
}

static bool is_numeric(const char *name) {
    char address[INET6_ADDRSTRLEN];
    struct in6_addr unused;
    size_t n = strlen(name);
    if (name[0] != '[') return inet_pton(AF_INET, name, &unused) == 1;
    if (n < 3 || n - 2 >= sizeof address || name[n - 1] != ']') return false;
    snprintf(address, sizeof address, "%.*s", (int)(n - 2), name + 1);
    return inet_pton(AF_INET6, address, &unused) == 1;
}

static bool is_localhost(const char *name) {
    size_t n = strlen(name), n_localhost = strlen("localhost");
    if (n < n_localhost || strcasecmp(name + n - n_localhost, "localhost") != 0) return false;
    return n == n_localhost || name[n - n_localhost - 1] == '.';
}

bool access_allows_host(const Access *a, const HttpHead *head) {
    char name[256];
    const char *host = http_head_find(head, "Host");
    if (!host || a->n_keys > 0) return true; /* browsers always send a Host, and no page has a key */
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (n >= sizeof name || n > strlen(host)) return false;
    if (host[n] && (host[n] != ':' || strspn(host + n + 1, "0123456789") != strlen(host + n + 1))) return false;
    snprintf(name, sizeof name, "%.*s", (int)n, host);
    if (is_numeric(name) || is_localhost(name)) return true;
    for (int i = 0; i < a->n_hosts; i++)
        if (strcmp(a->hosts[i], "*") == 0 || strcasecmp(a->hosts[i], name) == 0) return true;
    return false;
}

bool access_allows_origin(const Access *a, const HttpHead *head) {
    const char *origin = http_head_find(head, "Origin"), *host = http_head_find(head, "Host");
    if (!origin || is_listed(a, origin)) return true;
    const char *authority = strstr(origin, "://");
    return authority && host && strcasecmp(authority + 3, host) == 0 && access_allows_host(a, head);
}

void access_add_cors(const Access *a, HttpExchange *x) {
    const char *origin = http_head_find(http_exchange_head(x), "Origin");
    if (a->n_origins == 0) return;
    http_exchange_add_header(x, "Vary", "Origin");
    if (origin && is_listed(a, origin)) http_exchange_add_header(x, "Access-Control-Allow-Origin", origin);
}

void access_answer_preflight(const Access *a, HttpExchange *x) {
    const char *wanted = http_head_find(http_exchange_head(x), "Access-Control-Request-Headers");
    access_add_cors(a, x);
    http_exchange_add_header(x, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    if (wanted) http_exchange_add_header(x, "Access-Control-Allow-Headers", wanted);
    http_exchange_add_header(x, "Access-Control-Max-Age", "600");
    http_exchange_reply(x, 204, NULL, "", 0);
}
