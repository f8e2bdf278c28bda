/* tls.h - the certificate of the server. */
#ifndef SERVE_TLS_H
#define SERVE_TLS_H

#include "base/error.h"

/* An SSL_CTX for TLS 1.2 and 1.3, in *out. Files in PEM; the certificate may be followed by its chain. */
int tls_open(void **out, const char *cert, const char *key, fr_error *err);
void tls_close(void *tls); /* NULL is fine */

#endif
