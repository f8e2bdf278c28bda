/* row_scan.h - passes over a whole row of logits, whose cost matters where vocabularies are large. */
#ifndef SAMPLING_ROW_SCAN_H
#define SAMPLING_ROW_SCAN_H

#include <stdint.h>

/* The lowest id among the greatest logits; -1 if all are NaN or -inf. */
int32_t row_argmax(const float *row, int32_t n);

/* The sum of exp((row[i] - max) / temperature) over all logits except NaN and -inf; `max` is the greatest of them and
 * finite, temperature > 0. Its relative error is below 1e-6, and its bits are the same on every machine. */
double row_mass(const float *row, int32_t n, float max, float temperature);

/* Writes the ids of all logits >= floor (except -inf) to ids ([n]) in rising order; returns how many there are. */
int32_t row_above(const float *row, int32_t n, float floor, int32_t *ids);

#endif
