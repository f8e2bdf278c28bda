/* json_memory.h - jansson's allocator in the program, and JSON as output of commands. */
#ifndef CLI_JSON_MEMORY_H
#define CLI_JSON_MEMORY_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* From now on jansson never sees an allocation fail: instead, the process prints an error and ends with the status
 * CLI_FAILED. Call it at the start of main, before anything uses jansson. */
void json_memory_install(void);

/* Calls work(user). Meanwhile, all memory that jansson allocates in this thread comes from a region of at most
 * max_bytes. The region is released when the function returns, so `work` must not keep JSON or pass any of it to
 * free(). False: the region was too small. In that case a longjmp left `work` at the failed allocation, so its other
 * memory must be reachable from `user`. Calls cannot be nested. */
bool json_memory_limit(size_t max_bytes, void (*work)(void *user), void *user);

/* Writes a JSON file. A file at `path` is replaced only when the new one is complete. `json` NULL: it could not be
 * built, which is an error. */
int json_file_write(const json_t *json, const char *path, size_t flags, fr_error *err);

/* Returns a number, or null for NaN and infinity, which JSON does not have. (jansson turns them into a NULL pointer,
 * which makes json_pack fail and json_object_set_new leave out the key.) */
json_t *json_real_or_null(double x);

/* Returns a string, or null for a text that is not UTF-8, such as some file names. */
json_t *json_string_or_null(const char *text);

/* Prints the value and a newline on standard output, and releases the value. */
int json_print(json_t *value, size_t flags, fr_error *err);

#endif
