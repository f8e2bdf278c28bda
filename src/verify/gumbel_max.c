/* gumbel_max.c - a draw from V logits by Gumbel noise, most of which is never computed.
 *
 * The problem: argmax(z + G), z = logits / temperature, needs noise for each of V tokens, and V logarithms of logarithms
 * cost milliseconds. Nearly all of them cannot win.
 *
 * The idea: let `best` be the greatest z + G so far. Token i can only win with G_i >= d = best - z_i. Three tests, each
 * cheaper than what it saves:
 *
 *   logits     G does not exceed GUMBEL_COMMON_MAX, except for the few rare tokens that are known beforehand (gumbel.h)
 *              and considered first. So blocks of four tokens, which share one block of random words, are looked at only
 *              where z >= best - GUMBEL_COMMON_MAX; after the first thousands of tokens of a real row few are left.
 *   words      with v = 1 - U, G_i >= d requires v_i <= e^-d, because v <= -log(1 - v): a comparison of logarithms, taken
 *              from the bits of a float, many tokens at once (RowKernels.contenders). On average that leaves about the sum of
 *              e^(z_i - best) tokens of a chunk, two or three.
 *   value      z + G is computed for these.
 *
 * The most probable token goes first, so that `best` is near its final value from the start. All tests err on the side of
 * computing a value: every margin below exceeds the rounding of what it compares. So the result is that of computing all
 * values, bit by bit, whatever the table of kernels.
 *
 * Example: z = (2, 1, -30), G = (0.1, 1.6, ?), no rare tokens. Token 0 is most probable: best = 2.1. Token 1: d = 1.1,
 * v = 1 - e^-e^-1.6 = 0.18 <= e^-1.1: 2.6 > 2.1 is the new best. Token 2: d = 32.6 > 11.1: skipped. The result is 1.
 *
 * Cost: one pass over the row, and a quarter of a Philox block for each token within GUMBEL_COMMON_MAX of the best. Proof:
 * tests/verify/test_gumbel_max.c, against all values, for every table. */
#include "verify/gumbel_max.h"

#include <float.h>

enum { N_TAIL = 57 }; /* floors of distances up to GUMBEL_MAX */

typedef struct Draw {
    GumbelRow noise;
    double temperature, max;
    double best;
    int32_t best_id;
    double tail[N_TAIL]; /* e^-k */
} Draw;

static void draw_begin(Draw *d, const SamplingOptions *o, int32_t n_vocab, uint64_t position, float max,
                       int32_t max_id) {
    gumbel_row_begin(&d->noise, o->seed, RNG_TARGET, position, n_vocab);
    for (int k = 0; k < N_TAIL; k++) d->tail[k] = exp(-k);
    d->temperature = (double)o->temperature;
    d->max = (double)max;
    d->best_id = max_id;
    d->best = d->max / d->temperature + gumbel_of(gumbel_row_v(&d->noise, max_id));
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

static void draw_candidates(Draw *d, const Kept *kept) {
    for (int32_t i = 0; i < kept->n; i++) {
        Candidate c = kept->candidates[i];
        if ((double)c.logit >= kept->min_logit) draw_consider(d, c.logit, c.id, gumbel_row_v(&d->noise, c.id));
    }
}

/* ---- the whole row ---------------------------------------------------------------------------------------- */

/* The tokens that the filters kept, as a test: those from `cut` on in falling order of probability, of which min-p removes
 * those below min_logit. */
typedef struct Range {
    Candidate cut;
    double min_logit;
    float floor; /* no token below it takes part */
} Range;

static Range range_of(const Kept *kept) {
    Range r = {.cut = {-INFINITY, 0}, .min_logit = kept->min_logit};
    const Candidate *c = kept->candidates;
    if (c) r.cut = c[0];
    for (int32_t i = 1; c && i < kept->n; i++)
        if (filter_before(r.cut, c[i])) r.cut = c[i];
    r.floor = nextafterf((float)r.min_logit, -INFINITY);
    if (r.cut.logit > r.floor) r.floor = r.cut.logit;
    return r;
}

static bool in_range(const Range *r, float logit, int32_t id) {
    return logit > -INFINITY && (double)logit >= r->min_logit && !filter_before(r->cut, (Candidate){logit, id});
}

static void consider(Draw *d, const Range *r, const float *row, int32_t id, double v) {
    if (in_range(r, row[id], id)) draw_consider(d, row[id], id, v);
}

/* The lowest logit that could still win with noise that is not rare, rounded down. */
static float winning_logit(const Draw *d) {
    return nextafterf((float)((d->best - GUMBEL_COMMON_MAX - slack(d)) * d->temperature), -INFINITY);
}

/* The test of a word w: log2(w / 2^32) <= (z - best) / ln 2 is necessary for winning. Logarithms are those of row_kernels.h,
 * in units of 2^-23; the margin of 2^-10 covers roundings, those of best too where it is huge. Extreme temperatures, at
 * which floats would overflow, rule nothing out. */
static Contest contest_of(const Draw *d) {
    const double unit = 0x1p23, log2_e = 1.4426950408889634, margin = 0x1p-10 + log2_e * slack(d);
    if (d->temperature < 0x1p-100 || d->temperature > 0x1p100) return (Contest){0, 0, INFINITY};
    double lead = log2_e * (d->max / d->temperature - d->best);
    return (Contest){(float)d->max, (float)(log2_e * unit / d->temperature),
                     (float)((lead + margin + 127 + 31) * unit)};
}

/* Tokens [begin, end), multiples of 4. A rare token among them was considered with its rare noise, which is greater than what
 * its word stands for: this does not change the result. */
static void draw_chunk(Draw *d, const RowKernels *rows, DrawScratch *s, const Range *r, const float *row, int32_t begin,
                       int32_t end) {
    float floor = winning_logit(d);
    if (r->floor > floor) floor = r->floor;
    int32_t n_blocks = rows->blocks_above(row, begin, end, floor, s->blocks);
    if (n_blocks == 0) return;
    rows->words(d->noise.seed, d->noise.stream, d->noise.position, s->blocks, n_blocks, s->words);
    Contest contest = contest_of(d);
    int32_t n = rows->contenders(&contest, row, s->blocks, s->words, n_blocks, s->at);
    for (int32_t i = 0; i < n; i++) {
        int32_t at = s->at[i], id = 4 * (int32_t)s->blocks[at / 4] + at % 4;
        consider(d, r, row, id, gumbel_common_v(s->words[at]));
    }
}

static void draw_row(Draw *d, const RowKernels *rows, DrawScratch *s, const Range *r, const float *row,
                     int32_t n_vocab) {
    int32_t n_whole = n_vocab / 4 * 4;
    for (int32_t k = 0; k < d->noise.n_rare; k++) consider(d, r, row, d->noise.rare_id[k], d->noise.rare_v[k]);
    for (int32_t i = n_whole; i < n_vocab; i++) consider(d, r, row, i, gumbel_row_v(&d->noise, i));
    for (int32_t begin = 0; begin < n_whole; begin += DRAW_CHUNK)
        draw_chunk(d, rows, s, r, row, begin, n_whole - begin < DRAW_CHUNK ? n_whole : begin + DRAW_CHUNK);
}

int32_t gumbel_max(const RowKernels *rows, DrawScratch *scratch, const SamplingOptions *o, const float *row,
                   int32_t n_vocab, uint64_t position, int32_t max_id, const Kept *kept) {
    enum { FEW = 128 }; /* candidates whose noise is computed one by one */
    Draw d;
    draw_begin(&d, o, n_vocab, position, row[max_id], max_id);
    if (kept->candidates && kept->n <= FEW) {
        draw_candidates(&d, kept);
    } else {
        Range range = range_of(kept);
        draw_row(&d, rows, scratch, &range, row, n_vocab);
    }
    return d.best_id;
}
