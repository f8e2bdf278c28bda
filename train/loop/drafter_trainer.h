/* drafter_trainer.h - a Trainer for any drafter's network (net.h) and its frozen target. */
#ifndef LOOP_DRAFTER_TRAINER_H
#define LOOP_DRAFTER_TRAINER_H

#include "train/nets/frozen.h"
#include "train/nets/net.h"

typedef struct DrafterTrainerOptions {
    const NetClass *class;
    const void *net;    /* the method's own struct, for that target; must outlive the trainer */
    int32_t max_length; /* length of the longest sequence that learn will be given */
    TensorType type;    /* of the matrices in the file: F32, F16 or Q8_0; vectors are F32 */
    uint64_t seed;      /* of the initial values and the noise */
    double noise; /* TrainSequence.noise is uniform in (-noise, noise), drawn anew for each sequence learned; 0: none */
    int n_threads;
} DrafterTrainerOptions;

/* Takes ownership of the frozen target: it is closed with the trainer, or here on failure. The target reads each
 * sequence once with all threads; then each thread takes whole sequences forward and backward (gradients.h). */
int drafter_trainer_open(Trainer **out, FrozenTarget *target, const DrafterTrainerOptions *options, fr_error *err);

/* DrafterTraining.accuracy: [n_heads][TRAIN_RANKS], from the sums of a validation. False: some step has no
 * predictions. */
bool drafter_trainer_accuracy(const TrainSums *sums, float accuracy[TRAIN_MAX_STEPS * TRAIN_RANKS]);

#endif
