/* error.h - how every function that can fail reports why, and names from files in such reports. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "forerun.h"

#include <stddef.h>

/* Writes the sentence into err (may be NULL) and returns code, so that a caller can write
 *     return error_set(err, FR_ERR_FORMAT, "%s: ...", path);
 */
__attribute__((format(printf, 3, 4))) fr_code error_set(fr_error *err, fr_code code, const char *fmt, ...);

/* Writes the usual sentence for a refused allocation of `bytes` bytes for `what`; returns FR_ERR_MEMORY. */
fr_code error_memory(fr_error *err, const char *what, size_t bytes);

/* An invariant that no input can break. Where it is broken, prints the place and aborts, also in release builds. */
#define fr_assert(cond) ((cond) ? (void)0 : error_assert_failed(#cond, __FILE__, __LINE__))
__attribute__((noreturn)) void error_assert_failed(const char *cond, const char *file, int line);

#ifdef __clang_analyzer__ /* the analyzer does not see that neither function returns FR_OK */
#define error_set(err, ...) (error_set(err, __VA_ARGS__), FR_ERR_INTERNAL)
#define error_memory(...) (error_memory(__VA_ARGS__), FR_ERR_MEMORY)
#endif

/* Strings of unknown origin, made safe for one line of a message on a terminal. */
enum { PRINTABLE_MAX = 96 };

/* Room for one such string. printable() returns `text`, so that a call can be an argument of error_set. */
typedef struct Printable {
    char text[PRINTABLE_MAX];
} Printable;

/* Returns the n bytes at s with everything but printable ASCII escaped (\n, \xNN, ...), shortened with "..." where they
 * are long. */
const char *printable(Printable *p, const char *s, size_t n);

#endif
