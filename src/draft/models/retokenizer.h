/* retokenizer.h - the text of a sequence in the tokens of a draft model whose vocabulary differs from the target's. */
#ifndef SMALL_RETOKENIZER_H
#define SMALL_RETOKENIZER_H

#include "base/bytes.h"
#include "base/mem.h"
#include "text/tokenizer.h"

enum { RETOKENIZER_MAX_OPEN = 240 }; /* bytes */

typedef struct Retokenizer {
    int32_t *to_draft; /* [n_target] the draft model's token for each of the target's, or -1 */
    int32_t n_target, n_shared;
    bool same_ids;             /* the vocabularies differ only in their length: tokens are copied, texts are not read */
    Tokenizer *target, *draft; /* NULL with same_ids */
    int32_t n_draft;           /* tokens of the draft model */
    int32_t max_open;          /* the most bytes of an open segment */
} Retokenizer;

/* One sequence. */
typedef struct RetokenizedText {
    int32_t *tokens; /* [capacity] the draft model's */
    int32_t n, capacity;
    int32_t n_closed;   /* the first tokens, which no continuation changes */
    bool is_whole;      /* false: the text does not fit, and the tokens are those of its beginning */
    bool is_full;       /* no more text is closed */
    int32_t *ends;      /* [n_ends_max + 1]: n_closed after each number of the target's tokens */
    int32_t n_ends_max; /* the most tokens of the target */
    int32_t n_target;   /* the target's tokens so far */
    int32_t n_open;     /* bytes of the open segment */
    bool at_start;      /* it is at the beginning of the text, or after a control token */
    char open[RETOKENIZER_MAX_OPEN];
    int32_t n_same; /* the tokens that the last call of retokenizer_append did not change */
} RetokenizedText;

/* Opens on a zeroed struct, for a target with n_target embeddings and a draft model with n_draft. The last argument is
 * the most bytes of an open segment, at most RETOKENIZER_MAX_OPEN; a segment of n bytes is at most n tokens. Fails with
 * FR_ERR_MISMATCH if the vocabularies share nothing. */
int retokenizer_open(Retokenizer *r, const Gguf *draft, int32_t n_draft, const Gguf *target, int32_t n_target,
                     int32_t max_open, fr_error *err);
void retokenizer_close(Retokenizer *r);
/* Returns the draft model's token, or -1. */
int32_t retokenizer_to_draft(const Retokenizer *r, int32_t token);
/* Writes the target's logits [n_target] that the draft model's logits mean: -inf for a token that it does not have. */
void retokenizer_restrict(const Retokenizer *r, const float *draft_logits, float *logits);

/* Takes memory on a zeroed struct, for n_max tokens of the target and `capacity` of the draft model. */
int retokenized_text_open(RetokenizedText *t, int32_t n_max, int32_t capacity, fr_error *err);
void retokenized_text_close(RetokenizedText *t);
void retokenized_text_clear(RetokenizedText *t);
/* Appends tokens of the target. */
int retokenizer_append(const Retokenizer *r, RetokenizedText *t, const int32_t *tokens, int64_t n, fr_error *err);
/* Returns how many of the target's first tokens have a closed text of at most n tokens of the draft model. */
int32_t retokenized_text_n_within(const RetokenizedText *t, int32_t n);
/* The closed text of the first n tokens of the target is copied, saved, or loaded; it cannot be continued. */
void retokenized_text_copy(const RetokenizedText *from, RetokenizedText *to, int32_t n);
bool retokenized_text_save(const RetokenizedText *t, Buf *out);
/* With t NULL it only checks. n_max and capacity are those of the texts. */
int retokenized_text_load(const Retokenizer *r, RetokenizedText *t, int32_t n_max, int32_t capacity, ByteReader *in,
                          fr_error *err);

#endif
