/* line_editor.h - reads lines of a user: edited with libedit in a terminal, and as they are from anything else. */
#ifndef CHAT_LINE_EDITOR_H
#define CHAT_LINE_EDITOR_H

#include "forerun.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct LineEditor LineEditor;

typedef enum LineResult { LINE_READ, LINE_INTERRUPTED, LINE_END, LINE_FAILED } LineResult;

/* is_terminal: standard input and output are one; Ctrl-C then ends the line that is typed (terminal_signals.h).
 * history: a file (line_history.h), borrowed; NULL: none. */
int line_editor_open(LineEditor **out, bool is_terminal, const char *history, fr_error *err);
void line_editor_close(LineEditor *e); /* NULL is fine */

/* The next line without its end, [*n] and a '\0', valid until the next call. The prompt is shown in a terminal only.
 * LINE_FAILED: the input cannot be read, or memory ran out. */
LineResult line_editor_read(LineEditor *e, const char *prompt, const char **line, size_t *n);

#endif
