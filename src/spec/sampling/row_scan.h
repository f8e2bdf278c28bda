/* row_scan.h - passes over a whole row of logits, which cost a step its time where vocabularies are large. */
#ifndef SAMPLING_ROW_SCAN_H
#define SAMPLING_ROW_SCAN_H

#include <stdint.h>

/* The lowest id of the greatest logit; -1 where all are NaN or -inf. */
int32_t row_argmax(const float *row, int32_t n);

/* The sum of exp((row[i] - max) / temperature) over all logits but NaN and -inf, `max` being the greatest of them and finite,
 * temperature > 0. Within 1e-6 of its value; the same bits on every machine. */
double row_mass(const float *row, int32_t n, float max, float temperature);

/* Writes the ids of all logits >= floor (but -inf) to ids ([n]), rising; returns how many. */
int32_t row_above(const float *row, int32_t n, float floor, int32_t *ids);

#endif
