/* api_check.h - the checks of what a caller passes to the functions of forerun.h. */
#ifndef ENGINE_API_CHECK_H
#define ENGINE_API_CHECK_H

#include "base/error.h"

/* Each returns FR_OK, or FR_ERR_ARGUMENT with a sentence that names the function and the argument. */
int check_given(const void *argument, const char *function, const char *name, fr_error *err);
/* An array of n items, which may be NULL only where n is 0. */
int check_array(const void *array, int64_t n, const char *function, const char *name, fr_error *err);
/* An array of n strings, none of which may be NULL. */
int check_strings(const char *const *strings, int64_t n, const char *function, const char *name, fr_error *err);

/* Copies the options that a caller passed, which may be NULL, into *own, a zeroed struct of this version that begins
 * with struct_size. `type` is the name of the struct, for the error. */
int read_options(void *own, size_t own_bytes, const void *given, const char *function, const char *type, fr_error *err);
/* Copies a result into a struct of the caller's that begins with struct_size. FR_ERR_ARGUMENT: out is NULL, or its
 * struct_size is not set. */
int fill_result(void *out, const void *own, size_t own_bytes);

#endif
