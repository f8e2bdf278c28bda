/* chat_template.h - conversations written by the Jinja template of a model, or by a family's format where that fails. */
#ifndef TEXT_CHAT_TEMPLATE_H
#define TEXT_CHAT_TEMPLATE_H

#include "text/chat.h"
#include "text/tokenizer.h"

typedef struct ChatTemplate {
    Template *compiled; /* NULL: none, or `why` it could not be compiled */
    ChatFamily family;  /* whose format its text looks like */
    bool reasons;       /* its text has a mark of <think>...</think>: answers may begin with reasoning */
    char why[256];
} ChatTemplate;

/* The template that is the text; never fails but for memory: what cannot be compiled is kept with its reason. */
int chat_template_open(ChatTemplate *out, const char *text, size_t n, fr_error *err);
/* That of a key of a file; all fields are 0 where it has none. */
int chat_template_open_gguf(ChatTemplate *out, const Gguf *g, const char *key, fr_error *err);
void chat_template_close(ChatTemplate *t);

/* A name for the family of a template, for people: also of families that have no built-in format ("qwen3", "granite"). "jinja":
 * of none that is known. Static. */
const char *chat_template_name(const char *text, size_t n);

typedef struct Conversation {
    const ChatMessage *messages; /* [n_messages] */
    int n_messages;
    const char *messages_json;   /* NULL, or the messages as a JSON array, in place of the above */
    const char *tools_json;      /* NULL, or a JSON array */
    const char *variables_json;  /* NULL, or a JSON object: further variables of the template */
    bool adds_generation_prompt; /* the text ends where the assistant's answer begins */
} Conversation;

/* The text of a conversation with the spans that are data, without a BOS where the tokenizer adds one. Where the template does
 * not run, the family's format takes its place, and `warning` says why (else it is ""). FR_ERR_UNSUPPORTED: there is
 * neither. FR_ERR_ARGUMENT: the template refuses the messages. */
int chat_template_apply(const ChatTemplate *t, const Tokenizer *tokenizer, const Conversation *c, TemplateOutput *out,
                        char warning[256], fr_error *err);
/* The same in the format of a family. */
int chat_family_apply(ChatFamily family, const Conversation *c, TemplateOutput *out, fr_error *err);

#endif
