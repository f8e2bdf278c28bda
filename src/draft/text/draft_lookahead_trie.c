/* draft_lookahead_trie.c - the drafter `lookahead-trie`: the trie of Ant group's Lookahead (Zhao et al. 2024,
 * "Lookahead: An Inference Acceleration Framework for LLMs with Lossless Generation Accuracy", arXiv 2312.12728).
 *
 * The problem: a service answers the same kinds of questions all day. It will repeat to one user what it answered to
 * another, but it will repeat parts of a prompt only to the user who sent it.
 *
 * The idea: one trie per first token has the strings of branch_length = 12 more tokens, entered at every position of
 * the prompts and of the answers. Each node counts how often its string occurred in this request's prompt (f_in) and in
 * all answers (f_out). A query with the last 2 tokens of the text, then with the last 1, leads to a node whose subtree
 * is the draft; the shorter query is used only if the longer one has fewer than branch_length nodes below it.
 * decoding_length = 64 nodes of the subtree are kept: half of them by f_out, the rest by
 *
 *     f_mix = (1 - w) f_in + w f_out,   w = 1e-4
 *
 * so that strings of the prompt come first, and those of the answers follow. A prompt is dropped with its request,
 * answers stay. When the trie is full, strings counted once are dropped and all other counts are halved.
 *
 *     prompt   a b c a b d . a b|     f_in below "a b": c 1, d 1, . 1 (after "d"), ...; f_out from other
 *     answers  .. a b c .. a b c      answers: c 2
 *     draft of 2 nodes                one by f_out: c; one by f_mix: d (c is there already)
 *
 * Layout: the answers are a real trie (text_index.h), shared by all sequences and fed token by token: each sequence
 * holds the ends of its branch_length latest strings (cursors), and a new token extends them all. The prompts are not
 * entered at all: f_in of a string is the number of its occurrences in the prompt, which are split from node to node
 * as in ngram-trie (text_index.h). A candidate is a node of the answers' trie together with a list of places in the
 * prompt; its children are those of either.
 *
 * Where we differ: strings are counted as they grow, not when they are complete, so that drafts can continue from the
 * current answer at once. There is one limit for the whole trie (`nodes`); the original has 65,536 nodes for each first
 * token and any number of first tokens. Half of the budget goes to f_out if the budget is smaller than decoding_length;
 * the query of 1 token is used if that of 2 cannot fill min(branch_length, budget). Equal nodes are taken in the order
 * in which they were found. Only the 1024 latest positions of a token in the text, and its 1024 latest children, are
 * used.
 *
 * p_accept: the ranking does not estimate a probability, so p_accept is computed separately. Let n places in the own
 * text match m tokens (counted up to 16, also beyond the query), let other answers have N strings, and let m' be the
 * query's tokens plus the depth. Then
 *
 *     P(x) = (n_x + c P'(x)) / (n + c),   c = 2 / m (1 if n = 0),   P'(x) = N_x / (N + 6 / m')
 *
 * so that the own text counts first and the answers to others second (text_drafter.h), and p_accept(child) =
 * p_accept(parent) P. What the own answer contributed to f_out is subtracted from it.
 *
 * Invariants: p_accept, f_in and f_out never rise along a path; a draft has at most min(budget, decoding_length) nodes
 * and is at most branch_length deep. With history=0 the answers are dropped whenever no request is running. Memory: 28
 * to 36 bytes a node, 29 MB for the default of 2^20 nodes (at least 80,000 tokens of answers); 8 bytes for each token
 * of a text. Where several requests run at once, as in a server, the trie takes all of its memory at the start: a
 * process that grows for an hour looks like one that leaks, and each doubling would stop all requests while the nodes
 * are entered anew. Cost: 13 look-ups for each token observed, half a microsecond, and once in many thousand tokens 10
 * ms to forget; a proposal of 64 nodes takes 6 us (median) on recorded answers. When it loses: it ranks by 2 tokens of
 * context, where ngram-trie uses up to 16, so most of its many nodes are wrong; it needs hardware on which 64 rows cost
 * as much as one. Proof: tests/draft/test_draft_lookahead_trie.c compares with counts by brute force;
 * tests/draft/test_count_trie.c compares the trie and its forgetting with a list of strings. */
#include "base/mem.h"
#include "draft/text/text_index.h"
#include "draft/text/text_drafter.h"

enum {
    QUERY = 2,           /* tokens of the longest query */
    MAX_MATCH = 16,      /* longer matches are practically certain */
    MAX_BRANCH = 64,     /* limit of the option branch_length */
    MAX_PLACES = 1024,   /* limits the cost in long prompts */
    MAX_CHILDREN = 1024, /* limits the cost after long histories */
};
static const double OUTPUT_WEIGHT = 1e-4; /* the weight w of f_out in f_mix */

typedef struct Lookahead {
    TextDrafter text;
    int32_t branch_length, decoding_length;
    bool history;
    CountTrie answers;
    int32_t *cursors; /* [max_sequences][branch_length] entry i: the end of the string that began i tokens ago, or -1 */
    int32_t n_active; /* sequences between begin and end */
    bool *active;     /* [max_sequences] */
    NgramScratch scratch;
    int64_t n_made;
} Lookahead;

typedef struct LookaheadTrieOptions {
    int32_t branch_length, decoding_length, nodes;
    bool history;
} LookaheadTrieOptions;

static const Option option_table[] = {
    {.key = "branch_length",
     OPT_INT(LookaheadTrieOptions, branch_length, 1, MAX_BRANCH),
     .default_value = "12",
     .help = "tokens of a string after its first one"},
    {.key = "decoding_length",
     OPT_INT(LookaheadTrieOptions, decoding_length, 1, TREE_MAX_NODES - 1),
     .default_value = "64",
     .help = "maximal number of nodes of a draft"},
    {.key = "nodes",
     OPT_INT(LookaheadTrieOptions, nodes, 1024, 1 << 27),
     .default_value = "1048576",
     .help = "maximal number of nodes in the trie of answers; when it is full, it forgets what is rare"},
    {.key = "history",
     OPT_FLAG(LookaheadTrieOptions, history),
     .default_value = "1",
     .help = "1: remembers answers for later requests; 0: forgets them when no request is running"},
    {.key = NULL},
};

/* ---- opening, feeding --------------------------------------------------------------------------- */

static void close_lookahead(Drafter *drafter) {
    Lookahead *d = (Lookahead *)drafter;
    text_drafter_release(&d->text);
    count_trie_free(&d->answers);
    ngram_scratch_close(&d->scratch);
    mem_free(d->cursors);
    mem_free(d->active);
    mem_free(d);
}

static int open_parts(Lookahead *d, const DrafterEnv *env, int32_t max_nodes, fr_error *err) {
    int status = text_drafter_init(&d->text, env, err);
    if (!status) status = ngram_scratch_open(&d->scratch, env->n_vocab, err);
    if (!status) status = count_trie_open(&d->answers, max_nodes, err);
    /* An engine that runs several requests at once takes all memory at the start (see "Memory" above). */
    if (!status && env->max_sequences > 1) status = count_trie_take_all(&d->answers, err);
    if (status) return status;
    size_t n = (size_t)env->max_sequences;
    d->cursors = mem_calloc(n * (size_t)d->branch_length, sizeof *d->cursors);
    d->active = mem_calloc(n, sizeof *d->active);
    if (d->cursors && d->active) return FR_OK;
    return error_memory(err, "lookahead-trie", n * (size_t)d->branch_length * sizeof *d->cursors);
}

static int open_lookahead(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const LookaheadTrieOptions *o = options;
    Lookahead *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "lookahead-trie", sizeof *d);
    *out = &d->text.base;
    d->branch_length = o->branch_length;
    d->decoding_length = o->decoding_length;
    d->history = o->history;
    int status = open_parts(d, env, o->nodes, err);
    if (status) close_lookahead(*out);
    return status;
}

static int32_t *cursors_of(const Lookahead *d, int32_t sequence) {
    return d->cursors + (size_t)sequence * (size_t)d->branch_length;
}

static void end(Drafter *drafter, int32_t sequence) {
    Lookahead *d = (Lookahead *)drafter;
    text_drafter_end(drafter, sequence);
    int32_t *cursors = cursors_of(d, sequence);
    for (int32_t i = 0; i < d->branch_length; i++) cursors[i] = -1;
    d->n_active -= d->active[sequence];
    d->active[sequence] = false;
    if (!d->history && d->n_active == 0) count_trie_clear(&d->answers);
}

/* Reserves room for the longest answer, so that steps allocate nothing. If less is left before the trie must forget,
 * all of that is reserved. */
static bool reserve_answer(Lookahead *d) {
    int64_t want = (int64_t)d->text.n_ctx * (d->branch_length + 1), left = d->answers.max - d->answers.n;
    return count_trie_reserve(&d->answers, (int32_t)(want < left ? want : left), NULL, 0);
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    Lookahead *d = (Lookahead *)drafter;
    end(drafter, sequence);
    d->active[sequence] = true;
    d->n_active++;
    if (!reserve_answer(d)) return error_memory(err, "the trie of answers", sizeof(CountNode));
    return text_drafter_begin(drafter, sequence, tokens, n, err);
}

/* Enters one token of an answer: it extends every string that began at most branch_length tokens ago. */
static bool enter(Lookahead *d, int32_t sequence, int32_t token) {
    int32_t *cursors = cursors_of(d, sequence), last = d->branch_length - 1;
    int64_t n_cursors = (int64_t)d->text.max_sequences * d->branch_length;
    if (!count_trie_reserve(&d->answers, d->branch_length + 1, d->cursors, n_cursors)) return false;
    for (int32_t i = last; i >= 0; i--) { /* the last string is complete now and is given up */
        int32_t longer = cursors[i] < 0 ? -1 : count_trie_touch(&d->answers, cursors[i], token);
        if (i < last) cursors[i + 1] = longer;
    }
    cursors[0] = count_trie_touch(&d->answers, 0, token);
    return true;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    Lookahead *d = (Lookahead *)drafter;
    int status = text_drafter_observe(drafter, sequence, tokens, n, err);
    for (int64_t i = 0; i < n && !status; i++)
        if (!enter(d, sequence, tokens[i])) status = error_memory(err, "the trie of answers", sizeof(CountNode));
    return status;
}

/* ---- proposing ---------------------------------------------------------------------------------- */

typedef struct Draft {
    Lookahead *d;
    const NgramText *t;
    Tree *tree;
    int32_t query, deepest; /* tokens of the query; depth of the deepest nodes */
    bool by_answers;        /* nodes are ranked by f_out; otherwise by f_mix */
} Draft;

/* Occurrences of one child of a node, or of all its children. */
typedef struct Counts {
    int64_t prompt;  /* f_in: occurrences in the request's prompt */
    int64_t own;     /* occurrences in the request's prompt and answer together */
    int64_t answers; /* f_out: occurrences in all answers */
} Counts;

/* Occurrences in the answers of other requests. */
static int64_t others(const Counts *c) {
    int64_t n = c->answers - (c->own - c->prompt);
    return n > 0 ? n : 0;
}

/* Returns the probability of a child: its share in the own text and, where that has few places, its share in the
 * answers to others. The own text matches m_own tokens, the other answers m. */
static double share_of(const Counts *child, const Counts *all, int32_t m_own, int32_t m) {
    double p = text_drafter_share(others(child), others(all), m, HISTORY_SMOOTHING);
    double smoothing = m_own > 0 ? (double)TEXT_SMOOTHING / m_own : 1;
    double share = ((double)child->own + smoothing * p) / ((double)all->own + smoothing);
    return share < 1 ? share : 1; /* it can exceed 1 if MAX_PLACES or MAX_CHILDREN cut a sum short */
}

static Counts count_group(const Draft *f, NgramGroup g, int32_t node) {
    Counts c = {.own = g.n, .answers = node ? f->d->answers.nodes[node].count : 0};
    for (int32_t i = g.begin; i < g.begin + g.n; i++) c.prompt += f->d->scratch.places[i].at < f->t->n_prompt;
    return c;
}

/* Pushes the candidate c with its score and p_accept, unless the score is 0. */
static bool push(Draft *f, NgramCandidate c, const Counts *of, double share) {
    c.score = f->by_answers ? (double)of->answers
                            : (1 - OUTPUT_WEIGHT) * (double)of->prompt + OUTPUT_WEIGHT * (double)of->answers;
    if (c.score <= 0) return true;
    c.p_accept = (double)f->tree->nodes[c.parent].p_accept * share;
    c.tie = f->d->n_made++;
    return ngram_heap_push(&f->d->scratch, c);
}

/* The children of a node that occur in the own text, one for each group of s->groups, and the sums over all
 * children. */
typedef struct Children {
    int32_t n, m_own;         /* m_own: the longest match in the own text, in tokens */
    int32_t node[MAX_PLACES]; /* the child's node in the trie of answers; 0: not there */
    Counts of[MAX_PLACES], all;
} Children;

/* Splits the n places of a node and counts its children; afterwards s->group_of finds them by their token. */
static void count_children(const Draft *f, int32_t begin, int32_t n, int32_t node, Children *out) {
    NgramScratch *s = &f->d->scratch;
    const CountNode *nodes = f->d->answers.nodes;
    out->n = ngram_split(s, f->t, begin, n, INT32_MAX);
    out->m_own = 0;
    out->all = (Counts){0};
    for (int32_t i = 0; i < out->n; i++) {
        NgramGroup g = s->groups[i];
        out->node[i] = node ? count_trie_child(&f->d->answers, node, g.token) : 0;
        out->of[i] = count_group(f, g, out->node[i]);
        out->all.own += out->of[i].own;
        out->all.prompt += out->of[i].prompt;
        s->group_of[g.token] = i;
        for (int32_t j = g.begin; j < g.begin + g.n; j++) /* the split has increased matches by one */
            if (s->places[j].match - 1 > out->m_own) out->m_own = s->places[j].match - 1;
    }
    int32_t walked = 0, c = node ? nodes[node].first_child : 0;
    for (; c && walked < MAX_CHILDREN; c = nodes[c].next_sibling, walked++) out->all.answers += nodes[c].count;
}

/* Pushes the children of a node of the tree as candidates: the tokens that follow its n places in the text, and its
 * children in the trie of answers, where it is `node` (0: it is not there). */
static bool expand(Draft *f, int32_t parent, int32_t begin, int32_t n, int32_t node) {
    NgramScratch *s = &f->d->scratch;
    const CountNode *nodes = f->d->answers.nodes;
    const int32_t m = f->query + f->tree->nodes[parent].depth;
    if (f->tree->nodes[parent].depth == f->deepest) return true;
    Children of;
    count_children(f, begin, n, node, &of);
    bool fits = true;
    for (int32_t i = 0; i < of.n && fits; i++) {
        NgramGroup g = s->groups[i];
        NgramCandidate c = {.parent = parent, .token = g.token, .begin = g.begin, .n = g.n, .rank = of.node[i]};
        fits = push(f, c, &of.of[i], share_of(&of.of[i], &of.all, of.m_own, m));
    }
    int32_t walked = 0, i = node ? nodes[node].first_child : 0;
    for (; i && walked < MAX_CHILDREN && fits; i = nodes[i].next_sibling, walked++) {
        if (s->group_of[nodes[i].token] >= 0) continue; /* the token is already a candidate */
        Counts alone = {.answers = nodes[i].count};
        NgramCandidate c = {.parent = parent, .token = nodes[i].token, .rank = i};
        fits = push(f, c, &alone, share_of(&alone, &of.all, of.m_own, m));
    }
    for (int32_t j = 0; j < of.n; j++) s->group_of[s->groups[j].token] = -1;
    return fits;
}

/* Puts the positions of the query in the text into s->places. Returns how many there are; -1 if memory ran out. */
static int32_t gather(const Draft *f) {
    NgramScratch *s = &f->d->scratch;
    int32_t n = 0, walked = 0;
    s->n_places = 0;
    if (!ngram_scratch_reserve(s, MAX_PLACES)) return -1;
    int32_t p = ngram_text_last(f->t, f->t->tokens[f->t->n - 1]);
    for (; p >= 0 && walked < MAX_PLACES; p = f->t->previous[p], walked++)
        if (p + 1 < f->t->n_indexed && ngram_text_match(f->t, p, f->query) == f->query)
            s->places[n++] = (NgramPlace){.at = p, .match = ngram_text_match(f->t, p, MAX_MATCH)};
    return n;
}

/* Returns the node of the query in the trie of answers, or 0. */
static int32_t query_answers(const Draft *f) {
    int32_t node = 0;
    for (int32_t i = f->query; i > 0; i--) {
        node = count_trie_child(&f->d->answers, node, f->t->tokens[f->t->n - i]);
        if (node == 0) return 0;
    }
    return node;
}

/* Adds the best nodes by f_out or f_mix until the tree has `end` nodes; false: no memory. */
static bool take(Draft *f, bool by_answers, int32_t end) {
    Lookahead *d = f->d;
    f->by_answers = by_answers;
    d->scratch.n_heap = 0;
    int32_t n = gather(f);
    bool fits = n >= 0 && expand(f, 0, 0, n, query_answers(f));
    while (fits && f->tree->n < end && d->scratch.n_heap > 0) {
        NgramCandidate c = ngram_heap_pop(&d->scratch);
        int32_t node = tree_add(f->tree, c.parent, c.token, (float)c.p_accept, d->text.base.source);
        fits = expand(f, node, c.begin, c.n, c.rank);
    }
    return fits;
}

static bool propose_one(Lookahead *d, const NgramText *t, int32_t budget, Tree *tree) {
    int32_t enough = budget < d->branch_length ? budget : d->branch_length;
    bool fits = true;
    for (int32_t query = t->n < QUERY ? t->n : QUERY; query >= 1 && fits; query--) {
        Draft f = {.d = d, .t = t, .tree = tree, .query = query, .deepest = d->branch_length - query + 1};
        tree->n = 1;
        fits = take(&f, true, 1 + budget / 2) && take(&f, false, 1 + budget);
        if (tree->n > enough) break;
    }
    return fits;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    Lookahead *d = (Lookahead *)drafter;
    d->n_made = 0;
    for (int i = 0; i < n; i++) {
        int32_t budget = budgets[i] < d->decoding_length ? budgets[i] : d->decoding_length;
        if (!propose_one(d, text_drafter_text(&d->text, sequences[i]), budget, trees[i]))
            return error_memory(err, "a lookahead draft", MAX_PLACES * sizeof(NgramPlace));
    }
    return FR_OK;
}

extern const DrafterClass draft_lookahead_trie_class;
const DrafterClass draft_lookahead_trie_class = {
    .name = "lookahead-trie",
    .summary = "Ant group's trie: what followed the last two tokens in the prompt and in all answers",
    .option_table = option_table,
    .options_size = sizeof(LookaheadTrieOptions),
    .remembers = true,
    .open = open_lookahead,
    .close = close_lookahead,
    .begin = begin,
    .observe = observe,
    .propose = propose,
    .end = end,
};
