/* test_feedback.c - feedback.c and the pool of n-grams (text_index.c): compares the top of a row with a full sort, and
 * the pool with a list. */
#include "feedback_rig.h"

#include "draft/text/text_index.h"
#include "draft/feedback.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float *sorted_row;

static int greater_first(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorted_row[x] != sorted_row[y]) return sorted_row[x] > sorted_row[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void the_top_k_of_a_row_equals_that_of_a_sort(void **state) {
    (void)state;
    enum { MAX_V = 400 };
    float row[MAX_V];
    int32_t order[MAX_V], ids[TOP_K_MAX];
    for (int round = 0; round < 20000; round++) {
        int32_t n = 1 + rig_below(MAX_V), k = 1 + rig_below(TOP_K_MAX), kinds = 1 + rig_below(60), n_order = 0;
        for (int32_t i = 0; i < n; i++) { /* few different values, so many ties */
            int32_t dice = rig_below(40);
            row[i] = dice == 0 ? (float)NAN : dice == 1 ? -INFINITY : dice == 2 ? (float)i : (float)rig_below(kinds);
            if (row[i] > -INFINITY) order[n_order++] = i;
        }
        sorted_row = row;
        qsort(order, (size_t)n_order, sizeof *order, greater_first);
        assert_int_equal(logits_top_k(row, n, k, ids), n_order < k ? n_order : k);
        for (int32_t i = 0; i < k; i++) assert_int_equal(ids[i], i < n_order ? order[i] : -1);
    }
}

static void shares_lean_on_the_prior_and_fade(void **state) {
    (void)state;
    Tally t = {0};
    assert_true(fabs(tally_share(&t, 0.3) - 0.3) < 1e-12);
    for (int i = 0; i < 8; i++) tally_add(&t, true);
    assert_true(fabs(tally_share(&t, 0.3) - (8 + 8 * 0.3) / 16) < 1e-12);
    for (int i = 0; i < 100000; i++) tally_add(&t, i % 4 == 0);
    assert_true(fabs(tally_share(&t, 0.9) - 0.25) < 0.01);
    for (int i = 0; i < 20000; i++) tally_add(&t, false); /* old observations no longer count */
    assert_true(tally_share(&t, 0.9) < 0.02 && t.n < TALLY_FULL);
}

/* ---- the pool ----------------------------------------------------------------------------------- */

enum { MAX_ADDED = 600, LONGEST = 4 };
typedef struct Listed {
    int32_t key, n, tokens[LONGEST];
} Listed;

static int begins_with(const PoolGram *longer, const Listed *g) {
    return longer->n >= g->n && memcmp(longer->tokens, g->tokens, (size_t)g->n * sizeof(int32_t)) == 0;
}

static void the_pool_equals_the_end_of_a_list(void **state) {
    (void)state;
    static Listed list[MAX_ADDED];
    NgramPool p;
    PoolGram got[16];
    for (int round = 0; round < 300; round++) {
        int32_t capacity = 1 << rig_below(8), n_keys = 1 + rig_below(9), n_added = 0, n = 1 + rig_below(MAX_ADDED);
        assert_int_equal(ngram_pool_open(&p, capacity, LONGEST, NULL), FR_OK);
        while (n_added < n) {
            Listed *g = &list[n_added++];
            *g = (Listed){.key = rig_below(n_keys) * 4096, .n = 1 + rig_below(LONGEST)}; /* some keys share a chain */
            for (int32_t i = 0; i < g->n; i++) g->tokens[i] = rig_below(3);
            ngram_pool_add(&p, g->key, g->tokens, g->n);
        }
        for (int32_t key = 0; key < n_keys; key++) {
            int32_t max = 1 + rig_below(16), n_got = ngram_pool_find(&p, key * 4096, max, got), n_want = 0;
            for (int32_t i = n_added - 1; i >= 0 && i >= n_added - capacity && n_want < max; i--) {
                int known = list[i].key != key * 4096;
                for (int32_t j = 0; j < n_want; j++) known |= begins_with(&got[j], &list[i]);
                if (known) continue;
                assert_true(n_want < n_got && got[n_want].n == list[i].n && begins_with(&got[n_want], &list[i]));
                n_want++;
            }
            assert_int_equal(n_got, n_want);
        }
        ngram_pool_clear(&p);
        assert_int_equal(ngram_pool_find(&p, 0, 16, got), 0);
        ngram_pool_close(&p);
    }
}

static void without_a_target_opening_fails(void **state) {
    (void)state;
    static const char *const specs[] = {"recycling", "lookahead"};
    const DrafterEnv env = {.n_vocab = 10, .max_sequences = 1};
    for (int i = 0; i < 2; i++) {
        Drafter *d;
        fr_error err;
        assert_int_equal(drafter_open(&d, specs[i], &env, 0, &err), FR_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, "learns from the target's logits, and no target runs here"));
        d = feedback_rig_open(specs[i], 64, 1);
        assert_int_equal(d->class->begin(d, 0, (int32_t[]){1, 64, 2}, 3, &err), FR_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "token 64 is outside the vocabulary of 64 tokens"));
        assert_int_equal(d->class->begin(d, 0, (int32_t[]){1, 2}, 2, &err), FR_OK);
        assert_int_equal(d->class->observe(d, 0, (int32_t[]){-1}, 1, &err), FR_ERR_ARGUMENT);
        drafter_close(d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_top_k_of_a_row_equals_that_of_a_sort),
        cmocka_unit_test(shares_lean_on_the_prior_and_fade),
        cmocka_unit_test(the_pool_equals_the_end_of_a_list),
        cmocka_unit_test(without_a_target_opening_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
