/* api_check.c - the checks of what a caller passes to the functions of forerun.h.
 *
 * A pointer that must be given and is NULL, or a negative count, is a mistake in the calling program. It gets an error
 * with a sentence and not a crash, because the library may be part of a program that has other work to do. Proof:
 * tests/engine/test_misuse.c. */
#include "engine/api_check.h"

int check_given(const void *argument, const char *function, const char *name, fr_error *err) {
    if (argument) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%s: %s is NULL, but must be given", function, name);
}

int check_array(const void *array, int64_t n, const char *function, const char *name, fr_error *err) {
    if (n < 0)
        return error_set(err, FR_ERR_ARGUMENT, "%s: n_%s is %lld, but cannot be negative", function, name,
                         (long long)n);
    if (array || n == 0) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "%s: %s is NULL, but should have %lld items", function, name, (long long)n);
}

int check_strings(const char *const *strings, int64_t n, const char *function, const char *name, fr_error *err) {
    int status = check_array(strings, n, function, name, err);
    for (int64_t i = 0; i < n && !status; i++)
        if (!strings[i])
            status = error_set(err, FR_ERR_ARGUMENT, "%s: %s[%lld] is NULL, but must be a string", function, name,
                               (long long)i);
    return status;
}
