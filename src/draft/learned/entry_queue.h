/* entry_queue.h - the KV entries of a drafter's layer (`eagle`, `mtp`, `lyanna`): one for each token that the target has
 * read, computed from its hidden state there and the token that follows. */
#ifndef LEARNED_ENTRY_QUEUE_H
#define LEARNED_ENTRY_QUEUE_H

#include "draft/cached_kv.h"
#include "draft/learned/one_layer.h"

enum { ENTRY_QUEUE_LENGTH = 32 };

/* A sequence in the layer's executor. */
typedef struct EntrySequence {
    int32_t kv; /* its id there */
    bool begun;
    float *feature;   /* [H] the layer's output for the last entry; like the next two, valid if no entry is queued; and
                       * NULL in a sequence of the cache */
    float *input;     /* [H] its input */
    float *logits;    /* [V] its logits, NULL: not wanted */
    int32_t n_queued; /* entries that have not run yet */
    int32_t n_kept;   /* in a sequence of the cache: its entries, unless those that had run were dropped */
    int32_t *tokens;  /* [ENTRY_QUEUE_LENGTH] */
    float *hidden;    /* [ENTRY_QUEUE_LENGTH][H] */
} EntrySequence;

typedef struct EntryQueueOptions {
    const Linear *fc;  /* input of an entry: fc [E(token) ; hidden], or fc hidden */
    bool reads_tokens; /* the former */
    bool wants_logits;
    int32_t max_rows; /* of a forward; >= ENTRY_QUEUE_LENGTH */
    /* With reads_tokens, of the two parts before fc: RMS norms, [H] each; NULL: none. */
    const float *token_norm, *hidden_norm;
    const GgufTensor *embedding; /* E, in memory of the caller; NULL: the target's */
} EntryQueueOptions;

typedef struct EntryQueue {
    LearnedDrafter *learned; /* borrowed: target, products, memory */
    OneLayer *layer;         /* borrowed */
    EntryQueueOptions options;
    EntrySequence *sequences; /* [max_sequences + n_cached] */
    CachedKv cached;
    /* Of the next forward, which may also be one of the caller's own: */
    Row *rows;             /* [max_rows] */
    int32_t *row_ids;      /* [max_rows] */
    float *pairs, *inputs; /* [max_rows][2H] the input of fc; [max_rows][H] its output */
} EntryQueue;

/* Allocates in the drafter's arena, on a zeroed struct; the layer's executor is open. */
int entry_queue_open(EntryQueue *q, LearnedDrafter *learned, OneLayer *layer, const EntryQueueOptions *options,
                     fr_error *err);

void entry_queue_close(EntryQueue *q);

int entry_queue_begin(EntryQueue *q, int32_t sequence, fr_error *err);
void entry_queue_end(EntryQueue *q, int32_t sequence);

/* Adds n entries: hidden states (copied) and the token after each. */
int entry_queue_add(EntryQueue *q, int32_t sequence, const int32_t *tokens, const float *const *hidden, int32_t n,
                    fr_error *err);
/* Likewise for what a step committed. */
int entry_queue_add_step(EntryQueue *q, int32_t sequence, const VerifiedTree *v, fr_error *err);

/* For the functions of the same names in a DrafterClass: entries, those that are queued included. */
int32_t entry_queue_n_held(const EntryQueue *q, int32_t sequence);
void entry_queue_take_over(EntryQueue *q, int32_t from, int32_t to, int32_t n);

/* Runs what is queued for these sequences, in as few forwards as possible. */
int entry_queue_run(EntryQueue *q, const int32_t *sequences, int32_t n, fr_error *err);

/* Row i of the next forward gets this pair as input: a token, and the hidden state or feature before it. */
void entry_queue_set_pair(EntryQueue *q, int32_t i, int32_t token, const float *hidden);
/* Computes the inputs of the first n rows from their pairs. */
void entry_queue_fuse(EntryQueue *q, int32_t n);

#endif
