/* test_beam_tree.c - Unit tests of beam_tree.c: the paper's worked examples, and random beams against a trie. */
#include "draft_rig.h"

#include "tree/tree_shapes.h"

#include <string.h>

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
        cmocka_unit_test(the_example_of_the_paper),
        cmocka_unit_test(fifteen_tokens_become_eight),
        cmocka_unit_test(only_whole_prefixes_are_shared),
        cmocka_unit_test(random_beams_equal_their_tries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
