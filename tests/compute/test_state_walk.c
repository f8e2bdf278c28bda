/* test_state_walk.c - the order in which rows with recurrent states are computed: each new row once, when the state of
 * its parent is available, with few scratch states. The test walks through the order and keeps the number of a row in
 * place of its state. */
#include "testing.h"

#include "compute/cpu/cpu.h"
#include "model_rig.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 4096 };

static RowPlace rows[MAX_ROWS];

/* Follows the plan for rows [first_new, n). Returns the number of levels. */
static int follow(StateWalk *w, int32_t first_new, int32_t n) {
    static int32_t n_visits[MAX_ROWS], n_trees_of[MAX_ROWS];
    static bool is_needed[MAX_ROWS];
    int n_levels = 0;
    memset(n_visits, 0, sizeof n_visits);
    memset(n_trees_of, 0, sizeof n_trees_of);
    for (int32_t i = n - 1; i >= 0; i--) is_needed[i] = i >= first_new;
    for (int32_t i = n - 1; i >= 0; i--)
        if (is_needed[i] && rows[i].parent >= 0) is_needed[rows[i].parent] = true;
    state_walk_plan(w, rows + first_new, n - first_new);
    for (int32_t t = 0; t < w->n_trees; t++) {
        int32_t level[STATE_LEVELS];
        memset(level, -1, sizeof level);
        assert_int_equal(n_trees_of[w->trees[t].sequence]++, 0);
        for (int32_t k = w->trees[t].first; k < w->trees[t].first + w->trees[t].n; k++) {
            const StateVisit *v = &w->visits[k];
            const RowPlace *r = &rows[v->row];
            assert_int_equal(r->sequence, w->trees[t].sequence);
            if (v->from == STATE_COMMITTED) assert_int_equal(r->parent, -1);
            else assert_int_equal(level[v->from], r->parent);
            level[v->to] = v->row;
            n_visits[v->row]++;
            if (v->to + 1 > n_levels) n_levels = v->to + 1;
        }
    }
    for (int32_t i = 0; i < n; i++) assert_int_equal(n_visits[i], is_needed[i]);
    return n_levels;
}

static StateWalk open_walk(void) {
    StateWalk w;
    fr_error err;
    if (state_walk_open(&w, MAX_ROWS, &err)) fail_msg("%s", err.message);
    return w;
}

static void a_chain_takes_one_state_and_a_full_tree_few(void **state) {
    (void)state;
    StateWalk w = open_walk();
    for (int32_t i = 0; i < MAX_ROWS; i++) rows[i] = (RowPlace){.row = i, .parent = i - 1};
    assert_int_equal(follow(&w, 0, MAX_ROWS), 1);
    assert_int_equal(follow(&w, MAX_ROWS - 1, MAX_ROWS), 1);
    for (int32_t i = 0; i < MAX_ROWS; i++) rows[i].parent = (i + 1) / 2 - 1;
    assert_in_range(follow(&w, 0, MAX_ROWS - 1), 11, 12);
    for (int32_t i = 0; i < MAX_ROWS; i++) rows[i].parent = i ? 0 : -1;
    assert_int_equal(follow(&w, 0, MAX_ROWS), 2);
    state_walk_close(&w);
}

static void random_trees_of_several_sequences_grow_in_pieces(void **state) {
    (void)state;
    StateWalk w = open_walk();
    for (uint64_t seed = 0; seed < 300; seed++) {
        int32_t n = 1 + rig_token(seed, 0, seed % 10 ? 60 : 1000), n_sequences = 1 + rig_token(seed, 1, 4),
                habit = 1 + rig_token(seed, 2, 6), first_new = rig_token(seed, 3, n);
        for (int32_t i = 0; i < n; i++) {
            rows[i] = (RowPlace){.row = i,
                                 .parent = -1,
                                 .sequence = rig_token(seed, (uint64_t)(3 * i + 4), n_sequences)};
            int32_t back = 1 + rig_token(seed, (uint64_t)(3 * i + 5), habit * 3);
            for (int32_t k = i - 1; k >= 0 && back > 0; k--)
                if (rows[k].sequence == rows[i].sequence) rows[i].parent = k, back--;
        }
        follow(&w, 0, n);
        follow(&w, first_new, n);
    }
    state_walk_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_chain_takes_one_state_and_a_full_tree_few),
                                       cmocka_unit_test(random_trees_of_several_sequences_grow_in_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
