/* draft_lookahead.c - the drafter `lookahead`: lookahead decoding (Fu et al. 2024, "Break the Sequential
 * Dependency of LLM Inference Using Lookahead Decoding", arXiv 2402.02057).
 *
 * The problem: where can a draft come from without a second model and without a text to copy from? It can come from the
 * target itself, evaluated at several future positions at once. The predictions there depend on guessed tokens and are
 * mostly wrong, but parts of them are phrases that the target will really generate.
 *
 * The idea: Jacobi iteration. Guess the next W tokens, let one forward predict what follows each, take that as the
 * new guess, and so on: the guesses converge towards the text, and what each position predicted over N - 1 iterations
 * is an n-gram of N tokens. These are kept in a pool. In the same forward up to G n-grams of the pool that begin with
 * the pending token are verified as drafts.
 *
 * The window is a token tree; here W = 3 columns and level N = 4, which makes three rows. The first row is a chain from
 * the pending token p on, and below its node j are the predictions of column j in later iterations:
 *
 *     p ───── a1 ───── a2        row 1: guesses of the positions p, p+1, p+2
 *     │       │        │
 *     b0      b1       b2        row 2: what the next iteration predicted after each
 *     │       │        │
 *     c0      c1       c2        row 3; the argmax of the logits after c_j is new: d_j
 *
 * The step adds the n-grams (p b0 c0 d0), (a1 b1 c1 d1), (a2 b2 c2 d2) to the pool. Then each column drops its first
 * token and ends with its new one: one token was accepted, and b0 b1 b2 are now one position further on. For each token
 * accepted beyond the first the columns move one to the left; a column that falls out comes back on the right with its
 * old tokens, which are as good a start as any. The window takes W(N-1) - 1 nodes, and the guesses take at most G(N-1).
 * The window's nodes are ordinary nodes: column 0 and the chain may be accepted too.
 *
 * The new token is the argmax of the logits, at any temperature: a window of random draws would not converge. The first
 * window is spread evenly over the prompt, whereas the released program fills it with random tokens of the prompt. The
 * prompt's n-grams enter the pool (`prompt=0` turns this off), which is an option of the released program too. That
 * program moves its window by one position in each step, however many tokens were accepted. Rotating the columns gave
 * more: 2.73 tokens a step instead of 2.58, on five prompts with 32 nodes. Window and pool belong to one sequence and
 * end with it. The pool keeps the latest 4096 n-grams.
 *
 * Union and budget: the verified tree contains other drafters' nodes, and some of ours may be missing. So the window is
 * looked up there by its tokens; a column that is not complete in the tree stays as it is. If the budget is too small
 * for everything, half of it goes to columns (always at least one) and half to guesses, and nodes that one of them does
 * not need go to the other. A budget below N - 2 shortens the one column that is left, and there are no guesses. The
 * defaults can use 29 nodes.
 *
 * p_accept: the guesses are a tree. The probability that a node is right, given that its parent is, is the counted
 * frequency for that depth and that place among its parent's children, the latest n-gram first. The chain and the
 * columns are counted in the same way. Counts are shared by all sequences. A window that is never right keeps a
 * p_accept of 1e-6, so that a union drops it first, but keeps it if there is room.
 *
 * Invariants: p_accept never rises along a path; the pool and the window have fixed sizes: 4096 * (4 N + 20) bytes a
 * sequence, 147 KB for N = 4. Cost: an argmax over V for each column. When it loses: each step pays for the 14 rows of
 * the window, whose n-grams are right only where the text consists of set phrases; it is meant for hardware on which 32
 * rows cost as much as one. Proof: tests/draft/test_draft_lookahead.c has a plain Jacobi iteration, which gives the
 * same windows, pools and trees. */
#include "base/mem.h"
#include "draft/text/text_index.h"
#include "draft/feedback.h"

#include <string.h>

enum { MAX_WINDOW = 32, MAX_LEVEL = 16, MAX_GUESSES = 32, POOL_SIZE = 4096 };
static const double MIN_P_ACCEPT = 1e-6;

/* The shares of right nodes that are assumed before anything is counted. */
static const double PRIOR_FIRST = 0.3, PRIOR_DEEPER = 0.6, PRIOR_OTHER = 0.1, PRIOR_WINDOW = 0.1;

typedef struct Window {
    int32_t columns[MAX_WINDOW][MAX_LEVEL]; /* [window][level - 1] */
    int32_t chain;                          /* nodes below the first of each column in the last proposal */
    NgramPool pool;
} Window;

typedef struct LookaheadOptions {
    int32_t window, level, guesses;
    bool prompt;
} LookaheadOptions;

typedef struct Lookahead {
    Drafter base;
    int32_t n_vocab, window, level, guesses, max_sequences;
    bool prompt;
    Window *windows; /* [max_sequences] */
    /* These count how often a node was right if its parent was right: */
    Tally guess[MAX_LEVEL][MAX_GUESSES]; /* guesses, by depth of the parent and place among its children */
    Tally spine;                         /* the window's first row */
    Tally column[MAX_LEVEL];             /* the window's other rows, by row */
} Lookahead;

static const Option option_table[] = {
    {.key = "window",
     OPT_INT(LookaheadOptions, window, 1, MAX_WINDOW),
     .default_value = "5",
     .help = "number of positions guessed ahead in each step (the paper's W)"},
    {.key = "level",
     OPT_INT(LookaheadOptions, level, 3, MAX_LEVEL),
     .default_value = "4",
     .help = "tokens of an n-gram (the paper's N)"},
    {.key = "guesses",
     OPT_INT(LookaheadOptions, guesses, 1, MAX_GUESSES),
     .default_value = "5",
     .help = "number of n-grams verified in each step (the paper's G)"},
    {.key = "prompt",
     OPT_FLAG(LookaheadOptions, prompt),
     .default_value = "1",
     .help = "1: the prompt's n-grams enter the pool; 0: only those of the window do"},
    {.key = NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void close_lookahead(Drafter *drafter) {
    Lookahead *d = (Lookahead *)drafter;
    if (d->windows)
        for (int32_t i = 0; i < d->max_sequences; i++) ngram_pool_close(&d->windows[i].pool);
    mem_free(d->windows);
    mem_free(d);
}

static int open_windows(Lookahead *d, fr_error *err) {
    d->windows = mem_calloc((size_t)d->max_sequences, sizeof *d->windows);
    if (!d->windows) return error_memory(err, "lookahead", (size_t)d->max_sequences * sizeof *d->windows);
    int status = FR_OK;
    for (int32_t i = 0; i < d->max_sequences && !status; i++)
        status = ngram_pool_open(&d->windows[i].pool, POOL_SIZE, d->level - 1, err);
    return status;
}

static int open_lookahead(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const LookaheadOptions *o = options;
    Lookahead *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "lookahead", sizeof *d);
    *out = &d->base;
    d->n_vocab = env->n_vocab;
    d->max_sequences = env->max_sequences;
    d->window = o->window;
    d->level = o->level;
    d->guesses = o->guesses;
    d->prompt = o->prompt;
    int status = feedback_require_target("lookahead", env, err);
    if (!status) status = open_windows(d, err);
    if (status) close_lookahead(*out);
    return status;
}

static Window *window_of(const Lookahead *d, int32_t sequence) {
    fr_assert(sequence >= 0 && sequence < d->max_sequences);
    return &d->windows[sequence];
}

/* The first window is spread evenly over the prompt. */
static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const Lookahead *d = (Lookahead *)drafter;
    Window *w = window_of(d, sequence);
    int32_t rows = d->level - 1;
    int status = feedback_check_tokens(tokens, n, d->n_vocab, err);
    if (status) return status;
    for (int32_t j = 0; j < d->window; j++)
        for (int32_t r = 0; r < rows; r++) w->columns[j][r] = tokens[n * (j * rows + r) / (d->window * rows)];
    w->chain = rows - 1;
    ngram_pool_clear(&w->pool);
    for (int64_t i = 0; d->prompt && i + rows < n; i++) ngram_pool_add(&w->pool, tokens[i], tokens + i + 1, rows);
    return FR_OK;
}

/* ---- the guesses as a tree ---------------------------------------------------------------------- */

static double guess_share(const Lookahead *d, int32_t depth, int32_t place) {
    double prior = place > 0 ? PRIOR_OTHER : depth > 0 ? PRIOR_DEEPER : PRIOR_FIRST;
    return tally_share(&d->guess[depth][place], prior);
}

/* Builds the tree of the pool's n-grams that begin with the pending token, at most guesses * (level - 1) nodes.
 * Children are in the order of their n-grams, the latest first. */
static void grow_guesses(const Lookahead *d, const Window *w, int32_t pending, Tree *g) {
    PoolGram grams[MAX_GUESSES];
    int32_t n = ngram_pool_find(&w->pool, pending, d->guesses, grams);
    int32_t n_children[MAX_GUESSES * MAX_LEVEL + 1] = {0};
    tree_reset(g, pending);
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0, node = 0; k < grams[i].n; k++) {
            int32_t child = tree_child(g, node, grams[i].tokens[k]);
            if (child < 0) {
                double p_accept = (double)g->nodes[node].p_accept * guess_share(d, k, n_children[node]++);
                child = tree_add(g, node, grams[i].tokens[k], (float)p_accept, d->base.source);
            }
            node = child;
        }
}

/* ---- learning ----------------------------------------------------------------------------------- */

/* Compares tokens with those that the step committed after depth `depth`. tallies[i] counts whether token i was right,
 * up to the first wrong token or the last committed one. */
static void count_run(const VerifiedTree *v, int32_t depth, const int32_t *tokens, int32_t n, Tally *tallies) {
    bool right = true;
    for (int32_t i = 0; i < n && right && depth + i <= v->verdict->n_path; i++) {
        right = tokens[i] == feedback_after(v, depth + i);
        tally_add(&tallies[i], right);
    }
}

static void count_guesses(Lookahead *d, const Window *w, const VerifiedTree *v) {
    Tree g;
    grow_guesses(d, w, v->tree->nodes[0].token, &g);
    for (int32_t depth = 0, node = 0; node >= 0 && depth <= v->verdict->n_path; depth++) {
        int32_t came = feedback_after(v, depth), place = 0;
        for (int32_t i = node + 1; i < g.n; i++)
            if (g.nodes[i].parent == node) tally_add(&d->guess[depth][place++], g.nodes[i].token == came);
        node = tree_child(&g, node, came);
    }
}

static void count_window(Lookahead *d, const Window *w, const VerifiedTree *v) {
    for (int32_t j = 0; j < d->window && j <= v->verdict->n_path; j++) {
        if (j > 0) {
            bool right = w->columns[j][0] == feedback_after(v, j - 1);
            tally_add(&d->spine, right);
            if (!right) return;
        }
        count_run(v, j, w->columns[j] + 1, d->level - 2, d->column + 1);
    }
}

/* Returns the last node of a column whose first is `node`, or -1 if the column is not complete in the tree. */
static int32_t find_chain(const Tree *t, int32_t node, const int32_t *column, int32_t chain) {
    for (int32_t r = 1; r <= chain && node >= 0; r++) node = tree_child(t, node, column[r]);
    return node;
}

/* One Jacobi iteration: the n-gram of each column goes to the pool, and the column advances by one token. */
static void iterate(const Lookahead *d, Window *w, const VerifiedTree *v) {
    const Tree *t = v->tree;
    w->columns[0][0] = t->nodes[0].token;
    for (int32_t j = 0, first = 0; j < d->window; j++) {
        int32_t *column = w->columns[j], next;
        if (j > 0) first = tree_child(t, first, column[0]);
        if (first < 0) return;
        int32_t last = find_chain(t, first, column, w->chain);
        if (last < 0 || logits_top_k(v->logits[last], d->n_vocab, 1, &next) == 0) continue;
        int32_t key = column[0];
        memmove(column, column + 1, (size_t)w->chain * sizeof *column);
        column[w->chain] = next;
        ngram_pool_add(&w->pool, key, column, w->chain + 1);
    }
}

/* The pending token advances by n + 1 positions, one of which the iteration has already made. */
static void rotate_columns(const Lookahead *d, Window *w, int32_t n) {
    if (n >= d->window) return; /* all positions of the window have passed, so the order does not matter */
    int32_t old[MAX_WINDOW][MAX_LEVEL];
    memcpy(old, w->columns, sizeof old);
    for (int32_t j = 0; j < d->window; j++) memcpy(w->columns[j], old[(j + n) % d->window], sizeof *old);
}

static int observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    (void)err;
    Lookahead *d = (Lookahead *)drafter;
    Window *w = window_of(d, sequence);
    count_guesses(d, w, v);
    count_window(d, w, v);
    iterate(d, w, v);
    rotate_columns(d, w, v->verdict->n_path);
    return FR_OK;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)sequence;
    return feedback_check_tokens(tokens, n, ((Lookahead *)drafter)->n_vocab, err);
}

/* ---- drafting ----------------------------------------------------------------------------------- */

/* Adds a child if there is room for it; returns it, or the one that is already there, or -1. */
static int32_t add(Tree *t, int32_t parent, int32_t token, double p_accept, int32_t budget, int32_t source) {
    if (t->n > budget && tree_child(t, parent, token) < 0) return -1;
    return tree_add(t, parent, token, (float)(p_accept > MIN_P_ACCEPT ? p_accept : MIN_P_ACCEPT), source);
}

static void draft_column(const Lookahead *d, const Window *w, int32_t j, int32_t node, int32_t budget, Tree *t) {
    for (int32_t r = 1; r <= w->chain && node >= 0; r++)
        node = add(t, node, w->columns[j][r],
                   (double)t->nodes[node].p_accept * tally_share(&d->column[r], PRIOR_WINDOW), budget, d->base.source);
}

/* Drafts the columns from *j up to `end`, as long as they fit completely. *spine is the first node of column *j - 1. */
static void draft_columns(const Lookahead *d, const Window *w, int32_t *j, int32_t end, int32_t *spine, int32_t budget,
                          Tree *t) {
    for (; *j < end; ++*j) {
        if (*j > 0) {
            if (budget - (t->n - 1) < 1 + w->chain) return;
            *spine = add(t, *spine, w->columns[*j][0],
                         (double)t->nodes[*spine].p_accept * tally_share(&d->spine, PRIOR_WINDOW), budget,
                         d->base.source);
        }
        draft_column(d, w, *j, *spine, budget, t);
    }
}

static void draft_guesses(const Lookahead *d, const Window *w, int32_t budget, Tree *t) {
    Tree g;
    int32_t place[MAX_GUESSES * MAX_LEVEL + 1] = {0}; /* where each node of g is in t, or -1 */
    grow_guesses(d, w, t->nodes[0].token, &g);
    for (int32_t i = 1; i < g.n; i++) {
        const TreeNode *node = &g.nodes[i];
        int32_t parent = place[node->parent];
        place[i] = parent < 0 ? -1 : add(t, parent, node->token, (double)node->p_accept, budget, d->base.source);
    }
}

static void draft(const Lookahead *d, Window *w, int32_t budget, Tree *t) {
    if (budget > TREE_MAX_NODES - 1) budget = TREE_MAX_NODES - 1;
    int32_t rows = d->level - 1, half = (budget + 1) / (2 * rows), j = 0, spine = 0;
    if (half < 1) half = 1;
    if (half > d->window) half = d->window;
    w->chain = rows - 1 < budget ? rows - 1 : budget;
    draft_columns(d, w, &j, half, &spine, budget, t);
    draft_guesses(d, w, budget, t);
    draft_columns(d, w, &j, d->window, &spine, budget, t);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    (void)err;
    const Lookahead *d = (Lookahead *)drafter;
    for (int i = 0; i < n; i++) draft(d, window_of(d, sequences[i]), budgets[i], trees[i]);
    return FR_OK;
}

static void end(Drafter *drafter, int32_t sequence) { /* nothing to do: begin initialises the window */
    (void)drafter;
    (void)sequence;
}

extern const DrafterClass draft_lookahead_class;
const DrafterClass draft_lookahead_class = {
    .name = "lookahead",
    .summary = "lookahead decoding: n-grams from the target's own predictions at several future positions",
    .option_table = option_table,
    .options_size = sizeof(LookaheadOptions),
    .remembers = true,
    .open = open_lookahead,
    .close = close_lookahead,
    .begin = begin,
    .observe_tree = observe_tree,
    .observe = observe,
    .propose = propose,
    .end = end,
    .needs_logits = true,
};
