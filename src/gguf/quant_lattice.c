/* quant_lattice.c - the types whose weights are points of a list (format/lattice.h): x is about d (2 s + 1) unit v, where
 * v are the values of a point with its signs, s is the small integer of a sub-block, and d a half for 256 numbers.
 *
 * As for the other types (quant_fit.c, quant_super.c), two problems are easy alone. For a given scale,
 * lattice_search.c finds the points with the least weighted error. For given points the best scale has a formula:
 *
 *     scale = sum w x v / sum w v v
 *
 * Each sub-block begins at several scales, takes the best, and alternates. Then the scales become odd integers over one
 * half, the neighbours of each are tried, and the half is solved for by least squares; that is done twice.
 *
 * The wrong sign that a format with an even number of signs forces on one of eight weights costs more than anything else in
 * a block, so the weights' importance decides which one it is (lattice_search.c).
 * Proof: tests/gguf/test_quant.c. */
#include "gguf/quant.h"

#include "gguf/blocks.h"
#include "gguf/lattice.h"

#include <math.h>
#include <string.h>

enum { N_ROUNDS = 2, N_REFINEMENTS = 3 };

/* The extreme weight gets the largest value divided by these. */
static const float starts[] = {0.6f, 0.8f, 1, 1.25f};
enum { N_STARTS = sizeof starts / sizeof *starts };

typedef struct Search {
    TensorType type;
    const Lattice *l;
    const float *x, *w;
    LatticeBlock b;
} Search;

/* Least squares over weights [begin, end): sums w x v and w v v, v times `factor`. */
static void add_sums(const Search *s, int begin, int end, double factor, double *xv, double *vv) {
    for (int i = begin; i < end; i++) {
        double v = factor * s->l->values[lattice_code(s->l, &s->b, i)];
        *xv += (double)s->w[i] * (double)s->x[i] * v;
        *vv += (double)s->w[i] * v * v;
    }
}

/* Points for the scale `start`, and the best scale for them; its error without the constant sum wxx. */
static float try_scale(Search *s, int sub, float start, double *error) {
    double xv = 0, vv = 0;
    (void)lattice_choose_points(s->l, s->x, s->w, sub, start, &s->b);
    add_sums(s, sub * s->l->sub, (sub + 1) * s->l->sub, 1, &xv, &vv);
    double scale = vv > 0 ? xv / vv : 0;
    *error = -scale * xv;
    return isfinite((float)scale) && scale > 0 ? (float)scale : 0;
}

static float wanted_scale(Search *s, int sub) {
    const Lattice *l = s->l;
    float extreme = 0, best = 0, most = 0;
    double least = INFINITY, error;
    for (int i = sub * l->sub; i < (sub + 1) * l->sub; i++)
        if (fabsf(s->x[i]) > extreme) extreme = fabsf(s->x[i]);
    for (int v = 0; v < 1 << l->bits; v++)
        if (fabsf((float)l->values[v]) > most) most = fabsf((float)l->values[v]);
    for (int k = 0; k < N_STARTS && extreme > 0; k++) {
        float scale = try_scale(s, sub, extreme * starts[k] / most, &error);
        if (!(error < least)) continue;
        least = error;
        best = scale;
    }
    for (int k = 0; k < N_REFINEMENTS && best > 0; k++) {
        float scale = try_scale(s, sub, best, &error);
        if (!(error < least)) break;
        least = error;
        best = scale;
    }
    return best;
}

/* The odd integer near the wanted scale with which the error is least; its points. Returns the error. */
static double choose_scale(Search *s, int sub, float d, float wanted) {
    const Lattice *l = s->l;
    float near = (wanted / (d * l->unit) - 1) / 2;
    int s0 = !(near > 0) ? 0 : near < (float)l->s_max ? (int)lrintf(near) : l->s_max;
    LatticeBlock best = s->b;
    double least = INFINITY;
    for (int k = s0 - 1; k <= s0 + 1; k++) {
        if (k < 0 || k > l->s_max) continue;
        s->b.scale[sub] = (uint8_t)k;
        double error = lattice_choose_points(l, s->x, s->w, sub, d * (float)(2 * k + 1) * l->unit, &s->b);
        if (!(error < least)) continue;
        least = error;
        best = s->b;
    }
    s->b = best;
    return least;
}

/* The best d for the points and integers as they are; 0: there is none. */
static float solve(const Search *s) {
    double xv = 0, vv = 0;
    for (int i = 0; i < LATTICE_N / s->l->sub; i++)
        add_sums(s, i * s->l->sub, (i + 1) * s->l->sub, (2 * s->b.scale[i] + 1) * (double)s->l->unit, &xv, &vv);
    float d = (float)(xv / vv);
    return isfinite(d) && d > 0 ? d : 0;
}

static void encode(TensorType type, const float *x, const float *w, uint8_t *dst) {
    Search s = {.type = type, .l = lattice_of(type), .x = x, .w = w};
    LatticeBlock best = {.d = 0};
    float wanted[LATTICE_SCALES_MAX] = {0}, most = 0;
    double least = INFINITY;
    lattice_choose_signs(s.l, x, w, &s.b);
    for (int i = 0; i < LATTICE_N / s.l->sub; i++) {
        wanted[i] = wanted_scale(&s, i);
        if (wanted[i] > most) most = wanted[i];
    }
    float d = most / ((float)(2 * s.l->s_max + 1) * s.l->unit);
    for (int round = 0; round <= N_ROUNDS; round++) {
        uint8_t half[2];
        double error = 0;
        d = quant_store_half(half, d);
        if (d == 0) break;
        s.b.d = (uint16_t)(half[0] | half[1] << 8);
        for (int i = 0; i < LATTICE_N / s.l->sub; i++) error += choose_scale(&s, i, d, wanted[i]);
        if (!(error < least)) break;
        least = error;
        best = s.b;
        d = solve(&s);
    }
    lattice_write(type, &best, dst);
}

#define DEFINE(name, TYPE) \
    void quant_##name(const float *x, const float *w, uint8_t *dst) { encode(TYPE, x, w, dst); }
DEFINE(iq2_xxs, TYPE_IQ2_XXS)
DEFINE(iq2_xs, TYPE_IQ2_XS)
DEFINE(iq2_s, TYPE_IQ2_S)
DEFINE(iq3_xxs, TYPE_IQ3_XXS)
DEFINE(iq3_s, TYPE_IQ3_S)
DEFINE(iq1_s, TYPE_IQ1_S)
DEFINE(iq1_m, TYPE_IQ1_M)
