/* test_draft_pld.c - compares the drafter pld with a naive search on random texts over tiny alphabets. */
#include "draft_rig.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

enum { MAX_TEXT = 90, V = 64 };

/* Searches for the last g tokens followed by another one, for g = n, n-1, .., 1; returns the position after them. */
static int32_t search(const int32_t *text, int32_t n_text, int32_t n, bool latest) {
    for (int32_t g = n < n_text ? n : n_text; g >= 1; g--) {
        int32_t found = -1;
        for (int32_t start = 0; start + g < n_text; start++) {
            bool equal = true;
            for (int32_t i = 0; i < g; i++) equal &= text[start + i] == text[n_text - g + i];
            if (equal && (found < 0 || latest)) found = start + g;
        }
        if (found >= 0) return found;
    }
    return -1;
}

/* Returns the number of tokens before `place` that equal the end of the text. */
static int32_t match_before(const int32_t *text, int32_t n_text, int32_t place) {
    int32_t m = 0;
    while (m < place && m < 16 && text[place - 1 - m] == text[n_text - 1 - m]) m++;
    return m;
}

static void it_finds_what_a_naive_search_finds(void **state) {
    (void)state;
    static Tree t;
    int32_t text[MAX_TEXT], n_found = 0;
    for (int round = 0; round < 2000; round++) {
        int32_t n = 1 + rig_below(4), length = 1 + rig_below(12), latest = rig_below(2);
        int32_t n_text = 1 + rig_below(MAX_TEXT), n_prompt = 1 + rig_below(n_text), budget = rig_below(14);
        rig_fill_text(text, n_text, 1 + rig_below(round % 3 ? 4 : V));
        char spec[80];
        snprintf(spec, sizeof spec, "pld:n=%d,length=%d,match=%s", n, length, latest ? "latest" : "earliest");
        Drafter *d = rig_open_drafter(spec, V, 1);
        rig_feed(d, 0, text, n_prompt, n_text);
        rig_propose(d, 0, text[n_text - 1], budget, V, &t);
        int32_t from = search(text, n_text, n, latest), want = 0;
        if (from >= 0) {
            want = n_text - from < length ? n_text - from : length;
            if (want > budget) want = budget;
            n_found++;
        }
        if (t.n - 1 != want) fail_msg("round %d (%s): %d nodes, want %d", round, spec, t.n - 1, want);
        double p_accept = 1;
        for (int32_t i = 1, m = want ? match_before(text, n_text, from) : 0; i < t.n; i++, m++) {
            p_accept *= (double)m / (m + 2);
            if (t.nodes[i].parent != i - 1 || t.nodes[i].token != text[from + i - 1])
                fail_msg("round %d (%s), node %d: token %d below %d, want %d below %d", round, spec, i,
                         t.nodes[i].token, t.nodes[i].parent, text[from + i - 1], i - 1);
            if (fabs((double)t.nodes[i].p_accept - p_accept) > 1e-6)
                fail_msg("p_accept %g, want %g", (double)t.nodes[i].p_accept, p_accept);
        }
        drafter_close(d);
    }
    assert_true(n_found > 1000);
}

/* The worked example of draft_pld_llma.c. */
static void the_example_of_the_essay_holds(void **state) {
    (void)state;
    enum { THE, CAT, SAT, ON, MAT, DOT };
    const int32_t text[] = {THE, CAT, SAT, ON, THE, MAT, DOT, THE, CAT};
    const int32_t want[] = {SAT, ON, THE, MAT, DOT, THE, CAT};
    Drafter *d = rig_open_drafter("pld", V, 1);
    Tree t;
    rig_feed(d, 0, text, 9, 9);
    rig_propose(d, 0, CAT, 32, V, &t);
    assert_int_equal(t.n, 8);
    for (int32_t i = 0; i < 7; i++) assert_int_equal(t.nodes[i + 1].token, want[i]);
    drafter_close(d);
}

static void sequences_are_independent_and_tokens_checked(void **state) {
    (void)state;
    rig_check_sequences_are_independent("pld");
    rig_check_sequences_are_independent("pld:match=latest");
    rig_check_refuses_unknown_tokens("pld");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_finds_what_a_naive_search_finds),
        cmocka_unit_test(the_example_of_the_essay_holds),
        cmocka_unit_test(sequences_are_independent_and_tokens_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
