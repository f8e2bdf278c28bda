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
 * top-k and top-p are partial selections (heaps), V log V at worst, on flat rows. sampler_dist gives the
 * distribution itself, through the same filters. Proof: tests/verify/test_sampler.c: the filters against a slow
 * reference, draws against softmax by chi-square with a negative control, pruned against unpruned. */
#include "verify/sampler.h"

#include "base/gumbel_row.h"
#include "base/math_functions.h"
#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const SamplingOptions SAMPLING_DEFAULT = {
    .temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .penalty_last_n = 64};

/* ---- filters ------------------------------------------------------------------------------------- */

/* Temperature, top-k, top-p and min-p: which tokens of a row can be drawn.
 *
 * The problem: of 128,000 logits only a few pass the filters, and sorting the whole row to find them is expensive.
 * The idea: partial selections. top-k is a heap of k candidates. top-p first rules out tokens too light to be in the
 * set, by a bound on their common mass, and sorts the others until the mass is reached. If many tokens remain, as on
 * flat rows, a histogram of the logits gives the end of the run to within a bucket or two, so that only the tokens
 * there have to be ordered.
 *
 * Invariants: the most probable token always stays; of equal logits the lowest ids come first. Cost: V log V at
 * worst, on flat rows. */
typedef struct Candidate {
    float logit;
    int32_t id;
} Candidate;

/* Returns whether a comes before b in falling order of probability: of equal logits the lowest id comes first. */
static bool filter_before(Candidate a, Candidate b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

/* Working memory of the filters. */
typedef struct FilterScratch {
    int32_t n_vocab;
    const RowKernels *rows;
    Candidate *candidates;   /* [n_vocab + 1] the candidates that remain */
    Candidate *near, *spare; /* [n_vocab] tokens near the end of the top-p set, while they are sorted */
    int32_t *ids;            /* [n_vocab] tokens that can be in the top-p set */
} FilterScratch;

/* What temperature, top-k and top-p leave of a row: a run of candidates, or the whole row (NULL). In both cases
 * min-p removes the tokens below min_logit. */
typedef struct Kept {
    const Candidate *candidates;
    int32_t n;
    double min_logit;
} Kept;

/* Returns the unnormalised probability of a logit. */
static double filter_weight(float logit, float max, float temperature) {
    return math_exp(((double)logit - (double)max) / (double)temperature);
}

/* Returns whether one token is certain, whatever the noise. */
static bool filter_is_certain(const SamplingOptions *o, float max) {
    return o->temperature == 0 || o->top_k == 1 || max == INFINITY;
}

/* Restores the heap below i. The heap's top is the first candidate in falling order of probability or, with
 * last_on_top, the last one. */
static void sift_down(Candidate *heap, int32_t n, int32_t i, bool last_on_top) {
    Candidate moving = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && filter_before(heap[child + 1], heap[child]) != last_on_top) child++;
        if (filter_before(heap[child], moving) == last_on_top) break;
        heap[i] = heap[child];
    }
    heap[i] = moving;
}

static void heapify(Candidate *heap, int32_t n, bool last_on_top) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift_down(heap, n, i, last_on_top);
}

/* Selects the k first candidates of the row, as a heap with the first on top, and returns how many there are. */
static int32_t select_top_k(const FilterScratch *s, const float *logits, int32_t k) {
    enum { CHUNK = 1024 };
    Candidate *heap = s->candidates;
    int32_t n = 0, i = 0;
    for (; i < s->n_vocab && n < k; i++)
        if (logits[i] > -INFINITY) heap[n++] = (Candidate){logits[i], i};
    heapify(heap, n, true);
    for (int32_t end; i < s->n_vocab; i = end) {
        end = s->n_vocab - i < CHUNK ? s->n_vocab : i + CHUNK;
        int32_t n_above = s->rows->above(logits + i, end - i, heap[0].logit, s->ids);
        for (int32_t c = 0; c < n_above;
             c++) { /* the ids rise, so that a token of equal logit comes after the heap's last one */
            float logit = logits[i + s->ids[c]];
            if (!(logit > heap[0].logit)) continue;
            heap[0] = (Candidate){logit, i + s->ids[c]};
            sift_down(heap, n, 0, true);
        }
    }
    heapify(heap, n, false);
    return n;
}

/* Puts the tokens of the row that can be in the top-p set into s->ids, in rising order. Returns how many there are,
 * and in *mass the mass of the whole row. A token of less than (1 - top_p) * mass / V is not in the set: all such
 * tokens together have less than (1 - top_p) * mass. Half of that bound leaves a margin for rounding. */
static int32_t select_heavy(const FilterScratch *s, const float *logits, float max, const SamplingOptions *o,
                            double *mass) {
    *mass = s->rows->mass(logits, s->n_vocab, max, o->temperature);
    double floor_logit = (double)max +
                         (double)o->temperature * math_log(0.5 * (1 - (double)o->top_p) * *mass / s->n_vocab);
    return s->rows->above(logits, s->n_vocab, (float)floor_logit, s->ids);
}

/* Reduces a heap to the shortest run from its top whose mass, together with `sum`, reaches `want`. The run is moved
 * to the end of heap[0..n); its length is returned. */
static int32_t cut_heap(Candidate *heap, int32_t n, float max, float temperature, double sum, double want) {
    int32_t left = n;
    while (left > 0) {
        Candidate top = heap[0];
        heap[0] = heap[--left];
        if (left > 0) sift_down(heap, left, 0, false);
        heap[left] = top;
        sum += filter_weight(top.logit, max, temperature);
        if (sum >= want) break;
    }
    return n - left;
}

enum { N_BUCKETS = 512 };

/* If there are tens of thousands of candidates, only those near the end of the run have to be sorted. The candidates
 * are counted by their distance from the greatest logit, in buckets so narrow that all tokens of a bucket have
 * nearly the same weight; so the end of the run is known to within a bucket or two. Tokens before bucket `sure` are
 * in the run, those after `last` are not. */
typedef struct Ends {
    float scale; /* buckets per unit of logit */
    int32_t sure, last, n_sure;
} Ends;

static int32_t bucket_of(const Ends *e, float max, float logit) {
    int32_t bucket = (int32_t)((max - logit) * e->scale);
    return bucket < N_BUCKETS ? bucket : N_BUCKETS - 1;
}

static Ends find_ends(const int32_t *ids, int32_t n, const float *row, float max, float temperature, double want) {
    int32_t counts[N_BUCKETS] = {0};
    float least = max;
    for (int32_t i = 0; i < n; i++)
        if (row[ids[i]] < least) least = row[ids[i]];
    Ends e = {.scale = least < max ? (float)N_BUCKETS / (max - least) : 0, .last = N_BUCKETS - 1};
    for (int32_t i = 0; i < n; i++) counts[bucket_of(&e, max, row[ids[i]])]++;
    const double width = ((double)max - (double)least) / N_BUCKETS,
                 slack = 1e-4;                /* a margin for rounding at the edges */
    double most = 0, at_least = 0, first = 1; /* first: weight at the upper edge of the bucket */
    for (int32_t b = 0; b < N_BUCKETS; b++) {
        double next = math_exp(-width * (b + 1) / (double)temperature);
        most += counts[b] * first * (1 + slack);
        if (most < want) e.sure = b + 1, e.n_sure += counts[b];
        if (b + 1 < N_BUCKETS) at_least += counts[b] * next * (1 - slack);
        if (at_least >= want) {
            e.last = b;
            break;
        }
        first = next;
    }
    return e;
}

/* Returns a number that rises as the logit falls. Equal logits, which 0 and -0 are, have equal keys. */
static uint32_t falling_key(float logit) {
    float x = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? bits : ~bits & 0x7fffffff;
}

/* Sorts candidates, whose ids rise, in falling order of probability, by one byte of their keys after the other. */
static void sort_falling(Candidate *c, int32_t n, Candidate *spare) {
    for (int shift = 0; shift < 32; shift += 8) {
        int32_t starts[257] = {0};
        for (int32_t i = 0; i < n; i++) starts[(falling_key(c[i].logit) >> shift & 255) + 1]++;
        for (int k = 0; k < 256; k++) starts[k + 1] += starts[k];
        for (int32_t i = 0; i < n; i++) spare[starts[falling_key(c[i].logit) >> shift & 255]++] = c[i];
        Candidate *sorted = spare; /* after an even number of passes this is the caller's c */
        spare = c;
        c = sorted;
    }
}

/* Divides the n tokens of s->ids: those that are certainly in the run become candidates at `sure`, and those near
 * its end stay in s->ids. It has no branches, because they could not be predicted. Returns how many tokens stay. */
static int32_t divide(const FilterScratch *s, const Ends *ends, const float *row, float max, int32_t n,
                      Candidate *restrict sure) {
    const Ends e = *ends;
    int32_t *ids = s->ids, n_near = 0, n_sure = 0;
    for (int32_t i = 0; i < n; i++) {
        Candidate c = {row[ids[i]], ids[i]};
        int32_t bucket = bucket_of(&e, max, c.logit);
        sure[n_sure] = c;
        n_sure += bucket < e.sure;
        ids[n_near] = c.id;
        n_near += (bucket >= e.sure) & (bucket <= e.last);
    }
    return n_near;
}

/* Puts the shortest run of most probable tokens whose mass reaches `want` at the end of s->candidates[0..*n) and
 * returns its length. It is chosen from the *n tokens of s->ids. */
static int32_t take_top_p(const FilterScratch *s, const float *row, float max, float temperature, double want,
                          int32_t *n) {
    Ends e = {.last = N_BUCKETS - 1};
    if (*n > N_BUCKETS) e = find_ends(s->ids, *n, row, max, temperature, want);
    Candidate *sure = s->candidates + (s->n_vocab - e.n_sure);
    int32_t n_near = divide(s, &e, row, max, *n, sure), n_cut = 0;
    double sum = 0;
    for (int32_t i = 0; i < e.n_sure; i++) sum += filter_weight(sure[i].logit, max, temperature);
    for (int32_t i = 0; i < n_near; i++) s->near[i] = (Candidate){row[s->ids[i]], s->ids[i]};
    sort_falling(s->near, n_near, s->spare);
    while (n_cut < n_near) {
        sum += filter_weight(s->near[n_cut++].logit, max, temperature);
        if (sum >= want) break;
    }
    for (int32_t i = 0; i < n_cut; i++) s->candidates[n_near - 1 - i] = s->near[i];
    memmove(s->candidates + n_near, sure, (size_t)e.n_sure * sizeof *sure);
    *n = n_near + e.n_sure;
    return n_cut + e.n_sure;
}

/* Filters a row [n_vocab] whose greatest logit is `max`; the temperature is above 0. The candidates are in
 * s->candidates. */
static Kept filter_row(const FilterScratch *s, const SamplingOptions *o, const float *row, float max) {
    /* min_logit is -inf without min-p */
    Kept kept = {.min_logit = (double)max + (double)o->temperature * math_log((double)o->min_p)};
    bool by_k = o->top_k > 0 && o->top_k < s->n_vocab;
    if (!by_k && o->top_p >= 1) return kept;
    Candidate *c = s->candidates;
    int32_t n;
    double mass = 0;
    if (by_k) {
        n = select_top_k(s, row, o->top_k);
        for (int32_t i = 0; i < n; i++) mass += filter_weight(c[i].logit, max, o->temperature);
        kept.n = o->top_p < 1 ? cut_heap(c, n, max, o->temperature, 0, (double)o->top_p * mass) : n;
    } else {
        n = select_heavy(s, row, max, o, &mass);
        kept.n = take_top_p(s, row, max, o->temperature, (double)o->top_p * mass, &n);
    }
    kept.candidates = c + (n - kept.n);
    return kept;
}

/* ---- the draw ------------------------------------------------------------------------------------ */

/* Returns the tokens of a row [n_vocab] that the filters kept. */
static GumbelField field_of(const Kept *kept, int32_t n_vocab) {
    GumbelField f = gumbel_field(0, n_vocab);
    const Candidate *c = kept->candidates;
    f.min_logit = kept->min_logit;
    Candidate last = c ? c[0] : (Candidate){-INFINITY, 0};
    for (int32_t i = 1; c && i < kept->n; i++)
        if (filter_before(last, c[i])) last = c[i];
    f.last_logit = last.logit, f.last_id = last.id;
    return f;
}

/* Returns the argmax of row[i] / temperature + G_i over the tokens that the filters kept; ties go to the lowest id.
 * max_id is the token of the greatest logit, which is finite, or the lowest such id; the temperature is above 0. */
static int32_t draw_token(const RowKernels *rows, GumbelMax *d, const SamplingOptions *o, const float *row,
                          int32_t n_vocab, uint64_t position, int32_t max_id, const Kept *kept) {
    enum { FEW = 128 }; /* candidates whose noise is computed one by one */
    gumbel_max_begin(d, o->seed, position, o->temperature, n_vocab, row[max_id], max_id);
    if (!kept->candidates || kept->n > FEW) {
        GumbelField field = field_of(kept, n_vocab);
        gumbel_max_consider_row(d, rows, row, &field);
        return d->best_id;
    }
    for (int32_t i = 0; i < kept->n; i++) {
        Candidate c = kept->candidates[i];
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
    Kept kept = filter_row(&s->filter, o, row, max);
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
