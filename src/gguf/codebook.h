/* codebook.h - what the 4-bit codes of the types with a codebook stand for. */
#ifndef FORMAT_CODEBOOK_H
#define FORMAT_CODEBOOK_H

#include <stdint.h>

/* IQ4_NL and IQ4_XS: closer together around zero, as weights are. The step from one to the next grows from 11 to 24. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* MXFP4 and NVFP4: twice the numbers of a float with one sign, two exponent bits and one mantissa bit. */
static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

enum { MXFP4_EXPONENT_MAX = 252 }; /* 12 * 2^(252 - 128) is the largest weight that is finite as a float */

/* 2^(exponent - 128), half of what the standard writes, because the values above are doubled; 255, which the standard
 * has for NaN, gives infinity. Bits of floats: the exponent shifted to its place is 2^(exponent - 127), but for 0. */
float mxfp4_scale(uint8_t exponent);

/* Half the number that a scale of NVFP4 is: a float without a sign of four exponent bits (bias 7) and three mantissa bits.
 * As ggml does, the uppermost bit of the byte is ignored. All of the other bits set is NaN in the standard, and no scale
 * of a model. */
enum { NVFP4_SCALE_BITS = 127, NVFP4_SCALE_MAX = 126 };
float nvfp4_scale(uint8_t code);

#endif
