/* test_count_trie.c - the trie with counts (text_index.c): compares counts with a list of strings, also while old
 * strings are forgotten. */
#include "draft_rig.h"

#include "draft/text/text_index.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STRINGS = 20000, MAX_LENGTH = 5 };

typedef struct Entry {
    int32_t n, tokens[MAX_LENGTH], count;
} Entry;
static Entry entries[MAX_STRINGS];
static int32_t n_entries;

static Entry *find(const int32_t *tokens, int32_t n) {
    for (int32_t i = 0; i < n_entries; i++)
        if (entries[i].n == n && memcmp(entries[i].tokens, tokens, (size_t)n * sizeof *tokens) == 0) return &entries[i];
    return NULL;
}

static void count(const int32_t *tokens, int32_t n) {
    Entry *e = find(tokens, n);
    if (!e) {
        assert_true(n_entries < MAX_STRINGS);
        e = &entries[n_entries++];
        *e = (Entry){.n = n};
        memcpy(e->tokens, tokens, (size_t)n * sizeof *tokens);
    }
    e->count++;
}

static void halve(void) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_entries; i++) {
        if (entries[i].count <= 1) continue;
        entries[n] = entries[i];
        entries[n++].count /= 2;
    }
    n_entries = n;
}

/* Checks that every string of the list is in the trie with its count, linked once as a child, and that the trie has
 * nothing else. */
static void compare(const CountTrie *t) {
    if (t->n != n_entries + 1) fail_msg("%d nodes, the list has %d strings", t->n - 1, n_entries);
    for (int32_t i = 0; i < n_entries; i++) {
        int32_t node = 0, n_links = 0;
        for (int32_t k = 0; k < entries[i].n; k++) {
            int32_t parent = node;
            node = count_trie_child(t, node, entries[i].tokens[k]);
            assert_true(node > parent);
        }
        if (t->nodes[node].count != entries[i].count)
            fail_msg("string %d: count %d, want %d", i, t->nodes[node].count, entries[i].count);
        for (int32_t c = t->nodes[t->nodes[node].parent].first_child; c; c = t->nodes[c].next_sibling)
            n_links += c == node;
        assert_int_equal(n_links, 1);
    }
}

static void it_counts_and_forgets_like_the_list(void **state) {
    (void)state;
    enum { MAX = 1500, N_CURSORS = 3 };
    CountTrie t;
    assert_int_equal(count_trie_open(&t, MAX, NULL), FR_OK);
    n_entries = 0;
    int32_t n_halved = 0, n_dropped = 0, cursors[N_CURSORS] = {-1, -1, -1};
    int32_t n_held[N_CURSORS] = {0}, held[N_CURSORS][MAX_LENGTH];
    for (int32_t round = 0; round < 6000; round++) {
        if (t.n + MAX_LENGTH > MAX)
            for (; n_entries + 1 > MAX - MAX / 4; n_halved++) halve();
        assert_true(count_trie_reserve(&t, MAX_LENGTH, cursors, N_CURSORS));
        for (int i = 0; i < N_CURSORS; i++) { /* a cursor still holds its string, or the string is gone from both */
            if (n_held[i] == 0) continue;
            int32_t node = 0;
            for (int32_t k = 0; k < n_held[i] && node >= 0; k++) {
                node = count_trie_child(&t, node, held[i][k]);
                if (node == 0) node = -1;
            }
            assert_int_equal(cursors[i], node);
            if (node < 0) n_held[i] = 0, n_dropped++;
        }
        int32_t string[MAX_LENGTH], n = 1 + rig_below(MAX_LENGTH), node = 0, slot = rig_below(N_CURSORS);
        for (int32_t k = 0; k < n; k++) {
            string[k] = rig_below(3) ? rig_below(4) : rig_below(40);
            node = count_trie_touch(&t, node, string[k]);
            count(string, k + 1);
        }
        cursors[slot] = node;
        n_held[slot] = n;
        memcpy(held[slot], string, sizeof string);
        assert_true(t.n <= MAX);
        if (round % 50 == 0) compare(&t);
    }
    compare(&t);
    assert_true(n_halved >= 3 && n_dropped >= 3);
    count_trie_clear(&t);
    assert_int_equal(t.n, 1);
    assert_int_equal(count_trie_child(&t, 0, 1), 0);
    count_trie_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_counts_and_forgets_like_the_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
