/* cost_parts.c - takes a forward apart by the parts that its backend names. */
#include "compute/cost_parts.h"

#include "base/system.h"

#include <string.h>

/* The seconds by part of the fastest of some forwards. */
static int time_parts(Executor *e, int32_t n_rows, int32_t n_context, double seconds, double *part_s, double *whole_s,
                      fr_error *err) {
    Context *c = executor_context(e);
    const Backend *backend = executor_weights(e)->backend;
    double end_s = clock_s() + seconds, now_s[COST_PARTS_MAX], forward_s;
    int status = FR_OK;
    for (int round = 0; !status && (round < 3 || clock_s() < end_s); round++) {
        memset(now_s, 0, sizeof now_s);
        backend->time_parts(c, now_s);
        status = cost_measure(e, n_context, &n_rows, 1, 1, 0, 0, &forward_s, err);
        if (status || (round > 0 && forward_s >= *whole_s)) continue;
        *whole_s = forward_s;
        memcpy(part_s, now_s, sizeof now_s);
    }
    backend->time_parts(c, NULL);
    return status;
}

int cost_parts_measure(Executor *e, const MachineSpeed *speed, int32_t n_rows, int32_t n_context, double seconds,
                       CostPart *parts, double *whole_s, fr_error *err) {
    const Weights *w = executor_weights(e);
    double part_s[COST_PARTS_MAX] = {0};
    int status = time_parts(e, n_rows, n_context, seconds, part_s, whole_s, err);
    if (status) return status;
    int n = w->backend->parts(w, executor_options(e)->kv_type, speed, n_rows, n_context, parts);
    for (int i = 0; i < n; i++) parts[i].seconds = part_s[i];
    return n;
}

int cost_read_weights(Device *d, const Weights *w, double *seconds, fr_error *err) {
    *seconds = 0;
    return w->backend->read_weights ? w->backend->read_weights(d, w, seconds, err) : FR_OK;
}
