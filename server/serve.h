/* serve.h - the options of `forerun serve`, and the server that they make. */
#ifndef SERVER_SERVE_H
#define SERVER_SERVE_H

#include "server/engine/served_model.h"
#include "server/http/http_server.h"

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

/* Serves until a signal ends it. */
int serve(const ServeOptions *o, fr_error *err);

#endif
