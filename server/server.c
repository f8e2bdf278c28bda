/* server.c - assembles the server, runs the event loop, and ends it.
 *
 * The first SIGTERM or SIGINT drains the server: requests that were accepted are finished, new ones get status 503, and
 * the program ends when the last answer is complete. The second signal ends the requests that still run at once. */
#include "server/serve.h"

#include "base/error.h"
#include "base/progress.h"
#include "base/system.h"
#include "base/threads.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "server/api/api.h"
#include "server/engine/kv_events.h"
#include "server/engine/slots.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    LEAST_PREFIXES = 8, /* the engine's default; with slots that are saved, each slot keeps its last request */
    GRAMMAR_BYTES = 512 << 20,
    JSON_BYTES_PER_BYTE = 16,
    JSON_BYTES_LEAST = 4 << 20,
    MAX_UNSENT = 1 << 20,
    BODIES_AT_ONCE = 32
};

typedef struct Server {
    const ServeOptions *options;
    Service service;
    ServedModel models[SERVED_MAX_MODELS];
    KvEvents *events;
    struct event_base *base;
    struct event *mail, *clock, *signals[2];
    pthread_t loader;
    Message loaded; /* posted when the loader is done */
    int load_status;
    fr_error load_error;
    bool ends_in_peace; /* all requests were finished */
    void *tls;
} Server;

/* ---- events ------------------------------------------------------------------------------------------- */

static void on_mail(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    Server *s = user;
    mailbox_deliver(&s->service.mailbox);
}

static void on_second(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    Server *s = user;
    api_ping(&s->service, clock_s());
}

static void on_idle(void *user) {
    Server *s = user;
    s->ends_in_peace = true;
    const struct timeval moment = {.tv_usec = 100000}; /* the time to send the last bytes */
    event_base_loopexit(s->base, &moment);
}

/* The processes of a model have ended: ends the server, so that its supervisor starts it again. */
static void on_failed(Message *m) {
    EngineThread *t = (EngineThread *)(void *)((char *)m - offsetof(EngineThread, failed));
    Service *service = (Service *)(void *)((char *)t - offsetof(Service, engine));
    on_idle((char *)service - offsetof(Server, service));
}

static void on_signal(evutil_socket_t number, short what, void *user) {
    (void)what;
    Server *s = user;
    if (s->service.drains) {
        s->ends_in_peace = false;
        event_base_loopbreak(s->base);
        return;
    }
    fprintf(stderr, "forerun: %s: finishing %d requests; a second signal ends them\n",
            number == SIGTERM ? "SIGTERM" : "SIGINT", s->service.n_calls);
    s->service.drains = true;
    http_server_drain(s->service.http);
    if (s->service.n_calls == 0) on_idle(s);
}

static int open_mail(Server *s, fr_error *err) {
    bool fits = (s->mail = event_new(s->base, s->service.mailbox.wake.fd, EV_READ | EV_PERSIST, on_mail, s)) != NULL &&
                event_add(s->mail, NULL) == 0;
    signal(SIGPIPE, SIG_IGN); /* writing to a client that is gone is an error of its connection */
    return fits ? FR_OK : error_memory(err, "the events of the server", 1);
}

static int open_events(Server *s, fr_error *err) {
    static const int numbers[] = {SIGTERM, SIGINT};
    bool fits = true;
    const struct timeval second = {.tv_sec = 1};
    fits = fits && (s->clock = event_new(s->base, -1, EV_PERSIST, on_second, s)) != NULL &&
           event_add(s->clock, &second) == 0;
    for (int i = 0; i < 2 && fits; i++)
        fits = (s->signals[i] = evsignal_new(s->base, numbers[i], on_signal, s)) != NULL &&
               event_add(s->signals[i], NULL) == 0;
    return fits ? FR_OK : error_memory(err, "the events of the server", 1);
}

/* ---- opening ------------------------------------------------------------------------------------------ */

/* Checks the names of the models, before the first one is read. */
static int check_names(Server *s, fr_error *err) {
    const ServeOptions *o = s->options;
    for (int i = 0; i < o->n_models; i++) {
        int status = served_model_read_spec(&s->models[i], o->models[i], err);
        if (status) return status;
        for (int k = 0; k < i; k++)
            if (strcmp(s->models[i].name, s->models[k].name) == 0)
                return error_set(err, FR_ERR_ARGUMENT, "two models have the name '%s': write -m NAME=FILE",
                                 s->models[i].name);
    }
    return FR_OK;
}

static int open_models(Server *s, fr_error *err) {
    const ServeOptions *o = s->options;
    static const char *const automatic[] = {"auto"};
    ServedModelOptions options = {.backend = o->backend,
                                  .kernels = o->kernels,
                                  .activations = o->activations,
                                  .n_ranks = mpi_rank_option(o->n_ranks),
                                  .cost_cache = cli_cache_folder(),
                                  .engine = o->engine,
                                  .drafts = o->n_drafts ? o->drafts : automatic,
                                  .n_drafts = o->n_drafts ? o->n_drafts : 1,
                                  .tree_budget = o->tree_budget,
                                  .max_queued = (int)o->n_queued};
    int status = check_names(s, err);
    s->service.models = s->models;
    options.engine.max_gap_s = o->max_gap_ms * 1e-3;
    if (o->slot_folder && o->engine.max_requests > LEAST_PREFIXES) options.engine.prefix_cache = o->engine.max_requests;
    for (int i = 0; i < o->n_models && !status; i++) {
        options.spec = o->models[i];
        fprintf(stderr, "forerun: loading %s\n", o->models[i]);
        status = served_model_open(&s->models[i], &options, err);
        if (status) continue;
        if (i) s->models[i].first_slot = s->models[i - 1].first_slot + s->models[i - 1].max_requests;
        if (o->prefix_folder) prefix_folder_restore(&s->models[i], o->prefix_folder);
        s->service.n_models++;
    }
    return status;
}

static int open_access(Access *a, const ServeOptions *o, fr_error *err) {
    const char *key = getenv("FORERUN_API_KEY");
    int status = key && *key ? access_add_key(a, key, strlen(key), err) : FR_OK;
    if (!status && o->api_key_file) status = access_add_key_file(a, o->api_key_file, err);
    for (int i = 0; i < o->n_origins; i++) a->origins[a->n_origins++] = o->origins[i];
    for (int i = 0; i < o->n_hosts; i++) a->hosts[a->n_hosts++] = o->hosts[i];
    a->hosts[a->n_hosts++] = o->host;
    if (o->tls_cert) a->hosts[a->n_hosts++] = "*"; /* a browser refuses names that are not in the certificate */
    return status;
}

/* Raises the limit of open files, because each connection is one. */
static void raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static int open_http(Server *s, fr_error *err) {
    const ServeOptions *o = s->options;
    const HttpServerOptions options = {
        .host = o->host,
        .port = (int)o->port,
        .limits = {.max_body_bytes = (size_t)o->max_body_mib << 20,
                   .max_all_bodies = ((size_t)o->max_body_mib << 20) * BODIES_AT_ONCE,
                   .max_unsent_bytes = MAX_UNSENT,
                   .max_connections = (int)o->max_connections,
                   .request_timeout_s = o->request_timeout_s,
                   .idle_timeout_s = 60},
        .tls = s->tls,
        .on_request = api_receive,
        .write_error = api_write_refusal,
        .user = &s->service,
    };
    raise_file_limit();
    return http_server_open(&s->service.http, s->base, &options, err);
}

static int open_server(Server *s, fr_error *err) {
    const ServeOptions *o = s->options;
    Service *service = &s->service;
    service->max_json_bytes = JSON_BYTES_LEAST + ((size_t)o->max_body_mib << 20) * JSON_BYTES_PER_BYTE;
    service->logs = !o->is_quiet;
    service->slot_folder = o->slot_folder;
    service->metrics_names = (MetricsNames)o->metrics_names;
    service->ignores_unknown = o->unknown_fields == UNKNOWN_IGNORE;
    grammar_cache_open(&service->grammars, GRAMMAR_BYTES);
    service->on_idle = on_idle;
    service->idle_user = s;
    int status = open_access(&service->access, o, err);
    if (!status && o->tls_cert) status = tls_open(&s->tls, o->tls_cert, o->tls_key, err);
    if (!status && !(s->base = event_base_new())) status = error_memory(err, "an event loop", 1);
    if (!status) status = mailbox_open(&service->mailbox, err);
    if (!status) status = open_mail(s, err);
    if (!status && o->events_endpoint) status = kv_events_open(&s->events, o->events_endpoint, o->events_topic, err);
    service->events = s->events;
    if (!status && o->events_replay) status = kv_events_serve_replay(s->events, o->events_replay, err);
    service->loads = true;
    return status ? status : open_http(s, err); /* before the models: an address in use is reported at once */
}

/* Loads the models in a thread of its own, so that the event loop can answer meanwhile. Signals end the program as
 * usual until it is done. */
static void *load(void *user) {
    Server *s = user;
    s->load_status = open_models(s, &s->load_error);
    mailbox_post(&s->service.mailbox, &s->loaded);
    return NULL;
}

static void on_loaded(Message *m) {
    Server *s = (Server *)(void *)((char *)m - offsetof(Server, loaded));
    event_base_loopbreak(s->base);
}

/* Answers requests with status 503 until the models are loaded. */
static int load_models(Server *s, fr_error *err) {
    Service *service = &s->service;
    s->loaded.deliver = on_loaded;
    if (pthread_create(&s->loader, NULL, load, s))
        return error_set(err, FR_ERR_MEMORY, "the thread that loads the models cannot be started");
    if (event_base_dispatch(s->base) < 0)
        s->load_status = error_set(&s->load_error, FR_ERR_IO, "the event loop failed");
    pthread_join(s->loader, NULL);
    if (s->load_status) {
        *err = s->load_error;
        return s->load_status;
    }
    for (int i = 0; i < service->n_models; i++) s->models[i].events = s->events;
    int status = worker_start(&service->worker, &service->mailbox, err);
    service->engine.failed.deliver = on_failed;
    if (!status) status = engine_thread_start(&service->engine, s->models, service->n_models, &service->mailbox, err);
    if (!status) status = open_events(s, err);
    service->loads = status != FR_OK;
    return status;
}

static void close_server(Server *s) {
    engine_thread_stop(&s->service.engine);
    worker_stop(&s->service.worker);
    engine_thread_close(&s->service.engine);
    kv_events_close(s->events);
    http_server_close(s->service.http);
    api_call_free_all(&s->service);
    grammar_cache_close(&s->service.grammars);
    for (int i = 0; s->ends_in_peace && s->options->prefix_folder && i < s->service.n_models; i++)
        prefix_folder_save(&s->models[i], s->options->prefix_folder);
    for (int i = 0; i < s->service.n_models; i++) served_model_close(&s->models[i]);
    if (s->mail) event_free(s->mail);
    if (s->clock) event_free(s->clock);
    for (int i = 0; i < 2; i++)
        if (s->signals[i]) event_free(s->signals[i]);
    mailbox_close(&s->service.mailbox);
    if (s->base) event_base_free(s->base);
    tls_close(s->tls);
    free(s);
}

static void announce(const Server *s) {
    const ServeOptions *o = s->options;
    bool is_v6 = strchr(o->host, ':') != NULL;
    printf("forerun: listening on %s://%s%s%s:%d\n", o->tls_cert ? "https" : "http", is_v6 ? "[" : "", o->host,
           is_v6 ? "]" : "", http_server_port(s->service.http));
    fflush(stdout);
}

int serve(const ServeOptions *o, fr_error *err) {
    Server *s = calloc(1, sizeof *s);
    if (!s) return error_memory(err, "a server", sizeof *s);
    s->options = o;
    s->service.mailbox.wake.fd = -1;
    int status = open_server(s, err);
    if (!status) status = load_models(s, err);
    if (!status) {
        announce(s);
        if (event_base_dispatch(s->base) < 0) status = error_set(err, FR_ERR_IO, "the event loop failed");
        const fr_error *why = &s->service.engine.why;
        if (why->code) status = error_set(err, why->code, "%s", why->message);
    }
    close_server(s);
    return status;
}
