/* kv_events.c - publishes events about blocks of the prefix cache, in the wire form of vLLM.
 *
 * A router with precise prefix awareness sends a request to the server that holds the longest part of its prompt. It
 * learns what each server holds from messages of three parts: a topic, the number of the message as 8 bytes, the
 * highest first, and a batch of events (kv_messages.c). Only whole blocks of requests that have ended are reported, and
 * only when the prefix cache has changed. A model with a recurrent state or windows can continue a prefix only at some
 * lengths, so a block of such a model may have to be read again.
 *
 * A router that sees from the numbers that it has missed messages asks for them at another socket, again as vLLM's do:
 *
 *     asked       an empty part, the first number that it wants
 *     answered    for each message kept from that number on: an empty part, its number, the batch;
 *                 then an empty part, the number -1, an empty part
 *
 * libzmq is loaded when it is needed, as libcurl is by `forerun pull`. */
#include "server/engine/kv_events.h"

#include "base/hash.h"
#include "base/os.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the socket ------------------------------------------------------------------------------------------------ */

/* The functions of libzmq that are used, with the constants of its interface, which does not change. */
enum { PUB = 1, ROUTER = 6, DONTWAIT = 1, SNDMORE = 2 };
enum { RCVMORE = 13, LINGER = 17, MAXMSGSIZE = 22, SNDTIMEO = 28, LAST_ENDPOINT = 32, ROUTER_MANDATORY = 33 };
enum { ETERM = 156384765 };
enum {
    LINGER_MS = 200,
    SEND_MS = 1000,
    MAX_PREFIXES = 4096,
    MAX_IDENTITY = 255,
    MAX_TOPIC = sizeof((KvEventsPlace *)0)->topic
};
enum { REPLAY_BATCHES = 10000, REPLAY_BYTES = 64 << 20 };
static struct {
    void *(*ctx_new)(void);
    int (*ctx_term)(void *context);
    void *(*socket)(void *context, int type);
    int (*close)(void *socket);
    int (*setsockopt)(void *socket, int option, const void *value, size_t n);
    int (*bind)(void *socket, const char *endpoint);
    int (*send)(void *socket, const void *bytes, size_t n, int flags);
    int (*recv)(void *socket, void *bytes, size_t n, int flags);
    int (*getsockopt)(void *socket, int option, void *value, size_t *n);
    int (*ctx_shutdown)(void *context);
    int (*error)(void);
    const char *(*strerror)(int error);
} zmq;

typedef struct ModelBlocks {
    const ServedModel *model;
    char topic[MAX_TOPIC];
    KvBlockSet held;
    uint64_t signature; /* of the number of changes and the lengths of the prefixes at the last update */
    uint64_t n_sent;
} ModelBlocks;

typedef struct KvBatch {
    uint8_t *bytes;
    size_t n;
} KvBatch;

/* The last messages, for routers that have missed some. */
typedef struct KvReplay {
    void *socket;
    pthread_t thread; /* only it uses the socket */
    pthread_mutex_t lock;
    KvBatch *batches;    /* [REPLAY_BATCHES] message i is at i % REPLAY_BATCHES; NULL: nothing is kept */
    uint64_t first, end; /* the messages that are kept */
    size_t n_bytes;
    Buf out; /* the thread's copy of a message */
} KvReplay;

struct KvEvents {
    void *context, *socket;
    KvReplay replay;
    const char *topic;
    char host[128];
    int port; /* 0: events do not go over TCP */
    ModelBlocks models[SERVED_MAX_MODELS];
    int n_models;
    KvPrefix prefixes[MAX_PREFIXES];
    Buf out;
};

static int load_library(fr_error *err) {
    static const struct {
        const char *name;
        void *function;
    } functions[] = {{"zmq_ctx_new", &zmq.ctx_new},
                     {"zmq_ctx_term", &zmq.ctx_term},
                     {"zmq_socket", &zmq.socket},
                     {"zmq_close", &zmq.close},
                     {"zmq_bind", &zmq.bind},
                     {"zmq_setsockopt", &zmq.setsockopt},
                     {"zmq_send", &zmq.send},
                     {"zmq_errno", &zmq.error},
                     {"zmq_strerror", &zmq.strerror},
                     {"zmq_recv", &zmq.recv},
                     {"zmq_getsockopt", &zmq.getsockopt},
                     {"zmq_ctx_shutdown", &zmq.ctx_shutdown}};
    void *library = os_library_open("zmq", 5);
    bool is_whole = library != NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions && is_whole; i++) {
        void *found = dlsym(library, functions[i].name);
        memcpy(functions[i].function, &found, sizeof found);
        is_whole = found != NULL;
    }
    if (is_whole) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "--kv-events needs libzmq 4, which cannot be loaded (%.200s); install the package libzmq5",
                     os_library_error());
}

/* Copies the topic, with the names of the model and the machine. */
static void write_topic(char out[MAX_TOPIC], const char *topic, const ServedModel *m) {
    char host[128] = "";
    size_t n = 0;
    (void)gethostname(host, sizeof host - 1);
    while (*topic && n < MAX_TOPIC - 1) {
        const char *name = strncmp(topic, "{model}", 7) == 0 ? m->name : strncmp(topic, "{host}", 6) == 0 ? host : NULL;
        if (name) {
            int room = MAX_TOPIC - (int)n, written = snprintf(out + n, (size_t)room, "%s", name);
            n += (size_t)(written < room ? written : room - 1);
            topic = strchr(topic, '}') + 1;
        } else {
            out[n++] = *topic++;
        }
    }
    out[n] = '\0';
}

/* Reads tcp://HOST:PORT, where the socket is bound. Other endpoints have no port. */
static void find_port(KvEvents *k) {
    char endpoint[300] = "";
    size_t n = sizeof endpoint;
    if (zmq.getsockopt(k->socket, LAST_ENDPOINT, endpoint, &n)) return;
    const char *colon = strrchr(endpoint, ':');
    if (strncmp(endpoint, "tcp://", 6) != 0 || colon <= endpoint + 6) return;
    k->port = atoi(colon + 1);
    snprintf(k->host, sizeof k->host, "%.*s", (int)(colon - endpoint - 6), endpoint + 6);
}

bool kv_events_find_place(const KvEvents *k, const ServedModel *m, KvEventsPlace *out) {
    if (!k || k->port == 0) return false;
    snprintf(out->host, sizeof out->host, "%s", k->host);
    out->port = k->port;
    write_topic(out->topic, k->topic, m);
    return true;
}

int kv_events_open(KvEvents **out, const char *endpoint, const char *topic, fr_error *err) {
    *out = NULL;
    int status = load_library(err);
    if (status) return status;
    KvEvents *k = calloc(1, sizeof *k);
    if (!k) return error_memory(err, "KV events", sizeof *k);
    static const int linger = LINGER_MS;
    k->topic = topic;
    k->out.max_bytes = SIZE_MAX / 2;
    k->context = zmq.ctx_new();
    k->socket = k->context ? zmq.socket(k->context, PUB) : NULL;
    if (!k->socket || zmq.setsockopt(k->socket, LINGER, &linger, sizeof linger) || zmq.bind(k->socket, endpoint)) {
        status = error_set(err, FR_ERR_IO, "--kv-events: %.200s: %s", endpoint, zmq.strerror(zmq.error()));
        kv_events_close(k);
        return status;
    }
    find_port(k);
    *out = k;
    return FR_OK;
}

/* ---- replay ---------------------------------------------------------------------------------------------------- */

static void forget_oldest(KvReplay *r) {
    KvBatch *b = &r->batches[r->first++ % REPLAY_BATCHES];
    r->n_bytes -= b->n;
    free(b->bytes);
    *b = (KvBatch){0};
}

/* Keeps a message. If memory runs out, nothing is kept up to it. */
static void remember(KvReplay *r, uint64_t number, const Buf *message) {
    if (!r->batches) return;
    uint8_t *bytes = malloc(message->n);
    pthread_mutex_lock(&r->lock);
    while (r->first < r->end &&
           (!bytes || r->end - r->first == REPLAY_BATCHES || r->n_bytes + message->n > REPLAY_BYTES))
        forget_oldest(r);
    if (bytes) {
        memcpy(bytes, message->data, message->n);
        r->batches[number % REPLAY_BATCHES] = (KvBatch){bytes, message->n};
        r->n_bytes += message->n;
    }
    r->end = number + 1;
    if (!bytes) r->first = r->end;
    pthread_mutex_unlock(&r->lock);
}

/* Copies the first kept message from *number on to r->out, and sets *number to its number. False: there is none. */
static bool find_message(KvReplay *r, uint64_t *number) {
    buf_clear(&r->out);
    pthread_mutex_lock(&r->lock);
    if (*number < r->first) *number = r->first;
    bool is_kept = *number < r->end;
    if (is_kept) {
        const KvBatch *b = &r->batches[*number % REPLAY_BATCHES];
        is_kept = buf_append(&r->out, b->bytes, b->n);
    }
    pthread_mutex_unlock(&r->lock);
    return is_kept;
}

static void write_number(uint8_t bytes[8], uint64_t number) {
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> 8 * (7 - i));
}

static bool send_answer(const KvReplay *r, const uint8_t *identity, size_t n_identity, uint64_t number) {
    uint8_t bytes[8];
    write_number(bytes, number);
    return zmq.send(r->socket, identity, n_identity, SNDMORE) >= 0 && zmq.send(r->socket, "", 0, SNDMORE) >= 0 &&
           zmq.send(r->socket, bytes, sizeof bytes, SNDMORE) >= 0 && zmq.send(r->socket, r->out.data, r->out.n, 0) >= 0;
}

/* Answers a request. A router that has gone or does not read gets no more. */
static void replay(KvReplay *r, const uint8_t *identity, size_t n_identity, uint64_t number) {
    bool is_sent = true;
    for (; is_sent && find_message(r, &number); number++) is_sent = send_answer(r, identity, n_identity, number);
    buf_clear(&r->out);
    if (is_sent) (void)send_answer(r, identity, n_identity, UINT64_MAX);
}

/* Receives a message of at most 3 parts into parts of 256 bytes, and drops further parts. Returns how many parts it
 * had; -1: none can be received. */
static int receive_parts(const KvReplay *r, uint8_t parts[3][256], size_t n[3]) {
    int n_parts = 0, more = 1, got;
    for (uint8_t rest[256]; more; n_parts++) {
        size_t size = sizeof more;
        got = zmq.recv(r->socket, n_parts < 3 ? parts[n_parts] : rest, sizeof rest, 0);
        if (got < 0 || zmq.getsockopt(r->socket, RCVMORE, &more, &size)) return -1;
        if (n_parts < 3) n[n_parts] = (size_t)got;
    }
    return n_parts;
}

/* Answers requests until the context is shut down. */
static void *run_replay(void *arg) {
    KvReplay *r = arg;
    uint8_t parts[3][256];
    size_t n[3];
    for (int n_parts; (n_parts = receive_parts(r, parts, n)) >= 0 || zmq.error() != ETERM;) {
        if (n_parts != 3 || n[0] > MAX_IDENTITY || n[1] != 0 || n[2] != 8) continue;
        uint64_t number = 0;
        for (int i = 0; i < 8; i++) number = number << 8 | parts[2][i];
        replay(r, parts[0], n[0], number);
    }
    zmq.close(r->socket);
    return NULL;
}

int kv_events_serve_replay(KvEvents *k, const char *endpoint, fr_error *err) {
    static const int linger = LINGER_MS, send_ms = SEND_MS, one = 1;
    static const int64_t most = 256; /* bytes of a part */
    KvReplay *r = &k->replay;
    void *socket = zmq.socket(k->context, ROUTER);
    r->out.max_bytes = SIZE_MAX / 2;
    if (!socket || zmq.setsockopt(socket, LINGER, &linger, sizeof linger) ||
        zmq.setsockopt(socket, SNDTIMEO, &send_ms, sizeof send_ms) ||
        zmq.setsockopt(socket, MAXMSGSIZE, &most, sizeof most) ||
        zmq.setsockopt(socket, ROUTER_MANDATORY, &one, sizeof one) || zmq.bind(socket, endpoint)) {
        int status = error_set(err, FR_ERR_IO, "--kv-events-replay: %.200s: %s", endpoint, zmq.strerror(zmq.error()));
        if (socket) zmq.close(socket);
        return status;
    }
    r->socket = socket;
    pthread_mutex_init(&r->lock, NULL);
    r->batches = calloc(REPLAY_BATCHES, sizeof *r->batches);
    if (r->batches && pthread_create(&r->thread, NULL, run_replay, r) == 0) return FR_OK;
    free(r->batches);
    r->batches = NULL;
    zmq.close(socket);
    return error_memory(err, "KV events", REPLAY_BATCHES * sizeof *r->batches);
}

/* Ends the thread; the context must not be used any more. */
static void close_replay(KvEvents *k) {
    KvReplay *r = &k->replay;
    if (!r->batches) return;
    (void)zmq.ctx_shutdown(k->context);
    pthread_join(r->thread, NULL);
    while (r->first < r->end) forget_oldest(r);
    free(r->batches);
    buf_free(&r->out);
    pthread_mutex_destroy(&r->lock);
}

/* ---- publishing ------------------------------------------------------------------------------------------------ */

/* Sends k->out. A subscriber that does not read misses messages, which it sees by their numbers. */
static void send_batch(KvEvents *k, ModelBlocks *m) {
    uint8_t number[8];
    write_number(number, m->n_sent);
    remember(&k->replay, m->n_sent++, &k->out);
    (void)zmq.send(k->socket, m->topic, strlen(m->topic), SNDMORE | DONTWAIT);
    (void)zmq.send(k->socket, number, sizeof number, SNDMORE | DONTWAIT);
    (void)zmq.send(k->socket, k->out.data, k->out.n, DONTWAIT);
    buf_clear(&k->out);
}

/* Seconds since 1970. */
static double wall_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void clear(KvEvents *k, ModelBlocks *m) {
    if (kv_events_write_cleared(&k->out, wall_s())) send_batch(k, m);
}

void kv_events_close(KvEvents *k) {
    if (!k) return;
    for (ModelBlocks *m = k->models; m < k->models + k->n_models; m++) {
        clear(k, m);
        free(m->held.hashes);
    }
    if (k->socket) zmq.close(k->socket);
    close_replay(k);
    if (k->context) zmq.ctx_term(k->context);
    buf_free(&k->out);
    free(k);
}

static ModelBlocks *blocks_of(KvEvents *k, const ServedModel *model) {
    for (ModelBlocks *m = k->models; m < k->models + k->n_models; m++)
        if (m->model == model) return m;
    ModelBlocks *m = &k->models[k->n_models++];
    m->model = model;
    write_topic(m->topic, k->topic, model);
    clear(k, m);
    return m;
}

/* Finds the prefixes of the cache, without the last token of each, which the next request reads. Returns how many. */
static int find_prefixes(KvEvents *k, const ServedModel *m, uint64_t *signature) {
    int n = 0;
    *signature = m->n_changes;
    for (const int32_t *tokens;
         n < MAX_PREFIXES && fr_engine_get_prefix(m->engine, n, &tokens, &k->prefixes[n].n_tokens); n++) {
        k->prefixes[n].tokens = tokens;
        k->prefixes[n].n_tokens--;
        *signature = hash64(&k->prefixes[n], sizeof k->prefixes[n], *signature);
    }
    return n;
}

void kv_events_update(KvEvents *k, const ServedModel *model) {
    ModelBlocks *m = blocks_of(k, model);
    uint64_t signature;
    int n = find_prefixes(k, model, &signature);
    if (signature == m->signature) return;
    m->signature = signature;
    int n_events = kv_events_write(&k->out, &m->held, k->prefixes, n, model->kv_page_size, wall_s());
    if (n_events > 0) {
        send_batch(k, m);
    } else if (n_events < 0) { /* memory ran out: routers forget everything, and learn it again */
        m->held.n = 0;
        m->signature = 0;
        buf_clear(&k->out);
        clear(k, m);
    }
}
