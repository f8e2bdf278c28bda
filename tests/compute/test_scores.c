/* test_scores.c - scores by integer products (compute/cpu/kernels/scores.h): compares plain C with the formula in
 * double precision, and every other table with plain C, bit for bit, over sizes of heads, numbers of queries and keys,
 * numbers at the ends of their ranges, NaN and infinity; and checks that no memory outside the arrays is accessed. */
#include "testing.h"
#include "all_tables.h"
#include "kernel_numbers.h"

#include "gguf/tensor_type.h"
#include "compute/cpu/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_SLOTS = 80, SLOT_PAD = 6, DIM_MAX = 576, QUERIES_MAX = 9, CANARY = 0x7fc0dead };

typedef struct Problem {
    int64_t n_q, head_dim, n_keys;
    size_t slot_bytes;
    float *q;             /* [n_q][head_dim] */
    unsigned char *cache; /* ends with the last slot's key, so that a read beyond it is found */
    int32_t slots[KEYS_PACKED];
} Problem;

static const Kernels *ref(void) { return kernels_select("ref"); }

static void *allocated(size_t bytes) {
    void *p = calloc(1, bytes);
    assert_non_null(p);
    return p;
}

static Problem problem_open(int64_t n_q, int64_t head_dim, int64_t n_keys) {
    Problem p = {.n_q = n_q, .head_dim = head_dim, .n_keys = n_keys};
    float key[DIM_MAX];
    p.slot_bytes = kv_row_bytes(KV_Q8, head_dim) + SLOT_PAD;
    p.q = allocated((size_t)(n_q * head_dim) * sizeof *p.q);
    p.cache = allocated((N_SLOTS - 1) * p.slot_bytes + kv_row_bytes(KV_Q8, head_dim));
    for (int64_t i = 0; i < n_q * head_dim; i++) p.q[i] = random_float() * 3;
    for (size_t s = 0; s < N_SLOTS; s++) {
        for (int64_t d = 0; d < head_dim; d++) key[d] = random_float() * 2;
        ref()->kv_store(KV_Q8, key, head_dim, p.cache + s * p.slot_bytes);
    }
    for (int64_t i = 0; i < n_keys; i++) p.slots[i] = (int32_t)(random_u32() % N_SLOTS);
    return p;
}

static void problem_close(Problem *p) { free(p->q), free(p->cache); }

/* Computes scores [n_q][n_keys + 1] in memory that is just large enough, with a canary after each row. */
static float *scores_of(const ScoreKernels *t, const Problem *p) {
    RoundedQuery *rounded[QUERIES_MAX];
    float *scores = allocated((size_t)(p->n_q * (p->n_keys + 1)) * sizeof *scores), *rows[QUERIES_MAX];
    uint32_t canary = CANARY;
    for (int64_t h = 0; h < p->n_q; h++) {
        rounded[h] = allocated(rounded_query_bytes(p->head_dim));
        t->round_query(p->q + h * p->head_dim, p->head_dim, rounded[h]);
        rows[h] = scores + h * (p->n_keys + 1);
        memcpy(rows[h] + p->n_keys, &canary, sizeof canary);
    }
    KeyBlock *keys = allocated((size_t)score_blocks(p->head_dim) * sizeof *keys);
    t->pack(p->head_dim, p->cache, p->slot_bytes, p->slots, p->n_keys, keys);
    t->scores((const RoundedQuery *const *)rounded, p->n_q, p->head_dim, keys, p->n_keys, 0.125f, rows);
    for (int64_t h = 0; h < p->n_q; h++) {
        uint32_t behind;
        memcpy(&behind, rows[h] + p->n_keys, sizeof behind);
        if (behind != CANARY) fail_msg("%s: wrote after the last of %lld scores", t->name, (long long)p->n_keys);
        free(rounded[h]);
    }
    free(keys);
    return scores;
}

/* The error of a query is at most half a step of 2^-15 of its largest number. */
static void check_formula(const Problem *p, const float *scores) {
    for (int64_t h = 0; h < p->n_q; h++)
        for (int64_t i = 0; i < p->n_keys; i++) {
            double want = 0, magnitude = 0, sum_k = 0, amax = 0;
            for (int64_t d = 0; d < p->head_dim; d++) {
                const unsigned char *block = p->cache + (size_t)p->slots[i] * p->slot_bytes + d / 32 * KV_BLOCK_BYTES;
                uint16_t half;
                memcpy(&half, block, sizeof half);
                double k = (double)half_to_float(half) * (int8_t)block[2 + d % 32];
                double q = (double)p->q[h * p->head_dim + d];
                want += q * k, magnitude += fabs(q * k), sum_k += fabs(k), amax = fmax(amax, fabs(q));
            }
            double got = (double)scores[h * (p->n_keys + 1) + i];
            double tolerance = 0.125 * (magnitude * 1e-6 + sum_k * amax * 0.5001 / 32512);
            if (!(fabs(got - 0.125 * want) <= tolerance))
                fail_msg("query %lld, key %lld: %.9g, in double %.9g, at most %.3g off", (long long)h, (long long)i,
                         got, 0.125 * want, tolerance);
        }
}

static const ScoreKernels *const *all_scores(int *n) {
    static const ScoreKernels *all[16];
    int n_tables;
    const Kernels *const *tables = kernels_available(&n_tables);
    *n = 0;
    for (int i = 0; i < n_tables; i++) all[(*n)++] = score_kernels_of(tables[i]);
#if defined(__x86_64__)
    if (kernels_select("avx512")) all[(*n)++] = &score_kernels_evex_vnni;
#endif
    return all;
}

static void check_tables(const Problem *p, const float *want) {
    int n;
    const ScoreKernels *const *all = all_scores(&n);
    for (int t = 0; t < n; t++) {
        float *got = scores_of(all[t], p);
        for (int64_t i = 0; i < p->n_q * (p->n_keys + 1); i++)
            if (memcmp(got + i, want + i, sizeof *got) != 0)
                fail_msg("%s, heads of %lld, %lld queries, %lld keys: [%lld] is %a, in plain C %a", all[t]->name,
                         (long long)p->head_dim, (long long)p->n_q, (long long)p->n_keys, (long long)i, (double)got[i],
                         (double)want[i]);
        free(got);
    }
}

static void tables_have_the_bits_of_plain_c_and_that_the_formula(void **state) {
    (void)state;
    static const int64_t dims[] = {2, 6, 16, 18, 32, 48, 64, 80, 96, 128, 256, DIM_MAX};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int64_t n_keys = 1; n_keys <= KEYS_PACKED; n_keys += 1 + (int64_t)d % 3 * 4) {
            Problem p = problem_open(1 + (n_keys + (int64_t)d) % QUERIES_MAX, dims[d], n_keys);
            float *want = scores_of(&score_kernels_ref, &p);
            check_formula(&p, want);
            check_tables(&p, want);
            free(want);
            problem_close(&p);
        }
}

/* Tests sums of 32 products of the largest numbers, of either sign, and bytes of -128, which no key has but a cache may
 * contain. */
static void the_ends_of_the_ranges(void **state) {
    (void)state;
    static const int bytes[] = {127, -127, -128};
    for (int sign = -1; sign <= 1; sign += 2)
        for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++) {
            Problem p = problem_open(5, 64, 33);
            for (int64_t i = 0; i < 5 * 64; i++) p.q[i] = (float)sign * 7;
            for (size_t s = 0; s < N_SLOTS; s++)
                for (size_t i = 0; i < 64; i++)
                    p.cache[s * p.slot_bytes + i / 32 * KV_BLOCK_BYTES + 2 + i % 32] = (unsigned char)bytes[b];
            float *want = scores_of(&score_kernels_ref, &p);
            check_formula(&p, want);
            check_tables(&p, want);
            free(want);
            problem_close(&p);
        }
}

/* A query that is not finite makes all of its scores NaN and no others; so does such a key. Tiny queries count as
 * zeros. */
static void what_is_not_finite_is_nan(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++)
        for (int64_t at = 0; at < 80; at += 13) {
            Problem p = problem_open(4, 80, 20);
            float key[80] = {0};
            p.q[1 * 80 + at] = bad[k];
            for (int i = 0; i < 80; i++) p.q[3 * 80 + i] = 1e-38f * (float)(i - 40);
            key[at] = bad[k];
            for (int64_t i = 0; i < p.n_keys; i++) p.slots[i] = (int32_t)i;
            ref()->kv_store(KV_Q8, key, 80, p.cache + 11 * p.slot_bytes);
            float *want = scores_of(&score_kernels_ref, &p);
            for (int64_t h = 0; h < 4; h++)
                for (int64_t i = 0; i < 20; i++) {
                    float s = want[h * 21 + i];
                    if (isnan(s) != (h == 1 || i == 11) || (h == 3 && i != 11 && s != 0))
                        fail_msg("query %d, key %d: %g", (int)h, (int)i, (double)s);
                }
            check_tables(&p, want);
            free(want);
            problem_close(&p);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_have_the_bits_of_plain_c_and_that_the_formula),
        cmocka_unit_test(the_ends_of_the_ranges),
        cmocka_unit_test(what_is_not_finite_is_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
