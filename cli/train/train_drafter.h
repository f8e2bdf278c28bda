/* train_drafter.h - what all drafters of `forerun train` share: options, and opening a trainer for a target. */
#ifndef TRAIN_TRAIN_DRAFTER_H
#define TRAIN_TRAIN_DRAFTER_H

#include "cli/train/train_methods.h"
#include "train/loop/drafter_trainer.h"
#include "train/nets/head_loss.h"

typedef struct DrafterSettings {
    TensorType type;      /* of the matrices in the file */
    double noise;         /* of DrafterTrainerOptions */
    HeadLossOptions loss; /* its n_steps: heads, or steps that a drafter continues by itself */
    double step_weights[TRAIN_MAX_STEPS];
    int32_t n_step_weights; /* 0: all 1 */
} DrafterSettings;

/* Rows for a method's DrafterSettings, which holds the method's own defaults. */
extern const Option train_drafter_options[];
/* Refuses a loss without weight and weights of other steps, and passes those of the steps on to the loss. */
int train_drafter_check(DrafterSettings *s, fr_error *err);

/* Makes a trainer of a network whose shape follows the target. Takes ownership of the target, and appends the words
 * of the settings to the method's own (LoopOptions.method). */
int train_drafter_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                       const DrafterSettings *s, const TrainArgs *a, char *signature, size_t n_signature,
                       fr_error *err);

#endif
