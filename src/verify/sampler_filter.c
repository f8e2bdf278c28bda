/* sampler_filter.c - temperature, top-k, top-p and min-p: which tokens of a row can be drawn.
 *
 * The problem: of 128,000 logits only a few pass the filters, and sorting the whole row to find them is expensive.
 * The idea: partial selections. top-k is a heap of k candidates. top-p first rules out tokens too light to be in the
 * set, by a bound on their common mass, and sorts the others until the mass is reached. If many tokens remain, as on
 * flat rows, a histogram of the logits gives the end of the run to within a bucket or two, so that only the tokens
 * there have to be ordered.
 *
 * Invariants: the most probable token always stays; of equal logits the lowest ids come first. Cost: V log V at
 * worst, on flat rows. Proof: tests/verify/test_sampler.c compares them with a slow reference. */
#include "verify/sampler.h"

#include "base/math_functions.h"

#include <math.h>
#include <string.h>

bool filter_before(FilterCandidate a, FilterCandidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

double filter_weight(float logit, float max, float temperature) {
    return math_exp(((double)logit - (double)max) / (double)temperature);
}

bool filter_is_certain(const SamplingOptions *o, float max) {
    return o->temperature == 0 || o->top_k == 1 || max == INFINITY;
}

/* Restores the heap below i. The heap's top is the first candidate in falling order of probability or, with
 * last_on_top, the last one. */
static void sift_down(FilterCandidate *heap, int32_t n, int32_t i, bool last_on_top) {
    FilterCandidate moving = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && filter_before(heap[child + 1], heap[child]) != last_on_top) child++;
        if (filter_before(heap[child], moving) == last_on_top) break;
        heap[i] = heap[child];
    }
    heap[i] = moving;
}

static void heapify(FilterCandidate *heap, int32_t n, bool last_on_top) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift_down(heap, n, i, last_on_top);
}

/* Selects the k first candidates of the row, as a heap with the first on top, and returns how many there are. */
static int32_t select_top_k(const FilterScratch *s, const float *logits, int32_t k) {
    enum { CHUNK = 1024 };
    FilterCandidate *heap = s->candidates;
    int32_t n = 0, i = 0;
    for (; i < s->n_vocab && n < k; i++)
        if (logits[i] > -INFINITY) heap[n++] = (FilterCandidate){logits[i], i};
    heapify(heap, n, true);
    for (int32_t end; i < s->n_vocab; i = end) {
        end = s->n_vocab - i < CHUNK ? s->n_vocab : i + CHUNK;
        int32_t n_above = s->rows->above(logits + i, end - i, heap[0].logit, s->ids);
        for (int32_t c = 0; c < n_above;
             c++) { /* the ids rise, so that a token of equal logit comes after the heap's last one */
            float logit = logits[i + s->ids[c]];
            if (!(logit > heap[0].logit)) continue;
            heap[0] = (FilterCandidate){logit, i + s->ids[c]};
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
static int32_t cut_heap(FilterCandidate *heap, int32_t n, float max, float temperature, double sum, double want) {
    int32_t left = n;
    while (left > 0) {
        FilterCandidate top = heap[0];
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
static void sort_falling(FilterCandidate *c, int32_t n, FilterCandidate *spare) {
    for (int shift = 0; shift < 32; shift += 8) {
        int32_t starts[257] = {0};
        for (int32_t i = 0; i < n; i++) starts[(falling_key(c[i].logit) >> shift & 255) + 1]++;
        for (int k = 0; k < 256; k++) starts[k + 1] += starts[k];
        for (int32_t i = 0; i < n; i++) spare[starts[falling_key(c[i].logit) >> shift & 255]++] = c[i];
        FilterCandidate *sorted = spare; /* after an even number of passes this is the caller's c */
        spare = c;
        c = sorted;
    }
}

/* Divides the n tokens of s->ids: those that are certainly in the run become candidates at `sure`, and those near
 * its end stay in s->ids. It has no branches, because they could not be predicted. Returns how many tokens stay. */
static int32_t divide(const FilterScratch *s, const Ends *ends, const float *row, float max, int32_t n,
                      FilterCandidate *restrict sure) {
    const Ends e = *ends;
    int32_t *ids = s->ids, n_near = 0, n_sure = 0;
    for (int32_t i = 0; i < n; i++) {
        FilterCandidate c = {row[ids[i]], ids[i]};
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
    FilterCandidate *sure = s->candidates + (s->n_vocab - e.n_sure);
    int32_t n_near = divide(s, &e, row, max, *n, sure), n_cut = 0;
    double sum = 0;
    for (int32_t i = 0; i < e.n_sure; i++) sum += filter_weight(sure[i].logit, max, temperature);
    for (int32_t i = 0; i < n_near; i++) s->near[i] = (FilterCandidate){row[s->ids[i]], s->ids[i]};
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

FilterKept filter_row(const FilterScratch *s, const SamplingOptions *o, const float *row, float max) {
    /* min_logit is -inf without min-p */
    FilterKept kept = {.min_logit = (double)max + (double)o->temperature * math_log((double)o->min_p)};
    bool by_k = o->top_k > 0 && o->top_k < s->n_vocab;
    if (!by_k && o->top_p >= 1) return kept;
    FilterCandidate *c = s->candidates;
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
