/* chat_messages.h - the prompt of a conversation, as /v1/chat/completions and /apply-template describe it. */
#ifndef SERVER_API_CHAT_MESSAGES_H
#define SERVER_API_CHAT_MESSAGES_H

#include "server/api/plan.h"

/* Borrowed from the body. */
typedef struct ChatMessages {
    const json_t *messages, *variables, *tools, *tool_choice, *modalities;
    const char *reasoning_effort; /* a variable of some templates */
    const json_t *strict_tools;   /* by tool, whether it is strict; NULL: its "function.strict" says so */
    bool has_one_call;            /* at most one call an answer */
} ChatMessages;

/* Within json_memory_limit. The caller frees *out by fr_chat_result_free. */
int chat_messages_apply(const ServedModel *m, const ChatMessages *f, fr_chat_result *out, ApiError *error);
/* The texts of parts, each of which has one, as one JSON string. Within json_memory_limit. */
json_t *chat_messages_join(const json_t *parts);
/* Whether the model is told of tools: there are some, and tool_choice is not "none". */
bool chat_messages_has_tools(const ChatMessages *f);
/* Whether the answer must be a call, of the function *name or, where that is NULL, of any. */
bool chat_messages_forces_call(const ChatMessages *f, const char **name);

/* Conversations of the Anthropic Messages API as messages that templates read. */

/* As the body has them; borrowed. */
typedef struct MessagesInput {
    const json_t *messages, *system, *tools, *tool_choice, *thinking;
} MessagesInput;

/* Fills messages, tools and tool_choice of *chat. Within json_memory_limit, which owns what is made. */
int messages_input_convert(const MessagesInput *in, ChatMessages *chat, ApiError *error);

/* Items of the Responses API as messages that templates read. */

/* As the body has them; borrowed. */
typedef struct ResponsesInput {
    const json_t *input, *tools, *reasoning;
    const char *instructions;
} ResponsesInput;

/* Fills messages, tools and reasoning_effort of *chat. Within json_memory_limit, which owns what is made. */
int responses_input_convert(const ResponsesInput *in, ChatMessages *chat, ApiError *error);

#endif
