/* step_counts.c - sums of fr_stats, and how they are printed. */
#include "app/run/step_counts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void add_counter(StepCounts *sum, const fr_counter *more) {
    int i = 0;
    while (i < sum->n_counters && strcmp(sum->counters[i].name, more->name) != 0) i++;
    if (i == FR_MAX_COUNTERS) return;
    if (i == sum->n_counters) {
        sum->n_counters++;
        sum->counters[i] = *more;
        return;
    }
    sum->counters[i].drafted += more->drafted;
    sum->counters[i].accepted += more->accepted;
}

void step_counts_take(StepCounts *sum, const fr_stats *s) {
    StepCounts one = {.n_steps = s->n_steps, .n_counters = s->n_counters};
    for (int i = 0; i < s->n_counters; i++) one.counters[i] = s->counters[i];
    for (int d = 1; d <= STEP_COUNTS_DEPTHS; d++) one.accepted_at[d] = s->accepted_at[d];
    step_counts_add(sum, &one);
}

void step_counts_add(StepCounts *sum, const StepCounts *more) {
    sum->n_steps += more->n_steps;
    for (int i = 0; i < more->n_counters; i++) add_counter(sum, &more->counters[i]);
    for (int d = 1; d <= STEP_COUNTS_DEPTHS; d++) sum->accepted_at[d] += more->accepted_at[d];
}

double step_counts_acceptance(const StepCounts *c, int depth) {
    int64_t reached = depth == 1 ? c->n_steps : c->accepted_at[depth - 1];
    return reached > 0 ? (double)c->accepted_at[depth] / (double)reached : NAN;
}

void step_counts_json(const StepCounts *c, json_t *object) {
    json_t *shares = json_array();
    for (int d = 1; d <= STEP_COUNTS_DEPTHS && !isnan(step_counts_acceptance(c, d)); d++)
        json_array_append_new(shares, json_real(step_counts_acceptance(c, d)));
    json_object_set_new(object, "acceptance_by_step", shares);
    json_t *counters = json_object();
    for (int i = 0; i < c->n_counters; i++)
        json_object_set_new(counters, c->counters[i].name, json_pack("{s:I, s:I}", "drafted", (json_int_t)c->counters[i].drafted,
                                                                     "accepted", (json_int_t)c->counters[i].accepted));
    json_object_set_new(object, "counters", counters);
}

void step_counts_print_head(int width) {
    printf("\n%-*s  accepted at depth d, %% of the steps that got to d - 1\n%-*s ", width, "", width, "");
    for (int d = 1; d <= STEP_COUNTS_DEPTHS; d++) printf(" %5d", d);
    printf("\n");
}

void step_counts_print(const StepCounts *c, const char *name, int width) {
    printf("%-*.*s ", width, width, name);
    for (int d = 1; d <= STEP_COUNTS_DEPTHS && !isnan(step_counts_acceptance(c, d)); d++) printf(" %5.1f", 100 * step_counts_acceptance(c, d));
    for (int i = 0; i < c->n_counters; i++)
        if (c->counters[i].drafted)
            printf("   %s: %.2f nodes a step, %.3f accepted", c->counters[i].name, (double)c->counters[i].drafted / (double)c->n_steps,
                   (double)c->counters[i].accepted / (double)c->n_steps);
    printf("\n");
}
