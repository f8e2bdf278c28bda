/* record.h - the four forms of a line of training data: a text, a prompt with its response, a conversation, the
 * tokens of a generation. */
#ifndef DATA_RECORD_H
#define DATA_RECORD_H

#include "text/chat.h"
#include "train/data/line_reader.h"

#include <jansson.h>

typedef enum RecordKind { RECORD_TEXT, RECORD_PAIR, RECORD_CHAT, RECORD_TOKENS } RecordKind;

/* Strings belong to `object`. */
typedef struct Record {
    json_t *object; /* the whole line */
    RecordKind kind;
    const char *text;      /* RECORD_TEXT */
    const char *prompt;    /* RECORD_PAIR */
    const char *response;  /* RECORD_PAIR; NULL: there is none yet */
    ChatMessage *messages; /* [n_messages] RECORD_CHAT, n_messages >= 1; a missing role is NULL */
    int n_messages;
    const json_t *tokens;       /* RECORD_TOKENS: a list of n_tokens values of any type, which document_make checks */
    int64_t n_tokens, n_prompt; /* 0 <= n_prompt <= n_tokens */
} Record;

/* An object with a list "messages" is a conversation; else, with a string "text", a text; else, with a string "prompt"
 * (and "response"), a pair; else, with a list "tokens", of which the first "prompt_tokens" are a prompt, a generation.
 * On failure err holds a sentence without its subject, for line_reader_refuse. */
int record_parse(Record *out, const char *line, size_t n, fr_error *err);
void record_free(Record *r); /* an empty one is fine */

/* Whether the "finish" of a pair, or of message i, says that the answer was cut off: then its end stays out of the
 * loss. */
bool record_is_cut(const Record *r, int i);

/* Whether an answer is marked "lossy": true, as distill-data marks answers that do not follow their model's own
 * distribution. */
bool record_is_lossy(const Record *r);

/* Whether the record names this target, by its fingerprint, as `forerun run --record` writes it. */
bool record_is_of_target(const Record *r, uint64_t fingerprint);

/* Parses the next line that is not blank. 1: *out is the record; 0: end of file; negative: an error that names file and
 * line. */
int record_next(LineReader *reader, Record *out, fr_error *err);
/* The same for what is to be answered: a list "turns" of strings, as in Spec-Bench, becomes a conversation of the user's
 * turns with empty answers between them. */
int record_next_question(LineReader *reader, Record *out, fr_error *err);

#endif
