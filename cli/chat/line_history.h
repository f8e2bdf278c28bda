/* line_history.h - the file that keeps the lines typed in `forerun chat` for later sessions. */
#ifndef CHAT_LINE_HISTORY_H
#define CHAT_LINE_HISTORY_H

#include <stddef.h>

enum { LINE_HISTORY_MAX = 1000 }; /* lines that are offered; the file may hold twice as many */

/* $XDG_STATE_HOME/forerun/chat_history, else ~/.local/state/forerun/chat_history; its folder is created. NULL: there is no
 * such place, and no line is kept. The string lives as long as the program. */
const char *line_history_path(void);

/* Calls `add` for the last lines of the file, oldest first; nothing where it cannot be read. */
void line_history_read(const char *path, void (*add)(void *user, const char *line), void *user);

/* Appends a line to the file, which its owner alone can read. Where that is not possible nothing happens: a conversation
 * does not depend on it. */
void line_history_append(const char *path, const char *line);

#endif
