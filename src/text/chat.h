/* chat.h - chat templates: the common families, recognised from the template string in the file. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "base/error.h"
#include "base/mem.h"
#include "format/gguf.h"

typedef enum ChatFamily {
    CHAT_NONE, /* no template in the file, or one that is not recognised */
    CHAT_LLAMA2,
    CHAT_LLAMA3,
    CHAT_VICUNA,
    CHAT_CHATML,
    CHAT_MISTRAL,
    CHAT_ZEPHYR,
    CHAT_GEMMA,
    CHAT_PHI3,
    CHAT_PLAIN, /* forerun's own small models: "USER: ...\nASSISTANT: ..." */
    CHAT_FAMILY_COUNT,
} ChatFamily;

typedef struct ChatMessage {
    const char *role;    /* "system", "user" or "assistant" */
    const char *content; /* UTF-8 */
} ChatMessage;

const char *chat_family_name(ChatFamily family);
ChatFamily chat_family_from_name(const char *name); /* CHAT_NONE when unknown */
/* Looks at tokenizer.chat_template of the file. */
ChatFamily chat_family_detect(const char *template_text, size_t n);
ChatFamily chat_family_of(const Gguf *g);

/* The prompt text of a conversation, ending where the assistant begins to speak. Special tokens stand in
 * it as text (encode it with TOKENIZE_SPECIAL); BOS is not written. Refuses unknown roles and, where the
 * family cannot hold them, orders of messages. */
int chat_format(ChatFamily family, const ChatMessage *messages, int n_messages, Buf *out, fr_error *err);

typedef struct ChatSpan {
    size_t begin, end; /* bytes of a text */
    int i_message;     /* who speaks there */
} ChatSpan;

/* The text of a conversation that is over, and where in it the assistant speaks: answers[0 .. *n_answers), with room
 * for n_messages, each from where chat_format would have ended to behind the mark that ends the turn. The text
 * before an answer is what the model was asked. */
int chat_format_answers(ChatFamily family, const ChatMessage *messages, int n_messages, Buf *out,
                        ChatSpan *answers, int *n_answers, fr_error *err);

#endif
