/* codebook.h - the values of codes in the types whose codes are not the numbers themselves: tables of 16 values, and
 * lists of points, the lattices. */
#ifndef GGUF_CODEBOOK_H
#define GGUF_CODEBOOK_H

#include "gguf/tensor_type.h"

/* ---- 16 values ----------------------------------------------------------------------------------------------- */

/* IQ4_NL and IQ4_XS: the values are closer together around zero, as weights are. The step from one to the next grows
 * from 11 to 24. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* MXFP4 and NVFP4: twice the numbers of a float with one sign bit, two exponent bits and one mantissa bit. */
static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

enum { MXFP4_EXPONENT_MAX = 252 }; /* 12 * 2^(252 - 128) is the largest weight that is finite as a float */

/* 2^(exponent - 128), half of what the standard writes, because the values above are doubled; 255, which the standard
 * reserves for NaN, gives infinity. The function works on the bits of a float: the exponent, shifted to its place, is
 * 2^(exponent - 127), except for 0. */
float mxfp4_scale(uint8_t exponent);

/* Half the value of a scale of NVFP4, which is a float without a sign, with four exponent bits (bias 7) and three
 * mantissa bits. As in ggml, the uppermost bit of the byte is ignored. If all other bits are set, the standard reads a
 * NaN; no model has such a scale. */
enum { NVFP4_SCALE_BITS = 127, NVFP4_SCALE_MAX = 126 };
float nvfp4_scale(uint8_t code);

/* ---- lattices: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M ------------------------------------------- */

/* Eight or four neighbouring weights are one number in a file: the index of a point in a published list. The
 * coordinates of a point are small integers that encode magnitudes, and signs are kept apart (in the IQ1 types: a
 * shift). blocks_lattice.c draws the blocks. */

enum { LATTICE_N = 256, LATTICE_SIGN_N = 8, LATTICE_POINTS_MAX = 64, LATTICE_SCALES_MAX = 16 };

/* The content of a block. */
typedef struct LatticeBlock {
    uint16_t d;
    uint16_t point[LATTICE_POINTS_MAX];       /* indices in the list */
    uint8_t sign[LATTICE_N / LATTICE_SIGN_N]; /* bit i of byte g is the sign of weight 8 g + i */
    uint8_t scale[LATTICE_SCALES_MAX];
} LatticeBlock;

/* A type: x = d (2 s + 1) unit value, where d is a half and s the scale of the sub-block. */
typedef struct Lattice {
    const uint16_t *points; /* [n_points] keys in ascending order: coordinate i in bits [i bits, (i + 1) bits) */
    int16_t n_points;
    uint8_t dim, bits;  /* weights of a point; bits of a coordinate: 8 and 2, or 4 and 3 */
    uint8_t sub, s_max; /* weights that share a scale; the largest s */
    uint8_t d_bytes;    /* 2: a block begins with d; 0: its bits are spread over the block */
    bool even_signs;    /* the number of negative weights among eight is always even */
    uint8_t shift_n;    /* 0, or in the IQ1 types the number of weights that one "sign" shifts; it mirrors none */
    float unit;         /* a power of two */
    int8_t values[16];  /* the value of each code, coordinate | sign << bits */
    /* The bytes after d, to the content of the block and back. */
    void (*read)(const uint8_t *p, LatticeBlock *b);
    void (*write)(const LatticeBlock *b, uint8_t *p);
} Lattice;

/* NULL where the type is not one of these. */
const Lattice *lattice_of(TensorType type);

void lattice_read(const Lattice *l, const uint8_t *src, LatticeBlock *b);
void lattice_write(const Lattice *l, const LatticeBlock *b, uint8_t *dst);

/* Returns the code of weight i of a block. */
static inline unsigned lattice_code(const Lattice *l, const LatticeBlock *b, int i) {
    unsigned key = l->points[b->point[i / l->dim]], mask = (1u << l->bits) - 1;
    return (key >> i % l->dim * l->bits & mask) | (unsigned)(b->sign[i / 8] >> i % 8 & 1) << l->bits;
}
/* Returns the index of a key; for a key that is not in the list, the index at which it would be, at most the last. */
int lattice_find(const Lattice *l, uint32_t key);

/* For quantisers (lattice_search.c). */

/* Chooses the signs of 256 weights x of importance w; those of the IQ1 types are chosen with the points. */
void lattice_choose_signs(const Lattice *l, const float *x, const float *w, LatticeBlock *b);
/* Chooses the points of sub-block i that minimise the sum of w (x - scale value)^2, and returns that sum. */
double lattice_choose_points(const Lattice *l, const float *x, const float *w, int i, float scale, LatticeBlock *b);

/* Finds the block of 256 numbers with the least error weighted by w that the search finds. */
void lattice_search(const Lattice *l, const float *x, const float *w, uint8_t *dst);

/* The lists (lattice_points.c). */
extern const uint16_t lattice_iq2_xxs[256], lattice_iq2_xs[512], lattice_iq2_s[1024], lattice_iq3_xxs[256],
    lattice_iq3_s[512], lattice_iq1[2048];

#endif
