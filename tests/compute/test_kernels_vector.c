/* test_kernels_vector.c - norms, activation functions, rotary positions, cache and attention: compares the
 * specification (table "ref") with double precision, and every other table with the specification, bit for bit.
 *
 *     build/release/tests/test_kernels_vector all      every float as an argument of the functions with an exp
 */
#include "testing.h"
#include "all_tables.h"
#include "kernel_numbers.h"

#include "gguf/tensor_type.h"
#include "compute/cpu/kernels/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *random_floats(size_t n, float scale) {
    float *x = malloc((n ? n : 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = random_float() * scale;
    return x;
}

static const Kernels *ref(void) { return kernels_select("ref"); }

static float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- the specification against double ----------------------------------------------------------- */

static void close_to(const char *what, int64_t i, float got, double want, double tolerance) {
    if (!(fabs((double)got - want) <= tolerance))
        fail_msg("%s [%lld]: %.9g, in double %.9g, off by %.3g", what, (long long)i, (double)got, want,
                 (double)got - want);
}

/* Returns the error of the exp of all tables in units of the last place of a float. */
static double exp_error_ulp(float x) {
    double want = exp((double)x);
    return fabs((double)ref_exp(x) - want) / ldexp(1, ilogb(want) - 23);
}

static void exp_is_within_two_ulp(void **state) {
    (void)state;
    double worst = 0, at = 0;
    for (int64_t i = 0; i <= 4000000; i++) {
        float x = (float)(-87.33 + (double)i / 4000000 * (88.37 + 87.33));
        double error = exp_error_ulp(x);
        if (error > worst) worst = error, at = (double)x;
    }
    print_message("exp: at most %.3f ulp off, at %.6f\n", worst, at);
    assert_true(worst < 2);
    assert_true(ref_exp(0) == 1);
    assert_true(ref_exp(-88) == 0 && ref_exp(-1e30f) == 0 && ref_exp(-INFINITY) == 0);
    assert_true(ref_exp(89) == ref_exp(1e30f) && ref_exp(1e30f) == ref_exp(INFINITY) && isfinite(ref_exp(1e30f)));
}

static void elementwise_functions_are_right(void **state) {
    (void)state;
    enum { N = 1001 };
    float *x = random_floats(N, 30), *w = random_floats(N, 2), *y = random_floats(N, 1), *z = random_floats(N, 1);
    double squares = 0;
    for (int i = 0; i < N; i++) squares += (double)x[i] * (double)x[i];
    ref()->rmsnorm(y, x, w, N, 1e-5f);
    for (int i = 0; i < N; i++) {
        double want = (double)x[i] / sqrt(squares / N + 1e-5) * (double)w[i];
        close_to("rmsnorm", i, y[i], want, fabs(want) * 1e-6);
    }
    memcpy(z, x, N * sizeof *x);
    ref()->add(z, w, N);
    for (int i = 0; i < N; i++) close_to("add", i, z[i], (double)(x[i] + w[i]), 0);
    memcpy(z, x, N * sizeof *x);
    ref()->silu_mul(z, w, N);
    for (int i = 0; i < N; i++) {
        double want = (double)x[i] / (1 + exp(-(double)x[i])) * (double)w[i];
        close_to("silu", i, z[i], want, fabs(want) * 1e-6);
    }
    memcpy(z, x, N * sizeof *x);
    ref()->gelu_mul(z, w, N);
    for (int i = 0; i < N; i++) {
        double v = (double)x[i],
               want = v * 0.5 * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))) * (double)w[i];
        close_to("gelu", i, z[i], want, fabs(want) * 2e-6 + 1e-9);
    }
    memcpy(z, w, N * sizeof *w);
    ref()->sigmoid_mul(z, x, N);
    for (int i = 0; i < N; i++) {
        double want = (double)w[i] / (1 + exp(-(double)x[i]));
        close_to("sigmoid_mul", i, z[i], want, fabs(want) * 1e-6);
    }
    memcpy(z, x, N * sizeof *x);
    ref()->soft_cap(z, N, 1.5f);
    for (int i = 0; i < N; i++) close_to("soft_cap", i, z[i], 1.5 * tanh((double)x[i] / 1.5), 5e-7);
    float far[4] = {1e30f, -1e30f, NAN, INFINITY};
    ref()->soft_cap(far, 4, 7);
    assert_true(far[0] == 7 && far[1] == -7 && isnan(far[2]) && isnan(far[3]));
    float open[4] = {1, 2, 3, NAN};
    ref()->sigmoid_mul(open, (float[4]){3e38f, NAN, INFINITY, 0}, 4);
    assert_true(open[0] == 1 && isnan(open[1]) && isnan(open[2]) && isnan(open[3]));
    float edges[4] = {-100, -3e38f, 100, 0}, ones[4] = {1, 1, 1, 1};
    ref()->silu_mul(edges, ones, 4);
    assert_true(fabsf(edges[0]) < 1e-30f && isfinite(edges[1]) && edges[2] == 100 && edges[3] == 0);
    free(x), free(w), free(y), free(z);
}

static void softmax_is_right(void **state) {
    (void)state;
    float *x = random_floats(777, 20), *y = random_floats(777, 1);
    memcpy(y, x, 777 * sizeof *x);
    y[5] = x[5] = -INFINITY;
    ref()->softmax(y, 777);
    double sum = 0, total = 0;
    for (int i = 0; i < 777; i++) sum += exp((double)x[i]);
    for (int i = 0; i < 777; i++) {
        double want = exp((double)x[i]) / sum;
        close_to("softmax", i, y[i], want, want * 1e-5 + 1e-37); /* x - max rounds: 40 * 2^-24 */
        total += (double)y[i];
    }
    close_to("sum of softmax", 0, (float)total, 1, 1e-5);
    float one[1] = {-1e30f};
    ref()->softmax(one, 1);
    assert_true(one[0] == 1);
    free(x), free(y);
}

/* Two parts of a row, joined as attention joins its tiles, are the softmax of the whole row. */
static void parts_of_a_softmax_can_be_joined(void **state) {
    (void)state;
    enum { N = 777, FIRST = 300 };
    float *x = random_floats(N, 20), *y = random_floats(N, 1), *whole = random_floats(N, 1), max[2], sum[2];
    memcpy(y, x, N * sizeof *x), memcpy(whole, x, N * sizeof *x);
    ref()->softmax(whole, N);
    sum[0] = ref()->exp_sum(y, FIRST, &max[0]), sum[1] = ref()->exp_sum(y + FIRST, N - FIRST, &max[1]);
    float greatest = max[0] > max[1] ? max[0] : max[1];
    for (int i = 0; i < N; i++) assert_true(x[i] <= (i < FIRST ? max[0] : max[1]) && x[i] <= greatest);
    float a = (float)exp((double)(max[0] - greatest)), b = (float)exp((double)(max[1] - greatest));
    ref()->scale_add(&sum[0], a, &sum[1], b, 1);
    float *zeros = calloc(N, sizeof *zeros);
    assert_non_null(zeros);
    ref()->scale_add(y, a, zeros, 0, FIRST), ref()->scale_add(zeros + FIRST, 0, y + FIRST, b, N - FIRST);
    memcpy(zeros, y, FIRST * sizeof *y);
    ref()->divide_all(zeros, N, sum[0]);
    for (int i = 0; i < N; i++) close_to("joined", i, zeros[i], (double)whole[i], (double)whole[i] * 1e-5 + 1e-37);
    free(x), free(y), free(whole), free(zeros);
}

static void rope_rotates_the_right_pairs(void **state) {
    (void)state;
    enum { HEADS = 3, DIM = 10, ROT = 8 };
    for (int style = ROPE_PAIRS; style <= ROPE_HALVES; style++) {
        float *x = random_floats(HEADS * DIM, 1), cos_sin[ROT], y[HEADS * DIM];
        for (int i = 0; i < ROT / 2; i++) {
            cos_sin[2 * i] = (float)cos(0.3 * (i + 1));
            cos_sin[2 * i + 1] = (float)sin(0.3 * (i + 1));
        }
        memcpy(y, x, sizeof y);
        ref()->rope((RopeStyle)style, y, HEADS, DIM, ROT, cos_sin);
        for (int h = 0; h < HEADS; h++) {
            for (int i = 0; i < ROT / 2; i++) {
                int a = h * DIM + (style == ROPE_PAIRS ? 2 * i : i), b = style == ROPE_PAIRS ? a + 1 : a + ROT / 2;
                double c = cos(0.3 * (i + 1)), s = sin(0.3 * (i + 1)), xa = (double)x[a], xb = (double)x[b];
                close_to("rope", a, y[a], xa * c - xb * s, 3e-7);
                close_to("rope", b, y[b], xa * s + xb * c, 3e-7);
            }
            for (int i = ROT; i < DIM; i++) assert_true(y[h * DIM + i] == x[h * DIM + i]);
        }
        free(x);
    }
}

/* ---- attention ---------------------------------------------------------------------------------- */

enum { N_SLOTS = 80, SLOT_PAD = 8 }; /* bytes between two slots */

typedef struct Attention {
    KvType type;
    int64_t n_q, head_dim, n_keys;
    size_t slot_bytes;
    float *q, *kv; /* [n_q][head_dim], [N_SLOTS][head_dim] as the cache rounds them */
    unsigned char *cache;
    int32_t slots[N_SLOTS];
    float *w; /* [n_q][n_keys] */
} Attention;

/* A row of the cache is a row of a Q8_0 tensor; x becomes its value, which differs by at most half a step. */
static void as_q8(const unsigned char *row, float *x, int64_t n) {
    float got[288];
    blocks_dequantize(TYPE_Q8_0, row, (n + 31) / 32 * 32, got);
    for (int64_t i = 0; i < n; i++) {
        float amax = 0;
        for (int64_t k = i / 32 * 32; k < n && k < i / 32 * 32 + 32; k++) amax = fmaxf(amax, fabsf(x[k]));
        close_to("Q8 key", i, got[i], x[i], amax / 127 * 0.5 + amax * 5e-4);
    }
    for (int64_t i = n; i < (n + 31) / 32 * 32; i++) assert_true(got[i] == 0);
    memcpy(x, got, (size_t)n * sizeof *x);
}

static void attention_open(Attention *a, KvType type, int64_t n_q, int64_t head_dim, int64_t n_keys) {
    *a = (Attention){.type = type, .n_q = n_q, .head_dim = head_dim, .n_keys = n_keys};
    a->slot_bytes = kv_row_bytes(type, head_dim) + SLOT_PAD;
    a->q = random_floats((size_t)(n_q * head_dim), 1);
    a->kv = random_floats((size_t)(N_SLOTS * head_dim), 2);
    a->w = random_floats((size_t)(n_q * n_keys), 1);
    /* the allocation ends with the last element, so a read beyond it is found */
    a->cache = calloc(1, (N_SLOTS - 1) * a->slot_bytes + kv_row_bytes(type, head_dim));
    assert_non_null(a->cache);
    for (int64_t s = 0; s < N_SLOTS; s++) {
        unsigned char *row = a->cache + (size_t)s * a->slot_bytes;
        ref()->kv_store(type, a->kv + s * head_dim, head_dim, row);
        for (int64_t d = 0; d < head_dim && type == KV_F16; d++)
            a->kv[s * head_dim + d] = half_to_float(float_to_half(a->kv[s * head_dim + d]));
        if (type == KV_Q8) as_q8(row, a->kv + s * head_dim, head_dim);
    }
    for (int i = 0; i < N_SLOTS; i++) a->slots[i] = i;
    for (int i = N_SLOTS - 1; i > 0; i--) {
        int j = (int)(random_u32() % (uint32_t)(i + 1));
        int32_t t = a->slots[i];
        a->slots[i] = a->slots[j], a->slots[j] = t;
    }
}

static void attention_close(Attention *a) { free(a->q), free(a->kv), free(a->cache), free(a->w); }

enum { CANARY = 0x7fc0dead };

static float *canaries(size_t n) {
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    uint32_t c = CANARY;
    for (size_t i = 0; i < n; i++) memcpy(x + i, &c, 4);
    return x;
}

static void same(const char *what, const Kernels *t, int64_t n, const float *got, const float *want, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (memcmp(got + i, want + i, 4) != 0)
            fail_msg("%s %s, n = %lld: [%zu] is %a, not %a", t->name, what, (long long)n, i, (double)got[i],
                     (double)want[i]);
}

/* The scores of a cache of type KV_Q8 are integer products (test_scores.c). */
static void scores_of(const Kernels *t, const Attention *a, float *scores, int64_t stride) {
    if (a->type == KV_Q8) return;
    t->attn_scores(a->type, a->q, a->n_q, a->head_dim, a->cache, a->slot_bytes, a->slots, a->n_keys, 0.125f, scores,
                   stride);
}

/* Keys [begin, end) into out. */
static void mix_of(const Kernels *t, const Attention *a, int64_t begin, int64_t end, float *out) {
    t->attn_mix(a->type, a->w + begin, a->n_keys, a->n_q, a->head_dim, a->cache, a->slot_bytes, a->slots + begin,
                end - begin, out);
}

static void check_attention_in_double(const Attention *a, const float *scores, int64_t stride, const float *out) {
    for (int64_t h = 0; h < a->n_q; h++) {
        for (int64_t i = 0; i < a->n_keys && a->type != KV_Q8; i++) {
            double sum = 0, magnitude = 0;
            for (int64_t d = 0; d < a->head_dim; d++) {
                double p = (double)a->q[h * a->head_dim + d] * (double)a->kv[a->slots[i] * a->head_dim + d];
                sum += p, magnitude += fabs(p);
            }
            close_to("score", i, scores[h * stride + i], sum * 0.125, magnitude * 0.125 * 3e-6);
        }
        for (int64_t d = 0; d < a->head_dim; d++) {
            double sum = 1, magnitude = 1;
            for (int64_t i = 0; i < a->n_keys; i++) {
                double p = (double)a->w[h * a->n_keys + i] * (double)a->kv[a->slots[i] * a->head_dim + d];
                sum += p, magnitude += fabs(p);
            }
            close_to("mix", d, out[h * a->head_dim + d], sum, magnitude * 4e-6);
        }
    }
}

static float *ones_and_canaries(int64_t n) {
    float *x = canaries((size_t)n + 16);
    for (int64_t i = 0; i < n; i++) x[i] = 1;
    return x;
}

static void check_attention(KvType type, int64_t n_q, int64_t head_dim, int64_t n_keys) {
    Attention a;
    attention_open(&a, type, n_q, head_dim, n_keys);
    int64_t stride = n_keys + 3, n_out = n_q * head_dim;
    size_t n_scores = (size_t)(n_q * stride);
    float *scores = canaries(n_scores), *out = ones_and_canaries(n_out);
    scores_of(ref(), &a, scores, stride);
    mix_of(ref(), &a, 0, n_keys, out);
    check_attention_in_double(&a, scores, stride, out);
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    for (int i = 0; i < n_tables; i++) {
        float *s = canaries(n_scores);
        scores_of(tables[i], &a, s, stride);
        same("attn_scores", tables[i], head_dim, s, scores, n_scores);
        free(s);
        for (int64_t split = 0; split <= n_keys; split += 1 + n_keys / 5) {
            float *o = ones_and_canaries(n_out);
            mix_of(tables[i], &a, 0, split, o);
            mix_of(tables[i], &a, split, n_keys, o);
            same("attn_mix", tables[i], head_dim, o, out, (size_t)n_out + 16);
            free(o);
        }
    }
    free(scores), free(out);
    attention_close(&a);
}

static void attention_is_right_and_the_same(void **state) {
    (void)state;
    static const int64_t dims[] = {2, 6, 8, 18, 24, 64, 80, 96, 128, 256};
    static const int64_t keys[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 50};
    for (int type = 0; type < KV_TYPE_COUNT; type++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (int64_t n_q = 1; n_q <= 16; n_q++)
                check_attention((KvType)type, n_q, dims[d], keys[(d + (size_t)n_q * 3) % (sizeof keys / sizeof *keys)]);
}

/* ---- keys and values converted for many rows ------------------------------------------------------ */

/* Scores and outputs with n converted keys from `begin` on must be those of attn_scores and attn_mix. */
static void check_converted(const Kernels *t, const Attention *a, int64_t begin, int64_t n, const float *scores,
                            const float *out) {
    int64_t dim = a->head_dim;
    float *floats = malloc((size_t)(KEYS_PACKED * dim) * sizeof *floats), *s = canaries((size_t)(a->n_q * (n + 1)));
    float *o = ones_and_canaries(a->n_q * dim), *to[16];
    const float *from[16];
    assert_non_null(floats);
    for (int64_t h = 0; h < a->n_q; h++) from[h] = a->q + h * dim, to[h] = s + h * (n + 1);
    if (a->type != KV_Q8) {
        t->pack_keys(a->type, dim, a->cache, a->slot_bytes, a->slots + begin, n, floats);
        t->packed_scores(from, a->n_q, dim, floats, n, 0.125f, to);
    }
    for (int64_t h = 0; h < a->n_q && a->type != KV_Q8; h++) {
        uint32_t behind;
        same("packed_scores", t, dim, to[h], scores + h * a->n_keys + begin, (size_t)n);
        memcpy(&behind, to[h] + n, sizeof behind);
        if (behind != CANARY) fail_msg("%s packed_scores, n = %lld: wrote after the last score", t->name, (long long)n);
    }
    for (int64_t h = 0; h < a->n_q; h++) from[h] = a->w + h * a->n_keys + begin, to[h] = o + h * dim;
    t->unpack_values(a->type, dim, a->cache, a->slot_bytes, a->slots + begin, n, floats);
    t->mix_values(from, a->n_q, dim, floats, n, to);
    same("mix_values", t, dim, o, out, (size_t)(a->n_q * dim) + 16);
    free(floats), free(s), free(o);
}

static void converted_keys_give_the_same_bits(void **state) {
    (void)state;
    static const int64_t dims[] = {16, 48, 64, 80, 128, 256};
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    for (int type = 0; type < KV_TYPE_COUNT; type++)
        for (int64_t n_q = 1; n_q <= 16; n_q++) {
            Attention a;
            enum { BEGIN = 3 };
            int64_t dim = dims[(n_q + type) % 6], n = 1 + (n_q * 29 + type * 7) % KEYS_PACKED;
            attention_open(&a, (KvType)type, n_q, dim, BEGIN + KEYS_PACKED);
            float *scores = canaries((size_t)(n_q * a.n_keys)), *out = ones_and_canaries(n_q * dim);
            scores_of(ref(), &a, scores, a.n_keys);
            mix_of(ref(), &a, BEGIN, BEGIN + n, out);
            for (int i = 0; i < n_tables; i++) check_converted(tables[i], &a, BEGIN, n, scores, out);
            free(scores), free(out);
            attention_close(&a);
        }
}

/* ---- the other kernels, table against ref ------------------------------------------------------- */

typedef void (*VectorFn)(const Kernels *t, float *x, const float *y, int64_t n);

static void run_rmsnorm(const Kernels *t, float *x, const float *y, int64_t n) { t->rmsnorm(x, x, y, n, 1e-6f); }
static void run_add(const Kernels *t, float *x, const float *y, int64_t n) { t->add(x, y, n); }
static void run_silu(const Kernels *t, float *x, const float *y, int64_t n) { t->silu_mul(x, y, n); }
static void run_gelu(const Kernels *t, float *x, const float *y, int64_t n) { t->gelu_mul(x, y, n); }
static void run_sigmoid(const Kernels *t, float *x, const float *y, int64_t n) { t->sigmoid_mul(x, y, n); }
/* The numbers of x are the gates. */
static void run_sigmoid_of_gate(const Kernels *t, float *x, const float *y, int64_t n) {
    (void)y;
    t->sigmoid_mul(x, x, n);
}
static void run_cap(const Kernels *t, float *x, const float *y, int64_t n) { (void)y, t->soft_cap(x, n, 30); }
static void run_softmax(const Kernels *t, float *x, const float *y, int64_t n) { (void)y, t->softmax(x, n); }
static void run_exp_sum(const Kernels *t, float *x, const float *y, int64_t n) {
    (void)y;
    x[n + 1] = t->exp_sum(x, n, &x[n]);
}
static void run_scale_add(const Kernels *t, float *x, const float *y, int64_t n) { t->scale_add(x, 0.3f, y, -1.7f, n); }
static void run_divide(const Kernels *t, float *x, const float *y, int64_t n) { t->divide_all(x, n, y[0]); }
static void run_store(const Kernels *t, float *x, const float *y, int64_t n) { t->kv_store(KV_F16, y, n, x); }
static void run_store_f32(const Kernels *t, float *x, const float *y, int64_t n) { t->kv_store(KV_F32, y, n, x); }
static void run_store_q8(const Kernels *t, float *x, const float *y, int64_t n) { t->kv_store(KV_Q8, y, n, x); }
static void run_rope(const Kernels *t, float *x, const float *y, int64_t n) {
    t->rope(n % 4 ? ROPE_PAIRS : ROPE_HALVES, x, 1, n, n / 2 * 2, y);
}

static void check_vector(const char *what, VectorFn fn, int64_t n, float scale) {
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    size_t size = (size_t)n + 18;
    float *x = random_floats(size, scale), *y = random_floats(size, scale), *want = canaries(size),
          *got = canaries(size);
    memcpy(want + 1, x, (size_t)n * sizeof *x); /* from element 1 on, so that nothing is aligned */
    fn(ref(), want + 1, y + 1, n);
    for (int i = 1; i < n_tables; i++) {
        free(got);
        got = canaries(size);
        memcpy(got + 1, x, (size_t)n * sizeof *x);
        fn(tables[i], got + 1, y + 1, n);
        same(what, tables[i], n, got, want, size);
    }
    free(x), free(y), free(want), free(got);
}

static void vector_kernels_are_the_same(void **state) {
    (void)state;
    static const struct {
        const char *name;
        VectorFn fn;
        float scale;
    } cases[] = {
        {"rmsnorm", run_rmsnorm, 1},
        {"rmsnorm", run_rmsnorm, 1e18f},
        {"add", run_add, 1},
        {"silu_mul", run_silu, 3},
        {"silu_mul", run_silu, 200},
        {"silu_mul", run_silu, 1e-38f},
        {"gelu_mul", run_gelu, 3},
        {"gelu_mul", run_gelu, 200},
        {"gelu_mul", run_gelu, 1e-30f},
        {"sigmoid_mul", run_sigmoid, 3},
        {"sigmoid_mul", run_sigmoid, 200},
        {"soft_cap", run_cap, 20},
        {"soft_cap", run_cap, 1e5f},
        {"soft_cap", run_cap, 1e-30f},
        {"softmax", run_softmax, 5},
        {"softmax", run_softmax, 120},
        {"exp_sum", run_exp_sum, 5},
        {"exp_sum", run_exp_sum, 120},
        {"scale_add", run_scale_add, 5},
        {"divide_all", run_divide, 5},
        {"kv_store f16", run_store, 1},
        {"kv_store f16", run_store, 1e5f},
        {"kv_store f16", run_store, 1e-6f},
        {"kv_store f32", run_store_f32, 1},
        {"kv_store q8", run_store_q8, 1},
        {"kv_store q8", run_store_q8, 1e-6f},
        {"kv_store q8", run_store_q8, 1e-36f},
        {"rope", run_rope, 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int64_t n = 1; n <= 70; n++) check_vector(cases[c].name, cases[c].fn, n, cases[c].scale);
        check_vector(cases[c].name, cases[c].fn, 2048, cases[c].scale);
        check_vector(cases[c].name, cases[c].fn, 4097, cases[c].scale);
    }
    /* Covers the range of exp densely, because one rounding too many changes only two results in a million. */
    check_vector("softmax", run_softmax, 1 << 23, 43.6f);
}

/* Compares ref with the formula in double precision, then each table with ref, also in place and without an output. */
static void check_delta_rule(int64_t n) {
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    size_t size = (size_t)(n * n);
    const float decay = 0.875f, beta = 0.3f;
    float *from = random_floats(size, 1), *k = random_floats((size_t)n, 0.2f), *v = random_floats((size_t)n, 1),
          *q = random_floats((size_t)n, 0.2f), *want = canaries(size + 1), *want_out = canaries((size_t)n + 1),
          *got = canaries(size + 1), *out = canaries((size_t)n + 1);
    ref()->delta_rule(from, want, n, k, v, decay, beta, q, want_out);
    for (int64_t d = 0; d < n; d++) {
        double read = 0, sum = 0;
        for (int64_t i = 0; i < n; i++) read += (double)k[i] * (double)decay * (double)from[i * n + d];
        for (int64_t i = 0; i < n; i++) {
            double s = (double)decay * (double)from[i * n + d] + (double)k[i] * (double)beta * ((double)v[d] - read);
            sum += (double)q[i] * s;
            assert_true(fabs(s - (double)want[i * n + d]) < 1e-4);
        }
        assert_true(fabs(sum - (double)want_out[d]) < 1e-4);
    }
    for (int i = 1; i < n_tables; i++) {
        tables[i]->delta_rule(from, got, n, k, v, decay, beta, q, out);
        same("delta_rule", tables[i], n, got, want, size + 1);
        same("delta_rule, output", tables[i], n, out, want_out, (size_t)n + 1);
        memcpy(got, from, size * sizeof *got);
        tables[i]->delta_rule(got, got, n, k, v, decay, beta, NULL, NULL);
        same("delta_rule in place", tables[i], n, got, want, size + 1);
    }
    free(from), free(k), free(v), free(q), free(want), free(want_out), free(got), free(out);
}

/* The same for the update of Mamba-2. */
static void check_ssm_update(int64_t n_k, int64_t n) {
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    size_t size = (size_t)(n_k * n);
    const float decay = 0.875f;
    float *from = random_floats(size, 1), *k = random_floats((size_t)n_k, 0.2f), *x = random_floats((size_t)n, 1),
          *q = random_floats((size_t)n_k, 0.2f), *want = canaries(size + 1), *want_out = canaries((size_t)n + 1),
          *got = canaries(size + 1), *out = canaries((size_t)n + 1);
    ref()->ssm_update(from, want, n_k, n, k, x, decay, q, want_out);
    for (int64_t d = 0; d < n; d++) {
        double sum = 0;
        for (int64_t i = 0; i < n_k; i++) {
            double s = (double)decay * (double)from[i * n + d] + (double)k[i] * (double)x[d];
            sum += (double)q[i] * s;
            assert_true(fabs(s - (double)want[i * n + d]) < 1e-4);
        }
        assert_true(fabs(sum - (double)want_out[d]) < 1e-4);
    }
    for (int i = 1; i < n_tables; i++) {
        tables[i]->ssm_update(from, got, n_k, n, k, x, decay, q, out);
        same("ssm_update", tables[i], n, got, want, size + 1);
        same("ssm_update, output", tables[i], n, out, want_out, (size_t)n + 1);
        memcpy(got, from, size * sizeof *got);
        tables[i]->ssm_update(got, got, n_k, n, k, x, decay, NULL, NULL);
        same("ssm_update in place", tables[i], n, got, want, size + 1);
    }
    free(from), free(k), free(x), free(q), free(want), free(want_out), free(got), free(out);
}

static void the_update_of_mamba_is_right_and_the_same(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 70; n++) check_ssm_update(1 + n % 9, n);
    check_ssm_update(128, 64);
    check_ssm_update(16, 200);
}

static void the_delta_rule_is_right_and_the_same(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 70; n++) check_delta_rule(n);
    check_delta_rule(128);
    check_delta_rule(200);
}

/* ---- the long form: every float ----------------------------------------------------------------- */

static void every_exp_is_within_two_ulp(void **state) {
    (void)state;
    double worst = 0, at = 0;
    int64_t n = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits++) {
        float x = float_of_bits((uint32_t)bits);
        if (!(x >= -87.33f && x <= 88.37f)) continue; /* beyond, the result is a constant */
        double error = exp_error_ulp(x);
        if (error > worst) worst = error, at = (double)x;
        n++;
    }
    print_message("exp: at most %.4f ulp off over %lld floats, at %a\n", worst, (long long)n, at);
    assert_true(worst < 2);
}

/* Takes as many floats at once as the second cache holds. NaN has no defined bits. */
static void every_float_gives_the_same_bits(void **state) {
    (void)state;
    enum { N = 1 << 14 };
    static const struct {
        const char *name;
        VectorFn fn;
    } functions[] = {{"silu_mul", run_silu},
                     {"gelu_mul", run_gelu},
                     {"sigmoid_mul", run_sigmoid_of_gate},
                     {"soft_cap", run_cap}};
    static float gate[N], ones[N], want[N], got[N];
    int n_tables;
    const Kernels *const *tables = all_tables(&n_tables);
    for (int i = 0; i < N; i++) ones[i] = 1;
    for (uint64_t first = 0; first <= UINT32_MAX; first += N) {
        for (uint32_t i = 0; i < N; i++) {
            float x = float_of_bits((uint32_t)first + i);
            gate[i] = isfinite(x) ? x : 0;
        }
        for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
            memcpy(want, gate, sizeof want);
            functions[k].fn(ref(), want, ones, N);
            for (int t = 1; t < n_tables; t++) {
                memcpy(got, gate, sizeof got);
                functions[k].fn(tables[t], got, ones, N);
                if (memcmp(got, want, sizeof got) != 0) same(functions[k].name, tables[t], N, got, want, N);
            }
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest all[] = {cmocka_unit_test(every_exp_is_within_two_ulp),
                                     cmocka_unit_test(every_float_gives_the_same_bits)};
    if (argc > 1 && strcmp(argv[1], "all") == 0) return cmocka_run_group_tests(all, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_ulp),
        cmocka_unit_test(elementwise_functions_are_right),
        cmocka_unit_test(softmax_is_right),
        cmocka_unit_test(parts_of_a_softmax_can_be_joined),
        cmocka_unit_test(rope_rotates_the_right_pairs),
        cmocka_unit_test(attention_is_right_and_the_same),
        cmocka_unit_test(converted_keys_give_the_same_bits),
        cmocka_unit_test(vector_kernels_are_the_same),
        cmocka_unit_test(the_delta_rule_is_right_and_the_same),
        cmocka_unit_test(the_update_of_mamba_is_right_and_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
