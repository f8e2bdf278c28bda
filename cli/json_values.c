/* json_values.c - numbers and texts that JSON cannot hold become null, so that no key is lost without a word. */
#include "cli/json_values.h"

#include <math.h>
#include <stdio.h>

json_t *json_real_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *json_string_or_null(const char *text) {
    json_t *j = json_string(text);
    return j ? j : json_null();
}

int json_print(json_t *value, size_t flags, fr_error *err) {
    int failed = !value || json_dumpf(value, stdout, flags) || putchar('\n') == EOF;
    json_decref(value);
    return failed ? error_set(err, FR_ERR_IO, "the JSON cannot be written to standard output") : FR_OK;
}
