/* test_draft_dists.c - the distributions that drafters with a model declare: each is the draft model's own after all
 * filters; tokens follow the distribution declared for them, given everything drawn before; a budget changes the
 * shape of a tree and nothing else. The models are tiny and random, and top-k is 4, so that every outcome occurs
 * often. */
#include "testing.h"

#include "base/hash.h"
#include "model_rig.h"
#include "other_vocab.h"
#include "random_model.h"
#include "draft/models/draft_model.h"
#include "statistics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define A "build/distributions-a.gguf"
#define B "build/distributions-b.gguf"
#define C "build/distributions-c.gguf" /* another vocabulary */

enum { N_VOCAB = 260, TOP_K = 4 };

static const char *const specs[] = {"sps:model=" A ",length=3",
                                    "rsd-c:model=" A ",branch=3-2-1",
                                    "rsd-s:model=" A ",width=3,depth=3",
                                    "spectr:model=" A ",paths=3,length=3",
                                    "specinfer:models=" A "+" B ",length=3",
                                    "specinfer:models=" A ",branch=2-1-2",
                                    "rsd-s:model=" C ",width=3,depth=3"};
enum { SPS, RSD_C, RSD_S, SPECTR, SPECINFER, EXPANSION, OTHER_VOCAB, N_SPECS };

static Gguf *target;
static Weights *weights;
static Device *device;

static int make_models(void **state) {
    (void)state;
    fr_error err;
    RandomModel m = {SMALL_LLAMA, .n_vocab = N_VOCAB, .seed = 5};
    if (random_model_write(&m, A, &err)) fail_msg("%s", err.message);
    m.types[0] = TYPE_Q4_0, m.n_types = 1; /* near the first model, but not the same */
    if (random_model_write(&m, B, &err)) fail_msg("%s", err.message);
    other_vocab_write(A, C, 3);
    target = rig_gguf(A);
    weights = rig_weights(target, NULL);
    device = rig_device(weights, 1);
    return 0;
}

static int remove_models(void **state) {
    (void)state;
    device_close(device);
    rig_weights_close(weights);
    gguf_close(target);
    remove(A);
    remove(B);
    remove(C);
    return 0;
}

static Drafter *open_drafter(const char *spec, int32_t max_sequences) {
    DrafterEnv env = {.n_vocab = N_VOCAB,
                      .max_sequences = max_sequences,
                      .target = target,
                      .weights = weights,
                      .device = device,
                      .n_ctx = 64};
    fr_error err;
    Drafter *d;
    if (drafter_open(&d, spec, &env, 0, &err)) fail_msg("%s", err.message);
    return d;
}

static SamplingOptions sampling_of(uint64_t seed) {
    return (SamplingOptions){.temperature = 1, .top_k = TOP_K, .top_p = 1, .repeat_penalty = 1, .seed = seed};
}

/* The tree, with its distributions, that a drafter draws after `text`, whose next token has that output position. */
static void propose(Drafter *d, const SamplingOptions *o, uint64_t position, const int32_t *text, int32_t n,
                    int32_t budget, DraftDists *dists, Tree *out) {
    fr_error err;
    int32_t sequence = 0;
    d->class->set_sampling(d, 0, o, position);
    if (d->class->begin(d, 0, text, n, &err)) fail_msg("%s", err.message);
    tree_reset(out, text[n - 1]);
    draft_dists_reset(dists);
    out->dists = dists;
    if (d->class->propose(d, &sequence, &budget, &out, 1, &err)) fail_msg("%s", err.message);
    d->class->end(d, 0);
    if (tree_validate(out, text[n - 1], N_VOCAB, budget + 1, &err) || draft_dists_validate(dists, out, &err))
        fail_msg("%s: %s", d->class->name, err.message);
}

static void path_of(const Tree *t, int32_t node, int32_t *tokens) {
    for (int32_t i = node; i > 0; i = t->nodes[i].parent) tokens[t->nodes[i].depth - 1] = t->nodes[i].token;
}

/* ---- the declared distribution is the draft's ------------------------------------------------------------------ */

/* The distribution after text and path, by a model that runs them from the beginning. */
static void fresh_dist(const char *path, const SamplingOptions *o, const int32_t *context, int32_t n, float *dist) {
    static float logits[64 * N_VOCAB];
    Gguf *g = rig_gguf(path);
    Weights *m = rig_weights(g, NULL);
    RigOptions options = rig_options(64, 64);
    options.kv_type = KV_F16;
    Executor *e = rig_executor(m, &options);
    rig_append(e, rig_sequence(e), context, n, 1, N_VOCAB, logits);
    Sampler *s = sampler_new(N_VOCAB);
    sampler_dist(s, o, logits + (size_t)(n - 1) * N_VOCAB, context, n, dist);
    sampler_free(s);
    rig_executor_close(e);
    rig_weights_close(m);
    gguf_close(g);
}

static void dists_are_the_drafts_own(void **state) {
    (void)state;
    enum { N_TEXT = 12 };
    static Tree t;
    static float dist[N_VOCAB], other[N_VOCAB];
    int32_t context[N_TEXT + 8];
    DraftDists *dists = draft_dists_new(N_VOCAB);
    rig_tokens(1, N_VOCAB, context, N_TEXT);
    SamplingOptions o = {.temperature = 0.8f,
                         .top_k = 20,
                         .top_p = 0.95f,
                         .min_p = 0.01f,
                         .repeat_penalty = 1.5f,
                         .penalty_last_n = -1,
                         .seed = 9};
    for (int k = 0; k < OTHER_VOCAB; k++) {
        Drafter *d = open_drafter(specs[k], 1);
        propose(d, &o, 0, context, N_TEXT, 30, dists, &t);
        int32_t n_of_b = 0;
        assert_true(dists->n_draws >= 3);
        for (int32_t i = 0; i < dists->n_draws; i++) {
            const DistDraw *draw = &dists->draws[i];
            int32_t n = N_TEXT + t.nodes[draw->parent].depth;
            path_of(&t, draw->parent, context + N_TEXT);
            fresh_dist(A, &o, context, n, dist);
            fresh_dist(B, &o, context, n, other);
            bool of_b = memcmp(draw->q, other, sizeof other) == 0;
            n_of_b += of_b;
            if (!of_b && memcmp(draw->q, dist, sizeof dist) != 0)
                fail_msg("%s: draw %d has another distribution", specs[k], i);
            assert_int_equal(draw->kind, k == RSD_C || k == RSD_S ? DRAW_WITHOUT_REPLACEMENT : DRAW_IID);
        }
        assert_int_equal(n_of_b, k == SPECINFER ? 3 : 0);
        drafter_close(d);
    }
    draft_dists_free(dists);
}

/* The distribution of a draft model with another vocabulary is that of its own logits, without the tokens that the
 * target does not have. */
static void dists_are_restricted_to_shared_tokens(void **state) {
    (void)state;
    enum { N_TEXT = 6, FIRST_BYTE = 3 };
    static Tree t;
    static float logits[64 * N_VOCAB], restricted[N_VOCAB], dist[N_VOCAB];
    int32_t context[N_TEXT + 8] = {1}, own[N_TEXT + 8];
    SamplingOptions o = {.temperature = 0.8f, .top_k = 200, .top_p = 1, .repeat_penalty = 1.5f, .penalty_last_n = -1};
    for (int i = 1; i < N_TEXT; i++) context[i] = FIRST_BYTE + 3 * (11 + i) + 1; /* bytes that C has */
    DraftDists *dists = draft_dists_new(N_VOCAB);
    Drafter *d = open_drafter(specs[OTHER_VOCAB], 1);
    propose(d, &o, 0, context, N_TEXT, 30, dists, &t);
    assert_true(dists->n_draws >= 3);
    Gguf *g = rig_gguf(C);
    Weights *m = rig_weights(g, NULL);
    RigOptions options = rig_options(64, 64);
    options.kv_type = KV_F16;
    Sampler *s = sampler_new(N_VOCAB);
    for (int32_t i = 0; i < dists->n_draws; i++) {
        const DistDraw *draw = &dists->draws[i];
        int32_t n = N_TEXT + t.nodes[draw->parent].depth;
        path_of(&t, draw->parent, context + N_TEXT);
        for (int32_t k = 0; k < n; k++) own[k] = other_vocab_id(context[k], N_VOCAB);
        Executor *e = rig_executor(m, &options);
        rig_append(e, rig_sequence(e), own, n, 1, N_VOCAB, logits);
        const float *last = logits + (size_t)(n - 1) * N_VOCAB;
        for (int32_t v = 0; v < N_VOCAB; v++)
            restricted[v] = v == 0 || (v > 2 && v % 3 == 0) ? -INFINITY : last[other_vocab_id(v, N_VOCAB)];
        sampler_dist(s, &o, restricted, context, n, dist);
        if (memcmp(draw->q, dist, sizeof dist) != 0)
            for (int32_t v = 0; v < N_VOCAB; v++)
                if (draw->q[v] != dist[v])
                    fail_msg("draw %d, token %d: %g, not %g", i, v, (double)draw->q[v], (double)dist[v]);
        rig_executor_close(e);
    }
    sampler_free(s);
    rig_weights_close(m);
    gguf_close(g);
    drafter_close(d);
    draft_dists_free(dists);
}

/* ---- tokens follow their distributions ------------------------------------------------------------------------- */

/* Draws that had the same distribution and the same history, that is, the same place and the same earlier draws
 * there. */
typedef struct Bucket {
    uint64_t key; /* 0: free */
    int n, n_tokens, counts[TOP_K];
    int32_t tokens[TOP_K];
    double p[TOP_K];
} Bucket;

enum { N_BUCKETS = 1 << 16 };
static Bucket *buckets;

static Bucket *bucket_of(uint64_t key) {
    uint64_t i = key % N_BUCKETS;
    while (buckets[i].key != 0 && buckets[i].key != key) i = (i + 1) % N_BUCKETS;
    buckets[i].key = key;
    return &buckets[i];
}

/* The distribution of a draw given the `n_before` tokens of its group before it. */
static void fill_bucket(Bucket *b, const DistDraw *draw, const int32_t *before, int32_t n_before) {
    double sum = 0;
    for (int32_t v = 0; v < N_VOCAB; v++) {
        bool gone = draw->q[v] == 0;
        for (int32_t i = 0; i < n_before && draw->kind == DRAW_WITHOUT_REPLACEMENT; i++) gone |= before[i] == v;
        if (gone) continue;
        assert_true(b->n_tokens < TOP_K);
        b->tokens[b->n_tokens] = v;
        sum += b->p[b->n_tokens++] = (double)draw->q[v];
    }
    for (int i = 0; i < b->n_tokens; i++) b->p[i] /= sum;
}

/* Returns whether a rule would be offered the node. n_best > 0: only the nodes with the best p_accept are offered
 * (which is wrong). */
static bool is_offered(const Tree *t, int32_t node, int32_t n_best) {
    int32_t n_better = 0;
    for (int32_t i = 1; i < t->n; i++)
        n_better += t->nodes[i].p_accept > t->nodes[node].p_accept ||
                    (t->nodes[i].p_accept == t->nodes[node].p_accept && i < node);
    return n_best == 0 || n_better < n_best;
}

static void count_draws(const Tree *t, int32_t n_best) {
    static int32_t before[TREE_MAX_NODES][8], n_before[TREE_MAX_NODES];
    memset(n_before, 0, sizeof n_before);
    for (int32_t i = 0; i < t->dists->n_draws; i++) {
        const DistDraw *draw = &t->dists->draws[i];
        if (!is_offered(t, draw->child, n_best)) continue;
        int32_t path[8], *n = &n_before[draw->parent], *tokens = before[draw->parent];
        path_of(t, draw->parent, path);
        uint64_t key = hash64(path, (size_t)t->nodes[draw->parent].depth * sizeof *path, 1);
        key = hash64(tokens, (size_t)*n * sizeof *tokens, key + 1);
        key = hash64(draw->q, N_VOCAB * sizeof *draw->q, key);
        Bucket *b = bucket_of(key);
        if (b->n++ == 0) fill_bucket(b, draw, tokens, *n);
        for (int k = 0; k < b->n_tokens; k++) b->counts[k] += b->tokens[k] == t->nodes[draw->child].token;
        tokens[(*n)++] = t->nodes[draw->child].token;
    }
}

/* Returns the chi-square over all buckets in which every outcome is expected 5 times. */
static double chi_square_of_buckets(int *df) {
    double x = 0;
    *df = 0;
    for (int i = 0; i < N_BUCKETS; i++) {
        const Bucket *b = &buckets[i];
        bool enough = b->n > 0 && b->n_tokens > 1;
        for (int k = 0; k < b->n_tokens; k++) enough = enough && b->n * b->p[k] >= 5;
        if (!enough) continue;
        int own_df;
        x += chi_square(b->counts, b->p, b->n_tokens, b->n, &own_df);
        *df += own_df;
    }
    return x;
}

static double draw_often(const char *spec, int32_t budget, int32_t n_best, int *df) {
    enum { N_SEEDS = 12000 };
    static Tree t;
    DraftDists *dists = draft_dists_new(N_VOCAB);
    Drafter *d = open_drafter(spec, 1);
    buckets = calloc(N_BUCKETS, sizeof *buckets);
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        SamplingOptions o = sampling_of(seed);
        propose(d, &o, 0, (const int32_t[]){7}, 1, budget, dists, &t);
        count_draws(&t, n_best);
    }
    double x = chi_square_of_buckets(df);
    free(buckets);
    drafter_close(d);
    draft_dists_free(dists);
    return x;
}

static void tokens_follow_their_dists(void **state) {
    (void)state;
    static const int32_t budgets[N_SPECS] = {3, 8, 8, 8, 5, 7, 8};
    for (int k = 0; k < N_SPECS; k++) {
        int df;
        double x = draw_often(specs[k], budgets[k], 0, &df);
        print_message("%s: chi-square %.0f with %d degrees of freedom, limit %.0f\n", specs[k], x, df,
                      chi_square_limit(df));
        assert_true(df > 10);
        if (x > chi_square_limit(df)) fail_msg("%s: tokens do not follow the declared distributions", specs[k]);
    }
}

/* Control: if trees are cut by p_accept, as the rule `sampled` allows, the remaining tokens are not draws from q. */
static void pruning_by_est_is_detected(void **state) {
    (void)state;
    for (int k = RSD_C; k < N_SPECS; k++) {
        int df;
        double x = draw_often(specs[k], 30, 5, &df);
        if (x < chi_square_limit(df)) fail_msg("%s: chi-square %g, limit %g", specs[k], x, chi_square_limit(df));
    }
}

/* A token that was drawn for the step after next is not drawn again when that step comes: if the first tree is x, y and
 * x is accepted, the root of the second tree draws independently of y. */
static void noise_is_used_once(void **state) {
    (void)state;
    enum { N_SEEDS = 12000 };
    static Tree t;
    DraftDists *dists = draft_dists_new(N_VOCAB);
    Drafter *d = open_drafter(specs[SPS], 1);
    buckets = calloc(N_BUCKETS, sizeof *buckets);
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        SamplingOptions o = sampling_of(seed);
        propose(d, &o, 0, (const int32_t[]){7}, 1, 3, dists, &t);
        int32_t text[2] = {7, t.nodes[1].token}, first[2] = {t.nodes[1].token, t.nodes[2].token};
        propose(d, &o, 1, text, 2, 3, dists, &t);
        const DistDraw *draw = &dists->draws[0];
        Bucket *b = bucket_of(hash64(first, sizeof first, 1));
        if (b->n++ == 0) fill_bucket(b, draw, NULL, 0);
        for (int k = 0; k < b->n_tokens; k++) b->counts[k] += b->tokens[k] == t.nodes[1].token;
    }
    int df;
    double x = chi_square_of_buckets(&df);
    if (df < 10 || x > chi_square_limit(df)) fail_msg("chi-square %g with %d degrees of freedom", x, df);
    free(buckets);
    drafter_close(d);
    draft_dists_free(dists);
}

/* ---- budgets ------------------------------------------------------------------------------------------- */

/* Returns the node of `t` at the same place as `node` of `cut`, or -1. */
static int32_t same_place(const Tree *t, const Tree *cut, int32_t node) {
    int32_t path[8], at = 0;
    path_of(cut, node, path);
    for (int32_t i = 0; i < cut->nodes[node].depth && at >= 0; i++) at = tree_child(t, at, path[i]);
    return at;
}

/* A budget keeps some of the whole tree's draws: whole levels from the root on, then a part of one. specinfer divides
 * its budget among its models, each of which does this. */
static void budgets_cut_the_shape(void **state) {
    (void)state;
    static Tree whole, cut;
    DraftDists *dists = draft_dists_new(N_VOCAB), *cut_dists = draft_dists_new(N_VOCAB);
    for (int k = 0; k < N_SPECS; k++) {
        Drafter *d = open_drafter(specs[k], 1);
        for (uint64_t seed = 0; seed < 20; seed++) {
            SamplingOptions o = sampling_of(seed);
            propose(d, &o, 0, (const int32_t[]){7}, 1, 40, dists, &whole);
            for (int32_t budget = 0; budget < 20; budget++) {
                propose(d, &o, 0, (const int32_t[]){7}, 1, budget, cut_dists, &cut);
                int32_t n_whole = dists->n_draws;
                assert_int_equal(cut_dists->n_draws, budget < n_whole ? budget : n_whole);
                int32_t n_at[2][8] = {{0}}, last = 0;
                for (int32_t i = 0; i < n_whole; i++) n_at[0][whole.nodes[dists->draws[i].child].depth]++;
                for (int32_t i = 0; i < cut_dists->n_draws; i++) n_at[1][cut.nodes[cut_dists->draws[i].child].depth]++;
                for (int depth = 1; depth < 8; depth++)
                    if (n_at[1][depth] > 0) last = depth;
                for (int depth = 1; depth < last; depth++) assert_int_equal(n_at[1][depth], n_at[0][depth]);
                for (int32_t i = 1; i < cut.n; i++) assert_true(same_place(&whole, &cut, i) > 0);
            }
        }
        drafter_close(d);
    }
    draft_dists_free(dists);
    draft_dists_free(cut_dists);
}

/* ---- other properties --------------------------------------------------------------------------------- */

static void several_draws_can_be_one_node(void **state) {
    (void)state;
    static Tree t;
    int n_shared[N_SPECS] = {0};
    DraftDists *dists = draft_dists_new(N_VOCAB);
    for (int k = SPECTR; k <= SPECINFER; k++) {
        Drafter *d = open_drafter(k == SPECTR ? specs[k] : "specinfer:models=" A "+" A ",length=3", 1);
        for (uint64_t seed = 0; seed < 50; seed++) {
            SamplingOptions o = sampling_of(seed);
            propose(d, &o, 0, (const int32_t[]){7}, 1, 30, dists, &t);
            int32_t passing[TREE_MAX_NODES] = {k == SPECTR ? 3 : 2}, drawn[TREE_MAX_NODES] = {0};
            for (int32_t i = 0; i < dists->n_draws; i++)
                passing[dists->draws[i].child]++, drawn[dists->draws[i].parent]++;
            for (int32_t i = 0; i < t.n; i++) {
                assert_int_equal(drawn[i], t.nodes[i].depth < 3 ? passing[i] : 0);
                n_shared[k] += i > 0 && passing[i] > 1;
            }
        }
        drafter_close(d);
    }
    assert_true(n_shared[SPECTR] > 20 && n_shared[SPECINFER] > 20);
    draft_dists_free(dists);
}

static void greedy_trees_are_points(void **state) {
    (void)state;
    static Tree t;
    DraftDists *dists = draft_dists_new(N_VOCAB);
    for (int k = 0; k < N_SPECS; k++) {
        Drafter *d = open_drafter(specs[k], 1);
        propose(d, &SAMPLING_DEFAULT, 0, (const int32_t[]){7}, 1, 6, dists, &t);
        assert_int_equal(dists->n_draws, 0);
        assert_true(t.n > 3);
        if (k == SPECTR) assert_int_equal(t.n, 4); /* its paths are the same */
        drafter_close(d);
    }
    draft_dists_free(dists);
}

/* Under a rule that needs distributions the draw does not depend on `coupled`. */
static void dists_are_never_coupled(void **state) {
    (void)state;
    static Tree t[2];
    DraftDists *dists = draft_dists_new(N_VOCAB);
    for (int k = 0; k < N_SPECS; k++) {
        if (k == SPECTR) continue;
        for (int coupled = 0; coupled < 2; coupled++) {
            char spec[128];
            snprintf(spec, sizeof spec, "%s,coupled=%d", specs[k], coupled);
            Drafter *d = open_drafter(spec, 1);
            SamplingOptions o = sampling_of(3);
            propose(d, &o, 0, (const int32_t[]){7}, 1, 30, dists, &t[coupled]);
            drafter_close(d);
        }
        assert_int_equal(t[0].n, t[1].n);
        assert_memory_equal(t[0].nodes, t[1].nodes, (size_t)t[0].n * sizeof *t[0].nodes);
    }
    draft_dists_free(dists);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dists_are_the_drafts_own),
        cmocka_unit_test(dists_are_restricted_to_shared_tokens),
        cmocka_unit_test(tokens_follow_their_dists),
        cmocka_unit_test(pruning_by_est_is_detected),
        cmocka_unit_test(noise_is_used_once),
        cmocka_unit_test(budgets_cut_the_shape),
        cmocka_unit_test(several_draws_can_be_one_node),
        cmocka_unit_test(greedy_trees_are_points),
        cmocka_unit_test(dists_are_never_coupled),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
