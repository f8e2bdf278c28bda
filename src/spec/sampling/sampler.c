/* sampler.c - the target's token, drawn with Gumbel noise that depends on (seed, position, token) alone.
 *
 * The problem: a token must be drawn from p = softmax(z), z = logits / temperature after the filters, and the draw must not
 * depend on whether it happens in plain decoding or while a tree is verified, in which order, or in which batch. The idea
 * (Gumbel-max, Gumbel 1954; Maddison et al. 2014): argmax_i (z_i + G_i) with independent standard Gumbel G_i is a draw from
 * softmax(z). G_i = -log(-log U_i) with U_i a counter-based uniform number of (seed, position, i), so there is no state at
 * all.
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
 * Pruning: V Gumbel draws cost some milliseconds, and nearly all of them cannot win. With `best` the greatest z + G so far,
 * token i can only win with G_i >= d = best - z_i. G never exceeds RNG_GUMBEL_MAX, so tokens with a greater d are skipped
 * without a draw. For the others, G_i >= d means -log U_i <= e^-d, and since 1 - U <= -log U, 1 - U_i <= e^-d is necessary:
 * one comparison of the random word with a table of e^-floor(d), no logarithm. Four tokens share one Philox block. The most
 * probable token goes first, so that `best` is near its final value from the start, and logarithms are computed for about
 * e * (1 / p_max) tokens.
 *
 * Worked example: z = (2, 1, -30), G = (0.1, 1.6, ?). Token 0 is most probable: best = 2.1. Token 1: d = 1.1, U =
 * e^-e^-1.6 = 0.82, 1 - U = 0.18 <= e^-1: it passes the test, and 2.6 > 2.1 is the new best. Token 2: d = 32.6 > 22.9:
 * skipped. The result is 1.
 *
 * Odd logits: NaN and -inf are never chosen; +inf wins at once (lowest id); where nothing is left, the result is 0.
 * Invariants: a pure function of its arguments; the filters never remove the most probable token.
 * Cost: one pass over the row for greedy, two more with a temperature. top-p takes one exponential a token; top-k and top-p
 * are partial selections (heaps), V log V at worst, on flat rows.
 * sampler_dist gives the distribution itself, through the same filters.
 * Proof: tests/unit/test_sampler.c: the filters against a slow reference, draws against softmax by chi-square with a negative
 * control, pruned against unpruned. */
#include "spec/sampling/sampler.h"

#include "base/mem.h"
#include "base/rng.h"
#include "spec/sampling/row_scan.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const SamplingOptions SAMPLING_DEFAULT = {
    .temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .penalty_last_n = 64};

typedef struct Candidate {
    float logit;
    int32_t id;
} Candidate;

struct Sampler {
    int32_t n_vocab;
    float *penalised;      /* [n_vocab] the row after penalties */
    int32_t *counts;       /* [n_vocab] times seen; all 0 between calls */
    Candidate *candidates; /* [n_vocab] heap of top-k and top-p */
    int32_t *ids;          /* [n_vocab] of tokens that can be in the top-p set */
};

static int refuse(fr_error *err, const char *name, double value, const char *want) {
    return error_set(err, FR_ERR_ARGUMENT, "%s is %g but must be %s", name, value, want);
}

int sampling_check(const SamplingOptions *o, fr_error *err) {
    if (!(o->temperature >= 0 && isfinite(o->temperature)))
        return refuse(err, "temperature", (double)o->temperature, "0 (greedy) or a positive number");
    if (o->top_k < 0) return refuse(err, "top_k", o->top_k, "0 (off) or a positive number");
    if (!(o->top_p > 0 && o->top_p <= 1))
        return refuse(err, "top_p", (double)o->top_p, "above 0 and at most 1 (off)");
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
    s->n_vocab = n_vocab;
    s->penalised = mem_calloc(n, sizeof *s->penalised);
    s->counts = mem_calloc(n, sizeof *s->counts);
    s->candidates = mem_calloc(n, sizeof *s->candidates);
    s->ids = mem_calloc(n, sizeof *s->ids);
    if (s->penalised && s->counts && s->candidates && s->ids) return s;
    sampler_free(s);
    return NULL;
}

void sampler_free(Sampler *s) {
    if (!s) return;
    mem_free(s->penalised);
    mem_free(s->counts);
    mem_free(s->candidates);
    mem_free(s->ids);
    mem_free(s);
}

/* ---- penalties ---------------------------------------------------------------------------------- */

static float penalise(const SamplingOptions *o, float logit, int32_t count) {
    logit = logit > 0 ? logit / o->repeat_penalty : logit * o->repeat_penalty;
    return logit - (float)count * o->frequency_penalty - o->presence_penalty;
}

/* The row after penalties: `logits` itself if there are none, else s->penalised. */
static const float *apply_penalties(Sampler *s, const SamplingOptions *o, const float *logits,
                                    const int32_t *context, int64_t n_context) {
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

/* ---- filters ------------------------------------------------------------------------------------ */

/* Whether a comes before b in falling order of probability. */
static bool before(Candidate a, Candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Restores the heap below i. The top is the first candidate in that order, or the last with last_on_top. */
static void sift_down(Candidate *heap, int32_t n, int32_t i, bool last_on_top) {
    Candidate moving = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child]) != last_on_top) child++;
        if (before(heap[child], moving) == last_on_top) break;
        heap[i] = heap[child];
    }
    heap[i] = moving;
}

static void heapify(Candidate *heap, int32_t n, bool last_on_top) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift_down(heap, n, i, last_on_top);
}

/* The k first candidates of the row, as a heap with the first on top; returns how many there are. */
static int32_t select_top_k(Candidate *heap, const float *logits, int32_t n_vocab, int32_t k) {
    int32_t n = 0, i = 0;
    for (; i < n_vocab && n < k; i++)
        if (logits[i] > -INFINITY) heap[n++] = (Candidate){logits[i], i};
    heapify(heap, n, true);
    for (; i < n_vocab; i++) /* ids rise, so a token of equal logit comes after the heap's last */
        if (logits[i] > heap[0].logit) {
            heap[0] = (Candidate){logits[i], i};
            sift_down(heap, n, 0, true);
        }
    heapify(heap, n, false);
    return n;
}

static double weight(float logit, float max, float temperature) {
    return (double)expf((float)(((double)logit - (double)max) / (double)temperature));
}

/* Puts the tokens of the row that can be in the top-p set into s->ids, in rising order; returns how many, and the mass of the
 * whole row. A token of less than (1 - top_p) * mass / V is not in the set: all such tokens together have less than
 * (1 - top_p) * mass. Half of that bound leaves a margin for rounding. */
static int32_t select_heavy(Sampler *s, const float *logits, float max, const SamplingOptions *o, double *mass) {
    *mass = row_mass(logits, s->n_vocab, max, o->temperature);
    double floor_logit =
        (double)max + (double)o->temperature * log(0.5 * (1 - (double)o->top_p) * *mass / s->n_vocab);
    return row_above(logits, s->n_vocab, (float)floor_logit, s->ids);
}

/* Reduces a heap to the shortest run from its top whose mass, together with `sum`, reaches `want`. The run is moved to the
 * end of heap[0..n); its length is returned. */
static int32_t cut_heap(Candidate *heap, int32_t n, float max, float temperature, double sum, double want) {
    int32_t left = n;
    while (left > 0) {
        Candidate top = heap[0];
        heap[0] = heap[--left];
        if (left > 0) sift_down(heap, left, 0, false);
        heap[left] = top;
        sum += weight(top.logit, max, temperature);
        if (sum >= want) break;
    }
    return n - left;
}

enum { N_BUCKETS = 512 };

/* Of tens of thousands of candidates only those near the end of the run have to be sorted. They are counted by their distance
 * from the greatest logit, in buckets so narrow that all tokens of a bucket have nearly the same weight; so the end of the
 * run is known to within a bucket or two. Tokens before bucket `sure` are in the run, those after `last` are not. */
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
    const double width = ((double)max - (double)least) / N_BUCKETS, slack = 1e-4; /* for rounding at the edges */
    double most = 0, at_least = 0, first = 1; /* first: weight at the upper edge of the bucket */
    for (int32_t b = 0; b < N_BUCKETS; b++) {
        double next = exp(-width * (b + 1) / (double)temperature);
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

/* The shortest run of most probable tokens whose mass reaches `want`, at the end of s->candidates[0..*n); returns its length.
 * The candidates for it are the *n tokens of s->ids. */
static int32_t take_top_p(Sampler *s, const float *row, float max, float temperature, double want, int32_t *n) {
    Ends e = {.last = N_BUCKETS - 1};
    if (*n > N_BUCKETS) e = find_ends(s->ids, *n, row, max, temperature, want);
    int32_t n_heap = 0, n_sure = 0, n_ids = *n;
    double sum = 0;
    Candidate *sure = s->candidates + (s->n_vocab - e.n_sure);
    for (int32_t i = 0; i < n_ids; i++) {
        Candidate c = {row[s->ids[i]], s->ids[i]};
        int32_t bucket = bucket_of(&e, max, c.logit);
        if (bucket > e.last) continue;
        if (bucket < e.sure) sure[n_sure++] = c, sum += weight(c.logit, max, temperature);
        else s->candidates[n_heap++] = c;
    }
    heapify(s->candidates, n_heap, false);
    int32_t n_cut = cut_heap(s->candidates, n_heap, max, temperature, sum, want);
    memmove(s->candidates + n_heap, sure, (size_t)n_sure * sizeof *sure);
    *n = n_heap + n_sure;
    return n_cut + n_sure;
}

/* What temperature, top-k and top-p leave of a row: a run of candidates, or the whole row (NULL). Of either, min-p removes
 * the tokens below min_logit. */
typedef struct Kept {
    const Candidate *candidates;
    int32_t n;
    double min_logit;
} Kept;

/* Whether one token is certain, whatever the noise. */
static bool is_certain(const SamplingOptions *o, float max) {
    return o->temperature == 0 || o->top_k == 1 || max == INFINITY;
}

static Kept filter(Sampler *s, const SamplingOptions *o, const float *row, float max) {
    /* min_logit is -inf without min-p */
    Kept kept = {.min_logit = (double)max + (double)o->temperature * log((double)o->min_p)};
    bool by_k = o->top_k > 0 && o->top_k < s->n_vocab;
    if (!by_k && o->top_p >= 1) return kept;
    Candidate *c = s->candidates;
    int32_t n;
    double mass = 0;
    if (by_k) {
        n = select_top_k(c, row, s->n_vocab, o->top_k);
        for (int32_t i = 0; i < n; i++) mass += weight(c[i].logit, max, o->temperature);
        kept.n = o->top_p < 1 ? cut_heap(c, n, max, o->temperature, 0, (double)o->top_p * mass) : n;
    } else {
        n = select_heavy(s, row, max, o, &mass);
        kept.n = take_top_p(s, row, max, o->temperature, (double)o->top_p * mass, &n);
    }
    kept.candidates = c + (n - kept.n);
    return kept;
}

/* ---- the draw ----------------------------------------------------------------------------------- */

enum { N_TAIL = 24 }; /* floors of distances up to RNG_GUMBEL_MAX */

typedef struct Draw {
    uint64_t seed, position;
    double temperature;
    double best;
    int32_t best_id;
    double tail[N_TAIL]; /* e^-k */
} Draw;

static void draw_begin(Draw *d, const SamplingOptions *o, uint64_t position, float max, int32_t max_id) {
    *d = (Draw){.seed = o->seed, .position = position, .temperature = (double)o->temperature};
    for (int k = 0; k < N_TAIL; k++) d->tail[k] = exp(-k);
    d->best_id = max_id;
    d->best = (double)max / d->temperature + rng_gumbel(o->seed, RNG_TARGET, position, (uint32_t)max_id);
}

/* Margin for rounding in the comparisons that prune. */
static double slack(const Draw *d) { return 1e-9 + 1e-15 * fabs(d->best); }

/* Lets token `id` take part in the draw; `word` is its random word. */
static void draw_consider(Draw *d, float logit, int32_t id, uint32_t word) {
    double z = (double)logit / d->temperature;
    double distance = d->best - z - slack(d);
    if (distance > RNG_GUMBEL_MAX) return;
    double tail = distance > 0 ? d->tail[(int)distance] : 1;
    if (1 - ((double)word + 0.5) * 0x1p-32 > tail) return;
    double v = z + rng_gumbel(d->seed, RNG_TARGET, d->position, (uint32_t)id);
    if (v > d->best || (v == d->best && id < d->best_id)) d->best = v, d->best_id = id;
}

/* The lowest logit that could still win, rounded down. */
static float winning_logit(const Draw *d) {
    return nextafterf((float)((d->best - RNG_GUMBEL_MAX - slack(d)) * d->temperature), -INFINITY);
}

/* Draws over the whole row except tokens below min_logit, four tokens to a Philox block. */
static void draw_row(Draw *d, const float *logits, int32_t n_vocab, double min_logit) {
    float floor_logit = winning_logit(d);
    for (int32_t block = 0; block < n_vocab; block += 4) {
        int32_t end = n_vocab - block < 4 ? n_vocab : block + 4;
        bool any = false;
        for (int32_t i = block; i < end; i++) any |= logits[i] >= floor_logit;
        if (!any) continue;
        uint32_t words[4];
        rng_words(d->seed, RNG_TARGET, d->position, (uint32_t)block / 4, words);
        for (int32_t i = block; i < end; i++)
            if ((double)logits[i] >= min_logit && logits[i] > -INFINITY)
                draw_consider(d, logits[i], i, words[i - block]);
        floor_logit = winning_logit(d);
    }
}

static void draw_candidates(Draw *d, const Candidate *c, int32_t n, double min_logit) {
    for (int32_t i = 0; i < n; i++) {
        if ((double)c[i].logit < min_logit) continue;
        uint32_t words[4];
        rng_words(d->seed, RNG_TARGET, d->position, (uint32_t)c[i].id / 4, words);
        draw_consider(d, c[i].logit, c[i].id, words[c[i].id % 4]);
    }
}

int32_t sampler_choose(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context,
                       int64_t n_context, uint64_t position) {
    const float *row = apply_penalties(s, o, logits, context, n_context);
    int32_t max_id = row_argmax(row, s->n_vocab);
    if (max_id < 0) return 0;
    float max = row[max_id];
    if (is_certain(o, max)) return max_id;
    Kept kept = filter(s, o, row, max);
    Draw d;
    draw_begin(&d, o, position, max, max_id);
    if (kept.candidates)
        draw_candidates(&d, kept.candidates, kept.n, kept.min_logit);
    else
        draw_row(&d, row, s->n_vocab, kept.min_logit);
    return d.best_id;
}

void sampler_dist(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context,
                 int64_t n_context, float *dist) {
    const float *row = apply_penalties(s, o, logits, context, n_context);
    int32_t max_id = row_argmax(row, s->n_vocab);
    float max = max_id < 0 ? INFINITY : row[max_id];
    memset(dist, 0, (size_t)s->n_vocab * sizeof *dist);
    if (is_certain(o, max)) {
        dist[max_id < 0 ? 0 : max_id] = 1;
        return;
    }
    Kept kept = filter(s, o, row, max);
    int32_t n = kept.candidates ? kept.n : s->n_vocab;
    double mass = 0;
    for (int32_t i = 0; i < n; i++) {
        Candidate c = kept.candidates ? kept.candidates[i] : (Candidate){row[i], i};
        if (!(c.logit > -INFINITY) || (double)c.logit < kept.min_logit) continue;
        dist[c.id] = (float)weight(c.logit, max, o->temperature);
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
