/* lyanna_layer.h - Lyanna's draft model: one transformer layer that predicts the target's next hidden states. */
#ifndef LEARNED_LYANNA_LAYER_H
#define LEARNED_LYANNA_LAYER_H

#include "spec/drafters/learned/one_layer.h"

/* The entries of a sequence. */
typedef struct LyannaEntries {
    int32_t kv; /* sequence in the executor */
    bool begun;
    float *feature;   /* [H] h_1: the layer's output for the last entry */
    float *input;     /* [H] the layer's input for the last entry */
    int32_t n_queued; /* entries that have not run yet */
    int32_t *tokens;  /* [LYANNA_QUEUE] */
    float *hidden;    /* [LYANNA_QUEUE][H] */
} LyannaEntries;

enum { LYANNA_QUEUE = 32 };

typedef struct LyannaLayer {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    bool is_fused;           /* the input of an entry contains the token after it */
    int32_t depth, max_group, max_rows;
    Linear *fc;
    int32_t n_inputs;    /* of a parallel chain; 0: the chain is serial */
    float *chain_inputs; /* [n_inputs][H] */
    OneLayer layer;
    LyannaEntries *entries; /* [max_sequences] */
    Row *rows;              /* [max_rows] */
    int32_t *row_ids;
    float *pairs, *inputs; /* [max_rows][2H] the input of fc; [max_rows][H] its output */
    float *chains;         /* [max_group][depth][H] */
} LyannaLayer;

/* Reads the layer's tensors from the open file, and allocates memory for chains of `depth` hidden states of max_group
 * sequences at once. After a failure lyanna_layer_close is safe on a zeroed struct. */
int lyanna_layer_open(LyannaLayer *l, LearnedDrafter *learned, const DrafterEnv *env, int32_t depth, int32_t max_group,
                      fr_error *err);
void lyanna_layer_close(LyannaLayer *l);

int lyanna_layer_begin(LyannaLayer *l, int32_t sequence, fr_error *err);
void lyanna_layer_end(LyannaLayer *l, int32_t sequence);

/* Adds an entry: the target's hidden state [H] (copied) and the token after it. */
int lyanna_layer_add(LyannaLayer *l, int32_t sequence, int32_t token, const float *hidden, fr_error *err);

/* Computes h_1 .. h_depth after the entries of each of n <= max_group sequences, [n][depth][H] in l->chains. Each
 * sequence has at least one entry. */
int lyanna_layer_chain(LyannaLayer *l, const int32_t *sequences, int32_t n, fr_error *err);

#endif
