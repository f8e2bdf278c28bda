/* cost.h - T(n): what a forward over n rows costs on this machine. */
#ifndef MODEL_COST_H
#define MODEL_COST_H

#include "model/executor.h"

/* seconds[i]: median wall time of a forward of row_counts[i] rows (a chain, all wanting logits) after
 * n_context committed tokens. The counts take turns, for at least three rounds and about budget_s seconds
 * in all, so that what else the machine does hits them alike. Needs a free sequence; leaves none open. */
int cost_measure(Executor *e, int32_t n_context, const int32_t *row_counts, int n, double budget_s, double *seconds,
                 fr_error *err);

#endif
