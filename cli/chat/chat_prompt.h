/* chat_prompt.h - the tokens of a conversation, which begin with those that the engine has read already. */
#ifndef CHAT_CHAT_PROMPT_H
#define CHAT_CHAT_PROMPT_H

#include "cli/chat/chat_turns.h"
#include "cli/run/generate.h"

/* The prompt for an answer to the last question, malloc'ed. `wants_plain` is set where the model has no chat template that
 * can be run, so that the format `plain` is used instead. */
int chat_prompt(const fr_model *model, const GenerateArgs *args, const ChatTurns *turns, bool *wants_plain,
                int32_t **tokens, int64_t *n_tokens, fr_error *err);

#endif
