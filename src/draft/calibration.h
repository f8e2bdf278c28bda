/* calibration.h - corrects a drafter's estimates: a monotone map from p_accept to a probability, learned online. */
#ifndef DRAFTER_CALIBRATION_H
#define DRAFTER_CALIBRATION_H

#include "tree/tree.h"

#include <stdbool.h>

enum { CALIBRATION_N_BINS = 20 };

typedef struct Calibration {
    float n[CALIBRATION_N_BINS];       /* recent children that were counted in each bin */
    float n_right[CALIBRATION_N_BINS]; /* those of them that were correct */
    float value[CALIBRATION_N_BINS];   /* the map at the middle of each bin; it never falls */
    int32_t n_since_fit;
} Calibration;

/* Starts without observations, with the map of the prior; without a prior (NULL) the map is the identity. */
void calibration_init(Calibration *c, const Calibration *prior);

/* Learns from a proposal, as its drafter made it, and the n >= 1 tokens that were committed after its node 0. It
 * counts the children of every correct node whose next token is known. */
void calibration_learn(Calibration *c, const Tree *proposal, const int32_t *tokens, int64_t n);

/* Fits the map again if enough was learned since the last fit. A bin with few observations stays near the prior (the
 * identity, if it is NULL). */
void calibration_fit(Calibration *c, const Calibration *prior);

/* Maps the drafter's estimate of the probability that a child is correct, given that its parent is, to the
 * calibrated one. */
float calibration_apply(const Calibration *c, float conditional);

/* Copies `from` to `into` with calibrated p_accept, which does not rise along a path. */
void calibration_apply_tree(const Calibration *c, const Tree *from, Tree *into);

#endif
