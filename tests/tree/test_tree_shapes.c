/* test_tree_shapes.c - compares shapes that are fixed in advance with all paths, and the trees of beams with a trie. */
#include "testing.h"
#include "draft_rig.h"

#include "base/rng.h"
#include "tree/tree_shapes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LEVELS = 4, MAX_RANKS = 4, MANY = 16, MAX_PATHS = 4 + 16 + 64 + 256 };

static int greater_first(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Probabilities that fall with the rank, all different. */
static void make_chances(uint64_t seed, int32_t n_levels, int32_t n_ranks, double *chance) {
    for (int32_t d = 0; d < n_levels; d++) {
        double left = 1;
        for (int32_t r = 0; r < n_ranks; r++) {
            double share = 0.3 + 0.6 * rng_uniform(seed, RNG_TEST, (uint64_t)d, (uint32_t)r);
            chance[d * n_ranks + r] = r && left * share > chance[d * n_ranks + r - 1]
                                          ? 0.9 * chance[d * n_ranks + r - 1]
                                          : left * share;
            left -= chance[d * n_ranks + r];
        }
    }
}

/* Returns the products of all paths, the greatest first. */
static int32_t all_products(const double *chance, int32_t n_levels, int32_t n_ranks, double *out) {
    int32_t n = 0, n_before = 1;
    double level[256] = {1};
    for (int32_t d = 0; d < n_levels; d++) {
        double next[256];
        int32_t n_next = 0;
        for (int32_t p = 0; p < n_before; p++)
            for (int32_t r = 0; r < n_ranks; r++) next[n_next++] = level[p] * chance[d * n_ranks + r];
        for (int32_t i = 0; i < n_next; i++) out[n++] = level[i] = next[i];
        n_before = n_next;
    }
    qsort(out, (size_t)n, sizeof *out, greater_first);
    return n;
}

static void check_shape(const StaticTree *t, const double *chance, int32_t n_levels, int32_t n_ranks) {
    bool taken[TREE_MAX_NODES][MANY] = {{false}};
    for (int32_t i = 1; i < t->n; i++) {
        const StaticNode *x = &t->nodes[i], *up = &t->nodes[x->parent];
        assert_true(x->parent >= 0 && x->parent < i && x->depth == up->depth + 1 && x->depth <= n_levels &&
                    x->rank < n_ranks);
        assert_false(taken[x->parent][x->rank]);
        assert_true(x->rank == 0 || taken[x->parent][x->rank - 1]);
        taken[x->parent][x->rank] = true;
        double want = exp(up->log_chance) * chance[up->depth * n_ranks + x->rank];
        assert_true(fabs(exp(x->log_chance) - want) < 1e-12);
    }
}

/* Node i has the i-th greatest product, so that every prefix is the best tree of its size. */
static void nodes_are_ordered_by_their_products(void **state) {
    (void)state;
    static StaticTree t;
    static double products[MAX_PATHS];
    for (uint64_t seed = 0; seed < 20; seed++)
        for (int32_t n_levels = 1; n_levels <= MAX_LEVELS; n_levels++)
            for (int32_t n_ranks = 1; n_ranks <= MAX_RANKS; n_ranks++) {
                double chance[MAX_LEVELS * MAX_RANKS];
                make_chances(seed, n_levels, n_ranks, chance);
                int32_t n = all_products(chance, n_levels, n_ranks, products);
                static_tree_build(&t, chance, n_levels, n_ranks, INT32_MAX);
                assert_int_equal(t.n, n + 1);
                check_shape(&t, chance, n_levels, n_ranks);
                for (int32_t i = 1; i < t.n; i++)
                    if (!(fabs(exp(t.nodes[i].log_chance) - products[i - 1]) < 1e-12))
                        fail_msg("seed %d, %d levels, %d ranks: node %d has %g, expected %g", (int)seed, n_levels,
                                 n_ranks, i, exp(t.nodes[i].log_chance), products[i - 1]);
            }
}

/* Only max_parents nodes of a level have children, and they are the best ones. */
static void parents_are_limited(void **state) {
    (void)state;
    static StaticTree t;
    double chance[MAX_LEVELS * MAX_RANKS];
    for (int32_t max = 1; max <= 3; max++) {
        static_tree_prior(chance, MAX_LEVELS, MAX_RANKS);
        static_tree_build(&t, chance, MAX_LEVELS, MAX_RANKS, max);
        check_shape(&t, chance, MAX_LEVELS, MAX_RANKS);
        bool is_parent[TREE_MAX_NODES] = {false};
        int32_t n_parents[MAX_LEVELS] = {0};
        for (int32_t i = 1; i < t.n; i++) is_parent[t.nodes[i].parent] = true;
        for (int32_t i = 0; i < t.n; i++)
            n_parents[t.nodes[i].depth < MAX_LEVELS ? t.nodes[i].depth : 0] += is_parent[i];
        assert_int_equal(n_parents[0], 1);
        for (int32_t d = 1; d < MAX_LEVELS; d++) assert_int_equal(n_parents[d], max);
        assert_int_equal(t.n, 1 + MAX_RANKS + (MAX_LEVELS - 1) * max * MAX_RANKS);
    }
}

/* The example of tree_shapes.c; ranks of probability 0 are left out; no tree exceeds TREE_MAX_NODES. */
static void edge_cases(void **state) {
    (void)state;
    static StaticTree t;
    static double chance[MANY * MANY];
    static_tree_prior(chance, 2, 2);
    static_tree_build(&t, chance, 2, 2, INT32_MAX);
    const StaticNode want[] = {{-1, 0, 0, 0},
                               {0, 0, 1, log(.6)},
                               {1, 0, 2, log(.36)},
                               {0, 1, 1, log(.24)},
                               {1, 1, 2, log(.144)}};
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(t.nodes[i].parent, want[i].parent);
        assert_int_equal(t.nodes[i].rank, want[i].rank);
        assert_int_equal(t.nodes[i].depth, want[i].depth);
        assert_true(fabs(t.nodes[i].log_chance - want[i].log_chance) < 1e-12);
    }
    const double some[] = {0.5, 0, 0, 0.9, 0.1, 0};
    static_tree_build(&t, some, 2, 3, INT32_MAX);
    assert_int_equal(t.n, 4);
    static_tree_prior(chance, MANY, MANY);
    static_tree_build(&t, chance, MANY, MANY, INT32_MAX);
    assert_int_equal(t.n, TREE_MAX_NODES);
    check_shape(&t, chance, MANY, MANY);
}

enum { MAX_N = 64, MAX_LENGTH = 12, MAX_ALL = MAX_N * MAX_LENGTH };

static int32_t prefix[MAX_ALL], tokens[MAX_ALL], parents[MAX_ALL], depths[MAX_ALL], places[MAX_ALL];
static PackedBeam packed = {.tokens = tokens, .parents = parents, .depths = depths, .places = places};

static void pack(const int32_t *beam, int32_t n, int32_t length) {
    beam_dedup_prefix(beam, n, length, prefix);
    beam_pack(beam, prefix, n, length, &packed);
}

#define assert_ints(got, ...) \
    do { \
        static const int32_t want_[] = {__VA_ARGS__}; \
        assert_memory_equal(got, want_, sizeof want_); \
    } while (0)

/* The example of dedup_prefix in appendix A.1. */
static void the_example_of_the_paper(void **state) {
    (void)state;
    static const int32_t beam[] = {91, 92, 93, 95, 91, 92, 94, 96, 91, 92, 93, 97};
    pack(beam, 3, 4);
    assert_ints(prefix, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 2);
    assert_int_equal(packed.n, 7);
    assert_ints(tokens, 91, 92, 93, 95, 94, 96, 97);
    assert_ints(parents, -1, 0, 1, 2, 1, 4, 2);
    assert_ints(depths, 0, 1, 2, 3, 2, 3, 3);
    assert_ints(places, 0, 1, 2, 3, 0, 1, 4, 5, 0, 1, 2, 6);
}

/* Three candidates of five tokens become eight, as in figure 4 (the tokens are ours). */
static void fifteen_tokens_become_eight(void **state) {
    (void)state;
    static const int32_t beam[] = {1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 7, 8};
    pack(beam, 3, 5);
    assert_int_equal(packed.n, 8);
}

/* Equal tokens after different prefixes stay separate; a token after a new one is new. */
static void only_whole_prefixes_are_shared(void **state) {
    (void)state;
    static const int32_t beam[] = {1, 2, 3, 9, 2, 3, 1, 9, 3};
    pack(beam, 3, 3);
    assert_ints(prefix, 0, 0, 0, 1, 1, 1, 0, 2, 2);
    assert_int_equal(packed.n, 8);
}

static void random_beams_equal_their_tries(void **state) {
    (void)state;
    static Tree trie, got;
    int32_t beam[MAX_ALL], n_shared = 0;
    for (int round = 0; round < 3000; round++) {
        int32_t n = 1 + rig_below(round % 10 ? 12 : MAX_N), length = 1 + rig_below(n > 12 ? 7 : MAX_LENGTH),
                alphabet = 1 + rig_below(5);
        for (int32_t i = 0; i < n * length; i++) beam[i] = rig_below(alphabet);
        tree_reset(&trie, 0);
        for (int32_t i = 0; i < n; i++)
            for (int32_t j = 0, at = 0; j < length; j++) at = tree_add(&trie, at, beam[i * length + j], 0.5f, 0);
        pack(beam, n, length);
        tree_reset(&got, 0);
        for (int32_t k = 0; k < packed.n; k++) {
            assert_true(parents[k] < k);
            assert_int_equal(tree_add(&got, parents[k] + 1, tokens[k], 0.5f, 0), k + 1);
            assert_int_equal(got.nodes[k + 1].depth, depths[k] + 1);
        }
        rig_assert_same_tree(&trie, &got, "a random beam");
        for (int32_t i = 0; i < n * length; i++) {
            int32_t j = i % length;
            assert_int_equal(tokens[places[i]], beam[i]);
            assert_int_equal(parents[places[i]], j ? places[i - 1] : -1);
        }
        n_shared += n * length - packed.n;
    }
    assert_true(n_shared > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_ordered_by_their_products),
        cmocka_unit_test(parents_are_limited),
        cmocka_unit_test(edge_cases),
        cmocka_unit_test(the_example_of_the_paper),
        cmocka_unit_test(fifteen_tokens_become_eight),
        cmocka_unit_test(only_whole_prefixes_are_shared),
        cmocka_unit_test(random_beams_equal_their_tries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
