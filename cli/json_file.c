/* json_file.c - JSON as an output file of a command: the old file stays until the new one is complete. */
#include "cli/json_file.h"

#include "base/files.h"

#include <stdbool.h>

int json_file_write(const json_t *json, const char *path, size_t flags, fr_error *err) {
    if (!json)
        return error_set(err, FR_ERR_MEMORY, "%.200s: cannot be written: out of memory, or a text is not UTF-8", path);
    ReplaceFile out;
    int status = replace_file_begin(&out, path, err);
    if (status) return status;
    bool is_printed = json_dumpf(json, out.file, flags) == 0;
    if (!is_printed && !ferror(out.file)) status = error_memory(err, "JSON", 1);
    return replace_file_end(&out, status, err); /* refuses what could not be written */
}
