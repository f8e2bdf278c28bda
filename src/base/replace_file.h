/* replace_file.h - a file is written whole or stays as it was: under another name beside it, then put in its place. */
#ifndef BASE_REPLACE_FILE_H
#define BASE_REPLACE_FILE_H

#include "base/error.h"

#include <stdio.h>

typedef struct ReplaceFile {
    const char *path; /* borrowed until the end */
    char *temporary;
    FILE *file; /* to write to */
} ReplaceFile;

/* Refuses a path where something stands that is no regular file: a device or a folder would be lost. After a failure
 * there is nothing to end. */
int replace_file_begin(ReplaceFile *r, const char *path, fr_error *err);
/* status: how the writing went. FR_OK: flushes, syncs and puts the file in place; else forgets it. Returns the status, or
 * what now went wrong. */
int replace_file_end(ReplaceFile *r, int status, fr_error *err);

#endif
