/* ref.c - the specification of all kernels but the matrix products (ref_matmul.c) in plain C: rows, recurrent states,
 * attention; and the table "ref". It is slow; the fast tables are tested against it. Operations are single precision,
 * in the order written; fmaf is a fused multiply-add, which rounds once.
 *
 * Proof: tests/compute/test_kernels_vector.c compares the tables with this file. */
#include "compute/cpu/kernels/ref.h"

#include "compute/cpu/kernels/tables.h"

#include <math.h>
#include <string.h>

/* ---- sums --------------------------------------------------------------------------------------- */

/* Sixteen running sums. Element i goes to sum i%16; the elements missing in the last sixteen are zeros, and
 * are added like the others. */
typedef struct Sums {
    float s[16];
} Sums;

static float sums_fold(Sums *a) {
    for (int n = 8; n >= 1; n /= 2)
        for (int i = 0; i < n; i++) a->s[i] += a->s[i + n];
    return a->s[0];
}

static int64_t round_up_16(int64_t n) { return (n + 15) / 16 * 16; }

/* Returns the sum of a[i]*b[i], with one fma for each i. */
static float dot(const float *a, const float *b, int64_t n) {
    Sums sums = {{0}};
    for (int64_t i = 0; i < round_up_16(n); i++)
        sums.s[i % 16] = fmaf(i < n ? a[i] : 0.0f, i < n ? b[i] : 0.0f, sums.s[i % 16]);
    return sums_fold(&sums);
}

/* ---- elementwise -------------------------------------------------------------------------------- */

bool ref_is_finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

static void rmsnorm(float *y, const float *x, const float *w, int64_t n, float eps) {
    float scale = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] * scale) * w[i];
}

static void add(float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

/* x = n ln2 + r with n the nearest integer; exp(x) = 2^n exp(r). ln2 is split in two so that n*ln2_high is
 * exact, and 2^n is added into the exponent: between EXP_LOW and EXP_HIGH the result is a normal number. */
float ref_exp(float x) {
    float v = x < EXP_HIGH ? x : EXP_HIGH;
    float rounded = fmaf(v, EXP_LOG2E, EXP_ROUND);
    float n = rounded - EXP_ROUND;
    float r = fmaf(n, -EXP_LN2_HIGH, v);
    r = fmaf(n, -EXP_LN2_LOW, r);
    float p = fmaf(EXP_C6, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    float e = fmaf(p, r * r, r) + 1.0f;
    uint32_t e_bits, n_bits;
    memcpy(&e_bits, &e, 4);
    memcpy(&n_bits, &rounded, 4);
    e_bits += n_bits << 23;
    memcpy(&e, &e_bits, 4);
    return v >= EXP_LOW ? e : 0.0f;
}

static void silu_mul(float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) gate[i] = gate[i] / (1.0f + ref_exp(0.0f - gate[i])) * up[i];
}

static void gelu_mul(float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float x = gate[i], inner = fmaf(x * x, GELU_B, GELU_A) * x;
        gate[i] = x / (1.0f + ref_exp(0.0f - inner)) * up[i];
    }
}

static void sigmoid_mul(float *x, const float *gate, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = x[i] / (1.0f + ref_exp(0.0f - gate[i])) + gate[i] * 0.0f;
}

static void soft_cap(float *x, int64_t n, float cap) {
    for (int64_t i = 0; i < n; i++) {
        float y = x[i] / cap, tanh_y = 1.0f - 2.0f / (ref_exp(y + y) + 1.0f);
        x[i] = cap * tanh_y + x[i] * 0.0f;
    }
}

/* ---- recurrent states --------------------------------------------------------------------------- */

static void delta_rule(const float *from, float *to, int64_t n, const float *k, const float *v, float decay, float beta,
                       const float *q, float *out) {
    for (int64_t d = 0; d < n; d++) {
        float read = 0, sum = 0;
        for (int64_t i = 0; i < n; i++) read = fmaf(k[i], from[i * n + d] * decay, read);
        float delta = (v[d] - read) * beta;
        for (int64_t i = 0; i < n; i++) {
            to[i * n + d] = fmaf(k[i], delta, from[i * n + d] * decay);
            if (q) sum = fmaf(q[i], to[i * n + d], sum);
        }
        if (q) out[d] = sum;
    }
}

static void ssm_update(const float *from, float *to, int64_t n_k, int64_t n, const float *k, const float *x,
                       float decay, const float *q, float *out) {
    for (int64_t d = 0; d < n; d++) {
        float sum = 0;
        for (int64_t i = 0; i < n_k; i++) {
            to[i * n + d] = fmaf(k[i], x[d], from[i * n + d] * decay);
            if (q) sum = fmaf(q[i], to[i * n + d], sum);
        }
        if (q) out[d] = sum;
    }
}

/* ---- KV cache and attention --------------------------------------------------------------------- */

static void store_block(const float *x, int64_t n, unsigned char *block) {
    if (!ref_is_finite(x, n)) {
        kv_block_not_finite(block);
        return;
    }
    float amax = 0;
    for (int64_t i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    float inverse = amax >= ACT_TINY ? 127.0f / amax : 0.0f;
    uint16_t d = float_to_half(amax / 127.0f);
    memcpy(block, &d, 2);
    for (int64_t i = 0; i < KV_BLOCK; i++) block[2 + i] = (unsigned char)(i < n ? (int)lrintf(x[i] * inverse) : 0);
}

static void kv_store(KvType type, const float *x, int64_t n, void *dst) {
    if (type == KV_F32) memcpy(dst, x, (size_t)n * sizeof *x);
    else if (type == KV_Q8)
        for (int64_t i = 0; i < n; i += KV_BLOCK)
            store_block(x + i, n - i < KV_BLOCK ? n - i : KV_BLOCK,
                        (unsigned char *)dst + i / KV_BLOCK * KV_BLOCK_BYTES);
    else
        for (int64_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = float_to_half(x[i]);
}

static float kv_at(KvType type, const void *row, int64_t i) {
    if (type == KV_Q8) {
        const unsigned char *block = (const unsigned char *)row + i / KV_BLOCK * KV_BLOCK_BYTES;
        uint16_t d;
        memcpy(&d, block, 2);
        return half_to_float(d) * (float)(int8_t)block[2 + i % KV_BLOCK];
    }
    return type == KV_F32 ? ((const float *)row)[i] : half_to_float(((const uint16_t *)row)[i]);
}

static const void *kv_row(const void *base, size_t slot_bytes, int32_t slot) {
    return (const unsigned char *)base + (size_t)slot * slot_bytes;
}

static void attn_scores(KvType type, const float *q, int64_t n_q, int64_t head_dim, const void *k, size_t slot_bytes,
                        const int32_t *slots, int64_t n_keys, float scale, float *scores, int64_t score_stride) {
    for (int64_t i = 0; i < n_keys; i++) {
        const void *key = kv_row(k, slot_bytes, slots[i]);
        for (int64_t h = 0; h < n_q; h++) {
            Sums sums = {{0}};
            for (int64_t d = 0; d < round_up_16(head_dim); d++)
                sums.s[d % 16] = fmaf(d < head_dim ? q[h * head_dim + d] : 0.0f,
                                      d < head_dim ? kv_at(type, key, d) : 0.0f, sums.s[d % 16]);
            scores[h * score_stride + i] = sums_fold(&sums) * scale;
        }
    }
}

static float exp_sum(float *x, int64_t n, float *greatest) {
    Sums sums = {{0}};
    float max = -INFINITY;
    bool has_nan = false;
    for (int64_t i = 0; i < n; i++) has_nan = has_nan || isnan(x[i]);
    for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    *greatest = max;
    if (has_nan || isinf(max)) {
        for (int64_t i = 0; i < n; i++) x[i] = NAN;
        return NAN;
    }
    for (int64_t i = 0; i < round_up_16(n); i++) {
        float e = i < n ? ref_exp(x[i] - max) : 0.0f;
        sums.s[i % 16] += e;
        if (i < n) x[i] = e;
    }
    return sums_fold(&sums);
}

static void divide_all(float *x, int64_t n, float by) {
    for (int64_t i = 0; i < n; i++) x[i] /= by;
}

static void softmax(float *x, int64_t n) {
    float max, sum = exp_sum(x, n, &max);
    if (!isnan(sum)) divide_all(x, n, sum);
}

static void scale_add(float *x, float a, const float *y, float b, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = fmaf(y[i], b, x[i] * a);
}

static void attn_mix(KvType type, const float *w, int64_t w_stride, int64_t n_q, int64_t head_dim, const void *v,
                     size_t slot_bytes, const int32_t *slots, int64_t n_keys, float *out) {
    for (int64_t i = 0; i < n_keys; i++) {
        const void *value = kv_row(v, slot_bytes, slots[i]);
        for (int64_t h = 0; h < n_q; h++)
            for (int64_t d = 0; d < head_dim; d++)
                out[h * head_dim + d] = fmaf(w[h * w_stride + i], kv_at(type, value, d), out[h * head_dim + d]);
    }
}

static void pack_keys(KvType type, int64_t head_dim, const void *k, size_t slot_bytes, const int32_t *slots, int64_t n,
                      float *out) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < head_dim; d++)
            out[d * KEYS_PACKED + i] = kv_at(type, kv_row(k, slot_bytes, slots[i]), d);
}

static void unpack_values(KvType type, int64_t head_dim, const void *v, size_t slot_bytes, const int32_t *slots,
                          int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < head_dim; d++) out[i * head_dim + d] = kv_at(type, kv_row(v, slot_bytes, slots[i]), d);
}

static void packed_scores(const float *const *q, int64_t n_q, int64_t head_dim, const float *keys, int64_t n,
                          float scale, float *const *scores) {
    for (int64_t h = 0; h < n_q; h++)
        for (int64_t i = 0; i < n; i++) {
            Sums sums = {{0}};
            for (int64_t d = 0; d < head_dim; d++)
                sums.s[d % 16] = fmaf(q[h][d], keys[d * KEYS_PACKED + i], sums.s[d % 16]);
            scores[h][i] = sums_fold(&sums) * scale;
        }
}

static void mix_values(const float *const *w, int64_t n_q, int64_t head_dim, const float *values, int64_t n,
                       float *const *out) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < n_q; h++)
            for (int64_t d = 0; d < head_dim; d++) out[h][d] = fmaf(w[h][i], values[i * head_dim + d], out[h][d]);
}

/* ---- the machine --------------------------------------------------------------------------------------- */

static double peak_loop(PeakKind kind, int64_t n_rounds) {
    volatile float fx = 0.5f;
    volatile int32_t ix = 3;
    float x = fx, f[8] = {0};
    int32_t q = ix, t[8] = {0};
    for (int64_t i = 0; i < n_rounds; i++)
        for (int j = 0; j < 8; j++)
            if (kind == PEAK_INT8) t[j] = (int32_t)((uint32_t)t[j] * 5u + (uint32_t)q);
            else f[j] = fmaf(f[j], x, x);
    for (int j = 0; j < 8; j++) fx = f[j], ix = t[j];
    return (double)n_rounds * 8 * 2;
}

static uint32_t read_loop(const void *p, size_t bytes) {
    const uint64_t *words = p;
    uint64_t any[4] = {0};
    for (size_t i = 0; i < bytes / sizeof *words; i += 4)
        for (size_t j = 0; j < 4; j++) any[j] |= words[i + j];
    return (uint32_t)(any[0] | any[1] | any[2] | any[3]);
}

/* ---- the table ---------------------------------------------------------------------------------- */

const Kernels kernels_ref = {
    .name = "ref",
    .act_convert = ref_act_convert,
    .matmul = ref_matmul,
    .rmsnorm = rmsnorm,
    .add = add,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .sigmoid_mul = sigmoid_mul,
    .soft_cap = soft_cap,
    .rope = rope_rotate,
    .kv_store = kv_store,
    .attn_scores = attn_scores,
    .exp_sum = exp_sum,
    .softmax = softmax,
    .scale_add = scale_add,
    .divide_all = divide_all,
    .attn_mix = attn_mix,
    .pack_keys = pack_keys,
    .unpack_values = unpack_values,
    .packed_scores = packed_scores,
    .mix_values = mix_values,
    .delta_rule = delta_rule,
    .ssm_update = ssm_update,
    .peak_loop = peak_loop,
    .read_loop = read_loop,
    .rows = &row_kernels_plain,
};
