/* blocks_internal.h - what the families of block formats share, and their entries for the table in blocks.c.
 */
#ifndef FORMAT_BLOCKS_INTERNAL_H
#define FORMAT_BLOCKS_INTERNAL_H

#include "gguf/blocks.h"

#include <string.h>

/* One block: bytes to floats, and floats to bytes. Bytes need no alignment. */
typedef void (*BlockDecode)(const uint8_t *src, float *dst);
typedef void (*BlockEncode)(const float *src, uint8_t *dst);

static inline float load_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return half_to_float(h);
}

/* Stores f as a finite half, and returns the value that a reader will get, with which quantisers go on. */
static inline float store_half(uint8_t *p, float f) {
    uint16_t h = float_to_half(f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f);
    memcpy(p, &h, sizeof h);
    return half_to_float(h);
}

static inline float inverse(float f) { return f != 0.0f ? 1.0f / f : 0.0f; }

/* The nearest whole number in [low, high]; NaN gives low. */
static inline int nearest(float x, int low, int high) {
    if (!(x > (float)low)) return low;
    if (x >= (float)high) return high;
    return (int)(x - (float)low + 0.5f) + low; /* truncation of a positive number: rounds halves up */
}

void q4_k_decode(const uint8_t *src, float *dst);
void q5_k_decode(const uint8_t *src, float *dst);
void q6_k_decode(const uint8_t *src, float *dst);
void q4_k_encode(const float *src, uint8_t *dst);
void q5_k_encode(const float *src, uint8_t *dst);
void q6_k_encode(const float *src, uint8_t *dst);
void q2_k_decode(const uint8_t *src, float *dst);
void q3_k_decode(const uint8_t *src, float *dst);
void q2_k_encode(const float *src, uint8_t *dst);
void q3_k_encode(const float *src, uint8_t *dst);
void iq4_nl_decode(const uint8_t *src, float *dst);
void iq4_xs_decode(const uint8_t *src, float *dst);
void mxfp4_decode(const uint8_t *src, float *dst);
void iq4_nl_encode(const float *src, uint8_t *dst);
void iq4_xs_encode(const float *src, uint8_t *dst);
void mxfp4_encode(const float *src, uint8_t *dst);
void iq2_xxs_decode(const uint8_t *src, float *dst);
void iq2_xxs_encode(const float *src, uint8_t *dst);
void iq2_xs_decode(const uint8_t *src, float *dst);
void iq2_xs_encode(const float *src, uint8_t *dst);
void iq2_s_decode(const uint8_t *src, float *dst);
void iq2_s_encode(const float *src, uint8_t *dst);
void iq3_xxs_decode(const uint8_t *src, float *dst);
void iq3_xxs_encode(const float *src, uint8_t *dst);
void iq3_s_decode(const uint8_t *src, float *dst);
void iq3_s_encode(const float *src, uint8_t *dst);
void iq1_s_decode(const uint8_t *src, float *dst);
void iq1_s_encode(const float *src, uint8_t *dst);
void iq1_m_decode(const uint8_t *src, float *dst);
void iq1_m_encode(const float *src, uint8_t *dst);
void nvfp4_decode(const uint8_t *src, float *dst);
void nvfp4_encode(const float *src, uint8_t *dst);

#endif
