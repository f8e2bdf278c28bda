/* ngram_rule_paper.c - the rule of "N-Gram Trie Speculative Decoding" (anonymous ACL submission, 2025).
 *
 * The problem: an answer often repeats its context; find where, and propose what came next. The paper: a window of n
 * tokens slides over the context (eq. 1); its first L_p tokens are the prefix P_i, the rest the suffix S_i; for j =
 * 0..L_p-1 the string P_i[j:] S_i is inserted into a trie from the root, and each node counts how often it was passed
 * (algorithm 1). A query takes the last L_p tokens of the text, then fewer, until they lead from the root to a node
 * with children; of the subtree there the `budget` nodes of highest frequency are the draft (eq. 5). L_p is our
 * option `prefix`.
 *
 * The idea here: that trie holds nothing but substrings of the text, so it need not exist. A string of m tokens that
 * starts at position s stems from the windows i = s - j with 0 <= j < L_p, i >= 0 and j + m <= n. So each of its
 * occurrences adds
 *
 *     min(L_p, s + 1, n - m + 1)          (0 where negative)
 *
 * to the frequency of its node, and occurrences are found at once (ngram_text.h). The subtree of a query is its list of
 * occurrences, split by the next token, again and again:
 *
 *     text  a b c a b d a b|      prefix 2, n 4; the text ends with "a b", which was seen before at 0 and 3
 *     "a b" ends at {1, 4} ── c {2}  frequency min(2, 0+1, 4-3+1) = 1
 *                          └─ d {5}  frequency min(2, 3+1, 4-3+1) = 2, taken first
 *
 * Where we differ: windows cut off by the end of the prompt count (the paper does not say). With live=1, which is not
 * in the paper, generated windows count as soon as they are complete: a string that extends into the generated text
 * stems only from windows with i + n <= length. Of equal frequencies the shallower node comes first, then the one
 * seen first; the paper does not say. The frequency never rises along a path, so taking nodes best-first yields
 * exactly the `budget` highest.
 *
 * p_accept: the share of the parent's places, times m / (m + 2) where the path before matches m tokens: on recorded
 * answers a single match of m tokens is continued about that often. Cost: the positions of the last token are walked
 * once, and each node taken costs its own places. When it loses: on texts that repeat nothing; and it proposes
 * nothing after a token that is new. Proof: tests/draft/test_draft_ngram_trie.c builds the trie of algorithm 1 in full
 * and compares the drafts for every budget; tests/research/test_replay.c reproduces the figures on recorded answers. */
#include "draft/text/ngram_rules.h"

/* How many windows contain the string of m tokens that ends at position `at`. */
static int32_t n_windows(const NgramText *t, const NgramOptions *o, int32_t at, int32_t m) {
    int32_t start = at - m + 1;
    int32_t j_max = o->prefix - 1 < o->n - m ? o->prefix - 1 : o->n - m;
    if (start < j_max) j_max = start;
    int32_t j_min = at < t->n_prompt ? 0 : start + o->n - t->n_indexed; /* generated: only complete windows */
    if (j_min < 0) j_min = 0;
    return j_max < j_min ? 0 : j_max - j_min + 1;
}

/* The frequency of the trie's node of m tokens whose last token is at these places. */
static int64_t frequency(const NgramText *t, const NgramOptions *o, const NgramPlace *places, int32_t n, int32_t m) {
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++) sum += n_windows(t, o, places[i].at, m);
    return sum;
}

/* Collects the places that match the longest prefix with children; returns its length (0: there is none, -1: no
 * memory). */
static int32_t query(NgramScratch *s, const NgramText *t, const NgramOptions *o) {
    int32_t longest = 0;
    s->n_places = 0;
    for (int32_t p = ngram_text_last(t, t->tokens[t->n - 1]); p >= 0; p = t->previous[p]) {
        if (p + 1 >= t->n_indexed) continue; /* nothing follows */
        int32_t match = ngram_text_match(t, p, o->prefix);
        while (match > 0 && n_windows(t, o, p + 1, match + 1) == 0) match--;
        if (match < longest || match == 0) continue;
        if (match > longest) s->n_places = 0;
        longest = match;
        if (!ngram_scratch_reserve(s, 1)) return -1;
        s->places[s->n_places++] = (NgramPlace){.at = p, .match = match};
    }
    return longest;
}

/* Makes candidates of the children of `node`, whose string has m tokens and occurs at these places. */
static bool expand(NgramScratch *s, const NgramText *t, const NgramOptions *o, const Tree *tree, int32_t node,
                   int32_t m, int32_t begin, int32_t n) {
    if (m + 1 > o->n) return true;
    double p_accept = (double)tree->nodes[node].p_accept * m / (m + 2) / n;
    int32_t n_groups = ngram_split(s, t, begin, n, INT32_MAX);
    for (int32_t i = 0; i < n_groups; i++) {
        NgramGroup g = s->groups[i];
        int64_t first = s->places[g.begin + g.n - 1].at, depth = tree->nodes[node].depth + 1;
        int64_t f = frequency(t, o, s->places + g.begin, g.n, m + 1);
        if (f == 0) continue; /* not in the trie yet */
        NgramCandidate c = {.score = (double)f,
                            .tie = depth << 32 | first,
                            .parent = node,
                            .token = g.token,
                            .begin = g.begin,
                            .n = g.n,
                            .p_accept = p_accept * g.n};
        if (!ngram_heap_push(s, c)) return false;
    }
    return true;
}

int ngram_rule_paper(NgramScratch *s, const NgramText *t, const NgramOptions *o, int32_t source, int32_t budget,
                     Tree *tree, fr_error *err) {
    int32_t matched = query(s, t, o);
    s->n_heap = 0;
    bool fits = matched >= 0;
    if (matched > 0) fits = expand(s, t, o, tree, 0, matched, 0, s->n_places);
    for (int32_t n = 0; fits && n < budget && s->n_heap > 0; n++) {
        NgramCandidate c = ngram_heap_pop(s);
        int32_t node = tree_add(tree, c.parent, c.token, (float)c.p_accept, source);
        if (node < 0) break;
        fits = expand(s, t, o, tree, node, matched + tree->nodes[node].depth, c.begin, c.n);
    }
    return fits ? FR_OK : error_memory(err, "an n-gram draft", (size_t)s->n_places * sizeof(NgramPlace));
}
