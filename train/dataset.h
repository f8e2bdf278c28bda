/* dataset.h - the training data in memory: documents, the sequences that are cut from them, and the order of an
 * epoch. */
#ifndef TRAIN_DATASET_H
#define TRAIN_DATASET_H

#include "text/tokenizer.h"
#include "train/records.h"

#include <stdint.h>
#include <stdio.h>

/* Returns the image of i under a permutation of 0 .. n-1, one for each seed and epoch; 1 <= n <= 2^62, 0 <= i < n. */
int64_t permutation_at(uint64_t seed, uint32_t epoch, int64_t n, int64_t i);

/* A record as tokens, and which of them are in the loss. */

typedef struct Document {
    int64_t n;          /* 0: the record holds no text */
    int32_t *tokens;    /* [n] */
    uint8_t *loss_mask; /* [n] 1: predicting this token from those before it is in the loss; the first is always 0 */
} Document;

typedef struct DocumentForm {
    const Tokenizer *tokenizer;
    ChatFamily family;    /* the chat format of conversations; not CHAT_NONE */
    bool pairs_are_chats; /* prompt and response are a user's and the assistant's messages; else raw text */
    int32_t n_vocab;      /* the ids in RECORD_TOKENS are below it */
} DocumentForm;

/* BOS is added where the vocabulary's file asks for it, and EOS at the end unless the last token ends a turn. The loss
 * covers all tokens of a text; the response of a pair; the assistant's messages of a conversation, each with the token
 * that ends it unless the answer was cut off; and the tokens of a generation after its prompt. A record without an
 * answer is refused; the error is a sentence without its subject, for line_reader_refuse. */
int document_make(Document *out, const DocumentForm *form, const Record *record, fr_error *err);
void document_free(Document *d);

/* Documents as sequences of one length, in memory: 2 bytes per token where the vocabulary has at most
 * 32768 tokens, else 4. */

typedef struct SequenceSpan {
    int64_t first; /* token */
    int32_t n;     /* predictions, 1 .. length: of the tokens first + 1 .. first + n */
} SequenceSpan;

typedef struct Sequences {
    int32_t length;
    bool packs; /* documents are concatenated and cut anywhere; else each document begins a sequence */
    bool is_16_bit;
    uint16_t *tokens16; /* [n_tokens] if is_16_bit: the token, and bit 15 if its prediction is in the loss */
    uint32_t *tokens32; /* [n_tokens] else, with bit 31 */
    int64_t n_tokens, capacity;
    int64_t n_counted;   /* predictions in the loss, over all sequences */
    SequenceSpan *spans; /* [n]: sequences with at least one prediction in the loss */
    int64_t n, spans_capacity;
} Sequences;

void sequences_begin(Sequences *s, int32_t n_vocab, int32_t length, bool packs);
int sequences_add(Sequences *s, const Document *d, fr_error *err); /* the document may be freed afterwards */
int sequences_end(Sequences *s, fr_error *err);                    /* after the last document */
void sequences_free(Sequences *s);

int32_t sequences_token(const Sequences *s, int64_t i); /* i: below n_tokens */

/* Sequence i: tokens[length + 1], loss_mask[length]. A short one is padded with token 0, outside the loss. */
void sequences_get(const Sequences *s, int64_t i, int32_t *tokens, uint8_t *loss_mask);

/* Sequences number first .. first + n - 1 of an endless run, in which every epoch has each of the s->n sequences once,
 * in the order of permutation_at. tokens[n][length + 1], loss_mask[n][length]. s->n > 0. */
void sequences_batch(const Sequences *s, uint64_t seed, int64_t first, int32_t n, int32_t *tokens, uint8_t *loss_mask);

/* Training data: files of JSON lines, tokenized, with a part held out for validation. */

/* Which lines of a file that `forerun run --record` writes are read. */
typedef struct Traffic {
    const char *path;
    uint64_t target;    /* fingerprint: records of other models are left out */
    int64_t first_line; /* from 0 */
    int64_t new_line;   /* first_line or later: records from here on are new */
    int64_t end_line;   /* read up to here: a line after it may not be complete yet */
} Traffic;

typedef struct DatasetOptions {
    char *const *files; /* [n_files] */
    int n_files;
    const Traffic *traffic; /* NULL: none; read after the files */
    const char *valid_file; /* NULL: valid_share of the documents is held out */
    double valid_share;     /* 0 .. 1; depends only on their tokens, not on seed or order */
    int32_t length;         /* predictions in a sequence, which has one token more */
    bool packs;             /* see Sequences */
    bool pairs_are_chats;   /* see DocumentForm */
    int64_t max_text;       /* the most text of all files (TextLimit); 0: the defaults there */
    FILE *progress;         /* where a progress bar is drawn; NULL: nowhere */
} DatasetOptions;

typedef struct Dataset {
    Sequences train, valid; /* valid may have no sequence */
    int64_t n_documents, n_valid_documents;
    int64_t n_lossy; /* documents with answers that do not follow their model's own distribution (record_is_lossy) */
    int64_t n_new;   /* documents from new lines of the traffic */
    int64_t n_other_target; /* records of the traffic that were left out because they are of another model */
    int64_t n_broken;       /* lines of the traffic that are no records, such as the piece that a kill left */
    bool wrote_plain; /* there were conversations, and the vocabulary's file names no chat format that is known: they
                             * are written as USER: ...\nASSISTANT: ... */
    uint64_t fingerprint; /* a hash of all tokens, loss masks, and the choice of held-out documents */
} Dataset;

/* Tokenizes with the vocabulary in `vocab`. Refuses malformed lines, naming file and line number (in the traffic, only
 * records with wrong tokens), and data with no prediction in the loss. On failure *d is empty. */
int dataset_open(Dataset *d, const DatasetOptions *options, const Gguf *vocab, fr_error *err);
void dataset_close(Dataset *d); /* an empty one is fine */

/* The most frequent tokens of training data. */

/* Chooses the n most frequent of n_vocab tokens in the sequences, ties going to the lower id. *out lists them in
 * ascending order and is freed with mem_free. 1 <= n <= n_vocab. */
int hot_tokens_choose(const Sequences *s, int32_t n_vocab, int32_t n, int32_t **out, fr_error *err);

#endif
