/* train_drafter.h - what all drafters of `forerun train` share: options, and the way from a target to a trainer. */
#ifndef TRAIN_TRAIN_DRAFTER_H
#define TRAIN_TRAIN_DRAFTER_H

#include "app/train/train_methods.h"
#include "train/loop/drafter_trainer.h"
#include "train/nets/head_loss.h"

typedef struct DrafterSettings {
    TensorType type;      /* of the matrices in the file */
    double noise;         /* of DrafterTrainerOptions */
    HeadLossOptions loss; /* its n_steps: heads, or steps a drafter goes on by itself */
} DrafterSettings;

/* To be a child of a method's argp, with the method's DrafterSettings (its defaults) as input. */
extern const struct argp train_drafter_argp;

/* Makes a trainer of a network whose shape follows the target: takes the target over, and writes the words that the
 * settings add to the method's own (LoopOptions.method). */
int train_drafter_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net, const DrafterSettings *s,
                       const TrainArgs *a, char *signature, size_t n_signature, fr_error *err);

#endif
