/* access.c - keys compared in constant time, and CORS.
 *
 * Keys are kept and compared as SHA-256 digests, each with all bytes and all of them always, so that the time of a
 * comparison tells nothing about a key. A page in somebody's browser can send requests to any address that the browser
 * reaches, also to 127.0.0.1, and needs no permission for some of them; so a request that names a foreign origin which
 * the operator did not list is refused before anything is computed. */
#include "server/http/access.h"

#include "cli/cli.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEY_FILE_MAX = 1 << 20 };

int access_add_key(Access *a, const char *key, size_t n, fr_error *err) {
    if (a->n_keys == ACCESS_MAX_KEYS)
        return error_set(err, FR_ERR_ARGUMENT, "there are more than %d API keys", ACCESS_MAX_KEYS);
    SHA256((const unsigned char *)key, n, a->keys[a->n_keys++]);
    return FR_OK;
}

int access_add_key_file(Access *a, const char *path, fr_error *err) {
    char *text;
    size_t n;
    int before = a->n_keys, status = cli_read_file(path, KEY_FILE_MAX, &text, &n, err);
    if (status) return status;
    for (char *line = text, *rest; line && *line && !status; line = rest) {
        size_t length = strcspn(line, "\n");
        rest = line[length] ? line + length + 1 : NULL;
        while (length > 0 && strchr(" \t\r", line[length - 1])) length--;
        if (length > 0 && line[0] != '#') status = access_add_key(a, line, length, err);
    }
    OPENSSL_cleanse(text, n);
    free(text);
    if (!status && a->n_keys == before)
        status = error_set(err, FR_ERR_ARGUMENT, "%.200s: contains no API key; write one a line", path);
    return status;
}

static bool is_key(const Access *a, const char *key) {
    unsigned char digest[ACCESS_DIGEST];
    int n_equal = 0;
    SHA256((const unsigned char *)key, strlen(key), digest);
    for (int i = 0; i < a->n_keys; i++) n_equal += CRYPTO_memcmp(digest, a->keys[i], sizeof digest) == 0;
    return n_equal > 0;
}

bool access_has_key(const Access *a, const HttpHead *head) {
    const char *bearer = http_head_find(head, "Authorization"), *key = http_head_find(head, "x-api-key");
    if (a->n_keys == 0) return true;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) {
        bearer += 7;
        while (*bearer == ' ') bearer++;
        if (is_key(a, bearer)) return true;
    }
    return key && is_key(a, key);
}

static bool is_listed(const Access *a, const char *origin) {
    for (int i = 0; i < a->n_origins; i++)
        if (strcmp(a->origins[i], "*") == 0 || strcasecmp(a->origins[i], origin) == 0) return true;
    return false;
}

/* localhost or a numeric address, with or without a port. Other names may be made to mean this machine by whoever owns
 * them (DNS rebinding), so that a page of theirs would pass as the server's own. */
static bool names_no_domain(const char *host) {
    size_t n = strcspn(host, ":");
    return host[0] == '[' || strspn(host, "0123456789.") == n || (n == 9 && strncasecmp(host, "localhost", n) == 0);
}

bool access_allows_origin(const Access *a, const HttpHead *head) {
    const char *origin = http_head_find(head, "Origin"), *host = http_head_find(head, "Host");
    if (!origin || is_listed(a, origin)) return true;
    const char *authority = strstr(origin, "://");
    bool is_own = authority && host && strcasecmp(authority + 3, host) == 0;
    return is_own && (a->n_keys > 0 || names_no_domain(host));
}

void access_add_cors(const Access *a, HttpExchange *x) {
    const char *origin = http_head_find(http_exchange_head(x), "Origin");
    if (a->n_origins == 0) return;
    http_exchange_add_header(x, "Vary", "Origin");
    if (origin && is_listed(a, origin)) http_exchange_add_header(x, "Access-Control-Allow-Origin", origin);
}

void access_answer_preflight(const Access *a, HttpExchange *x) {
    const char *wanted = http_head_find(http_exchange_head(x), "Access-Control-Request-Headers");
    access_add_cors(a, x);
    http_exchange_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    if (wanted) http_exchange_add_header(x, "Access-Control-Allow-Headers", wanted);
    http_exchange_add_header(x, "Access-Control-Max-Age", "600");
    http_exchange_reply(x, 204, NULL, "", 0);
}
