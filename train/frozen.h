/* frozen.h - the target of a drafter in training: it computes hidden states, and its weights do not change. */
#ifndef TRAIN_FROZEN_H
#define TRAIN_FROZEN_H

#include "compute/executor.h"
#include "train/mask_rows.h"

typedef struct FrozenTarget {
    Model *model;
    Weights *weights;
    Device *device;
    Executor *executor;
    int32_t max_length;
    float *embd, *head; /* [V][C] as floats; head is embd where the two are tied */
    MaskLayer *layers;  /* [n_layer], with frozen_load_layers; NULL otherwise */
    Arena arena;        /* of the layers */
} FrozenTarget;

/* For sequences of at most max_length tokens, read with n_threads threads. The Gguf must outlive it. A failure leaves
 * nothing open; frozen_close is safe then, too. */
int frozen_open(FrozenTarget *f, const Gguf *g, int32_t max_length, int n_threads, fr_error *err);
void frozen_close(FrozenTarget *f);

/* Converts the layers to floats as well, for derivatives with respect to their inputs, and fills in a description of
 * them, which borrows from the target. Refuses layers that mask_rows.h does not compute. */
int frozen_load_layers(FrozenTarget *f, MaskTarget *out, fr_error *err);

/* hidden: [n][C], the hidden states after the final norm of a sequence of these tokens. */
int frozen_read(FrozenTarget *f, const int32_t *tokens, int32_t n, float *hidden, fr_error *err);

#endif
