/* tls.c - loads certificate and key. OpenSSL's errors are a stack of codes, of which the deepest names the cause. */
#include "server/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

static int refuse(fr_error *err, const char *option, const char *path) {
    char why[256];
    ERR_error_string_n(ERR_peek_error(), why, sizeof why);
    ERR_clear_error();
    return error_set(err, FR_ERR_IO, "%s: %.200s cannot be used: %s", option, path, why);
}

int tls_open(void **out, const char *cert, const char *key, fr_error *err) {
    *out = NULL;
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return error_memory(err, "TLS", 1);
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    int status = FR_OK;
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1) status = refuse(err, "--tls-cert", cert);
    else if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1) status = refuse(err, "--tls-key", key);
    else if (SSL_CTX_check_private_key(ctx) != 1) status = refuse(err, "--tls-key", key);
    if (status) SSL_CTX_free(ctx);
    else *out = ctx;
    return status;
}

void tls_close(void *tls) { SSL_CTX_free(tls); }
