/* draft_rest.c - the drafter `rest`: REST, retrieval-based speculative decoding (He et al. 2023, arXiv 2311.08252).
 *
 * The problem: much of what a model writes has been written before, but not in this conversation: phrases, formulas,
 * boilerplate, code. Drafters that look only at the current text never see it.
 *
 * The idea: keep a large tokenized corpus with its suffix array (corpus_index.h, built by `forerun index`). In every
 * step look up the last 16 tokens of the text, and if they are not found the last 15, and so on down to 2. The first
 * length with matches wins. At most 5000 matches are used, each with the 10 tokens that follow it. The prefixes of
 * these continuations are counted, and the most frequent ones are the draft, a tree.
 *
 *     corpus  the cat sat down | a cat sat up | the cat ran |
 *     text    ... a black cat|      "black cat" is not found; at min_match=1 "cat" is found three times
 *     sorted  cat ran,  cat sat down,  cat sat up
 *     draft   cat -- sat (2 of 3) -- down (1 of 2), up (1 of 2)
 *                 \_ ran (1 of 3)
 *
 * How it is done: the matches are a range of the suffix array, sorted by what follows. So the matches of a tree node
 * are a range too, and its children are runs in that range, whose lengths are the counts. Runs are found by doubling
 * steps, and only nodes that enter the tree are expanded, so most of the matches are never read. If the last m tokens
 * occur with a continuation, so do the last m - 1, so the match length is found by binary search: 4 searches for 15
 * lengths. Documents end with a separator; no match and no continuation crosses it.
 *
 * p_accept of a child is that of its parent times text_drafter_share for n of the N matches of m tokens. It is smoothed
 * by REST_SMOOTHING, because texts by others are less reliable than the request's own text (smoothed by 2) or another
 * answer (6). The number was chosen among 12, 24, 32, 48 and 96 by `forerun replay --calibration` on the shared traces;
 * research/ACCEPTANCE.md has the figures.
 *
 * Where we differ: nodes are ranked by p_accept, not by count. Many prefixes have equal counts. Among these, p_accept
 * prefers shorter ones and those with fewer siblings: 1.37 tokens a step instead of 1.34 with 8 nodes, 1.45 instead of
 * 1.43 with 32. If a range has more than `matches` entries, that many are taken at equal distances and not from its
 * beginning, where all continue with the tokens of lowest id. Without a match nothing is drafted. The paper's
 * sampling is not needed: the engine verifies any tree.
 *
 * Invariants: a tree has at most `budget` nodes and is at most `continuation` deep; p_accept falls along a path;
 * sequences share only the index, which is read-only. Memory: the file has 6 or 7 bytes for each token of the corpus,
 * of which only the pages that were read are in memory; each sequence has 64 tokens. Cost: a proposal takes about 4 x 2
 * log2(n) random reads for the search, each likely a cache miss, and one for each doubling of each run. When it loses:
 * if the corpus differs from the texts that the model is asked for. A corpus has to be large and close to the subject;
 * the table in research/ACCEPTANCE.md shows what a small one gives. Proof: tests/draft/test_draft_rest.c, the tree
 * against counting by brute force. */
#include "base/mem.h"
#include "draft/text/corpus_index.h"
#include "draft/drafter.h"
#include "draft/text/text_drafter.h"

#include <string.h>

enum { REST_SMOOTHING = 32 };

typedef struct RestOptions {
    const char *index; /* a path, only valid while the drafter is opened */
    int32_t max_match, min_match, matches, continuation;
} RestOptions;

/* The end of a sequence's text. */
typedef struct Tail {
    int32_t tokens[CORPUS_MAX_QUERY];
    int32_t n;
} Tail;

typedef struct Rest {
    Drafter base;
    CorpusIndex index;
    int32_t n_vocab, max_sequences;
    RestOptions options;
    Tail *tails;          /* [max_sequences] */
    NgramScratch scratch; /* only its heap is used */
} Rest;

/* The matches in a range of the suffix array that are used: all of them, or n at equal distances. */
typedef struct Matches {
    CorpusSpan span;
    int32_t n; /* matches used */
    int32_t m; /* tokens that match */
} Matches;

static const Option option_table[] = {
    {.key = "index",
     OPT_FILE(RestOptions, index),
     .required = "index of a corpus (`forerun index` builds one)",
     .help = "file built by `forerun index` with the model's vocabulary"},
    {.key = "max_match",
     OPT_INT(RestOptions, max_match, 1, CORPUS_MAX_QUERY),
     .default_value = "16",
     .help = "how many of the last tokens are looked up at most"},
    {.key = "min_match",
     OPT_INT(RestOptions, min_match, 1, CORPUS_MAX_QUERY),
     .default_value = "2",
     .help = "how many of the last tokens must match; at most max_match"},
    {.key = "matches",
     OPT_INT(RestOptions, matches, 1, 1 << 24),
     .default_value = "5000",
     .help = "maximal number of matches looked at"},
    {.key = "continuation",
     OPT_INT(RestOptions, continuation, 1, TREE_MAX_NODES - 1),
     .default_value = "10",
     .help = "maximal number of tokens drafted after a match"},
    {.key = NULL},
};

/* ---- opening, feeding --------------------------------------------------------------------------- */

static void close_rest(Drafter *drafter) {
    Rest *d = (Rest *)drafter;
    corpus_close(&d->index);
    ngram_scratch_close(&d->scratch);
    mem_free(d->tails);
    mem_free(d);
}

static int open_rest(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const RestOptions *o = options;
    if (o->min_match > o->max_match)
        return error_set(err, FR_ERR_ARGUMENT, "rest: 'min_match=%d' must be at most 'max_match=%d'", o->min_match,
                         o->max_match);
    Rest *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "rest", sizeof *d);
    d->n_vocab = env->n_vocab;
    d->max_sequences = env->max_sequences;
    d->options = *o;
    d->tails = mem_calloc((size_t)env->max_sequences, sizeof *d->tails);
    int status = d->tails ? FR_OK : error_memory(err, "rest", sizeof *d->tails);
    if (!status) status = ngram_scratch_open(&d->scratch, 1, err); /* only its heap is used */
    if (!status) status = corpus_open(&d->index, o->index, env->n_vocab, env->vocab, err);
    if (status) close_rest(&d->base);
    else *out = &d->base;
    return status;
}

static Tail *tail_of(const Rest *d, int32_t sequence) {
    fr_assert(sequence >= 0 && sequence < d->max_sequences);
    return &d->tails[sequence];
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const Rest *d = (Rest *)drafter;
    Tail *t = tail_of(d, sequence);
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= d->n_vocab)
            return error_set(err, FR_ERR_ARGUMENT, "token %d is outside the vocabulary of %d tokens", tokens[i],
                             d->n_vocab);
        if (t->n == CORPUS_MAX_QUERY) memmove(t->tokens, t->tokens + 1, (size_t)--t->n * sizeof *t->tokens);
        t->tokens[t->n++] = tokens[i];
    }
    return FR_OK;
}

static void end(Drafter *drafter, int32_t sequence) { tail_of((Rest *)drafter, sequence)->n = 0; }

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    end(drafter, sequence);
    return observe(drafter, sequence, tokens, n, err);
}

/* ---- proposing ---------------------------------------------------------------------------------- */

/* Returns the token at `offset` from the beginning of the i-th match that is used. */
static int32_t token_of(const Rest *d, const Matches *s, int32_t i, int32_t offset) {
    int64_t n = s->span.end - s->span.begin;
    return corpus_token(&d->index, s->span.begin + (n > s->n ? i * n / s->n : i), offset);
}

/* Returns the end of the run of matches, from `begin` on, that have the same token at `offset`. */
static int32_t run_end(const Rest *d, const Matches *s, int32_t begin, int32_t end, int32_t offset, int32_t token) {
    int32_t last = begin, step = 1; /* the run reaches at least to `last` */
    while (step < end - last && token_of(d, s, last + step, offset) == token) {
        last += step;
        step *= 2;
    }
    int32_t beyond = step < end - last ? last + step : end;
    while (beyond - last > 1) {
        int32_t middle = last + (beyond - last) / 2;
        if (token_of(d, s, middle, offset) == token) last = middle;
        else beyond = middle;
    }
    return beyond;
}

/* Pushes the children of a node whose matches are [begin, begin + n) as candidates. */
static bool expand(Rest *d, const Matches *s, const Tree *tree, int32_t node, int32_t begin, int32_t n) {
    const TreeNode *parent = &tree->nodes[node];
    int32_t offset = s->m + parent->depth, end = begin + n;
    if (parent->depth == d->options.continuation) return true;
    for (int32_t i = begin, next; i < end; i = next) {
        int32_t token = token_of(d, s, i, offset);
        next = run_end(d, s, i, end, offset, token);
        if (token < 0) continue; /* the document ends here */
        double p_accept = (double)parent->p_accept * text_drafter_share(next - i, n, offset, REST_SMOOTHING);
        NgramCandidate c = {.score = p_accept,
                            .tie = (int64_t)parent->depth << 32 | i,
                            .parent = node,
                            .token = token,
                            .begin = i,
                            .n = next - i,
                            .p_accept = p_accept};
        if (!ngram_heap_push(&d->scratch, c)) return false;
    }
    return true;
}

static bool draft(Rest *d, const Tail *t, int32_t budget, Tree *tree) {
    Matches s = {.n = 0};
    s.m = corpus_longest(&d->index, t->tokens, t->n, d->options.min_match, d->options.max_match, &s.span);
    if (s.m == 0) return true;
    int64_t n = s.span.end - s.span.begin;
    s.n = n < d->options.matches ? (int32_t)n : d->options.matches;
    d->scratch.n_heap = 0;
    bool fits = expand(d, &s, tree, 0, 0, s.n);
    while (fits && d->scratch.n_heap > 0 && tree->n <= budget) {
        NgramCandidate c = ngram_heap_pop(&d->scratch);
        int32_t node = tree_add(tree, c.parent, c.token, (float)c.p_accept, d->base.source);
        fits = expand(d, &s, tree, node, c.begin, c.n);
    }
    return fits;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    Rest *d = (Rest *)drafter;
    int status = corpus_check(&d->index, err); /* reading a mapped file that was cut would end the process */
    if (status) return status;
    for (int i = 0; i < n; i++) {
        int32_t budget = budgets[i] < TREE_MAX_NODES ? budgets[i] : TREE_MAX_NODES - 1;
        if (budget > 0 && !draft(d, tail_of(d, sequences[i]), budget, trees[i]))
            return error_memory(err, "a rest draft", sizeof(NgramCandidate) * (size_t)d->options.matches);
    }
    return FR_OK;
}

extern const DrafterClass draft_rest_class;
const DrafterClass draft_rest_class = {
    .name = "rest",
    .summary = "REST: continuations of the last tokens in a corpus that was indexed with `forerun index`",
    .option_table = option_table,
    .options_size = sizeof(RestOptions),
    .open = open_rest,
    .close = close_rest,
    .begin = begin,
    .observe = observe,
    .propose = propose,
    .end = end,
};
