/* dataset.h - training data: files of JSON lines, tokenized, with a part held out for validation. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include "train/data/sequences.h"

#include <stdio.h>

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
    double valid_share;     /* 0 .. 1; which ones depends on their tokens alone, not on seed or order */
    int32_t length;         /* predictions in a sequence, which has one token more */
    bool packs;             /* see Sequences */
    bool pairs_are_chats;   /* see DocumentForm */
    int64_t max_text;       /* of all files, see TextLimit; 0: the defaults there */
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
    uint64_t fingerprint; /* of all tokens, loss masks, and the choice of held-out documents */
} Dataset;

/* Tokenizes with the vocabulary in `vocab`. Refuses malformed lines, naming file and line number (in the traffic, only
 * records with wrong tokens), and data with no prediction in the loss. On failure *d is empty. */
int dataset_open(Dataset *d, const DatasetOptions *options, const Gguf *vocab, fr_error *err);
void dataset_close(Dataset *d); /* an empty one is fine */

#endif
