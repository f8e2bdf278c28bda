/* error.c - fills fr_error; and what a failed assertion prints. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#undef error_set /* for the analyzer: error.h */
#undef error_memory

fr_code error_set(fr_error *err, fr_code code, const char *fmt, ...) {
    if (err) {
        err->code = code;
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
    }
    return code;
}

fr_code error_memory(fr_error *err, const char *what, size_t bytes) {
    return error_set(err, FR_ERR_MEMORY, "out of memory: cannot allocate %zu bytes for %s", bytes, what);
}

void error_assert_failed(const char *cond, const char *file, int line) {
    fprintf(stderr, "forerun: bug: %s:%d: %s does not hold\n", file, line, cond);
    abort();
}
