/* trainer_rig.h - trains a drafter for a few steps and writes its file, for tests that compare it with the drafter that
 * reads the file. */
#ifndef TRAINER_RIG_H
#define TRAINER_RIG_H

#include "train/net.h"

typedef struct TrainerRun {
    int32_t n_sequences, length, n_vocab; /* the shape of the one batch of random tokens */
    int n_steps;
    double rate;
    const char *path; /* the file that is written at the end */
} TrainerRun;

/* Takes the steps, and fails unless the loss falls by a tenth. */
void trainer_rig_run(Trainer *t, const TrainerRun *run);
/* Fills weights [max] with the values of the trainer's parameters. */
void trainer_rig_weights(Trainer *t, float **weights, int32_t max);

#endif
