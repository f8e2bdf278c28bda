/* test_draft_llma.c - compares the drafter llma with a naive search on random texts over tiny alphabets. */
#include "draft_rig.h"

#include <stdbool.h>
#include <stdio.h>

enum { MAX_TEXT = 90, V = 64 };

/* Returns the first position in the prompt after the longest trigger of n to max(n, 5) tokens; -1: no trigger. */
static int32_t search(const int32_t *text, int32_t n_text, int32_t n_prompt, int32_t n) {
    for (int32_t g = n > 5 ? n : 5; g >= n; g--)
        for (int32_t start = 0; start + g < n_prompt; start++) {
            bool equal = g <= n_text;
            for (int32_t i = 0; equal && i < g; i++) equal = text[start + i] == text[n_text - g + i];
            if (equal) return start + g;
        }
    return -1;
}

static void it_copies_what_a_naive_search_finds(void **state) {
    (void)state;
    static Tree t;
    int32_t text[MAX_TEXT], n_found = 0;
    for (int round = 0; round < 2000; round++) {
        int32_t n = 1 + rig_below(7), k = 1 + rig_below(25), budget = rig_below(30);
        int32_t n_text = 1 + rig_below(MAX_TEXT), n_prompt = 1 + rig_below(n_text);
        rig_fill_text(text, n_text, 1 + rig_below(round % 3 ? 4 : V));
        char spec[80];
        snprintf(spec, sizeof spec, "llma:n=%d,k=%d", n, k);
        Drafter *d = rig_open_drafter(spec, V, 1);
        rig_feed(d, 0, text, n_prompt, n_text);
        rig_propose(d, 0, text[n_text - 1], budget, V, &t);
        int32_t from = search(text, n_text, n_prompt, n), want = 0;
        if (from >= 0) {
            want = n_prompt - from < k ? n_prompt - from : k;
            if (want > budget) want = budget;
            n_found++;
        }
        if (t.n - 1 != want) fail_msg("round %d (%s): %d nodes, want %d", round, spec, t.n - 1, want);
        for (int32_t i = 1; i < t.n; i++)
            if (t.nodes[i].parent != i - 1 || t.nodes[i].token != text[from + i - 1])
                fail_msg("round %d (%s), node %d: token %d below %d, want %d below %d", round, spec, i,
                         t.nodes[i].token, t.nodes[i].parent, text[from + i - 1], i - 1);
        drafter_close(d);
    }
    assert_true(n_found > 500);
}

static void the_answer_is_never_copied(void **state) {
    (void)state;
    Drafter *d = rig_open_drafter("llma", V, 1);
    Tree t;
    rig_feed(d, 0, (int32_t[]){1, 2, 3, 9, 8, 9}, 3, 6);
    rig_propose(d, 0, 9, 32, V, &t);
    assert_int_equal(t.n, 1);
    drafter_close(d);
}

static void sequences_are_independent_and_tokens_checked(void **state) {
    (void)state;
    rig_check_sequences_are_independent("llma");
    rig_check_refuses_unknown_tokens("llma");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_copies_what_a_naive_search_finds),
        cmocka_unit_test(the_answer_is_never_copied),
        cmocka_unit_test(sequences_are_independent_and_tokens_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
