/* test_union.c - Several trees under one budget: which nodes are merged and which are kept. */
#include "testing.h"

#include "base/rng.h"
#include "tree/tree.h"

#include <math.h>

enum { N_VOCAB = 4, N_TRIALS = 500 };

/* A random tree of up to n nodes below the root. p_accept falls along paths; there are few tokens, so that trees
 * overlap. */
static void random_tree(uint64_t seed, int32_t n, int32_t source, Tree *t) {
    tree_reset(t, 1);
    for (int32_t i = 0; i < n; i++) {
        uint32_t w[4];
        rng_words(seed, RNG_TEST, 0, (uint32_t)i, w);
        int32_t parent = (int32_t)(w[0] % (uint32_t)t->n), token = (int32_t)(w[1] % N_VOCAB);
        if (tree_child(t, parent, token) >= 0) continue;
        tree_add(t, parent, token, t->nodes[parent].p_accept * (float)(w[2] % 9 + 1) / 9, source);
    }
}

/* The node of `in` with the path of node i of `t`, or -1. */
static int32_t find_path(const Tree *in, const Tree *t, int32_t i) {
    if (i == 0) return 0;
    int32_t parent = find_path(in, t, t->nodes[i].parent);
    return parent < 0 ? -1 : tree_child(in, parent, t->nodes[i].token);
}

static void assert_sound(const Tree *t) {
    fr_error err;
    if (tree_validate(t, 1, N_VOCAB, TREE_MAX_NODES, &err)) fail_msg("%s", err.message);
}

static void a_union_has_every_path_with_its_best_p_accept(void **state) {
    (void)state;
    for (uint64_t trial = 0; trial < N_TRIALS; trial++) {
        static Tree a, b, both;
        random_tree(2 * trial, 1 + (int32_t)(trial % 40), 0, &a);
        random_tree(2 * trial + 1, 1 + (int32_t)(trial % 23), 1, &b);
        both = a;
        union_merge(&both, &b);
        assert_sound(&both);
        int32_t n_shared = 0;
        for (int32_t i = 0; i < b.n; i++) {
            int32_t at = find_path(&both, &b, i), in_a = find_path(&a, &b, i);
            assert_true(at >= 0);
            n_shared += in_a >= 0;
            float p_accept = in_a >= 0 ? fmaxf(a.nodes[in_a].p_accept, b.nodes[i].p_accept) : b.nodes[i].p_accept;
            assert_true(both.nodes[at].p_accept == p_accept);
        }
        for (int32_t i = 0; i < a.n; i++) assert_true(find_path(&both, &a, i) >= 0);
        assert_int_equal(both.n, a.n + b.n - n_shared);
    }
}

static void a_full_tree_refuses_nodes(void **state) {
    (void)state;
    static Tree a, b;
    tree_reset(&a, 1);
    tree_reset(&b, 1);
    for (int32_t i = 0; i < TREE_MAX_NODES - 1; i++) tree_add(&a, i, 2, 0.5f, 0);
    for (int32_t i = 0; i < 5; i++) tree_add(&b, i, 3, 0.9f, 1);
    union_merge(&a, &b);
    assert_int_equal(a.n, TREE_MAX_NODES);
    assert_int_equal(tree_child(&a, 0, 3), -1);
}

static void pruning_keeps_the_best_and_a_tree(void **state) {
    (void)state;
    for (uint64_t trial = 0; trial < N_TRIALS; trial++) {
        static Tree t, pruned;
        random_tree(trial, 40, 0, &t);
        int32_t budget = (int32_t)(trial % 45), kept = budget < t.n - 1 ? budget : t.n - 1;
        pruned = t;
        union_prune(&pruned, budget);
        assert_sound(&pruned);
        assert_int_equal(pruned.n, kept + 1);
        float worst_kept = 1;
        for (int32_t i = 1; i < pruned.n; i++) worst_kept = fminf(worst_kept, pruned.nodes[i].p_accept);
        for (int32_t i = 1; i < t.n; i++)
            if (find_path(&pruned, &t, i) < 0 && kept > 0) assert_true(t.nodes[i].p_accept <= worst_kept);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_union_has_every_path_with_its_best_p_accept),
        cmocka_unit_test(a_full_tree_refuses_nodes),
        cmocka_unit_test(pruning_keeps_the_best_and_a_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
