/* train_info.h - token info of the methods of `forerun train`: --rank, and the shape after the target. */
#ifndef TRAIN_TRAIN_INFO_H
#define TRAIN_TRAIN_INFO_H

#include "app/train/train_args.h"
#include "train/nets/frozen.h"
#include "train/nets/info_factors.h"

/* --rank N for a method that has no info unless it is told. To be a child of the method's argp, with its rank (an int32_t, 0)
 * as input. */
extern const struct argp train_info_argp;
enum { TRAIN_MAX_RANK = 1 << 14 };

/* The info's shape after the target, of all its tokens. */
InfoShape train_info_shape(const char *method, const FrozenTarget *target, int32_t rank);

/* Refuses info of all tokens for a vocabulary whose table the drafter could not hold. */
int train_info_check(const InfoShape *s, fr_error *err);

/* Adds the rank to the words of LoopOptions.method, where there is info. */
void train_info_signature(const InfoShape *s, char *signature, size_t n_signature);

#endif
