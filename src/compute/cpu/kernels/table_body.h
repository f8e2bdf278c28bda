/* table_body.h - the table of an instruction set. It is included once by each kernels_*.c, after the header of its
 * vectors, with TABLE (the variable, declared in tables.h), TABLE_NAME and TABLE_ROWS (its RowKernels) defined. */
#include "compute/cpu/kernels/matmul_body.h"
#include "compute/cpu/kernels/vector_body.h"

#include "compute/cpu/kernels/attention_body.h"

/* ---- loops that do nothing but what a kernel could do at best; machine.c times them ------------------------------ */

/* Runs enough independent chains of an operation of the passes to hide its latency. */
static double peak_loop(PeakKind kind, int64_t n_rounds) {
    enum { N = LANES == 16 ? 12 : 8 };
    /* These are small positive numbers, as bytes and as floats. They are read again for each chain, because the
     * compiler would compute two chains only once if it could prove them equal. */
    volatile int32_t source = 0x01020304;
    volatile float sink;
    Vi w[4], t[N];
    Vf f[N];
    int8_t q[16] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8};
    UNROLL for (int j = 0; j < 4; j++) w[j] = v_set_int(source);
    UNROLL for (int j = 0; j < N; j++) {
        t[j] = v_set_int(source);
        f[j] = v_from_int(v_set_int(source));
    }
    for (int64_t i = 0; i < n_rounds; i++) {
        __asm__ volatile(""
                         :
                         : "r"(q)
                         : "memory"); /* q may have changed, so that nothing can be moved out of the loop */
        UNROLL for (int j = 0; j < N; j++) {
            if (kind == PEAK_INT8) v_dot_4_groups(15, 1, w, (const int8_t *const[]){q}, 0, t + j);
            else if (kind == PEAK_INT16)
                UNROLL for (int g = 0; g < 4; g++) t[j] = v_dot_words(t[j], w[g], v_set_4_bytes(q + 4 * g));
            else if (kind == PEAK_BF16) f[j] = v_dot_bf16_pair(w[0], w[1], f[j]);
            else f[j] = v_fma(v_as_float(w[0]), v_as_float(w[1]), f[j]);
        }
    }
    UNROLL for (int j = 0; j < N; j++) sink = v_fold(v_add(f[j], v_from_int(t[j])));
    (void)sink;
    static const double per_lane[] =
        {[PEAK_INT8] = 4 * 4 * 2, [PEAK_INT16] = 4 * 2 * 2, [PEAK_BF16] = 2 * 2, [PEAK_F32] = 2};
    return (double)n_rounds * N * LANES * per_lane[kind];
}

static uint32_t read_loop(const void *p, size_t bytes) {
    const unsigned char *b = p;
    Vi any[4];
    UNROLL for (int j = 0; j < 4; j++) any[j] = v_set_int(0);
    for (size_t i = 0; i < bytes; i += 4 * sizeof(Vi))
        UNROLL for (size_t j = 0; j < 4; j++) any[j] = v_or(any[j], v_load_int(b + i + j * sizeof(Vi)));
    return (uint32_t)v_sum_int(v_or(v_or(any[0], any[1]), v_or(any[2], any[3])));
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

const Kernels TABLE = {
    .name = TABLE_NAME,
    .act_convert = act_convert,
    .matmul = matmul,
    .rmsnorm = rmsnorm,
    .add = add,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .sigmoid_mul = sigmoid_mul,
    .soft_cap = soft_cap,
    .rope = rope,
    .kv_store = kv_store,
    .attn_scores = attn_scores,
    .exp_sum = exp_sum,
    .softmax = softmax,
    .scale_add = scale_add,
    .divide_all = divide_all,
    .attn_mix = attn_mix,
    .pack_keys = pack_keys,
    .unpack_values = unpack_values,
    .packed_scores = packed_scores,
    .mix_values = mix_values,
    .delta_rule = delta_rule,
    .ssm_update = ssm_update,
    .peak_loop = peak_loop,
    .read_loop = read_loop,
#if defined(ACTS_ARE_WORDS)
    .acts_are_words = true,
#endif
    .rows = &TABLE_ROWS,
    .reads = &read_choice,
#if defined(TILES_IN_PAIRS)
    .pairs = &pair_choice,
#endif
};
