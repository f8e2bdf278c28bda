/* safe_text.h - writes text of unknown origin, such as names from files and generated text, to a terminal.
 *
 * A terminal obeys escape sequences, which can retitle it, overwrite its contents, or make it send input. So characters
 * that control the terminal, change the direction of writing or are invisible, and bytes that are not UTF-8, are
 * escaped as \n and \xNN. For the same reason, JSON with strings from files is written to a terminal as ASCII
 * (JSON_ENSURE_ASCII). */
#ifndef APP_SAFE_TEXT_H
#define APP_SAFE_TEXT_H

#include "base/mem.h"

#include <stddef.h>
#include <stdio.h>

/* Writes a name on one line; a name of more than max bytes is cut there and ends in "... (N bytes)". */
void safe_text_write(FILE *out, const char *s, size_t n, size_t max);
/* Appends a text. Line ends, tabs, and invisible characters such as those that join emoji stay. Other control
 * characters, and characters that change the direction of writing, are escaped. False: memory ran out. */
bool safe_text_append_lines(Buf *out, const char *s, size_t n);

/* Room for one short name. safe_text() returns t->text, so that a call can be an argument of printf. */
typedef struct SafeText {
    char text[128];
} SafeText;
const char *safe_text(SafeText *t, const char *s);

#endif
