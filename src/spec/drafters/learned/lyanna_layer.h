/* lyanna_layer.h - Lyanna's draft model: one transformer layer that guesses the target's next hidden states. */
#ifndef LEARNED_LYANNA_LAYER_H
#define LEARNED_LYANNA_LAYER_H

#include "spec/drafters/learned/one_layer.h"

typedef struct LyannaPlace {
    int32_t kv;              /* sequence in the executor */
    bool begun;
    float *feature;          /* [H] h_1: what the layer made of the last entry */
    int32_t n_queued;        /* entries that are yet to be made */
    int32_t *tokens;         /* [LYANNA_QUEUE] */
    float *hidden;           /* [LYANNA_QUEUE][H] */
} LyannaPlace;

enum { LYANNA_QUEUE = 32 };

typedef struct LyannaLayer {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    bool is_fused;           /* an entry knows the token behind it */
    int32_t depth, max_group, max_rows;
    Linear *fc;
    OneLayer layer;
    LyannaPlace *places;     /* [max_sequences] */
    Row *rows;               /* [max_rows] */
    int32_t *row_ids;
    float *pairs, *inputs;   /* [max_rows][2H], [max_rows][H]: what is fused, and the result */
    float *chains;           /* [max_group][depth][H] */
} LyannaLayer;

/* Takes the layer's tensors out of the open file, and makes room for chains of `depth` hidden states of max_group sequences
 * at once. After a failure lyanna_layer_close is safe on a zeroed struct. */
int lyanna_layer_open(LyannaLayer *l, LearnedDrafter *learned, const DrafterEnv *env, int32_t depth, int32_t max_group, fr_error *err);
void lyanna_layer_close(LyannaLayer *l);

int lyanna_layer_begin(LyannaLayer *l, int32_t sequence, fr_error *err);
void lyanna_layer_end(LyannaLayer *l, int32_t sequence);

/* One more entry: the target's hidden state [H] (copied) and the token that came after it. */
int lyanna_layer_add(LyannaLayer *l, int32_t sequence, int32_t token, const float *hidden, fr_error *err);

/* The hidden states h_1 .. h_depth behind the entries of each of n <= max_group sequences, [n][depth][H] in l->chains. Each has
 * an entry at least. */
int lyanna_layer_chain(LyannaLayer *l, const int32_t *sequences, int32_t n, fr_error *err);

#endif
