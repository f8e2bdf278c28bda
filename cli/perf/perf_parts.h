/* perf_parts.h - the second half of `forerun perf`: the parts of a forward, each with its lower limit and a verdict
 * in words. */
#ifndef PERF_PERF_PARTS_H
#define PERF_PERF_PARTS_H

#include "compute/cost.h"

#include <jansson.h>

void perf_parts_print(const CostPart *parts, int n, int32_t n_rows, double whole_s, const MachineSpeed *speed);
json_t *perf_parts_json(const CostPart *parts, int n, int32_t n_rows, double whole_s, const MachineSpeed *speed);

#endif
