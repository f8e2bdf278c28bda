/* rows_neon.c - passes over rows of logits with NEON: masks, doubles (4 lanes in two registers) and Philox (4 blocks at a
 * time) for row_body.h; rows_avx512.c explains the functions. For all tables of 64-bit ARM. */
#if defined(__aarch64__)
#include "compute/cpu/kernels/simd_neon.h"

#include "compute/cpu/kernels/philox.h"
#include "compute/cpu/kernels/tables.h"

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
INLINE float64x2_t scale(float64x2_t a, float64x2_t k) {
    return vreinterpretq_f64_s64(vaddq_s64(vreinterpretq_s64_f64(a), vshlq_n_s64(vreinterpretq_s64_f64(k), 52)));
}
INLINE Vd d_scale(Vd a, Vd k) { return (Vd){scale(a.lo, k.lo), scale(a.hi, k.hi)}; }

/* The upper and the lower halves of the products with m. */
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

#define ROW_TABLE row_kernels_neon
#include "compute/cpu/kernels/row_body.h"
#endif
