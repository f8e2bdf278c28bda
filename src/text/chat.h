/* chat.h - chat templates: the common families, recognised from the template string in the file. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "base/error.h"
#include "base/mem.h"
#include "gguf/gguf.h"
#include "text/template/template.h"

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
/* Recognises the family from a template, and from tokenizer.chat_template of a file. */
ChatFamily chat_family_detect(const char *template_text, size_t n);
ChatFamily chat_family_of(const Gguf *g);

/* The prompt of a conversation, which ends where the assistant's answer begins. It contains special tokens as text
 * (encode it with TOKENIZE_SPECIAL), but no BOS. Refuses unknown roles, and orders of messages that the family cannot
 * express. */
int chat_format(ChatFamily family, const ChatMessage *messages, int n_messages, Buf *out, fr_error *err);

/* The same, and the spans of the messages in it: data[0 .. *n_data), with room for n_messages. */
int chat_format_marked(ChatFamily family, const ChatMessage *messages, int n_messages, Buf *out, TemplateSpan *data,
                       size_t *n_data, fr_error *err);

typedef struct ChatSpan {
    size_t begin, end; /* bytes of a text */
    int i_message;     /* the message that is written there */
} ChatSpan;

/* The text of a complete conversation, and the spans of the assistant's answers in it: answers[0 .. *n_answers), with
 * room for n_messages. Each begins where the prompt of chat_format would have ended, and ends behind the mark that ends
 * the turn, so the text before an answer is its prompt. */
int chat_format_answers(ChatFamily family, const ChatMessage *messages, int n_messages, Buf *out, ChatSpan *answers,
                        int *n_answers, fr_error *err);

#endif
