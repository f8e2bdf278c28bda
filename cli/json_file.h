/* json_file.h - JSON as an output file of a command. */
#ifndef APP_JSON_FILE_H
#define APP_JSON_FILE_H

#include "base/error.h"

#include <jansson.h>

/* Replaces the file at `path` when the new content is complete (base/replace_file.h). `json` NULL: it could not be
 * built, which is refused. */
int json_file_write(const json_t *json, const char *path, size_t flags, fr_error *err);

#endif
