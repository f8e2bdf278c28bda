/* json_memory.h - the allocator of jansson in the program. */
#ifndef CLI_JSON_MEMORY_H
#define CLI_JSON_MEMORY_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* From now on jansson never sees an allocation fail: the process ends with a sentence and the status CLI_FAILED. Call it
 * at the start of main, before anything uses jansson. */
void json_memory_install(void);

/* Calls work(user). What jansson allocates meanwhile in this thread comes from a region of at most max_bytes, which is
 * released as a whole when the function returns, so `work` keeps no JSON and passes nothing of it to free(). False: that
 * memory did not suffice. `work` was then left at the allocation that failed (longjmp), and what it had allocated
 * otherwise must be reachable from `user`. Calls are not nested. */
bool json_memory_limit(size_t max_bytes, void (*work)(void *user), void *user);

/* JSON as an output file of a command. */

/* Replaces the file at `path` when the new content is complete (base/replace_file.h). `json` NULL: it could not be
 * built, which is refused. */
int json_file_write(const json_t *json, const char *path, size_t flags, fr_error *err);

/* Values that JSON cannot hold, and printing, for all commands that write JSON. */

/* JSON has no NaN and no infinity, and jansson makes NULL of them, with which json_pack returns NULL for the whole
 * object and json_object_set_new leaves out the key. Here they become null. */
json_t *json_real_or_null(double x);

/* File names need not be UTF-8, but JSON is: a text that is not becomes null. */
json_t *json_string_or_null(const char *text);

/* Prints the value and a newline on standard output, and releases it. */
int json_print(json_t *value, size_t flags, fr_error *err);

#endif
