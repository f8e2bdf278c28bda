/* cost_parts.h - where the time of a forward goes: each kind of matrix product by itself, attention, and the rest. */
#ifndef BACKEND_COST_PARTS_H
#define BACKEND_COST_PARTS_H

#include "backend/cost.h"

enum { COST_PARTS_MAX = 10 };

typedef struct CostPart {
    const char *name;
    int64_t n_out, n_in;  /* of the matrices of one layer, over the same inputs; 0: this part is no matrix product */
    int32_t n_layers;     /* that have it; 0: it is not counted */
    double bytes;         /* read by one forward */
    double ops;           /* multiplications and additions; of 16-bit activations each counts twice */
    double seconds;       /* measured, all layers together */
    double floor_s;       /* the longer of reading the bytes and computing the operations at the machine's best; 0: no floor is known */
} CostPart;

/* Takes a forward of n_rows rows (a chain) behind n_context tokens apart: the fastest of as many as about `seconds` allow, by the kinds
 * of its stages, which add up to *whole_s (but for the writing down of the stages). With a product go the small things that its parts
 * do at once (executor.h); "norms" has no floor. Fills parts [COST_PARTS_MAX] and returns how many there are, or a negative
 * code. Needs a free sequence. */
int cost_parts_measure(const Model *m, Executor *e, KvType kv_type, const MachineSpeed *speed, int32_t n_rows,
                       int32_t n_context, double seconds, CostPart *parts, double *whole_s, fr_error *err);

/* *seconds: in which the threads read all packed matrices once and do nothing else, what the memory gives for these very pages. */
int cost_read_weights(const Model *m, int n_threads, double *seconds, fr_error *err);

#endif
