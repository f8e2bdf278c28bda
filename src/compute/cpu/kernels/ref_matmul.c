/* ref_matmul.c - the specification of the matrix products of all kernel tables in plain C, and of the activations that
 * they read. It is slow; the fast tables are tested against it. Operations are single precision, in the order written.
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

#include "gguf/codebook.h"
#include "gguf/tensor_type.h"

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

void ref_act_convert(ActForm form, const float *x, int64_t n, void *out) {
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

void ref_matmul(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride, int64_t tile_begin,
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
