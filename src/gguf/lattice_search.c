/* lattice_search.c - the points of a list (codebook.h) that are nearest to some weights, and the scales of their
 * blocks.
 *
 * The problem. For a given scale, eight (or four) weights x of importance w have to become the point of the list with
 * the least sum w (x / scale - v)^2, where v are the values of its coordinates. Each coordinate rounded by itself gives
 * a point that is often not in the list.
 *
 * The idea. If the rounded point is in the list, it is the answer. Otherwise every point of the list is tried. Its
 * error is a sum over coordinates, and a coordinate has few values: the sums of each half of the coordinates are put
 * into a table by that half of the key, so that a point costs two look-ups and one addition:
 *
 *     error(key) = low[key % 2^h] + high[key / 2^h]         h = 8 bits of four coordinates, or 6 bits of two
 *
 * Signs do not depend on the scale: the weights are mirrored to be positive. Where the format has room for an even
 * number of negative signs only, one weight of eight may have to take the wrong one. That weight becomes scale * v with
 * the smallest v in place of -scale * v, which costs 4 w |x| scale v more. So the weight with the least w |x| is taken.
 *
 * All weights of a group of the IQ1 types are shifted by +1/8 or by -1/8. Both shifts are tried.
 * Proof: tests/gguf/test_lattice.c compares with all points one by one. */
#include "gguf/blocks_internal.h"
#include "gguf/codebook.h"

#include "base/error.h"

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

/* Returns the index of the nearest point, and its error. */
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

/* Chooses the points of weights [begin, end), whose signs are given; returns the error. */
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

/* Does the same where one sign shifts all of these weights, and chooses the sign, too. */
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

/* ---- scales ------------------------------------------------------------------------------------------ */
/* x is about d (2 s + 1) unit v, where v are the values of a point with its signs, s is the small integer of a
 * sub-block, and d a half for 256 numbers. As for the other types (quant_search.c), either half of the problem is easy
 * by itself. For a given scale, the code above finds the points with the least weighted error. For given points the
 * best scale has a formula:
 *
 *     scale = sum w x v / sum w v v
 *
 * Each sub-block begins at several scales, takes the best, and alternates. Then the scales become odd integers over one
 * half, the neighbours of each are tried, and the half is solved for by least squares; that is done twice.
 *
 * The wrong sign that a format with an even number of signs forces on one of eight weights costs more than anything
 * else in a block, so the weights' importance decides which weight it is (lattice_choose_signs). */
enum { N_ROUNDS = 2, N_REFINEMENTS = 3 };

/* The search begins at scales with which the extreme weight is the largest value divided by these. */
static const float starts[] = {0.6f, 0.8f, 1, 1.25f};
enum { N_STARTS = sizeof starts / sizeof *starts };

typedef struct Search {
    const Lattice *l;
    const float *x, *w;
    LatticeBlock b;
} Search;

/* Adds the sums of w x v and w v v over weights [begin, end), where v is the value times `factor`. */
static void add_sums(const Search *s, int begin, int end, double factor, double *xv, double *vv) {
    for (int i = begin; i < end; i++) {
        double v = factor * s->l->values[lattice_code(s->l, &s->b, i)];
        *xv += (double)s->w[i] * (double)s->x[i] * v;
        *vv += (double)s->w[i] * v * v;
    }
}

/* Chooses the points for the scale `start`, and returns the best scale for them, with its error less the constant sum
 * wxx. */
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

/* Chooses the odd integer near the wanted scale that gives the least error, and its points. Returns the error. */
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

/* Returns the best d for the points and integers as they are; 0 if there is none. */
static float solve(const Search *s) {
    double xv = 0, vv = 0;
    for (int i = 0; i < LATTICE_N / s->l->sub; i++)
        add_sums(s, i * s->l->sub, (i + 1) * s->l->sub, (2 * s->b.scale[i] + 1) * (double)s->l->unit, &xv, &vv);
    float d = (float)(xv / vv);
    return isfinite(d) && d > 0 ? d : 0;
}

void lattice_search(const Lattice *l, const float *x, const float *w, uint8_t *dst) {
    Search s = {.l = l, .x = x, .w = w};
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
        d = store_half(half, d);
        if (d == 0) break;
        s.b.d = (uint16_t)(half[0] | half[1] << 8);
        for (int i = 0; i < LATTICE_N / s.l->sub; i++) error += choose_scale(&s, i, d, wanted[i]);
        if (!(error < least)) break;
        least = error;
        best = s.b;
        d = solve(&s);
    }
    lattice_write(l, &best, dst);
}
