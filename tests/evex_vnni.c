/* evex_vnni.c - the code of table "avx-vnni" in the encoding that CPUs with AVX-512 have, so that its arithmetic is
 * tested where only they are at hand: the same header, the same bodies, vpdpbusd on 256 bits as EVEX and not as VEX. */
#include "all_tables.h"

#if defined(__x86_64__)
#include "kernels/simd_avx2.h"

#include "kernels/matmul_body.h"
#include "kernels/peak_body.h"
#include "kernels/vector_body.h"

#if !defined(DPBUSD)
#error "compile this file with -mavx512vl -mavx512vnni"
#endif

const Kernels kernels_evex_vnni = {
    .name = "avx-vnni as EVEX",
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
