/* sampler.c - the target's token, drawn with Gumbel noise that depends on (seed, position, token) alone.
 *
 * The problem: a token must be drawn from p = softmax(z), z = logits / temperature after the filters, and the draw
 * must not depend on whether it happens in plain decoding or while a tree is verified, in which order, or in which
 * batch. The idea (Gumbel-max, Gumbel 1954; Maddison et al. 2014): argmax_i (z_i + G_i) with independent standard
 * Gumbel G_i is a draw from softmax(z). G_i = -log(-log U_i) with U_i a counter-based uniform number of (seed,
 * position, i), so there is no state at all.
 *
 * The stages, each applied to what the one before left:
 *
 *   logits ─ penalties ─ / temperature ─ top-k ─ top-p ─ min-p ─ argmax(z + G)
 *
 *   penalties   for each token among the last penalty_last_n of the context: the logit is divided by repeat_penalty where
 *               positive and multiplied where negative, then reduced by
 *               frequency_penalty * (times seen) + presence_penalty
 *   top-k       the k greatest, of equal ones the lowest ids
 *   top-p       in falling order, the shortest run whose mass reaches top_p of the remaining mass
 *   min-p       tokens with p < min_p * max p are removed
 *
 * Pruning: V Gumbel draws cost some milliseconds, and nearly all of them cannot win. With `best` the greatest z + G
 * so far, token i can only win with G_i >= d = best - z_i. G does not exceed GUMBEL_COMMON_MAX, except for the rare
 * tokens that are known beforehand (gumbel.c), so the others with a greater d are skipped without a draw. With v = 1 -
 * U, G_i >= d requires v_i <= e^-d: one comparison with a table of e^-floor(d), no logarithm. Four tokens share one
 * Philox block. The most probable token goes first, so that `best` is near its final value from the start, and
 * logarithms are computed for about e * (1 / p_max) tokens.
 *
 * Worked example: z = (2, 1, -30), G = (0.1, 1.6, ?), no rare tokens. Token 0 is most probable: best = 2.1. Token 1:
 * d = 1.1, v = 1 - e^-e^-1.6 = 0.18 <= e^-1: it passes the test, and 2.6 > 2.1 is the new best. Token 2: d = 32.6 >
 * 11.1: skipped. The result is 1.
 *
 * Odd logits: NaN and -inf are never chosen; +inf wins at once (lowest id); where nothing is left, the result is 0.
 * Invariants: a pure function of its arguments; the filters never remove the most probable token. Cost: one pass over
 * the row for greedy, two more with a temperature. top-p takes one exponential a token; top-k and top-p are partial
 * selections (heaps), V log V at worst, on flat rows. sampler_dist gives the distribution itself, through the same
 * filters. Proof: tests/unit/test_sampler.c: the filters against a slow reference, draws against softmax by
 * chi-square with a negative control, pruned against unpruned. */
#include "spec/sampling/sampler.h"

#include "base/mem.h"
#include "spec/sampling/filters.h"
#include "spec/sampling/gumbel.h"
#include "spec/sampling/row_scan.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const SamplingOptions SAMPLING_DEFAULT = {
    .temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .penalty_last_n = 64};

struct Sampler {
    int32_t n_vocab;
    float *penalised; /* [n_vocab] the row after penalties */
    int32_t *counts;  /* [n_vocab] times seen; all 0 between calls */
    FilterScratch filter;
};

static int refuse(fr_error *err, const char *name, double value, const char *want) {
    return error_set(err, FR_ERR_ARGUMENT, "%s is %g but must be %s", name, value, want);
}

int sampling_check(const SamplingOptions *o, fr_error *err) {
    if (!(o->temperature >= 0 && isfinite(o->temperature)))
        return refuse(err, "temperature", (double)o->temperature, "0 (greedy) or a positive number");
    if (o->top_k < 0) return refuse(err, "top_k", o->top_k, "0 (off) or a positive number");
    if (!(o->top_p > 0 && o->top_p <= 1)) return refuse(err, "top_p", (double)o->top_p, "above 0 and at most 1 (off)");
    if (!(o->min_p >= 0 && o->min_p <= 1)) return refuse(err, "min_p", (double)o->min_p, "from 0 (off) to 1");
    if (!(o->repeat_penalty > 0 && isfinite(o->repeat_penalty)))
        return refuse(err, "repeat_penalty", (double)o->repeat_penalty, "a positive number (1: off)");
    if (!isfinite(o->frequency_penalty))
        return refuse(err, "frequency_penalty", (double)o->frequency_penalty, "a finite number (0: off)");
    if (!isfinite(o->presence_penalty))
        return refuse(err, "presence_penalty", (double)o->presence_penalty, "a finite number (0: off)");
    if (o->penalty_last_n < -1)
        return refuse(err, "penalty_last_n", o->penalty_last_n, "-1 (all), 0 (none) or a positive number");
    return FR_OK;
}

Sampler *sampler_new(int32_t n_vocab) {
    fr_assert(n_vocab > 0);
    Sampler *s = mem_calloc(1, sizeof *s);
    if (!s) return NULL;
    size_t n = (size_t)n_vocab;
    s->n_vocab = s->filter.n_vocab = n_vocab;
    s->penalised = mem_calloc(n, sizeof *s->penalised);
    s->counts = mem_calloc(n, sizeof *s->counts);
    s->filter.candidates = mem_calloc(n, sizeof *s->filter.candidates);
    s->filter.ids = mem_calloc(n, sizeof *s->filter.ids);
    if (s->penalised && s->counts && s->filter.candidates && s->filter.ids) return s;
    sampler_free(s);
    return NULL;
}

void sampler_free(Sampler *s) {
    if (!s) return;
    mem_free(s->penalised);
    mem_free(s->counts);
    mem_free(s->filter.candidates);
    mem_free(s->filter.ids);
    mem_free(s);
}

/* ---- penalties ---------------------------------------------------------------------------------- */

static float penalise(const SamplingOptions *o, float logit, int32_t count) {
    logit = logit > 0 ? logit / o->repeat_penalty : logit * o->repeat_penalty;
    return logit - (float)count * o->frequency_penalty - o->presence_penalty;
}

/* The row after penalties: `logits` itself if there are none, else s->penalised. */
static const float *apply_penalties(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context,
                                    int64_t n_context) {
    int64_t n_last = o->penalty_last_n < 0 || o->penalty_last_n > n_context ? n_context : o->penalty_last_n;
    bool none = o->repeat_penalty == 1 && o->frequency_penalty == 0 && o->presence_penalty == 0;
    if (none || n_last == 0) return logits;
    const int32_t *last = context + (n_context - n_last);
    memcpy(s->penalised, logits, (size_t)s->n_vocab * sizeof *logits);
    for (int64_t i = 0; i < n_last; i++)
        if (last[i] >= 0 && last[i] < s->n_vocab) s->counts[last[i]]++;
    for (int64_t i = 0; i < n_last; i++) {
        int32_t t = last[i];
        if (t < 0 || t >= s->n_vocab || s->counts[t] == 0) continue;
        s->penalised[t] = penalise(o, logits[t], s->counts[t]);
        s->counts[t] = 0;
    }
    return s->penalised;
}

/* ---- the draw ----------------------------------------------------------------------------------- */

enum { N_TAIL = 57 }; /* floors of distances up to GUMBEL_MAX */

typedef struct Draw {
    GumbelRow noise;
    double temperature;
    double best;
    int32_t best_id;
    double tail[N_TAIL]; /* e^-k */
} Draw;

static void draw_begin(Draw *d, const SamplingOptions *o, int32_t n_vocab, uint64_t position, float max,
                       int32_t max_id) {
    gumbel_row_begin(&d->noise, o->seed, RNG_TARGET, position, n_vocab);
    for (int k = 0; k < N_TAIL; k++) d->tail[k] = exp(-k);
    d->temperature = (double)o->temperature;
    d->best_id = max_id;
    d->best = (double)max / d->temperature + gumbel_of(gumbel_row_v(&d->noise, max_id));
}

/* Margin for rounding in the comparisons that prune. */
static double slack(const Draw *d) { return 1e-9 + 1e-15 * fabs(d->best); }

/* Lets token `id` take part in the draw; v is its noise (gumbel.h). */
static void draw_consider(Draw *d, float logit, int32_t id, double v) {
    double z = (double)logit / d->temperature;
    double distance = d->best - z - slack(d);
    if (distance > GUMBEL_MAX) return;
    if (distance > 0 && v > d->tail[(int)distance]) return;
    double value = z + gumbel_of(v);
    if (value > d->best || (value == d->best && id < d->best_id)) d->best = value, d->best_id = id;
}

/* The lowest logit that could still win with noise that is not rare, rounded down. */
static float winning_logit(const Draw *d) {
    return nextafterf((float)((d->best - GUMBEL_COMMON_MAX - slack(d)) * d->temperature), -INFINITY);
}

/* Draws over the whole row except tokens below min_logit, four tokens to a Philox block. */
static void draw_row(Draw *d, const float *logits, int32_t n_vocab, double min_logit) {
    float floor_logit = winning_logit(d);
    int32_t rare = gumbel_row_next_rare(&d->noise, 0);
    for (int32_t block = 0; block < n_vocab; block += 4) {
        int32_t end = n_vocab - block < 4 ? n_vocab : block + 4;
        bool any = rare < end;
        for (int32_t i = block; i < end; i++) any |= logits[i] >= floor_logit;
        if (!any) continue;
        double v[4];
        gumbel_row_block(&d->noise, block, v);
        for (int32_t i = block; i < end; i++)
            if ((double)logits[i] >= min_logit && logits[i] > -INFINITY) draw_consider(d, logits[i], i, v[i - block]);
        floor_logit = winning_logit(d);
        if (rare < end) rare = gumbel_row_next_rare(&d->noise, end);
    }
}

static void draw_candidates(Draw *d, const Candidate *c, int32_t n, double min_logit) {
    for (int32_t i = 0; i < n; i++)
        if ((double)c[i].logit >= min_logit) draw_consider(d, c[i].logit, c[i].id, gumbel_row_v(&d->noise, c[i].id));
}

int32_t sampler_choose(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context,
                       int64_t n_context, uint64_t position) {
    const float *row = apply_penalties(s, o, logits, context, n_context);
    int32_t max_id = row_argmax(row, s->n_vocab);
    if (max_id < 0) return 0;
    float max = row[max_id];
    if (filter_is_certain(o, max)) return max_id;
    Kept kept = filter_row(&s->filter, o, row, max);
    Draw d;
    draw_begin(&d, o, s->n_vocab, position, max, max_id);
    if (kept.candidates) draw_candidates(&d, kept.candidates, kept.n, kept.min_logit);
    else draw_row(&d, row, s->n_vocab, kept.min_logit);
    return d.best_id;
}

void sampler_dist(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context, int64_t n_context,
                  float *dist) {
    const float *row = apply_penalties(s, o, logits, context, n_context);
    int32_t max_id = row_argmax(row, s->n_vocab);
    float max = max_id < 0 ? INFINITY : row[max_id];
    memset(dist, 0, (size_t)s->n_vocab * sizeof *dist);
    if (filter_is_certain(o, max)) {
        dist[max_id < 0 ? 0 : max_id] = 1;
        return;
    }
    Kept kept = filter_row(&s->filter, o, row, max);
    int32_t n = kept.candidates ? kept.n : s->n_vocab;
    double mass = 0;
    for (int32_t i = 0; i < n; i++) {
        Candidate c = kept.candidates ? kept.candidates[i] : (Candidate){row[i], i};
        if (!(c.logit > -INFINITY) || (double)c.logit < kept.min_logit) continue;
        dist[c.id] = (float)filter_weight(c.logit, max, o->temperature);
        mass += (double)dist[c.id];
    }
    for (int32_t i = 0; i < s->n_vocab; i++) dist[i] = (float)((double)dist[i] / mass);
}

double sampler_logprob(const float *logits, int32_t n_vocab, int32_t token) {
    int32_t max_id = row_argmax(logits, n_vocab);
    if (max_id < 0 || token < 0 || token >= n_vocab || isnan(logits[token])) return -INFINITY;
    double max = (double)logits[max_id], sum = 0;
    if (isinf(max)) return logits[token] == logits[max_id] ? 0 : -INFINITY;
    for (int32_t i = 0; i < n_vocab; i++)
        if (!isnan(logits[i])) sum += exp((double)logits[i] - max);
    return (double)logits[token] - max - log(sum);
}
