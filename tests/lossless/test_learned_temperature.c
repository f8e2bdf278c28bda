/* test_learned_temperature.c - the p_accept of a learned drafter is the probability of a token at the temperature of
 * its request: for two possible tokens, log(p_accept / p_accept') is that of the distribution at temperature 1, divided
 * by the temperature, or by LEARNED_MIN_TEMPERATURE if that is larger. Four sequences of the same text, each with its
 * own temperature, draft in one proposal; the drafters are those of models/. */
#include "learned_rig.h"
#include "model_rig.h"
#include "testing.h"

#include "draft/learned/learned.h"

#include <math.h>
#include <stdio.h>

enum { N_SEQUENCES = 4, N_TEXT = 30, N_TEXTS = 6, BUDGET = 60 };

static const float temperatures[N_SEQUENCES] = {2, 0.5f, 0, 1};
enum { UNSCALED = 3 }; /* the sequence without a temperature: its p_accept is not scaled */

static const struct {
    const char *name, *options;
} methods[] = {{"lyanna", ""}, {"eagle", ""}, {"redrafter", ",width=8,length=1"}, {"medusa", ""}, {"hydra", ""}};

static void propose(LearnedReader *reader, Drafter *d, int32_t i_text, Tree *trees) {
    static const int32_t order[N_SEQUENCES] = {2, 0, 3, 1};
    int32_t text[N_TEXT], budgets[N_SEQUENCES];
    Tree *in_order[N_SEQUENCES];
    fr_error err;
    for (int32_t i = 0; i < N_TEXT; i++) text[i] = 300 + (i_text * 131 + i * 97) % 3000;
    for (int32_t s = 0; s < N_SEQUENCES; s++) {
        const SamplingOptions sampling = {.temperature = temperatures[s]};
        if (s != UNSCALED) d->class->set_sampling(d, s, &sampling, 0);
        learned_rig_feed(reader, d, s, text, N_TEXT, 8);
    }
    for (int32_t i = 0; i < N_SEQUENCES; i++) {
        tree_reset(&trees[order[i]], text[N_TEXT - 1]);
        in_order[i] = &trees[order[i]];
        budgets[i] = BUDGET;
    }
    if (d->class->propose(d, order, budgets, in_order, N_SEQUENCES, &err)) fail_msg("%s", err.message);
}

/* Compares the children of the root that both trees have with the first of them. */
static int check(const Tree *dist, const Tree *tree, double temperature, const char *method) {
    int n_checked = 0;
    double base = 0, base_dist = 0;
    for (int32_t i = 1; i < dist->n; i++) {
        int32_t other = dist->nodes[i].parent == 0 ? tree_child(tree, 0, dist->nodes[i].token) : -1;
        if (other < 0) continue;
        double x_dist = log((double)dist->nodes[i].p_accept), x = log((double)tree->nodes[other].p_accept);
        if (n_checked++ == 0) base = x, base_dist = x_dist;
        double want = (x_dist - base_dist) / temperature;
        if (fabs(x - base - want) > 1e-3 * (1 + fabs(want)))
            fail_msg("%s at %g: log(p_accept / p_accept') is %g, want %g", method, temperature, x - base, want);
    }
    assert_true(n_checked > 0);
    return n_checked;
}

static double used(int32_t s) {
    return temperatures[s] > LEARNED_MIN_TEMPERATURE ? (double)temperatures[s] : (double)LEARNED_MIN_TEMPERATURE;
}

static void est_is_at_the_temperature_of_the_request(void **state) {
    (void)state;
    static Tree trees[N_SEQUENCES];
    Gguf *gguf = rig_gguf(RIG_TARGET);
    Weights *target = rig_weights(gguf, NULL);
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        char spec[96];
        snprintf(spec, sizeof spec, "%s:file=models/%s.gguf,coupled=0%s", methods[m].name, methods[m].name,
                 methods[m].options);
        Drafter *d = learned_rig_open_drafter(&reader, spec, N_SEQUENCES);
        int n_checked[N_SEQUENCES] = {0};
        for (int32_t i = 0; i < N_TEXTS; i++) {
            propose(&reader, d, i, trees);
            for (int32_t s = 0; s < N_SEQUENCES; s++) {
                n_checked[s] += check(&trees[UNSCALED], &trees[s], used(s), methods[m].name) - 1;
                d->class->end(d, s);
            }
        }
        for (int32_t s = 0; s < N_SEQUENCES; s++) /* a sharp distribution may leave the root one child */
            if (n_checked[s] < 3)
                fail_msg("%s: only %d tokens to compare at %g", methods[m].name, n_checked[s], used(s));
        drafter_close(d);
    }
    learned_rig_close_reader(&reader);
    rig_weights_close(target);
    gguf_close(gguf);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(est_is_at_the_temperature_of_the_request)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
