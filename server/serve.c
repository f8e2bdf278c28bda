/* serve.c - `forerun serve`: its options; it assembles the server, runs the event loop, and ends it.
 *
 * The first SIGTERM or SIGINT drains the server: requests that were accepted are finished, new ones get status 503, and
 * the program ends when the last answer is complete. The second signal ends the requests that still run at once. */
#include "base/progress.h"
#include "base/system.h"
#include "base/threads.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "draft/drafter.h"
#include "server/api/api.h"
#include "server/engine/kv_events.h"
#include "server/engine/slots.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum {
    LEAST_PREFIXES = 8, /* the engine's default; with slots that are saved, each slot keeps its last request */
    GRAMMAR_BYTES = 512 << 20,
    JSON_BYTES_PER_BYTE = 16,
    JSON_BYTES_LEAST = 4 << 20,
    MAX_UNSENT = 1 << 20,
    BODIES_AT_ONCE = 32
};

typedef enum UnknownFields { UNKNOWN_REFUSE, UNKNOWN_IGNORE } UnknownFields;

typedef struct ServeOptions {
    const char *models[SERVED_MAX_MODELS];
    int n_models;
    const char *drafts[SERVED_MAX_DRAFTS];
    int n_drafts, tree_budget;
    const char *backend, *kernels, *activations;
    int n_ranks;
    fr_engine_options engine;
    const char *host;
    int64_t port, n_queued, max_body_mib, max_connections;
    double request_timeout_s, max_gap_ms;
    const char *api_key_file, *tls_cert, *tls_key, *slot_folder, *prefix_folder, *events_endpoint, *events_topic,
        *events_replay;
    const char *origins[ACCESS_MAX_ORIGINS];
    int n_origins;
    const char *hosts[ACCESS_MAX_HOSTS];
    int n_hosts, is_quiet, unknown_fields, metrics_names;
} ServeOptions;

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

/* ---- the certificate ----------------------------------------------------------------------------------- */

/* Loads the certificate and its key. OpenSSL's errors are a stack of codes, of which the deepest one names the cause.
 * The files are not opened by OpenSSL, which would wait at a named pipe. */

enum { PEM_MAX_BYTES = 1 << 20 };

static int refuse(fr_error *err, const char *option, const char *path) {
    char why[256];
    ERR_error_string_n(ERR_peek_error(), why, sizeof why);
    ERR_clear_error();
    return error_set(err, FR_ERR_IO, "%s: %.200s cannot be used: %s", option, path, why);
}

/* A PEM file in memory. */
typedef struct Pem {
    char *text;
    size_t n;
    BIO *bio;
} Pem;

static int read_pem(Pem *pem, const char *path, fr_error *err) {
    int status = cli_read_file(path, PEM_MAX_BYTES, &pem->text, &pem->n, err);
    if (!status && !(pem->bio = BIO_new_mem_buf(pem->text, (int)pem->n))) status = error_memory(err, "TLS", pem->n);
    return status;
}

static void free_pem(Pem *pem) {
    BIO_free(pem->bio);
    if (pem->text) OPENSSL_cleanse(pem->text, pem->n);
    free(pem->text);
}

/* Uses a certificate, and the certificates of its chain that follow it. */
static bool use_chain(SSL_CTX *ctx, BIO *pem) {
    X509 *x = PEM_read_bio_X509_AUX(pem, NULL, NULL, NULL);
    bool fits = x && SSL_CTX_use_certificate(ctx, x) == 1;
    X509_free(x);
    while (fits && (x = PEM_read_bio_X509(pem, NULL, NULL, NULL)) != NULL) {
        fits = SSL_CTX_add0_chain_cert(ctx, x) == 1;
        if (!fits) X509_free(x);
    }
    unsigned long why = ERR_peek_last_error();
    if (!fits || ERR_GET_LIB(why) != ERR_LIB_PEM || ERR_GET_REASON(why) != PEM_R_NO_START_LINE) return false;
    ERR_clear_error(); /* the error is the end of the file */
    return true;
}

static bool use_key(SSL_CTX *ctx, BIO *pem) {
    EVP_PKEY *key = PEM_read_bio_PrivateKey(pem, NULL, NULL, NULL);
    bool fits = key && SSL_CTX_use_PrivateKey(ctx, key) == 1;
    EVP_PKEY_free(key);
    return fits;
}

/* Opens an SSL_CTX for TLS 1.2 and 1.3 with a certificate, which its chain may follow, and its key, both in PEM. */
static int tls_open(void **out, const char *cert, const char *key, fr_error *err) {
    Pem chain = {0}, secret = {0};
    *out = NULL;
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return error_memory(err, "TLS", 1);
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    int status = read_pem(&chain, cert, err);
    if (!status) status = read_pem(&secret, key, err);
    if (!status && !use_chain(ctx, chain.bio)) status = refuse(err, "--tls-cert", cert);
    if (!status && (!use_key(ctx, secret.bio) || SSL_CTX_check_private_key(ctx) != 1))
        status = refuse(err, "--tls-key", key);
    free_pem(&chain);
    free_pem(&secret);
    if (status) SSL_CTX_free(ctx);
    else *out = ctx;
    return status;
}

static void tls_close(void *tls) { SSL_CTX_free(tls); }

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

/* Serves until a signal ends it. */
static int serve(const ServeOptions *o, fr_error *err) {
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

/* ---- the command ----------------------------------------------------------------------------------------- */

static ServeOptions args;

static const Option option_table[] = {
    {.key = "model",
     .letter = 'm',
     OPT_TEXTS(ServeOptions, models, n_models),
     .required = "model",
     .metavar = "[NAME=]FILE",
     .section = "Models",
     .help = "GGUF file of a model, and the name by which clients call it; several times for several models"},
    {.key = "draft",
     OPT_TEXTS(ServeOptions, drafts, n_drafts),
     .metavar = "SPEC",
     .is_basic = true,
     .default_help = "auto",
     .suggest = cli_suggest_draft,
     .help =
         "drafter, as method or method:key=value,...; a+b: two of them; all draft for each request, unless it names "
         "some of them"},
    {.key = "tree-budget",
     OPT_INT(ServeOptions, tree_budget, 1, FR_TREE_BUDGET_MAX),
     .word = "auto",
     .word_value = FR_TREE_BUDGET_AUTO,
     .default_value = "auto",
     .help = "at most N drafted tokens in a step of a request; auto: as many as are expected to save time"},

    {.key = "host",
     OPT_TEXT(ServeOptions, host),
     .section = "Network",
     .is_basic = true,
     .default_value = "127.0.0.1",
     .metavar = "ADDRESS",
     .help = "address to listen on; 0.0.0.0: all"},
    {.key = "port",
     OPT_INT(ServeOptions, port, 0, 65535),
     .is_basic = true,
     .default_value = "8080",
     .help = "port to listen on; 0: a free one, which is printed"},
    {.key = "tls-cert", OPT_FILE(ServeOptions, tls_cert), .help = "certificate (PEM), with its chain: serve HTTPS"},
    {.key = "tls-key", OPT_FILE(ServeOptions, tls_key), .help = "private key of the certificate (PEM)"},
    {.key = "api-key-file",
     OPT_FILE(ServeOptions, api_key_file),
     .help = "file with API keys, one on each line; each request needs one. The variable FORERUN_API_KEY adds a key"},
    {.key = "cors-origin",
     OPT_TEXTS(ServeOptions, origins, n_origins),
     .metavar = "ORIGIN",
     .help = "let the pages of this origin (https://example.org) use the server; *: all"},
    {.key = "allowed-host",
     OPT_TEXTS(ServeOptions, hosts, n_hosts),
     .metavar = "NAME",
     .help = "let requests address the server by this name (mybox.local); *: any; localhost, numeric addresses and the "
             "name given to --host need none, and with TLS or API keys no name does"},

    {.key = "parallel",
     OPT_INT(ServeOptions, engine.max_requests, 1, SERVE_MAX_PARALLEL),
     .section = "Limits",
     .default_value = "16",
     .help = "requests that are computed at once; further ones wait in a queue"},
    {.key = "queue",
     OPT_INT(ServeOptions, n_queued, 0, 4096),
     .default_value = "512",
     .help = "requests that may wait; more are answered with status 429"},
    {.key = "unknown-fields",
     OPT_CHOICE(ServeOptions, unknown_fields, "refuse", "ignore"),
     .default_value = "refuse",
     .help = "what to do with a field of a request that forerun does not know, and with tools that the model's chat "
             "template has no place for: refuse the request, or ignore them and say so in the answer's warnings"},
    {.key = "max-gap",
     OPT_REAL(ServeOptions, max_gap_ms, 0, 1e6),
     .default_help = "twice a step",
     .metavar = "MS",
     .help = "milliseconds that may pass between two tokens of a stream while prompts of other requests are read in "
             "pieces, and that a step with drafts may take; a smaller gap makes prompts take longer"},
    {.key = "max-body",
     OPT_INT(ServeOptions, max_body_mib, 1, 1024),
     .default_value = "8",
     .metavar = "MIB",
     .help = "largest body of a request, in MiB"},
    {.key = "request-timeout",
     OPT_REAL(ServeOptions, request_timeout_s, 0.1, 86400),
     .default_value = "30",
     .metavar = "S",
     .help = "seconds within which a request must arrive"},
    {.key = "max-connections",
     OPT_INT(ServeOptions, max_connections, 1, 100000),
     .default_value = "1024",
     .help = "connections at once; one more closes the connection that has been silent longest"},

    CLI_ROW_THREADS(ServeOptions, engine.n_threads, .section = "Machine"),
    CLI_ROW_RANKS(ServeOptions, n_ranks),
    CLI_ROW_CTX(ServeOptions, engine.n_ctx),
    CLI_ROW_KV(ServeOptions, engine.kv_type),
    {.key = "kv-tokens",
     OPT_INT(ServeOptions, engine.kv_tokens, 1, INT32_MAX),
     .default_help = "4 contexts",
     .help = "tokens that the KV cache holds in total, at least --ctx; bounds its memory"},
    {.key = "slot-save-path",
     OPT_TEXT(ServeOptions, slot_folder),
     .metavar = "FOLDER",
     .help = "existing folder in which clients may save and restore slots (POST /slots/ID?action=save)"},
    {.key = "prefix-folder",
     OPT_TEXT(ServeOptions, prefix_folder),
     .metavar = "FOLDER",
     .help = "existing folder that keeps the prefix cache while the server is not running"},
    CLI_ROW_BACKEND(ServeOptions, backend),
    CLI_ROW_KERNELS(ServeOptions, kernels),
    CLI_ROW_ACT(ServeOptions, activations, .default_help = "q16"),
    {.key = "metrics-names",
     OPT_CHOICE(ServeOptions, metrics_names, "forerun", "vllm", "both"),
     .default_value = "forerun",
     .help = "names of the metrics that vLLM has, too: forerun_NAME, vllm:NAME or both"},
    {.key = "kv-events",
     OPT_TEXT(ServeOptions, events_endpoint),
     .metavar = "ENDPOINT",
     .help =
         "publish what the prefix cache holds to routers, at this endpoint of ZeroMQ (tcp://*:5557), in the form of "
         "vLLM; needs libzmq"},
    {.key = "kv-events-topic",
     OPT_TEXT(ServeOptions, events_topic),
     .default_value = "kv@{host}@{model}",
     .metavar = "TOPIC",
     .help = "topic of these messages; {host} and {model} are replaced by names"},
    {.key = "kv-events-replay",
     OPT_TEXT(ServeOptions, events_replay),
     .metavar = "ENDPOINT",
     .help = "let routers ask for messages that they have missed at this endpoint (tcp://*:5558); with one model only"},
    {.key = "quiet", OPT_FLAG(ServeOptions, is_quiet), .help = "do not log requests"},
    {.key = NULL},
};

static int check_folder(const char *option, const char *folder, fr_error *err) {
    struct stat st;
    if (!folder || (stat(folder, &st) == 0 && S_ISDIR(st.st_mode))) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%s: there is no folder %.200s; create it first", option, folder);
}

/* The drafters of --draft, one by one. */
static char *drafters[SERVED_MAX_DRAFTS];
static int n_drafters;

static int add_drafter(void *user, const char *spec, fr_error *err) {
    (void)user;
    fr_error why;
    int status = strcmp(spec, "auto") == 0 ? FR_OK : drafter_check(spec, &why);
    if (status) return error_set(err, (fr_code)status, "--draft: %s", why.message);
    if (n_drafters == SERVED_MAX_DRAFTS)
        return error_set(err, FR_ERR_ARGUMENT, "--draft: names more than the %d drafters that a server may have",
                         SERVED_MAX_DRAFTS);
    if (!(drafters[n_drafters] = strdup(spec))) return error_memory(err, "the names of drafters", strlen(spec));
    n_drafters++;
    return FR_OK;
}

/* A request may choose among all drafters, so the parts of "a+b" become drafters like those of several options. */
static int split_drafts(fr_error *err) {
    int status = FR_OK;
    for (int i = 0; i < args.n_drafts && !status; i++)
        status = strcmp(args.drafts[i], "auto") == 0 ? add_drafter(NULL, "auto", err)
                                                     : drafter_each(args.drafts[i], add_drafter, NULL, err);
    for (int i = 0; i < n_drafters; i++) args.drafts[i] = drafters[i];
    args.n_drafts = n_drafters;
    return status;
}

static int check(fr_error *err) {
    int wrong = check_folder("--slot-save-path", args.slot_folder, err);
    if (!wrong) wrong = check_folder("--prefix-folder", args.prefix_folder, err);
    if (!wrong) wrong = split_drafts(err);
    if (wrong) return wrong;
    if (args.events_replay && (!args.events_endpoint || args.n_models > 1))
        return error_set(err, FR_ERR_ARGUMENT,
                         "--kv-events-replay belongs to --kv-events and to one model: pass --kv-events and one -m");
    if (!args.tls_cert != !args.tls_key)
        return error_set(err, FR_ERR_ARGUMENT, "--tls-cert and --tls-key belong together: pass both");
    return FR_OK;
}

static bool files(CommandFiles *out) {
    bool fits = true;
    for (int i = 0; i < args.n_drafts && fits; i++) fits = command_files_add_drafter(out, "--draft", args.drafts[i]);
    return fits;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err = {0};
    int status = serve(&args, &err);
    return status ? cli_fail(&err) : CLI_OK;
}

static bool list(Buf *out) { return buf_puts(out, "Drafters (--draft SPEC):\n") && cli_list_drafters(out, false); }

const Command command_serve = {
    .name = "serve",
    .summary = "serve models over HTTP: the APIs of OpenAI and llama.cpp",
    .about = "Answer requests over HTTP, many at once, with the endpoints of the OpenAI API (/v1/chat/completions, "
             "/v1/completions, /v1/models) and of llama.cpp's server (/completion, /tokenize, /props, /slots, ...). "
             "docs/SERVER.md describes endpoints and fields. Each request gets the tokens that it would get by itself. "
             "SIGTERM or Ctrl-C finishes the running requests; a second one ends them.",
    .sets = (const OptionSet[]){{option_table, &args}, {NULL, NULL}},
    .list = list,
    .examples = "  forerun serve -m model.gguf\n"
                "  forerun serve -m small=a.gguf -m large=b.gguf --draft ngram-trie\n"
                "  forerun serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt\n",
    .check = check,
    .files = files,
    .run = run,
};
