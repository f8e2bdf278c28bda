/* calibration.h - corrects a drafter's estimates: a monotone map from p_accept to a probability, learned online. */
#ifndef DRAFTER_CALIBRATION_H
#define DRAFTER_CALIBRATION_H

#include "tree/tree.h"

#include <stdbool.h>

enum { CALIBRATION_N_BINS = 20 };

/* Copyable; owns no memory: 244 bytes. */
typedef struct Calibration {
    float n[CALIBRATION_N_BINS],
        n_right[CALIBRATION_N_BINS]; /* recent children counted in each bin, and the correct ones */
    float value[CALIBRATION_N_BINS]; /* the map at the middle of each bin; never falls */
    int32_t n_since_fit;
} Calibration;

/* Starts without observations; the map is that of the prior (NULL: the identity). */
void calibration_init(Calibration *c, const Calibration *prior);

/* Learns from a proposal, as its drafter made it, and the n >= 1 tokens that were committed after its node 0. It
 * counts the children of every correct node whose next token is known. */
void calibration_learn(Calibration *c, const Tree *proposal, const int32_t *tokens, int64_t n);

/* Fits the map again if enough was learned since the last fit. Where a bin has few observations, it leans on `prior`
 * (NULL: the identity). */
void calibration_fit(Calibration *c, const Calibration *prior);

/* The calibrated probability that a child is correct given that its parent is, for the drafter's own estimate of
 * that. */
float calibration_apply(const Calibration *c, float conditional);

/* `into` becomes `from` with calibrated p_accept, which never rises along a path either. */
void calibration_apply_tree(const Calibration *c, const Tree *from, Tree *into);

#endif
