/* test_kernels_hostile.c - NaN, infinity and the greatest floats in the kernels. The results of conversions are defined
 * to the bit (kernels.h): activations, keys, values and softmax are compared by memcmp, from one key on. An output of
 * the other kernels is NaN in every table or in none; a number has the same bits in all of them. */
#include "all_tables.h"
#include "testing.h"

#include "base/mem.h"
#include "base/rng.h"
#include "gguf/tensor_type.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 400, N_ROUNDS = 300 };

static const Kernels *const *tables;
static int n_tables;

static uint32_t n_drawn;
static double uniform(void) { return rng_uniform(5, RNG_TEST, n_drawn++, 0); }
static int below(int n) { return (int)(uniform() * n); }

static float of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Ordinary numbers, and with probability `share` one of the hostile ones. */
static float hostile(double share) {
    static const uint32_t bits[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345, 0x7fffffff, 0x7f800000, 0xff800000,
                                    0x7f7fffff, 0xff7fffff, 0x7f7f0000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
                                    0x00000000, 0x80000000, 0x477fe000, 0x47800000, 0x477ff000, 0x33000000};
    if (uniform() >= share) return (float)((uniform() - 0.5) * (below(2) ? 1 : 1e5));
    return of_bits(bits[below(sizeof bits / sizeof *bits)]);
}

/* only NaN, only infinity, or all kinds, in few places or in many */
static void make_row(float *x, int64_t n) {
    static const double shares[] = {0.002, 0.02, 0.3, 1};
    double share = shares[below(4)];
    int kind = below(3);
    for (int64_t i = 0; i < n; i++) {
        x[i] = hostile(kind == 2 ? share : 0);
        if (kind < 2 && uniform() < share) x[i] = kind ? (below(2) ? INFINITY : -INFINITY) : NAN;
    }
}

/* Returns whether the softmax of the row is NaN. */
static bool has_bad(const float *x, int64_t n) {
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i])) return true;
        max = x[i] > max ? x[i] : max;
    }
    return isinf(max);
}

static void same_bytes(const char *what, const Kernels *t, int64_t n, const void *got, const void *want, size_t bytes) {
    if (memcmp(got, want, bytes) == 0) return;
    for (size_t i = 0; i < bytes; i++)
        if (((const char *)got)[i] != ((const char *)want)[i])
            fail_msg("%s, table %s, n = %lld: byte %zu differs", what, t->name, (long long)n, i);
}

static void same_numbers(const char *what, const Kernels *t, int64_t n, const float *got, const float *want,
                         int64_t n_out) {
    for (int64_t i = 0; i < n_out; i++)
        if (isnan(got[i]) != isnan(want[i]) || (!isnan(got[i]) && memcmp(&got[i], &want[i], 4) != 0))
            fail_msg("%s, table %s, n = %lld: output %lld is %g instead of %g", what, t->name, (long long)n,
                     (long long)i, (double)got[i], (double)want[i]);
}

/* ---- results that are defined to the bit ---------------------------------------------------------------- */

static void conversions(void **state) {
    (void)state;
    float x[MAX];
    for (int round = 0; round < N_ROUNDS; round++)
        for (int form = 0; form < ACT_FORM_COUNT; form++) {
            bool is_blocks = form == ACT_Q16 || form == ACT_Q8;
            int64_t n = is_blocks ? 32 * (1 + below(10)) : 1 + below(MAX);
            unsigned char of_ref[4 * MAX] = {0}, want[4 * MAX] = {0}, got[4 * MAX];
            make_row(x, n);
            tables[0]->act_convert((ActForm)form, x, n, of_ref);
            for (int i = 1; i < n_tables; i++) {
                acts_for_table(tables[i], (ActForm)form, n, of_ref, want);
                memset(got, 0, sizeof got);
                tables[i]->act_convert((ActForm)form, x, n, got);
                same_bytes(act_form_name((ActForm)form), tables[i], n, got, want, sizeof want);
            }
        }
}

static void keys_and_values(void **state) {
    (void)state;
    float x[MAX];
    for (int round = 0; round < N_ROUNDS; round++)
        for (int type = 0; type < KV_TYPE_COUNT; type++) {
            int64_t n = 1 + below(MAX);
            unsigned char want[4 * MAX + 64] = {0}, got[4 * MAX + 64];
            make_row(x, n);
            tables[0]->kv_store((KvType)type, x, n, want);
            for (int i = 1; i < n_tables; i++) {
                memset(got, 0, sizeof got);
                tables[i]->kv_store((KvType)type, x, n, got);
                same_bytes(kv_type_name((KvType)type), tables[i], n, got, want, sizeof want);
            }
        }
}

static void check_softmax(const float *x, int64_t n) {
    static const float nan_of_softmax = NAN;
    float want[MAX], got[MAX];
    memcpy(want, x, (size_t)n * sizeof *x);
    tables[0]->softmax(want, n);
    for (int64_t i = 0; i < n && has_bad(x, n); i++)
        if (memcmp(&want[i], &nan_of_softmax, 4) != 0)
            fail_msg("n = %lld: weight %lld is not NaN", (long long)n, (long long)i);
    for (int i = 1; i < n_tables; i++) {
        memcpy(got, x, (size_t)n * sizeof *x);
        tables[i]->softmax(got, n);
        same_bytes("softmax", tables[i], n, got, want, (size_t)n * sizeof *x);
    }
    for (int i = 0; i < n_tables; i++) {
        float greatest;
        memcpy(got, x, (size_t)n * sizeof *x);
        float sum = tables[i]->exp_sum(got, n, &greatest);
        if (isnan(sum) != has_bad(x, n))
            fail_msg("exp_sum of %s, n = %lld: %g", tables[i]->name, (long long)n, (double)sum);
        if (i == 0) memcpy(want, got, sizeof want);
        same_bytes("exp_sum", tables[i], n, got, want, (size_t)n * sizeof *x);
    }
}

static void softmax_of_any_length(void **state) {
    (void)state;
    float x[MAX];
    for (int64_t n = 1; n <= 70; n++) {
        for (int64_t at = 0; at < n; at++)
            for (int kind = 0; kind < 3; kind++) { /* one bad score, in each place */
                for (int64_t i = 0; i < n; i++) x[i] = (float)i * 0.1f;
                x[at] = kind == 0 ? of_bits(0xff812345) : kind == 1 ? INFINITY : -INFINITY;
                check_softmax(x, n);
            }
        for (int round = 0; round < 20; round++) {
            make_row(x, n);
            check_softmax(x, n);
        }
        for (int64_t i = 0; i < n; i++) x[i] = i % 2 ? FLT_MAX : -FLT_MAX; /* finite: no NaN */
        check_softmax(x, n);
    }
}

/* ---- attention of hostile keys, from one key on -------------------------------------------------------------- */

enum { DIM = 40, N_KEYS = 20, N_Q = 3 };

static void attention(const Kernels *t, KvType type, const float *q, const void *kv, int64_t n_keys, float *scores,
                      float *out) {
    static const int32_t slots[N_KEYS] = {3, 1, 0, 2, 7, 5, 4, 6, 9, 8, 10, 11, 13, 12, 19, 18, 17, 16, 15, 14};
    size_t slot_bytes = kv_row_bytes(type, DIM);
    if (type != KV_Q8) t->attn_scores(type, q, N_Q, DIM, kv, slot_bytes, slots, n_keys, 0.25f, scores, N_KEYS);
    else /* the scores of such a cache are integer products (test_scores.c) */
        for (int i = 0; i < N_Q * N_KEYS; i++) scores[i] = q[i % (N_Q * DIM)];
    for (int h = 0; h < N_Q; h++) t->softmax(scores + h * N_KEYS, n_keys);
    memset(out, 0, N_Q * DIM * sizeof *out);
    t->attn_mix(type, scores, N_KEYS, N_Q, DIM, kv, slot_bytes, slots, n_keys, out);
}

static void attention_of_hostile_keys(void **state) {
    (void)state;
    float x[DIM], q[N_Q * DIM], want_scores[N_Q * N_KEYS], scores[N_Q * N_KEYS], want[N_Q * DIM], out[N_Q * DIM];
    unsigned char kv[N_KEYS * DIM * 4];
    for (int round = 0; round < 60; round++)
        for (int type = 0; type < KV_TYPE_COUNT; type++) {
            for (int i = 0; i < N_KEYS; i++) {
                make_row(x, DIM);
                tables[0]->kv_store((KvType)type, x, DIM, kv + (size_t)i * kv_row_bytes((KvType)type, DIM));
            }
            for (int i = 0; i < N_Q * DIM; i++) q[i] = hostile(round % 2 ? 0.01 : 0);
            for (int64_t n = 1; n <= N_KEYS; n++) {
                memset(want_scores, 0, sizeof want_scores);
                attention(tables[0], (KvType)type, q, kv, n, want_scores, want);
                for (int i = 1; i < n_tables; i++) {
                    memset(scores, 0, sizeof scores);
                    attention(tables[i], (KvType)type, q, kv, n, scores, out);
                    same_bytes("attention weights", tables[i], n, scores, want_scores, sizeof scores);
                    same_numbers("attention", tables[i], n, out, want, N_Q * DIM);
                }
            }
        }
}

/* ---- the others ------------------------------------------------------------------------------------------------ */

/* x: a state of as many rows and columns as fit into its n elements, updated in place, and the values that are read
 * from it. */
static void run_delta_rule(const Kernels *t, float *x, const float *y, int64_t n) {
    int64_t dim = 1;
    while ((dim + 1) * (dim + 3) <= n) dim++;
    float k[MAX];
    memcpy(k, x + dim * dim, (size_t)dim * sizeof *k);
    t->delta_rule(x, x, dim, k, y, y[0], 0.5f, y + n - dim, x + dim * dim);
}

/* The same with two rows. */
static void run_ssm_update(const Kernels *t, float *x, const float *y, int64_t n) {
    int64_t columns = (n - 1) / 3;
    const float k[] = {y[n - 2], y[n - 1]};
    if (columns) t->ssm_update(x, x, 2, columns, k, y, y[0], k, x + 2 * columns);
}

static void run_vector(const Kernels *t, int which, float *x, const float *y, int64_t n) {
    if (which == 0) t->rmsnorm(x, x, y, n, 1e-6f);
    if (which == 1) t->add(x, y, n);
    if (which == 2) t->silu_mul(x, y, n);
    if (which == 4) t->gelu_mul(x, y, n);
    if (which == 5) t->soft_cap(x, n, 30);
    if (which == 6) t->sigmoid_mul(x, y, n);
    if (which == 7) run_delta_rule(t, x, y, n);
    if (which == 8) run_ssm_update(t, x, y, n);
    if (which == 3) t->rope(ROPE_HALVES, x, 1, n, n / 2 * 2, y);
}

static void norms_and_sums(void **state) {
    (void)state;
    static const char *const names[] = {"rmsnorm",  "add",         "silu_mul",   "rope",      "gelu_mul",
                                        "soft_cap", "sigmoid_mul", "delta_rule", "ssm_update"};
    float x[MAX], y[MAX], want[MAX], got[MAX];
    for (int round = 0; round < N_ROUNDS; round++)
        for (int which = 0; which < 9; which++) {
            int64_t n = 2 + below(MAX - 2);
            make_row(x, n), make_row(y, n);
            memcpy(want, x, sizeof want);
            run_vector(tables[0], which, want, y, n);
            for (int i = 1; i < n_tables; i++) {
                memcpy(got, x, sizeof got);
                run_vector(tables[i], which, got, y, n);
                same_numbers(names[which], tables[i], n, got, want, n);
            }
        }
}

static void check_product(TensorType type, ActForm blocks) {
    enum { N_OUT = 35, N_ROWS = 5 };
    int64_t n_in = 256;
    size_t row_bytes, act_bytes = act_row_bytes(act_form(type, blocks), n_in);
    assert_true(tensor_type_row_bytes(type, n_in, &row_bytes));
    PackedMatrix w;
    float x[256], want[N_ROWS * N_OUT], got[N_ROWS * N_OUT];
    char *rows = malloc(N_OUT * row_bytes);
    unsigned char *acts = mem_calloc(N_ROWS, act_bytes), *own_acts = mem_calloc(N_ROWS, act_bytes);
    assert_true(rows && acts && own_acts);
    for (int o = 0; o < N_OUT; o++) { /* weights are finite: a model with others is refused */
        for (int i = 0; i < n_in; i++) x[i] = (float)(uniform() - 0.5) * (o % 5 == 4 && type < TYPE_Q8_0 ? 1e4f : 1);
        blocks_quantize(type, x, n_in, rows + (size_t)o * row_bytes);
    }
    assert_int_equal(packed_init(&w, type, blocks, N_OUT, n_in, NULL), FR_OK);
    packed_fill(&w, rows, 0, packed_n_tiles(&w));
    for (int r = 0; r < N_ROWS; r++) {
        make_row(x, n_in);
        tables[0]->act_convert(w.act, x, n_in, acts + (size_t)r * act_bytes);
    }
    tables[0]->matmul(&w, acts, N_ROWS, want, N_OUT, 0, packed_n_tiles(&w));
    for (int i = 1; i < n_tables; i++) {
        for (int r = 0; r < N_ROWS; r++)
            acts_for_table(tables[i], w.act, n_in, acts + (size_t)r * act_bytes, own_acts + (size_t)r * act_bytes);
        tables[i]->matmul(&w, own_acts, N_ROWS, got, N_OUT, 0, packed_n_tiles(&w));
        same_numbers(tensor_type_info(type)->name, tables[i], n_in, got, want, N_ROWS * N_OUT);
    }
    packed_free(&w);
    mem_free(acts);
    mem_free(own_acts);
    free(rows);
}

static void products(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++)
        for (int type = 0; type < TYPE_COUNT; type++) {
            check_product((TensorType)type, ACT_Q16);
            if (type >= TYPE_Q8_0) check_product((TensorType)type, ACT_Q8);
        }
}

/* A block with a bad number makes every output of its row NaN. */
static void a_bad_activation_is_not_hidden(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int form = ACT_Q16; form <= ACT_Q8; form++)
        for (int i = 0; i < n_tables; i++)
            for (int k = 0; k < 3 * 64; k++) {
                float x[64] = {0}, scale[2];
                unsigned char acts[512];
                x[k / 3] = bad[k % 3];
                tables[i]->act_convert((ActForm)form, x, 64, acts);
                for (int b = 0; b < 2; b++) memcpy(&scale[b], acts + (size_t)b * act_offset((ActForm)form, 32), 4);
                assert_true(isnan(scale[k / 3 / 32]) && !isnan(scale[1 - k / 3 / 32]));
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions),
        cmocka_unit_test(keys_and_values),
        cmocka_unit_test(softmax_of_any_length),
        cmocka_unit_test(attention_of_hostile_keys),
        cmocka_unit_test(norms_and_sums),
        cmocka_unit_test(products),
        cmocka_unit_test(a_bad_activation_is_not_hidden),
    };
    tables = all_tables(&n_tables);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
