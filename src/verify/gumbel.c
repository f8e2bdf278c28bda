/* gumbel.c - draws without replacement: the children of one node (Gumbel-top-k), and whole sequences (stochastic beam
 * search).
 *
 * The problem: a draft tree should not offer the target the same token twice, and yet its tokens should follow the
 * draft model's distribution. The idea (Vieira 2014; Kool et al. 2019; Recursive Speculative Decoding, eq. 5-11):
 * with independent standard Gumbel noise G, the k greatest of log q(x) + G(x) are k draws from q without replacement,
 * in order.
 *
 * For sequences, the paper's phi is log_q here (the log-probability of a path), its psi is psi:
 *
 *   phi~(x)  = phi(parent) + log q(x) + G(x)                           eq. 6
 *   psi(x)   = T(psi(parent), phi~(x)),  M = max_x phi~(x)              eq. 9
 *   T(u, y)  = -log(e^-u - e^-M + e^-y)                                 eq. 10
 *
 * T shifts the noise of the children so that the greatest of them is exactly u, their parent's: perturbing a path and
 * then its continuations becomes perturbing the continuations themselves, conditioned on what the beam already fixes.
 * The W greatest psi of a level (eq. 11) are then W paths of that length drawn without replacement. T rises with y,
 * so only the W best children of each parent can be among them: call draw_children for each parent, then draw_beam.
 *
 * e^-u and e^-M may be astronomically large, hence (Kool et al., appendix B.3)
 *   v = u - y + log1p(-e^(y - M)),   T = u - max(0, v) - log1p(e^-|v|),   which gives u itself where y = M.
 *
 * Noise is keyed (rng.h), so drawing twice gives the same result twice, in any order. With the target's own stream
 * and the output position the draw is coupled: the target will take argmax(log p + G) with the same G, so the nearer
 * q is to p, the more often the first child is that token; where q = p, always. An independent draw uses the stream
 * RNG_DRAFT and a seed for each node, so that nodes of one depth do not share noise. Silent noise is the greedy case:
 * top-k by q, beam search by log_q; nothing is truncated then.
 *
 * The k best are the first k arrivals of an exponential race: e^-(log q + G) = -log(1 - v) / q is the time of arrival
 * of a token. A token can be among them only if v <= q * bar, where bar is the time of the k-th so far, because v <=
 * -log(1 - v). So these tests, each cheaper than what it saves, rule out nearly all tokens. As in sampler.c, many
 * tokens are compared at once (RowKernels):
 *
 *   q          v is at least GUMBEL_RARE, except for the few rare tokens, which are considered first. So blocks of four
 *              tokens are looked at only where q * bar >= GUMBEL_RARE.
 *   words      w 2^-32 (1 - GUMBEL_RARE) <= q * bar, where w is the random word of the token
 *   time       one logarithm
 *   value      log q + G, by which the tokens are ranked, is computed at the end for those that are left, about k.
 *
 * The row is read in pieces. The first is short and none is longer than all pieces before it, so that each adds at most
 * about k candidates. Every margin exceeds the rounding of what is compared, so the result is that of computing all
 * values, bit by bit, whatever the table of kernels.
 *
 * The words of a row are kept, because the nodes of one depth share their noise in a coupled draw, and at k = 16 most
 * blocks of a flat row are looked at. If a quarter of the blocks of a piece are needed, all its words are computed, and
 * the next draw with the same noise finds them.
 *
 * Example: q = (0.5, 0.3, 0.2), G = (-0.2, 1.1, 0.4), k = 2: values -0.89, -0.10, -1.21: tokens 1 and 0. With psi =
 * -1 at their parent (log_q = 0), token 1 gets psi -1, token 0: v = -1 + 0.89 + log(1 - e^-0.79) = -0.71, T = -1.40.
 *
 * Cost: one or two passes over the row, a quarter of a Philox block for each token that is looked at, unless the draw
 * before had the same noise, and about k log(V/k) logarithms. When it loses: on flat rows with noise of their own,
 * where nearly every word is computed. Ties go to the lowest id. Proof: tests/verify/test_draw.c: inclusion
 * probabilities of sets and of paths against enumeration, with negative controls; bit by bit against a scan of all
 * tokens, for every table of kernels. */
#include "verify/gumbel.h"

#include "base/error.h"
#include "base/math_functions.h"
#include "base/mem.h"

#include <float.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>

enum {
    PIECE_MIN = 64,
    PIECE = 2048,     /* tokens that are looked at together */
    N_PIECES_MIN = 6, /* pieces before the first one of full length: 64, 64, 128, 256, 512, 1024 tokens */
    LANES = 4,
    BLOCK = 32 /* tokens that are compared without a branch */
};
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));

struct DrawCache {
    const RowKernels *rows;
    int32_t n_vocab;
    bool has_row;
    GumbelRow row;   /* the noise of the last draw */
    uint32_t *words; /* [n_vocab / 4 * 4] its random words */
    bool *is_ready;  /* [pieces] whether the words of a piece have been computed */
    /* The blocks of a piece that are looked at, their words and their probabilities. */
    uint32_t blocks[PIECE / 4], near_words[PIECE];
    float near_q[PIECE];
};

DrawCache *draw_cache_new(int32_t n_vocab, const RowKernels *rows) {
    DrawCache *c = mem_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->n_vocab = n_vocab;
    c->rows = rows;
    c->words = mem_calloc((size_t)n_vocab, sizeof *c->words);
    c->is_ready = mem_calloc((size_t)(N_PIECES_MIN + n_vocab / PIECE), sizeof *c->is_ready);
    if (c->words && c->is_ready) return c;
    draw_cache_free(c);
    return NULL;
}

void draw_cache_free(DrawCache *c) {
    if (!c) return;
    mem_free(c->words);
    mem_free(c->is_ready);
    mem_free(c);
}

/* Makes the cache that of this noise. */
static void use_noise(DrawCache *c, const DrawNoise *n) {
    if (c->has_row && c->row.seed == n->seed && c->row.stream == n->stream && c->row.position == n->position) return;
    gumbel_row_begin(&c->row, n->seed, n->stream, n->position, c->n_vocab);
    memset(c->is_ready, 0, (size_t)(N_PIECES_MIN + c->n_vocab / PIECE) * sizeof *c->is_ready);
    c->has_row = true;
}

typedef struct Candidate {
    double time; /* -log(1 - v) / q; 1 / q without noise */
    double v, value;
    float q;
    int32_t token;
} Candidate;

enum { SPARE = 32 };

/* The earliest tokens so far, k of them and those that may be as early but for rounding, in rising order of time. */
typedef struct Race {
    Candidate list[DRAW_MAX_CHILDREN + SPARE];
    int32_t n, k;
    bool silent;
    double bar; /* no token later than this can be among the k best; infinite until there are k */
} Race;

static int by_value(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* Keeps the k best of the list by their values, which are computed here. Times then rise but for rounding. */
static void keep_best(Race *r) {
    for (int32_t i = 0; i < r->n; i++) {
        Candidate *c = &r->list[i];
        c->value = math_log((double)c->q) + (r->silent ? 0 : gumbel_of(c->v));
    }
    qsort(r->list, (size_t)r->n, sizeof *r->list, by_value);
    if (r->n > r->k) r->n = r->k;
}

static void insert(Race *r, Candidate c) {
    int32_t i = r->n++;
    for (; i > 0 && r->list[i - 1].time > c.time; i--) r->list[i] = r->list[i - 1];
    r->list[i] = c;
    if (r->n < r->k) return;
    r->bar = r->list[r->k - 1].time * (1 + 1e-9); /* margin for rounding */
    while (r->n > r->k && (r->silent || r->list[r->n - 1].time > r->bar)) r->n--;
    if (r->n == r->k + SPARE) keep_best(r);
}

/* Lets a token take part in a draw with noise v. An infinite q has time 0 and takes part even at a bar of 0. */
static void consider(Race *r, float q, int32_t token, double v) {
    if (!(q > 0) || v > (double)q * r->bar) return;
    double time = -math_log1p(-v) / (double)q;
    if (!(time > r->bar)) insert(r, (Candidate){.time = time, .v = v, .q = q, .token = token});
}

/* The same for a token whose noise is that of its word, unless it is rare. */
static void consider_word(Race *r, const GumbelRow *g, float q, int32_t token, uint32_t word) {
    double v = gumbel_common_v(word);
    if (v > (double)q * r->bar || gumbel_row_next_rare(g, token) == token) return;
    consider(r, q, token, v);
}

/* The same without noise. The tokens come in rising order, so that of equal ones the first stay. */
static void consider_silent(Race *r, float q, int32_t token) {
    double time = 1 / (double)q;
    if (!(q > 0) || (r->n == r->k && time >= r->list[r->k - 1].time)) return;
    insert(r, (Candidate){.time = time, .q = q, .token = token});
}

/* Returns the lowest probability that reaches `least` when it is multiplied by the bar, rounded down. */
static float lowest_q(const Race *r, double least) {
    float q = nextafterf((float)(least / r->bar), 0);
    return q > 0 ? q : FLT_TRUE_MIN;
}

static int any_lane(Ints lanes) { return lanes[0] | lanes[1] | lanes[2] | lanes[3]; }

/* Returns whether a word of a block can be low enough: w / 2 <= q * scale. */
static bool any_contends(const float *q, const uint32_t *words, float scale) {
    Ints any = {0};
    for (int32_t k = 0; k < BLOCK; k += LANES) {
        Words w;
        Floats x;
        memcpy(&w, words + k, sizeof w);
        memcpy(&x, q + k, sizeof x);
        any |= __builtin_convertvector((Ints)(w >> 1), Floats) <= x * scale;
    }
    return any_lane(any);
}

/* Considers n tokens, a multiple of 4, with their words. Those of blocks[i] are at 4 i; if
 * blocks is NULL, they are the tokens from `first` on. */
static void consider_words(Race *r, const GumbelRow *g, const float *q, const uint32_t *words, int32_t n,
                           const uint32_t *blocks, int32_t first) {
    /* v <= q e^-t requires w 2^-32 (1 - GUMBEL_RARE) <= q e^-t; the margin is for roundings to float. The scale is at
     * least FLT_MIN so that its product with an infinite q is not NaN. */
    double limit = r->bar * 0x1p31 / (1 - GUMBEL_RARE) * (1 + 0x1p-20);
    float scale = limit > (double)FLT_MIN ? (float)limit : FLT_MIN;
    for (int32_t i = 0; i < n; i += BLOCK) {
        int32_t end = n - i < BLOCK ? n : i + BLOCK;
        if (end - i == BLOCK && !any_contends(q + i, words + i, scale)) continue;
        for (int32_t k = i; k < end; k++)
            consider_word(r, g, q[k], blocks ? 4 * (int32_t)blocks[k / 4] + k % 4 : first + k, words[k]);
    }
}

/* Considers the tokens of n blocks of a row, c->blocks. */
static void consider_blocks(Race *r, DrawCache *c, const float *q, int32_t n) {
    const GumbelRow *g = &c->row;
    for (int32_t i = 0; i < n; i++) memcpy(c->near_q + 4 * i, q + 4 * c->blocks[i], 4 * sizeof *q);
    c->rows->words(g->seed, g->stream, g->position, c->blocks, n, c->near_words);
    consider_words(r, g, c->near_q, c->near_words, 4 * n, c->blocks, 0);
}

/* Considers the tokens [begin, end) of a row, which are whole blocks. */
static void draw_piece(Race *r, DrawCache *c, const float *q, int32_t begin, int32_t end, bool *is_ready) {
    const GumbelRow *g = &c->row;
    uint32_t *words = c->words + begin;
    if (!*is_ready) {
        int32_t n_all = (end - begin) / 4;
        int32_t n = c->rows->blocks_above(q, begin, end, lowest_q(r, GUMBEL_RARE), c->blocks);
        if (n < n_all / 4) {
            if (n > 0) consider_blocks(r, c, q, n);
            return;
        }
        for (int32_t i = 0; i < n_all; i++) c->blocks[i] = (uint32_t)(begin / 4 + i);
        c->rows->words(g->seed, g->stream, g->position, c->blocks, n_all, words);
        *is_ready = true;
    }
    consider_words(r, g, q + begin, words, end - begin, NULL, begin);
}

static void draw_silent_piece(Race *r, DrawCache *c, const float *q, int32_t begin, int32_t end) {
    int32_t n = c->rows->blocks_above(q, begin, end, lowest_q(r, 1), c->blocks);
    for (int32_t i = 0; i < 4 * n; i++) {
        int32_t token = 4 * (int32_t)c->blocks[i / 4] + i % 4;
        consider_silent(r, q[token], token);
    }
}

static void draw_row(Race *r, DrawCache *c, const float *q, const DrawNoise *noise) {
    int32_t n_whole = c->n_vocab / 4 * 4, i_piece = 0;
    if (!r->silent) {
        use_noise(c, noise);
        const GumbelRow *g = &c->row;
        for (int32_t i = 0; i < g->n_rare && g->rare_id[i] < n_whole; i++)
            consider(r, q[g->rare_id[i]], g->rare_id[i], g->rare_v[i]);
    }
    for (int32_t begin = 0, end; begin < n_whole; begin = end) {
        int32_t size = begin < PIECE_MIN ? PIECE_MIN : begin < PIECE ? begin : PIECE;
        end = n_whole - begin < size ? n_whole : begin + size;
        if (r->silent) draw_silent_piece(r, c, q, begin, end);
        else draw_piece(r, c, q, begin, end, &c->is_ready[i_piece++]);
    }
    for (int32_t i = n_whole; i < c->n_vocab; i++) {
        if (r->silent) consider_silent(r, q[i], i);
        else consider(r, q[i], i, gumbel_row_v(&c->row, i));
    }
    keep_best(r);
}

static double truncate_below(double u, double y, double max) {
    double v = u - y + math_log1p(-math_exp(y - max));
    return u - (v > 0 ? v : 0) - math_log1p(math_exp(-fabs(v)));
}

int32_t draw_children(DrawCache *c, const float *q, const DrawParent *parent, int32_t i_parent, int32_t k,
                      DrawChild *out) {
    fr_assert(k <= DRAW_MAX_CHILDREN);
    if (k < 1) return 0;
    Race r = {.k = k, .silent = parent->noise.silent, .bar = INFINITY};
    draw_row(&r, c, q, &parent->noise);
    double max = r.n ? parent->log_q + r.list[0].value : 0;
    for (int32_t i = 0; i < r.n; i++) {
        const Candidate *best = &r.list[i];
        double log_q = math_log((double)best->q), y = parent->log_q + best->value;
        out[i] = (DrawChild){.parent = i_parent,
                             .token = best->token,
                             .q = best->q,
                             .value = best->value,
                             .log_q = parent->log_q + log_q,
                             .psi = r.silent ? y : truncate_below(parent->psi, y, max)};
        if (i > 0 && out[i].psi > out[i - 1].psi)
            out[i].psi = out[i - 1].psi; /* rounding must not make psi rise among siblings */
    }
    return r.n;
}

static int better_first(const void *a, const void *b) {
    const DrawChild *x = a, *y = b;
    if (x->psi != y->psi) return x->psi > y->psi ? -1 : 1;
    if (x->parent != y->parent) return x->parent - y->parent;
    if (x->value != y->value) return x->value > y->value ? -1 : 1; /* two psi may round to the same number */
    return x->token - y->token;
}

int32_t draw_beam(DrawChild *children, int32_t n, int32_t width) {
    qsort(children, (size_t)n, sizeof *children, better_first);
    return n < width ? n : width;
}
