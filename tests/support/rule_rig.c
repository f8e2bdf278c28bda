/* rule_rig.c - enumerates all drafts and all random numbers of a verification rule, and sums the distribution of its
 * output. */
#include "rule_rig.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = RIG_MAX_VOCAB, MAX_PREFIXES = 1 + 5 + 25 + 125 + 625 + 3125 };

const SamplingOptions RIG_PLAIN = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};

/* The values that are computed once for a case. Prefixes (texts after the prompt) are numbered: the empty one is 0, the
 * one that adds token t to prefix c is c * n_vocab + 1 + t. */
typedef struct Rig {
    const RigCase *c;
    VerifyScratch *scratch;
    DraftDists *dists;
    Tree tree;
    VerifyResult result;
    TokenMask *mask; /* one word of bits */
    RandomScript script;
    int32_t prefix_of[TREE_MAX_NODES]; /* the prefix of each node of the tree */
    bool has_dists[MAX_PREFIXES];
    float logits[MAX_PREFIXES][V];
    double p[MAX_PREFIXES][V];
    float q[MAX_PREFIXES][RIG_MAX_DRAFTS][V]; /* a distribution for each draft of a group that has its own */
    double emitted[MAX_PREFIXES];             /* probability that exactly this text is emitted */
    double noise[RIG_MAX_TEXT];               /* the random numbers of this run, by position; negative: not drawn yet */
} Rig;

/* Computes the logits after a prefix: those of the target if what is 0, else those of draft number `what`. */
static void logits_of(const Rig *r, int32_t prefix, uint64_t what, float *logits) {
    const float *fixed = what ? r->c->draft_logits : r->c->target_logits;
    if (fixed) memcpy(logits, fixed, (size_t)r->c->n_vocab * sizeof *logits);
    for (int32_t t = 0; t < r->c->n_vocab && !fixed; t++) {
        uint64_t key[] = {r->c->seed, (uint64_t)prefix, what, (uint64_t)t};
        logits[t] = (float)(hash64(key, sizeof key, 7) % 10007) / 10007 * 3;
    }
}

/* Chooses the tokens that may follow a prefix, at least one. */
static const TokenMask *mask_of(Rig *r, int32_t prefix) {
    uint64_t key[] = {r->c->seed, (uint64_t)prefix}, all = ((uint64_t)1 << r->c->n_vocab) - 1;
    uint64_t hash = hash64(key, sizeof key, 9);
    r->mask->bits[0] = (hash & all) | (uint64_t)1 << (hash >> 32) % (uint64_t)r->c->n_vocab;
    r->mask->n_allowed = __builtin_popcountll(r->mask->bits[0]);
    return r->mask;
}

static const TokenMask *mask_after(void *user, int32_t node) { return mask_of(user, ((Rig *)user)->prefix_of[node]); }

/* Returns the context of a prefix; returns its length. */
static int64_t context_of(const Rig *r, int32_t prefix, int32_t *context) {
    int32_t path[RIG_MAX_TEXT], n = 0;
    for (int32_t c = prefix; c > 0; c = (c - 1) / r->c->n_vocab) path[n++] = (c - 1) % r->c->n_vocab;
    for (int32_t i = 0; i < RIG_N_PROMPT; i++) context[i] = i % r->c->n_vocab;
    for (int32_t i = 0; i < n; i++) context[RIG_N_PROMPT + i] = path[n - 1 - i];
    return RIG_N_PROMPT + n;
}

static void need_dists(Rig *r, int32_t prefix) {
    assert_true(prefix < MAX_PREFIXES);
    if (r->has_dists[prefix]) return;
    r->has_dists[prefix] = true;
    int32_t context[RIG_N_PROMPT + RIG_MAX_TEXT], n_vocab = r->c->n_vocab;
    int64_t n_context = context_of(r, prefix, context);
    float dist[V], draft_logits[V];
    logits_of(r, prefix, 0, r->logits[prefix]);
    float masked[V];
    memcpy(masked, r->logits[prefix], sizeof masked);
    if (r->c->masked) token_mask_apply(mask_of(r, prefix), r->logits[prefix], n_vocab, masked);
    sampler_dist(r->scratch->sampler, &r->c->target, masked, context, n_context, dist);
    double sum = 0;
    for (int32_t t = 0; t < n_vocab; t++) sum += (double)dist[t];
    for (int32_t t = 0; t < n_vocab; t++) r->p[prefix][t] = (double)dist[t] / sum;
    for (uint64_t i = 0; i < RIG_MAX_DRAFTS; i++) {
        logits_of(r, prefix, 1 + i, draft_logits);
        sampler_dist(r->scratch->sampler, &r->c->draft, draft_logits, context, n_context, r->q[prefix][i]);
    }
}

/* ---- the drafter -------------------------------------------------------------------------------- */

static DrawKind kind_of(const RigLevel *level, int32_t node) {
    return level->mixes ? (DrawKind)(((int32_t)level->kind + node) % 3) : level->kind;
}

/* Picks the next token of a group from the weights `left`; -1: none is left. */
static int32_t pick_token(DrawKind kind, double *left, int32_t n_vocab, RandomSource *random_source) {
    int32_t token = 0;
    for (int32_t t = 1; t < n_vocab; t++)
        if (left[t] > left[token]) token = t;
    if (!(left[token] > 0)) return -1;
    if (kind != DRAW_POINT) token = random_source->pick(random_source, left, n_vocab);
    if (kind != DRAW_IID) left[token] = 0;
    return token;
}

/* Returns the declared row: q itself, or for a negative control another row with the same support. */
static const float *declared(Rig *r, const float *q) {
    if (r->c->fault != RIG_Q_PERTURBED) return q;
    float *row = draft_dists_row(r->dists);
    for (int32_t t = 0; t < r->c->n_vocab; t++) row[t] = q[t] * (t % 2 ? 1.3f : 0.9f);
    return row;
}

static int32_t repeated(const Rig *r, int32_t node, int32_t i, int32_t first, const float *q) {
    if (r->c->fault != RIG_REUSED) return -1;
    if (i > 0) return first;
    int32_t token = r->tree.nodes[node].token;
    return node > 0 && r->c->levels[r->tree.nodes[node].depth].k == 1 && q[token] > 0 ? token : -1;
}

static void draft_group(Rig *r, int32_t node, RandomSource *random_source) {
    const RigLevel *level = &r->c->levels[r->tree.nodes[node].depth];
    DrawKind kind = kind_of(level, node), declared_kind = r->c->fault == RIG_KIND_WRONG ? DRAW_IID : kind;
    int32_t prefix = r->prefix_of[node], first = -1;
    double left[V];
    const float *row = NULL;
    need_dists(r, prefix);
    for (int32_t i = 0; i < level->k; i++) {
        const float *q = r->q[prefix][level->own_dists && kind == DRAW_IID ? i : 0];
        if (i == 0 || (level->own_dists && kind == DRAW_IID)) {
            for (int32_t t = 0; t < r->c->n_vocab; t++) left[t] = (double)q[t];
            row = declared_kind == DRAW_POINT ? NULL : declared(r, q);
        }
        int32_t token = repeated(r, node, i, first, q);
        if (token < 0) token = pick_token(kind, left, r->c->n_vocab, random_source);
        if (token < 0) return;
        if (i == 0) first = token;
        int32_t child = tree_add(&r->tree, node, token, 1, 0);
        r->prefix_of[child] = prefix * r->c->n_vocab + 1 + token;
        if (declared_kind != DRAW_POINT || !r->c->no_dists) draft_dists_add(r->dists, node, child, declared_kind, row);
    }
}

/* ---- pruned trees ---------------------------------------------------------------------------------------
 *
 * The values of the nodes, from the greatest to the least, are the times at which they arrive in a race: the
 * children of a node of path probability m arrive with rates m q(x), and the first of them arrives together with its
 * parent (stochastic beam search, gumbel.c). Such races have no memory. So the order of all nodes is enumerated by
 * picking the group in which the next node arrives, in proportion to the sums of the rates, and then the token. */

typedef struct Race {
    int32_t size[TREE_MAX_NODES], n_arrived[TREE_MAX_NODES]; /* [node] its group */
    double mass[TREE_MAX_NODES];                             /* the probability of each node's path under the drafter */
    int32_t n_kept[RIG_MAX_LEVELS], n_groups[RIG_MAX_LEVELS];
    int32_t n_promised; /* whole groups: nodes that have arrived or will */
} Race;

static int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }

/* Returns the number of children that are kept of a node that has arrived. */
static int32_t size_of_group(const Rig *r, Race *x, int32_t depth) {
    const RigLevel *level = &r->c->levels[depth];
    int32_t left = r->c->budget ? r->c->budget - x->n_promised : level->k, size = level->k;
    if (r->c->pruning == RIG_BY_RANK) return size;
    if (level->width) {
        size = x->n_groups[depth]++ == 0 ? 2 : 1;
        left = min(left, level->width - x->n_kept[depth]);
        x->n_kept[depth] += min(size, left);
    }
    return min(size, left);
}

/* Returns the q of the tokens that have not arrived in a node's group, and their sum. */
static double rest_of_group(Rig *r, int32_t node, double *rest) {
    int32_t prefix = r->prefix_of[node];
    double all = 0, sum = 0;
    need_dists(r, prefix);
    for (int32_t t = 0; t < r->c->n_vocab; t++) all += (double)r->q[prefix][0][t];
    for (int32_t t = 0; t < r->c->n_vocab; t++)
        rest[t] = tree_child(&r->tree, node, t) < 0 ? (double)r->q[prefix][0][t] / all : 0;
    for (int32_t t = 0; t < r->c->n_vocab; t++) sum += rest[t];
    return sum;
}

/* The next child of a node arrives, and with it its first child, and so on. */
static void arrive(Rig *r, Race *x, int32_t node, RandomSource *random_source) {
    double rest[V];
    for (int32_t depth = r->tree.nodes[node].depth; depth < r->c->n_levels; depth++) {
        const RigLevel *level = &r->c->levels[depth];
        bool by_rank = r->c->pruning == RIG_BY_RANK,
             is_full = by_rank && ((level->width && x->n_kept[depth] == level->width) ||
                                   (r->c->budget && r->tree.n - 1 == r->c->budget));
        if (is_full || x->size[node] == 0 || !(rest_of_group(r, node, rest) > 0)) {
            x->size[node] = x->n_arrived[node];
            return;
        }
        int32_t token = random_source->pick(random_source, rest, r->c->n_vocab), prefix = r->prefix_of[node];
        int32_t child = tree_add(&r->tree, node, token, 1, 0);
        draft_dists_add(r->dists, node, child, level->kind, r->q[prefix][0]);
        r->prefix_of[child] = prefix * r->c->n_vocab + 1 + token;
        x->mass[child] = x->mass[node] * rest[token];
        x->n_arrived[node]++;
        x->n_kept[depth] += by_rank;
        x->n_arrived[child] = 0;
        x->size[child] = depth + 1 < r->c->n_levels ? size_of_group(r, x, depth + 1) : 0;
        x->n_promised += x->size[child];
        node = child;
    }
}

/* A beam that is pruned by rank ends when its last level is full. */
static bool is_over(const Rig *r, const Race *x) {
    int32_t last = r->c->n_levels - 1;
    if (r->c->pruning != RIG_BY_RANK) return false;
    return (r->c->budget && r->tree.n - 1 == r->c->budget) ||
           (r->c->levels[last].width && r->c->levels[0].width == 0 && x->n_kept[last] == r->c->levels[last].width);
}

static void draft_pruned_tree(Rig *r, RandomSource *random_source) {
    static Race x;
    double rates[TREE_MAX_NODES], rest[V];
    memset(&x, 0, sizeof x);
    x.mass[0] = 1;
    x.n_promised = x.size[0] = size_of_group(r, &x, 0);
    arrive(r, &x, 0, random_source);
    while (!is_over(r, &x)) {
        double sum = 0;
        for (int32_t i = 0; i < r->tree.n; i++) {
            bool is_open = x.n_arrived[i] < x.size[i];
            rates[i] = is_open ? x.mass[i] * rest_of_group(r, i, rest) : 0;
            if (is_open && !(rates[i] > 0)) x.size[i] = x.n_arrived[i];
            sum += rates[i];
        }
        if (!(sum > 0)) return;
        arrive(r, &x, random_source->pick(random_source, rates, r->tree.n), random_source);
    }
}

/* Drafts a tree after the text `prefix`. */
static void draft_tree(Rig *r, int32_t prefix, RandomSource *random_source) {
    int32_t context[RIG_N_PROMPT + RIG_MAX_TEXT];
    int64_t n = context_of(r, prefix, context);
    draft_dists_reset(r->dists);
    tree_reset(&r->tree, context[n - 1]);
    r->tree.dists = r->dists;
    r->prefix_of[0] = prefix;
    if (r->c->pruning) draft_pruned_tree(r, random_source);
    for (int32_t i = 0; i < r->tree.n && !r->c->pruning; i++)
        if (r->tree.nodes[i].depth < r->c->n_levels) draft_group(r, i, random_source);
}

/* ---- the rule ----------------------------------------------------------------------------------- */

/* The random source of a rule with a wrong residual. */
typedef struct BrokenRandom {
    RandomSource random_source;
    Rig *rig;
} BrokenRandom;

static bool broken_flip(RandomSource *random_source, double chance) {
    RandomSource *script = &((BrokenRandom *)random_source)->rig->script.random_source;
    return script->flip(script, chance);
}

static int32_t broken_pick(RandomSource *random_source, const double *weights, int32_t n) {
    Rig *r = ((BrokenRandom *)random_source)->rig;
    double w[V], sum = 0;
    for (int32_t t = 0; t < n; t++) sum += weights[t];
    for (int32_t t = 0; t < n; t++)
        w[t] = r->c->fault == RIG_NOT_SUBTRACTED ? (double)r->scratch->dist[t]
                                                 : weights[t]; /* the last distribution computed */
    if (r->c->fault == RIG_NOT_NORMALISED && sum < 1) w[n - 1] += 1 - sum;
    return r->script.random_source.pick(&r->script.random_source, w, n);
}

/* Verifies the tree; returns the prefix of the emitted text. */
static int32_t verify(Rig *r, const VerifyRule *rule, RandomSource *random_source) {
    const float *logits[TREE_MAX_NODES];
    int32_t context[RIG_N_PROMPT + TREE_MAX_NODES + 1];
    for (int32_t i = 0; i < r->tree.n; i++) {
        need_dists(r, r->prefix_of[i]);
        logits[i] = r->logits[r->prefix_of[i]];
    }
    const VerifyMasks masks = {r, mask_after};
    VerifyInput in = {.tree = &r->tree,
                      .logits = logits,
                      .n_vocab = r->c->n_vocab,
                      .sampling = &r->c->target,
                      .context = context,
                      .n_context = context_of(r, r->prefix_of[0], context),
                      .random_source = random_source,
                      .options.gamma = r->c->gamma,
                      .masks = r->c->masked && r->c->fault != RIG_NOT_MASKED ? &masks : NULL};
    fr_error err;
    if (rule->verify(&in, r->scratch, &r->result, &err)) fail_msg("%s: %s", rule->name, err.message);
    int32_t node = r->result.n_path ? r->result.path[r->result.n_path - 1] : 0;
    assert_int_equal(r->tree.nodes[node].depth, r->result.n_path);
    return r->prefix_of[node] * r->c->n_vocab + 1 + r->result.next_token;
}

static Rig *rig_open(const RigCase *c) {
    Rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->c = c;
    r->scratch = verify_scratch_new(c->n_vocab);
    r->dists = draft_dists_new(c->n_vocab);
    r->mask = calloc(1, sizeof *r->mask + sizeof(uint64_t));
    assert_true(r->scratch && r->dists && r->mask);
    return r;
}

static void rig_close(Rig *r) {
    verify_scratch_free(r->scratch);
    draft_dists_free(r->dists);
    free(r->mask);
    free(r);
}

/* ---- sums --------------------------------------------------------------------------------------- */

/* Completes emitted texts by the target's distributions up to `depth` more tokens; returns the greatest difference of
 * the probabilities of the full texts from `want`, the target's. */
static double compare(Rig *r, int32_t prefix, double emitted, double want, int32_t depth) {
    emitted += r->emitted[prefix];
    if (depth == 0) return fabs(emitted - want);
    need_dists(r, prefix);
    double worst = 0;
    for (int32_t t = 0; t < r->c->n_vocab; t++) {
        double p = r->p[prefix][t], e = compare(r, prefix * r->c->n_vocab + 1 + t, emitted * p, want * p, depth - 1);
        if (e > worst) worst = e;
    }
    return worst;
}

double rig_dist_error(const RigCase *c, const VerifyRule *rule, double *n_kept) {
    Rig *r = rig_open(c);
    BrokenRandom broken = {{broken_flip, broken_pick}, r};
    double kept = 0, all = 0;
    fr_error err;
    random_script_begin(&r->script);
    do {
        draft_tree(r, 0, &r->script.random_source);
        if (c->fault == RIG_NO_FAULT && draft_dists_validate(r->dists, &r->tree, &err)) fail_msg("%s", err.message);
        int32_t prefix = verify(r, rule,
                                c->fault < RIG_NOT_SUBTRACTED || c->fault == RIG_NOT_MASKED ? &r->script.random_source
                                                                                            : &broken.random_source);
        r->emitted[prefix] += r->script.chance;
        kept += r->script.chance * r->result.n_path;
        all += r->script.chance;
    } while (random_script_next(&r->script));
    double error = compare(r, 0, 0, 1, c->n_levels + 1);
    if (fabs(all - 1) > error) error = fabs(all - 1);
    if (n_kept) *n_kept = kept;
    rig_close(r);
    return error;
}

static int32_t length_of(const Rig *r, int32_t prefix) {
    int32_t n = 0;
    for (; prefix > 0; prefix = (prefix - 1) / r->c->n_vocab) n++;
    return n;
}

/* The random source of a drafter over two tokens: each position of the text has one uniform number, and a draft there
 * is token 0 if the number is below q(0). It only matters between which q(0) of the possible texts the number lies. */
typedef struct NoiseRandom {
    RandomSource random_source;
    Rig *rig;
} NoiseRandom;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double noise_at(Rig *r, int32_t position) {
    double cuts[1 + (1 << RIG_MAX_TEXT)], widths[1 + (1 << RIG_MAX_TEXT)];
    int32_t n = 0;
    cuts[n++] = 0;
    for (int32_t prefix = (1 << position) - 1; prefix < (2 << position) - 1; prefix++) { /* texts of this length */
        need_dists(r, prefix);
        double q0 = (double)r->q[prefix][0][0], q1 = (double)r->q[prefix][0][1];
        cuts[n++] = q0 / (q0 + q1);
    }
    qsort(cuts, (size_t)n, sizeof *cuts, by_value);
    for (int32_t i = 0; i < n; i++) widths[i] = (i + 1 < n ? cuts[i + 1] : 1) - cuts[i];
    int32_t i = r->script.random_source.pick(&r->script.random_source, widths, n);
    return cuts[i] + widths[i] / 2;
}

static int32_t noise_pick(RandomSource *random_source, const double *weights, int32_t n) {
    Rig *r = ((NoiseRandom *)random_source)->rig;
    int32_t position = length_of(r, r->prefix_of[r->tree.n - 1]); /* chains: the draft is a child of the last node */
    assert_int_equal(n, 2);
    if (r->noise[position] < 0) r->noise[position] = noise_at(r, position);
    return r->noise[position] < weights[0] / (weights[0] + weights[1]) ? 0 : 1;
}

double rig_text_error(const RigCase *c, const VerifyRule *rule, int32_t n_tokens, bool noise_returns) {
    Rig *r = rig_open(c);
    NoiseRandom noise = {{NULL, noise_pick}, r};
    assert_true(n_tokens + c->n_levels < RIG_MAX_TEXT);
    random_script_begin(&r->script);
    do {
        int32_t prefix = 0;
        for (int i = 0; i < RIG_MAX_TEXT; i++) r->noise[i] = -1;
        while (length_of(r, prefix) < n_tokens) {
            draft_tree(r, prefix, noise_returns ? &noise.random_source : &r->script.random_source);
            prefix = verify(r, rule, &r->script.random_source);
        }
        while (length_of(r, prefix) > n_tokens) prefix = (prefix - 1) / c->n_vocab;
        r->emitted[prefix] += r->script.chance;
    } while (random_script_next(&r->script));
    double error = compare(r, 0, 0, 1, n_tokens);
    rig_close(r);
    return error;
}

int32_t rig_step(const RigCase *c, const VerifyRule *rule, uint64_t random_seed, int32_t *tokens) {
    Rig *r = rig_open(c);
    KeyedRandom drafts, random_source;
    random_keyed(&drafts, random_seed, 1);
    random_keyed(&random_source, random_seed, 0);
    draft_tree(r, 0, &drafts.random_source);
    int32_t prefix = verify(r, rule, &random_source.random_source), n = r->result.n_path + 1;
    for (int32_t i = n - 1; i >= 0; i--, prefix = (prefix - 1) / c->n_vocab) tokens[i] = (prefix - 1) % c->n_vocab;
    rig_close(r);
    return n;
}

/* ---- checks --------------------------------------------------------------------------------------- */

static double worst;
static int64_t n_checks;

static void describe(const RigCase *c, const VerifyRule *rule, char *text, size_t size) {
    int n = snprintf(text, size, "%s, seed %d, V %d, gamma %g, top-k %d/%d, top-p %g/%g, levels", rule->name,
                     (int)c->seed, c->n_vocab, c->gamma, c->target.top_k, c->draft.top_k, (double)c->target.top_p,
                     (double)c->draft.top_p);
    for (int32_t i = 0; i < c->n_levels && n > 0 && (size_t)n < size; i++)
        n += snprintf(text + n, size - (size_t)n, " %s%s%s x %d",
                      c->levels[i].kind == DRAW_POINT ? "point"
                      : c->levels[i].kind == DRAW_IID ? "iid"
                                                      : "without",
                      c->levels[i].own_dists ? "*" : "", c->levels[i].mixes ? "~" : "", c->levels[i].k);
}

double rig_check(const RigCase *c, const char *name) {
    char text[300];
    double kept;
    const VerifyRule *rule = verify_rule_find(name);
    double error = rig_dist_error(c, rule, &kept);
    describe(c, rule, text, sizeof text);
    if (!(error <= RIG_TOLERANCE)) fail_msg("the distribution is wrong by %g: %s", error, text);
    if (error > worst) worst = error;
    n_checks++;
    return kept;
}

void rig_check_groups(RigCase *c, int32_t k) {
    c->n_levels = 1;
    for (DrawKind kind = DRAW_POINT; kind <= DRAW_WITHOUT_REPLACEMENT; kind++) {
        c->levels[0] = (RigLevel){.kind = kind, .k = k};
        c->no_dists = c->seed % 2;
        rig_check(c, "recursive");
        rig_check(c, "transport");
        if (kind != DRAW_WITHOUT_REPLACEMENT) rig_check(c, "multi-round");
        if (k > 1) continue;
        rig_check(c, "chain");
        rig_check(c, "block");
        rig_check(c, "k-seq");
    }
}

void rig_print_checks(void) {
    print_message("%lld enumerated cases, the greatest error of a distribution %.1e\n", (long long)n_checks, worst);
}
