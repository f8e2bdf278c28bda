/* gumbel.c - keyed Gumbel noise that resolves small probabilities.
 *
 * The problem: argmax(log p + G) draws from p, and a token of p = 1e-11 wins about when its v = 1 - U is below 1e-11. With
 * v made of one 32-bit word that never happens, since v has steps of 2.3e-10; a chance of 1e-10 comes out as 0.8e-10. Two
 * words for each token would resolve it, at twice the cost of what sampling spends most on.
 *
 * The idea: the noise of a token is rare (v < r = 2^-16) with probability r, independently of other tokens. So the rare tokens
 * of a row are a Bernoulli process, and the gaps between them are geometric: gap = floor(log u / log(1 - r)) with a uniform u
 * of 53 bits. A row of 128,000 tokens has two of them on average, which are listed first; each gets 64 bits:
 *
 *     rare     v = r (x + 1/2) 2^-64             x: 64 bits, of (seed, stream + RNG_RARE, position, number in the list)
 *     common   v = r + (1 - r) (w + 1/2) 2^-32   w: the token's own word, of (seed, stream, position, token)
 *
 * v is uniform in (0, 1), in steps of 8e-25 below r and of 2.3e-10 above it, which is 1.5e-5 of v at most. Every token's
 * noise is still a pure function of its key: of two vocabularies, one the beginning of the other, the common tokens have
 * the same noise.
 *
 * It is also faster than plain words: a common G is at most 11.1 where a plain one reaches 22.9, so that tokens whose
 * probability is 2^-16 of the leader's or less need no random number unless they are in the list.
 *
 * Example: r = 2^-16, u = 0.9: gap = floor(-0.105 / -1.53e-5) = 6904, so token 6904 is the first rare one.
 * Cost: a Philox block and a logarithm for each rare token and one more at the end; then one block for four tokens.
 * Proof: tests/verify/test_gumbel.c: moments, frequencies down to 1e-12, and what 32 bits would have given. */
#include "verify/gumbel.h"

static uint64_t join(uint32_t high, uint32_t low) { return (uint64_t)high << 32 | low; }

void gumbel_row_begin(GumbelRow *g, uint64_t seed, RngStream stream, uint64_t position, int32_t n_vocab) {
    g->seed = seed;
    g->stream = stream;
    g->position = position;
    g->n_rare = 0;
    double id = -1; /* of the last rare token */
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
