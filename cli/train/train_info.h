/* train_info.h - token info for the methods of `forerun train`: --rank, and the shape that follows the target. */
#ifndef TRAIN_TRAIN_INFO_H
#define TRAIN_TRAIN_INFO_H

#include "cli/train/train_args.h"
#include "train/nets/frozen.h"
#include "train/nets/info_factors.h"

enum { TRAIN_MAX_RANK = 1 << 14 };

typedef struct InfoSettings {
    int32_t rank; /* 0: no token info */
} InfoSettings;

/* --rank=N, by default 0. */
extern const Option train_info_options[];

/* The shape of token info for all tokens of the target. */
InfoShape train_info_shape(const char *method, const FrozenTarget *target, int32_t rank);

/* Refuses info of all tokens if the drafter's table for this vocabulary would be too large. */
int train_info_check(const InfoShape *s, fr_error *err);

/* Appends the rank to the words of LoopOptions.method, unless it is 0. */
void train_info_signature(const InfoShape *s, char *signature, size_t n_signature);

#endif
