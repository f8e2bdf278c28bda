/* test_kv_events.c - the events about blocks of the prefix cache, read by a decoder of its own that keeps what a router
 * would know; and through libzmq, from a running server. */
#include "serve_rig.h"

#include "server/engine/kv_events.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a decoder of the forms of msgpack that occur, into JSON; numbers of 64 bits become signed ------------------- */

typedef struct Packed {
    const uint8_t *at, *end;
} Packed;

static uint64_t big_endian(Packed *p, int n) {
    uint64_t v = 0;
    assert_true(p->end - p->at >= n);
    for (int i = 0; i < n; i++) v = v << 8 | *p->at++;
    return v;
}

static json_t *decode(Packed *p) {
    assert_true(p->at < p->end);
    uint8_t first = *p->at++;
    if (first < 0x80) return json_integer(first);
    if (first == 0xc0) return json_null();
    if (first >= 0xcc && first <= 0xcf) return json_integer((json_int_t)big_endian(p, 1 << (first - 0xcc)));
    if (first == 0xcb) {
        uint64_t bits = big_endian(p, 8);
        double x;
        memcpy(&x, &bits, sizeof x);
        return json_real(x);
    }
    if ((first & 0xe0) == 0xa0) {
        size_t n = first & 0x1f;
        assert_true((size_t)(p->end - p->at) >= n);
        p->at += n;
        return json_stringn((const char *)p->at - n, n);
    }
    if ((first & 0xf0) != 0x90 && first != 0xdd) fail_msg("the byte %02x is in no form that is used", first);
    size_t n = first == 0xdd ? (size_t)big_endian(p, 4) : first & 0x0f;
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(array, decode(p));
    return array;
}

static json_t *decode_all(const void *bytes, size_t n) {
    Packed p = {bytes, (const uint8_t *)bytes + n};
    json_t *batch = decode(&p);
    assert_ptr_equal(p.at, p.end);
    assert_int_equal(json_array_size(batch), 3);
    assert_true(json_is_real(json_array_get(batch, 0)));
    assert_int_equal(json_int_at(batch, "2"), 0);
    return batch;
}

/* ---- what a router knows: for each hash, the tokens from the beginning to the end of its block ------------------- */

enum { BLOCK = 4, MOST = 64 };

typedef struct Router {
    json_int_t hashes[MOST];
    int32_t tokens[MOST][10 * BLOCK];
    int n_tokens[MOST], n;
} Router;

static int find(const Router *r, json_int_t hash) {
    int i = 0;
    while (i < r->n && r->hashes[i] != hash) i++;
    return i < r->n ? i : -1;
}

static void store(Router *r, const json_t *event) {
    const json_t *hashes = json_array_get(event, 1), *parent = json_array_get(event, 2);
    assert_int_equal(json_array_size(event), 7);
    assert_int_equal(json_int_at(event, "4"), BLOCK);
    assert_int_equal(json_array_size(json_array_get(event, 3)), BLOCK * json_array_size(hashes));
    int before = json_is_null(parent) ? -1 : find(r, json_integer_value(parent));
    assert_true(json_is_null(parent) || before >= 0);
    for (size_t i = 0; i < json_array_size(hashes); i++) {
        json_int_t hash = json_integer_value(json_array_get(hashes, i));
        assert_int_equal(find(r, hash), -1); /* no block is stored twice */
        int n = before >= 0 ? r->n_tokens[before] : 0;
        r->hashes[r->n] = hash;
        if (n) memcpy(r->tokens[r->n], r->tokens[before], (size_t)n * sizeof(int32_t));
        for (size_t k = 0; k < BLOCK; k++)
            r->tokens[r->n][n++] = (int32_t)json_integer_value(json_array_get(json_array_get(event, 3), i * BLOCK + k));
        r->n_tokens[r->n] = n;
        before = r->n++;
    }
}

static void take(Router *r, const Buf *out) {
    json_t *batch = decode_all(out->data, out->n), *event;
    size_t i, k;
    json_array_foreach(json_array_get(batch, 1), i, event) {
        const char *tag = json_text_at(event, "0");
        const json_t *hash;
        if (strcmp(tag, "BlockStored") == 0) store(r, event);
        else if (strcmp(tag, "AllBlocksCleared") == 0) r->n = 0;
        else {
            assert_string_equal(tag, "BlockRemoved");
            json_array_foreach(json_array_get(event, 1), k, hash) {
                int at = find(r, json_integer_value(hash));
                assert_true(at >= 0);
                r->n--;
                r->hashes[at] = r->hashes[r->n], r->n_tokens[at] = r->n_tokens[r->n];
                memmove(r->tokens[at], r->tokens[r->n], sizeof r->tokens[at]);
            }
        }
    }
    json_decref(batch);
}

/* The router knows exactly the whole blocks of these prefixes. */
static void expect_known(const Router *r, const KvPrefix *prefixes, int n) {
    int n_known = 0;
    for (int i = 0; i < r->n; i++) {
        bool is_there = false;
        for (int k = 0; k < n; k++)
            is_there |= prefixes[k].n_tokens >= r->n_tokens[i] &&
                        memcmp(prefixes[k].tokens, r->tokens[i], (size_t)r->n_tokens[i] * sizeof(int32_t)) == 0;
        assert_true(is_there);
    }
    for (int k = 0; k < n; k++)
        for (int64_t length = BLOCK; length <= prefixes[k].n_tokens; length += BLOCK) {
            bool is_known = false, is_first = true;
            for (int i = 0; i < r->n; i++)
                is_known |= r->n_tokens[i] == length &&
                            memcmp(prefixes[k].tokens, r->tokens[i], (size_t)length * sizeof(int32_t)) == 0;
            for (int j = 0; j < k; j++)
                is_first &= prefixes[j].n_tokens < length ||
                            memcmp(prefixes[j].tokens, prefixes[k].tokens, (size_t)length * sizeof(int32_t)) != 0;
            assert_true(is_known);
            n_known += is_first;
        }
    assert_int_equal(n_known, r->n);
}

static void routers_know_what_is_held(void **state) {
    (void)state;
    static Router r;
    KvBlockSet held = {.n = 0};
    Buf out = {.max_bytes = 1 << 20};
    int32_t tokens[3][40];
    unsigned random = 1;
    for (int round = 0; round < 300; round++) {
        KvPrefix prefixes[3];
        int n = round % 4;
        for (int i = 0; i < n; i++) { /* few different beginnings, so that many are shared */
            for (int k = 0; k < 40; k++) {
                random = random * 1664525u + 1013904223u;
                tokens[i][k] = k % BLOCK || random >> 28 < 12 ? 200000 + k : (int)(random >> 24 & 1);
            }
            prefixes[i] = (KvPrefix){tokens[i], (int64_t)(random >> 16) % 41};
        }
        int n_events = kv_events_write(&out, &held, prefixes, n, BLOCK, 1.5);
        assert_true(n_events >= 0 && (n_events > 0) == (out.n > 0));
        if (n_events) take(&r, &out);
        expect_known(&r, prefixes, n);
        assert_int_equal(kv_events_write(&out, &held, prefixes, n, BLOCK, 1.5), 0); /* nothing has changed */
        buf_clear(&out);
    }
    assert_true(kv_events_write_cleared(&out, 2));
    take(&r, &out);
    assert_int_equal(r.n, 0);
    buf_free(&out);
    free(held.hashes);
}

/* ---- a subscriber ---------------------------------------------------------------------------------------------- */

static struct {
    void *(*ctx_new)(void), *(*socket)(void *, int);
    int (*connect)(void *, const char *), (*setsockopt)(void *, int, const void *, size_t),
        (*recv)(void *, void *, size_t, int), (*send)(void *, const void *, size_t, int), (*close)(void *),
        (*ctx_term)(void *);
} zmq;

static bool load_zmq(void) {
    static const struct {
        const char *name;
        void *to;
    } names[] = {{"zmq_ctx_new", &zmq.ctx_new}, {"zmq_socket", &zmq.socket},
                 {"zmq_connect", &zmq.connect}, {"zmq_setsockopt", &zmq.setsockopt},
                 {"zmq_recv", &zmq.recv},       {"zmq_close", &zmq.close},
                 {"zmq_send", &zmq.send},       {"zmq_ctx_term", &zmq.ctx_term}};
    void *library = dlopen("libzmq.so.5", RTLD_NOW);
    for (size_t i = 0; library && i < sizeof names / sizeof *names; i++) {
        void *f = dlsym(library, names[i].name);
        assert_non_null(f);
        memcpy(names[i].to, &f, sizeof f);
    }
    return library != NULL;
}

/* Receives one message: its topic, number and batch. NULL: none came in time. */
static json_t *receive(void *socket, char topic[100], uint64_t *number) {
    static uint8_t batch[1 << 16];
    uint8_t bytes[8];
    int n = zmq.recv(socket, topic, 99, 0);
    if (n < 0) return NULL;
    topic[n] = '\0';
    assert_int_equal(zmq.recv(socket, bytes, sizeof bytes, 0), 8);
    Packed p = {bytes, bytes + 8};
    *number = big_endian(&p, 8);
    n = zmq.recv(socket, batch, sizeof batch, 0);
    assert_in_range(n, 1, sizeof batch);
    return decode_all(batch, (size_t)n);
}

enum { SUB = 2, DEALER = 5, SUBSCRIBE = 6, RCVTIMEO = 27, SNDMORE = 2 };

/* Asks for all messages from number `first` on, and expects them up to number `last`. */
static void expect_replay(void *socket, uint64_t first, uint64_t last) {
    uint8_t bytes[8] = {0};
    char empty[100];
    uint64_t number;
    bytes[7] = (uint8_t)first;
    zmq.send(socket, "not a request", 13, 0); /* it is ignored */
    zmq.send(socket, "", 0, SNDMORE);
    zmq.send(socket, bytes, 8, 0);
    for (uint64_t i = first; i <= last; i++) {
        json_t *batch = receive(socket, empty, &number);
        assert_non_null(batch);
        assert_true(empty[0] == '\0' && number == i);
        assert_string_equal(json_text_at(batch, "1.0.0"), i == 0 ? "AllBlocksCleared" : "BlockStored");
        json_decref(batch);
    }
    assert_int_equal(zmq.recv(socket, empty, sizeof empty, 0), 0);
    assert_int_equal(zmq.recv(socket, bytes, sizeof bytes, 0), 8);
    assert_int_equal(zmq.recv(socket, empty, sizeof empty, 0), 0);
    assert_memory_equal(bytes, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
}

static void *subscribe(void *context, const char *endpoint, const char *topic, int wait_ms) {
    void *socket = zmq.socket(context, SUB);
    zmq.setsockopt(socket, SUBSCRIBE, topic, strlen(topic));
    zmq.setsockopt(socket, RCVTIMEO, &wait_ms, sizeof wait_ms);
    assert_int_equal(zmq.connect(socket, endpoint), 0);
    return socket;
}

/* Sends the prompt number i, which fills at least one block of its own. */
static void ask_for_story(ServeRig *s, int i) {
    char body[200];
    snprintf(body, sizeof body,
             "{\"prompt\": \"Story %d. Once upon a time there was a little girl who lived in a small house near the "
             "forest\", \"max_tokens\": 2}",
             i);
    json_decref(serve_json(s, "/v1/completions", 200, body));
}

static void a_server_publishes_them(void **state) {
    (void)state;
    ServeRig s;
    char endpoint[64], replay_endpoint[64], args[300], topic[100];
    uint64_t number, expected = 0;
    static const int wait_ms = 500, patient_ms = 20000;
    if (!load_zmq()) {
        print_message("skipped: no libzmq\n");
        skip();
    }
    snprintf(endpoint, sizeof endpoint, "ipc:///tmp/forerun-events-%d", (int)getpid());
    snprintf(replay_endpoint, sizeof replay_endpoint, "ipc:///tmp/forerun-replay-%d", (int)getpid());
    snprintf(args, sizeof args, "-t 1 --draft none --kv-events %s --kv-events-topic kv@{model} --kv-events-replay %s",
             endpoint, replay_endpoint);
    serve_start(&s, args);
    json_t *info = serve_json(&s, "/server_info", 200, NULL);
    assert_true(json_is_null(json_at(info, "kv_events"))); /* no port, so no place for routers elsewhere */
    json_decref(info);
    void *context = zmq.ctx_new(), *socket = subscribe(context, endpoint, "kv@", wait_ms);
    json_t *batch = NULL;
    for (int i = 0; i < 60 && !batch; i++) { /* until the subscription has arrived */
        ask_for_story(&s, i);
        batch = receive(socket, topic, &expected);
        if (batch && strcmp(json_text_at(batch, "1.0.0"), "AllBlocksCleared") == 0) { /* the first message of all */
            json_decref(batch);
            batch = receive(socket, topic, &number);
            assert_true(expected == 0 && number == 1);
            expected = number;
        }
    }
    assert_non_null(batch);
    assert_string_equal(topic, "kv@target");
    assert_string_equal(json_text_at(batch, "1.0.0"), "BlockStored");
    assert_int_equal(json_int_at(batch, "1.0.4"), 16);
    assert_true(json_array_size(json_at(batch, "1.0.1")) >= 1);
    json_decref(batch);
    json_decref(serve_json(&s, "/v1/completions", 200,
                           "{\"prompt\": \"Another one. The dog and the cat went to the park "
                           "and they played with a big red ball until it was dark\", "
                           "\"max_tokens\": 2}"));
    assert_non_null(batch = receive(socket, topic, &number));
    assert_true(number == ++expected);
    json_decref(batch);
    void *asking = zmq.socket(context, DEALER);
    zmq.setsockopt(asking, RCVTIMEO, &patient_ms, sizeof patient_ms);
    assert_int_equal(zmq.connect(asking, replay_endpoint), 0);
    expect_replay(asking, 0, expected);
    expect_replay(asking, expected, expected);
    expect_replay(asking, expected + 1, expected);
    zmq.close(asking);
    assert_int_equal(serve_stop(&s), 0);
    do {
        assert_non_null(batch = receive(socket, topic, &number));
        assert_true(number == ++expected);
        bool is_cleared = strcmp(json_text_at(batch, "1.0.0"), "AllBlocksCleared") == 0;
        json_decref(batch);
        if (is_cleared) break;
    } while (true);
    zmq.close(socket);
    zmq.ctx_term(context);
    unlink(endpoint + strlen("ipc://"));
    unlink(replay_endpoint + strlen("ipc://"));
}

/* SGLang's gateway asks a server where it publishes. */
static void routers_find_the_events(void **state) {
    (void)state;
    ServeRig s;
    char endpoint[100], topic[100];
    uint64_t number;
    static const int wait_ms = 500;
    if (!load_zmq()) {
        print_message("skipped: no libzmq\n");
        skip();
    }
    serve_start(&s, "-t 1 --draft none --kv-events tcp://127.0.0.1:* --kv-events-topic kv@{model}");
    json_t *info = serve_json(&s, "/server_info", 200, NULL), *place = json_object_get(info, "kv_events");
    assert_string_equal(json_text_at(place, "publisher"), "zmq");
    assert_string_equal(json_text_at(place, "topic"), "kv@target");
    assert_int_equal(json_int_at(place, "block_size"), 16);
    assert_int_equal(json_int_at(place, "dp_size"), 1);
    snprintf(endpoint, sizeof endpoint, "tcp://%s:%d", json_text_at(place, "endpoint_host"),
             (int)json_int_at(place, "endpoint_port_base"));
    json_decref(info);
    void *context = zmq.ctx_new(), *socket = subscribe(context, endpoint, "kv@target", wait_ms);
    json_t *batch = NULL;
    for (int i = 0; i < 60 && !batch; i++) { /* until the subscription has arrived */
        ask_for_story(&s, i);
        batch = receive(socket, topic, &number);
    }
    assert_non_null(batch);
    assert_string_equal(topic, "kv@target");
    json_decref(batch);
    assert_int_equal(serve_stop(&s), 0);
    zmq.close(socket);
    zmq.ctx_term(context);
}

int main(int argc, char **argv) {
    (void)argc;
    serve_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers_know_what_is_held),
        cmocka_unit_test(a_server_publishes_them),
        cmocka_unit_test(routers_find_the_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
