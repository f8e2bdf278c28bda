/* chat_prompt.c - the tokens of a conversation.
 *
 * Problem. The engine keeps the keys and values of what it has read and generated, and a prompt that begins with the same
 * tokens takes them over (engine/prefix_cache.c). A conversation is written by the template from its texts, each time
 * anew, and then cut into tokens. But a model need not generate the tokens that the tokenizer would cut the same text
 * into ("un" + "known" instead of "unknown"), above all at a high temperature, nor begin its answer with the space that
 * the template writes there. From the first such token on, nothing could be taken over, in this turn and all later ones.
 *
 * Idea. If the new prompt begins with the text of what the engine holds, white space aside, its first tokens are replaced
 * by those of the engine:
 *
 *     engine    USER : Why ? ASSISTANT : un | known                     (generated)
 *     template  USER : Why ? ASSISTANT : unknown </s> USER : How ? ASSISTANT :
 *     prompt    USER : Why ? ASSISTANT : un | known </s> USER : How ? ASSISTANT :
 *
 * The model then reads what it wrote, and a turn costs its new text alone. Where the text differs (a template that leaves
 * the thoughts of earlier answers out, another system message), the prompt is the template's, and the engine takes over
 * what is equal of it. Proof: tests/cli/test_same_text.c, and tests/cli/test_chat_command.c counts what is computed.
 */
#include "cli/chat/chat_prompt.h"

#include "cli/chat/same_text.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaces the first tokens of the prompt by those that the engine holds, where both are the same text. */
static int splice(const fr_model *model, const ChatTurn *before, int32_t **tokens, int64_t *n_tokens, fr_error *err) {
    int64_t end = same_text_end(model, before->context, before->n_context, *tokens, *n_tokens);
    if (end < 0) return FR_OK;
    int64_t n_rest = *n_tokens - end, n = before->n_context + n_rest;
    int32_t *spliced = malloc((size_t)n * sizeof *spliced);
    if (!spliced) return error_memory(err, "a prompt", (size_t)n * sizeof *spliced);
    memcpy(spliced, before->context, (size_t)before->n_context * sizeof *spliced);
    memcpy(spliced + before->n_context, *tokens + end, (size_t)n_rest * sizeof *spliced);
    free(*tokens);
    *tokens = spliced;
    *n_tokens = n;
    return FR_OK;
}

/* By the template, or in the plain format where the model has none. */
static int apply(const fr_model *model, const GenerateArgs *args, const fr_chat_message *messages, int n_messages,
                 bool *wants_plain, int32_t **tokens, int64_t *n_tokens, fr_error *err) {
    GenerateArgs plain = {.chat_template = "plain"};
    int status = FR_ERR_UNSUPPORTED;
    if (!*wants_plain) status = generate_chat(args, model, messages, n_messages, tokens, n_tokens, err);
    if (status != FR_ERR_UNSUPPORTED || args->chat_template) return status;
    if (!*wants_plain)
        fprintf(stderr, "forerun: warning: %s; the format 'plain' is used, which the model may not know\n",
                err->message);
    *wants_plain = true;
    return generate_chat(&plain, model, messages, n_messages, tokens, n_tokens, err);
}

int chat_prompt(const fr_model *model, const GenerateArgs *args, const ChatTurns *turns, bool *wants_plain,
                int32_t **tokens, int64_t *n_tokens, fr_error *err) {
    fr_chat_message *messages;
    int n_messages, status = chat_turns_messages(turns, false, &messages, &n_messages, err);
    if (status) return status;
    status = apply(model, args, messages, n_messages, wants_plain, tokens, n_tokens, err);
    free(messages);
    if (status || turns->n < 2 || !turns->items[turns->n - 2].context) return status;
    status = splice(model, &turns->items[turns->n - 2], tokens, n_tokens, err);
    if (status) {
        free(*tokens);
        *tokens = NULL;
    }
    return status;
}
