/* scores_neon.c - scores.h for 64-bit ARM: 8 keys to a vector of two registers. smlal multiplies words of four keys with one
 * of a query, so the words of an element lie side by side: in a register those of one element of four keys, then those
 * of another. sdot and smmla could take the bytes of both planes in half of the instructions; their speed cannot be measured here,
 * so this file serves all three tables. */
#if defined(__aarch64__)
#include "compute/cpu/kernels/simd_neon.h"

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

/* Four keys of four bytes to words of elements 0 and 2, and of 1 and 3. */
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
INLINE Vi v_dot_words(Vi t, Vi k, Vi q) { return (Vi){dot_words(t.lo, k.lo, q.lo), dot_words(t.hi, k.hi, q.hi)}; }

#define TABLE score_kernels_neon
#define TABLE_NAME "neon"
#include "compute/cpu/kernels/scores_body.h"
#endif
