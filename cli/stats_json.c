/* stats_json.c - sums of the statistics of requests, their JSON object, and the table of acceptance by depth.
 *
 * Every command that reports statistics goes through here, so that a field has one name and one meaning wherever it
 * is written.
 */
#include "cli/stats_json.h"

#include "cli/json_memory.h"
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void add_counter(fr_draft_stats *sum, const fr_counter *more) {
    int i = 0;
    while (i < sum->n_counters && strcmp(sum->counters[i].name, more->name) != 0) i++;
    if (i == FR_MAX_COUNTERS) return;
    if (i == sum->n_counters) {
        sum->counters[sum->n_counters++] = *more;
        return;
    }
    sum->counters[i].drafted += more->drafted;
    sum->counters[i].accepted += more->accepted;
}

void stats_read(RequestStats *out, const fr_request *request) {
    *out = (RequestStats){.counts.struct_size = sizeof out->counts, .drafts.struct_size = sizeof out->drafts};
    (void)fr_request_get_stats(request, &out->counts);
    (void)fr_request_get_draft_stats(request, &out->drafts);
    snprintf(out->draft_error, sizeof out->draft_error, "%s", fr_request_draft_error(request));
}

static void add_counts(fr_stats *sum, const fr_stats *more) {
    sum->n_prompt += more->n_prompt;
    sum->n_generated += more->n_generated;
    sum->n_prompt_shared += more->n_prompt_shared;
    sum->n_preempted += more->n_preempted;
    sum->n_recomputed += more->n_recomputed;
    sum->n_steps += more->n_steps;
    sum->drafted += more->drafted;
    sum->accepted += more->accepted;
    sum->prefill_s += more->prefill_s;
    sum->decode_s += more->decode_s;
    sum->draft_s += more->draft_s;
    sum->forward_s += more->forward_s;
    sum->verify_s += more->verify_s;
    sum->is_lossy |= more->is_lossy;
    sum->acceptance_length = sum->n_steps ? (double)sum->n_generated / (double)sum->n_steps : 0;
    sum->tokens_per_s = sum->decode_s > 0 ? (double)sum->n_generated / sum->decode_s : 0;
}

static void add_drafts(fr_draft_stats *sum, const fr_draft_stats *more) {
    sum->n_proposals += more->n_proposals;
    sum->n_undrafted_steps += more->n_undrafted_steps;
    for (int d = 0; d <= FR_MAX_DEPTH; d++) {
        sum->accept_histogram[d] += more->accept_histogram[d];
        sum->offered_at[d] += more->offered_at[d];
        sum->accepted_at[d] += more->accepted_at[d];
    }
    for (int i = 0; i < more->n_counters; i++) add_counter(sum, &more->counters[i]);
}

void stats_add(RequestStats *sum, const RequestStats *more) {
    add_counts(&sum->counts, &more->counts);
    add_drafts(&sum->drafts, &more->drafts);
}

/* The share of the steps that accepted a node at depth d among those that accepted one at depth d - 1, or among all steps
 * if d is 1. Steps that were offered no node at depth d count, too. NaN: no step accepted a node at depth d - 1. */
static double stats_acceptance(const RequestStats *s, int depth) {
    int64_t reached = depth == 1 ? s->counts.n_steps : s->drafts.accepted_at[depth - 1];
    return reached > 0 ? (double)s->drafts.accepted_at[depth] / (double)reached : NAN;
}

/* Without the zeros at the end. */
static json_t *histogram_json(const int64_t *counts) {
    json_t *array = json_array();
    int last = FR_MAX_DEPTH;
    while (last > 0 && counts[last] == 0) last--;
    for (int i = 0; i <= last; i++) json_array_append_new(array, json_integer(counts[i]));
    return array;
}

/* By depth: accepted, of the steps that offered a node there. */
static json_t *conditional_json(const RequestStats *s) {
    json_t *array = json_array();
    for (int d = 1; d <= FR_MAX_DEPTH && s->drafts.offered_at[d]; d++)
        json_array_append_new(array, json_real((double)s->drafts.accepted_at[d] / (double)s->drafts.offered_at[d]));
    return array;
}

static json_t *by_step_json(const RequestStats *s) {
    json_t *array = json_array();
    for (int d = 1; d <= STATS_DEPTHS && !isnan(stats_acceptance(s, d)); d++)
        json_array_append_new(array, json_real(stats_acceptance(s, d)));
    return array;
}

/* {"lyanna.resampled": {"drafted": 12, "accepted": 7}} */
static json_t *counters_json(const RequestStats *s) {
    json_t *object = json_object();
    for (int i = 0; i < s->drafts.n_counters; i++)
        json_object_set_new(object, s->drafts.counters[i].name,
                            json_pack("{s:I, s:I}", "drafted", (json_int_t)s->drafts.counters[i].drafted, "accepted",
                                      (json_int_t)s->drafts.counters[i].accepted));
    return object;
}

json_t *stats_json(const RequestStats *s) {
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        {"n_prompt", s->counts.n_prompt},
        {"n_prompt_shared", s->counts.n_prompt_shared},
        {"n_preempted", s->counts.n_preempted},
        {"n_recomputed", s->counts.n_recomputed},
        {"n_generated", s->counts.n_generated},
        {"n_steps", s->counts.n_steps},
        {"undrafted_steps", s->drafts.n_undrafted_steps},
        {"proposals", s->drafts.n_proposals},
        {"drafted", s->counts.drafted},
        {"accepted", s->counts.accepted},
    };
    const struct {
        const char *name;
        double value;
    } reals[] = {
        {"acceptance_length", s->counts.acceptance_length},
        {"prefill_s", s->counts.prefill_s},
        {"decode_s", s->counts.decode_s},
        {"draft_s", s->counts.draft_s},
        {"forward_s", s->counts.forward_s},
        {"verify_s", s->counts.verify_s},
        {"tokens_per_s", s->counts.tokens_per_s},
    };
    json_t *j = json_object();
    int failed = !j;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        failed |= json_object_set_new(j, counts[i].name, json_integer(counts[i].value));
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        failed |= json_object_set_new(j, reals[i].name, json_real_or_null(reals[i].value));
    failed |= json_object_set_new(j, "accept_histogram", histogram_json(s->drafts.accept_histogram));
    failed |= json_object_set_new(j, "conditional_acceptance", conditional_json(s));
    failed |= json_object_set_new(j, "acceptance_by_step", by_step_json(s));
    failed |= json_object_set_new(j, "counters", counters_json(s));
    if (!failed) return j;
    json_decref(j);
    return NULL;
}

void stats_print_depths_head(int width) {
    printf("\naccepted at depth d, %% of the steps that accepted depth d - 1\n%-*s ", width, "");
    for (int d = 1; d <= STATS_DEPTHS; d++) printf(" %5d", d);
    printf("\n");
}

void stats_print_depths(const RequestStats *s, const char *name, int width) {
    table_name(name, width);
    putchar(' ');
    for (int d = 1; d <= STATS_DEPTHS && !isnan(stats_acceptance(s, d)); d++)
        printf(" %5.1f", 100 * stats_acceptance(s, d));
    printf("\n");
    for (int i = 0; i < s->drafts.n_counters; i++)
        if (s->drafts.counters[i].drafted)
            printf("    %s per step: %.2f nodes, %.3f accepted\n", s->drafts.counters[i].name,
                   (double)s->drafts.counters[i].drafted / (double)s->counts.n_steps,
                   (double)s->drafts.counters[i].accepted / (double)s->counts.n_steps);
}
