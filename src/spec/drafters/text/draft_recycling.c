/* draft_recycling.c - the drafter `recycling`: Token Recycling (Luo et al. 2024, "Turning Trash into Treasure:
 * Accelerating Inference of Large Language Models with Token Recycling", arXiv 2408.08696).
 *
 * The problem: every forward computes the target's logits for each of its rows, and all but one token of each row is
 * thrown away, most of it from nodes that were not accepted.
 *
 * The idea: a matrix with a row for each token of the vocabulary holds the k = 8 tokens that the target last found
 * most probable after it, best first. Each verified node, accepted or not, overwrites the row of its token with the
 * top 8 of its logits. A draft is found by following the matrix from the pending token: its followers, their
 * followers, and so on. No n-gram, no model, no text: only one token of context, but the target's own logits.
 *
 *     matrix   the  | cat dog man ..     a tree of 5 nodes below "the"
 *              cat  | sat ran ..             the ── cat ── sat ── on
 *              sat  | on  ..                      │     └─ ran
 *              dog  | ran ..                      └─ dog
 *
 * Which nodes: the paper expands one static tree of 80 nodes, whose shape reflects how often the r-th follower at a
 * depth is right. We count exactly that at run time: for each token of the text, at depth d of its step, which rank
 * did the token have that came next? The share p(d, r) of these is p_accept(child) / p_accept(parent), and the draft
 * consists of the `budget` nodes with the greatest p_accept, taken best first: the best tree of that size if the
 * counts are right, for any budget. Ranks that were not drafted are counted too, since the matrix contains them; so
 * no exploration is needed. Small counts lean on those of all depths together, and these on the eight numbers in
 * PRIOR.
 *
 * The prompt: our prefill computes no logits (which saves V * n_embd multiplications a token), so the target's
 * opinion of the prompt is not known. Instead each pair of neighbours in the prompt is entered: the second token
 * comes to the front of the first one's row (`prompt=0` turns this off).
 *
 * One matrix is shared by all requests of a drafter and stays between requests, as in the paper: a warm matrix is
 * better than a cold one. It starts empty; an empty entry drafts nothing. If several nodes of a step have the same
 * token, those of the accepted path are written last.
 *
 * Invariants: p_accept never rises along a path; siblings differ, because a row has no token twice; the row of a
 * token holds the target's top k at the latest node of that token. Memory: 4 k bytes a token of the vocabulary, 1 MB
 * for 32,000 and 4 MB for 128,256. Cost: the top 8 of each node's row, 4.5 us for 32,000 logits (feedback.c); a
 * proposal is quadratic in the budget, a few microseconds for 32 nodes. When it loses: texts that repeat themselves
 * or their prompt, where n-grams see more than one token back; a first request, whose matrix is still empty. Proof:
 * tests/unit/test_draft_recycling.c, with the matrix, the counts and the best tree by brute force. */
#include "base/mem.h"
#include "spec/drafter/feedback.h"

#include <string.h>

enum { MAX_DEPTH = 16, MAX_K = 16 }; /* limits of the options */

/* Shares of rank 0, 1, .. before anything is counted; later ranks have the last share. */
static const double PRIOR[] = {0.35, 0.12, 0.07, 0.05, 0.03, 0.025, 0.02, 0.015};
enum { N_PRIOR = sizeof PRIOR / sizeof *PRIOR };

typedef struct RecyclingOptions {
    int32_t k, depth;
    bool prompt;
} RecyclingOptions;

typedef struct Recycling {
    Drafter base;
    int32_t n_vocab, k, depth;
    bool prompt;
    int32_t *followers;         /* [n_vocab][k] best first; -1: not known */
    Tally at[MAX_DEPTH][MAX_K]; /* by depth of the parent and rank */
    Tally anywhere[MAX_K];      /* by rank, all depths */
} Recycling;

static const Option option_table[] = {
    {.key = "k",
     OPT_INT(RecyclingOptions, k, 1, MAX_K),
     .default_value = "8",
     .help = "number of followers kept for each token"},
    {.key = "depth",
     OPT_INT(RecyclingOptions, depth, 1, MAX_DEPTH),
     .default_value = "10",
     .help = "maximal depth of the tree"},
    {.key = "prompt",
     OPT_FLAG(RecyclingOptions, prompt),
     .default_value = "1",
     .help = "1: pairs of neighbours in the prompt enter the matrix; 0: only the target's predictions do"},
    {.key = NULL},
};

static void close_recycling(Drafter *drafter) {
    mem_free(((Recycling *)drafter)->followers);
    mem_free(drafter);
}

static int open_recycling(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const RecyclingOptions *o = options;
    int status = feedback_require_target("recycling", env, err);
    if (status) return status;
    size_t n = (size_t)env->n_vocab * (size_t)o->k;
    Recycling *d = mem_calloc(1, sizeof *d);
    if (d) d->followers = mem_calloc(n, sizeof *d->followers);
    if (!d || !d->followers) {
        mem_free(d);
        return error_memory(err, "recycling", n * sizeof *d->followers);
    }
    d->n_vocab = env->n_vocab;
    d->k = o->k;
    d->depth = o->depth;
    d->prompt = o->prompt;
    memset(d->followers, -1, n * sizeof *d->followers);
    *out = &d->base;
    return FR_OK;
}

static int32_t *row_of(const Recycling *d, int32_t token) { return d->followers + (size_t)token * (size_t)d->k; }

/* ---- learning ----------------------------------------------------------------------------------- */

static void move_to_front(int32_t *row, int32_t k, int32_t token) {
    int32_t place = 0;
    while (place < k - 1 && row[place] != token) place++;
    memmove(row + 1, row, (size_t)place * sizeof *row);
    row[0] = token;
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)sequence;
    Recycling *d = (Recycling *)drafter;
    int status = feedback_check_tokens(tokens, n, d->n_vocab, err);
    if (status || !d->prompt) return status;
    for (int64_t i = 0; i + 1 < n; i++) move_to_front(row_of(d, tokens[i]), d->k, tokens[i + 1]);
    return FR_OK;
}

/* For each token that the step committed, counts which rank it had. */
static void count_ranks(Recycling *d, const VerifiedTree *v) {
    for (int32_t depth = 0; depth <= v->verdict->n_path && depth < d->depth; depth++) {
        const int32_t *row = row_of(d, v->tree->nodes[feedback_node(v, depth)].token);
        int32_t came = feedback_after(v, depth);
        for (int32_t rank = 0; rank < d->k && row[rank] >= 0; rank++) {
            tally_add(&d->at[depth][rank], row[rank] == came);
            tally_add(&d->anywhere[rank], row[rank] == came);
        }
    }
}

static void recycle(Recycling *d, const VerifiedTree *v, int32_t node) {
    logits_top_k(v->logits[node], d->n_vocab, d->k, row_of(d, v->tree->nodes[node].token));
}

static int observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    (void)sequence;
    (void)err;
    Recycling *d = (Recycling *)drafter;
    count_ranks(d, v);
    bool on_path[TREE_MAX_NODES] = {false};
    for (int32_t depth = 0; depth <= v->verdict->n_path; depth++) on_path[feedback_node(v, depth)] = true;
    for (int32_t i = 0; i < v->tree->n; i++)
        if (!on_path[i]) recycle(d, v, i);
    for (int32_t depth = 0; depth <= v->verdict->n_path; depth++) recycle(d, v, feedback_node(v, depth));
    return FR_OK;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)sequence;
    return feedback_check_tokens(tokens, n, ((Recycling *)drafter)->n_vocab, err);
}

static void end(Drafter *drafter, int32_t sequence) {
    (void)drafter;
    (void)sequence;
}

/* ---- drafting ----------------------------------------------------------------------------------- */

typedef struct Ranks { /* of one depth: the ranks, the one that is right most often first, and their shares */
    int32_t rank[MAX_K];
    double share[MAX_K];
} Ranks;

static Ranks sort_ranks(const Recycling *d, int32_t depth) {
    Ranks r;
    for (int32_t rank = 0; rank < d->k; rank++) {
        double prior = tally_share(&d->anywhere[rank], PRIOR[rank < N_PRIOR ? rank : N_PRIOR - 1]);
        double share = tally_share(&d->at[depth][rank], prior);
        int32_t place = rank;
        for (; place > 0 && share > r.share[place - 1]; place--) {
            r.share[place] = r.share[place - 1];
            r.rank[place] = r.rank[place - 1];
        }
        r.share[place] = share;
        r.rank[place] = rank;
    }
    return r;
}

/* Advances *next to the node's best follower that is not drafted yet; to k if none is left. */
static void skip_empty(const Recycling *d, const Ranks *ranks, const TreeNode *node, int32_t *next) {
    if (node->depth >= d->depth) *next = d->k;
    while (*next < d->k && row_of(d, node->token)[ranks[node->depth].rank[*next]] < 0) ++*next;
}

static void draft(const Recycling *d, const Ranks *ranks, int32_t budget, Tree *t) {
    int32_t next[TREE_MAX_NODES] = {0};
    skip_empty(d, ranks, &t->nodes[0], &next[0]);
    while (t->n <= budget && t->n < TREE_MAX_NODES) {
        int32_t parent = -1;
        double best = -1;
        for (int32_t i = 0; i < t->n; i++) {
            double p_accept = next[i] < d->k ? (double)t->nodes[i].p_accept * ranks[t->nodes[i].depth].share[next[i]]
                                             : -1;
            if (p_accept > best) {
                best = p_accept;
                parent = i;
            }
        }
        if (parent < 0) return;
        const TreeNode *node = &t->nodes[parent];
        int32_t token = row_of(d, node->token)[ranks[node->depth].rank[next[parent]++]];
        skip_empty(d, ranks, node, &next[parent]);
        int32_t child = tree_add(t, parent, token, (float)best, d->base.source);
        skip_empty(d, ranks, &t->nodes[child], &next[child]);
    }
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    (void)sequences;
    (void)err;
    const Recycling *d = (Recycling *)drafter;
    Ranks ranks[MAX_DEPTH];
    for (int32_t depth = 0; depth < d->depth; depth++) ranks[depth] = sort_ranks(d, depth);
    for (int i = 0; i < n; i++) draft(d, ranks, budgets[i], trees[i]);
    return FR_OK;
}

extern const DrafterClass draft_recycling_class;
const DrafterClass draft_recycling_class = {
    .name = "recycling",
    .summary = "a tree of the tokens that the target last found most probable after each token",
    .option_table = option_table,
    .options_size = sizeof(RecyclingOptions),
    .remembers = true,
    .open = open_recycling,
    .close = close_recycling,
    .begin = begin,
    .observe_tree = observe_tree,
    .observe = observe,
    .propose = propose,
    .end = end,
};
