/* test_draft_ngram_text.c - the text of a sequence (text_index.c): chains, counts of contexts and the list of common
 * tokens. */
#include "testing.h"

#include "base/rng.h"
#include "draft/text/text_index.h"

#include <stdlib.h>

enum { N = 4000, V = 150 };

static int32_t tokens[N];

/* Rare and common tokens, with repetition. */
static void fill_tokens(void) {
    for (uint32_t i = 0; i < N; i++) {
        double u = rng_uniform(3, RNG_TEST, 0, i), v = rng_uniform(4, RNG_TEST, 0, i);
        tokens[i] = i > 30 && u < 0.3 ? tokens[i - 17] : (int32_t)(v * v * V);
    }
}

static int descending(const void *a, const void *b) { return *(const int32_t *)b - *(const int32_t *)a; }

/* Counts, for every token, the positions whose left neighbour differs from that of the previous position. */
static void count_contexts(int32_t n, int32_t counts[V]) {
    int32_t neighbour[V];
    for (int32_t x = 0; x < V; x++) counts[x] = 0, neighbour[x] = -1;
    for (int32_t i = 0; i < n; i++) {
        int32_t left = i ? tokens[i - 1] : -2;
        if (neighbour[tokens[i]] != left || left < 0) counts[tokens[i]]++;
        neighbour[tokens[i]] = left;
    }
}

static void compare(const NgramText *t, int32_t n) {
    int32_t counts[V], sorted[V], last[V], total = 0;
    count_contexts(n, counts);
    for (int32_t x = 0; x < V; x++) last[x] = -1, sorted[x] = counts[x], total += counts[x];
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(t->previous[i], last[tokens[i]]);
        last[tokens[i]] = i;
    }
    qsort(sorted, V, sizeof sorted[0], descending);
    for (int32_t x = 0; x < V; x++) {
        assert_int_equal(ngram_text_last(t, x), last[x]);
        assert_true(ngram_text_share(t, x) == (double)counts[x] / total);
    }
    for (int32_t i = 0; i < NGRAM_N_TOP; i++) {
        assert_int_equal(i < t->n_top ? t->top[i].n_contexts : 0, sorted[i]);
        if (i < t->n_top) assert_int_equal(t->top[i].n_contexts, counts[t->top[i].token]);
        for (int32_t j = 0; j < i && i < t->n_top; j++) assert_int_not_equal(t->top[i].token, t->top[j].token);
    }
}

static void positions_and_contexts_are_those_of_a_naive_count(void **state) {
    (void)state;
    fill_tokens();
    NgramText t = {.n = 0};
    for (int32_t n = 0, step; n < N; n += step) {
        step = n < 300 ? 1 : 37;
        if (step > N - n) step = N - n;
        assert_int_equal(ngram_text_append(&t, tokens + n, step, V, true, NULL), FR_OK);
        compare(&t, n + step);
    }
    assert_true(ngram_text_bytes(&t) > N * 8);
    ngram_text_free(&t);
    assert_int_equal(t.n, 0);
}

static void of_equal_counts_the_latest_comes_first(void **state) {
    (void)state;
    NgramText t = {.n = 0};
    assert_int_equal(ngram_text_append(&t, (int32_t[]){1, 2, 3, 2, 1, 3}, 6, V, true, NULL), FR_OK);
    const int32_t want[] = {3, 1, 2}; /* two contexts each; 3 reached its second one last */
    for (int32_t i = 0; i < 3; i++) assert_int_equal(t.top[i].token, want[i]);
    ngram_text_free(&t);
}

static void matches_are_counted_backwards(void **state) {
    (void)state;
    const int32_t text[] = {1, 2, 3, 9, 2, 3, 1, 2, 3};
    NgramText t = {.n = 0};
    assert_int_equal(ngram_text_append(&t, text, 9, V, true, NULL), FR_OK);
    assert_int_equal(ngram_text_match(&t, 2, 10), 3);
    assert_int_equal(ngram_text_match(&t, 2, 2), 2);
    assert_int_equal(ngram_text_match(&t, 5, 10), 2);
    assert_int_equal(ngram_text_match(&t, 0, 10), 0);
    ngram_text_free(&t);
}

static void unindexed_tokens_stay_out_of_the_chains(void **state) {
    (void)state;
    NgramText t = {.n = 0};
    assert_int_equal(ngram_text_last(&t, 5), -1);
    assert_int_equal(ngram_text_append(&t, (int32_t[]){5, 6}, 2, V, true, NULL), FR_OK);
    assert_int_equal(ngram_text_append(&t, (int32_t[]){5, 7}, 2, V, false, NULL), FR_OK);
    assert_int_equal(t.n, 4);
    assert_int_equal(t.n_indexed, 2);
    assert_int_equal(ngram_text_last(&t, 5), 0);
    assert_int_equal(ngram_text_last(&t, 7), -1);
    ngram_text_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_and_contexts_are_those_of_a_naive_count),
        cmocka_unit_test(of_equal_counts_the_latest_comes_first),
        cmocka_unit_test(matches_are_counted_backwards),
        cmocka_unit_test(unindexed_tokens_stay_out_of_the_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
