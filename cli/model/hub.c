/* hub.c - two requests to the hub's API.
 *
 *     GET /api/models/OWNER/NAME?blobs=true             {"sha": COMMIT, "siblings": [FILE, ...]}
 *         FILE: {"rfilename": PATH, "size": BYTES, "blobId": GIT ID, "lfs": {"sha256": HASH, "size": BYTES, ...}}
 *     GET /OWNER/NAME/resolve/COMMIT/PATH               the file, usually by a redirect to another host
 *
 * * Large files have "lfs" with a SHA-256; small files have git's id, which is a hash, too. The second request names
 * the commit of the list, so that all parts of a model are of one version even if the repository changes in between.
 * The answer is not trusted: paths must stay inside the folder, and sizes and hashes must be valid. */
#include "cli/model/fetch.h"

#include "cli/model_name.h"
#include "base/error.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_LIST_BYTES = 64 << 20, MAX_ATTEMPTS = 6, MAX_LIST_ATTEMPTS = 3, FIRST_WAIT_MS = 500, MAX_WAIT_S = 300 };

/* ---- where the hub is --------------------------------------------------------------------------------- */

static bool is_loopback(const char *host) {
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(names[i]);
        if (strncasecmp(host, names[i], n) == 0 && (!host[n] || strchr(":/", host[n]))) return true;
    }
    return false;
}

static int check_token(const char *token, fr_error *err) {
    for (const char *p = token; *p; p++)
        if (!isgraph((unsigned char)*p))
            return error_set(err, FR_ERR_ARGUMENT, "HF_TOKEN contains a character that no token has; set it again");
    return strlen(token) < 1000 ? FR_OK
                                : error_set(err, FR_ERR_ARGUMENT, "HF_TOKEN is too long for a token; set it again");
}

int hub_open(Hub *hub, fr_error *err) {
    static char endpoint[400];
    const char *given = getenv("HF_ENDPOINT"), *token = getenv("HF_TOKEN");
    if (!given || !*given) given = "https://huggingface.co";
    if (token && !*token) token = NULL;
    *hub = (Hub){.endpoint = endpoint, .has_token = token != NULL};
    size_t n = strlen(given);
    while (n > 0 && given[n - 1] == '/') n--;
    bool is_https = strncasecmp(given, "https://", 8) == 0, is_http = strncasecmp(given, "http://", 7) == 0;
    if (n >= sizeof endpoint || (!is_https && !is_http) || strpbrk(given, " ?#@\"\\\r\n"))
        return error_set(err, FR_ERR_ARGUMENT,
                         "HF_ENDPOINT must be the address of a hub, such as https://huggingface.co");
    snprintf(endpoint, sizeof endpoint, "%.*s", (int)n, given);
    int status = token ? check_token(token, err) : FR_OK;
    if (!status && token && is_http && !is_loopback(given + 7))
        status = error_set(
            err, FR_ERR_ARGUMENT,
            "HF_TOKEN is not sent to %.200s without encryption, because others could read it: use https in "
            "HF_ENDPOINT, or unset HF_TOKEN",
            endpoint);
    return status ? status : http_open(&hub->http, is_https, token, err);
}

void hub_close(Hub *hub) {
    http_close(hub->http);
    hub->http = NULL;
}

/* ---- errors -------------------------------------------------------------------------------------------- */

int hub_refuse(const Hub *hub, const char *repo, const char *what, const HttpReply *r, fr_error *err) {
    Printable safe;
    if (r->is_refused_scheme)
        return error_set(err, FR_ERR_IO,
                         "%.200s: the server redirects to a connection that is not secure, which is refused (%.120s)",
                         what, printable(&safe, r->why, strlen(r->why)));
    if (r->why[0])
        return error_set(err, FR_ERR_IO, "%.200s: cannot be fetched from %.100s: %s", what, hub->endpoint,
                         printable(&safe, r->why, strlen(r->why)));
    switch (r->status) {
    case 401:
        return error_set(err, FR_ERR_IO,
                         hub->has_token ? "%.200s: %.100s refuses the token in HF_TOKEN, or there is no such repository"
                                        : "%.200s: there is no such repository at %.100s, or it is private; to fetch a "
                                          "private one set HF_TOKEN",
                         what, hub->endpoint);
    case 403:
        return error_set(
            err, FR_ERR_IO,
            "%.200s: access is restricted; accept the conditions at %.100s/%.100s and set HF_TOKEN to your "
            "token",
            what, hub->endpoint, repo);
    case 404: return error_set(err, FR_ERR_IO, "%.200s: does not exist at %.100s", what, hub->endpoint);
    default:
        return error_set(err, FR_ERR_IO, "%.200s: %.100s answered with the HTTP status %ld; try again later", what,
                         hub->endpoint, r->status);
    }
}

bool hub_wait(const HttpReply *r, int n_failed) {
    if (n_failed >= MAX_ATTEMPTS || r->retry_after_s > MAX_WAIT_S) return false;
    long ms = FIRST_WAIT_MS << (n_failed - 1);
    if (r->retry_after_s) ms = r->retry_after_s * 1000;
    Printable safe;
    char status[40];
    snprintf(status, sizeof status, "HTTP status %ld", r->status);
    fprintf(stderr, "forerun: the connection failed (%s); trying again in %.1f s\n",
            r->why[0] ? printable(&safe, r->why, strlen(r->why)) : status, (double)ms / 1000);
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) {}
    return true;
}

/* ---- the list of files ---------------------------------------------------------------------------------- */

static bool append_list(void *user, const void *bytes, size_t n) { return buf_append(user, bytes, n); }
static bool begin_list(void *user, const HttpReply *reply) {
    (void)reply;
    buf_clear(user);
    return true;
}

static int fetch_list(Hub *hub, const char *repo, Buf *text, fr_error *err) {
    char url[1000];
    snprintf(url, sizeof url, "%s/api/models/%s?blobs=true", hub->endpoint, repo);
    const HttpRequest request = {.url = url, .begin = begin_list, .bytes = append_list, .user = text};
    HttpReply reply;
    int status;
    for (int n_failed = 1;; n_failed++) {
        if ((status = http_get(hub->http, &request, &reply, err))) return status;
        if (!http_may_retry(&reply) || n_failed == MAX_LIST_ATTEMPTS || !hub_wait(&reply, n_failed)) break;
    }
    return reply.status == 200 && !reply.why[0] ? FR_OK : hub_refuse(hub, repo, repo, &reply, err);
}

static int refuse_list(const char *repo, const char *why, fr_error *err) {
    return error_set(err, FR_ERR_FORMAT, "%s: the server's list of files cannot be used: %.200s", repo, why);
}

static bool is_gguf(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcasecmp(path + n - 5, ".gguf") == 0;
}

/* Reads an item of the list. *is_wanted: it is a GGUF file. */
static int read_file(const char *repo, const json_t *item, HubFile *out, bool *is_wanted, fr_error *err) {
    const json_t *lfs = json_object_get(item, "lfs");
    const json_t *size = json_object_get(json_is_object(lfs) ? lfs : item, "size");
    out->path = json_string_value(json_object_get(item, "rfilename"));
    out->hash = json_is_object(lfs) ? json_string_value(json_object_get(lfs, "sha256"))
                                    : json_string_value(json_object_get(item, "blobId"));
    *is_wanted = out->path && is_gguf(out->path);
    if (!*is_wanted) return FR_OK;
    Printable safe;
    char why[250];
    printable(&safe, out->path, strlen(out->path));
    if (!model_path_is_safe(out->path))
        snprintf(why, sizeof why, "it names the file %s, which would be outside the folder of the model", safe.text);
    else if (!json_is_integer(size) || json_integer_value(size) < 1 || json_integer_value(size) >= (int64_t)1 << 50)
        snprintf(why, sizeof why, "it does not give the size of %s", safe.text);
    else if (!out->hash || !file_hash_is_valid(out->hash))
        snprintf(why, sizeof why, "it does not give the hash of %s", safe.text);
    else {
        out->bytes = json_integer_value(size);
        return FR_OK;
    }
    return refuse_list(repo, why, err);
}

static int read_list(const char *repo, HubRepo *out, fr_error *err) {
    const json_t *siblings = json_object_get(out->json, "siblings");
    const char *revision = json_string_value(json_object_get(out->json, "sha"));
    size_t n = json_array_size(siblings);
    if (!json_is_array(siblings) || n > MODEL_NAME_MAX_FILES)
        return refuse_list(repo, "it is not in the hub's form", err);
    if (!revision || strlen(revision) != 40 || !file_hash_is_valid(revision))
        return refuse_list(repo, "it does not give the commit", err);
    strcpy(out->revision, revision);
    out->files = calloc(n + 1, sizeof *out->files);
    if (!out->files) return error_memory(err, "a list of files", n * sizeof *out->files);
    for (size_t i = 0; i < n; i++) {
        bool is_wanted;
        int status = read_file(repo, json_array_get(siblings, i), &out->files[out->n_files], &is_wanted, err);
        if (status) return status;
        out->n_files += is_wanted;
    }
    return FR_OK;
}

int hub_list(Hub *hub, const char *repo, HubRepo *out, fr_error *err) {
    Buf text = {.max_bytes = MAX_LIST_BYTES};
    *out = (HubRepo){.n_files = 0};
    int status = fetch_list(hub, repo, &text, err);
    json_error_t why;
    if (!status) out->json = json_loadb(text.data ? text.data : "", text.n, 0, &why);
    buf_free(&text);
    if (!status && !out->json) status = refuse_list(repo, "it is not JSON", err);
    if (!status) status = read_list(repo, out, err);
    if (status) hub_free(out);
    return status;
}

void hub_free(HubRepo *repo) {
    free(repo->files);
    json_decref(repo->json);
    *repo = (HubRepo){.n_files = 0};
}

bool hub_file_url(const Hub *hub, const char *repo, const char *revision, const char *path, Buf *out) {
    char head[1000];
    snprintf(head, sizeof head, "%s/%s/resolve/%s/", hub->endpoint, repo, revision);
    bool fits = buf_append(out, head, strlen(head));
    for (; *path && fits; path++) {
        char escaped[4];
        bool is_plain = isalnum((unsigned char)*path) || strchr("-._~/", *path);
        snprintf(escaped, sizeof escaped, is_plain ? "%c" : "%%%02X", (unsigned char)*path);
        fits = buf_append(out, escaped, strlen(escaped));
    }
    return fits;
}
