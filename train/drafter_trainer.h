/* drafter_trainer.h - a Trainer for any drafter's network (net.h), and the frozen target that it learns from. */
#ifndef TRAIN_DRAFTER_TRAINER_H
#define TRAIN_DRAFTER_TRAINER_H

#include "base/mem.h"
#include "compute/executor.h"
#include "train/gradients.h"
#include "train/mask_rows.h"
#include "train/net.h"

#include <stdint.h>

/* The target of a drafter in training: it computes hidden states, and its weights do not change (frozen.c). */
typedef struct FrozenTarget {
    Model *model;
    Weights *weights;
    Device *device;
    Executor *executor;
    int32_t max_length;
    int32_t n_streams;  /* the residual streams that frozen_read reads; see frozen_keep_layers */
    float *embd, *head; /* [V][C] as floats; head is embd where the two are tied */
    MaskLayer *layers;  /* [n_layer], with frozen_load_layers; NULL otherwise */
    Arena arena;        /* the memory of the layers */
} FrozenTarget;

/* For sequences of at most max_length tokens, read with n_threads threads. The Gguf must outlive it. A failure leaves
 * nothing open; frozen_close is safe then, too. */
int frozen_open(FrozenTarget *f, const Gguf *g, int32_t max_length, int n_threads, fr_error *err);
void frozen_close(FrozenTarget *f);

/* Converts the layers to floats as well, for derivatives with respect to their inputs, and fills in a description of
 * them, which borrows from the target. Refuses layers that mask_rows.h does not compute. */
int frozen_load_layers(FrozenTarget *f, MaskTarget *out, fr_error *err);

/* Makes frozen_read read the residual streams after these numbers of layers, too. */
int frozen_keep_layers(FrozenTarget *f, const KeptLayers *layers, fr_error *err);

/* hidden: [n][C], the hidden states after the final norm of a sequence of these tokens. streams: [n][n_streams][C];
 * NULL if there are none. */
int frozen_read(FrozenTarget *f, const int32_t *tokens, int32_t n, float *hidden, float *streams, fr_error *err);

/* The target's hidden states of sequences that come again, in memory (kept_states.c). */

typedef struct KeptStates {
    size_t max_bytes, bytes;
    void *tree; /* of tsearch, by tokens */
    struct KeptSequence *last;
} KeptStates; /* set max_bytes, and the rest to zero. Not for several threads at once */

/* Returns the bytes that a sequence of n tokens takes, whose states are n_numbers floats. */
size_t kept_states_bytes(int32_t n, size_t n_numbers);

/* Returns the states of a sequence of these n tokens, valid until kept_states_free; NULL: they were not kept. */
const float *kept_states_find(const KeptStates *k, const int32_t *tokens, int32_t n);

/* Makes room for the states, n_numbers floats, of a sequence that was not found; the caller fills them in. Returns NULL
 * if with them all would take more than `most` bytes, or max_bytes, or there is no memory: then they are not kept. */
float *kept_states_add(KeptStates *k, const int32_t *tokens, int32_t n, size_t n_numbers, size_t most);

void kept_states_free(KeptStates *k); /* may be filled again */

typedef struct DrafterTrainerOptions {
    const NetClass *class;
    const void *net;       /* the method's own struct, for that target; must outlive the trainer */
    int32_t max_length;    /* length of the longest sequence that learn will be given */
    TensorType type;       /* the type of matrices in the file: F32, F16 or Q8_0; vectors are F32 */
    uint64_t seed;         /* the seed of the initial values and the noise */
    int32_t *head_tokens;  /* [n_head_tokens] the file's list (head_tokens.c), which the trainer frees; NULL: none */
    int32_t n_head_tokens; /* 0: the list of a file of --init is kept */
    size_t state_memory;   /* the most bytes of hidden states that are kept for sequences that come again */
    bool has_epochs;       /* the sequences that are learned come again; those that are held out always do */
    double noise; /* TrainSequence.noise is uniform in (-noise, noise), drawn anew for each sequence learned; 0: none */
    int n_threads;
} DrafterTrainerOptions;

/* Takes ownership of the frozen target: it is closed with the trainer, or here on failure. The target reads each
 * sequence once with all threads; then each thread takes whole sequences forward and backward (gradients.c). */
int drafter_trainer_open(Trainer **out, FrozenTarget *target, const DrafterTrainerOptions *options, fr_error *err);

/* Bytes of the target's hidden states: of all sequences that are learned, of those that are kept, and the state_memory
 * with which all are. */
typedef struct StateMemory {
    int64_t all, kept, for_all;
} StateMemory;
StateMemory drafter_trainer_state_memory(const Trainer *trainer, int64_t n_sequences, int32_t length);

/* DrafterTraining.accuracy: [n_heads][TRAIN_RANKS], from the sums of a validation. False: some step has no
 * predictions. */
bool drafter_trainer_accuracy(const TrainSums *sums, float accuracy[TRAIN_MAX_STEPS * TRAIN_RANKS]);

/* The initial values of parameters. */

/* n normally distributed numbers of standard deviation std, each a function of nothing but (seed, tensor, its
 * index). */
void start_normal(float *out, int64_t n, double std, uint64_t seed, uint64_t tensor);

/* Returns the standard deviation for a matrix that reads embeddings, such that its outputs are about 1, as large as the
 * components of a hidden state. Embeddings are small numbers, and with the usual 0.02 the token would hardly matter for
 * long. embd: [V][C]. */
double start_token_std(const float *embd, int64_t V, int64_t C);

/* Returns a value for a norm whose outputs take the place of the target's hidden states: the length that these have. */
double start_norm(const Model *target);

/* A drafter's file as the initial values of a training run. */

/* Returns whether the file is a drafter of that method; false if it cannot be read. */
bool init_file_is_of(const char *path, const char *method);

/* Checks that the file has the tensors of the network, before memory is taken for them. */
int init_file_check(DrafterFile *f, const NetClass *class, const void *net, fr_error *err);

/* Replaces all parameters of the trainer, which trains that network for that target, by those in the file, converted
 * to floats. A file of another method, target or shape is refused, and the message names what differs; the parameters
 * are then undefined. *fingerprint is that of the new values. */
int init_file_read(Trainer *t, const NetClass *class, const void *net, const Model *target, const char *path,
                   uint64_t *fingerprint, fr_error *err);

/* The noise added to the hidden states that EAGLE's layer reads in training. */

/* out: [n] independent numbers, uniform in (-width, width), for sequence number `i_sequence` of the run. */
void noise_uniform(float *out, int64_t n, double width, uint64_t seed, int64_t i_sequence);

#endif
