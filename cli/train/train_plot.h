/* train_plot.h - the figure of a training run. */
#ifndef TRAIN_TRAIN_PLOT_H
#define TRAIN_TRAIN_PLOT_H

#include "base/error.h"

/* Draws the losses of a log (train/loop/train_log.h) over the training steps: the training loss as means over up to
 * 100 equal stretches, the validation loss as it is. */
int train_plot(const char *log, const char *path, fr_error *err);

#endif
