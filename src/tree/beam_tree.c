/* beam_tree.c - from a beam to a token tree by comparing tensors (ReDrafter, appendix A.1: dedup_prefix, pack_beam).
 *
 * The problem: beam search ends with n candidates of one length, many of which begin alike. Verifying each by itself
 * computes the shared prefixes again and again.
 *
 * The idea: all candidates have the same length, so no trie is needed. Compare every candidate with every other,
 * token by token; two share their first j + 1 tokens if the first j + 1 comparisons are all equal. The
 * lowest-numbered candidate that shares them represents all:
 *
 *     beam     91 92 93 95      prefix   0 0 0 0
 *              91 92 94 96               0 0 1 1
 *              91 92 93 97               0 0 0 2
 *
 * A token is new where a candidate represents itself, prefix[i][j] == i; the others are copies. New tokens, candidate
 * by candidate, are the packed sequence; the parent of (i, j) is the token that (i, j - 1) maps to:
 *
 *     packed   91 92 93 95 94 96 97          12 tokens became 7
 *     parents  -1  0  1  2  1  4  2
 *     depths    0  1  2  3  2  3  3
 *
 * Invariants: prefix[i][j] <= i, and along a candidate it never falls, so that a token after a new one is new, and
 * parents come before their children. The attention mask of the packed sequence is "itself and its ancestors", which
 * is what a row of our engine attends to anyway. Cost: n^2 length / 2 comparisons, 23,000 for 64 candidates of 11,
 * without a branch that depends on the tokens, so they vectorise fully; a trie costs n length steps, each a search
 * among children. Proof: tests/tree/test_beam_tree.c, against a trie. */
#include "tree/beam_tree.h"

void beam_dedup_prefix(const int32_t *beam, int32_t n, int32_t length, int32_t *prefix) {
    for (int32_t i = 0; i < n; i++) {
        const int32_t *mine = beam + (int64_t)i * length;
        int32_t *least = prefix + (int64_t)i * length;
        for (int32_t j = 0; j < length; j++) least[j] = i;
        for (int32_t k = i - 1; k >= 0; k--) {
            const int32_t *other = beam + (int64_t)k * length;
            int32_t same = 1;
            for (int32_t j = 0; j < length; j++) {
                same &= mine[j] == other[j];
                least[j] = same ? k : least[j];
            }
        }
    }
}

void beam_pack(const int32_t *beam, const int32_t *prefix, int32_t n, int32_t length, PackedBeam *out) {
    out->n = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < length; j++) {
            int64_t at = (int64_t)i * length + j;
            if (prefix[at] != i) {
                out->places[at] = out->places[(int64_t)prefix[at] * length + j];
                continue;
            }
            out->tokens[out->n] = beam[at];
            out->parents[out->n] = j ? out->places[at - 1] : -1;
            out->depths[out->n] = j;
            out->places[at] = out->n++;
        }
}
