/* safe_text.h - writes text of unknown origin to a terminal: names from files, and what a model generates.
 *
 * A terminal obeys escape sequences: they can retitle it, overwrite what stands there, or make it type. Characters that
 * control it, change the direction of writing or are invisible, and bytes that are not UTF-8, are escaped as \n and
 * \xNN. JSON with strings of files is written to a terminal as ASCII for the same reason (JSON_ENSURE_ASCII).
 */
#ifndef APP_SAFE_TEXT_H
#define APP_SAFE_TEXT_H

#include "base/mem.h"

#include <stddef.h>
#include <stdio.h>

/* A name on one line; after max bytes "... (N bytes)". */
void safe_text_write(FILE *out, const char *s, size_t n, size_t max);
/* Appends a text. Its line ends, its tabs and the invisible characters that join emoji stay; controls, and
 * characters that change the direction of writing, are escaped. False: no memory. */
bool safe_text_append_lines(Buf *out, const char *s, size_t n);

/* Room for one short name; safe_text() returns `text`, so that a call can be an argument of printf. */
typedef struct SafeText {
    char text[128];
} SafeText;
const char *safe_text(SafeText *t, const char *s);

#endif
