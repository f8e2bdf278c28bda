/* gumbel_row.c - keyed Gumbel noise that resolves small probabilities, and the token of a row that wins with it.
 *
 * The problem: argmax(log p + G) draws from p, and a token of p = 1e-11 wins about when its v = 1 - U is below 1e-11.
 * With v made of one 32-bit word that never happens, since v has steps of 2.3e-10; a chance of 1e-10 comes out as
 * 0.8e-10. Two words for each token would resolve it, but they would double the largest cost of sampling.
 *
 * The idea: the noise of a token is rare (v < r = 2^-16) with probability r, independently of other tokens. So the rare
 * tokens of a row are a Bernoulli process, and the gaps between them are geometric: gap = floor(log u / log(1 - r))
 * with a uniform u of 53 bits. A row of 128,000 tokens has two of them on average, which are listed first; each gets 64
 * bits:
 *
 *     rare     v = r (x + 1/2) 2^-64             x: 64 bits, of (seed, stream + RNG_RARE, position, number in the list)
 *     common   v = r + (1 - r) (w + 1/2) 2^-32   w: the token's own word, of (seed, stream, position, token)
 *
 * v is uniform in (0, 1), in steps of 8e-25 below r and of 2.3e-10 above it, which is 1.5e-5 of v at most. Every
 * token's noise is still a pure function of its key: if one vocabulary is the beginning of another, the tokens that
 * both have get the same noise.
 *
 * It is also faster than plain words: a common G is at most 11.1 where a plain one reaches 22.9, so that tokens whose
 * probability is 2^-16 of the leader's or less need no random number unless they are in the list.
 *
 * Example: r = 2^-16, u = 0.9: gap = floor(-0.105 / -1.53e-5) = 6904, so token 6904 is the first rare one.
 * Cost: a Philox block and a logarithm for each rare token and one more at the end; then one block for four tokens.
 * Proof: tests/verify/test_gumbel.c: moments, frequencies down to 1e-12, and what 32 bits would have given. */
#include "base/gumbel_row.h"

static uint64_t join(uint32_t high, uint32_t low) { return (uint64_t)high << 32 | low; }

void gumbel_row_begin(GumbelRow *g, uint64_t seed, RngStream stream, uint64_t position, int32_t n_vocab) {
    g->seed = seed;
    g->stream = stream;
    g->position = position;
    g->n_rare = 0;
    double id = -1; /* the id of the last rare token */
    while (g->n_rare < GUMBEL_ROW_RARE) {
        uint32_t w[4];
        rng_words(seed, (RngStream)((int)stream + RNG_RARE), position, (uint32_t)g->n_rare, w);
        double u = ((double)(join(w[0], w[1]) >> 11) + 0.5) * 0x1p-53;
        id += 1 + floor(math_log(u) / math_log1p(-GUMBEL_RARE));
        if (id >= n_vocab) break;
        g->rare_id[g->n_rare] = (int32_t)id;
        g->rare_v[g->n_rare++] = GUMBEL_RARE * ((double)join(w[2], w[3]) + 0.5) * 0x1p-64;
    }
}

void gumbel_row_block(const GumbelRow *g, int32_t first, double v[4]) {
    uint32_t w[4];
    rng_words(g->seed, g->stream, g->position, (uint32_t)first / 4, w);
    for (int i = 0; i < 4; i++) v[i] = gumbel_common_v(w[i]);
    for (int32_t k = 0; k < g->n_rare; k++)
        if (g->rare_id[k] >= first && g->rare_id[k] < first + 4) v[g->rare_id[k] - first] = g->rare_v[k];
}

double gumbel_row_v(const GumbelRow *g, int32_t token) {
    double v[4];
    gumbel_row_block(g, token - token % 4, v);
    return v[token % 4];
}

int32_t gumbel_row_next_rare(const GumbelRow *g, int32_t token) {
    for (int32_t k = 0; k < g->n_rare; k++)
        if (g->rare_id[k] >= token) return g->rare_id[k];
    return INT32_MAX;
}

double gumbel_noise(uint64_t seed, RngStream stream, uint64_t position, int32_t token) {
    GumbelRow g;
    gumbel_row_begin(&g, seed, stream, position, token + 1);
    return gumbel_of(gumbel_row_v(&g, token));
}

/* ---- the token that wins ------------------------------------------------------------------------------ */

/* Drawing one of V logits by Gumbel noise without computing most of that noise.
 *
 * The problem: argmax(z + G), z = logits / temperature, needs noise for each of V tokens, and V logarithms of
 * logarithms cost milliseconds. Nearly all of them cannot win.
 *
 * The idea: let `best` be the greatest z + G so far. Token i can only win with G_i >= d = best - z_i. Three tests, each
 * cheaper than what it saves:
 *
 *   logits     G does not exceed GUMBEL_COMMON_MAX, except for the few rare tokens, which are known beforehand
 *              and considered first. So blocks of four tokens, which share one block of random words, are looked at
 *              only where z >= best - GUMBEL_COMMON_MAX; after the first thousands of tokens of a real row few are
 *              left.
 *   words      with v = 1 - U, G_i >= d requires v_i <= e^-d, because v <= -log(1 - v): a comparison of logarithms,
 *              taken from the bits of a float, many tokens at once (RowKernels.contenders). On average that leaves
 *              about the sum of e^(z_i - best) tokens of a chunk, two or three.
 *   value      z + G is computed for these.
 *
 * The most probable token goes first, so that `best` is near its final value from the start. All tests err on the side
 * of computing a value: every margin below exceeds the rounding of what it compares. So the result is that of computing
 * all values, bit by bit, whatever the table of kernels.
 *
 * Example: z = (2, 1, -30), G = (0.1, 1.6, ?), no rare tokens. Token 0 is most probable: best = 2.1. Token 1: d = 1.1,
 * v = 1 - e^-e^-1.6 = 0.18 <= e^-1.1: 2.6 > 2.1 is the new best. Token 2: d = 32.6 > 11.1: skipped. The result is 1.
 *
 * Noise belongs to a token and not to a row, so the token that wins a row is one of those that win its parts: processes
 * that have a part of a row each need to exchange their winners only (compute/cpu/split.c).
 *
 * Cost: one pass over the row, and a quarter of a Philox block for each token within GUMBEL_COMMON_MAX of the best.
 * Proof: tests/verify/test_gumbel_max.c, against all values, for every table. */
void gumbel_max_begin(GumbelMax *d, uint64_t seed, uint64_t position, float temperature, int32_t n_vocab, float max,
                      int32_t max_id) {
    gumbel_row_begin(&d->noise, seed, RNG_TARGET, position, n_vocab);
    for (int k = 0; k < GUMBEL_DISTANCES; k++) d->tail[k] = math_exp(-k);
    d->temperature = (double)temperature;
    d->max = (double)max;
    d->best_id = max_id;
    d->best = d->max / d->temperature + gumbel_of(gumbel_row_v(&d->noise, max_id));
}

/* Returns the margin for rounding errors in the comparisons that prune. */
static double slack(const GumbelMax *d) { return 1e-9 + 1e-15 * fabs(d->best); }

void gumbel_max_consider(GumbelMax *d, float logit, int32_t id, double v) {
    double z = (double)logit / d->temperature;
    double distance = d->best - z - slack(d);
    if (distance > GUMBEL_MAX) return;
    if (distance > 0 && v > d->tail[(int)distance]) return;
    double value = z + gumbel_of(v);
    if (value > d->best || (value == d->best && id < d->best_id)) d->best = value, d->best_id = id;
}

static bool is_in_field(const GumbelField *f, float logit, int32_t id) {
    bool comes_later = logit < f->last_logit || (logit == f->last_logit && id > f->last_id);
    return logit > -INFINITY && (double)logit >= f->min_logit && !comes_later;
}

static void consider(GumbelMax *d, const GumbelField *f, const float *row, int32_t id, double v) {
    if (is_in_field(f, row[id], id)) gumbel_max_consider(d, row[id], id, v);
}

/* Returns the lowest logit that could still win with noise that is not rare, rounded down. */
static float winning_logit(const GumbelMax *d) {
    return nextafterf((float)((d->best - GUMBEL_COMMON_MAX - slack(d)) * d->temperature), -INFINITY);
}

/* Returns the test of a word w: log2(w / 2^32) <= (z - best) / ln 2 is necessary for winning. Logarithms are those of
 * row_kernels.h, in units of 2^-23. The margin of 2^-10 covers roundings, also those of `best` if it is huge. At
 * extreme temperatures floats would overflow, so no token is ruled out there. */
static Contest contest_of(const GumbelMax *d) {
    const double unit = 0x1p23, log2_e = 1.4426950408889634, margin = 0x1p-10 + log2_e * slack(d);
    if (d->temperature < 0x1p-100 || d->temperature > 0x1p100) return (Contest){0, 0, INFINITY};
    double lead = log2_e * (d->max / d->temperature - d->best);
    return (Contest){(float)d->max, (float)(log2_e * unit / d->temperature),
                     (float)((lead + margin + 127 + 31) * unit)};
}

/* Considers the tokens [begin, end); both are multiples of 4. None below `least` is in the field. A rare token among
 * them has already been considered with its rare noise, which is greater than the noise of its word, so that
 * considering it again does not change the result. */
static void consider_chunk(GumbelMax *d, const RowKernels *rows, const GumbelField *f, float least, const float *row,
                           int32_t begin, int32_t end) {
    float floor = winning_logit(d);
    if (least > floor) floor = least;
    int32_t n_blocks = rows->blocks_above(row, begin, end, floor, d->blocks);
    if (n_blocks == 0) return;
    rows->words(d->noise.seed, d->noise.stream, d->noise.position, d->blocks, n_blocks, d->words);
    Contest contest = contest_of(d);
    int32_t n = rows->contenders(&contest, row, d->blocks, d->words, n_blocks, d->at);
    for (int32_t i = 0; i < n; i++) {
        int32_t at = d->at[i], id = 4 * (int32_t)d->blocks[at / 4] + at % 4;
        consider(d, f, row, id, gumbel_common_v(d->words[at]));
    }
}

void gumbel_max_consider_row(GumbelMax *d, const RowKernels *rows, const float *row, const GumbelField *f) {
    int32_t end = f->last / 4 * 4;
    float least = nextafterf((float)f->min_logit, -INFINITY);
    if (f->last_logit > least) least = f->last_logit;
    for (int32_t k = 0; k < d->noise.n_rare; k++) {
        int32_t id = d->noise.rare_id[k];
        if (id >= f->first && id < f->last) consider(d, f, row, id, d->noise.rare_v[k]);
    }
    for (int32_t i = end; i < f->last; i++) consider(d, f, row, i, gumbel_row_v(&d->noise, i));
    for (int32_t begin = f->first; begin < end; begin += GUMBEL_CHUNK)
        consider_chunk(d, rows, f, least, row, begin, end - begin < GUMBEL_CHUNK ? end : begin + GUMBEL_CHUNK);
}
