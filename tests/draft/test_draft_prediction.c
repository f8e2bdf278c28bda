/* test_draft_prediction.c - compares the drafter prediction with a naive search on random texts. */
#include "draft_rig.h"

#include <stdlib.h>

enum { MAX_TEXT = 120, V = 64 };

/* Returns the place of the last token of the answer, found by trying all places. */
static int32_t search(const int32_t *prediction, int32_t n, const int32_t *answer, int32_t n_answer, int32_t expected) {
    int32_t best = -1, best_match = 0;
    for (int32_t p = 0; p < n; p++) {
        int32_t m = 0;
        while (m < 16 && m < n_answer && m <= p && prediction[p - m] == answer[n_answer - 1 - m]) m++;
        int distance = abs(p - expected), best_distance = abs(best - expected);
        if (m == 0 || (m < 3 && distance > 32)) continue;
        /* ties go to the nearer place, and then to the later one, as in the drafter's walk */
        if (m > best_match ||
            (m == best_match && (distance < best_distance || (distance == best_distance && p > best))))
            best = p, best_match = m;
    }
    return best;
}

static void check_tree(const Tree *t, const int32_t *prediction, int32_t n, int32_t place, int32_t budget, int round) {
    int32_t want = place == -2 ? 0 : n - place - 1 < budget ? n - place - 1 : budget;
    if (t->n - 1 != want) fail_msg("round %d: %d nodes, want %d", round, t->n - 1, want);
    for (int32_t i = 1; i < t->n; i++)
        if (t->nodes[i].parent != i - 1 || t->nodes[i].token != prediction[place + i])
            fail_msg("round %d, node %d: token %d, want %d", round, i, t->nodes[i].token, prediction[place + i]);
}

static void it_follows_the_prediction_as_a_naive_search_does(void **state) {
    (void)state;
    static Tree t;
    fr_error err;
    int32_t prediction[MAX_TEXT], answer[MAX_TEXT], prompt[] = {1, 2}, n_found = 0;
    for (int round = 0; round < 1500; round++) {
        int32_t n = 1 + rig_below(MAX_TEXT), n_answer = 0, expected = -1, alphabet = 1 + rig_below(round % 3 ? 6 : V);
        rig_fill_text(prediction, n, alphabet);
        Drafter *d = rig_open_drafter("prediction", V, 2);
        assert_int_equal(d->class->set_reference(d, 1, prediction, n, &err), FR_OK);
        assert_int_equal(d->class->begin(d, 1, prompt, 2, &err), FR_OK);
        while (n_answer < 60) {
            int32_t budget = rig_below(12), place = -1, pending = n_answer ? answer[n_answer - 1] : 2;
            if (n_answer) place = search(prediction, n, answer, n_answer, expected);
            rig_propose(d, 1, pending, budget, V, &t);
            check_tree(&t, prediction, n, n_answer && place < 0 ? -2 : place, budget, round);
            if (n_answer && place >= 0) expected = place, n_found++;
            /* follows the prediction for some tokens, and then leaves it */
            int32_t n_step = 1 + rig_below(4);
            for (int32_t i = 0; i < n_step; i++)
                answer[n_answer + i] = rig_below(4) && place + 1 + i < n && place >= -1 ? prediction[place + 1 + i]
                                                                                        : rig_below(alphabet);
            assert_int_equal(d->class->observe(d, 1, answer + n_answer, n_step, &err), FR_OK);
            n_answer += n_step;
            expected += n_step;
        }
        d->class->end(d, 1);
        drafter_close(d);
    }
    assert_true(n_found > 1000);
}

static void without_a_prediction_nothing_is_proposed(void **state) {
    (void)state;
    static Tree t;
    fr_error err;
    Drafter *d = rig_open_drafter("prediction", V, 1);
    for (int round = 0; round < 2; round++) {
        rig_feed(d, 0, (int32_t[]){1, 2, 3, 1, 2, 3}, 3, 6);
        rig_propose(d, 0, 3, 8, V, &t);
        assert_int_equal(t.n, 1);
        d->class->end(d, 0);
        /* nor is that of the previous request, which had this sequence */
        assert_int_equal(d->class->set_reference(d, 0, (int32_t[]){1, 2}, 2, &err), FR_OK);
        assert_int_equal(d->class->begin(d, 0, (int32_t[]){5}, 1, &err), FR_OK);
        d->class->end(d, 0);
    }
    assert_int_equal(d->class->set_reference(d, 0, (int32_t[]){V}, 1, &err), FR_ERR_ARGUMENT);
    drafter_close(d);
    rig_check_refuses_unknown_tokens("prediction");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_follows_the_prediction_as_a_naive_search_does),
        cmocka_unit_test(without_a_prediction_nothing_is_proposed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
