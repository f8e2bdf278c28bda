/* serve.h - the server of `forerun serve`: options, and running it. */
#ifndef SERVER_SERVE_H
#define SERVER_SERVE_H

#include "base/error.h"
#include "server/api/api.h"

typedef struct ServeOptions {
    const char *models[SERVED_MAX_MODELS];
    int n_models;
    const char *drafts[SERVED_MAX_DRAFTS];
    int n_drafts, tree_budget;
    const char *backend, *kernels, *activations;
    fr_engine_options engine;
    const char *host;
    int64_t port, n_queued, max_body_mib, max_connections;
    double request_timeout_s;
    const char *api_key_file, *tls_cert, *tls_key;
    const char *origins[ACCESS_MAX_ORIGINS];
    int n_origins;
    const char *hosts[ACCESS_MAX_HOSTS];
    int n_hosts, is_quiet;
} ServeOptions;

/* Serves until a signal ends it. */
int serve(const ServeOptions *o, fr_error *err);

/* The certificate of the server. */

/* An SSL_CTX for TLS 1.2 and 1.3, in *out. Files in PEM; the certificate may be followed by its chain. */
int tls_open(void **out, const char *cert, const char *key, fr_error *err);
void tls_close(void *tls); /* NULL is fine */

#endif
