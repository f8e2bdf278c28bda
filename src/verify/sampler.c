/* sampler.c - the target's token, drawn with Gumbel noise that depends only on the seed, the position and the token.
 *
 * The problem: a token must be drawn from p = softmax(z), z = logits / temperature after the filters, and the draw
 * must not depend on whether it happens in plain decoding or while a tree is verified, in which order, or in which
 * batch. The idea (Gumbel-max, Gumbel 1954; Maddison et al. 2014): argmax_i (z_i + G_i) with independent standard
 * Gumbel G_i is a draw from softmax(z). G_i = -log(-log U_i) with U_i a counter-based uniform number of (seed,
 * position, i), so there is no state at all.
 *
 * The stages, each applied to the result of the one before:
 *
 *   logits ─ biases ─ penalties ─ / temperature ─ top-k ─ top-p ─ min-p ─ argmax(z + G)
 *
 *   biases      are added to the logits of their tokens; -inf removes a token
 *   penalties   for each token among the last penalty_last_n of the context: the logit is divided by repeat_penalty
 *               where positive and multiplied where negative, then reduced by frequency_penalty * (times seen) +
 *               presence_penalty
 *   top-k       the k greatest logits are kept; ties go to the lowest ids
 *   top-p       in falling order, the shortest run whose mass reaches top_p of the remaining mass is kept
 *   min-p       tokens with p < min_p * max p are removed
 *
 * Odd logits: NaN and -inf are never chosen; +inf wins at once (the lowest id, if there are several); if no token is
 * left, the result is 0. Invariants: a pure function of its arguments; the filters never remove the most probable
 * token. Cost: one pass over the row for greedy, two more with a temperature. top-p takes one exponential a token;
 * top-k and top-p are partial selections, V log V at worst, on flat rows (sampler_filter.c). sampler_dist gives the
 * distribution itself, through the same filters. Proof: tests/verify/test_sampler.c: the filters against a slow
 * reference, draws against softmax by chi-square with a negative control, and the search that rules tokens out early
 * against one that considers all of them. */
#include "verify/sampler.h"

#include "base/gumbel_row.h"
#include "base/math_functions.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

const SamplingOptions SAMPLING_DEFAULT = {
    .temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .penalty_last_n = 64};

/* ---- the draw ------------------------------------------------------------------------------------ */

/* Returns the tokens of a row [n_vocab] that the filters kept. */
static GumbelField field_of(const FilterKept *kept, int32_t n_vocab) {
    GumbelField f = gumbel_field(0, n_vocab);
    const FilterCandidate *c = kept->candidates;
    f.min_logit = kept->min_logit;
    FilterCandidate last = c ? c[0] : (FilterCandidate){-INFINITY, 0};
    for (int32_t i = 1; c && i < kept->n; i++)
        if (filter_before(last, c[i])) last = c[i];
    f.last_logit = last.logit, f.last_id = last.id;
    return f;
}

/* Returns the argmax of row[i] / temperature + G_i over the tokens that the filters kept; ties go to the lowest id.
 * max_id is the token of the greatest logit, which is finite, or the lowest such id; the temperature is above 0. */
static int32_t draw_token(const RowKernels *rows, GumbelMax *d, const SamplingOptions *o, const float *row,
                          int32_t n_vocab, uint64_t position, int32_t max_id, const FilterKept *kept) {
    enum { FEW = 128 }; /* candidates whose noise is computed one by one */
    gumbel_max_begin(d, o->seed, position, o->temperature, n_vocab, row[max_id], max_id);
    if (!kept->candidates || kept->n > FEW) {
        GumbelField field = field_of(kept, n_vocab);
        gumbel_max_consider_row(d, rows, row, &field);
        return d->best_id;
    }
    for (int32_t i = 0; i < kept->n; i++) {
        FilterCandidate c = kept->candidates[i];
        if ((double)c.logit >= kept->min_logit) gumbel_max_consider(d, c.logit, c.id, gumbel_row_v(&d->noise, c.id));
    }
    return d->best_id;
}

/* ---- the sampler --------------------------------------------------------------------------------- */

struct Sampler {
    int32_t n_vocab;
    const RowKernels *rows;
    float *adjusted; /* [n_vocab] the row after biases and penalties */
    int32_t *counts; /* [n_vocab] how often each token was seen; all 0 between calls */
    FilterScratch filter;
    GumbelMax draw;
};

static int refuse(fr_error *err, const char *name, double value, const char *want) {
    return error_set(err, FR_ERR_ARGUMENT, "%s is %g but must be %s", name, value, want);
}

bool sampling_takes_best(const SamplingOptions *o) {
    bool is_filtered = o->top_k > 0 || o->top_p < 1 || o->min_p > 0,
         is_penalised = o->repeat_penalty != 1 || o->frequency_penalty != 0 || o->presence_penalty != 0;
    return o->n_bias == 0 && !is_penalised && (o->temperature == 0 || !is_filtered);
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
    for (int32_t i = 0; i < o->n_bias; i++)
        if (isnan(o->bias[i].bias) || o->bias[i].bias == INFINITY)
            return refuse(err, "logit_bias", (double)o->bias[i].bias, "a number or -infinity");
    return FR_OK;
}

Sampler *sampler_new(int32_t n_vocab) {
    fr_assert(n_vocab > 0);
    Sampler *s = mem_calloc(1, sizeof *s);
    if (!s) return NULL;
    size_t n = (size_t)n_vocab;
    s->n_vocab = s->filter.n_vocab = n_vocab;
    sampler_use_kernels(s, &row_kernels_plain);
    s->adjusted = mem_calloc(n, sizeof *s->adjusted);
    s->counts = mem_calloc(n, sizeof *s->counts);
    s->filter.candidates = mem_calloc(n + 1, sizeof *s->filter.candidates);
    s->filter.near = mem_calloc(n, sizeof *s->filter.near);
    s->filter.spare = mem_calloc(n, sizeof *s->filter.spare);
    s->filter.ids = mem_calloc(n, sizeof *s->filter.ids);
    const FilterScratch *f = &s->filter;
    if (s->adjusted && s->counts && f->candidates && f->near && f->spare && f->ids) return s;
    sampler_free(s);
    return NULL;
}

void sampler_use_kernels(Sampler *s, const RowKernels *rows) { s->rows = s->filter.rows = rows; }

void sampler_free(Sampler *s) {
    if (!s) return;
    mem_free(s->adjusted);
    mem_free(s->counts);
    mem_free(s->filter.candidates);
    mem_free(s->filter.near);
    mem_free(s->filter.spare);
    mem_free(s->filter.ids);
    mem_free(s);
}

/* ---- biases and penalties ----------------------------------------------------------------------- */

void sampling_add_bias(const SamplingOptions *o, float *row, int32_t n_vocab) {
    for (int32_t i = 0; i < o->n_bias; i++)
        if (o->bias[i].token >= 0 && o->bias[i].token < n_vocab) row[o->bias[i].token] += o->bias[i].bias;
}

static float penalise(const SamplingOptions *o, float logit, int32_t count) {
    logit = logit > 0 ? logit / o->repeat_penalty : logit * o->repeat_penalty;
    return logit - (float)count * o->frequency_penalty - o->presence_penalty;
}

/* Returns the row after biases and penalties: `logits` itself if there are none, else s->adjusted. */
static const float *adjust(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context,
                           int64_t n_context) {
    int64_t n_last = o->penalty_last_n < 0 || o->penalty_last_n > n_context ? n_context : o->penalty_last_n;
    bool none = o->repeat_penalty == 1 && o->frequency_penalty == 0 && o->presence_penalty == 0;
    if (none) n_last = 0;
    if (n_last == 0 && o->n_bias == 0) return logits;
    memcpy(s->adjusted, logits, (size_t)s->n_vocab * sizeof *logits);
    sampling_add_bias(o, s->adjusted, s->n_vocab);
    if (n_last == 0) return s->adjusted;
    const int32_t *last = context + (n_context - n_last);
    for (int64_t i = 0; i < n_last; i++)
        if (last[i] >= 0 && last[i] < s->n_vocab) s->counts[last[i]]++;
    for (int64_t i = 0; i < n_last; i++) {
        int32_t t = last[i];
        if (t < 0 || t >= s->n_vocab || s->counts[t] == 0) continue;
        s->adjusted[t] = penalise(o, s->adjusted[t], s->counts[t]);
        s->counts[t] = 0;
    }
    return s->adjusted;
}

/* ---- choices and distributions -------------------------------------------------------------------- */

int32_t sampler_choose(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context,
                       int64_t n_context, uint64_t position) {
    const float *row = adjust(s, o, logits, context, n_context);
    int32_t max_id = s->rows->argmax(row, s->n_vocab);
    if (max_id < 0) return 0;
    float max = row[max_id];
    if (filter_is_certain(o, max)) return max_id;
    FilterKept kept = filter_row(&s->filter, o, row, max);
    return draw_token(s->rows, &s->draw, o, row, s->n_vocab, position, max_id, &kept);
}

void sampler_dist(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context, int64_t n_context,
                  float *dist) {
    const float *row = adjust(s, o, logits, context, n_context);
    int32_t max_id = s->rows->argmax(row, s->n_vocab);
    float max = max_id < 0 ? INFINITY : row[max_id];
    memset(dist, 0, (size_t)s->n_vocab * sizeof *dist);
    if (filter_is_certain(o, max)) {
        dist[max_id < 0 ? 0 : max_id] = 1;
        return;
    }
    FilterKept kept = filter_row(&s->filter, o, row, max);
    int32_t n = kept.candidates ? kept.n : s->n_vocab;
    double mass = 0;
    for (int32_t i = 0; i < n; i++) {
        FilterCandidate c = kept.candidates ? kept.candidates[i] : (FilterCandidate){row[i], i};
        if (!(c.logit > -INFINITY) || (double)c.logit < kept.min_logit) continue;
        dist[c.id] = (float)filter_weight(c.logit, max, o->temperature);
        mass += (double)dist[c.id];
    }
    for (int32_t i = 0; i < s->n_vocab; i++) dist[i] = (float)((double)dist[i] / mass);
}

LogSoftmax sampler_log_softmax(const Sampler *s, const float *logits) {
    int32_t max_id = s->rows->argmax(logits, s->n_vocab);
    if (max_id < 0) return (LogSoftmax){.max = NAN};
    if (isinf(logits[max_id])) return (LogSoftmax){.max = (double)logits[max_id]};
    return (LogSoftmax){(double)logits[max_id], math_log(s->rows->exp_sum(logits, s->n_vocab, logits[max_id]))};
}

double log_softmax_of(const LogSoftmax *l, float logit) {
    if (isinf(l->max)) return (double)logit == l->max ? 0 : -INFINITY;
    double log_p = (double)logit - l->max - l->log_sum;
    return isnan(log_p) ? -INFINITY : log_p;
}
