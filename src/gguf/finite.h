/* finite.h - whether numbers are finite: values as floats, and weights as files have them. */
#ifndef FORMAT_FINITE_H
#define FORMAT_FINITE_H

#include "gguf/tensor_type.h"

/* Whether none of n floats is NaN or infinite. */
bool finite_floats(const float *x, int64_t n);
/* The same of n elements (whole blocks) of any type: for block types, whether all their scales are finite, and so all
 * their values. src needs no alignment. */
bool finite_weights(TensorType type, const void *src, int64_t n);

#endif
