/* tensor_type.c - the table of element types, and look-ups in it. */
#include "gguf/tensor_type.h"

#include "base/error.h"
#include "base/mem.h"

#include <strings.h>

static const TensorTypeInfo infos[TYPE_COUNT] = {
    [TYPE_F32] = {"F32", 0, 1, 4},
    [TYPE_F16] = {"F16", 1, 1, 2},
    [TYPE_BF16] = {"BF16", 30, 1, 2},
    [TYPE_Q8_0] = {"Q8_0", 8, 32, 2 + 32},
    [TYPE_Q4_0] = {"Q4_0", 2, 32, 2 + 16},
    [TYPE_Q4_1] = {"Q4_1", 3, 32, 4 + 16},
    [TYPE_Q5_0] = {"Q5_0", 6, 32, 2 + 20},
    [TYPE_Q5_1] = {"Q5_1", 7, 32, 4 + 20},
    [TYPE_Q4_K] = {"Q4_K", 12, 256, 144},
    [TYPE_Q5_K] = {"Q5_K", 13, 256, 176},
    [TYPE_Q6_K] = {"Q6_K", 14, 256, 210},
    [TYPE_Q2_K] = {"Q2_K", 10, 256, 84},
    [TYPE_Q3_K] = {"Q3_K", 11, 256, 110},
    [TYPE_IQ4_NL] = {"IQ4_NL", 20, 32, 2 + 16},
    [TYPE_IQ4_XS] = {"IQ4_XS", 23, 256, 136},
    [TYPE_MXFP4] = {"MXFP4", 39, 32, 1 + 16},
    [TYPE_IQ2_XXS] = {"IQ2_XXS", 16, 256, 66},
    [TYPE_IQ2_XS] = {"IQ2_XS", 17, 256, 74},
    [TYPE_IQ2_S] = {"IQ2_S", 22, 256, 82},
    [TYPE_IQ3_XXS] = {"IQ3_XXS", 18, 256, 98},
    [TYPE_IQ3_S] = {"IQ3_S", 21, 256, 110},
    [TYPE_IQ1_S] = {"IQ1_S", 19, 256, 50},
    [TYPE_IQ1_M] = {"IQ1_M", 29, 256, 56},
    [TYPE_NVFP4] = {"NVFP4", 40, 64, 4 + 32},
};

const TensorTypeInfo *tensor_type_info(TensorType type) {
    fr_assert((unsigned)type < TYPE_COUNT);
    return &infos[type];
}

bool tensor_type_from_gguf(uint32_t gguf_id, TensorType *out) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (infos[i].gguf_id == gguf_id) {
            *out = (TensorType)i;
            return true;
        }
    return false;
}

bool tensor_type_from_name(const char *name, TensorType *out) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (strcasecmp(infos[i].name, name) == 0) {
            *out = (TensorType)i;
            return true;
        }
    return false;
}

bool tensor_type_row_bytes(TensorType type, int64_t n, size_t *out) {
    const TensorTypeInfo *info = tensor_type_info(type);
    if (n < 0 || n % info->block_n != 0) return false;
    return size_mul((size_t)(n / info->block_n), info->block_bytes, out);
}
