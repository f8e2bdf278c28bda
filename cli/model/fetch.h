/* fetch.h - one file of a repository into the cache: resumed, checked, and put in its place when it is whole. */
#ifndef CLI_MODEL_FETCH_H
#define CLI_MODEL_FETCH_H

#include "base/error.h"
#include "cli/model/hub.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Fetch {
    Hub *hub;
    const char *repo, *revision;
    const char *folder; /* of the repository in the cache; it exists */
} Fetch;

/* Creates a folder with those above it. */
int fetch_make_folder(const char *path, fr_error *err);
/* Fetches the file unless it is there already, with the same content. On failure what has arrived stays, for the next
 * time, and an earlier file of that name stays as it is. *was_there: nothing was fetched. */
int fetch_file(const Fetch *f, const HubFile *file, bool *was_there, fr_error *err);

/* The hashes by which a hub names the contents of files. */

enum { FILE_HASH_TEXT = 65 }; /* a SHA-256 in hexadecimal digits, and '\0' */

typedef struct FileHash FileHash;

/* Whether it is such a hash: 40 or 64 lower-case hexadecimal digits. */
bool file_hash_is_valid(const char *text);

#endif
