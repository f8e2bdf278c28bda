/* statistics.h - chi-square tests of counts against a distribution, with a false alarm once in 1e9. */
#ifndef TESTS_STATISTICS_H
#define TESTS_STATISTICS_H

/* Returns the value that a chi-square variable with df degrees of freedom exceeds once in 1e9. */
double chi_square_limit(int df);
/* Returns the chi-square of n trials with outcomes of probability p. Fails the test if an impossible outcome was seen.
 * *df: degrees of freedom. */
double chi_square(const int *counts, const double *p, int n_outcomes, int n, int *df);

#endif
