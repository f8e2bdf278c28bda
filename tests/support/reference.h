/* reference.h - a second, slow opinion: the forward of llama, qwen2 and qwen3 models in double precision,
 * written from the published formulas. Nothing of src/model or src/kernels is used; weights come from the
 * GGUF file by blocks_dequantize. */
#ifndef TESTS_REFERENCE_H
#define TESTS_REFERENCE_H

#include "format/gguf.h"

typedef struct Reference Reference;

Reference *reference_open(const Gguf *g); /* fails the test when the model is none it knows */
void reference_close(Reference *r);
int32_t reference_n_vocab(const Reference *r);

/* What an engine rounds on purpose, to be imitated so that only its errors remain. */
typedef struct ReferenceRounding {
    bool activations; /* before products: int8 in blocks of 32 for block types, bfloat16 for BF16 */
    bool kv_half;     /* keys and values kept in half precision */
} ReferenceRounding;

/* Logits after each of n tokens at positions 0 .. n-1. logits: [n][n_vocab]. */
void reference_logits(const Reference *r, ReferenceRounding rounding, const int32_t *tokens, int32_t n,
                      double *logits);

#endif
