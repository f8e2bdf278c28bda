/* blocks_lattice.c - blocks of points of a list (lattice.c draws them) to floats and back.
 *
 * The encoder tries a few scales for each sub-block: those that give its extreme weight one of the values. src/gguf
 * searches better ones. */
#include "gguf/blocks_internal.h"
#include "gguf/lattice.h"

#include <math.h>

static void decode(TensorType type, const uint8_t *src, float *dst) {
    const Lattice *l = lattice_of(type);
    LatticeBlock b;
    lattice_read(type, src, &b);
    float d = half_to_float(b.d);
    for (int i = 0; i < LATTICE_N; i++) {
        int sub = i / l->sub, odd = 2 * b.scale[sub] + 1;
        dst[i] = d * (float)odd * l->unit * (float)l->values[lattice_code(l, &b, i)];
    }
}

/* The best scale of a sub-block. */
static float scale_of(const Lattice *l, const float *x, const float *ones, int sub, LatticeBlock *b) {
    float extreme = 0, best = 0;
    double least = INFINITY;
    for (int i = sub * l->sub; i < (sub + 1) * l->sub; i++)
        if (fabsf(x[i]) > extreme) extreme = fabsf(x[i]);
    for (int v = 0; v < 1 << l->bits; v++) {
        if (l->values[v] == 0) continue;
        float scale = extreme / fabsf((float)l->values[v]);
        double error = lattice_choose_points(l, x, ones, sub, scale, b);
        if (!(error < least)) continue;
        least = error;
        best = scale;
    }
    return best;
}

static void encode(TensorType type, const float *src, uint8_t *dst) {
    const Lattice *l = lattice_of(type);
    LatticeBlock b;
    float ones[LATTICE_N], scale[LATTICE_SCALES_MAX], most = 0;
    for (int i = 0; i < LATTICE_N; i++) ones[i] = 1;
    lattice_choose_signs(l, src, ones, &b);
    for (int i = 0; i < LATTICE_N / l->sub; i++) {
        scale[i] = scale_of(l, src, ones, i, &b);
        if (scale[i] > most) most = scale[i];
    }
    uint8_t half[2];
    float d = store_half(half, most / ((float)(2 * l->s_max + 1) * l->unit)), inv = inverse(d * l->unit);
    b.d = (uint16_t)(half[0] | half[1] << 8);
    for (int i = 0; i < LATTICE_N / l->sub; i++) {
        int s = nearest((scale[i] * inv - 1) / 2, 0, l->s_max);
        b.scale[i] = (uint8_t)s;
        (void)lattice_choose_points(l, src, ones, i, d * (float)(2 * s + 1) * l->unit, &b);
    }
    lattice_write(type, &b, dst);
}

#define DEFINE(name, TYPE) \
    void name##_decode(const uint8_t *src, float *dst) { decode(TYPE, src, dst); } \
    void name##_encode(const float *src, uint8_t *dst) { encode(TYPE, src, dst); }
DEFINE(iq2_xxs, TYPE_IQ2_XXS)
DEFINE(iq2_xs, TYPE_IQ2_XS)
DEFINE(iq2_s, TYPE_IQ2_S)
DEFINE(iq3_xxs, TYPE_IQ3_XXS)
DEFINE(iq3_s, TYPE_IQ3_S)
DEFINE(iq1_s, TYPE_IQ1_S)
DEFINE(iq1_m, TYPE_IQ1_M)
