/* test_sampler.c - unit tests of sampler.c: compares filters and penalties with a slow reference that follows only
 * sampler.h, draws with softmax by chi-square, with a negative control; and tests pruning and unusual logits. */
#include "testing.h"

#include "verify/gumbel.h"
#include "verify/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VOCAB = 48, MAX_CONTEXT = 40 };

/* A stream of random numbers for the tests. */
typedef struct Dice {
    uint64_t seed, n;
} Dice;
static double uniform(Dice *d) { return rng_uniform(d->seed, RNG_TEST, d->n++, 0); }
static int32_t below(Dice *d, int32_t n) { return (int32_t)(uniform(d) * n); }

/* ---- the reference ------------------------------------------------------------------------------ */

static void slow_penalise(const SamplingOptions *o, const float *logits, int32_t n, const int32_t *context,
                          int64_t n_context, float *out) {
    for (int32_t t = 0; t < n; t++) {
        int32_t seen = 0;
        for (int64_t i = 0; i < n_context; i++)
            if (context[i] == t && (o->penalty_last_n < 0 || i >= n_context - o->penalty_last_n)) seen++;
        out[t] = logits[t];
        if (!seen) continue;
        out[t] = out[t] > 0 ? out[t] / o->repeat_penalty : out[t] * o->repeat_penalty;
        out[t] = out[t] - (float)seen * o->frequency_penalty - o->presence_penalty;
    }
}

/* Probabilities after all filters, 0 for removed tokens. False if rounding could decide what is removed. */
static bool slow_dist(const SamplingOptions *o, const float *row, int32_t n, double *p) {
    int32_t order[MAX_VOCAB], n_left = 0;
    for (int32_t t = 0; t < n; t++) { /* insertion keeps equal logits in the order of their ids */
        p[t] = 0;
        if (isnan(row[t]) || row[t] == -INFINITY) continue;
        int32_t at = n_left++;
        for (; at > 0 && row[order[at - 1]] < row[t]; at--) order[at] = order[at - 1];
        order[at] = t;
    }
    if (o->top_k > 0 && n_left > o->top_k) n_left = o->top_k;
    double mass = 0;
    for (int32_t i = 0; i < n_left; i++)
        mass += p[order[i]] = exp(((double)row[order[i]] - (double)row[order[0]]) / (double)o->temperature);
    if (o->top_p < 1) {
        double sum = 0;
        int32_t n_kept = 0;
        while (n_kept < n_left && sum < (double)o->top_p * mass) {
            sum += p[order[n_kept++]];
            if (fabs(sum - (double)o->top_p * mass) < 1e-5 * mass) return false;
        }
        for (int32_t i = n_kept; i < n_left; i++) p[order[i]] = 0;
    }
    double total = 0;
    for (int32_t i = 0; i < n_left; i++) {
        double w = p[order[i]];
        if (w > 0 && w < (double)o->min_p) p[order[i]] = 0;
        if (o->min_p > 0 && o->min_p < 1 && fabs(w - (double)o->min_p) < 1e-9) return false;
        total += p[order[i]];
    }
    for (int32_t t = 0; t < n; t++) p[t] /= total > 0 ? total : 1;
    return true;
}

/* argmax over the kept tokens of logit / T + G, no pruning. */
static int32_t slow_choose(const SamplingOptions *o, const float *row, const double *p, int32_t n, uint64_t position) {
    int32_t best_id = 0;
    double best = -INFINITY;
    for (int32_t t = 0; t < n; t++) {
        if (o->temperature > 0 ? p[t] == 0 : isnan(row[t])) continue;
        double v = o->temperature > 0 ? (double)row[t] / (double)o->temperature +
                                            gumbel_noise(o->seed, RNG_TARGET, position, (int32_t)t)
                                      : (double)row[t];
        if (v > best) best = v, best_id = t;
    }
    return best_id;
}

/* ---- random cases ------------------------------------------------------------------------------- */

typedef struct Case {
    int32_t n;
    float logits[MAX_VOCAB];
    int32_t context[MAX_CONTEXT];
    int64_t n_context;
    SamplingOptions o;
} Case;

static void draw_case(Dice *d, Case *c) {
    c->n = 1 + below(d, MAX_VOCAB);
    bool coarse = below(d, 2), holes = below(d, 4) == 0; /* coarse: many ties */
    for (int32_t t = 0; t < c->n; t++) {
        double v = (uniform(d) - 0.5) * 12;
        c->logits[t] = (float)(coarse ? floor(v) / 2 : v);
        if (holes && below(d, 3) == 0) c->logits[t] = below(d, 2) ? NAN : -INFINITY;
    }
    c->n_context = below(d, MAX_CONTEXT + 1);
    for (int64_t i = 0; i < c->n_context; i++)
        c->context[i] = below(d, c->n + 2) - 1; /* also tokens outside the vocabulary */
    c->o = SAMPLING_DEFAULT;
    c->o.seed = (uint64_t)below(d, 1000);
    if (below(d, 5)) c->o.temperature = (float)(0.2 + 2 * uniform(d));
    if (below(d, 2)) c->o.top_k = below(d, c->n + 4);
    if (below(d, 2)) c->o.top_p = (float)(0.05 + 0.95 * uniform(d));
    if (below(d, 3) == 0) c->o.min_p = (float)(0.5 * uniform(d));
    if (below(d, 3) == 0) c->o.repeat_penalty = (float)(0.5 + 2 * uniform(d));
    if (below(d, 3) == 0) c->o.frequency_penalty = (float)(2 * uniform(d) - 0.5);
    if (below(d, 3) == 0) c->o.presence_penalty = (float)(2 * uniform(d) - 0.5);
    c->o.penalty_last_n = below(d, MAX_CONTEXT + 10) - 1;
}

/* Compares sampler_dist with the reference: the same tokens are removed, and the others agree within float rounding. */
static void assert_dist(Sampler *s, const Case *c, const double *p, int i_case) {
    float dist[MAX_VOCAB];
    sampler_dist(s, &c->o, c->logits, c->context, c->n_context, dist);
    for (int32_t t = 0; t < c->n; t++)
        if (fabs((double)dist[t] - p[t]) > 2e-6 || (p[t] == 0 && dist[t] > 0) || (p[t] > 1e-37 && dist[t] == 0))
            fail_msg("case %d: the distribution of token %d is %g, the reference has %g", i_case, t, (double)dist[t],
                     p[t]);
}

static void choices_equal_a_slow_reference(void **state) {
    (void)state;
    Dice d = {.seed = 11};
    Sampler *samplers[MAX_VOCAB + 1];
    for (int32_t n = 1; n <= MAX_VOCAB; n++) assert_non_null(samplers[n] = sampler_new(n));
    int n_compared = 0;
    for (int i = 0; i < 30000; i++) {
        Case c;
        draw_case(&d, &c);
        assert_int_equal(sampling_check(&c.o, NULL), FR_OK);
        float row[MAX_VOCAB], kept[MAX_VOCAB];
        double p[MAX_VOCAB] = {0};
        memcpy(kept, c.logits, sizeof kept);
        slow_penalise(&c.o, c.logits, c.n, c.context, c.n_context, row);
        if (c.o.temperature > 0 && !slow_dist(&c.o, row, c.n, p)) continue;
        n_compared++;
        uint64_t position = (uint64_t)i;
        bool any = false;
        for (int32_t t = 0; t < c.n; t++) any |= p[t] > 0;
        if (any) assert_dist(samplers[c.n], &c, p, i);
        int32_t want = slow_choose(&c.o, row, p, c.n, position);
        int32_t got = sampler_choose(samplers[c.n], &c.o, c.logits, c.context, c.n_context, position);
        if (got != want)
            fail_msg("case %d (V %d, T %g, k %d, p %g, min-p %g): token %d, the reference has %d", i, c.n,
                     (double)c.o.temperature, c.o.top_k, (double)c.o.top_p, (double)c.o.min_p, got, want);
        assert_memory_equal(kept, c.logits, (size_t)c.n * sizeof(float));
    }
    assert_true(n_compared > 29000);
    for (int32_t n = 1; n <= MAX_VOCAB; n++) sampler_free(samplers[n]);
}

static int compare_falling(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Rows are so flat that top-p uses buckets: as many tokens remain as with a sorted row. */
static void top_p_with_buckets_keeps_the_right_number_of_tokens(void **state) {
    (void)state;
    enum { V = 20000 };
    static float row[V], dist[V];
    static double p[V];
    Sampler *s = sampler_new(V);
    for (int c = 0; c < 24; c++) {
        const SamplingOptions o = {.temperature = (float[]){0.5f, 0.8f, 2}[c % 3],
                                   .top_p = (float[]){0.3f, 0.9f, 0.95f, 0.999f}[c / 3 % 4],
                                   .repeat_penalty = 1};
        double max = -INFINITY, mass = 0, sum = 0;
        for (int32_t t = 0; t < V; t++) {
            row[t] = (float)(c / 12 ? 2 * gumbel_noise(3, RNG_TEST, (uint64_t)c, (int32_t)t)
                             : rng_uniform(3, RNG_TEST, (uint64_t)c, (uint32_t)t) > 0.5 ? 1.5
                                                                                        : -1.0 - t * 1e-4);
            if ((double)row[t] > max) max = (double)row[t];
        }
        for (int32_t t = 0; t < V; t++) mass += p[t] = exp(((double)row[t] - max) / (double)o.temperature);
        qsort(p, V, sizeof *p, compare_falling);
        int32_t want = 0, got = 0;
        while (sum < (double)o.top_p * mass) sum += p[want++];
        sampler_dist(s, &o, row, NULL, 0, dist);
        float least_in = INFINITY, most_out = -INFINITY;
        for (int32_t t = 0; t < V; t++) {
            got += dist[t] > 0;
            if (dist[t] > 0) least_in = row[t] < least_in ? row[t] : least_in;
            else most_out = row[t] > most_out ? row[t] : most_out;
        }
        assert_true(abs(got - want) <= 1 + want / 10000); /* sums in float and in double may differ by a token */
        assert_true(least_in >= most_out);
    }
    sampler_free(s);
}

static void penalties_follow_the_header(void **state) {
    (void)state;
    Sampler *s = sampler_new(4);
    const int32_t context[] = {3, 0, 0, 1};
    SamplingOptions o = SAMPLING_DEFAULT;
    const float positive[] = {3, 2, 1.8f, 0};
    assert_int_equal(sampler_choose(s, &o, positive, context, 4, 0), 0);
    o.repeat_penalty = 2; /* 1.5 1 1.8 0 */
    assert_int_equal(sampler_choose(s, &o, positive, context, 4, 0), 2);
    const float negative[] = {-1, -1.2f, -1.9f, -9};
    assert_int_equal(sampler_choose(s, &o, negative, context, 4, 0), 2); /* -2 -2.4 -1.9 -18 */
    o.penalty_last_n = 1;                                                /* only token 1 counts as seen */
    assert_int_equal(sampler_choose(s, &o, positive, context, 4, 0), 0);
    o = SAMPLING_DEFAULT;
    o.frequency_penalty = 0.6f; /* 1.8 1.4 1.8 -0.6: a tie, the lowest id */
    o.penalty_last_n = -1;
    assert_int_equal(sampler_choose(s, &o, (float[]){3, 2, 1.8f, 0}, context, 4, 0), 0);
    o.frequency_penalty = 0.7f;
    assert_int_equal(sampler_choose(s, &o, positive, context, 4, 0), 2);
    o.frequency_penalty = 0, o.presence_penalty = 1.5f; /* once for token 0, however often it was seen */
    assert_int_equal(sampler_choose(s, &o, (float[]){3, 2, 1.4f, 0}, context, 4, 0), 0);
    sampler_free(s);
}

/* ---- the distribution ------------------------------------------------------------------------------------ */

/* Returns the value that a chi-square variable with df degrees of freedom exceeds once in 1e9 (Wilson and Hilferty
 * 1931). */
static double chi_square_limit(int df) {
    double a = 2.0 / (9.0 * df);
    return df * pow(1 - a + 5.998 * sqrt(a), 3);
}

/* Chi-square of n draws at successive positions against the distribution `p`; *df becomes its degrees of freedom. */
static double chi_square(const SamplingOptions *o, const float *logits, int32_t n_vocab, const double *p, int n,
                         int *df) {
    Sampler *s = sampler_new(n_vocab);
    int counts[MAX_VOCAB] = {0};
    for (int i = 0; i < n; i++) counts[sampler_choose(s, o, logits, NULL, 0, (uint64_t)i)]++;
    sampler_free(s);
    double x = 0;
    *df = -1;
    for (int32_t t = 0; t < n_vocab; t++) {
        if (p[t] == 0) {
            assert_int_equal(counts[t], 0);
            continue;
        }
        double want = n * p[t];
        x += (counts[t] - want) * (counts[t] - want) / want;
        ++*df;
    }
    return x;
}

static void draws_follow_the_filtered_distribution(void **state) {
    (void)state;
    float logits[24];
    for (int32_t t = 0; t < 24; t++) logits[t] = 2 * sinf((float)(t * t));
    const SamplingOptions options[] = {
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1},
        {.temperature = 0.7f, .top_p = 1, .repeat_penalty = 1, .seed = 2},
        {.temperature = 1.5f, .top_k = 7, .top_p = 1, .repeat_penalty = 1, .seed = 3},
        {.temperature = 1, .top_p = 0.8f, .repeat_penalty = 1, .seed = 4},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f, .repeat_penalty = 1, .seed = 5},
        {.temperature = 0.9f, .top_k = 12, .top_p = 0.9f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 6},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        double p[MAX_VOCAB];
        assert_true(slow_dist(&options[i], logits, 24, p));
        int df;
        double x = chi_square(&options[i], logits, 24, p, 100000, &df);
        if (x > chi_square_limit(df)) fail_msg("options %zu: chi-square %g, limit %g", i, x, chi_square_limit(df));
    }
}

/* The negative control of the test above: a distribution 3 % off for one pair of tokens is detected. */
static void a_slightly_wrong_distribution_is_detected(void **state) {
    (void)state;
    float logits[4] = {1, 0.5f, 0.2f, 0};
    SamplingOptions o = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 9};
    double p[MAX_VOCAB];
    int df;
    assert_true(slow_dist(&o, logits, 4, p));
    assert_true(chi_square(&o, logits, 4, p, 100000, &df) < chi_square_limit(3));
    p[0] *= 1.03, p[3] = 1 - p[0] - p[1] - p[2];
    assert_true(chi_square(&o, logits, 4, p, 100000, &df) > chi_square_limit(3));
}

static void pruning_changes_nothing(void **state) {
    (void)state;
    enum { V = 3001 };
    static float logits[V];
    static double p[V];
    Dice d = {.seed = 12};
    Sampler *s = sampler_new(V);
    for (int i = 0; i < 300; i++) {
        double spread = pow(10, 4 * uniform(&d) - 2), shift = pow(10, 8 * uniform(&d) - 2);
        for (int32_t t = 0; t < V; t++) logits[t] = (float)(shift + spread * (uniform(&d) - 0.5)), p[t] = 1;
        SamplingOptions o = SAMPLING_DEFAULT;
        o.temperature = (float)pow(10, 3 * uniform(&d) - 1.5);
        o.seed = (uint64_t)i;
        int32_t want = slow_choose(&o, logits, p, V, 5), got = sampler_choose(s, &o, logits, NULL, 0, 5);
        if (got != want) fail_msg("row %d: token %d, unpruned %d", i, got, want);
        o.top_k = V / 2;
        int32_t k_want = -1; /* the winner among the k greatest */
        double best = -INFINITY;
        for (int32_t t = 0; t < V; t++) {
            int32_t rank = 0;
            for (int32_t u = 0; u < V; u++) rank += logits[u] > logits[t] || (logits[u] == logits[t] && u < t);
            double v = (double)logits[t] / (double)o.temperature + gumbel_noise(o.seed, RNG_TARGET, 5, (int32_t)t);
            if (rank < o.top_k && v > best) best = v, k_want = t;
            if (i > 2) break; /* this costs V squared, so only a few times */
        }
        if (i <= 2) assert_int_equal(sampler_choose(s, &o, logits, NULL, 0, 5), k_want);
    }
    sampler_free(s);
}

/* ---- edges -------------------------------------------------------------------------------------- */

static void odd_logits_give_a_defined_token(void **state) {
    (void)state;
    const struct {
        float logits[4];
        int32_t want;
    } rows[] = {
        {{NAN, NAN, NAN, NAN}, 0},          {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, 0},
        {{NAN, -INFINITY, -1e38f, NAN}, 2}, {{1, INFINITY, INFINITY, NAN}, 1},
        {{NAN, -INFINITY, NAN, 0}, 3},
    };
    const SamplingOptions options[] = {
        SAMPLING_DEFAULT,
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1e-30f, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1, .top_k = 3, .top_p = 0.9f, .min_p = 0.1f, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 0.9f, .repeat_penalty = 1.3f, .penalty_last_n = -1},
    };
    Sampler *s = sampler_new(4);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
            int32_t got = sampler_choose(s, &options[i], rows[r].logits, (int32_t[]){3, 2}, 2, 0);
            if (got != rows[r].want) fail_msg("row %zu, options %zu: %d, want %d", r, i, got, rows[r].want);
        }
    const float tie[] = {1, 5, 5, 2};
    assert_int_equal(sampler_choose(s, &options[0], tie, NULL, 0, 0), 1);
    for (uint64_t i = 0; i < 20; i++) /* the noise vanishes next to 5e30, so the logits are tied and the lowest id
                                       * wins */
        assert_int_equal(sampler_choose(s, &options[2], tie, NULL, 0, i), 1);
    sampler_free(s);
}

static void options_out_of_range_are_refused_by_name(void **state) {
    (void)state;
    const struct {
        SamplingOptions o;
        const char *name;
    } bad[] = {
        {{.temperature = -1, .top_p = 1, .repeat_penalty = 1}, "temperature"},
        {{.temperature = NAN, .top_p = 1, .repeat_penalty = 1}, "temperature"},
        {{.temperature = INFINITY, .top_p = 1, .repeat_penalty = 1}, "temperature"},
        {{.top_k = -1, .top_p = 1, .repeat_penalty = 1}, "top_k"},
        {{.top_p = 0, .repeat_penalty = 1}, "top_p"},
        {{.top_p = 1.5f, .repeat_penalty = 1}, "top_p"},
        {{.top_p = NAN, .repeat_penalty = 1}, "top_p"},
        {{.top_p = 1, .min_p = -0.1f, .repeat_penalty = 1}, "min_p"},
        {{.top_p = 1, .min_p = 1.1f, .repeat_penalty = 1}, "min_p"},
        {{.top_p = 1, .repeat_penalty = 0}, "repeat_penalty"},
        {{.top_p = 1, .repeat_penalty = NAN}, "repeat_penalty"},
        {{.top_p = 1, .repeat_penalty = 1, .frequency_penalty = INFINITY}, "frequency_penalty"},
        {{.top_p = 1, .repeat_penalty = 1, .presence_penalty = NAN}, "presence_penalty"},
        {{.top_p = 1, .repeat_penalty = 1, .penalty_last_n = -2}, "penalty_last_n"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fr_error err = {0};
        assert_int_equal(sampling_check(&bad[i].o, &err), FR_ERR_ARGUMENT);
        assert_true(strncmp(err.message, bad[i].name, strlen(bad[i].name)) == 0);
    }
    assert_int_equal(sampling_check(&SAMPLING_DEFAULT, NULL), FR_OK);
}

static double logprob(const float *logits, int32_t n_vocab, int32_t token) {
    Sampler *s = sampler_new(n_vocab);
    LogSoftmax l = sampler_log_softmax(s, logits);
    sampler_free(s);
    return log_softmax_of(&l, logits[token]);
}

static void log_probabilities_are_those_of_softmax(void **state) {
    (void)state;
    const float logits[] = {0, 1, NAN, -INFINITY, 1000}, none[] = {NAN, -INFINITY},
                infinite[] = {1, INFINITY, INFINITY};
    assert_true(fabs(logprob(logits, 2, 0) + log(1 + exp(1))) < 1e-12);
    assert_true(fabs(logprob(logits, 3, 1) - (1 - log(1 + exp(1)))) < 1e-12);
    assert_true(logprob(logits, 3, 2) == -INFINITY);
    assert_true(logprob(logits, 4, 3) == -INFINITY);
    assert_true(fabs(logprob(logits, 5, 0) + 1000) < 1e-9);
    for (int32_t t = 0; t < 2; t++) assert_true(logprob(none, 2, t) == -INFINITY);
    for (int32_t t = 0; t < 3; t++) assert_true(logprob(infinite, 3, t) == (t ? 0 : -INFINITY));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_equal_a_slow_reference),
        cmocka_unit_test(penalties_follow_the_header),
        cmocka_unit_test(top_p_with_buckets_keeps_the_right_number_of_tokens),
        cmocka_unit_test(draws_follow_the_filtered_distribution),
        cmocka_unit_test(a_slightly_wrong_distribution_is_detected),
        cmocka_unit_test(pruning_changes_nothing),
        cmocka_unit_test(odd_logits_give_a_defined_token),
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
        cmocka_unit_test(log_probabilities_are_those_of_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
