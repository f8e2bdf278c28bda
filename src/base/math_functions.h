/* math_functions.h - the exponential, the logarithm and their kin, with the same bits on every system.
 *
 * The functions of the C library differ in their last bits between libraries, and within one between processors. These
 * ones consist of additions, multiplications and divisions of doubles and of integer operations, which IEEE 754 defines
 * to the last bit; so everything that reaches a logit, a draft or a sample calls them. tests/base/test_math_functions.c
 * compares them with a more precise reference, and tests that no object of the library calls the C library's.
 *
 * They accept every double and have the special values that C11 (annex F) gives to the functions of these names. They
 * need the default floating-point environment, do not set errno, and may be called from all threads. The error bounds
 * are in units of the last place (ulp) of normal results.
 */
#ifndef BASE_MATH_FUNCTIONS_H
#define BASE_MATH_FUNCTIONS_H

double math_exp(double x);           /* 0.54 ulp */
double math_log(double x);           /* 0.51 ulp */
double math_log1p(double x);         /* log(1 + x), 0.51 ulp */
double math_pow(double x, double y); /* x^y, 0.6 ulp; exact where the result is a double */
double math_tanh(double x);          /* 2 ulp */

/* Writes the sine and the cosine of an angle in radians, of any size: 0.8 ulp. */
void math_sin_cos(double x, double *sine, double *cosine);

#endif
