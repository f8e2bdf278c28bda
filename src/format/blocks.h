/* blocks.h - what the bytes of a quantised block mean: exact dequantisation, and simple quantisers.
 *
 * Dequantisation is the definition that every kernel answers to. Quantisers exist for tools, tests and
 * trained files; they round to nearest and search nothing, so published files may be a little better.
 */
#ifndef FORMAT_BLOCKS_H
#define FORMAT_BLOCKS_H

#include "format/tensor_type.h"

/* IEEE half precision <-> single, exact in one direction and round-to-nearest-even in the other. */
float half_to_float(uint16_t h);
uint16_t float_to_half(float f);
/* bfloat16 likewise (NaN stays NaN). */
float bf16_to_float(uint16_t h);
uint16_t float_to_bf16(float f);

/* n elements (whole blocks) of `type` at src to dst. src needs no alignment. */
void blocks_dequantize(TensorType type, const void *src, int64_t n, float *dst);
void blocks_quantize(TensorType type, const float *src, int64_t n, void *dst);

#endif
