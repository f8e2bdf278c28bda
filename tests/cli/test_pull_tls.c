/* test_pull_tls.c - `forerun pull` over HTTPS, from a server with a self-signed certificate: certificates are checked,
 * and a redirect to plain HTTP is refused. */
#include "cli_rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static EVP_PKEY *key;
static X509 *certificate;
static char path[600];
static pid_t server;

static void add_extension(int nid, const char *value) {
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    assert_non_null(e);
    X509_add_ext(certificate, e, -1);
    X509_EXTENSION_free(e);
}

/* Makes a self-signed certificate for "localhost", also as a file. */
static void make_certificate(void) {
    key = EVP_EC_gen("P-256");
    certificate = X509_new();
    assert_true(key && certificate);
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME *name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(certificate, name);
    add_extension(NID_subject_alt_name, "DNS:localhost");
    add_extension(NID_basic_constraints, "critical,CA:TRUE");
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    snprintf(path, sizeof path, "%s/pull-tls.pem", cli_rig_folder());
    FILE *f = fopen(path, "w");
    assert_true(f && PEM_write_X509(f, certificate));
    fclose(f);
}

static void answer(SSL *ssl) {
    char text[8192] = "", reply[400];
    int n = SSL_read(ssl, text, sizeof text - 1);
    if (n <= 0) return;
    text[n] = '\0';
    if (strstr(text, "GET /api/models/test/plain"))
        snprintf(reply, sizeof reply,
                 "HTTP/1.1 302 Found\r\nLocation: http://localhost:9/x\r\nContent-Length: 0\r\n\r\n");
    else snprintf(reply, sizeof reply, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    SSL_write(ssl, reply, (int)strlen(reply));
    SSL_shutdown(ssl);
}

static void serve(int listener) {
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (!context || !SSL_CTX_use_certificate(context, certificate) || !SSL_CTX_use_PrivateKey(context, key)) _exit(1);
    alarm(120);
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int c = accept(listener, NULL, NULL);
        SSL *ssl = SSL_new(context);
        SSL_set_fd(ssl, c);
        if (SSL_accept(ssl) == 1) answer(ssl);
        SSL_free(ssl);
        close(c);
    }
}

static int begin(void **state) {
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n_at = sizeof at;
    char endpoint[64];
    make_certificate();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 8) != 0) return -1;
    getsockname(listener, (struct sockaddr *)&at, &n_at);
    snprintf(endpoint, sizeof endpoint, "https://localhost:%d", ntohs(at.sin_port));
    setenv("HF_ENDPOINT", endpoint, 1);
    setenv("no_proxy", "*", 1);
    unsetenv("HF_TOKEN");
    server = fork();
    if (server == 0) serve(listener);
    close(listener);
    return server > 0 ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return 0;
}

static void certificates_are_checked(void **state) {
    (void)state;
    unsetenv("SSL_CERT_FILE");
    cli_expect("pull test/nothing", 1, "certificate");
    setenv("SSL_CERT_FILE", path, 1);
    cli_expect("pull test/nothing", 1, "test/nothing: does not exist at https://localhost");
}

static void a_redirect_to_plain_http_is_refused(void **state) {
    (void)state;
    setenv("SSL_CERT_FILE", path, 1);
    cli_expect("pull test/plain", 1, "redirects to a connection that is not secure");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(certificates_are_checked),
        cmocka_unit_test(a_redirect_to_plain_http_is_refused),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
