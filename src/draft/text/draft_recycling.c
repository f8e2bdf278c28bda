/* draft_recycling.c - the drafter `recycling`: Token Recycling (Luo et al. 2024, "Turning Trash into Treasure:
 * Accelerating Inference of Large Language Models with Token Recycling", arXiv 2408.08696).
 *
 * The problem: every forward computes the target's logits for each of its rows. All of a row but one token is thrown
 * away, and most rows belong to nodes that were not accepted.
 *
 * The idea: a matrix has a row for each token of the vocabulary, with the k tokens that the target found most probable
 * after it, best first. Each verified node, accepted or not, enters the top k of its logits into the row of its token.
 * A draft is found by following the matrix from the pending token: its followers, their followers, and so on. This
 * needs no n-grams, no second model and no text. It looks at only one token of context, but it uses the target's own
 * logits.
 *
 *     matrix   the  | cat dog man ..     a tree of 5 nodes below "the"
 *              cat  | sat ran ..             the ── cat ── sat ── on
 *              sat  | on  ..                      │     └─ ran
 *              dog  | ran ..                      └─ dog
 *
 * A row is a running mean, whereas the paper keeps only the last top 8. The top k logits are normalised among
 * themselves under the request's temperature and filters. The new row is the mean of the old row and these
 * probabilities, cut to k tokens again. A prompt gives no probabilities; there the second token of each pair of
 * neighbours gets PAIR_SHARE in the row of the first, so that the latest pair comes first.
 *
 * Nodes at a temperature. The target will choose argmax(log p + G), and G is known (`coupled=1`).
 * The mean probabilities of a row are the q of coupled_chances (feedback.c), and the chance of a follower given the
 * noise at its position is p_accept(child) / p_accept(parent). Here a long row helps, since the noise has more to
 * choose from: k = 32. On 36 held-out prompts at temperature 0.7 with 16 nodes, a program that replays recorded logits
 * measured 1.57 tokens per step for the paper's method, 1.70 for its 8 followers with the noise, 1.86 with means
 * of 16 followers and 1.93 with means of 32 (research/DIARY.md has other temperatures).
 *
 * Nodes without noise: if drafting is greedy, with `coupled=0`, or under a ratio rule, whose random numbers differ. The
 * paper expands one static tree of 80 nodes, whose shape reflects how often the r-th follower at a depth is right. We
 * count exactly that at run time: for each token of the text, at depth d of its step, which rank did the next token
 * have? The share p(d, r) is p_accept(child) / p_accept(parent), and the draft consists of the `budget` nodes with the
 * greatest p_accept, best first. If the counts are right, this is the best tree of that size. Ranks that were not
 * drafted are counted too, since the matrix contains them. While a count is small, the counts of all depths together
 * serve as its prior, and the eight numbers in PRIOR are the prior of those.
 *
 * The prompt: the prefill computes no logits, which saves V * n_embd multiplications a token, so the target's
 * predictions within the prompt are not known. Instead each pair of neighbours in the prompt is entered into the row of
 * the first one (`prompt=0` turns this off).
 *
 * One matrix is shared by all requests of a drafter and stays between requests, as in the paper: a warm matrix is
 * better than a cold one. It starts empty; an empty entry drafts nothing. If several nodes of a step have the same
 * token, those of the accepted path are entered last. Requests with different temperatures enter the same means; a
 * greedy request enters probabilities at temperature 1.
 *
 * Invariants: p_accept never rises along a path; siblings differ, because a row has no token twice; the shares of a row
 * never rise. Memory: 8 k bytes for each token of the vocabulary, 8 MB for 32,000 and 33 MB for 128,256. Cost: the top
 * k of each node's row (feedback.c) and k exponentials; a proposal is quadratic in the budget, and with noise takes k
 * Philox blocks for each node. When it loses: on texts that repeat themselves or their prompt, where n-grams use more
 * than one token of context; and on a first request, whose matrix is still empty. Proof:
 * tests/draft/test_draft_recycling.c computes the matrix, the counts, the chances and the best tree by brute force. */
#include "base/mem.h"
#include "draft/feedback.h"

#include <string.h>

enum { MAX_DEPTH = 16, MAX_K = TOP_K_MAX }; /* limits of the options */

#define KEPT 0.5f       /* the weight of the old mean when a row is entered again */
#define PAIR_SHARE 0.3f /* the share that a pair of neighbours in the prompt gets in its row */

/* The shares assumed for rank 0, 1, .. before anything is counted; later ranks have the last share. */
static const double PRIOR[] = {0.35, 0.12, 0.07, 0.05, 0.03, 0.025, 0.02, 0.015};
enum { N_PRIOR = sizeof PRIOR / sizeof *PRIOR };

typedef struct RecyclingOptions {
    int32_t k, depth;
    bool prompt, coupled;
} RecyclingOptions;

/* What determines the target's noise in a sequence. */
typedef struct Noise {
    SamplingOptions sampling;
    uint64_t position; /* output position of the token after the context */
    bool is_known;     /* the target draws with this noise */
} Noise;

/* The followers of a token in the matrix. */
typedef struct Row {
    int32_t *tokens; /* [k] best first; -1: not known */
    float *shares;   /* [k] mean probabilities */
} Row;

/* The children of a node that may be drafted, the most probable first. */
typedef struct Children {
    int32_t n, n_drafted, tokens[MAX_K];
    double chances[MAX_K]; /* given that the node is accepted */
} Children;

typedef struct Recycling {
    Drafter base;
    int32_t n_vocab, k, depth, max_sequences;
    bool prompt, coupled;
    Arena arena;
    int32_t *followers;         /* [n_vocab][k] the tokens of all rows */
    float *shares;              /* [n_vocab][k] the shares of all rows */
    Noise *noises;              /* [max_sequences] */
    Children *children;         /* [TREE_MAX_NODES] children of each node of the tree that is drafted */
    Sampler *sampler;           /* applies temperature and filters to k tokens */
    Tally at[MAX_DEPTH][MAX_K]; /* right guesses by depth of the parent and by rank */
    Tally anywhere[MAX_K];      /* right guesses by rank, at all depths */
} Recycling;

static const Option option_table[] = {
    {.key = "k",
     OPT_INT(RecyclingOptions, k, 1, MAX_K),
     .default_value = "32",
     .help = "number of followers kept for each token"},
    {.key = "depth",
     OPT_INT(RecyclingOptions, depth, 1, MAX_DEPTH),
     .default_value = "10",
     .help = "maximal depth of the tree"},
    {.key = "prompt",
     OPT_FLAG(RecyclingOptions, prompt),
     .default_value = "1",
     .help = "1: pairs of neighbours in the prompt enter the matrix; 0: only the target's predictions do"},
    {.key = "coupled",
     OPT_FLAG(RecyclingOptions, coupled),
     .default_value = "1",
     .help =
         "1: rank followers with the target's own noise, so that more are accepted where the temperature is above 0 "
         "(rule sampled only); 0: rank them by how often each rank was right"},
    {.key = NULL},
};

static void close_recycling(Drafter *drafter) {
    Recycling *d = (Recycling *)drafter;
    arena_free(&d->arena);
    sampler_free(d->sampler);
    mem_free(d);
}

static int take_memory(Recycling *d, fr_error *err) {
    int64_t n = (int64_t)d->n_vocab * d->k;
    const ArenaItem items[] = {ARENA_ITEM(&d->followers, n), ARENA_ITEM(&d->shares, n),
                               ARENA_ITEM(&d->noises, d->max_sequences), ARENA_ITEM(&d->children, TREE_MAX_NODES)};
    int status = arena_take(&d->arena, items, ARENA_COUNT(items), "recycling", err);
    if (status) return status;
    memset(d->followers, -1, (size_t)n * sizeof *d->followers);
    d->sampler = sampler_new(d->k);
    return d->sampler ? FR_OK : error_memory(err, "recycling", (size_t)d->k);
}

static int open_recycling(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const RecyclingOptions *o = options;
    int status = feedback_require_target("recycling", env, err);
    if (status) return status;
    Recycling *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "recycling", sizeof *d);
    d->n_vocab = env->n_vocab;
    d->max_sequences = env->max_sequences;
    d->k = o->k;
    d->depth = o->depth;
    d->prompt = o->prompt;
    d->coupled = o->coupled;
    if ((status = take_memory(d, err))) close_recycling(&d->base);
    else *out = &d->base;
    return status;
}

static Row row_of(const Recycling *d, int32_t token) {
    size_t first = (size_t)token * (size_t)d->k;
    return (Row){d->followers + first, d->shares + first};
}

static Noise *noise_of(const Recycling *d, int32_t sequence) {
    fr_assert(sequence >= 0 && sequence < d->max_sequences);
    return &d->noises[sequence];
}

static void set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling, uint64_t position) {
    *noise_of((Recycling *)drafter, sequence) = (Noise){*sampling, position, sampling->temperature > 0};
}

/* ---- learning ----------------------------------------------------------------------------------- */

/* Adds `share` to a token in a list of n tokens, which it joins if it is new. Returns the new n. */
static int32_t add_share(int32_t *tokens, float *shares, int32_t n, int32_t token, float share) {
    int32_t i = 0;
    while (i < n && tokens[i] != token) i++;
    tokens[i] = token;
    shares[i] = i < n ? shares[i] + share : share;
    return i < n ? n : n + 1;
}

/* Multiplies the shares of a row by `kept`, adds n <= k tokens with these shares, and keeps the k greatest of all. */
static void mix_into_row(const Recycling *d, Row row, float kept, const int32_t *tokens, const float *shares,
                         int32_t n) {
    int32_t all[2 * MAX_K], n_all = 0;
    float sum[2 * MAX_K];
    for (int32_t i = 0; i < n; i++) n_all = add_share(all, sum, n_all, tokens[i], shares[i]);
    for (int32_t i = 0; i < d->k && row.tokens[i] >= 0; i++)
        n_all = add_share(all, sum, n_all, row.tokens[i], kept * row.shares[i]);
    int32_t n_row = 0;
    for (int32_t i = 0; i < n_all; i++) { /* insertion: equal shares stay in their order */
        int32_t place = n_row < d->k ? n_row++ : d->k;
        for (; place > 0 && sum[i] > row.shares[place - 1]; place--)
            if (place < d->k) row.tokens[place] = row.tokens[place - 1], row.shares[place] = row.shares[place - 1];
        if (place < d->k) row.tokens[place] = all[i], row.shares[place] = sum[i];
    }
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)sequence;
    Recycling *d = (Recycling *)drafter;
    int status = feedback_check_tokens(tokens, n, d->n_vocab, err);
    if (status || !d->prompt) return status;
    for (int64_t i = 0; i + 1 < n; i++)
        mix_into_row(d, row_of(d, tokens[i]), 1 - PAIR_SHARE, &tokens[i + 1], &(float){PAIR_SHARE}, 1);
    return FR_OK;
}

/* For each token that the step committed, counts which rank it had in the row of the token before it. */
static void count_ranks(Recycling *d, const VerifiedTree *v) {
    for (int32_t depth = 0; depth <= v->verdict->n_path && depth < d->depth; depth++) {
        const int32_t *row = row_of(d, v->tree->nodes[feedback_node(v, depth)].token).tokens;
        int32_t came = feedback_after(v, depth);
        for (int32_t rank = 0; rank < d->k && row[rank] >= 0; rank++) {
            tally_add(&d->at[depth][rank], row[rank] == came);
            tally_add(&d->anywhere[rank], row[rank] == came);
        }
    }
}

static float bias_of(const SamplingOptions *o, int32_t token) {
    float sum = 0;
    for (int32_t i = 0; i < o->n_bias; i++)
        if (o->bias[i].token == token) sum += o->bias[i].bias;
    return sum;
}

/* Computes the probabilities of the n best tokens among themselves, under the request's temperature and filters.
 * Penalties are left out, because they depend on the context and a row does not. */
static void find_shares(const Recycling *d, const SamplingOptions *sampling, const float *logits, const int32_t *tokens,
                        int32_t n, float shares[MAX_K]) {
    float best[MAX_K];
    SamplingOptions o = *sampling;
    o.repeat_penalty = 1;
    o.frequency_penalty = o.presence_penalty = 0;
    o.n_bias = 0;
    for (int32_t i = 0; i < d->k; i++) best[i] = i < n ? logits[tokens[i]] + bias_of(sampling, tokens[i]) : -INFINITY;
    sampler_dist(d->sampler, &o, best, NULL, 0, shares);
}

static void recycle(const Recycling *d, const SamplingOptions *sampling, const VerifiedTree *v, int32_t node) {
    int32_t tokens[MAX_K], n = logits_top_k(v->logits[node], d->n_vocab, d->k, tokens);
    float shares[MAX_K];
    if (n == 0) return; /* no logit is finite */
    Row row = row_of(d, v->tree->nodes[node].token);
    float kept = row.tokens[0] < 0 ? 0 : KEPT;
    find_shares(d, sampling, v->logits[node], tokens, n, shares);
    for (int32_t i = 0; i < n; i++) shares[i] *= 1 - kept;
    mix_into_row(d, row, kept, tokens, shares, n);
}

static int observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    (void)err;
    Recycling *d = (Recycling *)drafter;
    const Noise *noise = noise_of(d, sequence);
    SamplingOptions sampling = SAMPLING_DEFAULT;
    sampling.temperature = 1;
    if (noise->is_known) sampling = noise->sampling;
    count_ranks(d, v);
    bool on_path[TREE_MAX_NODES] = {false};
    for (int32_t depth = 0; depth <= v->verdict->n_path; depth++) on_path[feedback_node(v, depth)] = true;
    for (int32_t i = 0; i < v->tree->n; i++)
        if (!on_path[i]) recycle(d, &sampling, v, i);
    for (int32_t depth = 0; depth <= v->verdict->n_path; depth++) recycle(d, &sampling, v, feedback_node(v, depth));
    return FR_OK;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const Recycling *d = (Recycling *)drafter;
    noise_of(d, sequence)->position += (uint64_t)n;
    return feedback_check_tokens(tokens, n, d->n_vocab, err);
}

static void end(Drafter *drafter, int32_t sequence) { noise_of((Recycling *)drafter, sequence)->is_known = false; }

/* ---- saving: the counts of right guesses, and the rows of the matrix that are known, each after its token ------- */

static bool save(const Drafter *drafter, int32_t sequence, Buf *out) {
    const Recycling *d = (const Recycling *)drafter;
    size_t k = (size_t)d->k;
    (void)sequence;
    bool fits = buf_append(out, d->at, sizeof d->at) && buf_append(out, d->anywhere, sizeof d->anywhere);
    for (int32_t token = 0; token < d->n_vocab && fits; token++) {
        Row row = row_of(d, token);
        if (row.tokens[0] >= 0)
            fits = buf_append(out, &token, sizeof token) && buf_append(out, row.tokens, k * sizeof *row.tokens) &&
                   buf_append(out, row.shares, k * sizeof *row.shares);
    }
    return fits;
}

/* Copies n counts that were saved; `to` is NULL: only checks them. */
static bool load_tallies(Tally *to, size_t n, ByteReader *in) {
    for (size_t i = 0; i < n; i++) {
        Tally t;
        if (!bytes_read(in, &t, sizeof t) || t.n_right < 0 || t.n_right > t.n || t.n >= TALLY_FULL) return false;
        if (to) to[i] = t;
    }
    return true;
}

static bool load_row(const Recycling *d, bool only_checks, ByteReader *in) {
    int32_t token, tokens[MAX_K] = {0};
    float shares[MAX_K] = {0};
    size_t k = (size_t)d->k;
    bool is_sound = bytes_read(in, &token, sizeof token) && token >= 0 && token < d->n_vocab &&
                    bytes_read(in, tokens, k * sizeof *tokens) && bytes_read(in, shares, k * sizeof *shares);
    for (size_t i = 0; i < k && is_sound; i++)
        is_sound = tokens[i] >= -1 && tokens[i] < d->n_vocab && shares[i] >= 0 && shares[i] <= 2;
    if (!is_sound || only_checks) return is_sound;
    Row row = row_of(d, token);
    memcpy(row.tokens, tokens, k * sizeof *tokens);
    memcpy(row.shares, shares, k * sizeof *shares);
    return true;
}

static int load(Drafter *drafter, int32_t sequence, ByteReader *in, fr_error *err) {
    Recycling *d = (Recycling *)drafter;
    bool only_checks = sequence < 0;
    bool is_sound = load_tallies(only_checks ? NULL : &d->at[0][0], (size_t)MAX_DEPTH * MAX_K, in) &&
                    load_tallies(only_checks ? NULL : d->anywhere, MAX_K, in);
    while (is_sound && in->at < in->end) is_sound = load_row(d, only_checks, in);
    return is_sound ? FR_OK : error_set(err, FR_ERR_FORMAT, "the matrix of a drafter is damaged");
}

/* ---- drafting ----------------------------------------------------------------------------------- */

/* The ranks at one depth, the one that is right most often first, with their shares. */
typedef struct Ranks {
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

static void insert_child(Children *c, int32_t token, double chance) {
    int32_t place = c->n++;
    for (; place > 0 && chance > c->chances[place - 1]; place--) {
        c->chances[place] = c->chances[place - 1];
        c->tokens[place] = c->tokens[place - 1];
    }
    c->chances[place] = chance;
    c->tokens[place] = token;
}

static void find_ranked(const Recycling *d, const Ranks *ranks, Row row, Children *out) {
    for (int32_t i = 0; i < d->k; i++)
        if (row.tokens[ranks->rank[i]] >= 0) insert_child(out, row.tokens[ranks->rank[i]], ranks->share[i]);
}

static void find_coupled(const Recycling *d, const GumbelRow *noise, Row row, Children *out) {
    double chances[MAX_K];
    int32_t n = 0;
    while (n < d->k && row.tokens[n] >= 0) n++;
    coupled_chances(noise, row.tokens, row.shares, n, chances);
    for (int32_t i = 0; i < n; i++)
        if (chances[i] > 0) insert_child(out, row.tokens[i], chances[i]);
}

/* What decides which nodes are drafted: the shares of ranks at each depth or, if is_coupled, the noise there. */
typedef struct Draft {
    const Ranks *ranks;
    bool is_coupled;
    GumbelRow noise[MAX_DEPTH];
} Draft;

static void find_children(const Recycling *d, const Draft *draft, const TreeNode *node, Children *out) {
    out->n = out->n_drafted = 0;
    if (node->depth >= d->depth) return;
    Row row = row_of(d, node->token);
    if (draft->is_coupled) find_coupled(d, &draft->noise[node->depth], row, out);
    else find_ranked(d, &draft->ranks[node->depth], row, out);
}

/* Finds the node whose next child has the greatest p_accept; -1 if there is none. */
static int32_t best_parent(const Recycling *d, const Tree *t, double *p_accept) {
    int32_t parent = -1;
    *p_accept = -1;
    for (int32_t i = 0; i < t->n; i++) {
        const Children *c = &d->children[i];
        if (c->n_drafted == c->n) continue;
        double p = (double)t->nodes[i].p_accept * c->chances[c->n_drafted];
        if (p > *p_accept) *p_accept = p, parent = i;
    }
    return parent;
}

static void grow(const Recycling *d, const Draft *draft, int32_t budget, Tree *t) {
    double p_accept;
    int32_t parent;
    find_children(d, draft, &t->nodes[0], &d->children[0]);
    while (t->n <= budget && t->n < TREE_MAX_NODES && (parent = best_parent(d, t, &p_accept)) >= 0) {
        Children *c = &d->children[parent];
        int32_t child = tree_add(t, parent, c->tokens[c->n_drafted++], (float)p_accept, d->base.source);
        find_children(d, draft, &t->nodes[child], &d->children[child]);
    }
}

/* A ratio rule uses random numbers of its own, so that its choice does not depend on the target's noise. */
static void begin_draft(const Recycling *d, int32_t sequence, const Tree *t, Draft *draft) {
    const Noise *noise = noise_of(d, sequence);
    draft->is_coupled = d->coupled && noise->is_known && !t->dists;
    for (int32_t depth = 0; draft->is_coupled && depth < d->depth; depth++)
        gumbel_row_begin(&draft->noise[depth], noise->sampling.seed, RNG_TARGET, noise->position + (uint64_t)depth,
                         d->n_vocab);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    (void)err;
    const Recycling *d = (Recycling *)drafter;
    Ranks ranks[MAX_DEPTH];
    Draft draft = {.ranks = ranks};
    for (int32_t depth = 0; depth < d->depth; depth++) ranks[depth] = sort_ranks(d, depth);
    for (int i = 0; i < n; i++) {
        begin_draft(d, sequences[i], trees[i], &draft);
        grow(d, &draft, budgets[i], trees[i]);
    }
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
    .set_sampling = set_sampling,
    .begin = begin,
    .save = save,
    .load = load,
    .observe_tree = observe_tree,
    .observe = observe,
    .propose = propose,
    .end = end,
    .needs_logits = true,
};
