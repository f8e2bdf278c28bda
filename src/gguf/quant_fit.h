/* quant_fit.h - the search for the scale (and minimum) with which a few numbers are rounded to small integers. */
#ifndef QUANT_QUANT_FIT_H
#define QUANT_QUANT_FIT_H

#include <stdbool.h>

enum { FIT_MAX = 32 }; /* numbers that share a scale; always a multiple of 8 */

/* x is about scale * q + low. */
typedef struct Fit {
    float scale, low;
} Fit;

/* Codes q of x [n] for a given fit: the nearest integers in [least, most], as floats. All zeros where the scale is 0. */
void fit_codes(Fit fit, const float *x, int n, float least, float most, float *q);
/* The same with the nearest of 16 ascending values in place of the nearest integer. */
void fit_values(Fit fit, const float *x, int n, const float values[16], float *q);
/* sum of w (x - scale q - low)^2. */
double fit_error(Fit fit, const float *x, const float *w, int n, const float *q);

/* The scale that minimises that sum for codes in [least, most], where -least >= most; low is 0. */
Fit fit_scale(const float *x, const float *w, int n, float least, float most);
/* The same for 16 ascending values, from a negative to a positive one. */
Fit fit_codebook(const float *x, const float *w, int n, const float values[16]);
/* Scale and low for codes in [0, most]. low_is_negative: low must not be positive, as in the K types. */
Fit fit_range(const float *x, const float *w, int n, float most, bool low_is_negative);

#endif
