/* hub.h - the Hugging Face hub, or a server with its API: what a repository holds, and where its files are. */
#ifndef MODELS_HUB_H
#define MODELS_HUB_H

#include "cli/model/http.h"
#include "base/mem.h"

typedef struct Hub {
    const char *endpoint; /* $HF_ENDPOINT, or https://huggingface.co; without a slash at its end */
    bool has_token;       /* $HF_TOKEN */
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
    void *json; /* what the texts belong to */
} HubRepo;

/* Reads the environment. */
int hub_open(Hub *hub, fr_error *err);
void hub_close(Hub *hub);

/* repo: OWNER/NAME. */
int hub_list(Hub *hub, const char *repo, HubRepo *out, fr_error *err);
void hub_free(HubRepo *repo);
/* Appends the address of a file. False: no memory. */
bool hub_file_url(const Hub *hub, const char *repo, const char *revision, const char *path, Buf *out);

/* The error for an answer that is not what was asked for. `what` is the repository, or a file of it. */
int hub_refuse(const Hub *hub, const char *repo, const char *what, const HttpReply *reply, fr_error *err);

/* Waits before the next attempt, after `n_failed` failures in a row, and tells the user why. False: those were enough. */
bool hub_wait(const HttpReply *reply, int n_failed);

#endif
