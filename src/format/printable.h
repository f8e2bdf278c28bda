/* printable.h - strings of unknown origin, made safe for one line of a message or a terminal. */
#ifndef FORMAT_PRINTABLE_H
#define FORMAT_PRINTABLE_H

#include <stddef.h>

enum { PRINTABLE_MAX = 96 };

/* Room for one string; printable() returns `text`, so that it can stand in an argument list. */
typedef struct Printable {
    char text[PRINTABLE_MAX];
} Printable;

/* The n bytes at s with everything but printable ASCII escaped (\n, \xNN, ...), cut with "..." when long. */
const char *printable(Printable *p, const char *s, size_t n);

#endif
