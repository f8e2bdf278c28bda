/* tree_shapes.c - trees whose shape is fixed in advance, and trees of the candidates of a beam search.
 *
 * Shapes that are fixed in advance consist of ranks instead of tokens (Medusa: Cai et al. 2024, arXiv
 * 2401.10774, section 2.3.3; EAGLE: Li et al. 2024, arXiv 2401.15077, whose tree is of this kind, too).
 *
 * The problem: which nodes are worth a row of the target, before the drafter has computed anything?
 *
 * The idea: "the second most probable token below the most probable one" is a node that can be named without knowing
 * the tokens: a path of ranks. If the token of rank r at depth d is right with chance a_d(r), whatever its ancestors
 * are, then the node is reached with the product of these chances along its path, and a tree of b nodes accepts the
 * sum of its nodes' products on average. The best tree consists of the b greatest products. It is a tree because
 * products never grow along a path, and it is found greedily, one node at a time: each node offers its next child.
 *
 *     a_1 = .6 .24, a_2 = .6 .24        0 ── 1: rank 0, .6 ── 2: rank 0, .36
 *                                        └─ 3: rank 1, .24     then rank 1 below node 1 and rank 0 below node 3, .144
 *                                        each
 *
 * So the trees of all budgets are prefixes of one order, computed once. Of equal products the child of the earlier
 * node comes first. When it loses: it cannot use that a distribution at hand is sharp or flat, as the dynamic trees
 * of eagle and medusa do. Cost: n^2 / 2 comparisons for n nodes, once. Proof: tests/tree/test_tree_shapes.c, against
 * all paths. */
#include "tree/tree_shapes.h"

#include "base/math_functions.h"

#include <math.h>

void static_tree_prior(double *chance, int32_t n_levels, int32_t n_ranks) {
    for (int32_t i = 0; i < n_levels * n_ranks; i++) chance[i] = 0.6 * math_pow(0.4, i % n_ranks);
}

void static_tree_build(StaticTree *t, const double *chance, int32_t n_levels, int32_t n_ranks, int32_t max_parents) {
    int32_t next_rank[TREE_MAX_NODES] = {0}, n_parents[TREE_MAX_NODES] = {0}; /* [node], [depth] */
    t->nodes[0] = (StaticNode){.parent = -1};
    for (t->n = 1; t->n < TREE_MAX_NODES; t->n++) {
        int32_t best = -1;
        double best_log_chance = -INFINITY;
        for (int32_t i = 0; i < t->n; i++) {
            const StaticNode *node = &t->nodes[i];
            if (node->depth == n_levels || next_rank[i] == n_ranks) continue;
            if (next_rank[i] == 0 && n_parents[node->depth] == max_parents) continue;
            double sum = node->log_chance + math_log(chance[node->depth * n_ranks + next_rank[i]]);
            if (sum > best_log_chance) best = i, best_log_chance = sum;
        }
        if (best < 0) return;
        int32_t depth = t->nodes[best].depth;
        n_parents[depth] += next_rank[best] == 0;
        t->nodes[t->n] =
            (StaticNode){.parent = best, .rank = next_rank[best]++, .depth = depth + 1, .log_chance = best_log_chance};
    }
}

/* ---- the candidates of a beam search -------------------------------------------------------------------- */

/* From a beam to a token tree by comparing tensors (ReDrafter, appendix A.1: dedup_prefix, pack_beam).
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
 * among children. Proof: tests/tree/test_tree_shapes.c, against a trie. */

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
