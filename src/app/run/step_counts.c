#include "app/run/step_counts.h"

#include <math.h>
#include <stdio.h>

void step_counts_take(StepCounts *sum, const fr_stats *s) {
    StepCounts one = {.n_steps = s->n_steps, .resampled = s->resampled, .resampled_accepted = s->resampled_accepted};
    for (int d = 1; d <= STEP_COUNTS_DEPTHS; d++) one.accepted_at[d] = s->accepted_at[d];
    step_counts_add(sum, &one);
}

void step_counts_add(StepCounts *sum, const StepCounts *more) {
    sum->n_steps += more->n_steps;
    sum->resampled += more->resampled;
    sum->resampled_accepted += more->resampled_accepted;
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
    json_object_set_new(object, "resampled", json_integer(c->resampled));
    json_object_set_new(object, "resampled_accepted", json_integer(c->resampled_accepted));
}

void step_counts_print_head(int width) {
    printf("\n%-*s  accepted at depth d, %% of the steps that got to d - 1\n%-*s ", width, "", width, "");
    for (int d = 1; d <= STEP_COUNTS_DEPTHS; d++) printf(" %5d", d);
    printf("\n");
}

void step_counts_print(const StepCounts *c, const char *name, int width) {
    printf("%-*.*s ", width, width, name);
    for (int d = 1; d <= STEP_COUNTS_DEPTHS && !isnan(step_counts_acceptance(c, d)); d++) printf(" %5.1f", 100 * step_counts_acceptance(c, d));
    if (c->resampled)
        printf("   re-sampled: %.2f nodes a step, %.3f accepted", (double)c->resampled / (double)c->n_steps,
               (double)c->resampled_accepted / (double)c->n_steps);
    printf("\n");
}
