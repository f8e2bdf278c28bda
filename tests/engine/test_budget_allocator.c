/* test_budget_allocator.c - compares the budget allocator with brute force, and tests how the engine updates T(n). */
#include "testing.h"

#include "base/rng.h"
#include "engine/draft_policy.h"
#include "tree/tree.h"

#include <math.h>

enum { N_TRIALS = 400, MAX_NODES = 12, MAX_TREES = 3 };

static uint32_t dice(uint64_t trial, uint32_t i) {
    uint32_t w[4];
    rng_words(72, RNG_TEST, trial, i, w);
    return w[0];
}

static void random_tree(uint64_t trial, uint32_t salt, int32_t n, Tree *t) {
    tree_reset(t, 1);
    for (int32_t i = 0; i < n; i++) {
        int32_t parent = (int32_t)(dice(trial, salt + 3 * (uint32_t)i) % (uint32_t)t->n);
        tree_add(t, parent, i,
                 t->nodes[parent].p_accept * (float)(dice(trial, salt + 3 * (uint32_t)i + 1) % 16 + 1) / 16, 0);
    }
}

/* Any curve that never falls, with flat parts and steps, convex or not. */
static CostCurve random_curve(uint64_t trial) {
    CostCurve c = {.n = 5, .rows = {1, 2, 4, 8, 16}, .seconds = {1}};
    for (int k = 1; k < c.n; k++) c.seconds[k] = c.seconds[k - 1] + (double)(dice(trial, 900 + (uint32_t)k) % 5) * 0.5;
    return c;
}

static double gain_of(const BudgetInput *in, double sum, int32_t n) {
    return sum -
           in->tokens_per_s * (cost_curve_at(in->cost, in->n_base_rows + n) - cost_curve_at(in->cost, in->n_base_rows));
}

/* Returns the greatest gain over all sets of nodes that contain the parents of their nodes. */
static double best_by_force(const BudgetInput *in) {
    const TreeNode *nodes[MAX_NODES];
    int32_t parent[MAX_NODES], n = 0; /* parent: place in `nodes`, or -1 */
    for (int i = 0; i < in->n_trees; i++) {
        int32_t first = n;
        for (int32_t k = 1; k < in->trees[i]->n; k++) {
            parent[n] = in->trees[i]->nodes[k].parent == 0 ? -1 : first + in->trees[i]->nodes[k].parent - 1;
            nodes[n++] = &in->trees[i]->nodes[k];
        }
    }
    double best = 0;
    for (uint32_t set = 0; set < 1u << n; set++) {
        double sum = 0;
        int32_t size = 0;
        bool closed = true;
        for (int32_t k = 0; k < n && closed; k++) {
            if (!(set >> k & 1)) continue;
            closed = parent[k] < 0 || (set >> parent[k] & 1);
            sum += (double)nodes[k]->p_accept;
            size++;
        }
        if (closed) best = fmax(best, gain_of(in, sum, size));
    }
    return best;
}

static void no_set_of_nodes_is_better(void **state) {
    (void)state;
    static Tree trees[MAX_TREES];
    const Tree *list[MAX_TREES] = {&trees[0], &trees[1], &trees[2]};
    BudgetNode scratch[MAX_NODES];
    int n_none = 0, n_some = 0;
    for (uint64_t trial = 0; trial < N_TRIALS; trial++) {
        int n_trees = 1 + (int)(trial % MAX_TREES);
        for (int i = 0; i < n_trees; i++) random_tree(trial, 100 * (uint32_t)i, 4 - n_trees / 3, &trees[i]);
        CostCurve curve = random_curve(trial);
        const BudgetInput in = {.trees = list,
                                .n_trees = n_trees,
                                .n_base_rows = 1 + (int32_t)(trial % 7),
                                .cost = &curve,
                                .tokens_per_s = 0.2 + (double)(trial % 11) / 10,
                                .max_extra_s = 1e9,
                                .scratch = scratch};
        int32_t budgets[MAX_TREES];
        int32_t n = allocate_budgets(&in, budgets), kept = 0;
        double best = best_by_force(&in), sum = 0;
        for (int i = 0; i < n_trees; i++) {
            union_prune(&trees[i], budgets[i]);
            kept += trees[i].n - 1;
            for (int32_t k = 1; k < trees[i].n; k++) sum += (double)trees[i].nodes[k].p_accept;
        }
        assert_int_equal(kept, n);
        if (fabs(gain_of(&in, sum, n) - best) > 1e-6)
            fail_msg("trial %d: %g, by force %g", (int)trial, gain_of(&in, sum, n), best);
        n_none += n == 0, n_some += n > 0;
    }
    assert_true(n_none > 10 && n_some > 10); /* both cases occur */
}

static int32_t allocated(const CostCurve *curve, const Tree *t, double tokens_per_s, double max_extra_s) {
    BudgetNode scratch[TREE_MAX_NODES];
    int32_t budget;
    const BudgetInput in = {.trees = &t,
                            .n_trees = 1,
                            .n_base_rows = 1,
                            .cost = curve,
                            .tokens_per_s = tokens_per_s,
                            .max_extra_s = max_extra_s,
                            .scratch = scratch};
    int32_t n = allocate_budgets(&in, &budget);
    assert_int_equal(n, budget);
    return n;
}

static void rows_decide(void **state) {
    (void)state;
    static Tree t;
    tree_reset(&t, 1);
    for (int32_t i = 0; i < 10; i++) tree_add(&t, i, 2, t.nodes[i].p_accept * 0.9f, 0);
    const CostCurve flat = {.n = 2, .rows = {1, 32}, .seconds = {1, 1}},
                    steep = {.n = 2, .rows = {1, 32}, .seconds = {1, 32}};
    const CostCurve step = {.n = 4, .rows = {1, 2, 8, 9}, .seconds = {1, 3, 3, 20}};
    assert_int_equal(allocated(&flat, &t, 1, 1e9), 10);
    assert_int_equal(allocated(&steep, &t, 1, 1e9), 0);
    assert_int_equal(allocated(&step, &t, 1, 1e9), 7); /* a single node does not pay */
    assert_int_equal(allocated(&step, &t, 1, 1.5), 0); /* the step would take too long */
    assert_int_equal(allocated(&step, &t, 3, 1e9), 0); /* a second costs more tokens than the step saves */
    tree_reset(&t, 1);
    assert_int_equal(allocated(&flat, &t, 1, 1e9), 0);
}

/* A forward of n rows of a model that is divided among processes has as many exchanges as one of a single row. */
static void more_is_drafted_where_exchanges_are_expensive(void **state) {
    (void)state;
    enum { N_EXCHANGES = 130 };
    const double latencies_s[] = {0, 10e-6, 50e-6, 200e-6}, t1_s = 5e-3, row_s = 3e-3;
    static Tree t;
    tree_reset(&t, 1);
    for (int32_t i = 0; i < 31; i++) tree_add(&t, i, 2, t.nodes[i].p_accept * 0.8f, 0);
    for (int i = 0, before = 0; i < 4; i++) {
        double one_s = t1_s + N_EXCHANGES * latencies_s[i];
        const CostCurve c = {.n = 2, .rows = {1, 32}, .seconds = {one_s, one_s + 31 * row_s}};
        int32_t n = allocated(&c, &t, 1 / one_s, 1e9);
        print_message("%3.0f us for an exchange: %d drafted\n", 1e6 * latencies_s[i], n);
        assert_true(n > before);
        before = n;
    }
}

static void the_curve_follows_the_machine(void **state) {
    (void)state;
    CostCurve c = {.n = 4, .rows = {1, 2, 4, 8}, .seconds = {1, 1.5, 2, 3}};
    assert_true(fabs(cost_curve_at(&c, 3) - 1.75) < 1e-9 && fabs(cost_curve_at(&c, 16) - 5) < 1e-9);
    cost_curve_observe(&c, 1, 1000); /* another program took the core */
    assert_true(cost_curve_at(&c, 1) < 1.11);
    for (int i = 0; i < 400; i++) cost_curve_observe(&c, 1, 2), cost_curve_observe(&c, 4, 3);
    assert_true(fabs(cost_curve_at(&c, 1) - 2) < 0.1 && fabs(cost_curve_at(&c, 4) - 3) < 0.15);
    for (int k = 1; k < c.n; k++) {
        assert_true(c.seconds[k] >= c.seconds[k - 1]);
        assert_true(c.seconds[k] <= c.seconds[k - 1] * c.rows[k] / c.rows[k - 1] + 1e-9);
    }
}

static CostCurve curve(void) { return (CostCurve){.n = 4, .rows = {1, 2, 4, 8}, .seconds = {1, 1.5, 2, 3}}; }

/* Tests every rule of cost_curve_observe for sizes other than the observed one. */
static void a_forward_corrects_other_sizes(void **state) {
    (void)state;
    CostCurve c = curve();
    for (int i = 0; i < 400; i++)
        cost_curve_observe(&c, 8, 1e6); /* never more than the cost of several forwards of fewer rows */
    for (int k = 1; k < c.n; k++)
        assert_true(c.seconds[k] <= c.seconds[k - 1] * c.rows[k] / c.rows[k - 1] * (1 + 1e-9));
    c = curve();
    for (int i = 0; i < 10; i++) cost_curve_observe(&c, 1, 1.3); /* a slower machine is slower for all sizes */
    assert_true(cost_curve_at(&c, 8) > 3.1);
    c = curve();
    for (int i = 0; i < 20000; i++)
        cost_curve_observe(&c, 1,
                           1); /* a size that is never observed becomes slowly cheaper, so that it is tried again */
    assert_true(cost_curve_at(&c, 8) < 2.5);
    c = curve();
    cost_curve_observe(&c, 17, 1e6); /* more than twice the largest measured size: outside the curve */
    for (int k = 0; k < c.n; k++) assert_true(c.seconds[k] == curve().seconds[k]);
    cost_curve_observe(&c, 16, 6); /* slower than predicted: no size becomes cheaper because of that */
    for (int k = 0; k < c.n; k++) assert_true(c.seconds[k] > curve().seconds[k]);
}

/* A machine that becomes half as fast, while only trees of one size run, keeps the shape of its curve. */
static void a_change_of_speed_keeps_the_shape(void **state) {
    (void)state;
    CostCurve c = curve();
    for (int i = 0; i < 40; i++) cost_curve_observe(&c, 8, 6);
    assert_true(fabs(cost_curve_at(&c, 8) - 6) < 0.05);
    assert_true(fabs(cost_curve_at(&c, 8) / cost_curve_at(&c, 1) - 3) < 0.6);
    for (int i = 0; i < 40; i++) cost_curve_observe(&c, 1, 1); /* as fast as before */
    assert_true(fabs(cost_curve_at(&c, 8) / cost_curve_at(&c, 1) - 3) < 1.2);
}

/* Forwards of few rows whose times vary do not change the cost of many rows. */
static void noise_of_few_rows_leaves_the_others(void **state) {
    (void)state;
    CostCurve c = {.n = 6, .rows = {1, 2, 3, 4, 8, 16}, .seconds = {40, 40, 40, 41, 49, 88}};
    for (int i = 0; i < 500; i++)
        cost_curve_observe(&c, 1 + (int32_t)(rng_uniform(7, RNG_TEST, (uint64_t)i, 0) * 4),
                           40 * (0.97 + 0.09 * rng_uniform(7, RNG_TEST, (uint64_t)i, 1)));
    assert_true(fabs(cost_curve_at(&c, 1) - 40.6) < 2);
    assert_true(cost_curve_at(&c, 16) > 70 && cost_curve_at(&c, 16) < 105);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_set_of_nodes_is_better),
        cmocka_unit_test(rows_decide),
        cmocka_unit_test(more_is_drafted_where_exchanges_are_expensive),
        cmocka_unit_test(the_curve_follows_the_machine),
        cmocka_unit_test(a_forward_corrects_other_sizes),
        cmocka_unit_test(a_change_of_speed_keeps_the_shape),
        cmocka_unit_test(noise_of_few_rows_leaves_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
