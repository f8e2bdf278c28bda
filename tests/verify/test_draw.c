/* test_draw.c - unit tests of gumbel.c: compares draws without replacement of tokens and of whole paths with
 * enumeration, each with a negative control; pruned draws with unpruned ones, and bit by bit with a scan of all tokens,
 * for every table of kernels; and truncation with its formula. */
#include "testing.h"

#include "all_tables.h"
#include "verify/gumbel.h"
#include "statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double uniform(uint64_t *n) { return rng_uniform(77, RNG_TEST, (*n)++, 0); }

static DrawParent root(uint64_t seed, uint64_t position) {
    return (DrawParent){.noise = {.stream = RNG_DRAFT, .seed = seed, .position = position}};
}

enum { MAX_V = 300 };

/* Draws with the plain kernels and one cache for each size of vocabulary, up to MAX_V. */
static int32_t draw(const float *q, int32_t n_vocab, const DrawParent *parent, int32_t i_parent, int32_t k,
                    DrawChild *out) {
    static DrawCache *caches[MAX_V + 1];
    DrawCache **c = &caches[n_vocab];
    if (!*c) *c = draw_cache_new(n_vocab, &row_kernels_plain);
    assert_non_null(*c);
    return draw_children(*c, q, parent, i_parent, k, out);
}

/* Probability of drawing i, then j, then k (-1: only two) without replacement from p. */
static double ordered(const double *p, int i, int j, int k) {
    if (i == j || i == k || j == k) return 0;
    double two = p[i] * p[j] / (1 - p[i]);
    return k < 0 ? two : two * p[k] / (1 - p[i] - p[j]);
}

/* ---- tokens ------------------------------------------------------------------------------------- */

enum { V = 5 };
static const float dist[V] = {0.4f, 0.05f, 0.3f, 0, 0.25f};

static double triples(const double *p, int n, int *df) {
    static int counts[V * V * V];
    static double want[V * V * V];
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < V * V * V; i++) want[i] = ordered(p, i / V / V, i / V % V, i % V);
    for (int i = 0; i < n; i++) {
        DrawChild c[3];
        DrawParent parent = root(3, (uint64_t)i);
        assert_int_equal(draw(dist, V, &parent, 0, 3, c), 3);
        counts[(c[0].token * V + c[1].token) * V + c[2].token]++;
    }
    return chi_square(counts, want, V * V * V, n, df);
}

static void ordered_draws_follow_enumeration(void **state) {
    (void)state;
    double p[V];
    int df;
    for (int i = 0; i < V; i++) p[i] = (double)dist[i];
    double x = triples(p, 200000, &df);
    assert_int_equal(df, 23); /* 4 * 3 * 2 triples of the tokens that have a probability */
    if (x > chi_square_limit(df)) fail_msg("chi-square %g, limit %g", x, chi_square_limit(df));
    p[0] += 0.01, p[2] -= 0.01; /* negative control */
    x = triples(p, 200000, &df);
    if (x < chi_square_limit(df)) fail_msg("a distribution 0.01 off: chi-square %g, limit %g", x, chi_square_limit(df));
}

/* ---- paths -------------------------------------------------------------------------------------- */

/* The distributions of a tree of two levels over three tokens: that of the first token, and that of the second after
 * each first token. */
static const float first_dist[3] = {0.5f, 0.2f, 0.3f};
static const float second_dist[3][3] = {{0.2f, 0.7f, 0.1f}, {0.34f, 0.33f, 0.33f}, {0.9f, 0, 0.1f}};
enum { N_PATHS = 9 };

/* One stochastic beam search of `width`: the paths (3 * first + second) in order. forget: psi is dropped between
 * levels, which is wrong. */
static int32_t search(uint64_t position, int32_t width, bool forget, int *paths) {
    DrawChild beam[9], next[27];
    DrawParent top = root(9, position);
    int32_t n = draw(first_dist, 3, &top, 0, width, beam), n_next = 0;
    n = draw_beam(beam, n, width);
    for (int32_t i = 0; i < n; i++) {
        DrawParent parent = {
            .log_q = beam[i].log_q,
            .psi = forget ? 0 : beam[i].psi,
            .noise = {.stream = RNG_DRAFT, .seed = 100 + (uint64_t)beam[i].token, .position = position}};
        n_next += draw(second_dist[beam[i].token], 3, &parent, i, width, next + n_next);
    }
    n_next = draw_beam(next, n_next, width);
    for (int32_t i = 0; i < n_next; i++) {
        paths[i] = 3 * beam[next[i].parent].token + next[i].token;
        if (i > 0) assert_true(next[i].psi <= next[i - 1].psi);
    }
    return n_next;
}

static double path_triples(bool forget, int n, int *df) {
    static int counts[N_PATHS * N_PATHS * N_PATHS];
    static double want[N_PATHS * N_PATHS * N_PATHS];
    double p[N_PATHS];
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < N_PATHS; i++) p[i] = (double)first_dist[i / 3] * (double)second_dist[i / 3][i % 3];
    for (int i = 0; i < N_PATHS * N_PATHS * N_PATHS; i++) want[i] = ordered(p, i / 81, i / 9 % 9, i % 9);
    for (int i = 0; i < n; i++) {
        int paths[3];
        assert_int_equal(search((uint64_t)i, 3, forget, paths), 3);
        counts[(paths[0] * 9 + paths[1]) * 9 + paths[2]]++;
    }
    return chi_square(counts, want, N_PATHS * N_PATHS * N_PATHS, n, df);
}

static void beams_draw_paths_without_replacement(void **state) {
    (void)state;
    int df;
    double x = path_triples(false, 400000, &df);
    assert_int_equal(df, 8 * 7 * 6 - 1); /* one of the nine paths has probability 0 */
    if (x > chi_square_limit(df)) fail_msg("chi-square %g, limit %g", x, chi_square_limit(df));
    x = path_triples(true, 400000, &df);
    if (x < chi_square_limit(df)) fail_msg("a beam without psi: chi-square %g, limit %g", x, chi_square_limit(df));
}

/* ---- against slow references -------------------------------------------------------------------- */

static void pruning_changes_nothing(void **state) {
    (void)state;
    uint64_t n = 0;
    for (int round = 0; round < 3000; round++) {
        float q[MAX_V];
        int32_t n_vocab = 1 + (int32_t)(uniform(&n) * MAX_V), k = 1 + (int32_t)(uniform(&n) * 12), n_left = 0;
        double sum = 0, spread = 12 * uniform(&n), value[MAX_V];
        for (int32_t i = 0; i < n_vocab; i++)
            sum += (double)(q[i] = uniform(&n) < 0.2 ? 0 : (float)exp(spread * (uniform(&n) - 0.5)));
        DrawParent parent = root(5, (uint64_t)round);
        parent.noise.silent = round % 5 == 0;
        for (int32_t i = 0; i < n_vocab; i++) {
            if (sum > 0) q[i] = (float)((double)q[i] / sum);
            double g = parent.noise.silent ? 0 : gumbel_noise(5, RNG_DRAFT, (uint64_t)round, (int32_t)i);
            value[i] = q[i] > 0 ? math_log((double)q[i]) + g : -INFINITY;
            n_left += q[i] > 0;
        }
        DrawChild got[12];
        int32_t n_got = draw(q, n_vocab, &parent, 7, k, got);
        assert_int_equal(n_got, n_left < k ? n_left : k);
        for (int32_t r = 0; r < n_got; r++) {
            int32_t best = 0;
            for (int32_t i = 1; i < n_vocab; i++)
                if (value[i] > value[best]) best = i;
            if (got[r].token != best)
                fail_msg("round %d: place %d has token %d, unpruned %d", round, r, got[r].token, best);
            assert_true(got[r].parent == 7 && got[r].q == q[best] && got[r].log_q == math_log((double)q[best]));
            value[best] = -INFINITY;
        }
    }
}

/* ---- against the scan -------------------------------------------------------------------------------- */

/* The specification of draw_children: a scan of all tokens in the order of their ids. */
typedef struct Scan {
    DrawChild *out;
    int32_t n, k;
    double bar; /* e^-t, where t is the k-th best value; infinite until there are k */
} Scan;

static void scan_insert(Scan *s, int32_t token, float q, double value) {
    if (s->n == s->k && !(value > s->out[s->n - 1].value)) return;
    int32_t i = s->n < s->k ? s->n++ : s->k - 1;
    for (; i > 0 && s->out[i - 1].value < value; i--) s->out[i] = s->out[i - 1];
    s->out[i] = (DrawChild){.token = token, .q = q, .value = value};
    if (s->n == s->k) s->bar = exp(-s->out[s->k - 1].value) * (1 + 1e-9);
}

static void scan_tokens(Scan *s, const float *q, int32_t n_vocab, const DrawNoise *noise) {
    GumbelRow g;
    gumbel_row_begin(&g, noise->seed, noise->stream, noise->position, n_vocab);
    for (int32_t block = 0; block < n_vocab; block += 4) {
        int32_t end = n_vocab - block < 4 ? n_vocab : block + 4;
        bool any = gumbel_row_next_rare(&g, block) < end;
        for (int32_t i = block; i < end; i++) any |= q[i] > 0 && (double)q[i] * s->bar >= GUMBEL_RARE;
        if (!any && !noise->silent) continue;
        double v[4];
        if (!noise->silent) gumbel_row_block(&g, block, v);
        for (int32_t i = block; i < end; i++) {
            if (!(q[i] > 0)) continue;
            if (noise->silent && (double)q[i] * s->bar >= 1) scan_insert(s, i, q[i], math_log((double)q[i]));
            if (!noise->silent && v[i - block] <= (double)q[i] * s->bar)
                scan_insert(s, i, q[i], math_log((double)q[i]) + gumbel_of(v[i - block]));
        }
    }
}

static int32_t scan_children(const float *q, int32_t n_vocab, const DrawParent *p, int32_t i_parent, int32_t k,
                             DrawChild *out) {
    Scan s = {.out = out, .k = k, .bar = INFINITY};
    if (k < 1) return 0;
    scan_tokens(&s, q, n_vocab, &p->noise);
    double max = s.n ? p->log_q + out[0].value : 0;
    for (int32_t i = 0; i < s.n; i++) {
        double y = p->log_q + out[i].value, v = p->psi - y + math_log1p(-math_exp(y - max));
        out[i].parent = i_parent;
        out[i].log_q = p->log_q + math_log((double)out[i].q);
        out[i].psi = p->noise.silent ? y : p->psi - (v > 0 ? v : 0) - math_log1p(math_exp(-fabs(v)));
        if (i > 0 && out[i].psi > out[i - 1].psi) out[i].psi = out[i - 1].psi;
    }
    return s.n;
}

enum { BIG_V = 40000, MAX_K = 64, N_SHAPES = 9 };

/* Fills a row with a distribution of some temperature: smooth, peaked, with ties, with zeros, with NaN, infinities and
 * negative numbers, with mass only at its end, without any, or with a leader and a crowd that seldom beats it. */
static void make_row(float *q, int32_t n_vocab, uint64_t round) {
    uint64_t n = round << 20;
    int shape = (int)(round % N_SHAPES);
    double temperature = pow(10, 6 * uniform(&n) - 3), sum = 0, max = -INFINITY;
    if (uniform(&n) < 0.5) temperature = 0.3 + uniform(&n);
    for (int32_t i = 0; i < n_vocab; i++) {
        double z = gumbel_noise(round, RNG_TEST, 0, i);
        if (shape == 2) z = floor(z);
        if (shape == 6) z = i < n_vocab - n_vocab / 8 ? z - 40 : z;
        if (z > max) max = z;
        q[i] = (float)z;
    }
    for (int32_t i = 0; i < n_vocab; i++) sum += exp(((double)q[i] - max) / temperature);
    for (int32_t i = 0; i < n_vocab; i++) {
        q[i] = (float)(exp(((double)q[i] - max) / temperature) / sum);
        double x = shape >= 3 && shape <= 5 ? uniform(&n) : 1;
        if (x < 0.3) q[i] = shape == 3 ? 0 : shape == 4 ? NAN : x < 0.01 ? INFINITY : -1;
        if (shape == 7) q[i] = round % 2 == 0 ? NAN : 0;
        if (shape == 8) q[i] = i == n_vocab / 3 ? 0.5f : 3 * (float)GUMBEL_RARE;
    }
}

static void check_same(const DrawChild *got, const DrawChild *want, int32_t n_got, int32_t n_want, const char *table,
                       int32_t n_vocab, uint64_t round) {
    if (n_got != n_want) fail_msg("V %d, row %d, %s: %d children, not %d", n_vocab, (int)round, table, n_got, n_want);
    for (int32_t i = 0; i < n_got; i++) {
        if (got[i].token != want[i].token)
            fail_msg("V %d, row %d, %s: child %d is token %d, not %d", n_vocab, (int)round, table, i, got[i].token,
                     want[i].token);
        assert_memory_equal(&got[i].q, &want[i].q, sizeof got->q);
        assert_memory_equal(&got[i].value, &want[i].value, sizeof got->value);
        assert_memory_equal(&got[i].log_q, &want[i].log_q, sizeof got->log_q);
        assert_memory_equal(&got[i].psi, &want[i].psi, sizeof got->psi);
        assert_true(got[i].parent == want[i].parent && got[i].path == want[i].path && got[i].chance == want[i].chance);
    }
}

/* Three nodes with the same noise, then one with other noise, with every table. */
static void check_rows(int32_t n_vocab, uint64_t first_round, int n_rounds) {
    static float q[BIG_V];
    static const int32_t ks[] = {1, 2, 3, 4, 7, 8, 15, 16, 31, MAX_K};
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    DrawCache *caches[16];
    DrawChild got[MAX_K], want[MAX_K];
    for (int t = 0; t < n_tables; t++) assert_non_null(caches[t] = draw_cache_new(n_vocab, tables[t]->rows));
    for (uint64_t round = first_round; round < first_round + (uint64_t)n_rounds; round++) {
        make_row(q, n_vocab, round);
        DrawParent parent = root(round / 4, round / 4);
        parent.noise.silent = round % 7 == 3;
        parent.log_q = -(double)(round % 5), parent.psi = (double)(round % 9) - 4;
        int32_t k = ks[round * 7 / 5 % 10], n_want = scan_children(q, n_vocab, &parent, 3, k, want);
        for (int t = 0; t < n_tables; t++) {
            int32_t n_got = draw_children(caches[t], q, &parent, 3, k, got);
            check_same(got, want, n_got, n_want, tables[t]->name, n_vocab, round);
        }
    }
    for (int t = 0; t < n_tables; t++) draw_cache_free(caches[t]);
}

static void draws_equal_the_scan(void **state) {
    (void)state;
    uint64_t n = 1, round = 0;
    for (int32_t n_vocab = 1; n_vocab <= 140; n_vocab++, round += 12) check_rows(n_vocab, round, 12);
    for (int i = 0; i < 60; i++, round += 12) check_rows(1 + (int32_t)(uniform(&n) * 6000), round, 12);
    check_rows(BIG_V, round, 120);
}

static void truncation_is_the_formula(void **state) {
    (void)state;
    for (int round = 0; round < 2000; round++) {
        DrawParent parent = root(6, (uint64_t)round);
        parent.log_q = -(round % 7), parent.psi = (round % 11) - 6;
        DrawChild c[V];
        int32_t n = draw(dist, V, &parent, 0, V, c);
        assert_int_equal(n, 4);
        double max = 0;
        for (int32_t i = 0; i < n; i++) {
            double y = parent.log_q + log((double)c[i].q) +
                       gumbel_noise(6, RNG_DRAFT, (uint64_t)round, (int32_t)c[i].token);
            if (i == 0) max = y;
            double want = -log(exp(-parent.psi) - exp(-max) + exp(-y));
            if (fabs(c[i].psi - want) > 1e-9 * (1 + fabs(want)))
                fail_msg("round %d, place %d: psi %.15g, by the formula %.15g", round, i, c[i].psi, want);
        }
        assert_true(c[0].psi == parent.psi);
    }
}

static void extremes_stay_in_order(void **state) {
    (void)state;
    float q[4] = {1 - 1e-6f, 1e-30f, 1e-6f, 1e-38f};
    const double sizes[] = {0, -30, -1000, -1e6};
    for (size_t i = 0; i < 16; i++) {
        DrawParent parent = root(8, i);
        parent.log_q = sizes[i / 4], parent.psi = sizes[i % 4];
        DrawChild c[4];
        assert_int_equal(draw(q, 4, &parent, 0, 4, c), 4);
        assert_true(c[0].psi == parent.psi);
        for (int k = 1; k < 4; k++)
            if (!(c[k].psi <= c[k - 1].psi)) fail_msg("case %zu: psi %g after %g", i, c[k].psi, c[k - 1].psi);
    }
    DrawParent parent = root(1, 1);
    DrawChild c[2];
    assert_int_equal(draw((const float[]){0, 0}, 2, &parent, 0, 2, c), 0);
    assert_int_equal(draw((const float[]){0, 1}, 2, &parent, 0, 0, c), 0);
    assert_int_equal(draw((const float[]){0, 1}, 2, &parent, 0, 2, c), 1);
    assert_true(c[0].token == 1 && c[0].log_q == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordered_draws_follow_enumeration), cmocka_unit_test(beams_draw_paths_without_replacement),
        cmocka_unit_test(pruning_changes_nothing),          cmocka_unit_test(draws_equal_the_scan),
        cmocka_unit_test(truncation_is_the_formula),        cmocka_unit_test(extremes_stay_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
