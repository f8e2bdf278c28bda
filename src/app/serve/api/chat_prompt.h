/* chat_prompt.h - the prompt of a conversation, as /v1/chat/completions and /apply-template describe it. */
#ifndef SERVE_CHAT_PROMPT_H
#define SERVE_CHAT_PROMPT_H

#include "app/serve/api/plan.h"

/* Borrowed from the body. */
typedef struct ChatPromptFields {
    const json_t *messages, *variables, *tools, *tool_choice, *response_format, *modalities;
    const char *reasoning_effort; /* a variable of some templates */
} ChatPromptFields;

/* Within json_memory_limit. The caller frees *out by fr_chat_result_free. */
int chat_prompt_apply(const ServedModel *m, const ChatPromptFields *f, fr_chat_result *out, ApiError *error);
/* Adds the tokens of the conversation to the plan. */
int chat_prompt_add(Plan *plan, const ChatPromptFields *f, ApiError *error);

#endif
