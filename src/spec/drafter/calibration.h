/* calibration.h - what a drafter's estimates are worth: a monotone map, learned online from its own hits. */
#ifndef DRAFTER_CALIBRATION_H
#define DRAFTER_CALIBRATION_H

#include "spec/tree/tree.h"

#include <stdbool.h>

enum { CALIBRATION_N_BINS = 20 };

/* Copyable, no memory of its own: 244 bytes. */
typedef struct Calibration {
    float n[CALIBRATION_N_BINS], n_right[CALIBRATION_N_BINS]; /* children judged in each bin, the recent ones */
    float value[CALIBRATION_N_BINS]; /* the map at the middle of each bin; never falls */
    int32_t n_since_fit;
} Calibration;

/* Knows nothing yet and believes the prior (NULL: every estimate as it stands). */
void calibration_init(Calibration *c, const Calibration *prior);

/* Learns from a proposal, as its drafter made it, and the n >= 1 tokens that were committed after its node 0. Judged are the
 * children of every node that turned out right, where the token after it is known. */
void calibration_learn(Calibration *c, const Tree *proposal, const int32_t *tokens, int64_t n);

/* Fits the map anew where enough was learned since. Where little is known, `prior` (NULL: the estimates as they
 * stand) is believed. */
void calibration_fit(Calibration *c, const Calibration *prior);

/* The probability that a child whose parent is right is right, for the drafter's estimate of that. */
float calibration_apply(const Calibration *c, float conditional);

/* `into` becomes `from` with calibrated p_accept, which never rises along a path either. */
void calibration_apply_tree(const Calibration *c, const Tree *from, Tree *into);

#endif
