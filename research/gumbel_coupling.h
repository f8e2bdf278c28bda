/* gumbel_coupling.h - how often two distributions choose alike when they share their Gumbel noise
 * (research/COUPLING.md). p and q: [n], each of sum 1. */
#ifndef LAB_GUMBEL_COUPLING_H
#define LAB_GUMBEL_COUPLING_H

#include <stdint.h>

double total_variation(const double *p, const double *q, int32_t n);
/* P(argmax(log p + G) = argmax(log q + G)), exactly; -1: no memory. */
double gumbel_agreement(const double *p, const double *q, int32_t n);

#endif
