/* bench_summary.c - from records to rows: sums, and mean and deviation over the runs.
 *
 * A rate is the sum of tokens over the sum of seconds of all questions of a category in one run, not the mean of the
 * questions' rates: an answer counts by its length. A speed-up is the ratio to plain decoding's rate of the
 * same run, so that a run on a slower machine does not count as a deviation of the method. The deviation is
 * the sample's (n - 1). */
#include "cli/bench/bench.h"

#include <math.h>

static const double LEAST_MARGIN = 0.01; /* of a speed-up, for a verdict; a few runs can agree by chance */

BenchRecord *bench_record(const BenchResults *r, int i_run, int i_question, int i_method) {
    return &r->records[((size_t)i_run * (size_t)r->n_questions + (size_t)i_question) * (size_t)r->n_methods +
                       (size_t)i_method];
}

static void add(BenchRecord *sum, const BenchRecord *x) {
    sum->n_turns += x->n_turns;
    stats_add(&sum->stats, &x->stats);
}

static void spread(BenchSpread *s, int n) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += s->runs[i];
    s->mean = sum / n;
    for (int i = 0; i < n; i++) squares += (s->runs[i] - s->mean) * (s->runs[i] - s->mean);
    s->sd = n > 1 ? sqrt(squares / (n - 1)) : NAN;
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

static BenchVerdict verdict_of(const BenchSpread *speed_up) {
    if (!isfinite(speed_up->sd)) return BENCH_UNKNOWN; /* a single run says nothing about the next one */
    double margin = fmax(LEAST_MARGIN, speed_up->sd);
    if (speed_up->mean - margin > 1) return BENCH_FASTER;
    return speed_up->mean + margin < 1 ? BENCH_SLOWER : BENCH_EVEN;
}

static bool all_same(const BenchResults *r, int i_category, int i_method) {
    for (int run = 0; run < r->n_runs; run++)
        for (int q = 0; q < r->n_questions; q++) {
            const BenchRecord *x = bench_record(r, run, q, i_method),
                              *plain = &r->reference[(size_t)q * (size_t)r->n_methods];
            if (i_category >= 0 && r->questions->items[q].i_category != i_category) continue;
            if (x->fingerprint != plain->fingerprint || x->stats.counts.n_generated != plain->stats.counts.n_generated)
                return false;
        }
    return true;
}

void bench_row(const BenchResults *r, int i_category, int i_method, BenchRow *out) {
    *out = (BenchRow){.same = all_same(r, i_category, i_method)};
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
    out->verdict = i_method == 0 ? BENCH_EVEN : verdict_of(&out->speed_up);
}
