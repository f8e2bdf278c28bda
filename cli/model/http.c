/* http.c - GET requests by libcurl, with redirects and ranges.
 *
 * libcurl is loaded by dlopen when it is needed, because linking it would make every command load 29 libraries at its
 * start. Only `pull` needs it. libcurl reads the environment variables for proxies (https_proxy, all_proxy, no_proxy).
 * SSL_CERT_FILE names other certificates to trust, as for the programs of OpenSSL and curl.
 *
 * A token is sent as a header, which libcurl leaves out when a redirect leads to another host. Redirects may lead to
 * HTTPS, and to plain HTTP only if the first request was plain HTTP, too. */
#include "cli/model/fetch.h"

#include "base/mem.h"
#include "base/os.h"

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_REDIRECTS = 10, CONNECT_S = 30, STALLED_S = 60 };

/* The functions of libcurl that are used; their types come from its header. */
#define CURL_FUNCTIONS(X) \
    X(curl_global_init) \
    X(curl_easy_init) \
    X(curl_easy_setopt) \
    X(curl_easy_perform) \
    X(curl_easy_getinfo) \
    X(curl_easy_header) \
    X(curl_easy_cleanup) \
    X(curl_easy_strerror) \
    X(curl_slist_append) \
    X(curl_slist_free_all)
static struct {
#define DECLARE(name) __typeof__(&(name)) name;
    CURL_FUNCTIONS(DECLARE)
} lib;

struct Http {
    CURL *curl;
    bool only_https;
    char *authorization; /* "Authorization: Bearer ...", or NULL */
};

static int load_library(fr_error *err) {
    static bool is_loaded;
    if (is_loaded) return FR_OK;
    void *library = os_library_open("curl", 4);
    bool is_whole = library != NULL;
#define LOAD(name) is_whole = is_whole && (*(void **)(void *)&lib.name = dlsym(library, #name)) != NULL;
    CURL_FUNCTIONS(LOAD)
    if (!is_whole)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "fetching models needs libcurl 7.83 or newer, which cannot be loaded (%.200s); install the "
                         "package libcurl4",
                         os_library_error());
    if (lib.curl_global_init(CURL_GLOBAL_ALL) != CURLE_OK)
        return error_set(err, FR_ERR_INTERNAL, "libcurl cannot be initialised");
    is_loaded = true;
    return FR_OK;
}

int http_open(Http **out, bool only_https, const char *token, fr_error *err) {
    *out = NULL;
    int status = load_library(err);
    if (status) return status;
    Http *h = mem_calloc(1, sizeof *h);
    if (h) h->curl = lib.curl_easy_init();
    if (!h || !h->curl || (token && asprintf(&h->authorization, "Authorization: Bearer %s", token) < 0)) {
        if (h) h->authorization = NULL;
        http_close(h);
        return error_memory(err, "a connection", sizeof *h);
    }
    h->only_https = only_https;
    *out = h;
    return FR_OK;
}

void http_close(Http *h) {
    if (!h) return;
    if (h->curl) lib.curl_easy_cleanup(h->curl);
    free(h->authorization);
    mem_free(h);
}

/* ---- an answer ---------------------------------------------------------------------------------------- */

typedef struct Transfer {
    Http *http;
    const HttpRequest *request;
    HttpReply *reply;
    bool has_begun, is_stopped; /* bytes have arrived; the caller has ended the transfer */
} Transfer;

static const char *header(const Transfer *t, const char *name) {
    struct curl_header *h;
    return lib.curl_easy_header(t->http->curl, name, 0, CURLH_HEADER, -1, &h) == CURLHE_OK ? h->value : NULL;
}

/* Reads the status and headers of the last answer, after redirects. */
static void read_headers(Transfer *t) {
    HttpReply *r = t->reply;
    curl_off_t retry_after = 0;
    const char *etag = header(t, "ETag"), *range = header(t, "Content-Range");
    lib.curl_easy_getinfo(t->http->curl, CURLINFO_RESPONSE_CODE, &r->status);
    lib.curl_easy_getinfo(t->http->curl, CURLINFO_RETRY_AFTER, &retry_after);
    r->retry_after_s = (long)retry_after;
    r->from = r->total = -1;
    int64_t last;
    if (range && sscanf(range, "bytes %" SCNd64 "-%" SCNd64 "/%" SCNd64, &r->from, &last, &r->total) < 2) r->from = -1;
    if (etag && etag[0] == '"' && strlen(etag) < sizeof r->etag) strcpy(r->etag, etag);
}

static size_t on_bytes(char *bytes, size_t one, size_t n, void *user) {
    Transfer *t = user;
    (void)one;
    if (!t->has_begun) {
        read_headers(t);
        t->has_begun = true;
        bool is_wanted = t->reply->status == 200 || t->reply->status == 206;
        t->is_stopped = is_wanted && t->request->begin && !t->request->begin(t->request->user, t->reply);
    }
    if (t->reply->status != 200 && t->reply->status != 206) return n;
    t->is_stopped = t->is_stopped || !t->request->bytes(t->request->user, bytes, n);
    return t->is_stopped ? 0 : n;
}

/* Returns whether the error is one of the connection, so that another attempt may succeed. */
static bool may_pass(CURLcode code) {
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR: return true;
    default: return false;
    }
}

bool http_may_retry(const HttpReply *r) {
    return r->is_interrupted || r->status == 408 || r->status == 429 || (r->status >= 500 && r->status != 501);
}

/* Returns whether the address that was asked last, after redirects, has a protocol that is not allowed. */
static bool is_at_refused_scheme(const Http *h) {
    const char *url = NULL;
    lib.curl_easy_getinfo(h->curl, CURLINFO_EFFECTIVE_URL, &url);
    return url && strncasecmp(url, "https://", 8) != 0 && (h->only_https || strncasecmp(url, "http://", 7) != 0);
}

/* libcurl has one code for a protocol that is not allowed and for an answer that is not HTTP. */
static void note_failure(Transfer *t, CURLcode code, const char *why) {
    HttpReply *r = t->reply;
    if (!*why) why = lib.curl_easy_strerror(code);
    r->is_interrupted = may_pass(code);
    r->is_refused_scheme = code == CURLE_UNSUPPORTED_PROTOCOL && is_at_refused_scheme(t->http);
    bool is_garbage = code == CURLE_WEIRD_SERVER_REPLY || (code == CURLE_UNSUPPORTED_PROTOCOL && !r->is_refused_scheme);
    snprintf(r->why, sizeof r->why, is_garbage ? "the answer cannot be understood: %.200s" : "%s", why);
}

/* ---- a request ---------------------------------------------------------------------------------------- */

static bool add_header(struct curl_slist **list, const char *text) {
    struct curl_slist *longer = lib.curl_slist_append(*list, text);
    if (longer) *list = longer;
    return longer != NULL;
}

static bool set_headers(const Http *h, const HttpRequest *q, struct curl_slist **list) {
    char text[300];
    if (h->authorization && !add_header(list, h->authorization)) return false;
    if (q->from == 0) return true;
    snprintf(text, sizeof text, "Range: bytes=%" PRId64 "-", q->from);
    if (!add_header(list, text)) return false;
    if (!q->if_etag || !*q->if_etag) return true;
    snprintf(text, sizeof text, "If-Range: %s", q->if_etag);
    return add_header(list, text);
}

static void set_options(Transfer *t, const struct curl_slist *headers, char *why) {
    CURL *c = t->http->curl;
    const char *certificates = getenv("SSL_CERT_FILE"), *protocols = t->http->only_https ? "https" : "http,https";
    lib.curl_easy_setopt(c, CURLOPT_URL, t->request->url);
    lib.curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    lib.curl_easy_setopt(c, CURLOPT_USERAGENT, "forerun/" FORERUN_VERSION);
    lib.curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, protocols);
    lib.curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    lib.curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    lib.curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)MAX_REDIRECTS);
    lib.curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    lib.curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    lib.curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALLED_S);
    lib.curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    lib.curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    lib.curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
    lib.curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    if (certificates && *certificates) lib.curl_easy_setopt(c, CURLOPT_CAINFO, certificates);
}

int http_get(Http *h, const HttpRequest *request, HttpReply *reply, fr_error *err) {
    Transfer t = {.http = h, .request = request, .reply = reply};
    struct curl_slist *headers = NULL;
    char why[CURL_ERROR_SIZE] = "";
    *reply = (HttpReply){.from = -1, .total = -1};
    if (!set_headers(h, request, &headers)) {
        lib.curl_slist_free_all(headers);
        return error_memory(err, "a request", strlen(request->url));
    }
    set_options(&t, headers, why);
    CURLcode code = lib.curl_easy_perform(h->curl);
    if (!t.has_begun) {
        read_headers(&t);
        bool is_empty = code == CURLE_OK && (reply->status == 200 || reply->status == 206);
        if (is_empty && request->begin) (void)request->begin(request->user, reply);
    }
    if (code != CURLE_OK && !t.is_stopped) note_failure(&t, code, why);
    lib.curl_slist_free_all(headers);
    return FR_OK;
}
