/* test_draft_ngram_trie.c - the drafter ngram-trie: compares both rules with slow reference implementations, on random
 * texts over tiny alphabets, in which everything repeats and there are many ties. */
#include "testing.h"

#include "base/rng.h"
#include "draft/drafter.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 80, MAX_NODES = 60000, V = 64 };

static uint64_t n_dice;
static int32_t below(int32_t n) {
    uint32_t words[4];
    rng_words(31, RNG_TEST, n_dice++, 0, words);
    return (int32_t)(words[0] % (uint32_t)n);
}

static Drafter *open_drafter(const char *spec, int32_t n_vocab, int32_t n_sequences) {
    Drafter *d;
    fr_error err = {0};
    const DrafterEnv env = {.n_vocab = n_vocab, .max_sequences = n_sequences};
    if (drafter_open(&d, spec, &env, 0, &err)) fail_msg("%s", err.message);
    return d;
}

static void propose(Drafter *d, int32_t sequence, int32_t pending, int32_t budget, int32_t n_vocab, Tree *t) {
    fr_error err = {0};
    tree_reset(t, pending);
    assert_int_equal(d->class->propose(d, &sequence, &budget, &t, 1, NULL), FR_OK);
    if (tree_validate(t, pending, n_vocab, budget + 1, &err)) fail_msg("%s", err.message);
}

/* ---- the trie of the paper, in full ------------------------------------------------------------- */

typedef struct Node {
    int32_t token, parent, depth, frequency, first; /* first: the earliest position of its last token */
} Node;
typedef struct Trie {
    int32_t n;
    Node nodes[MAX_NODES]; /* node 0 is the root */
} Trie;

static int32_t child_of(const Trie *t, int32_t parent, int32_t token) {
    for (int32_t i = parent + 1; i < t->n; i++)
        if (t->nodes[i].parent == parent && t->nodes[i].token == token) return i;
    return -1;
}

/* Algorithm 1: every window's strings P[j:] S. Windows cut off by the end of the prompt count. */
static void build(Trie *t, const int32_t *text, int32_t n_text, int32_t n_prompt, int32_t n, int32_t prefix) {
    t->n = 1;
    t->nodes[0] = (Node){.parent = -1};
    for (int32_t i = 0; i < n_text; i++) {
        int32_t end = i + n <= n_text ? i + n : n_prompt;
        for (int32_t j = 0; j < prefix; j++)
            for (int32_t p = i + j, node = 0; p < end; p++) {
                int32_t child = child_of(t, node, text[p]);
                if (child < 0) {
                    assert_true(t->n < MAX_NODES);
                    child = t->n++;
                    t->nodes[child] = (Node){text[p], node, t->nodes[node].depth + 1, 0, p};
                }
                t->nodes[child].frequency++;
                if (p < t->nodes[child].first) t->nodes[child].first = p;
                node = child;
            }
    }
}

static int compare_nodes(const void *a, const void *b) {
    const Node *x = a, *y = b;
    if (x->frequency != y->frequency) return x->frequency > y->frequency ? -1 : 1;
    if (x->depth != y->depth) return x->depth < y->depth ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Writes the subtree below the last `prefix` tokens, or fewer, in the order of the rule, and returns its size.
 * `parent` is the number of the parent in the trie, and `numbers` the node's own. */
static int32_t rank_subtree(const Trie *t, const int32_t *text, int32_t n_text, int32_t prefix, Node *out,
                            int32_t *top) {
    int32_t n = 0;
    for (int32_t q = prefix < n_text ? prefix : n_text; q >= 1 && n == 0; q--) {
        int32_t node = 0;
        for (int32_t i = n_text - q; i < n_text && node >= 0; i++) node = child_of(t, node, text[i]);
        if (node < 0) continue;
        for (int32_t i = node + 1; i < t->n; i++) { /* children come after their parents */
            int32_t up = i;
            while (t->nodes[up].depth > t->nodes[node].depth) up = t->nodes[up].parent;
            if (up == node) out[n++] = t->nodes[i];
        }
        *top = node;
    }
    qsort(out, (size_t)n, sizeof *out, compare_nodes);
    return n;
}

static void the_papers_rule_equals_its_trie(void **state) {
    (void)state;
    static Trie trie;
    static Node ranked[MAX_NODES];
    static Tree t;
    for (int round = 0; round < 600; round++) {
        int32_t prefix = 1 + below(3), n = prefix + 1 + below(6), live = below(2), alphabet = 2 + below(4);
        int32_t text[MAX_TEXT], n_prompt = 1 + below(40), n_text = n_prompt + below(MAX_TEXT - 40);
        for (int32_t i = 0; i < n_text; i++) text[i] = below(alphabet);
        char spec[80];
        snprintf(spec, sizeof spec, "ngram-trie:rule=paper,n=%d,prefix=%d,live=%d", n, prefix, live);
        Drafter *d = open_drafter(spec, V, 1);
        assert_int_equal(d->class->begin(d, 0, text, n_prompt, NULL), FR_OK);
        for (int32_t i = n_prompt, step; i < n_text; i += step) {
            step = 1 + below(4);
            if (step > n_text - i) step = n_text - i;
            assert_int_equal(d->class->observe(d, 0, text + i, step, NULL), FR_OK);
        }
        build(&trie, text, live ? n_text : n_prompt, n_prompt, n, prefix);
        int32_t top = 0, n_ranked = rank_subtree(&trie, text, n_text, prefix, ranked, &top);
        const int32_t budgets[] = {0, 1, 2, 5, 13, 64, 300};
        for (size_t b = 0; b < sizeof budgets / sizeof budgets[0]; b++) {
            propose(d, 0, text[n_text - 1], budgets[b], V, &t);
            int32_t want = n_ranked < budgets[b] ? n_ranked : budgets[b];
            if (t.n - 1 != want) fail_msg("round %d (%s): %d nodes, the trie has %d", round, spec, t.n - 1, want);
            int32_t numbers[TREE_MAX_NODES] = {top}; /* the trie's number of each node of the tree */
            for (int32_t i = 1; i < t.n; i++) {
                numbers[i] = child_of(&trie, numbers[t.nodes[i].parent], t.nodes[i].token);
                assert_true(numbers[i] > 0);
                const Node *got = &trie.nodes[numbers[i]], *wanted = &ranked[i - 1];
                if (compare_nodes(got, wanted) != 0 || got->token != wanted->token)
                    fail_msg("round %d (%s), node %d: token %d of frequency %d, want %d of %d", round, spec, i,
                             got->token, got->frequency, wanted->token, wanted->frequency);
            }
        }
        drafter_close(d);
    }
}

/* ---- the rule `best`, by its recursion -------------------------------------------------------- */

typedef struct Text {
    const int32_t *tokens;
    int32_t n, n_indexed;
} Text;

/* P_0: contexts of x over all contexts; a context counts if the left neighbour differs from that at the previous
 * position. */
static double order_0(const Text *t, int32_t x) {
    int32_t of_x = 0, of_all = 0;
    for (int32_t i = 0; i < t->n_indexed; i++) {
        int32_t before = i - 1;
        while (before >= 0 && t->tokens[before] != t->tokens[i]) before--;
        if (before > 0 && t->tokens[before - 1] == t->tokens[i - 1]) continue;
        of_all++;
        of_x += t->tokens[i] == x;
    }
    return (double)of_x / of_all;
}

/* Returns the number of tokens up to position p that equal the path of `node` and, if the path contains no guess, the
 * text before it; -1 if the path itself does not match. `guess` is the last guessed node on the path. */
static int32_t match_at(const Text *t, const Tree *tree, int32_t node, int32_t guess, int32_t p) {
    int32_t m = 0, start = guess >= 0 ? tree->nodes[guess].depth : 0;
    for (int32_t v = node; tree->nodes[v].depth >= start && v > 0; v = tree->nodes[v].parent, m++)
        if (p - m < 0 || t->tokens[p - m] != tree->nodes[v].token) return -1;
    if (guess < 0) {
        int32_t above = 0;
        while (p - m - above >= 0 && t->tokens[p - m - above] == t->tokens[t->n - 1 - above]) above++;
        if (above == 0) return -1;
        m += above;
    }
    return m < 16 ? m : 16;
}

static double probability(const Text *t, const Tree *tree, int32_t node, int32_t guess, int32_t x, bool *seen) {
    double p = order_0(t, x);
    *seen = false;
    for (int32_t k = 1; k <= 16; k++) {
        int32_t n_k = 0, n_x = 0;
        for (int32_t i = 0; i + 1 < t->n_indexed; i++)
            if (match_at(t, tree, node, guess, i) >= k) {
                n_k++;
                n_x += t->tokens[i + 1] == x;
            }
        p = (n_x + (k + 1) * p) / (n_k + k + 1);
        *seen |= n_x > 0;
    }
    return p;
}

/* Returns whether x is among the 32 tokens with the most contexts, whatever the order of equals. */
static bool is_common(const Text *t, int32_t x, int32_t alphabet) {
    int32_t n = 0;
    for (int32_t y = 0; y < alphabet; y++) n += y != x && order_0(t, y) >= order_0(t, x);
    return n < 32;
}

static void compare_with_recursion(const Text *t, const Tree *tree, int32_t alphabet, int32_t budget) {
    int32_t guess[TREE_MAX_NODES]; /* the last guessed node on each path */
    double p_accept[TREE_MAX_NODES], least = 1, excluded = 0;
    guess[0] = -1, p_accept[0] = 1;
    for (int32_t i = 1; i < tree->n; i++) {
        bool seen;
        int32_t parent = tree->nodes[i].parent;
        p_accept[i] = p_accept[parent] * probability(t, tree, parent, guess[parent], tree->nodes[i].token, &seen);
        guess[i] = seen ? guess[parent] : i;
        if (fabs(p_accept[i] - (double)tree->nodes[i].p_accept) > 1e-5 * p_accept[i])
            fail_msg("node %d: p_accept %g, by the recursion %g", i, (double)tree->nodes[i].p_accept, p_accept[i]);
        if (p_accept[i] < least) least = p_accept[i];
    }
    for (int32_t i = 0; i < tree->n; i++) /* no node outside the tree is better than one inside */
        for (int32_t x = 0; x < alphabet; x++) {
            bool seen;
            if (tree_child(tree, i, x) >= 0) continue;
            double e = p_accept[i] * probability(t, tree, i, guess[i], x, &seen);
            if (e > excluded && (seen || is_common(t, x, alphabet))) excluded = e;
        }
    if (budget > 0 && excluded > least * (1 + 1e-5)) fail_msg("excluded %g, least taken %g", excluded, least);
    assert_true(tree->n == budget + 1 || excluded == 0);
}

static void our_rule_equals_its_recursion(void **state) {
    (void)state;
    static Tree t;
    for (int round = 0; round < 150; round++) {
        int32_t live = below(4) > 0, alphabet = 1 + below(round % 5 ? 8 : V);
        int32_t tokens[MAX_TEXT], n_prompt = 1 + below(40), n_text = n_prompt + below(30);
        for (int32_t i = 0; i < n_text; i++) tokens[i] = i > 20 && below(3) ? tokens[i - 9] : below(alphabet);
        Drafter *d = open_drafter(live ? "ngram-trie" : "ngram-trie:live=0", V, 1);
        assert_int_equal(d->class->begin(d, 0, tokens, n_prompt, NULL), FR_OK);
        assert_int_equal(d->class->observe(d, 0, tokens + n_prompt, n_text - n_prompt, NULL), FR_OK);
        const Text text = {tokens, n_text, live ? n_text : n_prompt};
        const int32_t budgets[] = {0, 1, 7, 25};
        for (size_t b = 0; b < sizeof budgets / sizeof budgets[0]; b++) {
            propose(d, 0, tokens[n_text - 1], budgets[b], V, &t);
            compare_with_recursion(&text, &t, alphabet, budgets[b]);
        }
        drafter_close(d);
    }
}

/* The worked example of rule=best in draft_ngram_trie.c. */
static void the_example_of_the_essay_holds(void **state) {
    (void)state;
    enum { THE, CAT, SAT, DOT, DOG, RAN };
    const int32_t text[] = {THE, CAT, SAT, DOT, THE, DOG, RAN, DOT, THE};
    Drafter *d = open_drafter("ngram-trie", V, 1);
    d->class->begin(d, 0, text, 9, NULL);
    Tree t;
    propose(d, 0, THE, 2, V, &t);
    const Text all = {text, 9, 9};
    assert_int_equal(t.nodes[1].token, DOG);
    assert_true(fabs((double)t.nodes[1].p_accept - (0.4375 + 0.375 * order_0(&all, DOG))) < 1e-6);
    propose(d, 0, THE, 8, V, &t);
    int32_t cat = tree_child(&t, 0, CAT);
    assert_true(cat > 0);
    assert_true(fabs((double)t.nodes[cat].p_accept - (0.1875 + 0.375 * order_0(&all, CAT))) < 1e-6);
    drafter_close(d);
}

static void of_equals_the_latest_comes_first(void **state) {
    (void)state;
    const int32_t text[] = {0, 1, 0, 2, 0, 3, 0, 4, 0};
    Drafter *d = open_drafter("ngram-trie", V, 1);
    d->class->begin(d, 0, text, 9, NULL);
    Tree t;
    propose(d, 0, 0, 20, V, &t);
    for (int32_t token = 1; token < 4; token++) {
        int32_t older = tree_child(&t, 0, token), newer = tree_child(&t, 0, token + 1);
        assert_true(t.nodes[older].p_accept == t.nodes[newer].p_accept);
        assert_true(newer > 0 && newer < older);
    }
    drafter_close(d);
}

/* ---- both rules --------------------------------------------------------------------------------- */

static void a_text_observed_drafts_like_the_same_text_as_prompt(void **state) {
    (void)state;
    static int32_t text[3000];
    static Tree a, b;
    for (int32_t i = 0; i < 3000; i++) text[i] = i > 50 && below(10) ? text[i - 1 - below(50)] : below(V);
    Drafter *live = open_drafter("ngram-trie", V, 2);
    live->class->begin(live, 1, text, 10, NULL);
    for (int32_t i = 10, step; i < 3000; i += step) {
        step = 1 + below(20);
        if (step > 3000 - i) step = 3000 - i;
        live->class->observe(live, 1, text + i, step, NULL);
        if (below(4)) continue;
        live->class->begin(live, 0, text, i + step, NULL);
        propose(live, 0, text[i + step - 1], 32, V, &a);
        propose(live, 1, text[i + step - 1], 32, V, &b);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.nodes, b.nodes, (size_t)a.n * sizeof a.nodes[0]);
    }
    drafter_close(live);
}

/* Unless `live` is given, rule=paper drafts from the prompt only, and rule=best from the whole text. */
static void the_rule_chooses_whether_the_text_is_live(void **state) {
    (void)state;
    static const char *const specs[] = {"ngram-trie:rule=paper,n=4", "ngram-trie:rule=paper,n=4,live=1", "ngram-trie",
                                        "ngram-trie:live=0"};
    const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 5}; /* "6 7" follows 5 only in what is generated after 1 2 3 4 */
    for (int i = 0; i < 4; i++) {
        Drafter *d = open_drafter(specs[i], V, 1);
        Tree tree;
        d->class->begin(d, 0, text, 4, NULL);
        d->class->observe(d, 0, text + 4, 4, NULL);
        propose(d, 0, 5, 4, V, &tree);
        assert_int_equal(tree_child(&tree, 0, 6) > 0, i == 1 || i == 2);
        drafter_close(d);
    }
}

static void sequences_are_independent(void **state) {
    (void)state;
    const char *specs[] = {"ngram-trie", "ngram-trie:rule=paper,live=1"};
    for (int s = 0; s < 2; s++) {
        Drafter *many = open_drafter(specs[s], V, 3), *alone = open_drafter(specs[s], V, 1);
        int32_t texts[3][60];
        for (int32_t i = 0; i < 180; i++) texts[i / 60][i % 60] = below(4);
        for (int32_t q = 0; q < 3; q++) many->class->begin(many, q, texts[q], 20, NULL);
        for (int32_t i = 20; i < 60; i += 2)
            for (int32_t q = 0; q < 3; q++) many->class->observe(many, q, texts[q] + i, 2, NULL);
        Tree a[3], b;
        for (int32_t q = 0; q < 3; q++) tree_reset(&a[q], texts[q][59]);
        Tree *trees[] = {&a[2], &a[0], &a[1]};
        assert_int_equal(many->class->propose(many, (int32_t[]){2, 0, 1}, (int32_t[]){9, 17, 30}, trees, 3, NULL),
                         FR_OK);
        for (int32_t q = 0; q < 3; q++) {
            alone->class->begin(alone, 0, texts[q], 20, NULL);
            alone->class->observe(alone, 0, texts[q] + 20, 40, NULL);
            propose(alone, 0, texts[q][59], q == 2 ? 9 : q == 0 ? 17 : 30, V, &b);
            assert_int_equal(a[q].n, b.n);
            assert_memory_equal(a[q].nodes, b.nodes, (size_t)b.n * sizeof b.nodes[0]);
            alone->class->end(alone, 0);
        }
        drafter_close(many);
        drafter_close(alone);
    }
}

static void tokens_outside_the_vocabulary_are_refused(void **state) {
    (void)state;
    Drafter *d = open_drafter("ngram-trie", V, 1);
    fr_error err = {0};
    assert_int_equal(d->class->begin(d, 0, (int32_t[]){1, V, 2}, 3, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "token 64 is outside the vocabulary of 64 tokens"));
    assert_int_equal(d->class->begin(d, 0, (int32_t[]){1, 2}, 2, NULL), FR_OK);
    assert_int_equal(d->class->observe(d, 0, (int32_t[]){-1}, 1, NULL), FR_ERR_ARGUMENT);
    drafter_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_papers_rule_equals_its_trie),
        cmocka_unit_test(our_rule_equals_its_recursion),
        cmocka_unit_test(the_example_of_the_essay_holds),
        cmocka_unit_test(of_equals_the_latest_comes_first),
        cmocka_unit_test(a_text_observed_drafts_like_the_same_text_as_prompt),
        cmocka_unit_test(the_rule_chooses_whether_the_text_is_live),
        cmocka_unit_test(sequences_are_independent),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
