/* line_editor.h - reads lines of a user: edited with libedit in a terminal, and as they are from anything else. */
#ifndef CLI_CHAT_LINE_EDITOR_H
#define CLI_CHAT_LINE_EDITOR_H

#include "base/mem.h"
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

/* The file that keeps the lines typed in `forerun chat` for later sessions. */

enum { LINE_HISTORY_MAX = 1000 }; /* lines that are offered; the file may hold twice as many */

/* $XDG_STATE_HOME/forerun/chat_history, else ~/.local/state/forerun/chat_history; its folder is created. NULL: there is no
 * such place, and no line is kept. The string lives as long as the program. */
const char *line_history_path(void);

/* Calls `add` for the last lines of the file, oldest first; nothing where it cannot be read. */
void line_history_read(const char *path, void (*add)(void *user, const char *line), void *user);

/* Appends a line to the file, which its owner alone can read. Where that is not possible nothing happens: a conversation
 * does not depend on it. */
void line_history_append(const char *path, const char *line);

/* Ctrl-C, and changes of the terminal, as facts that the conversation asks for.
 *
 * Before terminal_signals_begin nothing is caught, and none of these facts is ever true. */

/* Whether Ctrl-C was pressed since terminal_signals_forget_interrupt was called last. */
bool terminal_signals_interrupted(void);
void terminal_signals_forget_interrupt(void);

/* Messages of several lines: between """ and """, or where a line ends with a backslash. */

enum { CHAT_INPUT_MAX_BYTES = 16 << 20 };

typedef enum ChatInputState {
    CHAT_INPUT_EMPTY,     /* the next line begins a message */
    CHAT_INPUT_CONTINUED, /* the last line ended with a backslash */
    CHAT_INPUT_QUOTED,    /* after """ */
    CHAT_INPUT_MESSAGE,   /* `text` is a whole message */
    CHAT_INPUT_COMMAND,   /* `text` is a line that begins with '/' */
    CHAT_INPUT_TOO_LONG,  /* more than CHAT_INPUT_MAX_BYTES, or memory ran out: the message is dropped */
} ChatInputState;

typedef struct ChatInput {
    ChatInputState state;
    Buf text;
} ChatInput;

/* Zero-initialise but for text.max_bytes. Adds a line without its end; after a message, a command or a failure the next
 * line begins anew. */
ChatInputState chat_input_add(ChatInput *in, const char *line, size_t n);
/* The end of the input, or of a message that was given up: what there is of it becomes a message, or stays EMPTY. */
ChatInputState chat_input_end(ChatInput *in);
void chat_input_drop(ChatInput *in);

#endif
