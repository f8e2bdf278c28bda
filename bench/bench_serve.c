/* bench_serve.c - load for `forerun serve`: many clients with mixed requests, some of which hang up or send malformed
 * requests.
 *
 * Before the load, each kind of request is sent once by itself, with "draft": "none"; every complete answer under load
 * must then be the same text. All clients are states of one event loop, so that the load takes little of the processor
 * that the server needs. Another connection asks for /health a hundred times a second: the time of its answers is what
 * the server's event loop adds to each token of a stream. With --added that is measured from outside: streams contain
 * the time at which the engine chose each token, and the arrival of the token's event is compared with it. Both times
 * count from the request: here from when it was sent, there from its first byte. So the figure includes the request's
 * way to the server, and this program's own work on events that arrive together. With --added clients begin one after
 * the other. With --prompt N a further client sends prompts of N tokens, one after the other: the time between two
 * events of a stream is then counted a second time for the events that arrive while such a prompt is read, and the time
 * of a prompt is compared with that of one without other requests. For 99th percentiles, let the streams be long:
 *
 *     forerun serve -m model.gguf -c 9000 --max-gap 100 --port 8080 &
 *     bench_serve -c 4 -t 400 -S 100 -x -n 64 --prompt 8000
 *
 * Exit status 1: an answer was wrong or missing. */
#include "load_figures.h"
#include "load_requests.h"

#include "base/system.h"
#include "base/mem.h"

#include <argp.h>
#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/util.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>

enum {
    MAX_CLIENTS = 4096,
    MAX_TEXT = 16 << 20,
    SAMPLE_MS = 250,
    PROBE_MS = 10,
    STAGGER_MS = 10,
    GIVE_UP_S = 120,
    BETWEEN_PROMPTS_MS = 200
};

/* ---- options ----------------------------------------------------------------------------------------------- */

static struct {
    const char *host, *draft, *json, *headers;
    int port, n_clients, n_requests, n_kinds, max_tokens, n_prompt, hang_up, malformed, streamed, retries, pid, seed;
    double seconds;
    bool checks, varies, added;
} o = {.host = "127.0.0.1",
       .port = 8080,
       .n_clients = 32,
       .n_requests = 640,
       .n_kinds = 56,
       .max_tokens = 64,
       .streamed = 50,
       .seed = 1,
       .headers = "",
       .checks = true};

static const struct argp_option arguments[] = {
    {"host", 'H', "ADDRESS", 0, "numeric address of the server (127.0.0.1)", 0},
    {"port", 'p', "N", 0, "its port (8080)", 0},
    {"clients", 'c', "N", 0, "clients at once (32)", 1},
    {"requests", 'n', "N", 0, "requests of all clients together (640)", 1},
    {"seconds", 's', "S", 0, "run for S seconds, instead of --requests", 1},
    {"kinds", 'k', "N", 0, "different requests, 1 to 140 (56)", 1},
    {"max-tokens", 't', "N", 0, "tokens of an answer, at most (64)", 1},
    {"draft", 'd', "NAME", 0, "field `draft` of the requests; none: plain decoding (the server's drafters)", 1},
    {"streamed", 'S', "PERCENT", 0, "share of requests that stream (50)", 2},
    {"hang-up", 'u', "PERCENT", 0, "share of requests whose client hangs up before the end (0)", 2},
    {"malformed", 'm', "PERCENT", 0, "share of malformed requests (0)", 2},
    {"retries", 'r', "N", 0, "how often a request that failed is sent again (0)", 2},
    {"no-check", 'x', NULL, 0, "do not compare answers with those of plain decoding", 2},
    {"vary", 'v', NULL, 0, "send prompts and seeds only once, and do not compare the answers", 2},
    {"added", 'a', NULL, 0, "only streams of /v1/chat/completions: measure the time between a token and its event", 2},
    {"prompt", 'l', "N", 0, "meanwhile, read prompts of N tokens one after the other (none)", 2},
    {"key", 'K', "KEY", 0, "API key", 3},
    {"pid", 'P', "PID", 0, "process whose memory (VmRSS) is watched", 3},
    {"seed", 'R', "N", 0, "seed of the clients' random choices (1)", 3},
    {"json", 'j', "FILE", 0, "write the figures as JSON, too", 3},
    {0},
};

static int integer(struct argp_state *state, const char *text, int least, int most) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < least || value > most)
        argp_error(state, "'%s' must be an integer from %d to %d", text, least, most);
    return (int)value;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    static char header[256];
    switch (key) {
    case 'H': o.host = text; return 0;
    case 'p': o.port = integer(state, text, 1, 65535); return 0;
    case 'c': o.n_clients = integer(state, text, 1, MAX_CLIENTS); return 0;
    case 'n': o.n_requests = integer(state, text, 1, INT32_MAX); return 0;
    case 's': o.seconds = integer(state, text, 1, 86400); return 0;
    case 'k': o.n_kinds = integer(state, text, 1, LOAD_KINDS_MAX); return 0;
    case 't': o.max_tokens = integer(state, text, 1, 1 << 20); return 0;
    case 'd': o.draft = text; return 0;
    case 'S': o.streamed = integer(state, text, 0, 100); return 0;
    case 'u': o.hang_up = integer(state, text, 0, 100); return 0;
    case 'm': o.malformed = integer(state, text, 0, 100); return 0;
    case 'r': o.retries = integer(state, text, 0, 1000); return 0;
    case 'x': o.checks = false; return 0;
    case 'v': o.varies = true, o.checks = false; return 0;
    case 'l': o.n_prompt = integer(state, text, 1, 1 << 20); return 0;
    case 'a': o.added = true, o.streamed = 100; return 0;
    case 'K':
        if (snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", text) >= (int)sizeof header)
            argp_error(state, "the key is longer than this program takes");
        o.headers = header;
        return 0;
    case 'P': o.pid = integer(state, text, 1, INT32_MAX); return 0;
    case 'R': o.seed = integer(state, text, 0, INT32_MAX); return 0;
    case 'j': o.json = text; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- clients ----------------------------------------------------------------------------------------------- */

typedef enum Purpose { NOTHING_YET, ANSWER, HANG_UP, MALFORMED, HEALTH, PROMPT } Purpose;
typedef enum Part { HEAD, LENGTH, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, WHOLE } Part;

typedef struct Client {
    struct bufferevent *bev;
    struct event *timer;
    Purpose purpose;
    int kind, n_tries, status;
    uint32_t variant; /* 0: one of those that are compared */
    bool streams;
    int64_t hang_up_after; /* bytes of the answer; -1: never */
    Part part;
    size_t n_missing, n_seen; /* missing bytes of the length or chunk; bytes of the body that were read as events */
    Buf body, text;
    double sent_s, last_s;
} Client;

static struct event_base *base;
static struct sockaddr_in server;
static Client clients[MAX_CLIENTS], probe, reader;
static char *plain[LOAD_KINDS_MAX];
static LoadFigures figures;
static bool is_plain;        /* whether the answers to compare with are being made */
static bool reads_prompt;    /* a prompt of --prompt is being read ... */
static bool reads_by_itself; /* ... and there are no other requests */
static int n_left, n_next, n_active;
static uint64_t random_state;

static uint32_t draw(uint32_t n) { /* splitmix64 */
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32) % n;
}

static void next_request(Client *c);
static void send_request(Client *c);

static void hang_up(Client *c) {
    if (c->bev) bufferevent_free(c->bev);
    c->bev = NULL;
}

static void later(Client *c, int ms) {
    const struct timeval wait = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    evtimer_add(c->timer, &wait);
}

static void fail(Client *c, const char *why) {
    hang_up(c);
    if (c->purpose == HEALTH) {
        later(c, PROBE_MS);
        return;
    }
    if (c->purpose == PROMPT) {
        fprintf(stderr, "bench_serve: a prompt of %d tokens: %s; status %d, '%.200s'\n", o.n_prompt, why, c->status,
                c->body.data ? c->body.data : "");
        exit(1);
    }
    if (c->n_tries++ < o.retries) {
        figures.n_retried++;
        later(c, 100);
        return;
    }
    if (figures.n_failed++ < 10)
        fprintf(stderr, "bench_serve: %s, request %d: %s; status %d, '%.200s'\n", load_form(c->kind)->path, c->kind,
                why, c->status, c->body.data ? c->body.data : "");
    next_request(c);
}

static void note_tokens(const Client *c) {
    const char *at = NULL, *key = load_form(c->kind)->n_tokens;
    for (const char *next = c->body.data; (next = strstr(next, key)); next++) at = next;
    if (at) figures.n_tokens += atoll(at + strlen(key));
}

/* The answer is complete. */
static void judge(Client *c) {
    const char *text = c->text.data;
    json_t *answer = NULL;
    if (c->purpose == MALFORMED) {
        *(c->status / 100 == 4 ? &figures.n_refused : &figures.n_not_refused) += 1;
        hang_up(c);
        next_request(c);
        return;
    }
    if (c->status != 200) {
        if (c->status == 429) figures.n_busy++;
        fail(c, "refused");
        return;
    }
    if (!c->streams) {
        answer = json_loads(c->body.data, 0, NULL);
        text = load_text_at(answer, load_form(c->kind)->whole);
    }
    if (is_plain && text) plain[c->kind] = strdup(text);
    figures.n_answered++;
    note_tokens(c);
    series_add(&figures.whole_s, clock_s() - c->sent_s);
    if (o.checks && (!text || !plain[c->kind] || strcmp(text, plain[c->kind]) != 0) && figures.n_wrong++ < 10)
        fprintf(stderr, "bench_serve: request %d, %s:\n  alone '%s'\n  here  '%s'\n", c->kind,
                c->streams ? "streamed" : "whole", plain[c->kind] ? plain[c->kind] : "nothing",
                text ? text : "nothing");
    json_decref(answer);
    next_request(c);
}

/* Returns the time at which the event loop woke up: the bytes that it has handed out since then had arrived by then. */
static double arrival_s(void) {
    struct timeval woke, now;
    if (event_base_gettimeofday_cached(base, &woke) || evutil_gettimeofday(&now, NULL)) return clock_s();
    return clock_s() - (double)(now.tv_sec - woke.tv_sec) - 1e-6 * (double)(now.tv_usec - woke.tv_usec);
}

static void note_added(const Client *c, const json_t *event, double now_s) {
    const json_t *tokens = load_value_at(event, "choices.0.forerun.tokens");
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const json_t *ms = json_object_get(json_array_get(tokens, i), "ms");
        if (json_is_real(ms)) series_add(&figures.added_s, now_s - c->sent_s - 1e-3 * json_real_value(ms));
    }
}

static void note_event(Client *c, const char *line, double now_s) {
    json_t *event = strncmp(line, "data: {", 7) == 0 ? json_loads(line + 6, 0, NULL) : NULL;
    const char *piece = load_text_at(event, load_form(c->kind)->piece);
    if (o.added) note_added(c, event, now_s);
    if (piece && *piece) {
        if (c->last_s > 0 && reads_prompt) series_add(&figures.beside_s, now_s - c->last_s);
        series_add(c->last_s > 0 ? &figures.gap_s : &figures.first_s, now_s - (c->last_s > 0 ? c->last_s : c->sent_s));
        c->last_s = now_s;
        (void)buf_append(&c->text, piece, strlen(piece));
    }
    json_decref(event);
}

static void note_events(Client *c) {
    double now_s = arrival_s();
    for (char *line = c->body.data + c->n_seen, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        note_event(c, line, now_s);
        *end = '\n';
        c->n_seen = (size_t)(end + 1 - c->body.data);
    }
}

static bool read_head(Client *c, struct evbuffer *in) {
    struct evbuffer_ptr end = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    char head[LOAD_HEAD_MAX * 8];
    if (end.pos < 0 || (size_t)end.pos + 4 >= sizeof head) return false;
    evbuffer_remove(in, head, (size_t)end.pos + 4);
    head[end.pos + 4] = '\0';
    const char *length = strcasestr(head, "\r\nContent-Length:");
    c->status = atoi(head + strcspn(head, " "));
    c->n_missing = length ? strtoul(length + 17, NULL, 10) : 0;
    c->part = strcasestr(head, "\r\nTransfer-Encoding:") ? CHUNK_SIZE : c->n_missing ? LENGTH : WHOLE;
    return true;
}

static bool read_bytes(Client *c, struct evbuffer *in, Part next) {
    char piece[16384];
    size_t n = c->n_missing < sizeof piece ? c->n_missing : sizeof piece;
    int got = evbuffer_remove(in, piece, n);
    if (got <= 0) return false;
    (void)buf_append(&c->body, piece, (size_t)got);
    c->n_missing -= (size_t)got;
    if (c->n_missing == 0) c->part = next;
    return true;
}

static bool read_line(Client *c, struct evbuffer *in) {
    char *line = evbuffer_readln(in, NULL, EVBUFFER_EOL_CRLF);
    if (!line) return false;
    if (c->part == CHUNK_SIZE) {
        c->n_missing = strtoul(line, NULL, 16);
        c->part = c->n_missing ? CHUNK : TRAILER;
    } else if (c->part == CHUNK_END) c->part = CHUNK_SIZE;
    else if (!*line) c->part = WHOLE;
    free(line);
    return true;
}

static bool read_part(Client *c, struct evbuffer *in) {
    switch (c->part) {
    case HEAD: return read_head(c, in);
    case LENGTH: return read_bytes(c, in, WHOLE);
    case CHUNK: return read_bytes(c, in, CHUNK_END);
    case CHUNK_SIZE:
    case CHUNK_END:
    case TRAILER: return read_line(c, in);
    default: return false;
    }
}

/* A prompt of --prompt has been read. */
static void end_prompt(Client *c) {
    if (c->status != 200) fail(c, "refused");
    series_add(reads_by_itself ? &figures.by_itself_s : &figures.prompt_s, clock_s() - c->sent_s);
    reads_prompt = false;
    if (reads_by_itself) event_base_loopbreak(base);
    else later(c, BETWEEN_PROMPTS_MS);
}

static void on_read(struct bufferevent *bev, void *user) {
    Client *c = user;
    while (read_part(c, bufferevent_get_input(bev))) {}
    if (c->streams && c->status == 200 && c->body.data) note_events(c);
    if (c->purpose == HANG_UP && (int64_t)c->body.n > c->hang_up_after) {
        figures.n_hung_up++;
        hang_up(c);
        next_request(c);
    } else if (c->part == WHOLE && c->purpose == HEALTH) {
        series_add(&figures.health_s, clock_s() - c->sent_s);
        later(c, PROBE_MS);
    } else if (c->part == WHOLE && c->purpose == PROMPT) end_prompt(c);
    else if (c->part == WHOLE) judge(c);
}

static void on_event(struct bufferevent *bev, short what, void *user) {
    Client *c = user;
    (void)bev;
    if (what & BEV_EVENT_CONNECTED) {
        c->sent_s = clock_s(); /* what was written meanwhile goes out now */
        return;
    }
    if (c->purpose == MALFORMED) { /* an end without an answer refuses, too */
        figures.n_refused++;
        hang_up(c);
        next_request(c);
    } else if (c->purpose == HEALTH) hang_up(c), later(c, PROBE_MS);
    else fail(c, what & BEV_EVENT_TIMEOUT ? "no byte for a long time" : "the connection ended before the answer");
}

static bool is_open(Client *c) {
    const struct timeval patience = {.tv_sec = GIVE_UP_S};
    if (c->bev) return true;
    c->bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev) return false;
    bufferevent_setcb(c->bev, on_read, NULL, on_event, c);
    bufferevent_set_timeouts(c->bev, &patience, NULL);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    if (bufferevent_socket_connect(c->bev, (struct sockaddr *)&server, sizeof server)) {
        hang_up(c);
        return false;
    }
    int on = 1;
    setsockopt(bufferevent_getfd(c->bev), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return true;
}

static void clear(Client *c) {
    c->body.max_bytes = c->text.max_bytes = MAX_TEXT;
    if (c->body.data) buf_clear(&c->body), buf_clear(&c->text);
    (void)buf_append(&c->body, "", 0), (void)buf_append(&c->text, "", 0);
    c->part = HEAD;
    c->n_seen = c->n_missing = 0;
    c->status = 0;
    c->last_s = 0;
}

/* Sends a prompt of random tokens, which no other prompt begins with. */
static void send_prompt(Client *c) {
    static const char begin[] = "{\"max_tokens\": 1, \"prompt\": [10";
    Buf body = {.max_bytes = MAX_TEXT};
    char text[LOAD_HEAD_MAX];
    bool fits = buf_append(&body, begin, sizeof begin - 1);
    clear(c);
    for (int i = 1; i < o.n_prompt && fits; i++)
        fits = buf_append(&body, text, (size_t)snprintf(text, sizeof text, ",%u", 10 + draw(200)));
    fits = fits && buf_append(&body, "]}", 2);
    int n = snprintf(text, sizeof text,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n", o.headers,
                     body.n);
    if (!fits || !is_open(c)) fail(c, "no connection");
    c->sent_s = clock_s();
    reads_prompt = true;
    bufferevent_write(c->bev, text, (size_t)n);
    bufferevent_write(c->bev, body.data, body.n);
    buf_free(&body);
}

static void send_request(Client *c) {
    char request[LOAD_REQUEST_MAX];
    const char *text = request;
    clear(c);
    if (c->purpose == MALFORMED) text = load_malformed[c->kind % LOAD_COUNT(load_malformed)];
    else if (c->purpose == HEALTH) text = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    else
        load_format(request, c->kind, c->variant, o.max_tokens, c->streams, is_plain ? "none" : o.draft, o.added,
                    o.headers);
    c->sent_s = clock_s();
    if (is_open(c)) bufferevent_write(c->bev, text, strlen(text));
    else fail(c, "no connection");
}

static bool is_over(void) { return o.seconds > 0 && !is_plain ? clock_s() - figures.begin_s > o.seconds : n_left <= 0; }

static void next_request(Client *c) {
    evtimer_del(c->timer);
    if (is_over()) {
        hang_up(c);
        if (--n_active == 0) event_base_loopbreak(base);
        return;
    }
    uint32_t lot = draw(100), hang_ups = (uint32_t)o.hang_up, others = hang_ups + (uint32_t)o.malformed;
    n_left--;
    c->n_tries = 0;
    c->purpose = is_plain || lot >= others ? ANSWER : lot < hang_ups ? HANG_UP : MALFORMED;
    c->kind = is_plain || c->purpose == MALFORMED ? n_next++ : (int)draw((uint32_t)o.n_kinds);
    c->variant = o.varies ? 1 + draw(UINT32_MAX - 1) : 0;
    c->streams = !is_plain && draw(100) < (uint32_t)o.streamed;
    if (is_plain) c->kind %= o.n_kinds;
    if (o.added && c->purpose != MALFORMED) c->kind = load_kind_of_chat(c->kind);
    c->hang_up_after = draw(3) == 0 ? -1 : (int64_t)draw(4096);
    if (c->purpose == MALFORMED) hang_up(c); /* on a connection of its own */
    send_request(c);
    if (c->purpose == HANG_UP && c->hang_up_after < 0)
        later(c, (int)draw(30)); /* it may hang up before the first
                                                                                 * byte */
}

static void on_timer(evutil_socket_t fd, short what, void *user) {
    Client *c = user;
    (void)fd, (void)what;
    if (c->purpose == HANG_UP && c->bev && c->hang_up_after < 0) {
        figures.n_hung_up++;
        hang_up(c);
        next_request(c);
    } else if (c->purpose == NOTHING_YET) next_request(c);
    else if (c->purpose == PROMPT) send_prompt(c);
    else if (c->purpose == HEALTH || !c->bev) send_request(c);
}

static void on_sample(evutil_socket_t fd, short what, void *user) {
    char path[64], line[256];
    (void)fd, (void)what, (void)user;
    snprintf(path, sizeof path, "/proc/%d/status", o.pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmRSS:", 6) == 0) series_add(&figures.rss_mib, atof(line + 6) / 1024);
    if (f) fclose(f);
}

/* ---- a run ------------------------------------------------------------------------------------------------- */

static void run(int n_clients, int n_requests) {
    n_left = n_requests;
    n_next = 0;
    n_active = n_clients;
    figures.begin_s = clock_s();
    for (int i = 0; i < n_clients; i++) {
        if (!clients[i].timer) clients[i].timer = evtimer_new(base, on_timer, &clients[i]);
        clients[i].purpose = NOTHING_YET;
        if (o.added && !is_plain)
            later(&clients[i], STAGGER_MS * i); /* so that no request waits for others on its way */
        else next_request(&clients[i]);
    }
    if (n_active > 0) event_base_dispatch(base);
    figures.end_s = clock_s();
}

static void run_alone(void) {
    int hang_ups = o.hang_up, malformed = o.malformed;
    o.hang_up = o.malformed = 0;
    is_plain = true;
    o.checks = false;
    run(1, o.n_kinds);
    is_plain = false;
    o.checks = true;
    o.hang_up = hang_ups, o.malformed = malformed;
}

int main(int argc, char **argv) {
    static const char about[] =
        "Sends `forerun serve` mixed requests from many clients at once, compares each answer with "
        "that of plain decoding alone, and measures times, throughput and the server's memory.";
    const struct argp argp = {.options = arguments, .parser = parse, .doc = about};
    if (argp_parse(&argp, argc, argv, 0, NULL, NULL)) return 2;
    signal(SIGPIPE, SIG_IGN);
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)o.port)};
    if (inet_pton(AF_INET, o.host, &server.sin_addr) != 1 || !(base = event_base_new())) {
        fprintf(stderr, "bench_serve: --host %s: pass a numeric address\n", o.host);
        return 2;
    }
    random_state = (uint64_t)o.seed;
    if (o.checks) run_alone();
    if (figures.n_failed) return 1;
    memset(&figures, 0, sizeof figures);
    const struct timeval sample = {.tv_usec = SAMPLE_MS * 1000};
    struct event *sampling = event_new(base, -1, EV_PERSIST, on_sample, NULL);
    if (o.pid) event_add(sampling, &sample);
    probe.purpose = HEALTH;
    probe.timer = evtimer_new(base, on_timer, &probe);
    send_request(&probe);
    if (o.n_prompt) {
        reader.purpose = PROMPT;
        reader.timer = evtimer_new(base, on_timer, &reader);
        reads_by_itself = true;
        send_prompt(&reader);
        event_base_dispatch(base);
        reads_by_itself = false;
        later(&reader, BETWEEN_PROMPTS_MS);
    }
    run(o.n_clients, o.n_requests);
    load_report(&figures, o.n_clients, o.json);
    return figures.n_wrong || figures.n_failed || figures.n_not_refused;
}
