/* gumbel_coupling.c - the exact agreement of two choices with shared Gumbel noise.
 *
 * With E = e^-G, independent and exponential of rate 1, argmax(log p + G) = argmin(E / p). Token x is the first choice
 * of p with E_x = p_x t, and t has the density p_x e^(-p_x t) dt / p_x = e^(-p_x t) p_x dt, if E_y > p_y t for all y;
 * it is the first choice of q if E_y > q_y p_x t / q_x for all y. Both together:
 *
 *     P(both choose x) = integral of p_x e^(-p_x t) prod over y != x of e^(-max(p_y, q_y p_x / q_x) t) dt
 *                      = p_x / S_x = 1 / sum over y of max(p_y / p_x, q_y / q_x),    S_x = sum over y of max(p_y, q_y p_x / q_x)
 *
 * max(p_y / p_x, q_y / q_x) is the first where p_y / q_y >= p_x / q_x, so sorting by p / q makes all sums prefix sums.
 *
 * Proof: tests/verify/test_gumbel_coupling.c, by simulation. */
#include "research/gumbel_coupling.h"

#include <math.h>
#include <stdlib.h>

double total_variation(const double *p, const double *q, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += fabs(p[i] - q[i]);
    return sum / 2;
}

typedef struct Pair {
    double p, q;
} Pair;

static int greater_ratio_first(const void *a, const void *b) {
    const Pair *x = a, *y = b;
    double left = x->p * y->q, right = y->p * x->q; /* p_x / q_x and p_y / q_y without dividing */
    return left > right ? -1 : left < right ? 1 : 0;
}

double gumbel_agreement(const double *p, const double *q, int32_t n) {
    Pair *pairs = malloc((size_t)n * sizeof *pairs);
    double before = 0, after = 0, sum = 0; /* of p up to a token, and of q after it */
    int32_t n_pairs = 0;
    if (!pairs) return -1;
    for (int32_t i = 0; i < n; i++)
        if (p[i] > 0 || q[i] > 0) pairs[n_pairs++] = (Pair){p[i], q[i]};
    qsort(pairs, (size_t)n_pairs, sizeof *pairs, greater_ratio_first);
    for (int32_t i = 0; i < n_pairs; i++) after += pairs[i].q;
    for (int32_t i = 0; i < n_pairs; i++) {
        before += pairs[i].p;
        after -= pairs[i].q;
        if (pairs[i].p > 0 && pairs[i].q > 0) sum += 1 / (before / pairs[i].p + fmax(after, 0) / pairs[i].q);
    }
    free(pairs);
    return sum;
}
