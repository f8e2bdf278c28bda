/* draft_suffix.c - the drafter `suffix`: SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975).
 *
 * The problem: agents and pipelines send requests that resemble each other, and answers that repeat long passages. A
 * fixed draft length is wrong both ways there: ten tokens are too few inside a copied page and too many after one
 * common word.
 *
 * The idea: the longer the end of the text matches something seen before, the further it may be followed. Two pools
 * are searched: the request's own text, and the answers of earlier requests. For each pool and each pattern length p,
 * the last p tokens are the pattern. The paper's suffix tree has a node for it, whose subtree counts what followed. In
 * this subtree nodes are taken greedily by
 *
 *     D(child) = D(parent) * C(child),   C(child) = count(child) / sum over siblings of count,   D(root) = 1
 *
 * until there are MAX_SPEC(p) = factor * p + offset nodes or D falls below min_prob. The score of such a tree is the
 * sum of its D, the number of tokens it expects to have accepted; the tree with the highest score is the draft.
 * Defaults are those of the released implementation: factor 1, offset 0, min_prob 0.1, patterns up to 64 tokens.
 *
 *     text  a b c x a b c y b c|     p = 2: "b c" is followed by x and y, so D = 1/2 each, MAX_SPEC 2, score 1.0
 *                                    p = 1: "c" has the same D, MAX_SPEC 1, score 0.5. So p = 2 gives the draft
 *
 * Layout: no suffix tree is built. As in ngram-trie, a node is the list of places at which its string occurs
 * (text_index.h), and splitting the list by the next token gives its children with their counts. One walk over the
 * positions of the last token counts how many tokens match at each; the places of pattern p are those with p or more.
 * Only lengths that are the match length of some place need a tree: between two of them the list is the same and
 * MAX_SPEC smaller, so the score cannot be higher. A length whose MAX_SPEC is not above the best score so far cannot
 * win either, since no D exceeds 1.
 *
 * The history is one text of its own: answers one after the other, each closed by a separator outside the vocabulary
 * that matches nothing and is never proposed. It holds at least the last `history` tokens and at most twice as many.
 * When it is full, the older half is dropped (first in, first out), and the rest is indexed again.
 *
 * Where we differ: an answer enters the history when its request ends, not while it is written. The released
 * implementation's C divides by count(parent), which includes the pattern at the very end of the text; the paper's and
 * ours divides by the number of places that continue. Ties go to the longer pattern, then to the request's own text.
 * Only the 4096 latest positions of the last token are used. `p_accept` is not D, which is 1 after a single match, but
 * the product along the path of n_x / (n + 2 / m) for n places of the own text that match m tokens, and of n_x / (n + 6
 * / m) for the history, which is right less often (text_drafter.h).
 *
 * Invariants: a draft has at most MAX_SPEC nodes; D >= min_prob; without history sequences share nothing. Memory: 8
 * bytes for each token of a text, 8 to 12 for each token of the history, and 12 for each slot of the tables of distinct
 * tokens. With the default history of 131072 tokens and a vocabulary of 32,000 that is 5 MB at most. Cost: O(1) for
 * each token, and 4 ms once in 131072 tokens to shorten the history; a proposal takes 1 us (median) on recorded
 * answers, also with a history full of them. When it loses: on new text. By design it drafts little after short
 * matches, where a wide tree would sometimes still be right. Proof: tests/draft/test_draft_suffix.c finds the best
 * score by brute force over every pattern and pool. */
#include "base/mem.h"
#include "draft/text/text_drafter.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_MATCH = 64,    /* depth of the released implementation's trees */
    MAX_PLACES = 4096, /* limits the cost in long texts */
};

typedef struct SuffixOptions {
    double factor, offset, min_prob;
    int64_t history; /* tokens of answers kept at least; 0: none */
} SuffixOptions;

typedef struct Suffix {
    TextDrafter text;
    SuffixOptions options;
    NgramText history;
    NgramScratch scratch;
    Tree trial, best;
    double best_score;
} Suffix;

static const Option option_table[] = {
    {.key = "factor",
     OPT_REAL(SuffixOptions, factor, 0, 64),
     .default_value = "1",
     .help = "number of nodes drafted for each token of the match"},
    {.key = "offset",
     OPT_REAL(SuffixOptions, offset, -64, 512),
     .default_value = "0",
     .help = "number of nodes drafted in addition"},
    {.key = "min_prob",
     OPT_REAL(SuffixOptions, min_prob, 0, 1),
     .default_value = "0.1",
     .help = "smallest probability of a path that is drafted, by its share of what followed the match"},
    {.key = "history",
     OPT_INT(SuffixOptions, history, 0, 1 << 24),
     .default_value = "131072",
     .help = "tokens of earlier answers kept, shared by all requests; 0: none"},
    {.key = NULL},
};

/* ---- opening, feeding --------------------------------------------------------------------------- */

static void close_suffix(Drafter *drafter) {
    Suffix *d = (Suffix *)drafter;
    text_drafter_release(&d->text);
    ngram_text_free(&d->history);
    ngram_scratch_close(&d->scratch);
    mem_free(d);
}

/* Takes the memory of the history. Where several requests run at once, as in a server, all of it is taken at the start:
 * a process that grows for an hour looks like one that leaks. */
static int take_history(Suffix *d, fr_error *err) {
    int status = d->options.history ? ngram_text_reserve(&d->history, 2 * d->options.history, d->text.n_vocab + 1, err)
                                    : FR_OK;
    if (!status) ngram_text_touch(&d->history);
    return status;
}

static int open_suffix(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    Suffix *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "suffix", sizeof *d);
    *out = &d->text.base;
    d->options = *(const SuffixOptions *)options;
    int status = text_drafter_init(&d->text, env, err);
    if (!status)
        status = ngram_scratch_open(&d->scratch, env->n_vocab + 1, err); /* one more for the history's separator */
    if (!status && env->max_sequences > 1) status = take_history(d, err);
    if (status) close_suffix(*out);
    return status;
}

static int remember(Suffix *d, const int32_t *answer, int64_t n) {
    NgramText *h = &d->history;
    const int32_t separator = d->text.n_vocab;
    if (n > d->options.history) {
        answer += n - d->options.history;
        n = d->options.history;
    }
    if (h->n + n + 1 > 2 * d->options.history)
        ngram_text_keep_last(h, (int32_t)(h->n < d->options.history ? h->n : d->options.history - 1));
    int status = ngram_text_append(h, answer, n, separator + 1, true, NULL);
    if (!status) status = ngram_text_append(h, &separator, 1, separator + 1, true, NULL);
    return status;
}

static void end(Drafter *drafter, int32_t sequence) {
    Suffix *d = (Suffix *)drafter;
    const NgramText *t = text_drafter_text(&d->text, sequence);
    /* If memory runs out, the history is dropped: it improves drafts, but nothing depends on it. */
    if (d->options.history > 0 && t->n > t->n_prompt && remember(d, t->tokens + t->n_prompt, t->n - t->n_prompt))
        ngram_text_free(&d->history);
    text_drafter_end(drafter, sequence);
}

/* ---- proposing ---------------------------------------------------------------------------------- */

/* Returns how many tokens up to position `place` of the pool equal the end of the text. */
static int32_t match_at(const NgramText *pool, int32_t place, const NgramText *t) {
    int32_t m = 0;
    while (m < MAX_MATCH && m <= place && m < t->n && pool->tokens[place - m] == t->tokens[t->n - 1 - m]) m++;
    return m;
}

/* Puts the positions of the last token that are followed by a token of the vocabulary at the front of s->places, and
 * counts in n_of[m] how many of them match m tokens. Returns how many there are, or -1 if memory ran out. */
static int32_t gather(NgramScratch *s, const NgramText *pool, const NgramText *t, int32_t n_vocab,
                      int32_t n_of[MAX_MATCH + 1]) {
    int32_t n = 0;
    s->n_places = 0;
    if (!ngram_scratch_reserve(s, 2 * MAX_PLACES)) return -1; /* for the gathered places and those of one pattern */
    int32_t p = ngram_text_last(pool, t->tokens[t->n - 1]);
    for (int32_t walked = 0; p >= 0 && walked < MAX_PLACES; p = pool->previous[p], walked++) {
        if (p + 1 >= pool->n_indexed || pool->tokens[p + 1] == n_vocab) continue;
        s->places[n] = (NgramPlace){.at = p, .match = match_at(pool, p, t)};
        n_of[s->places[n++].match]++;
    }
    return n;
}

/* Pushes the children of a node of the trial tree, whose string of m tokens occurs at these places, as candidates. */
static bool expand(Suffix *d, const NgramText *pool, int32_t node, double share, int32_t m, int32_t begin, int32_t n) {
    NgramScratch *s = &d->scratch;
    int32_t n_groups = ngram_split(s, pool, begin, n, INT32_MAX), total = 0;
    int32_t smoothing = pool == &d->history ? HISTORY_SMOOTHING : TEXT_SMOOTHING;
    for (int32_t i = 0; i < n_groups; i++)
        if (s->groups[i].token < d->text.n_vocab) total += s->groups[i].n;
    for (int32_t i = 0; i < n_groups; i++) {
        NgramGroup g = s->groups[i];
        double score = share * g.n / total;
        if (g.token == d->text.n_vocab || score < d->options.min_prob) continue;
        NgramCandidate c = {.score = score,
                            .tie = (int64_t)node * INT32_MAX + i,
                            .parent = node,
                            .token = g.token,
                            .begin = g.begin,
                            .n = g.n,
                            .p_accept = (double)d->trial.nodes[node].p_accept *
                                        text_drafter_share(g.n, total, m, smoothing)};
        if (!ngram_heap_push(s, c)) return false;
    }
    return true;
}

/* Builds the tree for the pattern of m tokens from the n_gathered places, and keeps it if it is the best so far. */
static bool try_pattern(Suffix *d, const NgramText *pool, int32_t n_gathered, int32_t m, int32_t max_nodes) {
    NgramScratch *s = &d->scratch;
    int32_t begin = n_gathered, n = 0;
    for (int32_t i = 0; i < n_gathered; i++)
        if (s->places[i].match >= m) s->places[begin + n++] = s->places[i];
    s->n_heap = 0;
    d->trial.n = 1;
    double score = 0;
    bool fits = expand(d, pool, 0, 1, m, begin, n);
    while (fits && s->n_heap > 0 && d->trial.n <= max_nodes) {
        NgramCandidate c = ngram_heap_pop(s);
        int32_t node = tree_add(&d->trial, c.parent, c.token, (float)c.p_accept, d->text.base.source);
        score += c.score;
        fits = expand(d, pool, node, c.score, m + d->trial.nodes[node].depth, c.begin, c.n);
    }
    if (score <= d->best_score) return fits;
    d->best_score = score;
    d->best.n = d->trial.n;
    memcpy(d->best.nodes, d->trial.nodes, (size_t)d->trial.n * sizeof *d->trial.nodes);
    return fits;
}

static bool try_pool(Suffix *d, const NgramText *pool, const NgramText *t, int32_t budget) {
    int32_t n_of[MAX_MATCH + 1] = {0};
    int32_t n = gather(&d->scratch, pool, t, d->text.n_vocab, n_of);
    bool fits = n >= 0;
    for (int32_t m = MAX_MATCH; m >= 1 && fits && n > 0; m--) {
        double max_spec = d->options.factor * m + d->options.offset + 1e-6; /* the margin lets 0.1 * 30 count as 3 */
        int32_t max_nodes = max_spec < budget ? (int32_t)max_spec : budget;
        if (n_of[m] > 0 && max_nodes > d->best_score) fits = try_pattern(d, pool, n, m, max_nodes);
    }
    return fits;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    Suffix *d = (Suffix *)drafter;
    for (int i = 0; i < n; i++) {
        const NgramText *t = text_drafter_text(&d->text, sequences[i]);
        int32_t budget = budgets[i] < TREE_MAX_NODES ? budgets[i] : TREE_MAX_NODES - 1;
        tree_reset(&d->trial, t->tokens[t->n - 1]);
        d->best.n = 0;
        d->best_score = 0;
        if (!try_pool(d, t, t, budget) || !try_pool(d, &d->history, t, budget))
            return error_memory(err, "a suffix draft", 2 * MAX_PLACES * sizeof(NgramPlace));
        if (d->best.n == 0) continue;
        trees[i]->n = d->best.n;
        memcpy(trees[i]->nodes, d->best.nodes, (size_t)d->best.n * sizeof *d->best.nodes);
    }
    return FR_OK;
}

extern const DrafterClass draft_suffix_class;
const DrafterClass draft_suffix_class = {
    .name = "suffix",
    .summary = "SuffixDecoding: the longer the match, the longer the draft; remembers earlier answers",
    .option_table = option_table,
    .options_size = sizeof(SuffixOptions),
    .remembers = true,
    .open = open_suffix,
    .close = close_suffix,
    .begin = text_drafter_begin,
    .observe = text_drafter_observe,
    .propose = propose,
    .end = end,
};
