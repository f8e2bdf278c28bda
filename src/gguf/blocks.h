/* blocks.h - the meaning of a quantised block's bytes: exact dequantisation, and simple quantisers.
 *
 * Dequantisation is the definition against which every kernel is tested. The quantisers are for tools, tests and
 * trained files. They round to nearest and do not search for better scales, so published files may be a little better.
 */
#ifndef FORMAT_BLOCKS_H
#define FORMAT_BLOCKS_H

#include "gguf/tensor_type.h"

/* IEEE half precision <-> single, exact in one direction and round-to-nearest-even in the other. */
float half_to_float(uint16_t h);
uint16_t float_to_half(float f);
/* bfloat16 likewise (NaN stays NaN). */
float bf16_to_float(uint16_t h);
uint16_t float_to_bf16(float f);

/* Converts n elements (whole blocks) of `type`. Neither side needs alignment. */
void blocks_dequantize(TensorType type, const void *src, int64_t n, float *dst);
void blocks_quantize(TensorType type, const float *src, int64_t n, void *dst);

#endif
