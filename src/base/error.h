/* error.h - how every function that can fail reports why. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "forerun.h"

/* Writes the sentence into err (may be NULL) and returns code, so that a caller can write
 *     return error_set(err, FR_ERR_FORMAT, "%s: ...", path);
 */
__attribute__((format(printf, 3, 4))) fr_code error_set(fr_error *err, fr_code code, const char *fmt, ...);

/* The usual sentence for a refused allocation of `bytes` bytes for `what`. */
fr_code error_memory(fr_error *err, const char *what, size_t bytes);

/* An invariant that no input can break. Where it is broken, prints the place and aborts, also in release builds. */
#define fr_assert(cond) ((cond) ? (void)0 : error_assert_failed(#cond, __FILE__, __LINE__))
__attribute__((noreturn)) void error_assert_failed(const char *cond, const char *file, int line);

#ifdef __clang_analyzer__ /* it does not see that neither returns FR_OK */
#define error_set(err, ...) (error_set(err, __VA_ARGS__), FR_ERR_INTERNAL)
#define error_memory(...) (error_memory(__VA_ARGS__), FR_ERR_MEMORY)
#endif

#endif
