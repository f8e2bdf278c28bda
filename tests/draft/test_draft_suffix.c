/* test_draft_suffix.c - the drafter suffix: compares it with the best tree by brute force over every pattern and pool;
 * tests the history, its limit, and drafting without it. */
#include "draft_rig.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TEXT = 70, V = 64, N_REQUESTS = 4, MAX_RANKED = 4096 };

/* ---- brute force -------------------------------------------------------------------------------- */

typedef struct Pool { /* texts that matches do not cross */
    int32_t n;
    int32_t n_tokens[N_REQUESTS];
    int32_t tokens[N_REQUESTS][MAX_TEXT];
} Pool;

/* Returns the number of times that the string is followed by x in the pool (x < 0: by anything). */
static int32_t count(const Pool *pool, const int32_t *string, int32_t n, int32_t x) {
    int32_t found = 0;
    for (int32_t q = 0; q < pool->n; q++)
        for (int32_t i = 0; i + n < pool->n_tokens[q]; i++) {
            bool equal = x < 0 || pool->tokens[q][i + n] == x;
            for (int32_t j = 0; equal && j < n; j++) equal = pool->tokens[q][i + j] == string[j];
            found += equal;
        }
    return found;
}

typedef struct Rule {
    double factor, offset, min_prob;
    int32_t budget;
} Rule;

static double ranked[MAX_RANKED];
static int32_t n_ranked;

/* Appends D of every node below the string, to a depth, with D >= min_prob. */
static void rank_below(const Pool *pool, int32_t *string, int32_t n, double share, int32_t depth, double min_prob) {
    int32_t all = count(pool, string, n, -1);
    for (int32_t x = 0; x < V && all > 0 && depth > 0; x++) {
        int32_t n_x = count(pool, string, n, x);
        double d = share * n_x / all;
        if (n_x == 0 || d < min_prob) continue;
        assert_true(n_ranked < MAX_RANKED);
        ranked[n_ranked++] = d;
        string[n] = x;
        rank_below(pool, string, n + 1, d, depth - 1, min_prob);
    }
}

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x > y ? -1 : x < y;
}

static int32_t max_spec(const Rule *r, int32_t p) {
    double most = floor(r->factor * p + r->offset + 1e-6);
    return most < r->budget ? (int32_t)most : r->budget;
}

/* Returns the score of the best tree for the last p tokens of the text, and its number of nodes. */
static double best_score(const Pool *pool, const int32_t *text, int32_t n_text, int32_t p, const Rule *r,
                         int32_t *n_nodes) {
    int32_t string[3 * MAX_TEXT], most = max_spec(r, p);
    for (int32_t i = 0; i < p; i++) string[i] = text[n_text - p + i];
    n_ranked = 0;
    rank_below(pool, string, p, 1, most, r->min_prob);
    qsort(ranked, (size_t)n_ranked, sizeof *ranked, descending);
    double score = 0;
    for (*n_nodes = 0; *n_nodes < most && *n_nodes < n_ranked; ++*n_nodes) score += ranked[*n_nodes];
    return score;
}

/* Returns whether this is the best tree of the last p tokens: the number of nodes, the score, and p_accept by its
 * formula. */
static bool is_tree_of(const Tree *t, const Pool *pool, const int32_t *text, int32_t n_text, int32_t p, int32_t n_nodes,
                       double want, double smoothing) {
    double d[TREE_MAX_NODES] = {1}, p_accept[TREE_MAX_NODES] = {1}, score = 0;
    if (t->n != n_nodes + 1) return false;
    for (int32_t i = 1; i < t->n; i++) {
        int32_t string[3 * MAX_TEXT], parent = t->nodes[i].parent, m = p + t->nodes[parent].depth;
        for (int32_t j = 0; j < p; j++) string[j] = text[n_text - p + j];
        for (int32_t v = parent; v > 0; v = t->nodes[v].parent) string[p + t->nodes[v].depth - 1] = t->nodes[v].token;
        int32_t n_x = count(pool, string, m, t->nodes[i].token), all = count(pool, string, m, -1);
        if (n_x == 0) return false;
        d[i] = d[parent] * n_x / all;
        p_accept[i] = p_accept[parent] * n_x / (all + smoothing / m);
        score += d[i];
        if (fabs(p_accept[i] - (double)t->nodes[i].p_accept) > 1e-5) return false;
    }
    return fabs(score - want) < 1e-9;
}

static void check(const Tree *t, const Pool *own, const Pool *history, const Rule *r, const char *what) {
    const int32_t *text = own->tokens[0], n_text = own->n_tokens[0];
    double best = 0, score;
    int32_t n_nodes;
    for (int32_t p = 1; p <= n_text && p <= 64; p++)
        for (int k = 0; k < 2; k++) {
            score = best_score(k ? history : own, text, n_text, p, r, &n_nodes);
            if (score > best) best = score;
        }
    bool found = best == 0 && t->n == 1;
    for (int32_t p = 1; p <= n_text && p <= 64 && !found; p++)
        for (int k = 0; k < 2 && !found; k++) {
            const Pool *pool = k ? history : own;
            score = best_score(pool, text, n_text, p, r, &n_nodes);
            found = score > best - 1e-9 && is_tree_of(t, pool, text, n_text, p, n_nodes, score, k ? 6 : 2);
        }
    if (!found) fail_msg("%s: %d nodes of score %g: not the best tree of any pattern", what, t->n - 1, best);
}

static void it_drafts_the_best_tree_of_all_patterns(void **state) {
    (void)state;
    static Tree t;
    static Pool history, own;
    int32_t n_drafted = 0;
    for (int round = 0; round < 120; round++) {
        Rule r = {.factor = rig_below(8) / 2.0, .offset = rig_below(5) - 1, .min_prob = rig_below(3) / 8.0 + 0.1};
        int32_t with_history = rig_below(3) > 0, alphabet = 2 + rig_below(round % 4 ? 4 : 30);
        char spec[120];
        snprintf(spec, sizeof spec, "suffix:factor=%g,offset=%g,min_prob=%g,history=%d", r.factor, r.offset, r.min_prob,
                 with_history ? 1000 : 0);
        Drafter *d = rig_open_drafter(spec, V, 2);
        history.n = 0;
        for (int q = 0; q < N_REQUESTS; q++) {
            int32_t n_text = 2 + rig_below(MAX_TEXT - 2), n_prompt = 1 + rig_below(n_text);
            own.n = 1;
            own.n_tokens[0] = n_text;
            rig_fill_text(own.tokens[0], n_text, alphabet);
            rig_feed(d, q % 2, own.tokens[0], n_prompt, n_text);
            for (int k = 0; k < 3; k++) {
                r.budget = k == 0 ? 64 : rig_below(12);
                rig_propose(d, q % 2, own.tokens[0][n_text - 1], r.budget, V, &t);
                check(&t, &own, &history, &r, spec);
                n_drafted += t.n - 1;
            }
            d->class->end(d, q % 2);
            if (!with_history || n_text == n_prompt) continue;
            history.n_tokens[history.n] = n_text - n_prompt;
            for (int32_t i = n_prompt; i < n_text; i++) history.tokens[history.n][i - n_prompt] = own.tokens[0][i];
            history.n++;
        }
        drafter_close(d);
    }
    assert_true(n_drafted > 1000);
}

/* The worked example of draft_suffix.c. */
static void the_example_of_the_essay_holds(void **state) {
    (void)state;
    enum { A, B, C, X, Y };
    Drafter *d = rig_open_drafter("suffix", V, 1);
    Tree t;
    rig_feed(d, 0, (int32_t[]){A, B, C, X, A, B, C, Y, B, C}, 10, 10);
    rig_propose(d, 0, C, 32, V, &t);
    assert_int_equal(t.n, 3);
    assert_true(tree_child(&t, 0, X) > 0 && tree_child(&t, 0, Y) > 0);
    drafter_close(d);
}

/* ---- history ------------------------------------------------------------------------------------ */

/* Answers are i, i+1, .., i+9, distinct tokens. Returns whether a request that ends with i still gets the draft i+1. */
static bool remembers(Drafter *d, int32_t i, int32_t n_vocab) {
    static Tree t;
    rig_feed(d, 1, &i, 1, 1);
    rig_propose(d, 1, i, 8, n_vocab, &t);
    d->class->end(d, 1);
    return t.n > 1 && t.nodes[1].token == i + 1;
}

static void the_history_is_limited_and_first_in_first_out(void **state) {
    (void)state;
    enum { N = 1000, LENGTH = 10, HISTORY = 100 };
    Drafter *d = rig_open_drafter("suffix:history=100", N * LENGTH + 1, 2);
    for (int32_t q = 0; q < N; q++) {
        int32_t text[LENGTH + 1] = {N * LENGTH};
        for (int32_t i = 0; i < LENGTH; i++) text[i + 1] = q * LENGTH + i;
        rig_feed(d, 0, text, 1, LENGTH + 1);
        d->class->end(d, 0);
        int32_t n_kept = 0, oldest = q;
        for (int32_t k = q; k >= 0 && k > q - 40; k--)
            if (remembers(d, k * LENGTH, N * LENGTH + 1)) n_kept++, oldest = k;
        assert_int_equal(n_kept, q - oldest + 1);                            /* the latest ones, without a gap */
        assert_true(n_kept * (LENGTH + 1) <= 2 * HISTORY);                   /* it is limited */
        if (q >= 20) assert_true(n_kept * (LENGTH + 1) >= HISTORY - LENGTH); /* and it is used */
    }
    drafter_close(d);
}

static void an_answer_longer_than_the_history_keeps_its_end(void **state) {
    (void)state;
    int32_t text[60];
    for (int32_t i = 0; i < 60; i++) text[i] = i;
    Drafter *d = rig_open_drafter("suffix:history=20", V, 2);
    for (int i = 0; i < 3; i++) {
        rig_feed(d, 0, text, 5, 60);
        d->class->end(d, 0);
        assert_true(remembers(d, 41, V));
        assert_true(!remembers(d, 20, V));
    }
    drafter_close(d);
}

static void prompts_are_not_remembered_and_history_0_remembers_nothing(void **state) {
    (void)state;
    const int32_t text[] = {1, 2, 3, 4, 5, 6};
    const char *specs[] = {"suffix", "suffix:history=0"};
    for (int i = 0; i < 2; i++) {
        Drafter *d = rig_open_drafter(specs[i], V, 2);
        rig_feed(d, 0, text, 3, 6);
        d->class->end(d, 0);
        assert_int_equal(remembers(d, 4, V), i == 0);
        assert_true(!remembers(d, 1, V));
        assert_true(!remembers(d, 6, V)); /* nothing follows the end of an answer */
        drafter_close(d);
    }
}

static void sequences_are_independent_and_tokens_checked(void **state) {
    (void)state;
    rig_check_sequences_are_independent("suffix:history=0");
    rig_check_refuses_unknown_tokens("suffix");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_drafts_the_best_tree_of_all_patterns),
        cmocka_unit_test(the_example_of_the_essay_holds),
        cmocka_unit_test(the_history_is_limited_and_first_in_first_out),
        cmocka_unit_test(an_answer_longer_than_the_history_keeps_its_end),
        cmocka_unit_test(prompts_are_not_remembered_and_history_0_remembers_nothing),
        cmocka_unit_test(sequences_are_independent_and_tokens_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
