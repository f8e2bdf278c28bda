/* traffic.h - `forerun train --from-traffic`: which records of a file are new, and whether they made the drafter
 * better. */
#ifndef TRAIN_TRAFFIC_H
#define TRAIN_TRAFFIC_H

#include "cli/train/train_args.h"
#include "train/loop/drafter_trainer.h"

/* Finds out which lines of a->traffic a training of that method for `target` reads. With a->init these are the lines that
 * were added since its file was trained; else all, of which those are new that were added since a->output was written.
 * *state receives what the file of this training has to remember. */
int traffic_open(Traffic *out, DrafterTraffic *state, const TrainArgs *a, const char *method, const Gguf *target,
                 fr_error *err);

/* Refuses a drafter that is right less often than before the training, on the held-out records. */
int traffic_check_gain(const TrainSums *before, const TrainSums *after, const char *output, fr_error *err);

#endif
