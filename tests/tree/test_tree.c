/* test_tree.c - building and checking token trees, with deliberately malformed ones, and merging and pruning several of
 * them. */
#include "testing.h"
#include "devil.h"

#include "base/rng.h"
#include "tree/tree.h"

#include <math.h>
#include <string.h>

enum { PENDING = 7, N_VOCAB = 100, BUDGET = 8 };

static void children_follow_their_parents(void **state) {
    (void)state;
    Tree t;
    tree_reset(&t, PENDING);
    assert_int_equal(t.n, 1);
    assert_int_equal(tree_add(&t, 0, 10, 0.5f, 3), 1);
    assert_int_equal(tree_add(&t, 0, 11, 0.4f, 3), 2);
    assert_int_equal(tree_add(&t, 1, 10, 0.3f, 3), 3);
    assert_int_equal(t.nodes[3].depth, 2);
    assert_int_equal(t.nodes[3].source, 3);
    assert_int_equal(tree_child(&t, 0, 11), 2);
    assert_int_equal(tree_child(&t, 1, 10), 3);
    assert_int_equal(tree_child(&t, 2, 10), -1);
    assert_int_equal(tree_validate(&t, PENDING, N_VOCAB, 4, NULL), FR_OK);
}

static void duplicates_merge_and_keep_the_larger_p_accept(void **state) {
    (void)state;
    Tree t;
    tree_reset(&t, PENDING);
    assert_int_equal(tree_add(&t, 0, 10, 0.5f, 0), 1);
    assert_int_equal(tree_add(&t, 0, 10, 0.25f, 1), 1);
    assert_true(t.nodes[1].p_accept == 0.5f);
    assert_int_equal(tree_add(&t, 0, 10, 0.75f, 1), 1);
    assert_true(t.nodes[1].p_accept == 0.75f);
    assert_int_equal(t.nodes[1].source, 0);
    assert_int_equal(t.n, 2);
}

static void a_full_tree_refuses_nodes(void **state) {
    (void)state;
    static Tree t;
    tree_reset(&t, PENDING);
    for (int32_t i = 1; i < TREE_MAX_NODES; i++) assert_int_equal(tree_add(&t, i - 1, 1, 1, 0), i);
    assert_int_equal(tree_add(&t, 0, 2, 1, 0), -1);
    assert_int_equal(tree_add(&t, 0, 1, 1, 0), 1); /* a duplicate needs no room */
    assert_int_equal(tree_validate(&t, PENDING, N_VOCAB, TREE_MAX_NODES, NULL), FR_OK);
    assert_int_equal(tree_validate(&t, PENDING, N_VOCAB, 10 * TREE_MAX_NODES, NULL), FR_OK);
}

/* One malformed tree for each check, and a part of its error message. */
static const struct {
    DevilFault fault;
    const char *message;
} faults[] = {
    {DEVIL_ROOT_TOKEN, "node 0 of a draft tree (token 0) is not the pending token"},
    {DEVIL_ROOT_PARENT, "node 0 of a draft tree (token 7) has a parent"},
    {DEVIL_ROOT_DEPTH, "is not at depth 0"},
    {DEVIL_ROOT_P_ACCEPT, "has a p_accept other than 1"},
    {DEVIL_NO_NODES, "a draft tree has 0 nodes where 1 to 9 are allowed"},
    {DEVIL_TOO_MANY, "a draft tree has 10 nodes where 1 to 9 are allowed"},
    {DEVIL_PARENT_LATER, "node 2 of a draft tree (token 1) does not come after its parent"},
    {DEVIL_PARENT_NEGATIVE, "does not come after its parent"},
    {DEVIL_DEPTH, "is not one deeper than its parent"},
    {DEVIL_TOKEN_HIGH, "(token 100) holds a token outside the vocabulary"},
    {DEVIL_TOKEN_NEGATIVE, "(token -1) holds a token outside the vocabulary"},
    {DEVIL_DUPLICATE, "duplicates an earlier sibling"},
    {DEVIL_P_ACCEPT_NAN, "has a p_accept outside [0,1]"},
    {DEVIL_P_ACCEPT_HIGH, "has a p_accept outside [0,1]"},
    {DEVIL_P_ACCEPT_NEGATIVE, "has a p_accept outside [0,1]"},
    {DEVIL_P_ACCEPT_RISES, "has a p_accept above its parent's"},
    {DEVIL_TAG, "has a tag outside [0,3]"},
};

static void each_malformed_tree_is_refused_with_its_reason(void **state) {
    (void)state;
    assert_int_equal(sizeof faults / sizeof faults[0], DEVIL_N_FAULTS - 1);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        Tree t;
        fr_error err = {0};
        tree_reset(&t, PENDING);
        devil_break(&t, faults[i].fault, N_VOCAB, BUDGET);
        assert_int_equal(tree_validate(&t, PENDING, N_VOCAB, BUDGET + 1, &err), FR_ERR_INTERNAL);
        if (!strstr(err.message, faults[i].message))
            fail_msg("fault %d: '%s' does not contain '%s'", (int)faults[i].fault, err.message, faults[i].message);
    }
    Tree t;
    tree_reset(&t, PENDING);
    devil_break(&t, DEVIL_FAULT_NONE, N_VOCAB, BUDGET);
    assert_int_equal(tree_validate(&t, PENDING, N_VOCAB, BUDGET + 1, NULL), FR_OK);
}

static void devils_write_valid_trees_except_the_malformed_one(void **state) {
    (void)state;
    int32_t stream[40];
    for (int32_t i = 0; i < 40; i++) stream[i] = i * 37 % N_VOCAB;
    const DevilKind kinds[] = {DEVIL_RANDOM, DEVIL_RIGHT, DEVIL_WRONG};
    for (size_t k = 0; k < 3; k++) {
        Devil d = devil_make(kinds[k], DEVIL_FAULT_NONE, N_VOCAB, 5);
        devil_oracle(&d, 2, stream, 40);
        d.base.class->begin(&d.base, 2, stream, 10, NULL);
        for (int32_t n_seen = 10; n_seen <= 40; n_seen++) {
            Tree t, *trees[] = {&t};
            tree_reset(&t, stream[n_seen - 1]);
            d.base.class->propose(&d.base, (int32_t[]){2}, (int32_t[]){BUDGET}, trees, 1, NULL);
            assert_int_equal(tree_validate(&t, stream[n_seen - 1], N_VOCAB, BUDGET + 1, NULL), FR_OK);
            int32_t hit = n_seen < 40 ? tree_child(&t, 0, stream[n_seen]) : -1;
            if (kinds[k] == DEVIL_RIGHT) assert_int_equal(hit, n_seen < 40 ? 1 : -1);
            if (kinds[k] == DEVIL_WRONG) assert_int_equal(hit, -1);
            if (n_seen < 40) d.base.class->observe(&d.base, 2, stream + n_seen, 1, NULL);
        }
    }
}

enum { N_TOKENS = 4, N_TRIALS = 500 };

/* Draws a random tree of up to n nodes below the root. p_accept falls along paths; the vocabulary is small, so trees
 * overlap. */
static void random_tree(uint64_t seed, int32_t n, int32_t source, Tree *t) {
    tree_reset(t, 1);
    for (int32_t i = 0; i < n; i++) {
        uint32_t w[4];
        rng_words(seed, RNG_TEST, 0, (uint32_t)i, w);
        int32_t parent = (int32_t)(w[0] % (uint32_t)t->n), token = (int32_t)(w[1] % N_TOKENS);
        if (tree_child(t, parent, token) >= 0) continue;
        tree_add(t, parent, token, t->nodes[parent].p_accept * (float)(w[2] % 9 + 1) / 9, source);
    }
}

/* Returns the node of `in` with the path of node i of `t`, or -1. */
static int32_t find_path(const Tree *in, const Tree *t, int32_t i) {
    if (i == 0) return 0;
    int32_t parent = find_path(in, t, t->nodes[i].parent);
    return parent < 0 ? -1 : tree_child(in, parent, t->nodes[i].token);
}

static void assert_sound(const Tree *t) {
    fr_error err;
    if (tree_validate(t, 1, N_TOKENS, TREE_MAX_NODES, &err)) fail_msg("%s", err.message);
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

static void a_full_tree_refuses_merged_nodes(void **state) {
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
        cmocka_unit_test(children_follow_their_parents),
        cmocka_unit_test(duplicates_merge_and_keep_the_larger_p_accept),
        cmocka_unit_test(a_full_tree_refuses_nodes),
        cmocka_unit_test(each_malformed_tree_is_refused_with_its_reason),
        cmocka_unit_test(devils_write_valid_trees_except_the_malformed_one),
        cmocka_unit_test(a_union_has_every_path_with_its_best_p_accept),
        cmocka_unit_test(a_full_tree_refuses_merged_nodes),
        cmocka_unit_test(pruning_keeps_the_best_and_a_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
