/* cost.h - T(n): what a forward over n rows costs on this machine, the least that it could cost, and where its time
 * goes.
 *
 *   cost_curve     T(n, context) as a running engine knows it: measured once, then corrected by every forward
 *   cost_cache     such a curve kept in a file, so that the next start does not measure again
 *   cost_parts     the time of a forward by its parts
 */
#ifndef COMPUTE_COST_H
#define COMPUTE_COST_H

#include "compute/executor.h"

/* Computes what a forward has to move and to compute. */
void cost_work(const Weights *w, KvType kv_type, CostWork *out);

/* Returns the limits of this machine as the backend of the weights meets them; all are zero if the backend does not
 * know any. Takes about half a second. */
int cost_machine_speed(const Weights *w, int n_threads, MachineSpeed *out, fr_error *err);

/* Returns the keys that a row of a chain after n_context tokens sees on average: those tokens, the rows before it and
 * itself. */
static inline double cost_keys_of_row(int32_t n_rows, int32_t n_context) { return n_context + 0.5 * (n_rows + 1); }

/* Returns how many of n earlier tokens a row sees, on average over the layers. */
static inline double cost_keys_seen(const CostWork *work, double n) {
    double in_window = n < work->window ? n : work->window;
    return n + work->window_share * (in_window - n);
}

/* Returns seconds of a forward of n_rows rows (a chain) after n_context tokens that would keep either the memory or the
 * arithmetic busy without a pause: the larger of the two; 0 if the speed is unknown. */
double cost_limit_s(const CostWork *work, const MachineSpeed *speed, int32_t n_rows, int32_t n_context);

/* seconds[i] is the wall time of a forward of row_counts[i] rows (a chain, all wanting the best token) after n_context
 * committed tokens, as a quantile of the rounds: 0.5 is the median, 0 the minimum. The numbers of rows take turns, for
 * at least min_rounds rounds and about budget_s seconds in all, so that disturbances affect them alike. Needs a free
 * sequence and leaves none open. */
int cost_measure(Executor *e, int32_t n_context, const int32_t *row_counts, int n, int min_rounds, double budget_s,
                 double quantile, double *seconds, fr_error *err);

/* ---- the curve -------------------------------------------------------------------------------------- */

enum { COST_CURVE_MAX = 9 };

/* T(n, context) = a(n) + context * (key_read_s + n * key_s) + n * logits_s: keys are read once, and every row is
 * multiplied with every key. a(n) is linear between the points and continues after the last one with the slope of the
 * last segment. It is measured with rows of which only the best token is wanted: where ranks exchange whole rows of
 * logits, logits_s is the time of one. */
typedef struct CostCurve {
    int n;                          /* points; 0: nothing is known */
    int32_t rows[COST_CURVE_MAX];   /* rising, the first is 1 */
    double seconds[COST_CURVE_MAX]; /* a(n), never falling */
    double key_s, key_read_s;       /* seconds for each row and key; seconds for each key, for all rows together */
    double n_context; /* the mean number of tokens before a row, which the functions below assume; the owner sets it */
    double logits_s;  /* cost_logits_s, if whole rows are wanted in the coming forward, or 0; the owner sets it */
    double disturbance; /* above 1: other programs ran during the measurement (cost_disturbance) */
} CostCurve;

/* Measures 1 to 32 rows without context, and 8 rows after a long one (1024 tokens, if that many fit). This takes about
 * 150 ms, and up to 2 s for a large model; if that does not suffice, fewer numbers of rows are measured. If other
 * programs run at the same time, it measures up to twice more and keeps the least disturbed result, unless the model is
 * large. Needs a free sequence and leaves none open. Without room for a long context, keys are assumed to cost nothing.
 * After a failure the curve is empty. n_threads: the threads of the device. */
int cost_curve_measure(CostCurve *c, Executor *e, int32_t n_ctx, int n_threads, fr_error *err);
/* Returns how much other programs disturbed a measurement. spread: the mean time of forwards that should take equally
 * long, in multiples of the fastest. cpu_share: the processor time of this process as a share of what its threads could
 * have had. Up to 1 is the noise of an idle machine. */
double cost_disturbance(double spread, double cpu_share);
/* Returns the seconds in which rank 0 receives the other ranks' parts of one row of logits; 0: there are none. */
double cost_logits_s(const Weights *w);
/* n_rows >= 1; the curve is not empty. */
double cost_curve_at(const CostCurve *c, int32_t n_rows);
/* Corrects the curve by one forward of n_rows rows that took so long. A forward moves the curve by a tenth at most,
 * however slow it was, so that momentary disturbances do not matter. */
void cost_curve_observe(CostCurve *c, int32_t n_rows, double seconds);

/* ---- parts ------------------------------------------------------------------------------------------ */

/* Measures the parts of a forward of n_rows rows (a chain) after n_context tokens: the fastest of as many forwards as
 * about `seconds` allow. The parts are those that the backend names, and add up to *whole_s, except for the time in
 * which the operations are written down. Small operations that are done together with a product are counted with it.
 * Fills parts [COST_PARTS_MAX] and returns their number, or a negative code. Needs a free sequence. */
int cost_parts_measure(Executor *e, const MachineSpeed *speed, int32_t n_rows, int32_t n_context, double seconds,
                       CostPart *parts, double *whole_s, fr_error *err);

/* *seconds is the time in which all matrices are read once and nothing else is done, that is, what memory gives for
 * these very pages; 0 if the backend cannot tell. */
int cost_read_weights(Device *d, const Weights *w, double *seconds, fr_error *err);

/* ---- the cache -------------------------------------------------------------------------------------- */

/* Owners of curves do not store those that other programs disturbed.
 *
 * A file belongs to one key: CPU, threads, kernel table, forms of activations and cache, context, and the shapes and
 * types of the model's tensors, because the cost depends on these. The name of the file is a hash of the key, and the
 * file contains the key: a damaged file, or one of another key, is ignored. Costs decide trees and never tokens, so a
 * wrong entry costs only time, and every forward corrects the curve. */
enum { COST_KEY_BYTES = 256 };

/* Writes what the curve of this executor depends on, as one line. */
void cost_cache_key(const Executor *e, int n_threads, char out[COST_KEY_BYTES]);
/* Returns false if the folder has no valid entry for the key; *out is unchanged then. */
bool cost_cache_load(const char *folder, const char *key, CostCurve *out);
/* Writes the entry, replacing an earlier one as a whole. The folder must exist. */
int cost_cache_store(const char *folder, const char *key, const CostCurve *c, fr_error *err);

#endif
