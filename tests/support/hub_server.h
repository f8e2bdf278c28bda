/* hub_server.h - a server that answers as the Hugging Face hub does, on a port of this machine, and misbehaves by the
 * name of the repository. */
#ifndef TESTS_HUB_SERVER_H
#define TESTS_HUB_SERVER_H

#include <stdbool.h>
#include <stddef.h>

/* One file of a repository test/NAME. The list announces the values of the content, unless they are set here. */
typedef struct HubServerFile {
    const char *repo, *path; /* NAME; path in the repository */
    const char *content;     /* a file on this machine */
    const char *wrong_hash;  /* announced instead of the SHA-256; NULL: the true one is announced */
    long wrong_size;         /* added to the size that is announced */
    bool is_small;           /* announced without LFS, with git's id */
} HubServerFile;

/* Starts the server in a process of its own. files: [n_files], borrowed. The file `log` gets a line for each request:
 * "PATH range=... if-range=... auth=...". A repository's name determines how it answers downloads:
 *
 *   cut           the first answer breaks off after a third of the file
 *   norange       the same, and ranges are not understood
 *   changed       the same, and the ETag differs afterwards
 *   badrange      the same, and the first range that is answered is not the requested one
 *   moved         by a redirect to another host name
 *   loop, scheme  by redirects without end; to a file of this machine
 *   flaky         500 twice, then the file
 *   down          503 and "Retry-After: 100000"
 *   long          one byte more than was announced in the list
 *
 * and with the list: private 401, gated 403, nothing 404, notjson, noform, nosha. */
void hub_server_start(const HubServerFile *files, int n_files, const char *log);
int hub_server_port(void);
void hub_server_stop(void);

/* Writes the SHA-256 of a file, in digits. */
void hub_server_sha256(const char *path, char text[65]);

#endif
