/* files.h - files that are read, files that are mapped into memory, and files that are replaced in one moment. */
#ifndef BASE_FILES_H
#define BASE_FILES_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>

/* ---- input files --------------------------------------------------------------------------------------------- */

/* Only regular files are opened, and without ever waiting. Opening a named pipe waits until somebody opens its other
 * end, and a device may never end, or do something when it is opened. So the kind of file is checked first, and
 * again after it is open. */

/* Opens a regular file for reading: a descriptor in *fd, and what fstat says of it in *st. */
int input_file_open(const char *path, int *fd, struct stat *st, fr_error *err);

/* The same for a text that is read once, as a stream. What the caller's process has open already is allowed too,
 * whatever it is, because nothing has to be opened: /dev/stdin, /dev/fd/N (also from a shell's <(command)) and
 * /proc/self/fd/N; reading begins at the present position of that descriptor. /dev/null is an empty text. Returns
 * NULL on failure. */
FILE *input_text_open(const char *path, fr_error *err);

/* ---- mapped files -------------------------------------------------------------------------------------------- */

/* A mapping shows the file as it is now, not as it was: a file that is overwritten in place changes under its reader,
 * and reading beyond its new end raises SIGBUS, which ends the process. It does no harm if a file is removed, or
 * replaced by renaming another over it: the mapping keeps the old file.
 *
 *   Data that is read once (weights to be packed) is read between mapped_file_open and mapped_file_check, which fails
 *   if the file has changed since. mapped_file_check reads no page, only size and times.
 *   Data that stays mapped (a corpus index, the reference backend's weights) is checked before each use; a change
 *   between the check and the use is not noticed. mapped_file_at tells a program's SIGBUS handler which file an address
 *   belongs to, so that the program can end with a message (cli/signals.c). The library installs no handler itself.
 *
 * Times have the resolution of the system's clock tick, some milliseconds. A second change within the same tick is
 * noticed only if it changes the size. */

typedef struct MappedFile MappedFile;

/* Maps a regular file. An empty file is mapped as 0 bytes at NULL. */
int mapped_file_open(MappedFile **out, const char *path, fr_error *err);
void mapped_file_close(MappedFile *f); /* NULL is fine */
const void *mapped_file_bytes(const MappedFile *f, size_t *n);

/* Gives the pages of [at, at + n) back to the system: they no longer count as memory of the process, and are read
 * from the file again (usually from the system's cache) if they are needed again. This is for callers that copy a
 * file piece by piece. Memory that is in no mapped file, and files beyond the first 64, are left alone. */
void mapped_file_release(const void *at, size_t n);

/* FR_ERR_IO if the file has been written to or cut since it was opened; NULL is never changed. */
int mapped_file_check(const MappedFile *f, fr_error *err);

/* Returns the path, shortened where it is long, of the mapped file that the address lies in; NULL where it lies in none
 * of the first 64. A signal handler may call this function, which takes no lock and no memory. */
const char *mapped_file_at(const void *address);

/* ---- replaced files ------------------------------------------------------------------------------------------ */

/* A file is replaced in one moment: the new content is written to a temporary file beside it, which is then renamed. */

typedef struct ReplaceFile {
    const char *path; /* as the caller wrote it; borrowed until the end */
    FILE *file;       /* for writing; it can be read as well */
    char *target, *temporary;
    int i_open; /* its place in the list of replace_file_abandon_all; -1: none was free */
} ReplaceFile;

/* Returns whether the path could be replaced now: it is a regular file that may be written, or does not exist yet; its
 * folder exists, and a file can be created in it. The check leaves nothing there. */
int replace_file_check(const char *path, fr_error *err);
/* Returns whether two paths name one file, that is, whether device and inode are equal; links are followed. Files that
 * do not exist yet are compared by folder and name. */
bool replace_file_same(const char *a, const char *b);
/* Begins a replacement. Refuses a path at which there is a device or a folder, which would be lost. If the path is a
 * symbolic link, the file it leads to is replaced, and the link stays. After a failure there is nothing to end. */
int replace_file_begin(ReplaceFile *r, const char *path, fr_error *err);
/* Ends a replacement. status is the result of writing. If it is FR_OK, the file is flushed, synced and renamed;
 * otherwise, or if anything could not be written, it is removed, and the old file stays. Returns status, or the code
 * of a failure in this function. */
int replace_file_end(ReplaceFile *r, int status, fr_error *err);

/* Removes the temporary files of all replacements that have not ended. It is for a program that is about to end, and a
 * signal handler may call it, because it calls nothing but unlink. */
void replace_file_abandon_all(void);

#endif
