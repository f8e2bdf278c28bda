/* document.h - a record as tokens, and which of them are in the loss. */
#ifndef DATA_DOCUMENT_H
#define DATA_DOCUMENT_H

#include "text/tokenizer.h"
#include "train/data/record.h"

typedef struct Document {
    int64_t n;       /* 0: the record holds no text */
    int32_t *tokens; /* [n] */
    uint8_t *
        loss_mask; /* [n] 1: predicting this token from those before it is in the loss; the first token's is always 0 */
} Document;

typedef struct DocumentForm {
    const Tokenizer *tokenizer;
    ChatFamily family;    /* the chat format of conversations; not CHAT_NONE */
    bool pairs_are_chats; /* prompt and response are a user's and the assistant's messages; else raw text */
    int32_t n_vocab;      /* the ids in RECORD_TOKENS are below it */
} DocumentForm;

/* BOS is added where the vocabulary's file asks for it, and EOS at the end unless an end-of-turn token stands there. In
 * the loss are: of a text all tokens, of a pair the response, of a conversation the assistant's messages, each with the
 * token that ends it unless the answer was cut off; of a generation the tokens after the prompt. A record without an answer is refused; the error is a sentence
 * without its subject, for line_reader_refuse. */
int document_make(Document *out, const DocumentForm *form, const Record *record, fr_error *err);
void document_free(Document *d);

#endif
