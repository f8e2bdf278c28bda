/* step_counts.h - statistics of drafted nodes, summed over requests: acceptance by depth, and the counters of drafters. */
#ifndef RUN_STEP_COUNTS_H
#define RUN_STEP_COUNTS_H

#include "forerun.h"

#include <jansson.h>

enum { STEP_COUNTS_DEPTHS = 8 };

/* Sums over requests. */
typedef struct StepCounts {
    int64_t n_steps, accepted_at[STEP_COUNTS_DEPTHS + 1]; /* [d]: steps that accepted a node at depth d = 1.. */
    int n_counters;
    fr_counter counters[FR_MAX_COUNTERS]; /* as in fr_stats, by name */
} StepCounts;

void step_counts_take(StepCounts *sum, const fr_stats *s);
void step_counts_add(StepCounts *sum, const StepCounts *more);

/* Of the steps that accepted a node at depth d - 1 (d = 1: of all), the share that accepted one at depth d; a step that was
 * offered none there counts. NaN: no step got that far. */
double step_counts_acceptance(const StepCounts *c, int depth);

/* Adds "acceptance_by_step", [P(1), P(2 | 1), ...] as far as steps got, and "counters", {name: {"drafted", "accepted"}}. */
void step_counts_json(const StepCounts *c, json_t *object);

/* A table for people; names are cut to `width`. */
void step_counts_print_head(int width);
void step_counts_print(const StepCounts *c, const char *name, int width);

#endif
