/* traffic.h - `forerun train --from-traffic`: which records of a file are new, and whether they made the drafter
 * better. */
#ifndef TRAIN_TRAFFIC_H
#define TRAIN_TRAFFIC_H

#include "train/data/dataset.h"
#include "train/loop/drafter_trainer.h"

/* Finds out which lines of the file a training of that method for `target` reads. `drafter` is the file that an earlier
 * training wrote, if there is one: its lines are not new. *state receives what the file of this training has to remember. */
int traffic_open(Traffic *out, DrafterTraffic *state, const char *path, const Gguf *target, const char *method,
                 const char *drafter, fr_error *err);

/* Refuses a drafter that is right less often than before the training, on the held-out records. */
int traffic_check_gain(const TrainSums *before, const TrainSums *after, const char *output, fr_error *err);

#endif
