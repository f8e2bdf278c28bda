/* input_file.h - opens files that are read: regular ones only, and without ever waiting for somebody to write.
 *
 * Opening a named pipe waits until somebody opens its other end, and a device may never end, or do something when it is
 * opened. So what a path leads to is looked at first, and again after it is open.
 */
#ifndef BASE_INPUT_FILE_H
#define BASE_INPUT_FILE_H

#include "base/error.h"

#include <stdio.h>
#include <sys/stat.h>

/* Opens a regular file for reading: a descriptor in *fd, and what fstat says of it in *st. */
int input_file_open(const char *path, int *fd, struct stat *st, fr_error *err);

/* The same for a text that is read once, as a stream. What the caller's process has open already is allowed too,
 * whatever it is, because nothing has to be opened: /dev/stdin, /dev/fd/N (also of a shell's <(command)) and
 * /proc/self/fd/N; reading begins where that descriptor stands. /dev/null is an empty text. NULL: an error. */
FILE *input_text_open(const char *path, fr_error *err);

#endif
