/* gumbel.c - keyed Gumbel noise that resolves small probabilities, and draws without replacement that are made with it.
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
#include "verify/gumbel.h"

#include <stdlib.h>

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
        id += 1 + floor(log(u) / log1p(-GUMBEL_RARE));
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

/* ---- draws without replacement ---------------------------------------------------------------------- */

/* Drawing without replacement: the children of one node (Gumbel-top-k), and whole sequences (stochastic beam search).
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
 * Pruning: a token can be among the k best only if G > t - log q, t being the k-th best so far, which requires v < q
 * e^-t (gumbel.h). So one multiplication rules out nearly every token, and no random number is computed for blocks of
 * four without rare noise in which q e^-t is below GUMBEL_RARE.
 *
 * Example: q = (0.5, 0.3, 0.2), G = (-0.2, 1.1, 0.4), k = 2: values -0.89, -0.10, -1.21: tokens 1 and 0. With psi =
 * -1 at their parent (log_q = 0), token 1 gets psi -1, token 0: v = -1 + 0.89 + log(1 - e^-0.79) = -0.71, T = -1.40.
 *
 * Cost: O(V) with about k log(V/k) logarithms. Ties go to the lowest id. Proof: tests/verify/test_draw.c: inclusion
 * probabilities of sets and of paths against enumeration, with negative controls; pruned against unpruned. */
/* The children found so far, in falling order of `value`, which is log q + G without the parent's log_q. */
typedef struct Best {
    DrawChild *out;
    int32_t n, k;
    double bar; /* e^-t, where t is the k-th best value; infinite until there are k */
} Best;

static void insert(Best *b, int32_t token, float q, double value) {
    if (b->n == b->k && !(value > b->out[b->n - 1].value)) return; /* the ids rise, so that ties go to the lowest one */
    int32_t i = b->n < b->k ? b->n++ : b->k - 1;
    for (; i > 0 && b->out[i - 1].value < value; i--) b->out[i] = b->out[i - 1];
    b->out[i] = (DrawChild){.token = token, .q = q, .value = value};
    if (b->n == b->k) b->bar = exp(-b->out[b->k - 1].value) * (1 + 1e-9); /* margin for rounding */
}

static void insert_silent(Best *b, const float *q, int32_t n_vocab) {
    for (int32_t i = 0; i < n_vocab; i++)
        if (q[i] > 0 && (double)q[i] * b->bar >= 1) insert(b, i, q[i], log((double)q[i]));
}

static void insert_noisy(Best *b, const float *q, int32_t n_vocab, const DrawNoise *noise) {
    GumbelRow g;
    gumbel_row_begin(&g, noise->seed, noise->stream, noise->position, n_vocab);
    int32_t rare = gumbel_row_next_rare(&g, 0);
    for (int32_t block = 0; block < n_vocab; block += 4) {
        int32_t end = n_vocab - block < 4 ? n_vocab : block + 4;
        bool any = rare < end;
        for (int32_t i = block; i < end; i++) any |= q[i] > 0 && (double)q[i] * b->bar >= GUMBEL_RARE;
        if (!any) continue;
        double v[4];
        gumbel_row_block(&g, block, v);
        for (int32_t i = block; i < end; i++)
            if (q[i] > 0 && v[i - block] <= (double)q[i] * b->bar)
                insert(b, i, q[i], log((double)q[i]) + gumbel_of(v[i - block]));
        if (rare < end) rare = gumbel_row_next_rare(&g, end);
    }
}

static double truncate_below(double u, double y, double max) {
    double v = u - y + log1p(-exp(y - max));
    return u - (v > 0 ? v : 0) - log1p(exp(-fabs(v)));
}

int32_t draw_children(const float *q, int32_t n_vocab, const DrawParent *parent, int32_t i_parent, int32_t k,
                      DrawChild *out) {
    if (k < 1) return 0;
    Best b = {.out = out, .k = k, .bar = INFINITY};
    if (parent->noise.silent) insert_silent(&b, q, n_vocab);
    else insert_noisy(&b, q, n_vocab, &parent->noise);
    double max = b.n ? parent->log_q + out[0].value : 0;
    for (int32_t i = 0; i < b.n; i++) {
        DrawChild *c = &out[i];
        double y = parent->log_q + c->value;
        c->parent = i_parent;
        c->log_q = parent->log_q + log((double)c->q);
        c->psi = parent->noise.silent ? y : truncate_below(parent->psi, y, max);
        if (i > 0 && c->psi > out[i - 1].psi)
            c->psi = out[i - 1].psi; /* rounding must not make psi rise among siblings */
    }
    return b.n;
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
