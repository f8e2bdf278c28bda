/* statistics.c - chi-square tests with a false alarm once in 1e9. */
#include "statistics.h"

#include "testing.h"

#include <math.h>

double chi_square_limit(int df) { /* Wilson and Hilferty 1931; 5.998: the normal quantile of 1 - 1e-9 */
    double a = 2.0 / (9.0 * df);
    return df * pow(1 - a + 5.998 * sqrt(a), 3);
}

double chi_square(const int *counts, const double *p, int n_outcomes, int n, int *df) {
    double x = 0;
    *df = -1;
    for (int i = 0; i < n_outcomes; i++) {
        if (p[i] == 0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        x += (counts[i] - n * p[i]) * (counts[i] - n * p[i]) / (n * p[i]);
        ++*df;
    }
    return x;
}
