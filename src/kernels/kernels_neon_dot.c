/* kernels_neon_dot.c - table "neon-dot". */
#if defined(__aarch64__)
#include "kernels/simd_neon.h"

#include "kernels/matmul_body.h"
#include "kernels/peak_body.h"
#include "kernels/vector_body.h"
#include "kernels/tables.h"

const Kernels kernels_neon_dot = {
    .name = "neon-dot",
    .act_convert = act_convert,
    .matmul = matmul,
    .rmsnorm = rmsnorm,
    .add = add,
    .silu_mul = silu_mul,
    .rope = rope,
    .kv_store = kv_store,
    .attn_scores = attn_scores,
    .softmax = softmax,
    .attn_mix = attn_mix,
    .peak_loop = peak_loop,
    .read_loop = read_loop,
};
#endif
