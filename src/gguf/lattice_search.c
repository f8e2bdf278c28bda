/* lattice_search.c - the points of a list (lattice.h) that are nearest to some weights.
 *
 * The problem. For a given scale, eight (or four) weights x of importance w have to become the point of the list with the
 * least sum w (x / scale - v)^2, where v are the values of its coordinates. Each coordinate rounded by itself gives a point
 * that is often not in the list.
 *
 * The idea. If it is, it is the answer. Otherwise every point of the list is tried. Its error is a sum over coordinates,
 * and a coordinate has few values: the sums of each half of the coordinates are put into a table by that half of the key, so
 * that a point costs two look-ups and one addition:
 *
 *     error(key) = low[key % 2^h] + high[key / 2^h]         h = 8 bits of four coordinates, or 6 bits of two
 *
 * Signs do not depend on the scale: the weights are mirrored to be positive. Where the format has room for an even number
 * of negative signs only, one weight of eight may have to take the wrong one. It becomes scale * v with the smallest v in
 * place of the same mirrored, which costs 4 w |x| scale v more: so it is the weight with the least w |x|.
 *
 * The weights of the IQ1 types are shifted all together by +1/8 or -1/8, which means that their targets are; both are tried.
 * Proof: tests/gguf/test_lattice.c compares with all points one by one. */
#include "gguf/lattice.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

enum { DIM_MAX = 8, VALUES_MAX = 8, HALF_KEYS_MAX = 256 };

typedef struct Costs {
    float of[DIM_MAX][VALUES_MAX]; /* coordinate, value */
    uint32_t rounded;              /* the key of the best values */
} Costs;

/* t: the weights over the scale, mirrored or shifted. */
static void measure(const Lattice *l, const float *t, const float *w, Costs *c) {
    int n_values = l->bits == 2 ? 3 : VALUES_MAX;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < l->dim; i++) {
        int best = 0;
        for (int v = 0; v < n_values; v++) {
            float d = t[i] - (float)l->values[v];
            c->of[i][v] = w[i] * d * d;
            if (c->of[i][v] < c->of[i][best]) best = v;
        }
        c->rounded |= (uint32_t)best << l->bits * i;
    }
}

static float cost_of(const Lattice *l, const Costs *c, uint32_t key) {
    float sum = 0;
    for (int i = 0; i < l->dim; i++) sum += c->of[i][key >> l->bits * i & ((1u << l->bits) - 1)];
    return sum;
}

/* Sums of the costs of coordinates [first, first + dim / 2) for each half of a key. */
static void sum_half(const Lattice *l, const Costs *c, int first, float *sums) {
    int n = 1, n_values = 1 << l->bits;
    sums[0] = 0;
    for (int i = first + l->dim / 2 - 1; i >= first; i--, n *= n_values) /* the lowest coordinate has the lowest bits */
        for (int k = n - 1; k >= 0; k--) {
            float sum = sums[k];
            for (int v = 0; v < n_values; v++) sums[k * n_values + v] = sum + c->of[i][v];
        }
}

/* The index of the nearest point; its error. */
static int nearest_point(const Lattice *l, const float *t, const float *w, float *error) {
    Costs c;
    float low[HALF_KEYS_MAX], high[HALF_KEYS_MAX];
    measure(l, t, w, &c);
    int best = lattice_find(l, c.rounded), half = l->dim / 2 * l->bits;
    *error = cost_of(l, &c, l->points[best]);
    if (l->points[best] == c.rounded) return best;
    sum_half(l, &c, 0, low);
    sum_half(l, &c, l->dim / 2, high);
    for (int p = 0; p < l->n_points; p++) {
        float e = low[l->points[p] & ((1u << half) - 1)] + high[l->points[p] >> half];
        if (!(e < *error)) continue;
        *error = e;
        best = p;
    }
    return best;
}

void lattice_choose_signs(const Lattice *l, const float *x, const float *w, LatticeBlock *b) {
    memset(b->sign, 0, sizeof b->sign);
    if (l->shift_n) return;
    for (int g = 0; g < LATTICE_N / LATTICE_SIGN_N; g++, x += LATTICE_SIGN_N, w += LATTICE_SIGN_N) {
        unsigned signs = 0;
        int least = 0;
        for (int i = 0; i < LATTICE_SIGN_N; i++) {
            signs |= (unsigned)(x[i] < 0) << i;
            if (w[i] * fabsf(x[i]) < w[least] * fabsf(x[least])) least = i;
        }
        if (l->even_signs && __builtin_parity(signs)) signs ^= 1u << least;
        b->sign[g] = (uint8_t)signs;
    }
}

/* The points of weights [begin, end), whose signs are given. */
static double choose(const Lattice *l, const float *x, const float *w, int begin, int end, float scale,
                     LatticeBlock *b) {
    float inverse = scale != 0 && isfinite(1 / scale) ? 1 / scale : 0, shift = l->values[0] - l->values[1 << l->bits];
    double sum = 0;
    fr_assert(l->dim > 0);
    for (int i = begin; i < end; i += l->dim) {
        float t[DIM_MAX], error;
        for (int j = 0; j < l->dim; j++) {
            bool is_set = b->sign[(i + j) / 8] >> (i + j) % 8 & 1;
            t[j] = x[i + j] * inverse;
            if (is_set) t[j] = l->shift_n ? t[j] + shift : -t[j];
        }
        b->point[i / l->dim] = (uint16_t)nearest_point(l, t, w + i, &error);
        sum += (double)error;
    }
    return sum * (double)scale * (double)scale;
}

/* The same where the signs are a shift of all of them. */
static double choose_shifted(const Lattice *l, const float *x, const float *w, int begin, int end, float scale,
                             LatticeBlock *b) {
    LatticeBlock other = *b;
    size_t n = (size_t)(end - begin) / 8;
    memset(b->sign + begin / 8, 0, n);
    memset(other.sign + begin / 8, 0xff, n);
    double up = choose(l, x, w, begin, end, scale, b), down = choose(l, x, w, begin, end, scale, &other);
    if (down < up) *b = other;
    return down < up ? down : up;
}

double lattice_choose_points(const Lattice *l, const float *x, const float *w, int i, float scale, LatticeBlock *b) {
    int begin = i * l->sub, end = begin + l->sub;
    double sum = 0;
    if (!l->shift_n) return choose(l, x, w, begin, end, scale, b);
    for (int at = begin; at < end; at += l->shift_n) sum += choose_shifted(l, x, w, at, at + l->shift_n, scale, b);
    return sum;
}
