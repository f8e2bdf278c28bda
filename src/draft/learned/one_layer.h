/* one_layer.h - a transformer layer of a drafter's file, run on the target's device with its own KV cache: the draft
 * model of `eagle` and `lyanna`. The input of each row is given as [n_embd] floats; the output is hidden states and,
 * by the target's LM head, logits. */
#ifndef LEARNED_ONE_LAYER_H
#define LEARNED_ONE_LAYER_H

#include "compute/executor.h"
#include "draft/learned/learned.h"

/* Names of the layer's key and tensors in the file. attn_norm is NULL if the layer has no norm before its attention. */
typedef struct OneLayerNames {
    const char *key_feed_forward;
    const char *attn_norm, *q, *k, *v, *o;
    const char *ffn_norm, *gate, *up, *down;
} OneLayerNames;

typedef struct OneLayer {
    Model model; /* has one layer; heads, rope, embedding and LM head are the target's */
    LayerSpec spec;
    float *attn_norm, *ffn_norm;
    Weights *weights;
    Executor *executor;
} OneLayer;

/* Reads the layer's tensors from the open file and makes them resident on the device, on a zeroed struct. After a
 * failure one_layer_close is safe. */
int one_layer_open(OneLayer *l, LearnedDrafter *d, const OneLayerNames *names, fr_error *err);
/* Opens the executor, for sequences of n_ctx entries and trees of n_more rows after them; max_logits of the max_rows rows
 * of a run may want logits. */
int one_layer_open_executor(OneLayer *l, LearnedDrafter *d, int32_t n_ctx, int32_t n_more, int32_t max_rows,
                            int32_t max_logits, fr_error *err);
void one_layer_close(OneLayer *l);

#endif
