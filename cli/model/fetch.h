/* fetch.h - fetches the files of a model from the Hugging Face hub into the cache: HTTP, the hub's API, and one
 * file. */
#ifndef CLI_MODEL_FETCH_H
#define CLI_MODEL_FETCH_H

#include "base/error.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- HTTP (http.c): GET with libcurl, which is loaded when the first connection is opened ------------- */

typedef struct Http Http;

/* The answer of a server, or why there is none. */
typedef struct HttpReply {
    long status;            /* after redirects; 0: no answer arrived */
    int64_t from, total;    /* in a partial answer (206), its first byte and the size of the whole file; -1: unknown */
    char etag[200];         /* "": none, or a weak one, which does not promise equal bytes */
    long retry_after_s;     /* as the server asks; 0: it does not */
    bool is_interrupted;    /* the answer is missing or incomplete for a reason that may be temporary */
    bool is_refused_scheme; /* a redirect led to a protocol that is not allowed */
    char why[256];          /* the error message; "": there was no error */
} HttpReply;

typedef struct HttpRequest {
    const char *url;
    int64_t from;        /* the first byte that is wanted; 0: the whole file */
    const char *if_etag; /* the answer is partial only if the file still has this ETag; "" or NULL: always */
    /* `begin` is called before the first byte of an answer with status 200 or 206, and `bytes` for its bytes. The bytes
     * of other answers are dropped. Both may return false to end the connection. */
    bool (*begin)(void *user, const HttpReply *reply);
    bool (*bytes)(void *user, const void *bytes, size_t n);
    void *user;
} HttpRequest;

/* only_https: redirects to plain HTTP are refused. token: is sent only to the requested host, not to those that it
 * redirects to; NULL: none. */
int http_open(Http **out, bool only_https, const char *token, fr_error *err);
void http_close(Http *h); /* NULL is fine */
/* Makes one attempt. Fails only if memory ran out; otherwise *reply tells what happened. */
int http_get(Http *h, const HttpRequest *request, HttpReply *reply, fr_error *err);
/* Returns whether the same request may succeed a little later. */
bool http_may_retry(const HttpReply *reply);

/* ---- the hub (hub.c), or a server with its API -------------------------------------------------------- */

typedef struct Hub {
    const char *endpoint; /* $HF_ENDPOINT, or https://huggingface.co; without a slash at its end */
    bool has_token;       /* $HF_TOKEN is set */
    Http *http;
} Hub;

typedef struct HubFile {
    const char *path; /* model_path_is_safe */
    int64_t bytes;
    const char *hash; /* file_hash_is_valid */
} HubFile;

/* The GGUF files of a repository at one commit. */
typedef struct HubRepo {
    char revision[41];
    HubFile *files;
    int n_files;
    void *json; /* owns the texts */
} HubRepo;

/* Reads HF_ENDPOINT and HF_TOKEN. */
int hub_open(Hub *hub, fr_error *err);
void hub_close(Hub *hub);

/* Lists the files of a repository, OWNER/NAME. */
int hub_list(Hub *hub, const char *repo, HubRepo *out, fr_error *err);
void hub_free(HubRepo *repo);
/* Appends the address of a file. False: memory ran out. */
bool hub_file_url(const Hub *hub, const char *repo, const char *revision, const char *path, Buf *out);

/* Sets the error for an unusable answer. `what` is the repository or a file of it. */
int hub_refuse(const Hub *hub, const char *repo, const char *what, const HttpReply *reply, fr_error *err);

/* Waits before the next attempt, after `n_failed` failures in a row, and tells the user why. False: there were too many
 * failures. */
bool hub_wait(const HttpReply *reply, int n_failed);

/* ---- one file (fetch.c) ------------------------------------------------------------------------------- */

typedef struct Fetch {
    Hub *hub;
    const char *repo, *revision;
    const char *folder; /* the repository's folder in the cache, which exists */
} Fetch;

/* Creates a folder and its missing parent folders. */
int fetch_make_folder(const char *path, fr_error *err);
/* Fetches a file, unless it is already there with the same content (*was_there). After a failure, the bytes that have
 * arrived stay for the next attempt, and an earlier file of that name stays as it is. */
int fetch_file(const Fetch *f, const HubFile *file, bool *was_there, fr_error *err);

/* Returns whether the text can be the hash of a file: 40 (git's SHA-1) or 64 (SHA-256) lower-case hexadecimal
 * digits. */
bool file_hash_is_valid(const char *text);

#endif
