/* pack_lattice.c - blocks whose weights are points of a list (gguf/codebook.h) are packed as codes of single weights.
 *
 * The problem. A file has one index for eight (or four) weights of a row. The products want the same four inputs of 16
 * rows in one vector, so that looking up points there would gather 16 words from a table for each of the eight groups
 * of a slice: some 150 cycles for 512 weights on machines that multiply them in 15. And memory delivers more than three
 * bits per weight to one core in that time.
 *
 * The idea. A coordinate has three or eight values and a sign. So a weight is a code of three or four bits that the
 * kernels look up in a register, as those of IQ4_NL, and the tile is that of Q3_K or IQ4_XS. That takes 3.4 bits a
 * weight in memory for the types of two bits and less, and 4.4 for those of three:
 *
 *                         IQ1_S  IQ1_M  IQ2_XXS  IQ2_XS  IQ2_S  IQ3_XXS  IQ3_S
 *     bits in the file     1.56   1.75     2.06    2.31   2.56     3.06   3.44
 *     bits in memory       3.38   3.38     3.38    3.38   3.38     4.38   4.38
 *
 * No point is lost: the codes of a group are the key of its point, so that rows can be read back as bytes of the file.
 *
 * Scales. A half for 256 weights, and a byte for 32: the scale of the first 16 inputs in the low nibble, that of the
 * last 16 in the high one; types with one scale for 32 have it in the low nibble. */
#include "compute/cpu/kernels/layout.h"

#include "base/error.h"
#include "gguf/codebook.h"

#include <string.h>

enum { SLICES = LATTICE_N / ACT_BLOCK, AT_SCALES = 2 * TILE_ROWS };

static unsigned char *scales_of(TensorType type, unsigned char *record) {
    return record + SLICES * slice_forms[type].code_bytes;
}

void lattice_to_tile(TensorType type, const unsigned char *block, int row, unsigned char *record) {
    const Lattice *l = lattice_of(type);
    unsigned char *scales = scales_of(type, record);
    LatticeBlock b;
    lattice_read(l, block, &b);
    memcpy(scales + row * 2, &b.d, 2);
    for (int s = 0; s < SLICES; s++) {
        unsigned char bytes[ACT_BLOCK];
        for (int i = 0; i < ACT_BLOCK; i++) bytes[i] = (unsigned char)lattice_code(l, &b, s * ACT_BLOCK + i);
        slice_write_codes(type, bytes, row, record + (size_t)s * slice_forms[type].code_bytes);
        scales[AT_SCALES + s * TILE_ROWS + row] = (unsigned char)(scale_parts(type) == 2
                                                                      ? b.scale[2 * s] | b.scale[2 * s + 1] << 4
                                                                      : b.scale[s]);
    }
}

/* Reads the points and signs of a slice. */
static void find_points(const Lattice *l, const unsigned char bytes[ACT_BLOCK], int slice, LatticeBlock *b) {
    unsigned mask = (1u << l->bits) - 1;
    fr_assert(l->dim > 0);
    for (int i = 0; i < ACT_BLOCK; i += l->dim) {
        uint32_t key = 0;
        for (int j = 0; j < l->dim; j++) key |= (bytes[i + j] & mask) << l->bits * j;
        b->point[(slice * ACT_BLOCK + i) / l->dim] = (uint16_t)lattice_find(l, key);
    }
    for (int g = 0; g < ACT_BLOCK / 8; g++) {
        unsigned sign = 0;
        for (int j = 0; j < 8; j++) sign |= (unsigned)(bytes[8 * g + j] >> l->bits & 1) << j;
        b->sign[slice * ACT_BLOCK / 8 + g] = (uint8_t)sign;
    }
}

void lattice_from_tile(TensorType type, const unsigned char *record, int row, unsigned char *block) {
    const Lattice *l = lattice_of(type);
    const unsigned char *scales = record + SLICES * slice_forms[type].code_bytes;
    LatticeBlock b;
    memcpy(&b.d, scales + row * 2, 2);
    for (int s = 0; s < SLICES; s++) {
        unsigned char bytes[ACT_BLOCK], scale = scales[AT_SCALES + s * TILE_ROWS + row];
        slice_read_codes(type, record + (size_t)s * slice_forms[type].code_bytes, row, bytes);
        find_points(l, bytes, s, &b);
        if (scale_parts(type) == 2) b.scale[2 * s] = scale & 15, b.scale[2 * s + 1] = scale >> 4;
        else b.scale[s] = scale & 15;
    }
    lattice_write(l, &b, block);
}
