/* api_check.c - the checks of what a caller passes to the functions of forerun.h.
 *
 * A pointer that must be given and is NULL, or a negative count, is a mistake in the calling program. It gets an error
 * with a sentence and not a crash, because the library may be part of a program that has other work to do. Proof:
 * tests/engine/test_misuse.c. */
#include "engine/api_check.h"

#include <string.h>

/* More than any version of any struct has. */
enum { STRUCT_MAX_BYTES = 1 << 16 };

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

static size_t struct_size_of(const void *given) {
    size_t n;
    memcpy(&n, given, sizeof n);
    return n;
}

int read_options(void *own, size_t own_bytes, const void *given, const char *function, const char *type,
                 fr_error *err) {
    if (given) {
        size_t n = struct_size_of(given);
        if (n < sizeof n || n > STRUCT_MAX_BYTES)
            return error_set(err, FR_ERR_ARGUMENT, "%s: struct_size is %zu; set it to sizeof(%s)", function, n, type);
        for (size_t i = own_bytes; i < n; i++)
            if (((const char *)given)[i])
                return error_set(err, FR_ERR_UNSUPPORTED,
                                 "%s: %s has an option that version " FORERUN_VERSION
                                 " of the library does not know; install a newer libforerun, or leave the option 0",
                                 function, type);
        memcpy(own, given, n < own_bytes ? n : own_bytes);
    }
    memcpy(own, &own_bytes, sizeof own_bytes);
    return FR_OK;
}

int fill_result(void *out, const void *own, size_t own_bytes) {
    size_t n = out ? struct_size_of(out) : 0, first = sizeof n;
    if (n < first || n > STRUCT_MAX_BYTES) return FR_ERR_ARGUMENT;
    size_t n_copied = (n < own_bytes ? n : own_bytes) - first;
    memcpy((char *)out + first, (const char *)own + first, n_copied);
    memset((char *)out + first + n_copied, 0, n - first - n_copied);
    return FR_OK;
}
