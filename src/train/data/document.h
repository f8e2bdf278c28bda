/* document.h - a record as tokens, and which of them a model should learn to say. */
#ifndef DATA_DOCUMENT_H
#define DATA_DOCUMENT_H

#include "text/tokenizer.h"
#include "train/data/record.h"

typedef struct Document {
    int64_t n;       /* 0: the record holds no text */
    int32_t *tokens; /* [n] */
    uint8_t *loss_mask; /* [n] 1: its prediction from the tokens before it counts; never the first one's */
} Document;

typedef struct DocumentForm {
    const Tokenizer *tokenizer;
    ChatFamily family;    /* how conversations are written; not CHAT_NONE */
    bool pairs_are_chats; /* prompt and response are a user's and the assistant's messages; else raw text */
} DocumentForm;

/* BOS where the vocabulary's file asks for it, EOS at the end unless an end-of-turn token stands there. All of a text
 * counts, of a pair the response, of a conversation what the assistant says, each with the token that ends it
 * unless the answer was cut off. Refuses,
 * with a sentence without its subject, what has no answer. */
int document_make(Document *out, const DocumentForm *form, const Record *record, fr_error *err);
void document_free(Document *d);

#endif
