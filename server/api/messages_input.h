/* messages_input.h - conversations of the Anthropic Messages API as messages that templates read. */
#ifndef SERVE_MESSAGES_INPUT_H
#define SERVE_MESSAGES_INPUT_H

#include "server/api/chat_messages.h"

/* As the body has them; borrowed. */
typedef struct MessagesInput {
    const json_t *messages, *system, *tools, *tool_choice, *thinking;
} MessagesInput;

/* Fills messages, tools and tool_choice of *chat. Within json_memory_limit, which owns what is made. */
int messages_input_convert(const MessagesInput *in, ChatMessages *chat, ApiError *error);

#endif
