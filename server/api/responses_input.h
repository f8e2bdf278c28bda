/* responses_input.h - items of the Responses API as messages that templates read. */
#ifndef SERVE_RESPONSES_INPUT_H
#define SERVE_RESPONSES_INPUT_H

#include "server/api/chat_messages.h"

/* As the body has them; borrowed. */
typedef struct ResponsesInput {
    const json_t *input, *tools, *reasoning;
    const char *instructions;
} ResponsesInput;

/* Fills messages, tools and reasoning_effort of *chat. Within json_memory_limit, which owns what is made. */
int responses_input_convert(const ResponsesInput *in, ChatMessages *chat, ApiError *error);

#endif
