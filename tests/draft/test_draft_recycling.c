/* test_draft_recycling.c - the drafter recycling: compares its matrix, counts, probabilities given the noise and best
 * tree with brute force, on a simulated target. */
#include "feedback_rig.h"

#include "verify/gumbel.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plain versions of the matrix, the counts and the probabilities given the noise ------------ */

enum { MAX_K = 64, MAX_DEPTH = 16 };
typedef struct Count {
    int32_t n, right;
} Count;
typedef struct Plain {
    int32_t k, depth, rows[FEEDBACK_V][MAX_K];
    float shares[FEEDBACK_V][MAX_K];
    bool coupled;
    Count at[MAX_DEPTH][MAX_K], anywhere[MAX_K];
} Plain;

static void plain_open(Plain *p, int32_t k, int32_t depth, bool coupled) {
    memset(p, 0, sizeof *p);
    p->k = k;
    p->depth = depth;
    p->coupled = coupled;
    memset(p->rows, -1, sizeof p->rows);
}

static const float *sorted_row;
static int greater_first(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorted_row[x] != sorted_row[y]) return sorted_row[x] > sorted_row[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The k greatest among the sums of a row and n tokens; among equals, the n tokens come first. */
static void plain_mix(Plain *p, int32_t token, float kept, const int32_t *added, const float *shares, int32_t n) {
    int32_t *row = p->rows[token], order[2 * MAX_K], n_order = 0;
    float sum[FEEDBACK_V] = {0};
    bool is_in[FEEDBACK_V] = {false};
    for (int32_t i = 0; i < n; i++) {
        sum[added[i]] += shares[i];
        order[n_order++] = added[i];
        is_in[added[i]] = true;
    }
    for (int32_t r = 0; r < p->k && row[r] >= 0; r++) {
        sum[row[r]] += kept * p->shares[token][r];
        if (!is_in[row[r]]) order[n_order++] = row[r];
        is_in[row[r]] = true;
    }
    for (int32_t r = 0; r < p->k; r++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n_order; i++)
            if (is_in[order[i]] && (best < 0 || sum[order[i]] > sum[best])) best = order[i];
        row[r] = best;
        p->shares[token][r] = best < 0 ? 0 : sum[best];
        if (best >= 0) is_in[best] = false;
    }
}

static void plain_prompt(Plain *p, const int32_t *tokens, int32_t n) {
    static const float share = 0.3f;
    for (int32_t i = 0; i + 1 < n; i++) plain_mix(p, tokens[i], 1 - share, &tokens[i + 1], &share, 1);
}

/* The top k of the logits as probabilities, at the request's temperature and among its top_k tokens. */
static void plain_recycle(Plain *p, const FeedbackSequence *s, int32_t node) {
    int32_t order[FEEDBACK_V], token = s->tree.nodes[node].token;
    float shares[MAX_K], kept = p->rows[token][0] < 0 ? 0 : 0.5f;
    double t = s->sampling.temperature > 0 ? (double)s->sampling.temperature : 1, weight[MAX_K], sum = 0;
    int32_t n = s->sampling.top_k > 0 && s->sampling.top_k < p->k ? s->sampling.top_k : p->k;
    for (int32_t v = 0; v < FEEDBACK_V; v++) order[v] = v;
    sorted_row = s->rows[node];
    qsort(order, FEEDBACK_V, sizeof *order, greater_first);
    for (int32_t r = 0; r < p->k; r++) {
        weight[r] = r < n ? exp(((double)s->rows[node][order[r]] - (double)s->rows[node][order[0]]) / t) : 0;
        sum += weight[r];
    }
    for (int32_t r = 0; r < p->k; r++) shares[r] = (1 - kept) * (float)(weight[r] / sum);
    plain_mix(p, token, kept, order, shares, p->k);
}

static void plain_count(Count *c, bool right) {
    c->n++;
    c->right += right;
    if (c->n == 4096) c->n /= 2, c->right /= 2;
}

static void plain_observe(Plain *p, const FeedbackSequence *s) {
    const VerifyResult *v = &s->verdict;
    bool on_path[TREE_MAX_NODES] = {true};
    for (int32_t i = 0; i < v->n_path; i++) on_path[v->path[i]] = true;
    for (int32_t depth = 0; depth <= v->n_path && depth < p->depth; depth++) {
        const int32_t *row = p->rows[s->tree.nodes[depth ? v->path[depth - 1] : 0].token];
        for (int32_t r = 0; r < p->k; r++) {
            if (row[r] < 0) continue;
            plain_count(&p->at[depth][r], row[r] == feedback_rig_after(s, depth));
            plain_count(&p->anywhere[r], row[r] == feedback_rig_after(s, depth));
        }
    }
    for (int32_t i = 0; i < s->tree.n; i++)
        if (!on_path[i]) plain_recycle(p, s, i);
    for (int32_t i = 0; i < s->tree.n; i++) /* on a path, parents come first */
        if (on_path[i]) plain_recycle(p, s, i);
}

static double plain_share(const Plain *p, int32_t depth, int32_t rank) {
    static const double prior[8] = {0.35, 0.12, 0.07, 0.05, 0.03, 0.025, 0.02, 0.015};
    Count all = p->anywhere[rank], here = p->at[depth][rank];
    double share = (all.right + 8 * prior[rank < 8 ? rank : 7]) / (all.n + 8);
    return (here.right + 8 * share) / (here.n + 8);
}

/* The probability of each follower of a token at that depth; 0: there is none. */
static void plain_chances(const Plain *p, const FeedbackSequence *s, int32_t token, int32_t depth,
                          double chance[MAX_K]) {
    double sum = 2.0 / 3;
    for (int32_t r = 0; r < p->k; r++) {
        int32_t follower = p->rows[token][r];
        chance[r] = follower < 0 ? 0 : plain_share(p, depth, r);
        if (follower < 0 || !p->coupled || s->sampling.temperature == 0) continue;
        uint64_t position = (uint64_t)(s->n + depth);
        chance[r] = (double)p->shares[token][r] * exp(gumbel_noise(s->sampling.seed, RNG_TARGET, position, follower));
        sum += chance[r];
    }
    for (int32_t r = 0; r < p->k && p->coupled && s->sampling.temperature > 0; r++) chance[r] /= sum;
}

/* Checks that every node has the p_accept that follows from the counts or from the noise, and that no node that was
 * left out has a greater one. */
static void plain_check(const Plain *p, const FeedbackSequence *s, int32_t budget, const char *what) {
    const Tree *t = &s->tree;
    double least = 1, best_out = -1;
    int32_t n_out = 0;
    for (int32_t i = 0; i < t->n; i++) {
        const TreeNode *node = &t->nodes[i];
        if (node->depth >= p->depth) continue;
        int32_t n_children = 0;
        double chance[MAX_K];
        plain_chances(p, s, node->token, node->depth, chance);
        for (int32_t r = 0; r < p->k; r++) {
            int32_t token = p->rows[node->token][r];
            if (!(chance[r] > 0)) continue;
            double p_accept = (double)node->p_accept * chance[r];
            int32_t child = tree_child(t, i, token);
            if (child < 0) {
                n_out++;
                if (p_accept > best_out) best_out = p_accept;
                continue;
            }
            n_children++;
            if (fabs((double)t->nodes[child].p_accept - p_accept) > 1e-5)
                fail_msg("%s: rank %d at depth %d has p_accept %g, want %g", what, r, node->depth,
                         (double)t->nodes[child].p_accept, p_accept);
            if (p_accept < least) least = p_accept;
        }
        for (int32_t c = i + 1; c < t->n; c++) n_children -= t->nodes[c].parent == i;
        if (n_children != 0) fail_msg("%s: node %d has a child that is not in its row", what, i);
    }
    if (t->n - 1 < budget && n_out > 0) fail_msg("%s: %d nodes of %d, and %d left out", what, t->n - 1, budget, n_out);
    if (t->n - 1 > 0 && best_out > least + 1e-6)
        fail_msg("%s: p_accept %g is left out, %g is in", what, best_out, least);
}

/* ---- tests -------------------------------------------------------------------------------------- */

static FeedbackSequence sequences[3];

/* Several sequences in turn, each with its own target and sampling, begin and end, under every budget. */
static void matrix_counts_and_trees_equal_those_of_a_plain_version(void **state) {
    (void)state;
    static Plain plain;
    static const struct {
        const char *spec;
        int32_t k, depth;
        bool prompt, coupled;
    } cases[] = {{"recycling", 32, 10, true, true},
                 {"recycling:k=3,depth=2", 3, 2, true, true},
                 {"recycling:k=16,depth=16,prompt=0", 16, 16, false, true},
                 {"recycling:k=64,coupled=0", 64, 10, true, false},
                 {"recycling:k=8,coupled=0", 8, 10, true, false},
                 {"recycling:k=1", 1, 10, true, true}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Drafter *d = feedback_rig_open(cases[c].spec, FEEDBACK_V, 3);
        plain_open(&plain, cases[c].k, cases[c].depth, cases[c].coupled);
        int32_t n_accepted = 0;
        for (int step = 0; step < 600; step++) {
            FeedbackSequence *s = &sequences[step % 3];
            if (step < 3 || rig_below(40) == 0) {
                if (step >= 3) d->class->end(d, s->id);
                feedback_rig_begin(d, s, step % 3, 1 + (uint64_t)(step % 2), 1 + rig_below(30) + 1);
                if (step % 2 == 0) s->sampling.temperature = 1, s->sampling.seed = (uint64_t)step;
                if (step % 4 == 0) s->sampling.temperature = 0.7f, s->sampling.top_k = 5;
                d->class->set_sampling(d, s->id, &s->sampling, (uint64_t)s->n);
                if (cases[c].prompt) plain_prompt(&plain, s->context, s->n);
            }
            int32_t budget = step % 65;
            char what[64];
            snprintf(what, sizeof what, "%s, step %d", cases[c].spec, step);
            feedback_rig_propose(d, s, budget);
            plain_check(&plain, s, budget, what);
            if (step % 7 == 0) tree_add(&s->tree, 0, rig_below(FEEDBACK_V), 0, 1); /* a node of another drafter */
            feedback_rig_verify(s);
            feedback_rig_observe(d, s);
            plain_observe(&plain, s);
            n_accepted += s->verdict.n_path;
        }
        assert_true(n_accepted > 100);
        drafter_close(d);
    }
}

static FeedbackBands run_bands(const char *spec, float temperature) {
    Drafter *d = feedback_rig_open(spec, FEEDBACK_V, 1);
    FeedbackSequence *s = &sequences[0];
    FeedbackBands bands = {0};
    feedback_rig_begin(d, s, 0, 9, 10);
    s->sampling.temperature = temperature;
    d->class->set_sampling(d, 0, &s->sampling, (uint64_t)s->n);
    for (int step = 0; step < 1000 && s->n < FEEDBACK_MAX_TEXT - 100; step++) {
        feedback_rig_propose(d, s, 24);
        feedback_rig_verify(s);
        feedback_rig_observe(d, s);
        if (step > 100) feedback_rig_count(&bands, s);
    }
    if (temperature == 0)
        assert_true(s->n > 3000); /* a greedy target ends in a loop, in which every token is
                                                     * certain */
    drafter_close(d);
    return bands;
}

/* Without the noise p_accept is the frequency. With it p_accept supposes a rough q, and the simulated target's rows are
 * close to their means: there it must rank well, and the engine calibrates it. */
static void p_accept_matches_the_observed_frequency(void **state) {
    (void)state;
    run_bands("recycling", 0);
    for (int i = 0; i < 2; i++) {
        float temperature = i ? 3 : 1;
        FeedbackBands bands = run_bands("recycling:coupled=0", temperature);
        feedback_rig_check_bands(&bands, 0.08);
        bands = run_bands("recycling", temperature);
        double before = 0;
        for (int32_t b = 0; b < 10; b++) {
            if (bands.n[b] < 100) continue;
            double frequency = bands.right[b] / (double)bands.n[b];
            if (frequency < before - 0.05) fail_msg("band %d: %g are right, below it %g", b, frequency, before);
            before = frequency;
        }
        assert_true(before > 0.7);
    }
}

/* The worked example of draft_recycling.c. */
static void the_example_of_the_essay_holds(void **state) {
    (void)state;
    enum { THE, CAT, DOG, MAN, SAT, RAN, ON };
    const int32_t prompt[] = {THE, MAN, THE, DOG, RAN, CAT, RAN, CAT, SAT, ON, THE, CAT, SAT, THE, CAT};
    Drafter *d = feedback_rig_open("recycling:k=2", 64, 1);
    Tree t;
    assert_int_equal(d->class->begin(d, 0, prompt, sizeof prompt / sizeof *prompt, NULL), FR_OK);
    rig_propose(d, 0, THE, 2, 64, &t);
    assert_int_equal(t.n, 3);
    assert_int_equal(t.nodes[1].token, CAT);
    assert_true(tree_child(&t, 1, SAT) == 2 || tree_child(&t, 0, DOG) == 2);
    rig_propose(d, 0, THE, 6, 64, &t);
    int32_t cat = tree_child(&t, 0, CAT), dog = tree_child(&t, 0, DOG);
    assert_true(cat > 0 && dog > 0 && tree_child(&t, cat, SAT) > 0 && tree_child(&t, cat, RAN) > 0);
    drafter_close(d);
}

/* More tokens are accepted with the noise than without, and under a ratio rule the noise is not used. */
static void the_noise_is_used_where_the_target_draws_with_it(void **state) {
    (void)state;
    int64_t n_accepted[2] = {0};
    for (int coupled = 0; coupled < 2; coupled++) {
        Drafter *d = feedback_rig_open(coupled ? "recycling" : "recycling:coupled=0", FEEDBACK_V, 1);
        FeedbackSequence *s = &sequences[0];
        feedback_rig_begin(d, s, 0, 9, 10);
        s->sampling.temperature = 3;
        d->class->set_sampling(d, 0, &s->sampling, (uint64_t)s->n);
        for (int step = 0; step < 1500; step++) {
            feedback_rig_propose(d, s, 6);
            feedback_rig_verify(s);
            feedback_rig_observe(d, s);
            n_accepted[coupled] += s->verdict.n_path;
        }
        drafter_close(d);
    }
    if (n_accepted[1] < n_accepted[0] * 6 / 5)
        fail_msg("%d accepted with the noise, %d without", (int)n_accepted[1], (int)n_accepted[0]);
    static Plain plain;
    plain_open(&plain, 32, 10, false); /* a tree with distributions depends on the ranks */
    Drafter *d = feedback_rig_open("recycling", FEEDBACK_V, 1);
    DraftDists *dists = draft_dists_new(FEEDBACK_V);
    FeedbackSequence *s = &sequences[0];
    feedback_rig_begin(d, s, 0, 9, 10);
    s->sampling.temperature = 1;
    d->class->set_sampling(d, 0, &s->sampling, (uint64_t)s->n);
    plain_prompt(&plain, s->context, s->n);
    for (int step = 0; step < 50; step++) {
        const int32_t sequence = 0, budget = 20;
        Tree *t = &s->tree;
        tree_reset(t, s->context[s->n - 1]);
        t->dists = dists;
        assert_int_equal(d->class->propose(d, &sequence, &budget, &t, 1, NULL), FR_OK);
        t->dists = NULL;
        plain_check(&plain, s, budget, "a ratio rule");
        feedback_rig_verify(s);
        feedback_rig_observe(d, s);
        plain_observe(&plain, s);
    }
    draft_dists_free(dists);
    drafter_close(d);
}

/* If the noise decides, the budget goes into a chain; if several followers are equally likely, it goes into width. */
static void trees_are_narrow_where_the_noise_decides(void **state) {
    (void)state;
    Drafter *d = feedback_rig_open("recycling", FEEDBACK_V, 1);
    FeedbackSequence *s = &sequences[0];
    double n[2] = {0}, width[2] = {0}, depth[2] = {0}; /* for steps whose best child is unlikely, and likely */
    feedback_rig_begin(d, s, 0, 9, 10);
    s->sampling.temperature = 2;
    d->class->set_sampling(d, 0, &s->sampling, (uint64_t)s->n);
    for (int step = 0; step < 1500; step++) {
        double best = 0;
        int32_t n_children = 0, deepest = 0;
        feedback_rig_propose(d, s, 12);
        for (int32_t i = 1; i < s->tree.n; i++) {
            const TreeNode *node = &s->tree.nodes[i];
            if (node->depth > deepest) deepest = node->depth;
            if (node->depth > 1) continue;
            n_children++;
            if ((double)node->p_accept > best) best = (double)node->p_accept;
        }
        feedback_rig_verify(s);
        feedback_rig_observe(d, s);
        if (best > 0.3 && best < 0.7) continue;
        n[best > 0.5]++;
        width[best > 0.5] += n_children;
        depth[best > 0.5] += deepest;
    }
    assert_true(n[0] > 50 && n[1] > 50);
    if (width[0] / n[0] < 2 * width[1] / n[1] || depth[0] / n[0] > depth[1] / n[1])
        fail_msg("unsure: width %g, depth %g; sure: %g, %g", width[0] / n[0], depth[0] / n[0], width[1] / n[1],
                 depth[1] / n[1]);
    drafter_close(d);
}

static void the_matrix_stays_for_the_next_request(void **state) {
    (void)state;
    Drafter *d = feedback_rig_open("recycling:prompt=0", FEEDBACK_V, 2);
    FeedbackSequence *s = &sequences[0];
    feedback_rig_begin(d, s, 0, 5, 10);
    feedback_rig_propose(d, s, 16);
    assert_int_equal(s->tree.n, 1); /* the matrix is still empty */
    for (int step = 0; step < 60; step++) {
        feedback_rig_propose(d, s, 16);
        feedback_rig_verify(s);
        feedback_rig_observe(d, s);
    }
    d->class->end(d, 0);
    feedback_rig_begin(d, s, 1, 5, 10);
    feedback_rig_propose(d, s, 16);
    assert_int_equal(s->tree.n, 17);
    drafter_close(d);
}

static void it_works_in_the_engine(void **state) {
    (void)state;
    feedback_rig_check_engine("recycling", "lookahead");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrix_counts_and_trees_equal_those_of_a_plain_version),
        cmocka_unit_test(p_accept_matches_the_observed_frequency),
        cmocka_unit_test(the_example_of_the_essay_holds),
        cmocka_unit_test(the_noise_is_used_where_the_target_draws_with_it),
        cmocka_unit_test(trees_are_narrow_where_the_noise_decides),
        cmocka_unit_test(the_matrix_stays_for_the_next_request),
        cmocka_unit_test(it_works_in_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
