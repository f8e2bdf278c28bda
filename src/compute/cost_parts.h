/* cost_parts.h - where the time of a forward goes: each kind of matrix product by itself, attention, and the rest. */
#ifndef BACKEND_COST_PARTS_H
#define BACKEND_COST_PARTS_H

#include "compute/cost.h"

/* Takes a forward of n_rows rows (a chain) behind n_context tokens apart: the fastest of as many as about `seconds`
 * allow, by the parts of its backend, which add up to *whole_s (but for the writing down of the operations). With a
 * product go the small things that are done with it at once. Fills parts [COST_PARTS_MAX] and returns how many there
 * are, or a negative code. Needs a free sequence. */
int cost_parts_measure(Executor *e, const MachineSpeed *speed, int32_t n_rows, int32_t n_context, double seconds,
                       CostPart *parts, double *whole_s, fr_error *err);

/* *seconds: the time in which all matrices are read once and nothing else is done, what memory gives for these very
 * pages; 0 where the backend cannot tell. */
int cost_read_weights(Device *d, const Weights *w, double *seconds, fr_error *err);

#endif
