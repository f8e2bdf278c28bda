/* printable.h - makes strings of unknown origin safe for one line of a message on a terminal. */
#ifndef FORMAT_PRINTABLE_H
#define FORMAT_PRINTABLE_H

#include <stddef.h>

enum { PRINTABLE_MAX = 96 };

/* Room for one string. printable() returns `text`, so that a call can be an argument of error_set. */
typedef struct Printable {
    char text[PRINTABLE_MAX];
} Printable;

/* The n bytes at s with everything but printable ASCII escaped (\n, \xNN, ...), and cut with "..." where it is long. */
const char *printable(Printable *p, const char *s, size_t n);

#endif
