/* chat_input.h - messages of several lines: between """ and """, or where a line ends with a backslash. */
#ifndef CHAT_CHAT_INPUT_H
#define CHAT_CHAT_INPUT_H

#include "base/mem.h"

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
