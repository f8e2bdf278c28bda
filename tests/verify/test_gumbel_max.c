/* test_gumbel_max.c - unit tests of sampler.c: the sampler chooses the token with the greatest z + G, as a search
 * that computes the noise of every token does, for vocabularies from 1 to 200,000 tokens, temperatures from tiny to
 * huge, all filters, rows with NaN, infinities and ties, and every table of kernels; and the token that wins a row is
 * found from those that win its parts. */
#include "testing.h"

#include "all_tables.h"
#include "verify/gumbel.h"
#include "verify/sampler.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { MAX_V = 200000, N_CONTEXT = 20 };

typedef struct Dice {
    uint64_t seed, n;
} Dice;
static double uniform(Dice *d) { return rng_uniform(d->seed, RNG_TEST, d->n++, 0); }
static int32_t below(Dice *d, int32_t n) { return (int32_t)(uniform(d) * n); }

static float row[MAX_V], dist[MAX_V];
static int32_t context[N_CONTEXT];

/* Shapes: flat, normal-like, one leader, ties, far apart, holes. */
static void make_row(Dice *d, int32_t n) {
    int32_t shape = below(d, 7);
    double spread = pow(10, 3 * uniform(d) - 2), shift = below(d, 3) ? 0 : pow(10, 9 * uniform(d) - 3);
    for (int32_t t = 0; t < n; t++) {
        double g = gumbel_noise(d->seed, RNG_TEST, d->n, t), v = shape < 2 ? spread * (g - 0.5) : 2 * g;
        if (shape == 2) v = floor(v);
        if (shape == 3) v = t % 1000 == 7 ? 9 : v * 0.1;
        if (shape == 4) v *= 1e6;
        row[t] = (float)(shift + v);
        if (shape == 5 && below(d, 3) == 0) row[t] = below(d, 2) ? NAN : -INFINITY;
        if (shape == 6) row[t] = 1.5f;
    }
    d->n++;
}

static SamplingOptions draw_options(Dice *d, int32_t n, LogitBias bias[3]) {
    static const float temperatures[] = {1, 1, 0.7f, 0.01f, 3, 100, 1e-30f, 1e30f};
    SamplingOptions o = SAMPLING_DEFAULT;
    o.temperature = temperatures[below(d, 8)];
    o.seed = d->n * 77;
    if (below(d, 3) == 0) o.top_k = 1 + below(d, below(d, 2) ? n : 50);
    if (below(d, 3) == 0) o.top_p = (float)(0.02 + 0.979 * uniform(d));
    if (below(d, 4) == 0) o.min_p = (float)(0.3 * uniform(d));
    if (below(d, 4) == 0) o.repeat_penalty = 1.3f, o.frequency_penalty = 0.2f;
    for (int i = 0; i < 3; i++) bias[i] = (LogitBias){below(d, n), i ? (float)(20 * uniform(d) - 10) : -INFINITY};
    if (below(d, 4) == 0) o.bias = bias, o.n_bias = 1 + below(d, 3);
    for (int i = 0; i < N_CONTEXT; i++) context[i] = below(d, n);
    return o;
}

/* argmax of z + G over all tokens to which sampler_dist gives a probability, with the biases and penalties of
 * sampler.h. */
static int32_t slow_choose(Sampler *s, const SamplingOptions *o, int32_t n, uint64_t position) {
    static float adjusted[MAX_V];
    GumbelRow g;
    int32_t best_id = -1;
    double best = -INFINITY;
    sampler_dist(s, o, row, context, N_CONTEXT, dist);
    for (int32_t t = 0; t < n; t++) adjusted[t] = row[t];
    for (int32_t i = 0; i < o->n_bias; i++) adjusted[o->bias[i].token] += o->bias[i].bias;
    for (int32_t t = 0; t < N_CONTEXT && o->repeat_penalty != 1; t++) {
        int32_t n_seen = 0, first = N_CONTEXT;
        for (int32_t i = 0; i < N_CONTEXT; i++)
            if (context[i] == context[t]) n_seen++, first = i < first ? i : first;
        float *x = &adjusted[context[t]];
        if (first == t) *x = (*x > 0 ? *x / o->repeat_penalty : *x * o->repeat_penalty) - (float)n_seen * 0.2f;
    }
    gumbel_row_begin(&g, o->seed, RNG_TARGET, position, n);
    for (int32_t t = 0; t < n; t++) {
        double z = (double)adjusted[t] / (double)o->temperature;
        if (!(dist[t] > 0)) continue;
        double value = z + gumbel_of(gumbel_row_v(&g, t));
        if (best_id < 0 || value > best) best = value, best_id = t;
    }
    return best_id;
}

static void check(Dice *d, int32_t n, int n_cases) {
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    LogitBias bias[3];
    Sampler *s = sampler_new(n);
    assert_non_null(s);
    for (int i = 0; i < n_cases; i++) {
        make_row(d, n);
        SamplingOptions o = draw_options(d, n, bias);
        sampler_use_kernels(s, &row_kernels_plain);
        bool any = false;
        for (int32_t t = 0; t < n; t++) any |= row[t] > -INFINITY && !(o.n_bias > 0 && o.bias[0].token == t);
        int32_t want = any ? slow_choose(s, &o, n, (uint64_t)i) : 0;
        for (int t = 0; t < n_tables; t++) {
            sampler_use_kernels(s, tables[t]->rows);
            int32_t got = sampler_choose(s, &o, row, context, N_CONTEXT, (uint64_t)i);
            if (got != want)
                fail_msg("V %d, case %d (T %g, k %d, p %g, min-p %g), %s: token %d instead of %d", n, i,
                         (double)o.temperature, o.top_k, (double)o.top_p, (double)o.min_p, tables[t]->name, got, want);
        }
    }
    sampler_free(s);
}

static void pruned_draws_equal_the_unpruned_one(void **state) {
    (void)state;
    Dice d = {.seed = 5};
    for (int32_t n = 1; n <= 40; n++) check(&d, n, 40);
    for (int i = 0; i < 400; i++) check(&d, 1 + below(&d, 9000), 2);
    check(&d, 32000, 8);
    check(&d, 151936, 8);
    check(&d, MAX_V, 4);
}

/* One token leads, and there are so many tokens with a lower logit that one of them wins about every other time.
 * Returns how often a token with rare noise won. */
static int check_crowd(int32_t n, float below_leader, int n_positions) {
    int n_tables, n_won = 0;
    const Kernels *const *tables = all_tables(&n_tables);
    Sampler *s = sampler_new(n);
    for (int32_t t = 0; t < n; t++) row[t] = t == 50 ? 0 : below_leader;
    for (uint64_t position = 0; position < (uint64_t)n_positions; position++) {
        SamplingOptions o = SAMPLING_DEFAULT;
        o.temperature = 1;
        GumbelRow g;
        gumbel_row_begin(&g, o.seed, RNG_TARGET, position, n);
        sampler_use_kernels(s, &row_kernels_plain);
        int32_t want = slow_choose(s, &o, n, position);
        for (int32_t k = 0; k < g.n_rare; k++) n_won += want == g.rare_id[k];
        for (int t = 0; t < n_tables; t++) {
            sampler_use_kernels(s, tables[t]->rows);
            assert_int_equal(sampler_choose(s, &o, row, NULL, 0, position), want);
        }
    }
    sampler_free(s);
    return n_won;
}

static void distant_tokens_can_win(void **state) {
    (void)state;
    assert_true(check_crowd(100000, -11.5f, 300) > 30); /* these win only with rare noise */
    check_crowd(8000, -9, 3000);                        /* these win narrowly, so the margins of the tests count */
}

/* The token that wins a row is found from the tokens that win its parts, with their logits and a very low number in the
 * place of all others, as ranks that have a part of the row each find it. */
static void the_winner_of_a_row_wins_a_part(void **state) {
    (void)state;
    enum { N = 700, N_CASES = 400, MOST_PARTS = 4 };
    static const float temperatures[] = {1, 0.7f, 3, 100, 1e-30f, 1e29f};
    static float winners[N];
    static GumbelMax draw;
    int n_tables, n_not_greatest = 0;
    const Kernels *const *tables = all_tables(&n_tables);
    Dice d = {.seed = 8};
    Sampler *s = sampler_new(N);
    for (int i = 0; i < N_CASES; i++) {
        const RowKernels *rows = tables[i % n_tables]->rows;
        SamplingOptions o = SAMPLING_DEFAULT;
        int32_t n_parts = 1 + below(&d, MOST_PARTS), first = 0;
        do make_row(&d, N);
        while (!row_kernels_plain.is_finite(row, N));
        if (i % 50 == 0)
            for (int32_t t = 0; t < N; t++) row[t] = -FLT_MAX;
        o.temperature = temperatures[i % 6], o.seed = d.n;
        sampler_use_kernels(s, rows);
        int32_t want = sampler_choose(s, &o, row, NULL, 0, (uint64_t)i), greatest = rows->argmax(row, N);
        for (int32_t t = 0; t < N; t++) winners[t] = -FLT_MAX;
        for (int32_t part = 0, last; part < n_parts; part++, first = last) {
            last = part == n_parts - 1 ? N : first + (1 + below(&d, (N - first) / 4 - (n_parts - part))) * 4;
            GumbelField field = gumbel_field(first, last);
            int32_t max_id = first + rows->argmax(row + first, last - first);
            gumbel_max_begin(&draw, o.seed, (uint64_t)i, o.temperature, N, row[max_id], max_id);
            gumbel_max_consider_row(&draw, rows, row, &field);
            assert_in_range(draw.best_id, first, last - 1);
            winners[draw.best_id] = row[draw.best_id];
        }
        assert_int_equal(sampler_choose(s, &o, winners, NULL, 0, (uint64_t)i), want);
        n_not_greatest += want != greatest;
    }
    assert_true(n_not_greatest > N_CASES / 4);
    sampler_free(s);
}

static void only_a_plain_draw_takes_the_best(void **state) {
    (void)state;
    const LogitBias bias = {3, 1};
    SamplingOptions plain = SAMPLING_DEFAULT, o[7];
    assert_true(sampling_takes_best(&plain));
    plain.temperature = 0.5f;
    assert_true(sampling_takes_best(&plain));
    for (int i = 0; i < 7; i++) o[i] = plain;
    o[0].top_k = 40, o[1].top_p = 0.9f, o[2].min_p = 0.1f; /* these three do nothing at temperature 0 */
    o[3].repeat_penalty = 1.1f, o[4].frequency_penalty = 0.1f, o[5].presence_penalty = 0.1f;
    o[6].bias = &bias, o[6].n_bias = 1;
    for (int i = 0; i < 7; i++) {
        assert_false(sampling_takes_best(&o[i]));
        o[i].temperature = 0;
        assert_true(sampling_takes_best(&o[i]) == (i < 3));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pruned_draws_equal_the_unpruned_one),
        cmocka_unit_test(distant_tokens_can_win),
        cmocka_unit_test(the_winner_of_a_row_wins_a_part),
        cmocka_unit_test(only_a_plain_draw_takes_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
