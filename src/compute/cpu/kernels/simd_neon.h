/* simd_neon.h - the vectors of the *_body.h files as 64-bit ARM has them. A register holds 4 lanes; a
 * vector here is two of them, 8 lanes, so that work which is done once for a vector (reading 16 activations, a scale)
 * is done half as often. The 32 registers are then 16 vectors, which is what AVX2 has, and so are the numbers below.
 *
 * The header serves three tables: without the dot product of bytes, with it (sdot: four products added into a lane),
 * and with the product of matrices (smmla: 2x8 by 8x2, twice the work of sdot), where rows come in pairs:
 *
 *     weights of outputs 0, 1, eight inputs      rows a, b           sums
 *     | group g | group g+1 |  output 0          | 8 inputs |  a     0a 0b
 *     | group g | group g+1 |  output 1      x   | 8 inputs |  b  =  1a 1b
 *
 * Two vectors of weights are zipped word by word to get there, and the sums zipped before and after; how much of the
 * factor of two remains has not been measured yet. All of them multiply signed bytes with signed bytes: codes of up to
 * 6 bits are never negative, and 128 is subtracted from 8-bit codes. So usdot and usmmla, which multiply unsigned bytes
 * with signed ones, would gain nothing.
 *
 * BF16. The dot products of bfdot and bfmmla round differently from vdpbf16ps, so these are two fused multiply-adds,
 * with subnormal results flushed by the control register (FZ). ARM calls a result subnormal before it is rounded,
 * x86 after: they differ where it rounds up to the smallest normal number. ARM also sets a flag when it flushes;
 * a product in which that happened, which is very rare with real weights, is computed again by table "ref". */
#ifndef KERNELS_SIMD_NEON_H
#define KERNELS_SIMD_NEON_H

#include "compute/cpu/kernels/simd_common.h"

#include <arm_neon.h>
#include <string.h>

enum {
    LANES = 8,
    ROWS_TOGETHER = 2,
    ROWS_MAX = 8,
    ROWS_NARROW = 2,
    COLUMNS_NARROW = 4,
    COLUMNS_WIDE = 1,
    MIX_COLUMNS = 2,
    KEY_VECTORS = 2,
    BYTE_CODES_LOSE_BIAS = 1, /* v_dot_4_groups subtracts 128 from 8-bit codes */
};

typedef struct Vf {
    float32x4_t lo, hi;
} Vf;
typedef struct Vi {
    int32x4_t lo, hi;
} Vi;

INLINE Vf v_set(float x) { return (Vf){vdupq_n_f32(x), vdupq_n_f32(x)}; }
INLINE Vf v_zero(void) { return v_set(0); }
INLINE Vf v_load(const float *p) { return (Vf){vld1q_f32(p), vld1q_f32(p + 4)}; }
INLINE void v_store(float *p, Vf a) {
    vst1q_f32(p, a.lo);
    vst1q_f32(p + 4, a.hi);
}
INLINE Vf v_load_half(const void *p) {
    float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
    return (Vf){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
INLINE Vf v_set_half(const void *p) { /* copies one half to all lanes */
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    float32x4_t x = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
    return (Vf){x, x};
}
INLINE void v_store_half(void *p, Vf a) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.lo), a.hi)));
}

/* These load and store the first n of LANES elements. The other lanes are zero after a load, and memory after them
 * stays as it is. */
INLINE size_t first_bytes(int64_t n, size_t each) { return n >= LANES ? LANES * each : n <= 0 ? 0 : (size_t)n * each; }
INLINE Vf v_load_n(const float *p, int64_t n) {
    float x[LANES] = {0};
    memcpy(x, p, first_bytes(n, sizeof *x));
    return v_load(x);
}
INLINE void v_store_n(float *p, int64_t n, Vf a) {
    float x[LANES];
    v_store(x, a);
    memcpy(p, x, first_bytes(n, sizeof *x));
}
INLINE Vf v_load_half_n(const void *p, int64_t n) {
    uint16_t h[LANES] = {0};
    memcpy(h, p, first_bytes(n, sizeof *h));
    return v_load_half(h);
}
INLINE void v_store_half_n(void *p, int64_t n, Vf a) {
    uint16_t h[LANES];
    v_store_half(h, a);
    memcpy(p, h, first_bytes(n, sizeof *h));
}

INLINE Vf v_add(Vf a, Vf b) { return (Vf){a.lo + b.lo, a.hi + b.hi}; }
INLINE Vf v_sub(Vf a, Vf b) { return (Vf){a.lo - b.lo, a.hi - b.hi}; }
INLINE Vf v_mul(Vf a, Vf b) { return (Vf){a.lo * b.lo, a.hi * b.hi}; }
INLINE Vf v_div(Vf a, Vf b) { return (Vf){a.lo / b.lo, a.hi / b.hi}; }
INLINE Vf v_fma(Vf a, Vf b, Vf c) { return (Vf){vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }
/* a > b ? a : b, and a < b ? a : b, with the results of x86 for zeros and NaN, too. */
INLINE Vf v_max(Vf a, Vf b) {
    return (Vf){vbslq_f32(vcgtq_f32(a.lo, b.lo), a.lo, b.lo), vbslq_f32(vcgtq_f32(a.hi, b.hi), a.hi, b.hi)};
}
INLINE Vf v_min(Vf a, Vf b) {
    return (Vf){vbslq_f32(vcltq_f32(a.lo, b.lo), a.lo, b.lo), vbslq_f32(vcltq_f32(a.hi, b.hi), a.hi, b.hi)};
}
INLINE Vf v_abs(Vf a) { return (Vf){vabsq_f32(a.lo), vabsq_f32(a.hi)}; }

INLINE Vi v_load_int(const void *p) {
    const int32_t *x = p;
    return (Vi){vld1q_s32(x), vld1q_s32(x + 4)};
}
INLINE Vi v_set_int(int32_t x) { return (Vi){vdupq_n_s32(x), vdupq_n_s32(x)}; }
INLINE Vi v_set_4_bytes(const void *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return v_set_int(x);
}
INLINE Vi v_and(Vi a, Vi b) { return (Vi){a.lo & b.lo, a.hi & b.hi}; }
INLINE Vi v_or(Vi a, Vi b) { return (Vi){a.lo | b.lo, a.hi | b.hi}; }
INLINE Vi v_shift_left(Vi a, int n) { return (Vi){a.lo << n, a.hi << n}; }
INLINE Vi v_shift_right(Vi a, int n) {
    return (Vi){(int32x4_t)((uint32x4_t)a.lo >> (unsigned)n), (int32x4_t)((uint32x4_t)a.hi >> (unsigned)n)};
}
INLINE Vi v_shift_right_signed(Vi a, int n) { return (Vi){a.lo >> n, a.hi >> n}; }
INLINE Vi v_sub_int(Vi a, Vi b) { return (Vi){vsubq_s32(a.lo, b.lo), vsubq_s32(a.hi, b.hi)}; }
INLINE Vi v_add_int(Vi a, Vi b) { return (Vi){vaddq_s32(a.lo, b.lo), vaddq_s32(a.hi, b.hi)}; }
INLINE Vi v_max_int(Vi a, Vi b) { return (Vi){vmaxq_s32(a.lo, b.lo), vmaxq_s32(a.hi, b.hi)}; }
INLINE Vf v_as_float(Vi a) { return (Vf){(float32x4_t)a.lo, (float32x4_t)a.hi}; }
INLINE Vi v_as_int(Vf a) { return (Vi){(int32x4_t)a.lo, (int32x4_t)a.hi}; }
INLINE Vf v_from_int(Vi a) { return (Vf){vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)}; }
INLINE Vi v_round(Vf a) { return (Vi){vcvtnq_s32_f32(a.lo), vcvtnq_s32_f32(a.hi)}; }
INLINE Vi v_load_bytes(const void *p) { /* widens LANES unsigned bytes */
    uint16x8_t h = vmovl_u8(vld1_u8(p));
    return (Vi){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(h))), vreinterpretq_s32_u32(vmovl_high_u16(h))};
}
INLINE Vf v_load_u8(const void *p) { return v_from_int(v_load_bytes(p)); }
/* Replaces each byte of a, which is below 16, by an entry of a table of 16. */
INLINE Vi v_look_up(const uint8_t table[16], Vi a) {
    uint8x16_t t = vld1q_u8(table);
    return (Vi){vreinterpretq_s32_u8(vqtbl1q_u8(t, vreinterpretq_u8_s32(a.lo))),
                vreinterpretq_s32_u8(vqtbl1q_u8(t, vreinterpretq_u8_s32(a.hi)))};
}
INLINE Vf v_load_i8(const void *p) {
    int16x8_t h = vmovl_s8(vld1_s8(p));
    return (Vf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(h))), vcvtq_f32_s32(vmovl_high_s16(h))};
}
/* Returns the low two bytes of each lane. */
INLINE int16x8_t low_16(Vi a) { return vmovn_high_s32(vmovn_s32(a.lo), a.hi); }
INLINE void v_store_i8(int8_t *p, Vi a) { vst1_s8(p, vmovn_s16(low_16(a))); }
INLINE int32_t v_sum_int(Vi a) { return vaddvq_s32(vaddq_s32(a.lo, a.hi)); }

INLINE bool v_all_ge(Vf x, float limit) {
    float32x4_t l = vdupq_n_f32(limit);
    return vminvq_u32(vandq_u32(vcgeq_f32(x.lo, l), vcgeq_f32(x.hi, l))) != 0;
}
/* Returns a where x >= limit, and 0 elsewhere. */
INLINE Vf v_where_ge(Vf x, float limit, Vf a) {
    Vf l = v_set(limit);
    return v_as_float(v_and(v_as_int(a), (Vi){(int32x4_t)vcgeq_f32(x.lo, l.lo), (int32x4_t)vcgeq_f32(x.hi, l.hi)}));
}

/* Folds 8 -> 4 -> 2 -> 1 by adding the upper half to the lower. */
INLINE float v_fold(Vf a) {
    float32x4_t b = a.lo + a.hi;
    return vpadds_f32(vadd_f32(vget_low_f32(b), vget_high_f32(b)));
}
/* Returns the folds of a[0..3]. Each level folds two vectors into one. */
INLINE float32x4_t fold_4(const Vf a[4]) {
    float32x4_t b[4], c[2];
    UNROLL for (int i = 0; i < 4; i++) b[i] = a[i].lo + a[i].hi;
    UNROLL for (int i = 0; i < 2; i++) { /* 2 sums of a[2i] | 2 of a[2i+1] */
        float64x2_t x = vreinterpretq_f64_f32(b[2 * i]), y = vreinterpretq_f64_f32(b[2 * i + 1]);
        c[i] = vreinterpretq_f32_f64(vzip1q_f64(x, y)) + vreinterpretq_f32_f64(vzip2q_f64(x, y));
    }
    return vpaddq_f32(c[0], c[1]);
}
/* Returns v_fold(a[i]) in lane i, 0 <= i < LANES. */
INLINE Vf v_fold_all(const Vf a[8]) { return (Vf){fold_4(a), fold_4(a + 4)}; }
/* Transposes four rows of four. */
INLINE void transpose_4(float32x4_t a[4]) {
    float64x2_t b[4];
    UNROLL for (int i = 0; i < 2; i++) {
        b[2 * i] = vreinterpretq_f64_f32(vzip1q_f32(a[2 * i], a[2 * i + 1]));
        b[2 * i + 1] = vreinterpretq_f64_f32(vzip2q_f32(a[2 * i], a[2 * i + 1]));
    }
    UNROLL for (int i = 0; i < 2; i++) {
        a[2 * i] = vreinterpretq_f32_f64(vzip1q_f64(b[i], b[i + 2]));
        a[2 * i + 1] = vreinterpretq_f32_f64(vzip2q_f64(b[i], b[i + 2]));
    }
}
/* Transposes: element j of vector i goes to element i of vector j. */
INLINE void v_transpose(Vf a[8]) {
    float32x4_t part[4][4]; /* rows 0-3 lo, 0-3 hi, 4-7 lo, 4-7 hi */
    UNROLL for (int i = 0; i < 8; i++) part[i / 4 * 2][i % 4] = a[i].lo, part[i / 4 * 2 + 1][i % 4] = a[i].hi;
    UNROLL for (int k = 0; k < 4; k++) transpose_4(part[k]);
    UNROLL for (int j = 0; j < 8; j++) a[j] = (Vf){part[j / 4][j % 4], part[2 + j / 4][j % 4]};
}
INLINE float v_max_all(Vf a) { return vmaxvq_f32(vmaxq_f32(a.lo, a.hi)); }

/* Adds the four products in each lane of w with group g of the activations x, as signed bytes, to t. */
#if defined(__ARM_FEATURE_DOTPROD)
#define DOT_GROUP(t, w, x, g) vdotq_laneq_s32(t, w, x, g)
#else
/* The sum of two products is at most 2*128*127 = 32512, which fits in 16 bits. */
INLINE int32x4_t dot_group(int32x4_t t, int8x16_t w, int32x4_t x) {
    int8x16_t q = vreinterpretq_s8_s32(x);
    int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(q)), high = vmull_high_s8(w, q);
    return vpadalq_s16(t, vpaddq_s16(low, high));
}
#define DOT_GROUP(t, w, x, g) dot_group(t, w, vdupq_laneq_s32(vreinterpretq_s32_s8(x), g))
#endif

/* Subtracts 128 from 8-bit codes; all other codes are far below 128. */
INLINE int8x16_t signed_codes(uint32_t code_max, int32x4_t w) {
    int8x16_t bias = vdupq_n_s8(code_max == 255 ? -128 : 0);
    return veorq_s8(vreinterpretq_s8_s32(w), bias);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* The sums of four outputs and two rows in the order of smmla, which adds the products of eight inputs. */
typedef struct PairSums {
    int32x4_t first, second; /* 0a 0b 1a 1b, 2a 2b 3a 3b */
} PairSums;
INLINE PairSums pair_zip(int32x4_t a, int32x4_t b) { return (PairSums){vzip1q_s32(a, b), vzip2q_s32(a, b)}; }
INLINE void pair_add(PairSums *s, int8x16_t w, int8x16_t w_next, int8x16_t rows) {
    int32x4_t g = vreinterpretq_s32_s8(w), h = vreinterpretq_s32_s8(w_next);
    s->first = vmmlaq_s32(s->first, vreinterpretq_s8_s32(vzip1q_s32(g, h)), rows);
    s->second = vmmlaq_s32(s->second, vreinterpretq_s8_s32(vzip2q_s32(g, h)), rows);
}

INLINE void dot_4_groups_of_two(uint32_t code_max, const Vi w[4], const int8_t *const *q, int at, Vi *t) {
    int8x16_t a = vld1q_s8(q[0] + at), b = vld1q_s8(q[1] + at);
    int8x16_t rows[2] = {vcombine_s8(vget_low_s8(a), vget_low_s8(b)), vcombine_s8(vget_high_s8(a), vget_high_s8(b))};
    PairSums low = pair_zip(t[0].lo, t[1].lo), high = pair_zip(t[0].hi, t[1].hi);
    UNROLL for (int i = 0; i < 2; i++) {
        pair_add(&low, signed_codes(code_max, w[2 * i].lo), signed_codes(code_max, w[2 * i + 1].lo), rows[i]);
        pair_add(&high, signed_codes(code_max, w[2 * i].hi), signed_codes(code_max, w[2 * i + 1].hi), rows[i]);
    }
    t[0] = (Vi){vuzp1q_s32(low.first, low.second), vuzp1q_s32(high.first, high.second)};
    t[1] = (Vi){vuzp2q_s32(low.first, low.second), vuzp2q_s32(high.first, high.second)};
}
#endif

/* Adds the products of four groups of codes w with the 16 activations at q[row] + at to t[row], exactly. */
INLINE void v_dot_4_groups(uint32_t code_max, int n_rows, const Vi w[4], const int8_t *const *q, int at, Vi *t) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if (n_rows == 2) {
        dot_4_groups_of_two(code_max, w, q, at, t);
        return;
    }
#endif
#define ADD_GROUP(g) \
    UNROLL for (int r = 0; r < n_rows; r++) { \
        t[r].lo = DOT_GROUP(t[r].lo, signed_codes(code_max, w[g].lo), x[r], g); \
        t[r].hi = DOT_GROUP(t[r].hi, signed_codes(code_max, w[g].hi), x[r], g); \
    }
    int8x16_t x[ROWS_TOGETHER];
    UNROLL for (int r = 0; r < n_rows; r++) x[r] = vld1q_s8(q[r] + at);
    ADD_GROUP(0) ADD_GROUP(1) ADD_GROUP(2) ADD_GROUP(3)
#undef ADD_GROUP
}

/* ---- BF16, see ref_matmul.c --------------------------------------------------------------------- */

INLINE int32x4_t bf16_bits(float32x4_t a) {
    uint32x4_t bits = vreinterpretq_u32_f32(a), upper = bits >> 16;
    uint32x4_t h = (bits + ((upper & 1) + 0x7fff)) >> 16;
    h = vbslq_u32(vcltq_f32(vabsq_f32(a), vdupq_n_f32(0x1p-126f)), h & 0x8000, h);
    return vreinterpretq_s32_u32(vbslq_u32(vceqq_f32(a, a), h, upper | 0x40));
}
INLINE void v_store_bf16(uint16_t *p, Vf a) {
    vst1q_u16(p, vreinterpretq_u16_s16(low_16((Vi){bf16_bits(a.lo), bf16_bits(a.hi)})));
}
/* The odd inputs are the upper halves of the lanes; the even ones are shifted up. */
INLINE Vf v_dot_bf16_pair(Vi w, Vi x, Vf acc) {
    Vi upper = v_set_int((int32_t)0xffff0000);
    acc = v_fma(v_as_float(v_and(w, upper)), v_as_float(v_and(x, upper)), acc);
    return v_fma(v_as_float(v_shift_left(w, 16)), v_as_float(v_shift_left(x, 16)), acc);
}

/* Between these two calls subnormal results become zero, as vdpbf16ps makes them, except for the rounding that is
 * described above. */
enum { FPCR_FZ = 1 << 24, FPSR_UFC = 1 << 3 };
INLINE uint64_t bf16_begin(void) {
    uint64_t control, status;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(status));
    __asm__ volatile("msr fpsr, %0" : : "r"(status & ~(uint64_t)FPSR_UFC));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | FPCR_FZ) : "memory");
    return control;
}
/* Returns whether the results since bf16_begin are certainly those of vdpbf16ps. */
INLINE bool bf16_end(uint64_t control) {
    uint64_t status;
    __asm__ volatile("mrs %0, fpsr" : "=r"(status) : : "memory");
    __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory");
    return !(status & FPSR_UFC);
}

/* ---- scores by integers: keys transposed to vectors of words (scores_body.h) ------------------------------------- */

INLINE void v_store_int(int32_t *p, Vi a) {
    vst1q_s32(p, a.lo);
    vst1q_s32(p + 4, a.hi);
}

INLINE void v_turn_blocks(const unsigned char *const *rows, size_t at, Vi units[8]) {
    Vf a[8];
    UNROLL for (int i = 0; i < 8; i++) a[i] = v_as_float(v_load_int(rows[i] + at));
    v_transpose(a);
    UNROLL for (int i = 0; i < 8; i++) units[i] = v_as_int(a[i]);
}

/* Widens four keys of four bytes to words of elements 0 and 2, and of elements 1 and 3. */
INLINE void to_words(int32x4_t unit, int32x4_t *even, int32x4_t *odd) {
    static const uint8_t order[16] = {0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15};
    int8x16_t bytes = vqtbl1q_s8(vreinterpretq_s8_s32(unit), vld1q_u8(order));
    *even = vreinterpretq_s32_s16(vmovl_s8(vget_low_s8(bytes)));
    *odd = vreinterpretq_s32_s16(vmovl_high_s8(bytes));
}
INLINE void v_to_words(Vi unit, Vi *even, Vi *odd) {
    to_words(unit.lo, &even->lo, &odd->lo);
    to_words(unit.hi, &even->hi, &odd->hi);
}

INLINE int32x4_t dot_words(int32x4_t t, int32x4_t k, int32x4_t q) {
    int16x8_t words = vreinterpretq_s16_s32(k), pair = vreinterpretq_s16_s32(q);
    t = vmlal_lane_s16(t, vget_low_s16(words), vget_low_s16(pair), 0);
    return vmlal_high_lane_s16(t, words, vget_low_s16(pair), 1);
}
#if defined(__ARM_FEATURE_DOTPROD)
INLINE Vi v_dot_bytes(Vi t, Vi k, Vi q) {
    return (Vi){vdotq_s32(t.lo, vreinterpretq_s8_s32(k.lo), vreinterpretq_s8_s32(q.lo)),
                vdotq_s32(t.hi, vreinterpretq_s8_s32(k.hi), vreinterpretq_s8_s32(q.hi))};
}
#endif
INLINE Vi v_times_256(Vi a) { return (Vi){vshlq_n_s32(a.lo, 8), vshlq_n_s32(a.hi, 8)}; }
INLINE Vi v_dot_words(Vi t, Vi k, Vi q) { return (Vi){dot_words(t.lo, k.lo, q.lo), dot_words(t.hi, k.hi, q.hi)}; }

/* ---- rows of logits: comparisons, doubles and random words (row_body.h) ----------------------------------------- */

INLINE uint32_t mask_bits(uint32x4_t lo, uint32x4_t hi) {
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(lo, bit)) | vaddvq_u32(vandq_u32(hi, bit)) << 4;
}
INLINE uint32_t v_mask_gt(Vf a, Vf b) { return mask_bits(vcgtq_f32(a.lo, b.lo), vcgtq_f32(a.hi, b.hi)); }
INLINE uint32_t v_mask_ge(Vf a, Vf b) { return mask_bits(vcgeq_f32(a.lo, b.lo), vcgeq_f32(a.hi, b.hi)); }
INLINE Vf v_load_blocks(const float *row, const uint32_t *blocks) {
    return (Vf){vld1q_f32(row + 4 * (size_t)blocks[0]), vld1q_f32(row + 4 * (size_t)blocks[1])};
}

typedef struct Vd {
    float64x2_t lo, hi;
} Vd;
INLINE Vd d_set(double x) { return (Vd){vdupq_n_f64(x), vdupq_n_f64(x)}; }
INLINE Vd d_widen(const float *p) {
    float32x4_t a = vld1q_f32(p);
    return (Vd){vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a)};
}
INLINE void d_store(double *p, Vd a) {
    vst1q_f64(p, a.lo);
    vst1q_f64(p + 2, a.hi);
}
INLINE Vd d_add(Vd a, Vd b) { return (Vd){a.lo + b.lo, a.hi + b.hi}; }
INLINE Vd d_sub(Vd a, Vd b) { return (Vd){a.lo - b.lo, a.hi - b.hi}; }
INLINE Vd d_mul(Vd a, Vd b) { return (Vd){a.lo * b.lo, a.hi * b.hi}; }
INLINE Vd d_fma(Vd a, Vd b, Vd c) { return (Vd){vfmaq_f64(c.lo, a.lo, b.lo), vfmaq_f64(c.hi, a.hi, b.hi)}; }
INLINE float64x2_t where_ge(float64x2_t x, double limit, float64x2_t a) {
    return vreinterpretq_f64_u64(vandq_u64(vcgeq_f64(x, vdupq_n_f64(limit)), vreinterpretq_u64_f64(a)));
}
INLINE Vd d_where_ge(Vd x, double limit, Vd a) {
    return (Vd){where_ge(x.lo, limit, a.lo), where_ge(x.hi, limit, a.hi)};
}
INLINE float64x2_t scale_doubles(float64x2_t a, float64x2_t k) {
    return vreinterpretq_f64_s64(vaddq_s64(vreinterpretq_s64_f64(a), vshlq_n_s64(vreinterpretq_s64_f64(k), 52)));
}
INLINE Vd d_scale(Vd a, Vd k) { return (Vd){scale_doubles(a.lo, k.lo), scale_doubles(a.hi, k.hi)}; }

/* Returns the upper and the lower halves of the products with m. */
INLINE uint32x4x2_t wide_products(uint32x4_t x, uint32_t m) {
    uint32x4_t low = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(x), m));
    uint32x4_t high = vreinterpretq_u32_u64(vmull_high_n_u32(x, m));
    return (uint32x4x2_t){{vuzp2q_u32(low, high), vuzp1q_u32(low, high)}};
}

enum { PHILOX_BLOCKS = 4 };
INLINE void v_philox(const Philox *p, const uint32_t *blocks, uint32_t *words) {
    uint32x4x4_t x = {
        {vld1q_u32(blocks), vdupq_n_u32(p->counter[0]), vdupq_n_u32(p->counter[1]), vdupq_n_u32(p->counter[2])}};
    UNROLL for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint32x4x2_t a = wide_products(x.val[0], PHILOX_M0), b = wide_products(x.val[2], PHILOX_M1);
        x.val[0] = b.val[0] ^ x.val[1] ^ vdupq_n_u32(p->keys[i][0]);
        x.val[2] = a.val[0] ^ x.val[3] ^ vdupq_n_u32(p->keys[i][1]);
        x.val[1] = b.val[1], x.val[3] = a.val[1];
    }
    vst4q_u32(words, x);
}

#endif
