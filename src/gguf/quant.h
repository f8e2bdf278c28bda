/* quant.h - quantisers that search for good scales, where format/blocks.h rounds to the nearest.
 *
 *   quant_fit.c   scale and offset of a few numbers     quant_super.c    those of super-blocks
 *   quant_32.c    the types with blocks of 32           quant_k.c        the K types
 *   quant_codebook.c  IQ4_NL, IQ4_XS, MXFP4, NVFP4      quant_mix.c      which tensor of a model gets which type
 *   quant_lattice.c   IQ1, IQ2 and IQ3
 *   importance.c  importance matrices: files of how much each input of a matrix matters
 */
#ifndef QUANT_QUANT_H
#define QUANT_QUANT_H

#include "gguf/tensor_type.h"

/* Writes n finite numbers (whole blocks) of a row as `type`. importance: [n] how much an error of each matters, not
 * negative; NULL: all alike. The weighted error of a block is never larger than that of blocks_quantize. */
void quant_row(TensorType type, const float *x, const float *importance, int64_t n, void *dst);

/* ---- for the families ------------------------------------------------------------------------------ */

/* One block with the weights of its elements. */
typedef void (*QuantEncode)(const float *x, const float *w, uint8_t *dst);
void quant_q4_0(const float *x, const float *w, uint8_t *dst);
void quant_q4_1(const float *x, const float *w, uint8_t *dst);
void quant_q5_0(const float *x, const float *w, uint8_t *dst);
void quant_q5_1(const float *x, const float *w, uint8_t *dst);
void quant_q4_k(const float *x, const float *w, uint8_t *dst);
void quant_q5_k(const float *x, const float *w, uint8_t *dst);
void quant_q6_k(const float *x, const float *w, uint8_t *dst);
void quant_q2_k(const float *x, const float *w, uint8_t *dst);
void quant_q3_k(const float *x, const float *w, uint8_t *dst);
void quant_iq4_nl(const float *x, const float *w, uint8_t *dst);
void quant_iq4_xs(const float *x, const float *w, uint8_t *dst);
void quant_mxfp4(const float *x, const float *w, uint8_t *dst);
void quant_nvfp4(const float *x, const float *w, uint8_t *dst);
void quant_iq2_xxs(const float *x, const float *w, uint8_t *dst);
void quant_iq2_xs(const float *x, const float *w, uint8_t *dst);
void quant_iq2_s(const float *x, const float *w, uint8_t *dst);
void quant_iq3_xxs(const float *x, const float *w, uint8_t *dst);
void quant_iq3_s(const float *x, const float *w, uint8_t *dst);
void quant_iq1_s(const float *x, const float *w, uint8_t *dst);
void quant_iq1_m(const float *x, const float *w, uint8_t *dst);

/* Stores a finite half; the value that a reader gets. */
float quant_store_half(uint8_t *p, float f);

#endif
