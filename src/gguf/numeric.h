/* numeric.h - choices of the numeric contract that are made outside the kernels, by a model file or by the user: the
 * type of the KV cache, the precision of activations, and the layout of rotary position embeddings. */
#ifndef FORMAT_NUMERIC_H
#define FORMAT_NUMERIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How keys and values are stored. KV_Q8 is as tensors of type Q8_0: 32 elements to a block of a half-precision scale
 * d and signed bytes q; the last block is filled up with zeros. d * q is exact in a float, so that values are the
 * same operations for all types; scores of Q8 keys are integer products (kernels/scores.h). */
typedef enum KvType { KV_F16, KV_F32, KV_Q8, KV_TYPE_COUNT } KvType;
enum { KV_BLOCK = 32, KV_BLOCK_BYTES = 34 };
/* Bytes of n elements, the row of one slot. */
static inline size_t kv_row_bytes(KvType t, int64_t n) {
    return t == KV_Q8 ? (size_t)((n + KV_BLOCK - 1) / KV_BLOCK) * KV_BLOCK_BYTES : (size_t)n * (t == KV_F16 ? 2 : 4);
}
const char *kv_type_name(KvType t);

/* To how many bits the inputs of matrices of block types are rounded. Inputs of F32, F16 and BF16 matrices do not
 * depend on it. */
typedef enum ActPrecision { ACT_PRECISION_Q16, ACT_PRECISION_Q8, ACT_PRECISION_COUNT } ActPrecision;
const char *act_precision_name(ActPrecision p);
/* By name: "q16" (also NULL) or "q8"; else false. */
bool act_precision_from_name(const char *name, ActPrecision *out);

typedef enum RopeStyle {
    ROPE_PAIRS,  /* rotates (x[2i], x[2i+1]): architecture llama */
    ROPE_HALVES, /* rotates (x[i], x[i + n/2]): qwen2, qwen3 ("neox") */
} RopeStyle;

#endif
