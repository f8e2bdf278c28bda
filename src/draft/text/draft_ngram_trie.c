/* draft_ngram_trie.c - the drafter `ngram-trie`: its options, its sequences, and the choice between its two rules.
 *
 * The draft comes from the text itself, so there is no model, no training and no state beyond the text. Each sequence
 * keeps its tokens with chains of equal ones (text_index.h): 8 bytes for each token and 12 for each slot of the table
 * of distinct tokens. An ordinary text of 32K tokens takes 15.5 bytes a token, and any text at most 60 (if all tokens
 * are distinct and the table has just grown); the smallest takes 14 KB. A proposal finds the positions where the end of
 * the text occurred before, and makes a tree of what followed there. There are two rules for the tree, the paper's and
 * ours, with an essay each below.
 *
 * Both rules work on lists of places, that is, positions in the indexed text. A tree node represents the places at
 * which its path occurs; splitting that list by the token that follows gives the node's children. So the trie of the
 * paper is found in the text node by node, and never built.
 *
 * Invariants: sequences share nothing but working memory; with rule=best and live=1 a text observed token by token
 * gives the same drafts as the same text given to begin. Cost: O(1) for each token observed; a proposal walks the
 * positions of the last token. When it loses: texts that repeat nothing. */
#include "base/mem.h"
#include "draft/text/text_drafter.h"

enum { NGRAM_RULE_BEST, NGRAM_RULE_PAPER };
enum { LIVE_OFF, LIVE_ON, LIVE_BY_RULE }; /* by rule: on with rule=best, off with rule=paper */

typedef struct NgramOptions {
    int rule;          /* NGRAM_RULE_BEST or NGRAM_RULE_PAPER */
    int32_t n, prefix; /* rule=paper: tokens of a window and of the longest prefix */
    int live;          /* LIVE_...: whether it also drafts from generated tokens */
} NgramOptions;

/* ---- rule=best ------------------------------------------------------------------------------------------- */

/* Our rule: every place votes, and the votes are probabilities.
 *
 * The problem: the paper's rule looks only at the longest matching prefix of at most L_p tokens, ranks by raw
 * frequency, and proposes nothing if nothing matches, which happens at one token in five of recorded answers. A tree of
 * a given budget has the greatest expected acceptance when it holds the nodes whose whole path is accepted with the
 * greatest probability; so that probability must be estimated well.
 *
 * The idea: treat the text as the sample of a hierarchical Dirichlet language model (MacKay and Peto 1995;
 * interpolated Kneser-Ney smoothing is closely related, Teh 2006). At a node whose path (and text before it) matches
 * the indexed text at some places, let n_k be the number of places that match at least k tokens. Order k knows the
 * next token from n_k places and gets the weight n_k / (n_k + c_k); the rest goes to order k - 1:
 *
 *     P_k(x) = (places of order k followed by x + c_k P_{k-1}(x)) / (n_k + c_k),       c_k = k + 1
 *
 * Unrolled, the estimate of order k has the weight lambda_k = n_k / (n_k + c_k) * prod_{j>k} c_j / (n_j + c_j), and a
 * place that matches m tokens votes with sum_{k<=m} lambda_k / n_k. So long matches count more, and so do matches that
 * agree; no threshold is needed. c_k rises with k because a longer match adds little: a single match of m tokens is
 * continued with probability 1 - prod_k (k + 1) / (k + 2) = m / (m + 2), and the frequencies on recorded answers are
 * 0.32, 0.51, 0.63, 0.70, 0.75 for m = 1, 2, 3, 4, 6.
 *
 * Order 0 is the estimate where nothing matches: P_0(x) = the number of contexts in which x was seen, over that of
 * all tokens (Kneser-Ney: what follows many different tokens may follow a new one). We count a context when the left
 * neighbour differs from that at x's previous position, which takes O(1). So the tree always uses the whole budget, if
 * need be with nodes of small p_accept.
 *
 * p_accept(child) = p_accept(parent) * P(child | path). Nodes are taken best-first from a heap until the budget is
 * used up. The places of a node are those of its parent, split by token (each match is one longer); a node guessed at
 * order 0 takes the latest positions of its token instead. Ties go to the candidate that was made first, whose token
 * occurred latest in the text.
 *
 *     text  the cat sat . the dog ran . the|         "the" matches 2 tokens (". the") at 4, 1 at 0
 *     n_1 = 2, n_2 = 1; lambda_2 = 1/(1+3) = 0.25; lambda_1 = 0.75 * 2/(2+2) = 0.375; lambda_0 = 0.375
 *     dog: 0.25/1 + 0.375/2 = 0.4375, cat: 0.375/2 = 0.1875, each + 0.375 P_0
 *
 * Where we differ from the paper: in the order of ties; in the length of matches, which count up to MAX_MATCH tokens,
 * and the depth, which only p_accept limits, so that `n` and `prefix` are not used; in drafting from live text by
 * default; and in order 0.
 *
 * Invariants: p_accept never rises along a path; the tree holds exactly the budget once NGRAM_N_TOP distinct tokens
 * were seen (and fewer only where the text has fewer continuations); the same text gives the same tree. Cost: the
 * MAX_PLACES latest positions of the last token, and for each node its own places: 6 us for 32 nodes on the recorded
 * answers, 23 us in a text of 32K tokens, 150 us if all of that is one token. When it loses: against a model where the
 * answer is new text, because order 0 knows only the common words. Proof: tests/draft/test_draft_ngram_trie.c computes
 * P by the recursion above, over all places, and compares. */
enum {
    MAX_MATCH = 16,    /* longer matches are practically certain */
    MAX_PLACES = 1024, /* only the latest positions of a token are used; bounds the cost if a text repeats one token */
    MAX_GUESSED = 64,  /* the same limit for a token guessed at order 0 */
};

static double concentration(int32_t k) { return k + 1; }

/* Appends the latest positions of a token that another token follows. Returns how many, or -1 if memory ran out. */
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
    for (int32_t k = MAX_MATCH; k >= 1; k--) { /* vote[k] becomes lambda_k / n_k */
        double total = at_least[k] + concentration(k);
        vote[k] = at_least[k] ? rest / total : 0;
        if (at_least[k]) rest *= concentration(k) / total;
    }
    vote[0] = 0;
    for (int32_t k = 1; k <= MAX_MATCH; k++) vote[k] += vote[k - 1]; /* vote[k] becomes the sum up to k */
    return rest;
}

typedef struct BestDraft {
    NgramScratch *s;
    const NgramText *t;
    Tree *tree;
    double guess[TREE_MAX_NODES]; /* lambda_0 * p_accept of each node, which its guesses of order 0 share */
    int64_t n_made;
} BestDraft;

static bool push(BestDraft *d, NgramCandidate c) {
    c.score = c.p_accept;
    c.tie = d->n_made++;
    return ngram_heap_push(d->s, c);
}

/* Pushes the parent's guess of rank `rank`. A guess is pushed when the one before it is taken. */
static bool push_guess(BestDraft *d, int32_t parent, int32_t rank) {
    if (rank >= d->t->n_top) return true;
    NgramEntry e = d->t->top[rank];
    double p_accept = d->guess[parent] * (double)e.n_contexts / (double)d->t->n_contexts;
    return push(d, (NgramCandidate){.parent = parent, .token = e.token, .rank = rank, .p_accept = p_accept});
}

/* Pushes the children of `node`, whose places are [begin, begin + n), as candidates. */
static bool expand_best(BestDraft *d, int32_t node, int32_t begin, int32_t n) {
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
        if (p > 1) p = 1; /* only rounding can make it larger */
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

/* Adds the best candidate to the tree, unless a better one has already added the same token. Returns false if memory
 * ran out. */
static bool take_best(BestDraft *d, int32_t source) {
    NgramCandidate c = ngram_heap_pop(d->s);
    if (c.rank >= 0 && !push_guess(d, c.parent, c.rank + 1)) return false;
    if (tree_child(d->tree, c.parent, c.token) >= 0) return true;
    int32_t node = tree_add(d->tree, c.parent, c.token, (float)c.p_accept, source);
    if (c.rank >= 0) {
        c.begin = d->s->n_places;
        c.n = gather(d->s, d->t, c.token, 1, MAX_GUESSED);
    }
    return c.n >= 0 && expand_best(d, node, c.begin, c.n);
}

static int ngram_rule_best(NgramScratch *s, const NgramText *t, int32_t source, int32_t budget, Tree *tree,
                           fr_error *err) {
    BestDraft d = {.s = s, .t = t, .tree = tree};
    s->n_places = s->n_heap = 0;
    int32_t end = budget < TREE_MAX_NODES - tree->n ? tree->n + budget : TREE_MAX_NODES;
    int32_t n = gather(s, t, t->tokens[t->n - 1], MAX_MATCH, MAX_PLACES);
    bool fits = n >= 0 && expand_best(&d, 0, 0, n);
    while (fits && tree->n < end && s->n_heap > 0) fits = take_best(&d, source);
    return fits ? FR_OK : error_memory(err, "an n-gram draft", (size_t)s->n_places * sizeof(NgramPlace));
}

/* ---- rule=paper ------------------------------------------------------------------------------------------ */

/* The rule of "N-Gram Trie Speculative Decoding" (anonymous ACL submission, 2025).
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
 * to the frequency of its node, and occurrences are found at once (text_index.h). The subtree of a query is its list of
 * occurrences, split by the next token, again and again:
 *
 *     text  a b c a b d a b|      prefix 2, n 4; the text ends with "a b", which was seen before at 0 and 3
 *     "a b" ends at {1, 4} ── c {2}  frequency min(2, 0+1, 4-3+1) = 1
 *                          └─ d {5}  frequency min(2, 3+1, 4-3+1) = 2, taken first
 *
 * Where we differ: windows cut off by the end of the prompt count; the paper leaves this open. With live=1, which is
 * not in the paper, generated windows count as soon as they are complete: a string that extends into the generated text
 * stems only from windows with i + n <= length. Nodes of equal frequency are taken in order of depth, then in the order
 * in which they occurred; the paper leaves this open, too. The frequency never rises along a path, so taking nodes
 * best-first yields exactly the `budget` highest.
 *
 * p_accept of a node is its share of the parent's places, times m / (m + 2) if the path before it matches m tokens: on
 * recorded answers a single match of m tokens is continued about that often. Cost: the positions of the last token are
 * walked once, and each node taken costs its own places. When it loses: on texts that repeat nothing; and it proposes
 * nothing after a token that is new. Proof: tests/draft/test_draft_ngram_trie.c builds the trie of algorithm 1 in full
 * and compares the drafts for every budget; tests/research/test_replay.c reproduces the figures on recorded answers. */

/* Returns how many windows contain the string of m tokens that ends at position `at`. */
static int32_t n_windows(const NgramText *t, const NgramOptions *o, int32_t at, int32_t m) {
    int32_t start = at - m + 1;
    int32_t j_max = o->prefix - 1 < o->n - m ? o->prefix - 1 : o->n - m;
    if (start < j_max) j_max = start;
    int32_t j_min = at < t->n_prompt ? 0 : start + o->n - t->n_indexed; /* generated windows count if complete */
    if (j_min < 0) j_min = 0;
    return j_max < j_min ? 0 : j_max - j_min + 1;
}

/* Returns the frequency of the trie's node of m tokens whose last token is at these places. */
static int64_t frequency(const NgramText *t, const NgramOptions *o, const NgramPlace *places, int32_t n, int32_t m) {
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++) sum += n_windows(t, o, places[i].at, m);
    return sum;
}

/* Collects the places that match the longest prefix that has children. Returns its length, 0 if there is none, or -1 if
 * memory ran out. */
static int32_t query(NgramScratch *s, const NgramText *t, const NgramOptions *o) {
    int32_t longest = 0;
    s->n_places = 0;
    for (int32_t p = ngram_text_last(t, t->tokens[t->n - 1]); p >= 0; p = t->previous[p]) {
        if (p + 1 >= t->n_indexed) continue; /* no token follows */
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

/* Pushes the children of `node`, whose string has m tokens and occurs at these places, as candidates. */
static bool expand_paper(NgramScratch *s, const NgramText *t, const NgramOptions *o, const Tree *tree, int32_t node,
                         int32_t m, int32_t begin, int32_t n) {
    if (m + 1 > o->n) return true;
    double p_accept = (double)tree->nodes[node].p_accept * m / (m + 2) / n;
    int32_t n_groups = ngram_split(s, t, begin, n, INT32_MAX);
    for (int32_t i = 0; i < n_groups; i++) {
        NgramGroup g = s->groups[i];
        int64_t first = s->places[g.begin + g.n - 1].at, depth = tree->nodes[node].depth + 1;
        int64_t f = frequency(t, o, s->places + g.begin, g.n, m + 1);
        if (f == 0) continue; /* the paper's trie would not have this node yet */
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

static int ngram_rule_paper(NgramScratch *s, const NgramText *t, const NgramOptions *o, int32_t source, int32_t budget,
                            Tree *tree, fr_error *err) {
    int32_t matched = query(s, t, o);
    s->n_heap = 0;
    bool fits = matched >= 0;
    if (matched > 0) fits = expand_paper(s, t, o, tree, 0, matched, 0, s->n_places);
    for (int32_t n = 0; fits && n < budget && s->n_heap > 0; n++) {
        NgramCandidate c = ngram_heap_pop(s);
        int32_t node = tree_add(tree, c.parent, c.token, (float)c.p_accept, source);
        if (node < 0) break;
        fits = expand_paper(s, t, o, tree, node, matched + tree->nodes[node].depth, c.begin, c.n);
    }
    return fits ? FR_OK : error_memory(err, "an n-gram draft", (size_t)s->n_places * sizeof(NgramPlace));
}

/* ---- the drafter ----------------------------------------------------------------------------------------- */

typedef struct NgramTrie {
    TextDrafter text;
    NgramOptions options;
    NgramScratch scratch;
} NgramTrie;

static const Option option_table[] = {
    {.key = "rule",
     OPT_CHOICE(NgramOptions, rule, "best", "paper"),
     .default_value = "best",
     .help = "best: long and frequent matches vote, and common words fill the tree; paper: the paper's rule"},
    {.key = "n",
     OPT_INT(NgramOptions, n, 2, 512),
     .default_value = "13",
     .help = "rule=paper: tokens of a window, prefix and draft together; above prefix"},
    {.key = "prefix",
     OPT_INT(NgramOptions, prefix, 1, 64),
     .default_value = "3",
     .help = "rule=paper: tokens of the longest prefix looked up"},
    {.key = "live",
     OPT_CHOICE(NgramOptions, live, "0", "1", "auto"),
     .default_value = "auto",
     .help = "1: also drafts from generated tokens; 0: only from the prompt, as in the paper; auto: 0 with rule=paper, "
             "1 with rule=best"},
    {.key = NULL},
};

static void close_trie(Drafter *drafter) {
    NgramTrie *d = (NgramTrie *)drafter;
    text_drafter_release(&d->text);
    ngram_scratch_close(&d->scratch);
    mem_free(d);
}

static int open_trie(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const NgramOptions *o = options;
    if (o->n <= o->prefix)
        return error_set(err, FR_ERR_ARGUMENT, "ngram-trie: 'n=%d' must be above 'prefix=%d'", o->n, o->prefix);
    NgramTrie *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "ngram-trie", sizeof *d);
    d->options = *o;
    if (o->live == LIVE_BY_RULE) d->options.live = o->rule == NGRAM_RULE_BEST ? LIVE_ON : LIVE_OFF;
    int status = text_drafter_init(&d->text, env, err);
    if (!status) status = ngram_scratch_open(&d->scratch, env->n_vocab, err);
    if (status) {
        close_trie(&d->text.base);
        return status;
    }
    *out = &d->text.base;
    return FR_OK;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    if (((NgramTrie *)drafter)->options.live == LIVE_ON) return text_drafter_observe(drafter, sequence, tokens, n, err);
    return text_drafter_observe_unindexed(drafter, sequence, tokens, n, err);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    NgramTrie *d = (NgramTrie *)drafter;
    for (int i = 0; i < n; i++) {
        const NgramText *t = text_drafter_text(&d->text, sequences[i]);
        fr_assert(t->n > 0 && trees[i]->nodes[0].token == t->tokens[t->n - 1]);
        int status = d->options.rule == NGRAM_RULE_PAPER
                         ? ngram_rule_paper(&d->scratch, t, &d->options, drafter->source, budgets[i], trees[i], err)
                         : ngram_rule_best(&d->scratch, t, drafter->source, budgets[i], trees[i], err);
        if (status) return status;
    }
    return FR_OK;
}

extern const DrafterClass draft_ngram_trie_class;
const DrafterClass draft_ngram_trie_class = {
    .name = "ngram-trie",
    .summary = "a tree of what followed earlier occurrences of the last tokens in the text",
    .option_table = option_table,
    .options_size = sizeof(NgramOptions),
    .open = open_trie,
    .close = close_trie,
    .begin = text_drafter_begin,
    .observe = observe,
    .propose = propose,
    .end = text_drafter_end,
};
