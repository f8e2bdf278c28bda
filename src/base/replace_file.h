/* replace_file.h - replaces a file in one moment: the new content is written to a temporary file beside it, which is
 * renamed. */
#ifndef BASE_REPLACE_FILE_H
#define BASE_REPLACE_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct ReplaceFile {
    const char *path; /* as the caller wrote it; borrowed until the end */
    FILE *file;       /* to write to; it can be read as well */
    char *target, *temporary;
    int i_open; /* its place in the list of replace_file_abandon_all; -1: none was free */
} ReplaceFile;

/* Whether the path could be replaced now: it is a regular file that may be written, or there is nothing yet; its folder
 * exists, and a file can be created in it. Nothing stays there. */
int replace_file_check(const char *path, fr_error *err);
/* Whether two paths name one file: device and inode are equal, whatever links lead there. A file that does not exist
 * yet is known by its folder and its name. */
bool replace_file_same(const char *a, const char *b);
/* Refuses a path at which there is a device or a folder, which would be lost. If the path is a symbolic link, the file
 * it leads to is replaced, and the link stays. After a failure there is nothing to end. */
int replace_file_begin(ReplaceFile *r, const char *path, fr_error *err);
/* status: the result of writing. FR_OK: flushes, syncs and renames the file; otherwise, or if anything failed to be
 * written, removes it, and the old file stays. Returns the status, or the code of what goes wrong now. */
int replace_file_end(ReplaceFile *r, int status, fr_error *err);

/* Removes the temporary files of all replacements that have not ended. For a program that is about to end, from a
 * signal handler too: it calls nothing but unlink. */
void replace_file_abandon_all(void);

#endif
