/* vector_body.h - everything except the matrix products, for every vector table; included once by each kernels_*.c,
 * after its simd_*.h. The operations and their order are those of ref.c.
 *
 * Reductions keep 16 running sums in PARTS vectors of LANES. Where many dot products are needed at once (attention
 * scores), LANES of them are folded together, and each level of folding joins two vectors.
 *
 * One more sum tells whether all numbers of a block are finite: each number times zero adds up to zero if they are,
 * and to NaN if not. */
#include "compute/cpu/kernels/ref.h"

#include <string.h>

enum { PARTS = 16 / LANES };

/* ---- elementwise -------------------------------------------------------------------------------- */

INLINE Vf v_exp(Vf x) {
    Vf v = v_min(x, v_set(EXP_HIGH));
    Vf rounded = v_fma(v, v_set(EXP_LOG2E), v_set(EXP_ROUND));
    Vf n = v_sub(rounded, v_set(EXP_ROUND));
    Vf r = v_fma(n, v_set(-EXP_LN2_HIGH), v);
    r = v_fma(n, v_set(-EXP_LN2_LOW), r);
    Vf p = v_fma(v_set(EXP_C6), r, v_set(EXP_C5));
    p = v_fma(p, r, v_set(EXP_C4));
    p = v_fma(p, r, v_set(EXP_C3));
    p = v_fma(p, r, v_set(EXP_C2));
    Vf e = v_add(v_fma(p, v_mul(r, r), r), v_set(1));
    e = v_as_float(v_add_int(v_as_int(e), v_shift_left(v_as_int(rounded), 23)));
    return v_where_ge(v, EXP_LOW, e);
}

/* Returns the 16 running sums of a[i]*b[i], folded. */
INLINE float dot(const float *a, const float *b, int64_t n) {
    Vf s[PARTS];
    UNROLL for (int j = 0; j < PARTS; j++) s[j] = v_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        UNROLL for (int j = 0; j < PARTS; j++) s[j] = v_fma(v_load(a + i + j * LANES), v_load(b + i + j * LANES), s[j]);
    if (i < n) UNROLL for (int j = 0; j < PARTS; j++) {
            int64_t left = n - i - j * LANES;
            s[j] = v_fma(v_load_n(a + i + j * LANES, left), v_load_n(b + i + j * LANES, left), s[j]);
        }
    return v_fold(PARTS == 1 ? s[0] : v_add(s[0], s[PARTS - 1]));
}

static void rmsnorm(float *y, const float *x, const float *w, int64_t n, float eps) {
    Vf scale = v_set(1.0f / sqrtf(dot(x, x, n) / (float)n + eps));
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(y + i, v_mul(v_mul(v_load(x + i), scale), v_load(w + i)));
    v_store_n(y + i, n - i, v_mul(v_mul(v_load_n(x + i, n - i), scale), v_load_n(w + i, n - i)));
}

static void add(float *x, const float *y, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(x + i, v_add(v_load(x + i), v_load(y + i)));
    v_store_n(x + i, n - i, v_add(v_load_n(x + i, n - i), v_load_n(y + i, n - i)));
}

INLINE Vf silu(Vf x) { return v_div(x, v_add(v_set(1), v_exp(v_sub(v_zero(), x)))); }

static void silu_mul(float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(gate + i, v_mul(silu(v_load(gate + i)), v_load(up + i)));
    v_store_n(gate + i, n - i, v_mul(silu(v_load_n(gate + i, n - i)), v_load_n(up + i, n - i)));
}

INLINE Vf gelu(Vf x) {
    Vf inner = v_mul(v_fma(v_mul(x, x), v_set(GELU_B), v_set(GELU_A)), x);
    return v_div(x, v_add(v_set(1), v_exp(v_sub(v_zero(), inner))));
}

static void gelu_mul(float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(gate + i, v_mul(gelu(v_load(gate + i)), v_load(up + i)));
    v_store_n(gate + i, n - i, v_mul(gelu(v_load_n(gate + i, n - i)), v_load_n(up + i, n - i)));
}

INLINE Vf gated(Vf x, Vf gate) {
    Vf y = v_div(x, v_add(v_set(1), v_exp(v_sub(v_zero(), gate))));
    return v_add(y, v_mul(gate, v_zero()));
}

static void sigmoid_mul(float *x, const float *gate, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(x + i, gated(v_load(x + i), v_load(gate + i)));
    v_store_n(x + i, n - i, gated(v_load_n(x + i, n - i), v_load_n(gate + i, n - i)));
}

INLINE Vf capped(Vf x, Vf cap) {
    Vf y = v_div(x, cap), e = v_exp(v_add(y, y));
    Vf tanh_y = v_sub(v_set(1), v_div(v_set(2), v_add(e, v_set(1))));
    return v_add(v_mul(cap, tanh_y), v_mul(x, v_zero()));
}

static void soft_cap(float *x, int64_t n, float cap) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(x + i, capped(v_load(x + i), v_set(cap)));
    v_store_n(x + i, n - i, capped(v_load_n(x + i, n - i), v_set(cap)));
}

static void rope(RopeStyle style, float *x, int64_t n_heads, int64_t head_dim, int64_t n_rot, const float *cos_sin) {
    rope_rotate(style, x, n_heads, head_dim, n_rot, cos_sin);
}

/* Computes x[i] = exp(x[i] - max) for 16 numbers and adds each to its running sum. The caller pads a last vector
 * with -inf, whose exponential is 0. */
INLINE void softmax_16(float *x, Vf max, Vf s[PARTS]) {
    UNROLL for (int j = 0; j < PARTS; j++) {
        Vf e = v_exp(v_sub(v_load(x + j * LANES), max));
        s[j] = v_add(s[j], e);
        v_store(x + j * LANES, e);
    }
}

/* Returns x / b for b = -minus_b and inverse = 1 / b. The result is rounded correctly, as v_div rounds it, unless x
 * is too small, and takes a third of the time of v_div. The quotient is corrected twice by the exact remainder of
 * the division (Markstein): after the first correction it is one of the two floats next to the true quotient, after
 * the second the nearer one. */
INLINE Vf divide(Vf x, Vf minus_b, Vf inverse) {
    Vf q = v_mul(x, inverse);
    q = v_fma(v_fma(minus_b, q, x), inverse, q);
    return v_fma(v_fma(minus_b, q, x), inverse, q);
}

static float exp_sum(float *x, int64_t n, float *greatest) {
    Vf max = v_set(-INFINITY), s[PARTS];
    float last[16];
    int64_t i = 0, n_whole = n / 16 * 16;
    for (int j = 0; j < 16; j++) last[j] = n_whole + j < n ? x[n_whole + j] : -INFINITY;
    Vf most[4] = {max, max, max, max}; /* four chains that do not wait for each other */
    for (i = 0; i + 4 * LANES <= n_whole; i += 4 * LANES)
        UNROLL for (int j = 0; j < 4; j++) most[j] = v_max(v_load(x + i + j * LANES), most[j]);
    for (; i < n_whole; i += LANES) max = v_max(v_load(x + i), max);
    UNROLL for (int j = 0; j < 4; j++) max = v_max(most[j], max);
    for (int j = 0; j < 16; j += LANES) max = v_max(v_load(last + j), max);
    *greatest = v_max_all(max);
    max = v_set(*greatest);
    UNROLL for (int j = 0; j < PARTS; j++) s[j] = v_zero();
    for (i = 0; i < n_whole; i += 16) softmax_16(x + i, max, s);
    if (n_whole < n) {
        softmax_16(last, max, s);
        memcpy(x + n_whole, last, (size_t)(n - n_whole) * sizeof *x);
    }
    float total = v_fold(PARTS == 1 ? s[0] : v_add(s[0], s[PARTS - 1]));
    if (total < SOFTMAX_SUM_MAX) return total;
    for (i = 0; i < n; i++) x[i] = NAN;
    return NAN;
}

static void softmax(float *x, int64_t n) {
    float max, total = exp_sum(x, n, &max);
    if (isnan(total)) return;
    Vf sum = v_set(total), minus_sum = v_set(-total), inverse = v_set(1 / total);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        Vf e = v_load(x + i);
        v_store(x + i, v_all_ge(e, SOFTMAX_TINY) ? divide(e, minus_sum, inverse) : v_div(e, sum));
    }
    v_store_n(x + i, n - i, v_div(v_load_n(x + i, n - i), sum));
}

static void scale_add(float *x, float a, const float *y, float b, int64_t n) {
    Vf va = v_set(a), vb = v_set(b);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(x + i, v_fma(v_load(y + i), vb, v_mul(v_load(x + i), va)));
    v_store_n(x + i, n - i, v_fma(v_load_n(y + i, n - i), vb, v_mul(v_load_n(x + i, n - i), va)));
}

static void divide_all(float *x, int64_t n, float by) {
    Vf v = v_set(by);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(x + i, v_div(v_load(x + i), v));
    v_store_n(x + i, n - i, v_div(v_load_n(x + i, n - i), v));
}

/* ---- KV cache ----------------------------------------------------------------------------------- */

static void store_q8(const float *x, int64_t n, unsigned char *block) {
    for (int64_t i = 0; i < n; i += KV_BLOCK, block += KV_BLOCK_BYTES) {
        float all[KV_BLOCK] = {0};
        memcpy(all, x + i, (size_t)(n - i < KV_BLOCK ? n - i : KV_BLOCK) * sizeof *x);
        Vf max = v_zero(), zeros = v_zero();
        for (int j = 0; j < KV_BLOCK; j += LANES) {
            max = v_max(v_abs(v_load(all + j)), max);
            zeros = v_fma(v_load(all + j), v_zero(), zeros);
        }
        if (!(v_fold(zeros) == 0)) {
            kv_block_not_finite(block);
            continue;
        }
        float amax = v_max_all(max);
        Vf inverse = v_set(amax >= ACT_TINY ? 127.0f / amax : 0.0f);
        v_store_half_n((uint16_t *)(void *)block, 1, v_set(amax / 127.0f));
        for (int j = 0; j < KV_BLOCK; j += LANES)
            v_store_i8((int8_t *)block + 2 + j, v_round(v_mul(v_load(all + j), inverse)));
    }
}

static void kv_store(KvType type, const float *x, int64_t n, void *dst) {
    if (type == KV_Q8) {
        store_q8(x, n, dst);
        return;
    }
    if (type == KV_F32) {
        memcpy(dst, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *h = dst;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store_half(h + i, v_load(x + i));
    v_store_half_n(h + i, n - i, v_load_n(x + i, n - i));
}

/* Returns n elements, up to LANES, of a cache row from element i on, a multiple of LANES. The lanes after them are
 * zero. */
INLINE Vf kv_load(KvType type, const unsigned char *row, int64_t i, int64_t n) {
    if (type == KV_Q8) {
        const unsigned char *block = row + i / KV_BLOCK * KV_BLOCK_BYTES;
        return v_mul(v_set_half(block), v_load_i8(block + 2 + i % KV_BLOCK));
    }
    const float *f = (const float *)(const void *)row + i;
    const unsigned char *h = row + 2 * i;
    if (type == KV_F32) return n >= LANES ? v_load(f) : v_load_n(f, n);
    return n >= LANES ? v_load_half(h) : v_load_half_n(h, n);
}

typedef struct Keys {
    const unsigned char *base; /* K or V of slot 0 */
    size_t slot_bytes;
    const int32_t *slots;
    int64_t n;
} Keys;

INLINE const unsigned char *key_row(const Keys *k, int64_t i) { return k->base + (size_t)k->slots[i] * k->slot_bytes; }

/* ---- attention: scores -------------------------------------------------------------------------- */

typedef struct ScoreJob {
    const float *q;
    int64_t head_dim;
    Keys keys;
    float scale;
    float *scores;
    int64_t score_stride;
} ScoreJob;

/* Adds the products of n elements of q[h] and of key i, from element d on, to acc[h*n_keys + i]. */
INLINE void add_scores(KvType type, int n_keys, int n_heads, const ScoreJob *job, const unsigned char *const *rows,
                       int64_t d, int64_t n, Vf *acc) {
    Vf key[LANES], q[LANES];
    UNROLL for (int i = 0; i < n_keys; i++) key[i] = kv_load(type, rows[i], d, n);
    UNROLL for (int h = 0; h < n_heads; h++) {
        const float *head = job->q + h * job->head_dim + d;
        q[h] = n >= LANES ? v_load(head) : v_load_n(head, n);
    }
    UNROLL for (int h = 0; h < n_heads; h++) UNROLL for (int i = 0; i < n_keys; i++)
        acc[h * n_keys + i] = v_fma(q[h], key[i], acc[h * n_keys + i]);
}

/* Scores of n_keys keys from key i0 on with n_heads heads: n_keys * n_heads == LANES dot products at once. In place
 * of keys that do not exist, the last key is read, and its scores are not stored. */
INLINE void scores_block(KvType type, int n_keys, int n_heads, const ScoreJob *job, int64_t i0) {
    const unsigned char *rows[LANES];
    Vf total[LANES], acc[LANES];
    int64_t n_left = job->keys.n - i0;
    for (int i = 0; i < n_keys; i++) rows[i] = key_row(&job->keys, i < n_left ? i0 + i : job->keys.n - 1);
    UNROLL for (int part = 0; part < PARTS; part++) {
        UNROLL for (int i = 0; i < LANES; i++) acc[i] = v_zero();
        int64_t d = part * LANES;
        for (; d + LANES <= job->head_dim; d += 16) add_scores(type, n_keys, n_heads, job, rows, d, LANES, acc);
        if (d < (job->head_dim + 15) / 16 * 16) add_scores(type, n_keys, n_heads, job, rows, d, job->head_dim - d, acc);
        UNROLL for (int i = 0; i < LANES; i++) total[i] = part == 0 ? acc[i] : v_add(total[i], acc[i]);
    }
    float out[LANES];
    v_store(out, v_mul(v_fold_all(total), v_set(job->scale)));
    for (int h = 0; h < n_heads; h++) {
        float *scores = job->scores + h * job->score_stride + i0;
        if (n_left >= n_keys) memcpy(scores, out + h * n_keys, (size_t)n_keys * sizeof *out);
        else memcpy(scores, out + h * n_keys, (size_t)n_left * sizeof *out);
    }
}

INLINE void scores_heads(KvType type, int n_heads, const ScoreJob *job) {
    for (int64_t i = 0; i < job->keys.n; i += LANES / n_heads) scores_block(type, LANES / n_heads, n_heads, job, i);
}

INLINE void scores_all(KvType type, ScoreJob *job, int64_t n_q) {
    for (int64_t h = 0, n; h < n_q; h += n) {
        n = LANES >= 8 && n_q - h >= 8 ? 8 : n_q - h >= 4 ? 4 : n_q - h >= 2 ? 2 : 1;
        if (LANES >= 8 && n == 8) scores_heads(type, 8, job);
        else if (n == 4) scores_heads(type, 4, job);
        else if (n == 2) scores_heads(type, 2, job);
        else scores_heads(type, 1, job);
        job->q += n * job->head_dim;
        job->scores += n * job->score_stride;
    }
}

static void attn_scores(KvType type, const float *q, int64_t n_q, int64_t head_dim, const void *k, size_t slot_bytes,
                        const int32_t *slots, int64_t n_keys, float scale, float *scores, int64_t score_stride) {
    ScoreJob job = {q, head_dim, {k, slot_bytes, slots, n_keys}, scale, scores, score_stride};
    if (type == KV_F16) scores_all(KV_F16, &job, n_q);
    else scores_all(KV_F32, &job, n_q);
}

/* ---- attention: weighted values ----------------------------------------------------------------- */

typedef struct MixJob {
    const float *w;
    int64_t w_stride;
    int64_t head_dim;
    Keys keys;
    float *out;
} MixJob;

/* Adds the weighted values of all keys to n_columns vectors of n_heads outputs, from element d on; the last vector
 * has n elements. */
INLINE void mix_columns(KvType type, int n_heads, int n_columns, const MixJob *job, int64_t d, int64_t n) {
    Vf acc[4 * MIX_COLUMNS], v[MIX_COLUMNS];
    UNROLL for (int h = 0; h < n_heads; h++) UNROLL for (int c = 0; c < n_columns; c++)
        acc[h * n_columns + c] = v_load_n(job->out + h * job->head_dim + d + c * LANES, n);
    for (int64_t i = 0; i < job->keys.n; i++) {
        const unsigned char *row = key_row(&job->keys, i);
        UNROLL for (int c = 0; c < n_columns; c++) v[c] = kv_load(type, row, d + c * LANES, n);
        UNROLL for (int h = 0; h < n_heads; h++) {
            Vf w = v_set(job->w[h * job->w_stride + i]);
            UNROLL for (int c = 0; c < n_columns; c++) acc[h * n_columns + c] = v_fma(w, v[c], acc[h * n_columns + c]);
        }
    }
    UNROLL for (int h = 0; h < n_heads; h++) UNROLL for (int c = 0; c < n_columns; c++)
        v_store_n(job->out + h * job->head_dim + d + c * LANES, n, acc[h * n_columns + c]);
}

INLINE void mix_heads(KvType type, int n_heads, const MixJob *job) {
    int64_t d = 0, n = job->head_dim;
    for (; d + MIX_COLUMNS * LANES <= n; d += MIX_COLUMNS * LANES)
        mix_columns(type, n_heads, MIX_COLUMNS, job, d, LANES);
    for (; d + LANES <= n; d += LANES) mix_columns(type, n_heads, 1, job, d, LANES);
    if (d < n) mix_columns(type, n_heads, 1, job, d, n - d);
}

INLINE void mix_all(KvType type, MixJob *job, int64_t n_q) {
    for (int64_t h = 0, n; h < n_q; h += n) {
        n = n_q - h >= 4 ? 4 : n_q - h >= 2 ? 2 : 1;
        if (n == 4) mix_heads(type, 4, job);
        else if (n == 2) mix_heads(type, 2, job);
        else mix_heads(type, 1, job);
        job->w += n * job->w_stride;
        job->out += n * job->head_dim;
    }
}

static void attn_mix(KvType type, const float *w, int64_t w_stride, int64_t n_q, int64_t head_dim, const void *v,
                     size_t slot_bytes, const int32_t *slots, int64_t n_keys, float *out) {
    MixJob job = {w, w_stride, head_dim, {v, slot_bytes, slots, n_keys}, out};
    if (type == KV_F16) mix_all(KV_F16, &job, n_q);
    else if (type == KV_Q8) mix_all(KV_Q8, &job, n_q);
    else mix_all(KV_F32, &job, n_q);
}

/* ---- recurrent states --------------------------------------------------------------------------- */

enum { STATE_COLUMNS = 4 };

/* An update of a state [n_k][n]: to = decay * from + k d', where d is v, or for the delta rule beta * (v - decay *
 * from' k). */
typedef struct StateJob {
    const float *from, *k, *v, *q; /* out is computed unless q is NULL */
    float *to, *out;
    int64_t n_k, n;
    float decay, beta;
} StateJob;

/* Load and store n elements, without masks if n is LANES at compile time. */
INLINE Vf load_part(const float *p, int64_t n) { return n >= LANES ? v_load(p) : v_load_n(p, n); }
INLINE void store_part(float *p, int64_t n, Vf a) {
    if (n >= LANES) v_store(p, a);
    else v_store_n(p, n, a);
}

/* Updates n_columns vectors of columns from column d on; the last vector has n elements. */
INLINE void state_columns(const StateJob *job, bool is_delta_rule, int n_columns, int64_t d, int64_t n) {
    Vf decay = v_set(job->decay), beta = v_set(job->beta), sums[STATE_COLUMNS], delta[STATE_COLUMNS];
    UNROLL for (int c = 0; c < n_columns; c++) delta[c] = load_part(job->v + d + c * LANES, n), sums[c] = v_zero();
    for (int64_t i = 0; is_delta_rule && i < job->n_k; i++) {
        Vf k = v_set(job->k[i]);
        UNROLL for (int c = 0; c < n_columns; c++)
            sums[c] = v_fma(k, v_mul(load_part(job->from + i * job->n + d + c * LANES, n), decay), sums[c]);
    }
    if (is_delta_rule) UNROLL for (int c = 0; c < n_columns; c++) {
            delta[c] = v_mul(v_sub(delta[c], sums[c]), beta);
            sums[c] = v_zero();
        }
    for (int64_t i = 0; i < job->n_k; i++) {
        Vf k = v_set(job->k[i]), q = v_set(job->q ? job->q[i] : 0);
        UNROLL for (int c = 0; c < n_columns; c++) {
            int64_t at = i * job->n + d + c * LANES;
            Vf s = v_fma(k, delta[c], v_mul(load_part(job->from + at, n), decay));
            store_part(job->to + at, n, s);
            sums[c] = v_fma(q, s, sums[c]);
        }
    }
    if (job->q) UNROLL for (int c = 0; c < n_columns; c++) store_part(job->out + d + c * LANES, n, sums[c]);
}

INLINE void update_state(const StateJob *job, bool is_delta_rule) {
    int64_t d = 0, n = job->n, step = STATE_COLUMNS * LANES;
    for (; d + step <= n; d += step) state_columns(job, is_delta_rule, STATE_COLUMNS, d, LANES);
    for (; d + LANES <= n; d += LANES) state_columns(job, is_delta_rule, 1, d, LANES);
    if (d < n) state_columns(job, is_delta_rule, 1, d, n - d);
}

static void delta_rule(const float *from, float *to, int64_t n, const float *k, const float *v, float decay, float beta,
                       const float *q, float *out) {
    update_state(&(StateJob){from, k, v, q, to, out, n, n, decay, beta}, true);
}

static void ssm_update(const float *from, float *to, int64_t n_k, int64_t n, const float *k, const float *x,
                       float decay, const float *q, float *out) {
    update_state(&(StateJob){from, k, x, q, to, out, n_k, n, decay, 1}, false);
}
