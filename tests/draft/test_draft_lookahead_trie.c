/* test_draft_lookahead_trie.c - the drafter lookahead-trie: compares its nodes with counts by brute force, and tests
 * its history and the limit of its trie. */
#include "draft_rig.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 60, V = 64, N_REQUESTS = 4, MAX_RANKED = 30000 };

/* ---- brute force -------------------------------------------------------------------------------- */

typedef struct Text {
    int32_t n, tokens[MAX_TEXT];
} Text;
static Text prompt, answers[N_REQUESTS];
static int32_t n_answers; /* the last one is still being written */

static int32_t occurrences(const Text *t, const int32_t *string, int32_t n) {
    int32_t found = 0;
    for (int32_t i = 0; i + n <= t->n; i++) found += memcmp(t->tokens + i, string, (size_t)n * sizeof *string) == 0;
    return found;
}

typedef struct Counted {
    int32_t in, out;
} Counted;

static Counted count(const int32_t *string, int32_t n) {
    Counted c = {.in = occurrences(&prompt, string, n)};
    for (int32_t q = 0; q < n_answers; q++) c.out += occurrences(&answers[q], string, n);
    return c;
}

static Counted ranked[MAX_RANKED];
static int32_t n_ranked;

/* Counts of all strings that extend this one, up to `longest` tokens. */
static void rank_below(int32_t *string, int32_t n, int32_t longest) {
    for (int32_t x = 0; x < V && n < longest; x++) {
        string[n] = x;
        Counted c = count(string, n + 1);
        if (c.in + c.out == 0) continue;
        assert_true(n_ranked < MAX_RANKED);
        ranked[n_ranked++] = c;
        rank_below(string, n + 1, longest);
    }
}

static int more_out_first(const void *a, const void *b) {
    return ((const Counted *)b)->out - ((const Counted *)a)->out;
}

static double mix(Counted c) { return (1 - 1e-4) * c.in + 1e-4 * c.out; }

/* Half of the budget goes to the nodes with the highest f_out, the other half to the remaining nodes with the highest
 * f_mix. */
static void check(const Tree *t, const int32_t *text, int32_t n_text, int32_t branch, int32_t budget,
                  const char *what) {
    int32_t string[4 * MAX_TEXT], query = n_text < 2 ? n_text : 2, enough = budget < branch ? budget : branch;
    for (;; query--) {
        n_ranked = 0;
        memcpy(string, text + n_text - query, (size_t)query * sizeof *text);
        rank_below(string, query, branch + 1);
        if (n_ranked >= enough || query == 1) break;
    }
    int32_t want = n_ranked < budget ? n_ranked : budget;
    if (t->n - 1 != want) fail_msg("%s: %d nodes, want %d of %d", what, t->n - 1, want, n_ranked);
    qsort(ranked, (size_t)n_ranked, sizeof *ranked, more_out_first);
    int32_t half = budget / 2, least_out = half > 0 && half <= n_ranked ? ranked[half - 1].out
                                           : half > 0                   ? 0
                                                                        : INT32_MAX;
    if (least_out == 0) least_out = 1; /* all strings of answers fit into the half */
    int32_t n_above = 0, n_at_least = 0, n_of_mix = 0;
    double least_mix = 1e9;
    for (int32_t i = 1; i < t->n; i++) {
        for (int32_t v = i; v > 0; v = t->nodes[v].parent) string[query + t->nodes[v].depth - 1] = t->nodes[v].token;
        Counted c = count(string, query + t->nodes[i].depth);
        assert_true(c.in + c.out > 0 && query + t->nodes[i].depth <= branch + 1);
        n_above += c.out > least_out;
        n_at_least += c.out >= least_out;
        if (c.out < least_out && mix(c) < least_mix) least_mix = mix(c);
    }
    int32_t all_above = 0, all_at_least = 0, n_better = 0;
    for (int32_t i = 0; i < n_ranked; i++) {
        all_above += ranked[i].out > least_out;
        all_at_least += ranked[i].out >= least_out;
        n_better += ranked[i].out < least_out && mix(ranked[i]) > least_mix + 1e-9;
    }
    for (int32_t i = 1; i < t->n; i++) {
        for (int32_t v = i; v > 0; v = t->nodes[v].parent) string[query + t->nodes[v].depth - 1] = t->nodes[v].token;
        Counted c = count(string, query + t->nodes[i].depth);
        n_of_mix += c.out < least_out && mix(c) > least_mix + 1e-9;
    }
    int32_t least = all_at_least < half ? all_at_least : half;
    if (n_above != all_above || n_at_least < least)
        fail_msg("%s: %d nodes above f_out %d (want %d), %d at least (want %d)", what, n_above, least_out, all_above,
                 n_at_least, least);
    if (n_of_mix != n_better) fail_msg("%s: %d of %d nodes above f_mix %g", what, n_of_mix, n_better, least_mix);
}

static void it_takes_the_nodes_of_the_highest_counts(void **state) {
    (void)state;
    static Tree t;
    int32_t n_drafted = 0;
    for (int round = 0; round < 150; round++) {
        int32_t branch = 1 + rig_below(8), alphabet = 2 + rig_below(round % 4 ? 4 : 30), history = rig_below(3) > 0;
        char spec[100];
        snprintf(spec, sizeof spec, "lookahead-trie:branch_length=%d,history=%d", branch, history);
        Drafter *d = rig_open_drafter(spec, V, 2);
        n_answers = 0;
        for (int q = 0; q < N_REQUESTS; q++) {
            int32_t text[MAX_TEXT], n_text = 1 + rig_below(MAX_TEXT), n_prompt = 1 + rig_below(n_text);
            rig_fill_text(text, n_text, alphabet);
            rig_feed(d, q % 2, text, n_prompt, n_text);
            prompt.n = n_prompt;
            memcpy(prompt.tokens, text, sizeof text);
            Text *answer = &answers[n_answers++];
            answer->n = n_text - n_prompt;
            memcpy(answer->tokens, text + n_prompt, (size_t)answer->n * sizeof *text);
            for (int k = 0; k < 4; k++) {
                int32_t budget = k == 0 ? 64 : rig_below(24);
                rig_propose(d, q % 2, text[n_text - 1], budget, V, &t);
                check(&t, text, n_text, branch, budget, spec);
                n_drafted += t.n - 1;
            }
            d->class->end(d, q % 2);
            if (!history) n_answers = 0;
        }
        drafter_close(d);
    }
    assert_true(n_drafted > 5000);
}

/* The worked example of draft_lookahead_trie.c. */
static void the_example_of_the_essay_holds(void **state) {
    (void)state;
    enum { A, B, C, D, DOT };
    Drafter *d = rig_open_drafter("lookahead-trie", V, 2);
    Tree t;
    rig_feed(d, 1, (int32_t[]){D, A, B, C, DOT, A, B, C}, 1, 8);
    rig_feed(d, 0, (int32_t[]){A, B, C, A, B, D, DOT, A, B}, 9, 9);
    rig_propose(d, 0, B, 2, V, &t);
    assert_int_equal(t.n, 3);
    assert_int_equal(t.nodes[1].token, C);
    assert_int_equal(t.nodes[2].token, D);
    drafter_close(d);
}

static void at_most_decoding_length_nodes(void **state) {
    (void)state;
    int32_t text[400];
    Tree t;
    rig_fill_text(text, 400, 3);
    Drafter *d = rig_open_drafter("lookahead-trie", V, 1),
            *few = rig_open_drafter("lookahead-trie:decoding_length=5", V, 1);
    rig_feed(d, 0, text, 200, 400);
    rig_feed(few, 0, text, 200, 400);
    rig_propose(d, 0, text[399], 500, V, &t);
    assert_int_equal(t.n, 65);
    rig_propose(few, 0, text[399], 500, V, &t);
    assert_int_equal(t.n, 6);
    drafter_close(d);
    drafter_close(few);
}

/* A small trie and many answers at once: it forgets, drafting continues, and strings that occur again and again
 * stay. */
static void a_full_trie_forgets_what_is_rare(void **state) {
    (void)state;
    enum { LARGE = 5000, N = 3 };
    static Tree t;
    Drafter *d = rig_open_drafter("lookahead-trie:nodes=1024", LARGE, N + 1);
    for (int round = 0; round < 60; round++) {
        for (int32_t q = 0; q < N; q++) {
            int32_t text[40];
            for (int32_t i = 0; i < 40; i++) text[i] = q == 0 ? 1 + i % 5 : 10 + rig_below(LARGE - 10);
            rig_feed(d, q, text, 1, 40);
            rig_propose(d, q, text[39], 16, LARGE, &t);
        }
        for (int32_t q = 0; q < N; q++) d->class->end(d, q);
        rig_feed(d, N, (int32_t[]){3}, 1, 1);
        rig_propose(d, N, 3, 4, LARGE, &t);
        assert_true(t.n > 2 && t.nodes[1].token == 4 && t.nodes[2].token == 5);
        d->class->end(d, N);
    }
    drafter_close(d);
}

static void tokens_outside_the_vocabulary_are_refused(void **state) {
    (void)state;
    rig_check_refuses_unknown_tokens("lookahead-trie");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_takes_the_nodes_of_the_highest_counts),
        cmocka_unit_test(the_example_of_the_essay_holds),
        cmocka_unit_test(at_most_decoding_length_nodes),
        cmocka_unit_test(a_full_trie_forgets_what_is_rare),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
