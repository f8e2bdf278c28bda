/* table_body.h - the table of an instruction set. Included once by its file, after the header of its vectors, with
 * TABLE (the variable, declared in tables.h), TABLE_NAME and TABLE_ROWS (its RowKernels) defined. */
#include "compute/cpu/kernels/matmul_body.h"
#include "compute/cpu/kernels/peak_body.h"
#include "compute/cpu/kernels/vector_body.h"

#include "compute/cpu/kernels/attention_body.h"

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
    .softmax = softmax,
    .attn_mix = attn_mix,
    .pack_keys = pack_keys,
    .unpack_values = unpack_values,
    .packed_scores = packed_scores,
    .mix_values = mix_values,
    .delta_rule = delta_rule,
    .ssm_update = ssm_update,
    .peak_loop = peak_loop,
    .read_loop = read_loop,
    .rows = &TABLE_ROWS,
};
