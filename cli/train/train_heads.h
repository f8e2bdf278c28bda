/* train_heads.h - the options of `forerun train medusa` and `forerun train hydra`. */
#ifndef TRAIN_TRAIN_HEADS_H
#define TRAIN_TRAIN_HEADS_H

#include "cli/train/train_drafter.h"

typedef struct HeadsSettings {
    DrafterSettings drafter;
    int32_t n_blocks;    /* of each head */
    bool has_own_output; /* else the target's */
} HeadsSettings;

/* Defaults of what no row has a default for. */
#define HEADS_SETTINGS \
    { .drafter.loss.n_steps = 4 }

extern const Option train_heads_options[]; /* rows for the method's HeadsSettings */

#endif
