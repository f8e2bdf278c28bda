/* test_rule_transport.c - the rule `transport`: compares its acceptance on random pairs of distributions with
 * `recursive`, `k-seq` and the optimum, which no rule can exceed; and checks which effects the plan has. */
#include "testing.h"

#include "base/rng.h"
#include "research/acceptance.h"

#include <math.h>
#include <string.h>

enum { MAX_V = 8, N_PAIRS = 20 };

static uint32_t g_n_dice;
static double dice(void) { return rng_uniform(17, RNG_TEST, 0, g_n_dice++); }

/* log p is uniform within `spread` of 0 and log q within `distance` of log p. */
static void random_pair(int32_t n_vocab, double spread, double distance, double *p, float *q) {
    double sum = 0;
    for (int32_t t = 0; t < n_vocab; t++) {
        double log_p = spread * (2 * dice() - 1);
        p[t] = exp(log_p);
        q[t] = (float)exp(log_p + distance * (2 * dice() - 1));
        sum += p[t];
    }
    for (int32_t t = 0; t < n_vocab; t++) p[t] /= sum;
}

/* Mean acceptance over pairs. */
typedef struct Means {
    double k_seq, recursive, transport, optimum, worst; /* worst: the least of transport - recursive */
} Means;

static Means compare(int32_t n_vocab, int32_t k, double spread, double distance) {
    Means m = {.worst = 1};
    for (int i = 0; i < N_PAIRS; i++) {
        double p[MAX_V];
        float q[MAX_V];
        random_pair(n_vocab, spread, distance, p, q);
        double recursive = acceptance_recursive(p, q, n_vocab, k), transport = acceptance_transport(p, q, n_vocab, k);
        double optimum = acceptance_optimum_without_replacement(p, q, n_vocab, k);
        if (transport > optimum + 1e-12) fail_msg("K %d: %.15f, but the optimum is %.15f", k, transport, optimum);
        m.k_seq += acceptance_k_seq(p, q, n_vocab, k, 0) / N_PAIRS;
        m.recursive += recursive / N_PAIRS;
        m.transport += transport / N_PAIRS;
        m.optimum += optimum / N_PAIRS;
        if (transport - recursive < m.worst) m.worst = transport - recursive;
    }
    return m;
}

static void it_accepts_more_than_recursive_and_k_seq(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double spread, distance;
    } shapes[] = {{"flat, near", 0.5, 0.3}, {"flat, far", 0.5, 1.5},  {"medium, near", 2, 0.5},
                  {"medium, far", 2, 2},    {"peaked, near", 4, 0.5}, {"peaked, far", 4, 2}};
    print_message("V K %-14s %7s %9s %9s %7s  %s\n", "distributions", "k-seq", "recursive", "transport", "optimum",
                  "worst transport - recursive");
    for (int32_t k = 2; k <= 4; k++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            int32_t n_vocab = k == 2 ? 8 : k == 3 ? 7 : 6;
            Means m = compare(n_vocab, k, shapes[i].spread, shapes[i].distance);
            print_message("%d %d %-14s %.4f    %.4f    %.4f  %.4f  %+.4f\n", n_vocab, k, shapes[i].name, m.k_seq,
                          m.recursive, m.transport, m.optimum, m.worst);
            assert_true(m.transport >= m.k_seq && m.transport >= m.recursive - 1e-9);
            assert_true(m.worst > -1e-9);
            double gap = m.optimum - m.recursive;
            if (gap > 1e-3 && m.optimum - m.transport > 0.1 * gap)
                fail_msg("K %d, %s: only %.0f %% of the way from recursive to the optimum", k, shapes[i].name,
                         100 * (m.transport - m.recursive) / gap);
        }
}

/* For one draft, the acceptance is the overlap of p and q, which is the optimum; for points, it is their
 * probability. */
static void one_draft_and_points_are_at_the_optimum(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++) {
        double p[MAX_V], top = 0;
        float q[MAX_V];
        random_pair(MAX_V, 2, 2, p, q);
        assert_true(fabs(acceptance_transport(p, q, MAX_V, 1) - acceptance_optimum(p, q, MAX_V, 1)) < 1e-12);
        int32_t best = 0;
        for (int32_t t = 1; t < MAX_V; t++)
            if (q[t] > q[best]) best = t;
        top = p[best];
        assert_true(fabs(acceptance_of(transport_decide, DRAW_POINT, p, q, MAX_V, 1, 0, NULL) - top) < 1e-12);
    }
}

/* The example of rule_transport.c. */
static void the_worked_example(void **state) {
    (void)state;
    const double p[3] = {0.5, 0.3, 0.2};
    const float q[3] = {0.2f, 0.4f, 0.4f};
    assert_true(fabs(acceptance_recursive(p, q, 3, 2) - 0.8) < 1e-6);
    assert_true(fabs(acceptance_optimum_without_replacement(p, q, 3, 2) - (0.5 + 0.2 + 0.8 / 3)) < 1e-6);
    assert_true(fabs(acceptance_transport(p, q, 3, 2) - (0.5 + 0.2 + 0.8 / 3)) < 1e-5);
}

/* For independent drafts, it is not below k-seq, and the optimum is the one with replacement. */
static void independent_drafts_gain_too(void **state) {
    (void)state;
    double k_seq = 0, transport = 0, optimum = 0;
    for (int i = 0; i < 40; i++) {
        double p[MAX_V];
        float q[MAX_V];
        random_pair(6, 1, 1, p, q);
        k_seq += acceptance_k_seq(p, q, 6, 3, 0) / 40;
        transport += acceptance_of(transport_decide, DRAW_IID, p, q, 6, 3, 0, NULL) / 40;
        optimum += acceptance_optimum(p, q, 6, 3) / 40;
    }
    print_message("three independent drafts: k-seq %.4f, transport %.4f, optimum %.4f\n", k_seq, transport, optimum);
    assert_true(transport > k_seq + 0.01 && transport <= optimum + 1e-12);
}

static void the_output_distribution_is_right_for_odd_distributions(void **state) {
    (void)state;
    static const struct {
        double p[3];
        float q[3];
    } odd[] = {
        {{0.25, 0.25, 0.5}, {1, 1, 2}},
        {{1.0 / 3, 1.0 / 3, 1 - 2.0 / 3}, {1.0f / 3, 1.0f / 3, 1.0f / 3}},
        {{0.25 + 1e-15, 0.25 - 1e-15, 0.5}, {1, 1, 2}},
        {{1, 0, 0}, {0, 0.5f, 0.5f}},
        {{1, 0, 0}, {1, 0, 0}},
        {{0, 0.5, 0.5}, {1, 0, 0}},
        {{1e-300, 0.5, 0.5}, {1e-38f, 0.5f, 0.5f}},
        {{1 - 1e-12, 1e-12, 0}, {1e-12f, 1, 0}},
        {{0.5, 0.3, 0.2}, {1, 1e-5f, 1e-9f}},
        {{0.001, 0.001, 0.998}, {1, 1e-7f, 1e-7f}},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        for (int32_t k = 1; k <= 4; k++)
            for (DrawKind kind = DRAW_POINT; kind <= DRAW_WITHOUT_REPLACEMENT; kind++) {
                double dist[3];
                acceptance_of(transport_decide, kind, odd[i].p, odd[i].q, 3, k, 0, dist);
                for (int t = 0; t < 3; t++)
                    if (!(fabs(dist[t] - odd[i].p[t]) < 1e-12))
                        fail_msg("distributions %d, K %d, kind %d: token %d has %.17g instead of %.17g", (int)i, k,
                                 (int)kind, t, dist[t], odd[i].p[t]);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_accepts_more_than_recursive_and_k_seq),
        cmocka_unit_test(one_draft_and_points_are_at_the_optimum),
        cmocka_unit_test(the_worked_example),
        cmocka_unit_test(independent_drafts_gain_too),
        cmocka_unit_test(the_output_distribution_is_right_for_odd_distributions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
