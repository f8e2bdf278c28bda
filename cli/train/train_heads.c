/* train_heads.c - the options that medusa and hydra share. */
#include "cli/train/train_heads.h"

const Option train_heads_options[] = {
    {.key = "blocks",
     OPT_INT(HeadsSettings, n_blocks, 1, 8),
     .section = "The drafter",
     .default_value = "1",
     .help = "residual blocks of each head"},
    {.key = "lm-head",
     OPT_CHOICE(HeadsSettings, has_own_output, "target", "own"),
     .default_value = "own",
     .help = "matrix for the logits of each head: its own, or the target's"},
    {.key = NULL},
};
