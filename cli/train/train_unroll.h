/* train_unroll.h - the options and the layer that `forerun train eagle` and `forerun train lyanna` share: one layer
 * that continues from its own predictions. */
#ifndef TRAIN_TRAIN_UNROLL_H
#define TRAIN_TRAIN_UNROLL_H

#include "cli/train/train_drafter.h"
#include "train/nets/unroll_net.h"

typedef struct UnrollSettings {
    DrafterSettings drafter;
    int32_t n_ff; /* 0: the target's */
    bool has_confidence;
} UnrollSettings;

/* Rows for a method's UnrollSettings, whose DrafterSettings have rows of their own. */
extern const Option train_unroll_options[];

/* The layer's shape, which follows the target. The method sets its own parts. */
UnrollShape train_unroll_shape(const char *method, const FrozenTarget *target, const UnrollSettings *s);

/* Gives the net, whose other parts are set, the confidence head that was asked for. */
void train_unroll_set_confidence(UnrollNet *net, const UnrollSettings *s);

/* train_drafter_open, with the words of these settings. */
int train_unroll_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                      const UnrollSettings *s, const UnrollShape *shape, const TrainArgs *a, char *signature,
                      size_t n_signature, fr_error *err);

#endif
