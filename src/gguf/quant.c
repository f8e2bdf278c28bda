/* quant.c - a row, block by block: weights, the encoder of the type, and the comparison with plain rounding.
 *
 * An error in a large weight matters more than one in a small weight, because large weights carry more of the output; but
 * small ones must not be given up. So the weight of an element is |x| + rms of its block, times its importance, the
 * mean square of the input that it is multiplied with (forerun imatrix). Without an importance matrix all inputs count
 * alike. */
#include "gguf/quant.h"

#include "gguf/blocks.h"

#include <math.h>
#include <string.h>

enum { BLOCK_MAX = 256, BLOCK_BYTES_MAX = 256 };

static const QuantEncode encoders[TYPE_COUNT] = {
    [TYPE_Q4_0] = quant_q4_0,       [TYPE_Q4_1] = quant_q4_1,     [TYPE_Q5_0] = quant_q5_0,
    [TYPE_Q5_1] = quant_q5_1,       [TYPE_Q4_K] = quant_q4_k,     [TYPE_Q5_K] = quant_q5_k,
    [TYPE_Q6_K] = quant_q6_k,       [TYPE_Q2_K] = quant_q2_k,     [TYPE_Q3_K] = quant_q3_k,
    [TYPE_IQ4_NL] = quant_iq4_nl,   [TYPE_IQ4_XS] = quant_iq4_xs, [TYPE_MXFP4] = quant_mxfp4,
    [TYPE_IQ2_XXS] = quant_iq2_xxs, [TYPE_IQ2_XS] = quant_iq2_xs, [TYPE_IQ2_S] = quant_iq2_s,
    [TYPE_IQ3_XXS] = quant_iq3_xxs, [TYPE_IQ3_S] = quant_iq3_s,   [TYPE_IQ1_S] = quant_iq1_s,
    [TYPE_IQ1_M] = quant_iq1_m,     [TYPE_NVFP4] = quant_nvfp4,
};

float quant_store_half(uint8_t *p, float f) {
    uint16_t h = float_to_half(f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f);
    memcpy(p, &h, sizeof h);
    return half_to_float(h);
}

static void weigh(const float *x, const float *importance, int n, float *w) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    float rms = (float)sqrt(squares / n);
    for (int i = 0; i < n; i++) w[i] = (fabsf(x[i]) + rms) * (importance ? importance[i] : 1);
}

static double error_of(TensorType type, const uint8_t *block, const float *x, const float *w, int n) {
    float y[BLOCK_MAX];
    double sum = 0;
    blocks_dequantize(type, block, n, y);
    for (int i = 0; i < n; i++) sum += (double)w[i] * ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sum;
}

static void encode(TensorType type, const float *x, const float *importance, uint8_t *dst) {
    const TensorTypeInfo *info = tensor_type_info(type);
    int n = (int)info->block_n;
    float w[BLOCK_MAX];
    uint8_t found[BLOCK_BYTES_MAX];
    weigh(x, importance, n, w);
    blocks_quantize(type, x, n, dst);
    encoders[type](x, w, found);
    if (error_of(type, found, x, w, n) < error_of(type, dst, x, w, n)) memcpy(dst, found, info->block_bytes);
}

void quant_row(TensorType type, const float *x, const float *importance, int64_t n, void *dst) {
    const TensorTypeInfo *info = tensor_type_info(type);
    uint8_t *bytes = dst;
    if (!encoders[type]) blocks_quantize(type, x, n, dst); /* floats; Q8_0, where a search gains nothing */
    else
        for (int64_t i = 0; i < n; i += info->block_n, bytes += info->block_bytes)
            encode(type, x + i, importance ? importance + i : NULL, bytes);
}
