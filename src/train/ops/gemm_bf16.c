/* gemm_bf16.c - the specification of gemm_bf16.h in plain C, one output after the other: slow, and what
 * gemm_avx512_bf16.c must match bit by bit. */
#include "train/ops/gemm_bf16.h"

#include "format/bf16_dot.h"
#include "format/blocks.h"

static float input(const Bf16Operand *x, int64_t output, int64_t i) {
    float value = x->inputs_adjacent ? x->at[output * x->stride + i] : x->at[i * x->stride + output];
    return bf16_to_float(bf16_dot_operand(value));
}

/* The sum over inputs begin .. end - 1, the odd one of each pair first. */
static float dot(const Bf16Product *p, int64_t i, int64_t j, int64_t begin, int64_t end) {
    float acc = 0;
    for (int64_t l = begin; l < end; l += 2) {
        float a = l + 1 < end ? input(&p->a, i, l + 1) : 0, b = l + 1 < end ? input(&p->b, j, l + 1) : 0;
        acc = bf16_dot_add(a, b, acc);
        acc = bf16_dot_add(input(&p->a, i, l), input(&p->b, j, l), acc);
    }
    return acc;
}

void gemm_bf16_plain(const Bf16Product *p) {
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            float *c = &p->c[i * p->c_stride + j];
            if (!p->accumulate) *c = 0;
            for (int64_t begin = 0; begin < p->k; begin += BF16_DEPTH) {
                int64_t end = begin + BF16_DEPTH < p->k ? begin + BF16_DEPTH : p->k;
                float part = p->alpha * dot(p, i, j, begin, end);
                *c = p->accumulate || begin ? *c + part : part;
            }
        }
}
