/* replay.c - runs drafters against a recorded answer: exact greedy acceptance without the model.
 *
 * For greedy decoding the target's token at each position is known from the record, so walking the tree along the
 * answer gives the very path that verification would accept. Trees are validated as in the engine. */
#include "base/mem.h"
#include "base/system.h"
#include "cli/safe_text.h"
#include "research/replay.h"
#include "tree/tree.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Returns how many of the next tokens the tree contains as a path from node 0. */
static int64_t accepted(const Tree *t, const int32_t *next, int64_t n_next) {
    int64_t n = 0;
    for (int32_t node = 0; n < n_next && (node = tree_child(t, node, next[n])) >= 0;) n++;
    return n;
}

/* Enters each node of the tree into its bin. */
static void count_nodes(const Tree *t, const int32_t *next, int64_t n_next, ReplayBin *bins) {
    bool right[TREE_MAX_NODES] = {true};
    for (int32_t i = 1; i < t->n; i++) {
        const TreeNode *node = &t->nodes[i];
        right[i] = right[node->parent] && node->depth <= n_next && node->token == next[node->depth - 1];
        int32_t at = (int32_t)(node->p_accept * REPLAY_N_BINS);
        ReplayBin *bin = &bins[at < REPLAY_N_BINS ? at : REPLAY_N_BINS - 1];
        bin->n++;
        bin->n_right += right[i];
        bin->sum_p_accept += (double)node->p_accept;
    }
}

/* One run over one record. */
typedef struct Run {
    ReplayDraft *drafts;
    int n_drafts;
    const ReplayInput *in;
    ReplayStats *out;
    Tree tree, proposals[REPLAY_MAX_DRAFTS]; /* the proposals as the drafters made them */
    Tree calibrated;                         /* one proposal with calibrated estimates */
} Run;

static int propose(Run *r, int k, int32_t pending, fr_error *err) {
    Drafter *d = r->drafts[k].drafter;
    const int32_t sequence = 0;
    Tree *t = &r->proposals[k];
    tree_reset(t, pending);
    int status = d->class->propose(d, &sequence, &r->in->budget, &t, 1, err);
    return status ? status : tree_validate(t, pending, r->in->n_vocab, r->in->budget + 1, err);
}

/* Merges the proposals in r->tree. */
static void unite(Run *r, int32_t pending, const int32_t *next, int64_t n_next) {
    tree_reset(&r->tree, pending);
    for (int k = 0; k < r->n_drafts; k++) {
        calibration_apply_tree(&r->drafts[k].own, &r->proposals[k], &r->calibrated);
        count_nodes(&r->proposals[k], next, n_next, r->out->bins);
        count_nodes(&r->calibrated, next, n_next, r->out->calibrated);
        union_merge(&r->tree, &r->calibrated);
    }
    union_prune(&r->tree, r->in->budget);
}

static int observe(Run *r, const int32_t *tokens, int64_t n, fr_error *err) {
    int status = FR_OK;
    for (int k = 0; k < r->n_drafts && !status; k++) {
        ReplayDraft *d = &r->drafts[k];
        calibration_learn(&d->shared, &r->proposals[k], tokens, n);
        calibration_learn(&d->own, &r->proposals[k], tokens, n);
        calibration_fit(&d->shared, NULL);
        calibration_fit(&d->own, &d->shared);
        status = d->drafter->class->observe(d->drafter, 0, tokens, n, err);
    }
    return status;
}

static int run_steps(Run *r, double *step_s, fr_error *err) {
    const ReplayInput *in = r->in;
    int32_t pending = in->context[in->n_context - 1];
    int status = FR_OK;
    for (int64_t n = 0; n < in->n_output && !status; r->out->n_steps++) {
        const int32_t *next = in->output + n;
        double start_s = clock_s();
        for (int k = 0; k < r->n_drafts && !status; k++) status = propose(r, k, pending, err);
        double took_s = clock_s() - start_s;
        if (status) break;
        r->out->propose_s += took_s;
        if (step_s) step_s[r->out->n_steps] = took_s;
        unite(r, pending, next, in->n_output - n);
        int64_t n_new = accepted(&r->tree, next, in->n_output - n) + 1;
        if (n_new > in->n_output - n) n_new = in->n_output - n; /* the answer ends inside the tree */
        status = observe(r, next, n_new, err);
        n += n_new;
        pending = in->output[n - 1];
        r->out->n_drafted += r->tree.n - 1;
        r->out->n_tokens += n_new;
        r->out->n_of_length[n_new < REPLAY_N_LENGTHS ? n_new - 1 : REPLAY_N_LENGTHS - 1]++;
    }
    return status;
}

int64_t replay_copy_steps(const ReplayInput *in) {
    int64_t n_steps = 0;
    for (int64_t n = 0; n < in->n_output; n_steps++) {
        int64_t longest = 0, most = in->n_output - n < in->bound ? in->n_output - n : in->bound;
        for (int64_t at = 0; at < in->n_context && longest < most; at++) {
            int64_t k = 0;
            while (k < most && at + k < in->n_context && in->context[at + k] == in->output[n + k]) k++;
            if (k > longest) longest = k;
        }
        n += longest + 1; /* and the target's own token */
    }
    return n_steps;
}

int replay_run(ReplayDraft *drafts, int n_drafts, const ReplayInput *in, ReplayStats *out, double *step_s,
               fr_error *err) {
    fr_assert(in->n_context > 0 && in->budget >= 0 && in->budget < TREE_MAX_NODES && n_drafts <= REPLAY_MAX_DRAFTS);
    *out = (ReplayStats){.n_tokens = 0};
    Run *run = mem_calloc(1, sizeof *run);
    if (!run) return error_memory(err, "a replay", sizeof *run);
    run->drafts = drafts, run->n_drafts = n_drafts, run->in = in, run->out = out;
    double start_s = clock_s();
    int status = FR_OK;
    for (int k = 0; k < n_drafts && !status; k++) {
        Drafter *d = drafts[k].drafter;
        calibration_init(&drafts[k].own, &drafts[k].shared);
        status = d->class->begin(d, 0, in->context, in->n_context, err);
    }
    out->build_s = clock_s() - start_s;
    if (in->bound) out->n_copy_steps = replay_copy_steps(in);
    if (!status) status = run_steps(run, step_s, err);
    for (int k = 0; k < n_drafts; k++) drafts[k].drafter->class->end(drafts[k].drafter, 0);
    mem_free(run);
    return status;
}

/* Counts what `forerun replay` measures, by category, and prints it. */

/* ---- counting ----------------------------------------------------------------------------------- */

static void add_bins(ReplayBin *to, const ReplayBin *bins) {
    for (int i = 0; i < REPLAY_N_BINS; i++) {
        to[i].n += bins[i].n;
        to[i].n_right += bins[i].n_right;
        to[i].sum_p_accept += bins[i].sum_p_accept;
    }
}

int replay_add(ReplayCategory *c, const ReplayStats *s, const double *step_s, fr_error *err) {
    int64_t n = c->stats.n_steps + s->n_steps;
    if (n > c->capacity) {
        double *times = realloc(c->step_s, (size_t)(2 * n) * sizeof *times);
        if (!times) return error_memory(err, "the times of the steps", (size_t)(2 * n) * sizeof *times);
        c->step_s = times;
        c->capacity = 2 * n;
    }
    if (s->n_steps) memcpy(c->step_s + c->stats.n_steps, step_s, (size_t)s->n_steps * sizeof *step_s);
    c->n_records++;
    c->stats.n_tokens += s->n_tokens;
    c->stats.n_steps = n;
    c->stats.n_drafted += s->n_drafted;
    c->stats.n_copy_steps += s->n_copy_steps;
    c->stats.propose_s += s->propose_s;
    c->stats.build_s += s->build_s;
    for (int i = 0; i < REPLAY_N_LENGTHS; i++) c->stats.n_of_length[i] += s->n_of_length[i];
    add_bins(c->stats.bins, s->bins);
    add_bins(c->stats.calibrated, s->calibrated);
    return FR_OK;
}

ReplayCategory *replay_category(ReplayReport *r, const char *name, fr_error *err) {
    for (int i = 0; i < r->n_categories; i++)
        if (strcmp(r->categories[i].name, name) == 0) return &r->categories[i];
    ReplayCategory *c = &r->categories[r->n_categories];
    if (strcmp(name, "all") == 0)
        error_set(err, FR_ERR_FORMAT,
                  "has the category \"all\", which is the name of the sum over all categories; rename it");
    else if (r->n_categories == REPLAY_MAX_CATEGORIES)
        error_set(err, FR_ERR_FORMAT, "is of one category too many: at most %d are supported", REPLAY_MAX_CATEGORIES);
    else if (strlen(name) >= sizeof c->name)
        error_set(err, FR_ERR_FORMAT, "has a category of more than %zu bytes", sizeof c->name - 1);
    else {
        strcpy(c->name, name);
        r->n_categories++;
        return c;
    }
    return NULL;
}

/* ---- printing ----------------------------------------------------------------------------------- */

static double ratio(double a, int64_t b) { return b ? a / (double)b : 0; }

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_us(ReplayCategory *c) {
    int64_t n = c->stats.n_steps;
    if (n == 0) return 0;
    qsort(c->step_s, (size_t)n, sizeof *c->step_s, compare_times);
    return 1e6 * c->step_s[n / 2];
}

static void print_row(ReplayCategory *c, const char *name) {
    const ReplayStats *s = &c->stats;
    SafeText safe;
    printf("%-16s %8lld %8lld %10.3f %10.1f %10.1f %10.1f", safe_text(&safe, name), (long long)s->n_tokens,
           (long long)s->n_steps, ratio((double)s->n_tokens, s->n_steps), ratio((double)s->n_drafted, s->n_steps),
           1e6 * ratio(s->propose_s, s->n_steps), median_us(c));
    if (s->n_copy_steps) printf(" %10.3f", ratio((double)s->n_tokens, s->n_copy_steps));
    printf("\n");
}

static void print_calibration(const ReplayBin *bins, const char *name) {
    printf("\n%-16s %8s %10s %10s\n", name, "nodes", "mean p", "right");
    for (int i = 0; i < REPLAY_N_BINS; i++) {
        const ReplayBin *b = &bins[i];
        if (b->n)
            printf("%.1f to %.1f       %8lld %10.3f %10.3f\n", i / (double)REPLAY_N_BINS,
                   (i + 1) / (double)REPLAY_N_BINS, (long long)b->n, ratio(b->sum_p_accept, b->n),
                   ratio((double)b->n_right, b->n));
    }
}

void replay_print_table(ReplayReport *r, bool calibration) {
    printf("%-16s %8s %8s %10s %10s %10s %10s%s\n", "category", "tokens", "steps", "acceptance", "drafted",
           "propose us", "median us", r->all.stats.n_copy_steps ? " copy bound" : "");
    for (int i = 0; i < r->n_categories; i++) print_row(&r->categories[i], r->categories[i].name);
    print_row(&r->all, "all");
    if (!calibration) return;
    print_calibration(r->all.stats.bins, "own estimate");
    print_calibration(r->all.stats.calibrated, "calibrated");
}

static json_t *calibration_json(const ReplayBin *b) {
    json_t *bins = json_array();
    for (int i = 0; i < REPLAY_N_BINS; i++)
        json_array_append_new(bins, json_pack("{s:I, s:f, s:f}", "nodes", (json_int_t)b[i].n, "mean_p_accept",
                                              ratio(b[i].sum_p_accept, b[i].n), "right",
                                              ratio((double)b[i].n_right, b[i].n)));
    return bins;
}

static json_t *lengths_json(const ReplayStats *s) {
    json_t *lengths = json_array();
    for (int i = 0; i < REPLAY_N_LENGTHS; i++) json_array_append_new(lengths, json_integer(s->n_of_length[i]));
    return lengths;
}

static json_t *category_json(ReplayCategory *c) {
    const ReplayStats *s = &c->stats;
    json_t *bound = s->n_copy_steps ? json_real(ratio((double)s->n_tokens, s->n_copy_steps)) : NULL;
    return json_pack("{s:I, s:I, s:I, s:o*, s:o, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "records",
                     (json_int_t)c->n_records, "tokens", (json_int_t)s->n_tokens, "steps", (json_int_t)s->n_steps,
                     "copy_bound", bound, "steps_by_length", lengths_json(s), "acceptance_length",
                     ratio((double)s->n_tokens, s->n_steps), "drafted_per_step",
                     ratio((double)s->n_drafted, s->n_steps), "propose_us", 1e6 * ratio(s->propose_s, s->n_steps),
                     "propose_us_median", median_us(c), "build_us", 1e6 * ratio(s->build_s, c->n_records),
                     "calibration", calibration_json(s->bins), "calibrated", calibration_json(s->calibrated));
}

int replay_print_json(ReplayReport *r, fr_error *err) {
    json_t *root = json_object();
    int status = json_object_set_new(root, "all", category_json(&r->all));
    for (int i = 0; i < r->n_categories && status == 0; i++)
        status = json_object_set_new(root, r->categories[i].name, category_json(&r->categories[i]));
    char *text = status == 0 ? json_dumps(root, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(8)) : NULL;
    json_decref(root);
    if (!text) return error_set(err, FR_ERR_MEMORY, "out of memory while writing JSON");
    puts(text);
    free(text);
    return FR_OK;
}

void replay_report_free(ReplayReport *r) {
    free(r->all.step_s);
    for (int i = 0; i < r->n_categories; i++) free(r->categories[i].step_s);
}
