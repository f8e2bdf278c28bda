/* unpack_body.h - unpacks a slice of a packed matrix of a block type into registers: codes as unsigned bytes, and
 * scales as floats. It is a part of matmul_body.h, for every vector table; pack.c draws the layouts. Whatever depends
 * on the type is decided at compile time. */
#include "compute/cpu/kernels/layout.h"

typedef struct Unpacked {
    Vi w[8]; /* unsigned codes, groups of four inputs */
    Vf scale[2], min[2];
} Unpacked;

/* Makes the compiler store unpacked codes, so that it loads them into registers before the loop over rows instead of
 * unpacking them again for each row. */
INLINE void keep_in_memory(Unpacked *u) { __asm__("" : "+m"(*u)); }

INLINE Vi nibbles(Vi a) { return v_and(a, v_set_int(0x0f0f0f0f)); }

/* Adds the high bits of four groups, which one vector holds, to their codes, above the low bits. */
INLINE void add_high_bits(int n_bits, Vi high, int first_bit, int place, Vi w[4]) {
    Vi mask = v_set_int((n_bits == 1 ? 0x01010101 : 0x03030303) << place);
    UNROLL for (int g = 0; g < 4; g++) {
        int shift = place - first_bit - g * n_bits;
        w[g] = v_or(w[g], v_and(shift >= 0 ? v_shift_left(high, shift) : v_shift_right(high, -shift), mask));
    }
}

/* Unpacks the codes of Q2_K, of Q3_K, and of the lattice types of two bits or less. */
INLINE void unpack_pairs(uint32_t high_bits, const unsigned char *codes, Vi w[8]) {
    UNROLL for (int g = 0; g < 8; g++)
        w[g] = v_and(v_shift_right(v_load_int(codes + g / 4 * 64), 2 * (g % 4)), v_set_int(0x03030303));
    if (high_bits == 0) return;
    Vi high = v_load_int(codes + 128);
    add_high_bits(1, high, 0, 2, w);
    add_high_bits(1, high, 4, 2, w + 4);
}

INLINE void unpack_codes(TensorType type, const unsigned char *codes, Vi w[8]) {
    if (low_bits(type) == 8) {
        UNROLL for (int g = 0; g < 8; g++) w[g] = v_load_int(codes + g * 64);
        return;
    }
    const uint8_t *codebook = codebook_codes(type);
    if (low_bits(type) == 2) {
        unpack_pairs(slice_forms[type].high_bits, codes, w);
        if (codebook) UNROLL for (int g = 0; g < 8; g++) w[g] = v_look_up(codebook, w[g]);
        return;
    }
    UNROLL for (int g = 0; g < 4; g++) {
        Vi both = v_load_int(codes + g * 64);
        w[g] = nibbles(both);
        w[g + 4] = nibbles(v_shift_right(both, 4));
    }
    if (codebook) UNROLL for (int g = 0; g < 8; g++) w[g] = v_look_up(codebook, w[g]);
    uint32_t n_bits = slice_forms[type].high_bits;
    if (n_bits == 1) {
        Vi high = v_load_int(codes + 256);
        add_high_bits(1, high, 0, 4, w);
        add_high_bits(1, high, 4, 4, w + 4);
    }
    if (n_bits == 2) {
        add_high_bits(2, v_load_int(codes + 256), 0, 4, w);
        add_high_bits(2, v_load_int(codes + 320), 0, 4, w + 4);
    }
}

/* Returns scales of MXFP4 by the arithmetic of mxfp4_scale (gguf/codebook.h). */
INLINE Vf unpack_exponents(const unsigned char *exponents) {
    Vi bits = v_max_int(v_shift_left(v_load_bytes(exponents), 23), v_set_int(0x00400000));
    return v_mul(v_as_float(bits), v_set(0.5f));
}

/* Returns scales of NVFP4 by the arithmetic of nvfp4_scale (gguf/codebook.h). */
INLINE Vf unpack_small_floats(const unsigned char *codes) {
    Vi bits = v_shift_left(v_and(v_load_bytes(codes), v_set_int(127)), 20);
    return v_mul(v_as_float(bits), v_set(0x1p119f));
}

/* Unpacks the scales of a lattice type. */
INLINE void unpack_odd_scales(TensorType type, Vf d, const unsigned char *bytes, Unpacked *u) {
    Vi both = v_load_bytes(bytes), one = v_set_int(1);
    UNROLL for (int i = 0; i < scale_parts(type); i++) {
        Vi s = i == 0 ? v_and(both, v_set_int(15)) : v_shift_right(both, 4);
        u->scale[i] = v_mul(v_mul(d, v_from_int(v_or(v_shift_left(s, 1), one))), v_set(slice_forms[type].unit));
    }
}

/* Unpacks the scales of a slice for LANES rows of the tile, from vector `column` of its rows on. The slice is number
 * i_sub of those that share the item at `scales`, whose fields are 16 rows wide. */
INLINE void unpack_scales(TensorType type, const unsigned char *scales, int i_sub, int column, Unpacked *u) {
    const unsigned char *halves = scales + column * LANES * 2,
                        *bytes = scales + 32 * scale_halves(type) + column * LANES; /* after the halves */
    Vf d = v_zero();
    if (scale_halves(type)) u->scale[0] = u->scale[1] = d = v_load_half(halves);
    switch (slice_forms[type].scales) {
    case SCALES_NONE:
    case SCALES_HALF: break;
    case SCALES_HALF_MIN: u->min[0] = v_load_half(halves + 32); break;
    case SCALES_BYTE_MINS:
        u->scale[0] = v_mul(d, v_load_u8(bytes + i_sub * 32));
        u->min[0] = v_sub(v_zero(), v_mul(v_load_half(halves + 32), v_load_u8(bytes + i_sub * 32 + 16)));
        break;
    case SCALES_NIBBLE_MINS: {
        Vf dmin = v_load_half(halves + 32);
        UNROLL for (int i = 0; i < 2; i++) {
            Vi both = v_load_bytes(bytes + i_sub * 32 + 16 * i);
            u->scale[i] = v_mul(d, v_from_int(v_and(both, v_set_int(15))));
            u->min[i] = v_sub(v_zero(), v_mul(dmin, v_from_int(v_shift_right(both, 4))));
        }
        break;
    }
    case SCALES_SIGNED: u->scale[0] = v_mul(d, v_load_i8(bytes + i_sub * 16)); break;
    case SCALES_SIGNED_HALVES:
        UNROLL for (int i = 0; i < 2; i++) u->scale[i] = v_mul(d, v_load_i8(bytes + i_sub * 32 + 16 * i));
        break;
    case SCALES_ODD:
    case SCALES_ODD_HALVES: unpack_odd_scales(type, d, bytes + i_sub * 16, u); break;
    case SCALES_EXPONENT: u->scale[0] = unpack_exponents(bytes); break;
    case SCALES_SMALL_FLOATS:
        UNROLL for (int i = 0; i < 2; i++) u->scale[i] = unpack_small_floats(bytes + i_sub * 32 + 16 * i);
        break;
    }
}

/* Returns the bias times minus_sum, by a shift: every bias is a power of two. loses_bias: the products of byte codes
 * subtract it. */
INLINE Vi bias_times(TensorType type, bool loses_bias, Vi minus_sum) {
    uint32_t bias = slice_forms[type].bias;
    if (bias == 0 || (code_max_of(type) == 255 && loses_bias)) return v_set_int(0);
    return v_shift_left(minus_sum, __builtin_ctz(bias));
}
