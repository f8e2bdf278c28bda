/* stats_json.c - sums of the statistics of requests, their JSON object, and the table of acceptance by depth.
 *
 * Every command that reports statistics uses these functions, so that a field has one name and one meaning
 * everywhere. */
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

enum { LOOP_LEAST = 24, LOOP_WINDOW = 128, LOOP_LENGTH = 4 }; /* tokens */

bool stats_repeats(const int32_t *tokens, int64_t n) {
    if (n < LOOP_LEAST) return false;
    int64_t n_window = n < LOOP_WINDOW ? n : LOOP_WINDOW, n_places = n_window - LOOP_LENGTH + 1, n_seen = 0;
    const int32_t *t = tokens + n - n_window;
    for (int64_t i = 1; i < n_places; i++)
        for (int64_t k = 0; k < i; k++)
            if (memcmp(t + i, t + k, LOOP_LENGTH * sizeof *t) == 0) {
                n_seen++;
                break;
            }
    return 2 * n_seen > n_places;
}

void stats_read(RequestStats *out, const fr_request *request) {
    int64_t n;
    const int32_t *tokens = fr_request_tokens(request, &n);
    *out = (RequestStats){.counts.struct_size = sizeof out->counts, .drafts.struct_size = sizeof out->drafts};
    (void)fr_request_get_stats(request, &out->counts);
    (void)fr_request_get_draft_stats(request, &out->drafts);
    snprintf(out->draft_error, sizeof out->draft_error, "%s", fr_request_draft_error(request));
    out->n_repeating = stats_repeats(tokens, n);
}

/* The fields that add up over requests, by their names in the JSON object. */
#define EACH_COUNT(X) \
    X("n_prompt", counts.n_prompt) \
    X("n_prompt_shared", counts.n_prompt_shared) \
    X("n_preempted", counts.n_preempted) \
    X("n_recomputed", counts.n_recomputed) \
    X("n_generated", counts.n_generated) \
    X("n_steps", counts.n_steps) \
    X("undrafted_steps", drafts.n_undrafted_steps) \
    X("proposals", drafts.n_proposals) \
    X("drafted", counts.drafted) \
    X("accepted", counts.accepted)
#define EACH_TIME(X) \
    X("prefill_s", counts.prefill_s) \
    X("decode_s", counts.decode_s) \
    X("draft_s", counts.draft_s) \
    X("forward_s", counts.forward_s) \
    X("verify_s", counts.verify_s)

void stats_add(RequestStats *sum, const RequestStats *more) {
#define ADD(name, field) sum->field += more->field;
    EACH_COUNT(ADD)
    EACH_TIME(ADD)
#undef ADD
    sum->n_repeating += more->n_repeating;
    fr_stats *c = &sum->counts;
    c->is_lossy |= more->counts.is_lossy;
    c->acceptance_length = c->n_steps ? (double)c->n_generated / (double)c->n_steps : 0;
    c->tokens_per_s = c->decode_s > 0 ? (double)c->n_generated / c->decode_s : 0;
    for (int d = 0; d <= FR_MAX_DEPTH; d++) {
        sum->drafts.accept_histogram[d] += more->drafts.accept_histogram[d];
        sum->drafts.offered_at[d] += more->drafts.offered_at[d];
        sum->drafts.accepted_at[d] += more->drafts.accepted_at[d];
    }
    for (int i = 0; i < more->drafts.n_counters; i++) add_counter(&sum->drafts, &more->drafts.counters[i]);
    if (more->drafts.shared_vocab > 0) sum->drafts.shared_vocab = more->drafts.shared_vocab;
}

/* Returns the share of the steps that accepted a node at depth d among those that accepted one at depth d - 1, or among
 * all steps if d is 1. Steps that were offered no node at depth d count, too. NaN: no step got as deep as d - 1. */
static double stats_acceptance(const RequestStats *s, int depth) {
    int64_t reached = depth == 1 ? s->counts.n_steps : s->drafts.accepted_at[depth - 1];
    return reached > 0 ? (double)s->drafts.accepted_at[depth] / (double)reached : NAN;
}

/* Returns the counts by depth, without the zeros at the end. */
static json_t *histogram_json(const int64_t *counts) {
    json_t *array = json_array();
    int last = FR_MAX_DEPTH;
    while (last > 0 && counts[last] == 0) last--;
    for (int i = 0; i <= last; i++) json_array_append_new(array, json_integer(counts[i]));
    return array;
}

/* For each depth, the share of the steps that were offered a node there which accepted it. */
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

/* Makes {"lyanna.resampled": {"drafted": 12, "accepted": 7}, ...}. */
static json_t *counters_json(const RequestStats *s) {
    json_t *object = json_object();
    for (int i = 0; i < s->drafts.n_counters; i++) {
        const fr_counter *c = &s->drafts.counters[i];
        json_object_set_new(
            object, c->name,
            json_pack("{s:I, s:I}", "drafted", (json_int_t)c->drafted, "accepted", (json_int_t)c->accepted));
    }
    return object;
}

json_t *stats_json(const RequestStats *s) {
    json_t *j = json_object();
    int failed = !j;
#define SET_COUNT(name, field) failed |= json_object_set_new(j, name, json_integer(s->field));
#define SET_REAL(name, field) failed |= json_object_set_new(j, name, json_real_or_null(s->field));
    EACH_COUNT(SET_COUNT)
    SET_REAL("acceptance_length", counts.acceptance_length)
    EACH_TIME(SET_REAL)
    SET_REAL("tokens_per_s", counts.tokens_per_s)
#undef SET_COUNT
#undef SET_REAL
    failed |= json_object_set_new(j, "repeating", json_integer(s->n_repeating));
    failed |= json_object_set_new(j, "accept_histogram", histogram_json(s->drafts.accept_histogram));
    failed |= json_object_set_new(j, "conditional_acceptance", conditional_json(s));
    failed |= json_object_set_new(j, "acceptance_by_step", by_step_json(s));
    failed |= json_object_set_new(j, "counters", counters_json(s));
    failed |= json_object_set_new(j, "shared_vocab",
                                  s->drafts.shared_vocab > 0 ? json_real(s->drafts.shared_vocab) : json_null());
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
    double n_steps = (double)s->counts.n_steps;
    if (s->drafts.shared_vocab > 0)
        printf("    the draft model has another vocabulary, with %.1f %% of the target's tokens\n",
               100 * s->drafts.shared_vocab);
    for (int i = 0; i < s->drafts.n_counters; i++) {
        const fr_counter *c = &s->drafts.counters[i];
        if (c->drafted)
            printf("    %s per step: %.2f nodes, %.3f accepted\n", c->name, (double)c->drafted / n_steps,
                   (double)c->accepted / n_steps);
    }
}
