/* ref.c - the specification of all kernels in plain C, first the matrix products, then everything else. It is slow; the
 * fast tables are tested against it. Operations are single precision, in the order written.
 *
 * The matrix products.
 *
 * "fma" is a fused multiply-add, which rounds once; every other operation rounds by itself. An output has one
 * accumulator, acc, which starts as +0 and takes the inputs in ascending order.
 *
 * F32, F16: for each input k   acc = fma(w[k], x[k], acc)                     (halves widened exactly)
 *
 * BF16: for each pair of inputs (2i, 2i+1), the odd one first, as vdpbf16ps does:
 *     acc = ftz(fma(w[2i+1], x[2i+1], acc));  acc = ftz(fma(w[2i], x[2i], acc))
 *   where ftz makes a subnormal result a zero of its sign. Subnormal weights and activations were made
 *   zero when they were packed or converted.
 *
 * Block types: for each 32 inputs, with the activations' q and scale da (and ds = da * (sum of q)):
 *     t = sum of (code - bias) * q: an exact 32-bit integer, so its order is free, rounded once to a float
 *   Q8_0 Q4_0 Q5_0 IQ4_NL MXFP4:
 *                     acc = fma(t, d * da, acc)              (MXFP4: d = 2^(exponent - 128); 255 gives infinity)
 *   Q4_1 Q5_1:        acc = fma(t, d * da, acc);             acc = fma(m, ds, acc)
 *   Q4_K Q5_K:        acc = fma(t, (d * scale) * da, acc);   acc = fma(-(dmin * min), ds, acc)
 *   IQ4_XS:           acc = fma(t, (d * scale) * da, acc)
 *   IQ2_XXS IQ3_XXS IQ3_S IQ1_S:
 *                     acc = fma(t, (d * (2 scale + 1) * unit) * da, acc)       (unit: a power of two)
 *   Q6_K Q3_K:        acc = fma(t0, (d * scale0) * da, acc); acc = fma(t1, (d * scale1) * da, acc)
 *                     with t0, scale0 of the first 16 of the 32 inputs, t1, scale1 of the last 16.
 *   IQ2_XS IQ2_S IQ1_M:  the same with (d * (2 scale0 + 1) * unit) and (d * (2 scale1 + 1) * unit)
 *   NVFP4:            the same with nvfp4_scale(scale0) and nvfp4_scale(scale1) (gguf/codebook.h)
 *   Q2_K:             the same, and then acc = fma(-(dmin * min0), ds0, acc); acc = fma(-(dmin * min1), ds1, acc)
 *                     with ds0, ds1 = da * (sum of q) of the first and the last 16.
 *
 * Why the tables agree: the sequence above belongs to one output and one row, no operation in it uses
 * another output or row, and a vector of any width does the same for several outputs side by side.
 * Proof: tests/compute/test_kernels_matmul.c compares this file with double precision, and the tables with this file.
 */
#include "compute/cpu/kernels/ref.h"

#include "gguf/tensor_type.h"
#include "gguf/codebook.h"
#include "compute/cpu/kernels/layout.h"
#include "compute/cpu/kernels/tables.h"

#include <math.h>
#include <string.h>

/* ---- activations -------------------------------------------------------------------------------- */

ActForm act_form(TensorType weight_type, ActForm blocks) {
    if (slice_forms[weight_type].scales != SCALES_NONE) return blocks;
    return weight_type == TYPE_BF16 ? ACT_BF16 : ACT_F32;
}

const char *act_form_name(ActForm form) {
    static const char *const names[ACT_FORM_COUNT] =
        {[ACT_Q16] = "q16", [ACT_Q8] = "q8", [ACT_F32] = "f32", [ACT_BF16] = "bf16"};
    return names[form];
}

size_t act_offset(ActForm form, int64_t i) {
    size_t n = (size_t)i;
    return form == ACT_F32 ? 4 * n : form == ACT_BF16 ? 2 * n : n / ACT_BLOCK * act_block_bytes(form);
}

size_t act_row_bytes(ActForm form, int64_t n_in) {
    size_t bytes = act_offset(form, form == ACT_BF16 ? n_in + n_in % 2 : n_in);
    size_t n_lines = (bytes + 63) / 64;
    /* With an odd number of cache lines, the same position of many rows is in many sets of the cache. */
    return 64 * (act_is_blocks(form) ? n_lines | 1 : n_lines);
}

static int act_value(ActForm form, const ActBlock *b, int i) {
    return form == ACT_Q16 ? 256 * b->plane[0][i] + b->plane[1][i] : b->plane[0][i];
}

static void convert_block(ActForm form, const float *x, ActBlock *b) {
    if (!ref_is_finite(x, ACT_BLOCK)) {
        act_block_not_finite(form, b);
        return;
    }
    float amax = 0;
    for (int i = 0; i < ACT_BLOCK; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    float levels = act_levels(form), inverse = amax >= ACT_TINY ? levels / amax : 0.0f;
    b->scale = amax / levels;
    b->minus_sum = b->minus_sum_low = 0;
    for (int i = 0; i < ACT_BLOCK; i++) {
        int q = (int)lrintf(x[i] * inverse);
        if (form == ACT_Q16) {
            int high = (q + 128) >> 8, low = q - 256 * high;
            b->plane[0][i] = (int8_t)high;
            b->plane[1][i] = (int8_t)(low < -127 ? -127 : low);
        } else b->plane[0][i] = (int8_t)q;
        b->minus_sum -= act_value(form, b, i);
        if (i == 15) b->minus_sum_low = b->minus_sum;
    }
    b->scaled_sum = b->scale * (float)-b->minus_sum;
}

static void convert_bf16(const float *x, int64_t n, uint16_t *h) {
    for (int64_t i = 0; i < n; i++) h[i] = bf16_dot_operand(x[i]);
    if (n % 2) h[n] = 0;
}

static void act_convert(ActForm form, const float *x, int64_t n, void *out) {
    if (form == ACT_F32) memcpy(out, x, (size_t)n * sizeof *x);
    if (form == ACT_BF16) convert_bf16(x, n, out);
    if (act_is_blocks(form))
        for (int64_t i = 0; i < n / ACT_BLOCK; i++)
            convert_block(form, x + i * ACT_BLOCK, (ActBlock *)((char *)out + (size_t)i * act_block_bytes(form)));
}

/* ---- plain types -------------------------------------------------------------------------------- */

static float dot_plain(TensorType type, const unsigned char *tile, int row, const void *x, int64_t n) {
    const float *xf = x;
    const uint16_t *xh = x, *wh = (const uint16_t *)(const void *)tile;
    const float *wf = (const float *)(const void *)tile;
    float acc = 0;
    if (type == TYPE_F32)
        for (int64_t k = 0; k < n; k++) acc = fmaf(wf[k * 16 + row], xf[k], acc);
    else if (type == TYPE_F16)
        for (int64_t k = 0; k < n; k++) acc = fmaf(half_to_float(wh[k * 16 + row]), xf[k], acc);
    else
        for (int64_t k = 0; k < n; k += 2, wh += 32)
            for (int odd = 1; odd >= 0; odd--)
                acc = bf16_dot_add(bf16_to_float(wh[row * 2 + odd]), bf16_to_float(xh[k + odd]), acc);
    return acc;
}

/* ---- block types -------------------------------------------------------------------------------- */

typedef struct Slice {
    int w[ACT_BLOCK]; /* code - bias */
    float scale[2];   /* of the first and the last 16 inputs; the first is for all 32 where scale_parts is 1 */
    float min[2];     /* the minima, which are multiplied with the sum of the activations */
} Slice;

static int code_at(TensorType type, const unsigned char *slice, int row, int k) {
    int g = k / 4, lane = row * 4 + k % 4;
    uint32_t high_bits = slice_forms[type].high_bits;
    if (low_bits(type) == 8) return slice[g * 64 + lane];
    int code;
    if (low_bits(type) == 2) {
        code = (slice[g / 4 * 64 + lane] >> (2 * (g % 4))) & 3;
        if (high_bits) code |= ((slice[128 + lane] >> g) & 1) << 2;
    } else {
        code = g < 4 ? slice[g * 64 + lane] & 15 : slice[(g - 4) * 64 + lane] >> 4;
        if (high_bits == 1) code |= ((slice[256 + lane] >> g) & 1) << 4;
        if (high_bits == 2) code |= ((slice[256 + g / 4 * 64 + lane] >> (2 * (g % 4))) & 3) << 4;
    }
    return codebook_codes(type) ? codebook_codes(type)[code] : code;
}

static float half_at(const unsigned char *p, int i) {
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return half_to_float(h);
}

static void read_slice(TensorType type, const unsigned char *codes, const unsigned char *record, int i_sub, int row,
                       Slice *s) {
    for (int k = 0; k < ACT_BLOCK; k++) s->w[k] = code_at(type, codes, row, k) - (int)slice_forms[type].bias;
    float d = scale_halves(type) ? half_at(record, row) : 0,
          dmin = scale_halves(type) == 2 ? half_at(record, 16 + row) : 0;
    s->scale[0] = s->scale[1] = d;
    s->min[0] = s->min[1] = 0;
    for (int i = 0; i < 2; i++) {
        const unsigned char *of_slice = record + 32 * scale_halves(type) + i_sub * 16 + row,
                            *of_half = record + 32 * scale_halves(type) + i_sub * 32 + i * 16 + row;
        switch (slice_forms[type].scales) {
        case SCALES_NONE:
        case SCALES_HALF: break;
        case SCALES_HALF_MIN: s->min[i] = dmin; break;
        case SCALES_BYTE_MINS:
            s->scale[i] = d * (float)record[64 + i_sub * 32 + row];
            s->min[i] = -(dmin * (float)record[64 + i_sub * 32 + 16 + row]);
            break;
        case SCALES_NIBBLE_MINS:
            s->scale[i] = d * (float)(*of_half & 15);
            s->min[i] = 0 - dmin * (float)(*of_half >> 4);
            break;
        case SCALES_SIGNED: s->scale[i] = d * (float)(int8_t)*of_slice; break;
        case SCALES_SIGNED_HALVES: s->scale[i] = d * (float)(int8_t)*of_half; break;
        case SCALES_ODD:
        case SCALES_ODD_HALVES:
            s->scale[i] = d * (float)(2 * (*of_slice >> 4 * i & 15) + 1) * slice_forms[type].unit;
            break;
        case SCALES_EXPONENT: s->scale[i] = mxfp4_scale(record[row]); break;
        case SCALES_SMALL_FLOATS: s->scale[i] = nvfp4_scale(*of_half); break;
        }
    }
}

static float add_slice(TensorType type, ActForm form, const Slice *s, const ActBlock *x, float acc) {
    int t[2] = {0, 0};
    for (int k = 0; k < ACT_BLOCK; k++) t[k / 16] += s->w[k] * act_value(form, x, k);
    if (scale_parts(type) == 2) {
        acc = fmaf((float)t[0], s->scale[0] * x->scale, acc);
        acc = fmaf((float)t[1], s->scale[1] * x->scale, acc);
        if (!has_min(type)) return acc;
        acc = fmaf(s->min[0], x->scale * (float)-x->minus_sum_low, acc);
        return fmaf(s->min[1], x->scale * (float)(x->minus_sum_low - x->minus_sum), acc);
    }
    acc = fmaf((float)(t[0] + t[1]), s->scale[0] * x->scale, acc);
    return has_min(type) ? fmaf(s->min[0], x->scaled_sum, acc) : acc;
}

static void rows_blocks(const PackedMatrix *w, int64_t o, const unsigned char *x, size_t x_stride, int64_t n_rows,
                        float *y, int64_t y_stride) {
    const unsigned char *tile = packed_tile(w, o / TILE_ROWS);
    for (int64_t r = 0; r < n_rows; r++) y[r * y_stride] = 0;
    for (int64_t i = 0; i < tile_n_slices(w->type, w->n_in); i++) {
        Slice s;
        read_slice(w->type, tile + codes_offset(w->type, i), tile + scales_offset(w->type, i),
                   (int)(i % slice_forms[w->type].scale_slices), (int)(o % TILE_ROWS), &s);
        for (int64_t r = 0; r < n_rows; r++) {
            const void *b = x + (size_t)r * x_stride + (size_t)i * act_block_bytes(w->act);
            y[r * y_stride] = add_slice(w->type, w->act, &s, b, y[r * y_stride]);
        }
    }
}

static void matmul(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride, int64_t tile_begin,
                   int64_t tile_end) {
    size_t x_stride = act_row_bytes(w->act, w->n_in);
    int64_t end = tile_end * TILE_ROWS < w->n_out ? tile_end * TILE_ROWS : w->n_out;
    for (int64_t o = tile_begin * TILE_ROWS; o < end; o++) {
        if (act_is_blocks(w->act)) {
            rows_blocks(w, o, x, x_stride, n_rows, y + o, y_stride);
            continue;
        }
        for (int64_t r = 0; r < n_rows; r++)
            y[r * y_stride + o] = dot_plain(w->type, packed_tile(w, o / TILE_ROWS), (int)(o % TILE_ROWS),
                                            (const unsigned char *)x + (size_t)r * x_stride, w->n_in);
    }
}

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
    .act_convert = act_convert,
    .matmul = matmul,
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
