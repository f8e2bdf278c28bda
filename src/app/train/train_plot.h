/* train_plot.h - the figure of a training run. */
#ifndef TRAIN_TRAIN_PLOT_H
#define TRAIN_TRAIN_PLOT_H

#include "base/error.h"

/* Draws the losses of a log (train/train_log.h) over the steps: those of training as means over up to 100 equal
 * stretches, those of validation as they are. */
int train_plot(const char *log, const char *path, fr_error *err);

#endif
