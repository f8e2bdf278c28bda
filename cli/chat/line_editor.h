/* line_editor.h - reads the user's lines, with libedit if they come from a terminal, and joins them into messages. */
#ifndef CLI_CHAT_LINE_EDITOR_H
#define CLI_CHAT_LINE_EDITOR_H

#include "base/mem.h"
#include "forerun.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct LineEditor LineEditor;

typedef enum LineResult { LINE_READ, LINE_INTERRUPTED, LINE_END, LINE_FAILED } LineResult;

/* is_terminal: standard input and output are terminals; then Ctrl-C ends the line that is being typed. history: the
 * path of a file of earlier lines, borrowed; NULL: none. */
int line_editor_open(LineEditor **out, bool is_terminal, const char *history, fr_error *err);
void line_editor_close(LineEditor *e); /* NULL is fine */

/* Reads the next line, [*n] and a '\0' without the line end, valid until the next call. The prompt is shown only in a
 * terminal. LINE_FAILED: the input cannot be read, or memory ran out. */
LineResult line_editor_read(LineEditor *e, const char *prompt, const char **line, size_t *n);

/* ---- the file of lines that were typed in earlier sessions ------------------------------------------------ */

enum { LINE_HISTORY_MAX = 1000 }; /* lines that are loaded; the file may hold twice as many */

/* Returns the path $XDG_STATE_HOME/forerun/chat_history, else ~/.local/state/forerun/chat_history; its folder is
 * created. NULL: there is no such place, and lines are not stored. The string lives as long as the program. */
const char *line_history_path(void);

/* Calls `add` for the last lines of the file, oldest first. Does nothing if the file cannot be read. */
void line_history_read(const char *path, void (*add)(void *user, const char *line), void *user);

/* Appends a line to the file, which only its owner can read. A failure is ignored, because a conversation does not
 * depend on it. */
void line_history_append(const char *path, const char *line);

/* ---- Ctrl-C ------------------------------------------------------------------------------------------- */

/* Returns whether Ctrl-C was pressed since the last call of terminal_signals_forget_interrupt. Always false without a
 * terminal. */
bool terminal_signals_interrupted(void);
void terminal_signals_forget_interrupt(void);

/* ---- messages, which may have several lines: between """ and """, or after lines that end in a backslash ---- */

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

/* Adds a line without its end. After a message, a command or a failure, the next line begins a new message.
 * Zero-initialise a ChatInput except for text.max_bytes. */
ChatInputState chat_input_add(ChatInput *in, const char *line, size_t n);
/* Ends the input: an unfinished message becomes a message, unless it is blank. */
ChatInputState chat_input_end(ChatInput *in);
void chat_input_drop(ChatInput *in);

#endif
