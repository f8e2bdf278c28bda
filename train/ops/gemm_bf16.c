/* gemm_bf16.c - the specifications of gemm_bf16.h in plain C, one output after the other: slow, and what
 * gemm_avx512_bf16.c and gemm_amx.c must match bit by bit. */
#include "train/ops/gemm_bf16.h"

#include "gguf/tensor_type.h"

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

/* Input l of an output, or zero beyond the end. */
static float input_or_zero(const Bf16Operand *x, int64_t output, int64_t l, int64_t end) {
    return l < end ? input(x, output, l) : 0;
}

/* The same sum as tdpbf16ps computes it. */
static float dot_by_tiles(const Bf16Product *p, int64_t i, int64_t j, int64_t begin, int64_t end) {
    float acc = 0;
    for (int64_t step = begin; step < end; step += BF16_STEP) {
        float sum[2] = {0, 0}; /* of the even and the odd inputs */
        for (int64_t l = step; l < step + BF16_STEP; l++)
            sum[l % 2] = bf16_dot_add(input_or_zero(&p->a, i, l, end), input_or_zero(&p->b, j, l, end), sum[l % 2]);
        acc = bf16_dot_add(acc, 1, bf16_dot_add(sum[1], 1, sum[0]));
    }
    return acc;
}

typedef float (*Dot)(const Bf16Product *p, int64_t i, int64_t j, int64_t begin, int64_t end);

static void multiply(const Bf16Product *p, Dot sum) {
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            float *c = &p->c[i * p->c_stride + j];
            if (!p->accumulate) *c = 0;
            for (int64_t begin = 0; begin < p->k; begin += BF16_DEPTH) {
                int64_t end = begin + BF16_DEPTH < p->k ? begin + BF16_DEPTH : p->k;
                float part = p->alpha * sum(p, i, j, begin, end);
                *c = p->accumulate || begin ? *c + part : part;
            }
        }
}

void gemm_bf16_plain(const Bf16Product *p) { multiply(p, dot); }

void gemm_bf16_tiles_plain(const Bf16Product *p) { multiply(p, dot_by_tiles); }
