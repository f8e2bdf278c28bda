/* kv_events.h - tells routers which prefixes the server holds, as vLLM does: over ZeroMQ, in msgpack. */
#ifndef SERVER_ENGINE_KV_EVENTS_H
#define SERVER_ENGINE_KV_EVENTS_H

#include "base/mem.h"
#include "server/engine/served_model.h"

typedef struct KvEvents KvEvents;

/* The place where events are published, which the server tells routers that ask for it. */
typedef struct KvEventsPlace {
    char host[128]; /* "0.0.0.0" and "[::]": each address of the machine */
    int port;
    char topic[256];
} KvEventsPlace;

/* Loads libzmq, and binds a PUB socket to an endpoint such as "tcp://127.0.0.1:5557". In the topic, "{model}" means the
 * name of the model, and "{host}" that of the machine. The strings are borrowed until kv_events_close. */
int kv_events_open(KvEvents **out, const char *endpoint, const char *topic, fr_error *err);
/* Answers requests for earlier messages at another endpoint, in a thread of its own. The messages of one model only are
 * published. Call it before the first update. */
int kv_events_serve_replay(KvEvents *k, const char *endpoint, fr_error *err);
/* Returns whether the events of the model have a place in a TCP network. NULL is fine. */
bool kv_events_find_place(const KvEvents *k, const ServedModel *m, KvEventsPlace *out);
/* Publishes that nothing is held any more. NULL is fine. */
void kv_events_close(KvEvents *k);
/* Publishes how the prefix cache of the model has changed since the last call. Only one thread at a time may use a
 * KvEvents. */
void kv_events_update(KvEvents *k, const ServedModel *m);

/* ---- the messages (kv_messages.c) ---------------------------------------------------------------------------- */

/* The blocks of a prefix cache, by their hashes. */
typedef struct KvBlockSet {
    uint64_t *hashes; /* [n] in rising order */
    size_t n, capacity;
} KvBlockSet;

/* A prefix of the cache. */
typedef struct KvPrefix {
    const int32_t *tokens;
    int64_t n_tokens;
} KvPrefix;

/* Appends the batch of events by which *held becomes the whole blocks of block_size tokens of these prefixes. Returns
 * the number of events, and appends nothing if it is 0; -1: memory ran out, and *held is unknown. */
int kv_events_write(Buf *out, KvBlockSet *held, const KvPrefix *prefixes, int n, int block_size, double now_s);
/* Appends a batch with the event that all blocks are gone. False: memory ran out. */
bool kv_events_write_cleared(Buf *out, double now_s);

#endif
