/* tls.c - loads the certificate of the server and its key.
 *
 * OpenSSL's errors are a stack of codes, of which the deepest one names the cause. The files are not opened by OpenSSL,
 * which would wait at a named pipe. */
#include "base/error.h"
#include "cli/cli.h"
#include "server/http/http_server.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdlib.h>

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

int tls_open(void **out, const char *cert, const char *key, fr_error *err) {
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

void tls_close(void *tls) { SSL_CTX_free(tls); }
