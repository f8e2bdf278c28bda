/* trainer.h - what the training loop asks of a thing that can be trained: a target from scratch, or a drafter.
 *
 * The loop (loop.h) owns data, order, accumulation, schedule, optimiser steps, checkpoints and the progress bar; a
 * trainer owns parameters and their gradients. Everything is a pure function of parameters and batch: the same seed
 * trains the same file, also after a kill and a resume.
 */
#ifndef NETS_TRAINER_H
#define NETS_TRAINER_H

#include "spec/drafter/drafter_file.h"

#include <stdbool.h>
#include <stdint.h>

/* One parameter tensor. Memory is the trainer's. */
typedef struct Param {
    const char *name; /* unique; of the tensor in the file that is written at the end, where it has one */
    int64_t n;
    float *value, *grad; /* [n] */
    bool decays;         /* takes part in weight decay: matrices, not norms and biases */
} Param;

/* Sequences of one length, side by side. */
typedef struct TrainBatch {
    int32_t n_sequences, length;
    const int32_t *tokens; /* [n_sequences][length + 1]: token t + 1 is what token t should say */
    const uint8_t *loss_mask; /* [n_sequences][length]: does the prediction of token t + 1 count (the response only)? */
    int64_t place;         /* of the first of them in the endless run of sequences: no two that are learned have the same */
} TrainBatch;

enum { TRAIN_MAX_STEPS = 8, TRAIN_RANKS = 32 };

/* Sums over the predictions that count: the loop divides and shows. Arrays are by step ahead. */
typedef struct TrainSums {
    double loss;
    int64_t n;                            /* predictions that count */
    int32_t n_heads;                      /* steps ahead that accuracy is known for; 1 for a target */
    int64_t right[TRAIN_MAX_STEPS];       /* predictions that were right (the most probable token) */
    int64_t of[TRAIN_MAX_STEPS];          /* of how many */
    int64_t at_rank[TRAIN_MAX_STEPS][TRAIN_RANKS]; /* of drafters: the token that was right had this rank, from 0, in what it says */
} TrainSums;

typedef struct Trainer Trainer;
typedef struct TrainerClass {
    const char *name; /* "target", "lyanna", ... */
    int32_t (*n_params)(const Trainer *t);
    Param *(*param)(Trainer *t, int32_t i);
    /* Adds the gradient of `weight` times the summed loss of the batch to the gradients; adds to the sums. With
     * weight 0 only the sums (validation). */
    int (*learn)(Trainer *t, const TrainBatch *batch, double weight, TrainSums *sums, fr_error *err);
    /* Writes the finished GGUF file; a drafter's holds the record, which may be NULL. */
    int (*write)(const Trainer *t, const char *path, const DrafterTraining *record, fr_error *err);
    void (*close)(Trainer *t);
} TrainerClass;
struct Trainer {
    const TrainerClass *class; /* first member of every trainer's own struct */
};

#endif
