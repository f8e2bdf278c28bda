/* bench_report.c - sums up the records of `forerun bench`, and prints them as tables and figures.
 *
 * A rate is the sum of tokens divided by the sum of seconds over all questions of a category in one run, not the mean
 * of the questions' rates, so that long answers count more. A speed-up is the ratio to the rate of plain decoding in
 * the same run, so that a run in which the machine was slow does not add to the deviation. The deviation is that of a
 * sample (n - 1).
 *
 * A report states what was measured, and how, before the numbers, and says in words where a method is slower than plain
 * decoding. */
#include "base/os.h"
#include "base/threads.h"
#include "cli/bench/bench.h"
#include "cli/plot.h"
#include "cli/safe_text.h"
#include "cli/stats_json.h"
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

BenchRecord *bench_record(const BenchResults *r, int i_run, int i_question, int i_method) {
    return &r->records[((size_t)i_run * (size_t)r->n_questions + (size_t)i_question) * (size_t)r->n_methods +
                       (size_t)i_method];
}

static void add(BenchRecord *sum, const BenchRecord *x) {
    sum->n_turns += x->n_turns;
    stats_add(&sum->stats, &x->stats);
}

static void spread(BenchSpread *s, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += s->runs[i];
    s->mean = sum / n;
    s->sd = speed_deviation(s->runs, n);
}

static BenchRecord sum_of(const BenchResults *r, int i_run, int i_category, int i_method, int *n_questions) {
    BenchRecord sum = {0};
    *n_questions = 0;
    for (int q = 0; q < r->n_questions; q++) {
        const BenchRecord *x = bench_record(r, i_run, q, i_method);
        if (i_category >= 0 && r->questions->items[q].i_category != i_category) continue;
        add(&sum, x);
        *n_questions += x->n_turns > 0;
    }
    return sum;
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

static double rate_of(const BenchResults *r, int i_run, int i_method, const BenchRecord *sum) {
    double seconds = r->wall_s ? r->wall_s[i_run * r->n_methods + i_method] : sum->stats.counts.decode_s;
    return ratio((double)sum->stats.counts.n_generated, seconds);
}

static void count_same(const BenchResults *r, int i_category, int i_method, BenchRow *out) {
    for (int run = 0; run < r->n_runs; run++)
        for (int q = 0; q < r->n_questions; q++) {
            const BenchRecord *x = bench_record(r, run, q, i_method),
                              *plain = &r->reference[(size_t)q * (size_t)r->n_methods];
            if (i_category >= 0 && r->questions->items[q].i_category != i_category) continue;
            out->n_answers++;
            out->n_same += x->fingerprint == plain->fingerprint &&
                           x->stats.counts.n_generated == plain->stats.counts.n_generated;
        }
    out->same = out->n_same == out->n_answers;
}

void bench_row(const BenchResults *r, int i_category, int i_method, BenchRow *out) {
    *out = (BenchRow){.n_questions = 0};
    count_same(r, i_category, i_method, out);
    for (int run = 0; run < r->n_runs; run++) {
        BenchRecord plain = sum_of(r, run, i_category, 0, &out->n_questions);
        BenchRecord sum = sum_of(r, run, i_category, i_method, &out->n_questions);
        add(&out->sum, &sum);
        out->rate.runs[run] = rate_of(r, run, i_method, &sum);
        out->prefill_rate.runs[run] = ratio((double)sum.stats.counts.n_prompt, sum.stats.counts.prefill_s);
        out->speed_up.runs[run] = ratio(out->rate.runs[run], rate_of(r, run, 0, &plain));
    }
    spread(&out->rate, r->n_runs);
    spread(&out->prefill_rate, r->n_runs);
    spread(&out->speed_up, r->n_runs);
    const fr_stats *c = &out->sum.stats.counts;
    out->verdict = i_method == 0 ? SPEED_BASELINE
                                 : speed_up(out->speed_up.mean, out->speed_up.sd, c->acceptance_length).verdict;
}

int64_t bench_memory(const BenchResults *r, int i_method) {
    int64_t plain = r->methods[0].memory_bytes, of_method = r->methods[i_method].memory_bytes;
    return plain < 0 || of_method < 0 ? -1 : of_method > plain ? of_method - plain : 0;
}

/* ---- the report as text ----------------------------------------------------------------------------- */

enum { NAME_WIDTH = 18 };

bool bench_texts_agree(const BenchReport *r) {
    for (int b = 0; b < r->n_results; b++)
        for (int m = 0; m < r->results[b].n_methods; m++) {
            BenchRow row;
            if (!r->results[b].texts_must_agree || r->results[b].n_runs == 0) continue;
            bench_row(&r->results[b], -1, m, &row);
            if (!row.same) return false;
        }
    return true;
}

#ifndef FORERUN_COMMIT
#define FORERUN_COMMIT "unknown" /* the Makefile knows it where there is a git repository */
#endif
const char *bench_commit(void) { return FORERUN_COMMIT; }

/* ---- head ------------------------------------------------------------------------------------------ */

static void print_head(const BenchReport *r) {
    const GenerateArgs *a = r->rig->args;
    const BenchResults *results = &r->results[0];
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(r->rig->model, &info);
    SafeText safe;
    char cpu[128];
    os_cpu_name(cpu, sizeof cpu);
    printf("forerun %s, commit %s; %s\n", fr_version(), bench_commit(), safe_text(&safe, cpu));
    printf("%s (%s, hash %s), kernels %s, %d threads\n", safe_text(&safe, info.name), info.architecture, r->model_hash,
           info.kernels, a->engine.n_threads ? a->engine.n_threads : threads_n_physical_cores());
    printf("%s: %d question%s", r->path, results->n_questions, results->n_questions == 1 ? "" : "s");
    if (r->n_left_out) printf(",\n%d more left out because they do not fit the context", r->n_left_out);
    printf(";\n%s; answers of ", r->rig->chat ? info.chat_family : "no chat format, raw turns");
    if (a->n_tokens) printf("at most %lld tokens", (long long)a->n_tokens);
    else printf("any length");
    if (a->sampling.temperature > 0)
        printf("; temperature %g, seed %llu", (double)a->sampling.temperature, (unsigned long long)a->sampling.seed);
    else printf("; greedy");
    printf("\nmethods alternating; ");
    if (results->n_runs > 1) printf("mean ± standard deviation of %d runs", results->n_runs);
    else printf("one run");
    if (results->n_runs < r->n_runs_wanted) printf(" of %d", r->n_runs_wanted);
    if (r->warm_up_path) printf(";\ndrafters that remember answers begin each run with those to %s\n", r->warm_up_path);
    else printf(";\ndrafters that remember answers begin each run without any\n");
    Buf lines = {.max_bytes = 64 << 10};
    if (r->command && text_wrap(&lines, r->command, 0, 2, TABLE_COLUMNS)) printf("%.*s\n", (int)lines.n, lines.data);
    buf_free(&lines);
}

static void print_tuning(const BenchTuning *t) {
    if (!t->chain) return;
    printf("chain %s tuned on %d question%s, tokens/s by length:\n ", t->chain, t->n_questions,
           t->n_questions > 1 ? "s" : "");
    for (int i = 0; i < t->n_lengths; i++)
        printf(" %s%d: %.0f", i == t->best ? "*" : "", t->lengths[i], t->tokens_per_s[i]);
    printf("\n");
}

/* ---- rows ------------------------------------------------------------------------------------------ */

static const char *text_word(const BenchResults *r, const BenchRow *row, int i_method) {
    if (r->is_lossy && i_method > 0) return "LOSSY";
    if (row->same) return i_method == 0 && r->reference == r->records ? "" : "identical";
    return r->texts_must_agree ? "DIFFERENT" : "own text";
}

static void print_row(const BenchResults *r, int i_category, int i_method) {
    BenchRow row;
    bench_row(r, i_category, i_method, &row);
    const fr_stats *s = &row.sum.stats.counts;
    double steps = s->n_steps ? (double)s->n_steps : 1, seconds = s->decode_s > 0 ? s->decode_s : 1;
    char name[256];
    snprintf(name, sizeof name, "  %s", r->methods[i_method].name);
    table_name(name, NAME_WIDTH);
    printf(" %8.1f", row.rate.mean);
    speed_up_print(&(SpeedUp){.value = row.speed_up.mean, .sd = row.speed_up.sd, .verdict = row.verdict});
    printf(" %6.2f %6.1f", (double)s->n_generated / steps, (double)s->drafted / steps);
    if (!r->wall_s) printf(" %5.1f", 100 * s->draft_s / seconds);
    const char *text = text_word(r, &row, i_method);
    printf("%s%s\n", *text ? " " : "", text);
}

static void print_columns(const BenchResults *r) {
    printf("\n%-*s %8s %-*s %6s %6s%s %s\n", NAME_WIDTH, "", "tokens/s", SPEED_UP_COLUMNS, " speed-up", "accept",
           "draft", r->wall_s ? "" : " draft", "text");
    printf("%-*s %8s %*s %6s %6s%s\n", NAME_WIDTH, "", "", SPEED_UP_COLUMNS, "per step:", "tokens", "tokens",
           r->wall_s ? "" : "     %");
}

static void print_group(const BenchResults *r, int i_category, const char *name) {
    BenchRow row;
    bench_row(r, i_category, 0, &row);
    if (row.n_questions == 0) return;
    SafeText safe;
    printf("%s: %d question%s, %lld tokens", safe_text(&safe, name), row.n_questions, row.n_questions > 1 ? "s" : "",
           (long long)(row.sum.stats.counts.n_generated / r->n_runs));
    if (!r->wall_s) printf("; prompts: %.0f tokens/s", row.prefill_rate.mean);
    printf("\n");
    int n_repeating = row.sum.stats.n_repeating / r->n_runs;
    if (n_repeating)
        printf("  %d answer%s in loops: what is accepted there says little about other text\n", n_repeating,
               n_repeating > 1 ? "s end" : " ends");
    for (int m = 0; m < r->n_methods; m++) print_row(r, i_category, m);
}

/* Prints a sentence for each method that is slower than plain decoding in some category. */
static void print_losses(const BenchResults *r) {
    for (int m = 1; m < r->n_methods; m++) {
        Buf text = {.max_bytes = 64 << 10}, lines = {.max_bytes = 64 << 10};
        bool fits = true;
        for (int c = 0; c < r->questions->n_categories; c++) {
            BenchRow row;
            SafeText safe;
            bench_row(r, c, m, &row);
            if (row.n_questions == 0 || row.verdict != SPEED_SLOWER) continue;
            if (!text.n) fits = buf_printf(&text, "%s is slower than plain decoding in ", r->methods[m].name);
            else fits = fits && buf_puts(&text, ", ");
            fits = fits && buf_puts(&text, safe_text(&safe, r->questions->categories[c]));
        }
        if (fits && text.n && buf_append(&text, "", 1) && text_wrap(&lines, text.data, 0, 2, TABLE_COLUMNS))
            printf("%.*s\n", (int)lines.n, lines.data);
        buf_free(&text);
        buf_free(&lines);
    }
}

/* Returns the number of turns that were not run because their conversation had filled the context. */
static int turns_missing(const BenchResults *r) {
    int n = 0;
    for (int q = 0; q < r->n_questions; q++) n += r->questions->items[q].n_turns - bench_record(r, 0, q, 0)->n_turns;
    return n;
}

/* Prints acceptance by depth, over all questions, and by category if there are several. */
static void print_depths(const BenchResults *r) {
    if (r->n_methods < 2) return;
    stats_print_depths_head(STATS_NAME_WIDTH);
    for (int m = 1; m < r->n_methods; m++) {
        BenchRow row;
        bench_row(r, -1, m, &row);
        stats_print_depths(&row.sum.stats, r->methods[m].name, STATS_NAME_WIDTH);
        for (int c = 0; c < r->questions->n_categories && r->questions->n_categories > 1; c++) {
            SafeText safe;
            char name[256];
            bench_row(r, c, m, &row);
            if (row.n_questions == 0) continue;
            snprintf(name, sizeof name, "  %s", safe_text(&safe, r->questions->categories[c]));
            row.sum.stats.drafts.n_counters = 0;
            row.sum.stats.drafts.shared_vocab = 0;
            stats_print_depths(&row.sum.stats, name, STATS_NAME_WIDTH);
        }
    }
}

/* Prints which share of the texts is that of plain decoding. */
static void print_identical(const BenchResults *r) {
    if (r->is_lossy) return;
    for (int m = 1; m < r->n_methods; m++) {
        BenchRow row;
        SafeText safe;
        bench_row(r, -1, m, &row);
        if (m == 1) printf("\n");
        if (r->wall_s) printf("batch of %d: ", r->n_parallel);
        printf("%s\n  %.1f %% of the texts (%d of %d) are plain decoding's\n", safe_text(&safe, r->methods[m].name),
               100.0 * row.n_same / (row.n_answers ? row.n_answers : 1), row.n_same, row.n_answers);
    }
}

/* Prints the memory of each method, and how long the parts of a step take. */
static void print_costs(const BenchResults *r) {
    for (int m = 1; m < r->n_methods; m++) {
        BenchRow row;
        SafeText safe;
        bench_row(r, -1, m, &row);
        const fr_stats *s = &row.sum.stats.counts;
        double ms = s->n_steps ? 1e3 / (double)s->n_steps : 0;
        int64_t memory = bench_memory(r, m);
        printf("%s%s\n", m == 1 ? "\n" : "", safe_text(&safe, r->methods[m].name));
        if (memory >= 0) printf("  memory beside that of plain decoding: %.1f MB\n", (double)memory / 1e6);
        printf("  ms of a step: draft %.2f, forward %.2f, verify %.2f\n", s->draft_s * ms, s->forward_s * ms,
               s->verify_s * ms);
    }
}

/* Prints tokens per step by category. */
static void print_acceptance(const BenchResults *r) {
    printf("\ntokens per step by category\n");
    for (int c = 0; c < r->questions->n_categories; c++) {
        BenchRow row;
        SafeText safe;
        bench_row(r, c, 0, &row);
        if (row.n_questions == 0) continue;
        table_name(safe_text(&safe, r->questions->categories[c]), STATS_NAME_WIDTH);
        for (int m = 1; m < r->n_methods; m++) {
            bench_row(r, c, m, &row);
            printf(" %5.2f", row.sum.stats.counts.acceptance_length);
        }
        printf("\n");
    }
    for (int m = 1; m < r->n_methods; m++) {
        SafeText safe;
        printf("  column %d: %s\n", m, safe_text(&safe, r->methods[m].name));
    }
}

/* Prints what the verdicts mean. */
static void print_legend(const BenchReport *r) {
    bool has_disturbed = false;
    for (int b = 0; b < r->n_results; b++)
        for (int c = -1; c < (r->is_parallel ? 0 : r->results[b].questions->n_categories); c++)
            for (int m = 1; m < r->results[b].n_methods; m++) {
                BenchRow row = {.n_questions = 0};
                if (r->results[b].n_runs) bench_row(&r->results[b], c, m, &row);
                has_disturbed = has_disturbed || (row.n_questions > 0 && row.verdict == SPEED_DISTURBED);
            }
    speed_print_legend(r->results[0].n_runs, has_disturbed);
}

static void print_single(const BenchReport *report) {
    const BenchResults *r = &report->results[0];
    print_columns(r);
    for (int c = 0; c < r->questions->n_categories; c++) print_group(r, c, r->questions->categories[c]);
    print_group(r, -1, "all");
    print_depths(r);
    print_identical(r);
    print_costs(r);
    printf("\ntokens/s and draft %% (the share of time that drafting takes) cover decoding only\n"
           "accept: tokens per step, including the target's own\n");
    print_legend(report);
    if (!r->texts_must_agree && !r->is_lossy)
        printf("own text: another text, from the same distribution as plain decoding's\n");
    print_losses(r);
}

static void print_parallel(const BenchReport *r) {
    print_columns(&r->results[0]);
    for (int b = 0; b < r->n_results; b++) {
        const BenchResults *results = &r->results[b];
        char name[64];
        if (results->n_runs == 0) continue;
        snprintf(name, sizeof name, "batch of %d%s", results->n_parallel,
                 results->n_questions < results->n_parallel ? " (never full)" : "");
        print_group(results, -1, name);
    }
    if (r->results[0].n_runs && r->results[0].n_methods > 1) {
        print_acceptance(&r->results[0]);
        print_depths(&r->results[0]);
        for (int b = 0; b < r->n_results; b++)
            if (r->results[b].n_runs) print_identical(&r->results[b]);
    }
    printf("\ntokens/s: generated tokens of all requests per second of wall time,\nincluding the time for prompts\n");
    print_legend(r);
}

void bench_print(const BenchReport *r) {
    print_head(r);
    print_tuning(&r->tuning);
    if (r->is_parallel) print_parallel(r);
    else print_single(r);
    int n_missing = turns_missing(&r->results[0]);
    if (n_missing)
        printf("%d later turn%s could not be run because the context was full\n", n_missing, n_missing > 1 ? "s" : "");
    if (r->rig->draft_error[0]) printf("a drafter was switched off in some answers: %s\n", r->rig->draft_error);
}

/* ---- the figure ------------------------------------------------------------------------------------ */

/* The points [n_series][n] of a figure, in one allocation. */
typedef struct Points {
    double *x, *y, *dy;
    PlotSeries series[BENCH_MAX_METHODS];
} Points;

static int points_init(Points *p, int n_series, int n, fr_error *err) {
    size_t each = (size_t)n_series * (size_t)n;
    *p = (Points){.x = calloc(3 * each, sizeof *p->x)};
    if (!p->x) return error_memory(err, "a figure", 3 * each * sizeof *p->x);
    p->y = p->x + each;
    p->dy = p->y + each;
    for (int s = 0; s < n_series; s++)
        p->series[s] = (PlotSeries){.n = n, .x = p->x + s * n, .y = p->y + s * n, .dy = p->dy + s * n};
    return FR_OK;
}

static int plot_speed_ups(const BenchResults *r, const char *title, const char *path, fr_error *err) {
    const char *names[BENCH_MAX_CATEGORIES + 1];
    int categories[BENCH_MAX_CATEGORIES + 1], n = 0;
    for (int c = 0; c <= r->questions->n_categories; c++) {
        bool all = c == r->questions->n_categories;
        BenchRow row;
        bench_row(r, all ? -1 : c, 0, &row);
        if (row.n_questions == 0) continue;
        names[n] = all ? "all" : r->questions->categories[c];
        categories[n++] = all ? -1 : c;
    }
    Points p;
    int status = points_init(&p, r->n_methods - 1, n, err);
    if (status) return status;
    for (int m = 1; m < r->n_methods; m++) {
        p.series[m - 1].name = r->methods[m].name;
        for (int i = 0; i < n; i++) {
            BenchRow row;
            bench_row(r, categories[i], m, &row);
            p.y[(m - 1) * n + i] = row.verdict == SPEED_DISTURBED ? NAN : row.speed_up.mean; /* NaN: no bar */
            p.dy[(m - 1) * n + i] = row.speed_up.sd;
        }
    }
    const Plot plot = {.kind = PLOT_BARS,
                       .title = title,
                       .y_label = "speed-up over plain decoding",
                       .categories = names,
                       .n_categories = n,
                       .series = p.series,
                       .n_series = r->n_methods - 1,
                       .reference = 1};
    status = plot_write_svg(&plot, path, err);
    free(p.x);
    return status;
}

static int plot_throughput(const BenchReport *r, const char *title, const char *path, fr_error *err) {
    int n = r->n_results, n_methods = r->results[0].n_methods;
    Points p;
    int status = points_init(&p, n_methods, n, err);
    if (status) return status;
    for (int m = 0; m < n_methods; m++) {
        p.series[m].name = r->results[0].methods[m].name;
        for (int b = 0; b < n; b++) {
            BenchRow row = {.rate.mean = NAN};
            if (r->results[b].n_runs) bench_row(&r->results[b], -1, m, &row);
            p.x[m * n + b] = r->results[b].n_parallel;
            p.y[m * n + b] = row.rate.mean;
            p.dy[m * n + b] = row.rate.sd;
        }
    }
    const Plot plot = {.kind = PLOT_LINES,
                       .title = title,
                       .x_label = "requests at once",
                       .y_label = "tokens/s of all requests",
                       .series = p.series,
                       .n_series = n_methods,
                       .y_from_zero = true,
                       .x_log2 = true};
    status = plot_write_svg(&plot, path, err);
    free(p.x);
    return status;
}

int bench_write_plot(const BenchReport *r, const char *path, fr_error *err) {
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(r->rig->model, &info);
    char title[256];
    snprintf(title, sizeof title, r->is_parallel ? "%.200s: throughput by batch size" : "%.200s: speed-up by category",
             info.name);
    return r->is_parallel ? plot_throughput(r, title, path, err) : plot_speed_ups(&r->results[0], title, path, err);
}
