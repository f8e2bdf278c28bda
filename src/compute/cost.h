/* cost.h - T(n): what a forward over n rows costs on this machine, and the least that it could cost. */
#ifndef BACKEND_COST_H
#define BACKEND_COST_H

#include "compute/executor.h"

/* What a forward has to move and to compute. */
void cost_work(const Weights *w, KvType kv_type, CostWork *out);

/* The limits of this machine as the backend of the weights meets them; all zero where it knows none. Takes about half
 * a second. */
int cost_machine_speed(const Weights *w, int n_threads, MachineSpeed *out, fr_error *err);

/* Keys that a row of a chain sees on average behind n_context tokens: those tokens, the rows before it and itself. */
static inline double cost_keys_of_row(int32_t n_rows, int32_t n_context) { return n_context + 0.5 * (n_rows + 1); }

/* The mean over the layers of the earlier tokens that a row sees, of n. */
static inline double cost_keys_seen(const CostWork *work, double n) {
    double in_window = n < work->window ? n : work->window;
    return n + work->window_share * (in_window - n);
}

/* Seconds of a forward of n_rows rows (a chain) after n_context tokens that would keep either the memory or the
 * arithmetic busy without a pause: the larger of the two; 0 where the speed is unknown. */
double cost_limit_s(const CostWork *work, const MachineSpeed *speed, int32_t n_rows, int32_t n_context);

/* seconds[i]: wall time of a forward of row_counts[i] rows (a chain, all wanting logits) after n_context committed
 * tokens, as a quantile of the rounds: 0.5 the median, 0 the minimum. The numbers of rows take turns, for at least
 * min_rounds rounds and about budget_s seconds in all, so that disturbances affect them alike. Needs a free sequence
 * and leaves none open. */
int cost_measure(Executor *e, int32_t n_context, const int32_t *row_counts, int n, int min_rounds, double budget_s,
                 double quantile, double *seconds, fr_error *err);

#endif
