/* replace_file.h - replaces a file in one moment: the new content is written to a temporary file beside it, which is
 * renamed. */
#ifndef BASE_REPLACE_FILE_H
#define BASE_REPLACE_FILE_H

#include "base/error.h"

#include <stdio.h>

typedef struct ReplaceFile {
    const char *path; /* borrowed until the end */
    char *temporary;
    FILE *file; /* to write to */
} ReplaceFile;

/* Refuses a path at which there is a device or a folder, which would be lost. After a failure there is nothing to
 * end. */
int replace_file_begin(ReplaceFile *r, const char *path, fr_error *err);
/* status: the result of writing. FR_OK: flushes, syncs and renames the file; otherwise removes it. Returns the status,
 * or the code of what goes wrong now. */
int replace_file_end(ReplaceFile *r, int status, fr_error *err);

#endif
