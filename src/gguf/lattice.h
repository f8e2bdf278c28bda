/* lattice.h - the types whose weights are points of a published list: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M.
 *
 * Eight or four neighbouring weights are one number of a file: the index of a point in the list. The coordinates of a
 * point are small integers that stand for magnitudes, and signs are kept apart (of the IQ1 types: a shift). lattice.c
 * draws the blocks. */
#ifndef FORMAT_LATTICE_H
#define FORMAT_LATTICE_H

#include "gguf/tensor_type.h"

enum { LATTICE_N = 256, LATTICE_SIGN_N = 8, LATTICE_POINTS_MAX = 64, LATTICE_SCALES_MAX = 16 };

/* x = d (2 s + 1) unit value, d a half, s the scale of the sub-block. */
typedef struct Lattice {
    const uint16_t *points; /* [n_points] keys in ascending order: coordinate i in bits [i bits, (i + 1) bits) */
    int16_t n_points;
    uint8_t dim, bits;  /* weights of a point; bits of a coordinate: 8 and 2, or 4 and 3 */
    uint8_t sub, s_max; /* weights that share a scale; the largest s */
    bool even_signs;    /* of eight weights an even number are negative */
    uint8_t shift_n;    /* 0, or IQ1: the "signs" shift so many weights together, and mirror none */
    float unit;         /* a power of two */
    int8_t values[16];  /* of code = coordinate | sign << bits */
} Lattice;

/* The content of a block. */
typedef struct LatticeBlock {
    uint16_t d;
    uint16_t point[LATTICE_POINTS_MAX];       /* indices in the list */
    uint8_t sign[LATTICE_N / LATTICE_SIGN_N]; /* bit i of byte g: of weight 8 g + i */
    uint8_t scale[LATTICE_SCALES_MAX];
} LatticeBlock;

/* NULL: the type is another. */
const Lattice *lattice_of(TensorType type);

void lattice_read(TensorType type, const uint8_t *src, LatticeBlock *b);
void lattice_write(TensorType type, const LatticeBlock *b, uint8_t *dst);

/* The code of weight i of a block. */
static inline unsigned lattice_code(const Lattice *l, const LatticeBlock *b, int i) {
    unsigned key = l->points[b->point[i / l->dim]], mask = (1u << l->bits) - 1;
    return (key >> i % l->dim * l->bits & mask) | (unsigned)(b->sign[i / 8] >> i % 8 & 1) << l->bits;
}
/* The index of a key; of one that is not in the list, where it would be, or the last. */
int lattice_find(const Lattice *l, uint32_t key);

/* ---- for quantisers (lattice_search.c) -------------------------------------------------------------- */

/* The signs of 256 weights x of importance w; those of the IQ1 types are chosen with the points. */
void lattice_choose_signs(const Lattice *l, const float *x, const float *w, LatticeBlock *b);
/* The points of sub-block i with which the sum of w (x - scale value)^2 is least; that sum. */
double lattice_choose_points(const Lattice *l, const float *x, const float *w, int i, float scale, LatticeBlock *b);

/* The lists (lattice_points.c). */
extern const uint16_t lattice_iq2_xxs[256], lattice_iq2_xs[512], lattice_iq2_s[1024], lattice_iq3_xxs[256],
    lattice_iq3_s[512], lattice_iq1[2048];

#endif
