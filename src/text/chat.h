/* chat.h - conversations as text: by the Jinja template of a model, by a named template, or by the built-in format
 * of a family. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "base/error.h"
#include "base/mem.h"
#include "gguf/gguf.h"
#include "text/template/template.h"
#include "text/tokenizer.h"

#include <stddef.h>

typedef enum ChatFamily {
    CHAT_NONE, /* the file has no template, or one that is not recognised */
    CHAT_LLAMA2,
    CHAT_LLAMA3,
    CHAT_VICUNA,
    CHAT_CHATML,
    CHAT_MISTRAL,
    CHAT_ZEPHYR,
    CHAT_GEMMA,
    CHAT_PHI3,
    CHAT_PLAIN, /* the small models of this project: "USER: ...\nASSISTANT: ..." */
    CHAT_FAMILY_COUNT,
} ChatFamily;

typedef struct ChatMessage {
    const char *role;    /* "system", "user" or "assistant" */
    const char *content; /* UTF-8 */
} ChatMessage;

const char *chat_family_name(ChatFamily family);
ChatFamily chat_family_from_name(const char *name); /* CHAT_NONE for an unknown name */
/* Recognises the family of a template, or of tokenizer.chat_template in a file. */
ChatFamily chat_family_detect(const char *template_text, size_t n);
ChatFamily chat_family_of(const Gguf *g);

/* Writes the prompt of a conversation, which ends where the assistant's answer begins. It contains special tokens as
 * text, so it must be encoded with TOKENIZE_SPECIAL, but no BOS. Unknown roles, and orders of messages that the
 * family cannot express, are refused. data[0 .. *n_data) are the spans of the messages in it, where `data` has room for
 * n_messages; both are NULL if they are not needed. */
int chat_format(ChatFamily family, const ChatMessage *messages, int n_messages, Buf *out, TemplateSpan *data,
                size_t *n_data, fr_error *err);

typedef struct ChatSpan {
    size_t begin, end; /* bytes of a text */
    int i_message;     /* the index of the message */
} ChatSpan;

/* Writes a complete conversation, and sets answers[0 .. *n_answers) to the spans of the assistant's answers.
 * `answers` has room for n_messages. An answer begins where the prompt of chat_format would end, and ends after the
 * mark that ends the turn. So the text before an answer is its prompt. */
int chat_format_answers(ChatFamily family, const ChatMessage *messages, int n_messages, Buf *out, ChatSpan *answers,
                        int *n_answers, fr_error *err);

/* ---- the templates of models ------------------------------------------------------------------------------------- */

typedef struct ChatTemplate {
    Template *compiled; /* NULL: there is none, or it could not be compiled (see why) */
    ChatFamily family;  /* the family that its text resembles */
    bool reasons;       /* its text contains <think> or </think>, so answers may begin with reasoning */
    char why[256];
} ChatTemplate;

/* Compiles a template. It fails only if memory runs out: for a template that cannot be compiled, the reason is kept
 * in `why`. */
int chat_template_open(ChatTemplate *out, const char *text, size_t n, fr_error *err);
/* The same for the value of a key of a file. If the file does not have the key, all fields are 0. */
int chat_template_open_gguf(ChatTemplate *out, const Gguf *g, const char *key, fr_error *err);
void chat_template_close(ChatTemplate *t);

/* Returns a name for the family of a template, to be shown to people. It also knows families that have no built-in
 * format ("qwen3", "granite"); an unknown one is "jinja". The string is static. */
const char *chat_template_name(const char *text, size_t n);

typedef struct Conversation {
    const ChatMessage *messages; /* [n_messages] */
    int n_messages;
    const char *messages_json;   /* NULL, or the messages as a JSON array, instead of `messages` */
    const char *tools_json;      /* NULL, or a JSON array */
    const char *variables_json;  /* NULL, or a JSON object with more variables for the template */
    bool adds_generation_prompt; /* the text shall end where the assistant's answer begins */
} Conversation;

/* Writes a conversation, with the spans that are data. It does not begin with BOS if the tokenizer adds that. If the
 * template fails, the format of its family is used, and `warning` gives the reason; otherwise `warning` is "".
 * FR_ERR_UNSUPPORTED: there is neither a template nor a family. FR_ERR_ARGUMENT: the template refuses the messages. */
int chat_template_apply(const ChatTemplate *t, const Tokenizer *tokenizer, const Conversation *c, TemplateOutput *out,
                        char warning[256], fr_error *err);
/* The same in the built-in format of a family. */
int chat_family_apply(ChatFamily family, const Conversation *c, TemplateOutput *out, fr_error *err);

/* ---- named templates --------------------------------------------------------------------------------------------- */

/* Templates of well-known families ("llama3.1", "qwen3", ...), for models whose file has no template or a broken
 * one. They are the files in src/text/templates, which were written for this project after the documentation of the
 * families, and are linked into the library. */

/* Returns the text of a template, which has *n bytes and no '\0' at its end. NULL: there is no template of that
 * name. */
const char *named_template(const char *name, size_t *n);
/* The names in alphabetical order. The list ends with NULL. */
const char *const *named_templates(void);

#endif
