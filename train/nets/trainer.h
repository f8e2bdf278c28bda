/* trainer.h - the interface between the training loop and what it trains: a target from scratch, or a drafter.
 *
 * The loop (loop.h) owns data, order, accumulation, schedule, optimiser steps, checkpoints and the progress bar; a
 * trainer owns the parameters and their gradients. A trainer is a pure function of parameters and batch, so the same
 * seed trains the same file, also when the run is killed and resumed.
 */
#ifndef NETS_TRAINER_H
#define NETS_TRAINER_H

#include "draft/drafter_file.h"

#include <stdbool.h>
#include <stdint.h>

/* One parameter tensor. The memory belongs to the trainer. */
typedef struct Param {
    const char *name; /* unique; the name of the tensor in the finished file, where it has one */
    int64_t n;
    float *value, *grad; /* [n] */
    bool decays;         /* subject to weight decay: matrices are, norms and biases are not */
    int64_t n_rows; /* of a matrix that Muon may train; 0: a vector, an embedding or an LM head, which are AdamW's */
} Param;

/* Sequences of one length. */
typedef struct TrainBatch {
    int32_t n_sequences, length;
    const int32_t *tokens;    /* [n_sequences][length + 1]: position t predicts token t + 1 */
    const uint8_t *loss_mask; /* [n_sequences][length]: 1 where the prediction of token t + 1 is in the loss */
    int64_t i_sequence;       /* number of the first sequence in the run; every sequence learned has its own */
} TrainBatch;

enum { TRAIN_MAX_STEPS = 8, TRAIN_RANKS = 32 };

/* Sums over the predictions in the loss, from which the loop computes means. Arrays are indexed by step ahead. */
typedef struct TrainSums {
    double loss;
    int64_t n;                                     /* predictions in the loss */
    int32_t n_heads;                               /* steps ahead whose accuracy is known; 1 for a target */
    int64_t right[TRAIN_MAX_STEPS];                /* predictions whose most probable token was correct */
    int64_t of[TRAIN_MAX_STEPS];                   /* predictions in all */
    int64_t at_rank[TRAIN_MAX_STEPS][TRAIN_RANKS]; /* for drafters: predictions that gave the correct token this rank */
} TrainSums;

typedef struct Trainer Trainer;
typedef struct TrainerClass {
    const char *name; /* "target", "lyanna", ... */
    int32_t (*n_params)(const Trainer *t);
    Param *(*param)(Trainer *t, int32_t i);
    /* Adds the gradient of `weight` times the summed loss of the batch to the gradients, and adds to the sums. With
     * weight 0 it only adds to the sums (validation). */
    int (*learn)(Trainer *t, const TrainBatch *batch, double weight, TrainSums *sums, fr_error *err);
    /* Writes the finished GGUF file; that of a drafter includes the training record, which may be NULL. */
    int (*write)(const Trainer *t, const char *path, const DrafterTraining *record, fr_error *err);
    void (*close)(Trainer *t);
} TrainerClass;
struct Trainer {
    const TrainerClass *class; /* the first member of every trainer's own struct */
};

#endif
