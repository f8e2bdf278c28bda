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

#endif
