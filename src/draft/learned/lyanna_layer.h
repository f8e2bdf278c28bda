/* lyanna_layer.h - Lyanna's draft model: one transformer layer that predicts the target's next hidden states. */
#ifndef LEARNED_LYANNA_LAYER_H
#define LEARNED_LYANNA_LAYER_H

#include "draft/learned/entry_queue.h"

typedef struct LyannaLayer {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    bool is_fused;           /* the input of an entry contains the token after it */
    int32_t depth, max_group;
    Linear *fc;
    int32_t n_inputs;    /* of a parallel chain; 0: the chain is serial */
    float *chain_inputs; /* [n_inputs][H] */
    OneLayer layer;
    EntryQueue entries;
    float *chains; /* [max_group][depth][H] */
} LyannaLayer;

/* Reads the layer's tensors from the open file, and allocates memory for chains of `depth` hidden states of max_group
 * sequences at once. After a failure lyanna_layer_close is safe on a zeroed struct. */
int lyanna_layer_open(LyannaLayer *l, LearnedDrafter *learned, const DrafterEnv *env, int32_t depth, int32_t max_group,
                      fr_error *err);
void lyanna_layer_close(LyannaLayer *l);

/* Computes h_1 .. h_depth after the entries of each of n <= max_group sequences, [n][depth][H] in l->chains. Each
 * sequence has at least one entry. */
int lyanna_layer_chain(LyannaLayer *l, const int32_t *sequences, int32_t n, fr_error *err);

#endif
