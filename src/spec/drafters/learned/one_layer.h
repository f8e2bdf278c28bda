/* one_layer.h - a transformer layer of a drafter's file, run on the target's device with a KV cache of its own: the draft model of
 * `eagle` and `lyanna`. Its rows bring their input, [n_embd] floats; hidden states and, by the target's LM head, logits come out. */
#ifndef LEARNED_ONE_LAYER_H
#define LEARNED_ONE_LAYER_H

#include "backend/executor.h"
#include "spec/drafters/learned/learned.h"

/* The names of the layer in the file; those that may be missing are NULL. */
typedef struct OneLayerNames {
    const char *key_feed_forward;
    const char *attn_norm, *q, *k, *v, *o;
    const char *ffn_norm, *gate, *up, *down;
} OneLayerNames;

typedef struct OneLayer {
    Model model;           /* one layer; heads, rope, embedding and LM head are the target's */
    LayerSpec spec;
    float *attn_norm, *ffn_norm;
    Weights *weights;
    Executor *executor;
} OneLayer;

/* Takes the layer's tensors out of the open file and makes them resident, on a zeroed struct. After a failure one_layer_close is safe. */
int one_layer_open(OneLayer *l, LearnedDrafter *d, const OneLayerNames *names, fr_error *err);
/* Then the executor, for sequences of n_ctx entries and a tree of n_more rows beyond them. */
int one_layer_open_executor(OneLayer *l, LearnedDrafter *d, int32_t n_ctx, int32_t n_more, int32_t max_rows, fr_error *err);
void one_layer_close(OneLayer *l);

#endif
