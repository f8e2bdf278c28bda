/* train_heads.h - what medusa and hydra are told on the command line of `forerun train`. */
#ifndef TRAIN_TRAIN_HEADS_H
#define TRAIN_TRAIN_HEADS_H

#include "app/train/train_drafter.h"

typedef struct HeadsSettings {
    DrafterSettings drafter;
    int32_t n_blocks;    /* of each head */
    bool has_own_output; /* else the target's */
} HeadsSettings;

#define HEADS_SETTINGS \
    { .drafter = {.type = TYPE_F16, .loss = {.token_weight = 1, .n_steps = 4}}, .n_blocks = 1, .has_own_output = true }

extern const struct argp train_heads_argp; /* the input: the method's HeadsSettings */

#endif
