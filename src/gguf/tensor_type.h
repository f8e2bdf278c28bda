/* tensor_type.h - the element types of tensors in GGUF files, and the size of their blocks. */
#ifndef FORMAT_TENSOR_TYPE_H
#define FORMAT_TENSOR_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Our own dense numbering; tensor_type_from_gguf maps the numbers in files to it. */
typedef enum TensorType {
    TYPE_F32,
    TYPE_F16,
    TYPE_BF16,
    TYPE_Q8_0,
    TYPE_Q4_0,
    TYPE_Q4_1,
    TYPE_Q5_0,
    TYPE_Q5_1,
    TYPE_Q4_K,
    TYPE_Q5_K,
    TYPE_Q6_K,
    TYPE_Q2_K,
    TYPE_Q3_K,
    TYPE_IQ4_NL,
    TYPE_IQ4_XS,
    TYPE_MXFP4,
    TYPE_IQ2_XXS,
    TYPE_IQ2_XS,
    TYPE_IQ2_S,
    TYPE_IQ3_XXS,
    TYPE_IQ3_S,
    TYPE_IQ1_S,
    TYPE_IQ1_M,
    TYPE_NVFP4,
    TYPE_COUNT,
} TensorType;

typedef struct TensorTypeInfo {
    const char *name;     /* as it is usually written: "Q4_K" */
    uint32_t gguf_id;     /* the number in GGUF tensor infos */
    uint32_t block_n;     /* elements in a block; rows are whole blocks */
    uint32_t block_bytes; /* bytes of a block */
} TensorTypeInfo;

const TensorTypeInfo *tensor_type_info(TensorType type);
bool tensor_type_from_gguf(uint32_t gguf_id, TensorType *out);
bool tensor_type_from_name(const char *name, TensorType *out); /* ignores case */

/* Bytes of a row of n elements; false where n is not a number of whole blocks, or the size overflows. */
bool tensor_type_row_bytes(TensorType type, int64_t n, size_t *out);

#endif
