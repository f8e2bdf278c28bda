/* ngram_rule_best.c - our rule for ngram-trie: every place votes, and the votes are probabilities.
 *
 * The problem: the paper's rule looks only at the longest matching prefix of at most L_p tokens, ranks by raw
 * frequency, and proposes nothing if nothing matches, at one token in five of recorded answers. A tree of a given
 * budget has the greatest expected acceptance when it holds the nodes with the greatest probability that their whole
 * path is accepted; so what is needed is a good estimate of that.
 *
 * The idea: treat the text as the sample of a hierarchical Dirichlet language model (MacKay and Peto 1995;
 * interpolated Kneser-Ney smoothing is closely related, Teh 2006). At a node whose path (and text before it) matches
 * the indexed text at some places, let n_k be the number of places that match at least k tokens. Order k knows the
 * next token from n_k places and gets the weight n_k / (n_k + c_k); the rest goes to order k - 1:
 *
 *     P_k(x) = (places of order k followed by x + c_k P_{k-1}(x)) / (n_k + c_k),       c_k = k + 1
 *
 * Unrolled, the estimate of order k has the weight lambda_k = n_k / (n_k + c_k) * prod_{j>k} c_j / (n_j + c_j), and a place
 * that matches m tokens votes with sum_{k<=m} lambda_k / n_k: long matches count more, many agreeing ones too, and no
 * threshold is needed. c_k rises with k because a longer match adds little: a single match of m tokens is continued with
 * probability 1 - prod_k (k + 1) / (k + 2) = m / (m + 2), and the frequencies on recorded answers are 0.32, 0.51, 0.63, 0.70,
 * 0.75 for m = 1, 2, 3, 4, 6.
 *
 * Order 0 is the estimate where nothing matches: P_0(x) = the number of contexts in which x was seen, over that of
 * all tokens (Kneser-Ney: what follows many different tokens may follow a new one). We count a context when the left
 * neighbour differs from that at x's previous position, which takes O(1). So the tree is always full; nodes of small
 * p_accept cost the engine nothing beyond the budget that it allowed.
 *
 * p_accept(child) = p_accept(parent) * P(child | path). Nodes are taken best-first from a heap until the budget is
 * used up. The places of a node are those of its parent, split by token (matches grow by one); a node guessed at
 * order 0 takes the latest positions of its token instead. Ties go to the candidate that was made first, which is the
 * one seen latest in the text.
 *
 *     text  the cat sat . the dog ran . the|         "the" matches 2 tokens (". the") at 4, 1 at 0
 *     n_1 = 2, n_2 = 1; lambda_2 = 1/(1+3) = 0.25; lambda_1 = 0.75 * 2/(2+2) = 0.375; lambda_0 = 0.375
 *     dog: 0.25/1 + 0.375/2 = 0.4375, cat: 0.375/2 = 0.1875, each + 0.375 P_0
 *
 * Where we differ from the paper: ties, the match length, `n` and `prefix` (not used: matches count up to MAX_MATCH,
 * the depth is limited by p_accept alone), live text (default), order 0.
 *
 * Invariants: p_accept never rises along a path; the tree holds exactly the budget once NGRAM_N_TOP distinct tokens
 * were seen (and fewer only where the text has fewer continuations); the same text gives the same tree. Cost: the
 * MAX_PLACES latest positions of the last token, and for each node its own places: 6 us for 32 nodes on the recorded
 * answers, 23 us in a text of 32K tokens, 150 us if all of that is one token. When it loses: to a model, where the
 * answer is new text; order 0 knows only the common words. Proof: tests/draft/test_draft_ngram_trie.c computes P by
 * the recursion above, over all places, and compares. */
#include "draft/text/ngram_rules.h"

enum {
    MAX_MATCH = 16,    /* longer matches are practically certain */
    MAX_PLACES = 1024, /* latest positions of the last token looked at; limits the cost on texts of one token */
    MAX_GUESSED = 64,  /* the same for a node guessed at order 0 */
};

static double concentration(int32_t k) { return k + 1; }

/* Appends the latest positions of a token that are followed by a token; returns how many, or -1 if memory ran out. */
static int32_t gather(NgramScratch *s, const NgramText *t, int32_t token, int32_t max_match, int32_t max_places) {
    if (!ngram_scratch_reserve(s, max_places)) return -1;
    int32_t n = 0;
    for (int32_t p = ngram_text_last(t, token); p >= 0 && n < max_places; p = t->previous[p])
        if (p + 1 < t->n_indexed)
            s->places[s->n_places + n++] = (NgramPlace){.at = p,
                                                        .match = max_match == 1 ? 1
                                                                                : ngram_text_match(t, p, max_match)};
    s->n_places += n;
    return n;
}

/* Fills vote[m], the weight of a place that matches m tokens. Returns lambda_0. */
static double weigh(const NgramPlace *places, int32_t n, int32_t end, double vote[MAX_MATCH + 1]) {
    int32_t at_least[MAX_MATCH + 2] = {0};
    for (int32_t i = 0; i < n; i++)
        if (places[i].at + 1 < end) at_least[places[i].match]++;
    for (int32_t k = MAX_MATCH - 1; k >= 1; k--) at_least[k] += at_least[k + 1];
    double rest = 1;
    for (int32_t k = MAX_MATCH; k >= 1; k--) { /* vote[k] is first lambda_k / n_k ... */
        double total = at_least[k] + concentration(k);
        vote[k] = at_least[k] ? rest / total : 0;
        if (at_least[k]) rest *= concentration(k) / total;
    }
    vote[0] = 0;
    for (int32_t k = 1; k <= MAX_MATCH; k++) vote[k] += vote[k - 1]; /* ... then the sum up to k */
    return rest;
}

typedef struct Draft {
    NgramScratch *s;
    const NgramText *t;
    Tree *tree;
    double guess[TREE_MAX_NODES]; /* lambda_0 * p_accept: what a node's guesses of order 0 share among them */
    int64_t n_made;
} Draft;

static bool push(Draft *d, NgramCandidate c) {
    c.score = c.p_accept;
    c.tie = d->n_made++;
    return ngram_heap_push(d->s, c);
}

/* Pushes the parent's guess of rank `rank`. A guess is pushed when the one before it is taken. */
static bool push_guess(Draft *d, int32_t parent, int32_t rank) {
    if (rank >= d->t->n_top) return true;
    NgramEntry e = d->t->top[rank];
    double p_accept = d->guess[parent] * (double)e.n_contexts / (double)d->t->n_contexts;
    return push(d, (NgramCandidate){.parent = parent, .token = e.token, .rank = rank, .p_accept = p_accept});
}

/* Makes candidates of the children of `node`, whose places are [begin, begin + n). */
static bool expand(Draft *d, int32_t node, int32_t begin, int32_t n) {
    NgramScratch *s = d->s;
    double p_accept = (double)d->tree->nodes[node].p_accept, vote[MAX_MATCH + 1];
    double rest = weigh(s->places + begin, n, d->t->n_indexed, vote);
    /* The split increases matches by one (up to MAX_MATCH), so the votes are set before it. */
    for (int32_t i = 0; i < n; i++) s->places[begin + i].vote = vote[s->places[begin + i].match];
    int32_t n_groups = ngram_split(s, d->t, begin, n, MAX_MATCH);
    for (int32_t i = 0; i < n_groups; i++) {
        NgramGroup g = s->groups[i];
        double p = rest * ngram_text_share(d->t, g.token);
        for (int32_t j = 0; j < g.n; j++) p += s->places[g.begin + j].vote;
        if (p > 1) p = 1; /* by rounding only */
        if (!push(d, (NgramCandidate){.parent = node,
                                      .token = g.token,
                                      .begin = g.begin,
                                      .n = g.n,
                                      .rank = -1,
                                      .p_accept = p_accept * p}))
            return false;
    }
    d->guess[node] = rest * p_accept;
    return push_guess(d, node, 0);
}

/* Adds the best candidate to the tree, unless a better one has already added the same token; false: no memory. */
static bool take_best(Draft *d, int32_t source) {
    NgramCandidate c = ngram_heap_pop(d->s);
    if (c.rank >= 0 && !push_guess(d, c.parent, c.rank + 1)) return false;
    if (tree_child(d->tree, c.parent, c.token) >= 0) return true;
    int32_t node = tree_add(d->tree, c.parent, c.token, (float)c.p_accept, source);
    if (c.rank >= 0) {
        c.begin = d->s->n_places;
        c.n = gather(d->s, d->t, c.token, 1, MAX_GUESSED);
    }
    return c.n >= 0 && expand(d, node, c.begin, c.n);
}

int ngram_rule_best(NgramScratch *s, const NgramText *t, int32_t source, int32_t budget, Tree *tree, fr_error *err) {
    Draft d = {.s = s, .t = t, .tree = tree};
    s->n_places = s->n_heap = 0;
    int32_t end = budget < TREE_MAX_NODES - tree->n ? tree->n + budget : TREE_MAX_NODES;
    int32_t n = gather(s, t, t->tokens[t->n - 1], MAX_MATCH, MAX_PLACES);
    bool fits = n >= 0 && expand(&d, 0, 0, n);
    while (fits && tree->n < end && s->n_heap > 0) fits = take_best(&d, source);
    return fits ? FR_OK : error_memory(err, "an n-gram draft", (size_t)s->n_places * sizeof(NgramPlace));
}
