/* test_optimal_transport.c - unit tests of research/acceptance.c: compares the optimum with a maximum flow, and the
 * exact acceptance probability of each rule with that optimum, which no rule can exceed. */
#include "testing.h"

#include "base/rng.h"
#include "research/acceptance.h"

#include <math.h>
#include <string.h>

enum { MAX_V = 5, N_SETS = 1 << MAX_V, N_DISTS = 300 };
static const double TOLERANCE = 1e-12;

static uint32_t g_n_dice;
static double dice(void) { return rng_uniform(11, RNG_TEST, 0, g_n_dice++); }

/* Draws a random distribution, often with zeros and with tokens far apart. */
static void random_dists(int32_t n_vocab, double *p, float *q) {
    double sum = 0;
    for (int32_t t = 0; t < n_vocab; t++) {
        p[t] = dice() < 0.15 ? 0 : exp(4 * dice());
        q[t] = dice() < 0.15 ? 0 : (float)exp(4 * dice());
        sum += p[t];
    }
    if (!(sum > 0)) sum = p[0] = 1;
    for (int32_t t = 0; t < n_vocab; t++) p[t] /= sum;
    q[n_vocab - 1] = 0.5f;
}

/* ---- the optimum, as a flow --------------------------------------------------------------------- */

typedef struct Flow {
    int32_t n_vocab;
    double of_set[N_SETS], to_sink[MAX_V], over[N_SETS][MAX_V]; /* remaining capacities; the flow over each edge */
    bool was_there[N_SETS];
} Flow;

/* Pushes up to `want` from a set to the sink, rerouting the flow of other sets if a token is full. */
static double push(Flow *f, int32_t set, double want) {
    if (f->was_there[set]) return 0;
    f->was_there[set] = true;
    for (int32_t t = 0; t < f->n_vocab; t++) {
        if (!(set >> t & 1)) continue;
        if (f->to_sink[t] > 1e-16) {
            double got = fmin(want, f->to_sink[t]);
            f->to_sink[t] -= got;
            f->over[set][t] += got;
            return got;
        }
        for (int32_t other = 0; other < 1 << f->n_vocab; other++) {
            double back = other == set || f->over[other][t] < 1e-16 ? 0 : push(f, other, fmin(want, f->over[other][t]));
            if (!(back > 0)) continue;
            f->over[other][t] -= back;
            f->over[set][t] += back;
            return back;
        }
    }
    return 0;
}

static double flow(const double *p, int32_t n_vocab, const double *chance_of) {
    static Flow f;
    double total = 0;
    memset(&f, 0, sizeof f);
    f.n_vocab = n_vocab;
    memcpy(f.to_sink, p, (size_t)n_vocab * sizeof *p);
    memcpy(f.of_set, chance_of, sizeof *chance_of << n_vocab);
    for (int32_t set = 0; set < 1 << n_vocab; set++)
        for (double got = 1; f.of_set[set] > 1e-16 && got > 0;) {
            memset(f.was_there, 0, sizeof f.was_there);
            got = push(&f, set, f.of_set[set]);
            f.of_set[set] -= got;
            total += got;
        }
    return total;
}

static void the_optimum_is_the_greatest_flow(void **state) {
    (void)state;
    for (int i = 0; i < N_DISTS; i++)
        for (int32_t k = 1; k <= 4; k++) {
            int32_t n_vocab = 2 + i % 4;
            double p[MAX_V], sets[N_SETS], sum = 0;
            float q[MAX_V];
            random_dists(n_vocab, p, q);
            if (i & 4) optimal_transport_sets_iid(q, n_vocab, k, sets);
            else optimal_transport_sets_without_replacement(q, n_vocab, k, sets);
            for (int32_t set = 0; set < 1 << n_vocab; set++) sum += sets[set];
            assert_true(fabs(sum - 1) < TOLERANCE);
            double want = flow(p, n_vocab, sets), got = optimal_transport_acceptance(p, n_vocab, sets);
            /* the flow is a sum of many small pushes */
            if (!(fabs(want - got) < 1e-9)) fail_msg("V %d, K %d: flow %.15f, cut %.15f", n_vocab, k, want, got);
        }
}

/* ---- the rules ---------------------------------------------------------------------------------- */

static void no_rule_accepts_more_than_the_optimum(void **state) {
    (void)state;
    int n_k_seq_ahead = 0, n_at_optimum = 0, n = 0;
    for (int i = 0; i < N_DISTS; i++)
        for (int32_t k = 1; k <= (i % 4 == 3 ? 3 : 4); k++) {
            int32_t n_vocab = 2 + i % 4;
            double p[MAX_V], sets[N_SETS];
            float q[MAX_V];
            random_dists(n_vocab, p, q);
            double optimum = acceptance_optimum(p, q, n_vocab, k), one = acceptance_optimum(p, q, n_vocab, 1);
            double multi_round = acceptance_multi_round(p, q, n_vocab, k),
                   k_seq = acceptance_k_seq(p, q, n_vocab, k, 0);
            double part = 1 - pow(1 - 1.0 / k, k);
            assert_true(part >= 1 - exp(-1));
            assert_true(multi_round <= optimum + TOLERANCE && multi_round >= one - TOLERANCE);
            assert_true(k_seq <= optimum + TOLERANCE && k_seq >= part * optimum - 1e-9); /* gamma* is found to 1e-12 */
            assert_true(acceptance_k_seq(p, q, n_vocab, k, k) <= k_seq + TOLERANCE);
            optimal_transport_sets_without_replacement(q, n_vocab, k, sets);
            assert_true(acceptance_recursive(p, q, n_vocab, k) <=
                        optimal_transport_acceptance(p, n_vocab, sets) + TOLERANCE);
            if (k == 1) assert_true(fabs(multi_round - optimum) < TOLERANCE && fabs(k_seq - optimum) < 1e-9);
            if (k == 1) continue;
            assert_true(multi_round <= k_seq + 1e-9); /* as stated in src/verify/ratio.c */
            n++;
            n_k_seq_ahead += k_seq > multi_round + 1e-9;
            n_at_optimum += multi_round > optimum - 1e-9;
        }
    print_message(
        "%d pairs of distributions: k-seq accepts more than multi-round %d times, never less; multi-round is the "
        "optimum %d times\n",
        n, n_k_seq_ahead, n_at_optimum);
}

static void one_draft_accepts_the_overlap_of_the_distributions(void **state) {
    (void)state;
    for (int i = 0; i < N_DISTS; i++) {
        double p[MAX_V], shared = 0, q_sum = 0;
        float q[MAX_V];
        random_dists(MAX_V, p, q);
        for (int32_t t = 0; t < MAX_V; t++) q_sum += (double)q[t];
        for (int32_t t = 0; t < MAX_V; t++) shared += fmin(p[t], (double)q[t] / q_sum);
        assert_true(fabs(acceptance_optimum(p, q, MAX_V, 1) - shared) < TOLERANCE);
        assert_true(fabs(acceptance_recursive(p, q, MAX_V, 1) - shared) < TOLERANCE);
    }
}

/* Recursive Speculative Decoding, Fig. 1: of two drafts of two tokens without replacement, one is always accepted. */
static void both_of_two_tokens_are_always_accepted(void **state) {
    (void)state;
    for (int a = 0; a <= 20; a++)
        for (int b = 1; b < 20; b++) {
            const double p[2] = {a / 20.0, 1 - a / 20.0};
            const float q[2] = {(float)b / 20, 1 - (float)b / 20};
            assert_true(fabs(acceptance_recursive(p, q, 2, 2) - 1) < 1e-15);
            assert_true(acceptance_multi_round(p, q, 2, 2) <= 1 + 1e-15);
        }
}

/* The example of rule_k_seq.c and acceptance.c. */
static void the_worked_example(void **state) {
    (void)state;
    const double p[2] = {0.2, 0.8};
    const float q[2] = {8, 2};
    assert_true(fabs(acceptance_multi_round(p, q, 2, 2) - 0.52) < TOLERANCE);
    assert_true(fabs(acceptance_k_seq(p, q, 2, 2, 0) - 0.53620) < 1e-5);
    assert_true(fabs(acceptance_k_seq(p, q, 2, 2, 1.7) - 0.53439) < 1e-5);
    assert_true(fabs(acceptance_k_seq(p, q, 2, 2, 1.5) - 0.53620) < 1e-5); /* too small, so gamma* is searched */
    assert_true(fabs(acceptance_optimum(p, q, 2, 2) - 0.56) < TOLERANCE);
}

/* Distributions that differ in the last bits, share no token, or are points. */
static void the_output_distribution_is_right_for_odd_distributions(void **state) {
    (void)state;
    static const struct {
        double p[3];
        float q[3];
    } odd[] = {
        {{0.25, 0.25, 0.5}, {1, 1, 2}},
        {{1.0 / 3, 1.0 / 3, 1 - 2.0 / 3}, {1.0f / 3, 1.0f / 3, 1.0f / 3}},
        {{0.25 + 1e-9, 0.25 - 1e-9, 0.5}, {1, 1, 2}},
        {{0.25 + 1e-15, 0.25 - 1e-15, 0.5}, {1, 1, 2}},
        {{1, 0, 0}, {0, 0.5f, 0.5f}},
        {{1, 0, 0}, {1, 0, 0}},
        {{0, 0.5, 0.5}, {1, 0, 0}},
        {{1e-300, 0.5, 0.5}, {1e-38f, 0.5f, 0.5f}},
        {{1 - 1e-12, 1e-12, 0}, {1e-12f, 1, 0}},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        for (int32_t k = 1; k <= 4; k++)
            for (int rule = 0; rule < 2; rule++)
                for (DrawKind kind = rule ? DRAW_IID : DRAW_POINT; kind <= (rule ? DRAW_IID : DRAW_WITHOUT_REPLACEMENT);
                     kind++) {
                    double dist[3];
                    acceptance_of(rule ? k_seq_decide : rejection_decide, kind, odd[i].p, odd[i].q, 3, k, 0, dist);
                    for (int t = 0; t < 3; t++)
                        if (!(fabs(dist[t] - odd[i].p[t]) < TOLERANCE))
                            fail_msg("distributions %d, K %d, kind %d: token %d has %.17g instead of %.17g", (int)i, k,
                                     (int)kind, t, dist[t], odd[i].p[t]);
                }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_optimum_is_the_greatest_flow),
        cmocka_unit_test(no_rule_accepts_more_than_the_optimum),
        cmocka_unit_test(one_draft_accepts_the_overlap_of_the_distributions),
        cmocka_unit_test(both_of_two_tokens_are_always_accepted),
        cmocka_unit_test(the_worked_example),
        cmocka_unit_test(the_output_distribution_is_right_for_odd_distributions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
