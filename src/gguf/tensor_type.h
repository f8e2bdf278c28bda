/* tensor_type.h - the element types of tensors in GGUF files: a table with one row for each, and what follows from it.
 *
 * A type is a row of one of the two lists below. The enumerators, the table of TensorTypeInfo, the declarations of the
 * functions that decode and encode a block (blocks_internal.h) and the functions of the kernels are all generated from
 * these lists; the second table, which says how a type is packed for the kernels, is checked against them
 * (compute/cpu/kernels/layout.h). So a type with a part missing does not compile.
 */
#ifndef GGUF_TENSOR_TYPE_H
#define GGUF_TENSOR_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the types ----------------------------------------------------------------------------------------------- */

/* The columns of a row:
 *
 *   NAME       the enumerator is TYPE_NAME, and NAME is how the type is written
 *   name       its functions are name_decode and name_encode (blocks_internal.h)
 *   id         its number in files
 *   n, bytes   elements and bytes of a block; the rows of a tensor are whole blocks
 *   search     the quantiser that searches for a good scale; NULL where a search gains nothing
 *   finite     the function of tensor_type.c that tells whether a block holds a NaN or an infinity
 *   at, at2    where the half-precision scale of a block is, in bytes, and where the second one is (at again if there
 *              is only one); unused where a type has no such scale */
/* clang-format off */
#define EACH_PLAIN_TYPE(X) \
    /*NAME     name      id    n  bytes  search           finite        at  at2 */ \
    X(F32,     f32,       0,   1,     4, NULL,            floats,        0,   0) \
    X(F16,     f16,       1,   1,     2, NULL,            f16,           0,   0) \
    X(BF16,    bf16,     30,   1,     2, NULL,            bf16,          0,   0)

#define EACH_BLOCK_TYPE(X) \
    X(Q8_0,    q8_0,      8,  32,    34, NULL,            halves,        0,   0) \
    X(Q4_0,    q4_0,      2,  32,    18, q4_0_search,     halves,        0,   0) \
    X(Q4_1,    q4_1,      3,  32,    20, q4_1_search,     halves,        0,   2) \
    X(Q5_0,    q5_0,      6,  32,    22, q5_0_search,     halves,        0,   0) \
    X(Q5_1,    q5_1,      7,  32,    24, q5_1_search,     halves,        0,   2) \
    X(Q4_K,    q4_k,     12, 256,   144, q4_k_search,     halves,        0,   2) \
    X(Q5_K,    q5_k,     13, 256,   176, q5_k_search,     halves,        0,   2) \
    X(Q6_K,    q6_k,     14, 256,   210, q6_k_search,     halves,      208, 208) \
    X(Q2_K,    q2_k,     10, 256,    84, q2_k_search,     halves,       80,  82) \
    X(Q3_K,    q3_k,     11, 256,   110, q3_k_search,     halves,      108, 108) \
    X(IQ4_NL,  iq4_nl,   20,  32,    18, iq4_nl_search,   halves,        0,   0) \
    X(IQ4_XS,  iq4_xs,   23, 256,   136, iq4_xs_search,   halves,        0,   0) \
    X(MXFP4,   mxfp4,    39,  32,    17, mxfp4_search,    exponents,     0,   0) \
    X(IQ2_XXS, iq2_xxs,  16, 256,    66, iq2_xxs_search,  halves,        0,   0) \
    X(IQ2_XS,  iq2_xs,   17, 256,    74, iq2_xs_search,   halves,        0,   0) \
    X(IQ2_S,   iq2_s,    22, 256,    82, iq2_s_search,    halves,        0,   0) \
    X(IQ3_XXS, iq3_xxs,  18, 256,    98, iq3_xxs_search,  halves,        0,   0) \
    X(IQ3_S,   iq3_s,    21, 256,   110, iq3_s_search,    halves,        0,   0) \
    X(IQ1_S,   iq1_s,    19, 256,    50, iq1_s_search,    halves,        0,   0) \
    X(IQ1_M,   iq1_m,    29, 256,    56, iq1_m_search,    spread_half,   0,   0) \
    X(NVFP4,   nvfp4,    40,  64,    36, nvfp4_search,    small_floats,  0,   0)
/* clang-format on */

#define EACH_TYPE(X) EACH_PLAIN_TYPE(X) EACH_BLOCK_TYPE(X)

/* The numbering is our own and has no gaps; tensor_type_from_gguf maps the numbers in files to it. */
#define TYPE_ENUMERATOR(NAME, ...) TYPE_##NAME,
typedef enum TensorType { EACH_TYPE(TYPE_ENUMERATOR) TYPE_COUNT } TensorType;
#undef TYPE_ENUMERATOR

typedef struct TensorTypeInfo {
    const char *name;     /* as it is usually written: "Q4_K" */
    uint32_t gguf_id;     /* the number in GGUF tensor infos */
    uint32_t block_n;     /* elements in a block */
    uint32_t block_bytes; /* bytes of a block */
    uint8_t half_at[2];   /* where the half-precision scales of a block are */
    /* One block: to floats, from floats by rounding to nearest, and from floats by a search that minimises the error
     * weighted by w (NULL: there is none). Bytes need no alignment. */
    void (*decode)(const uint8_t *src, float *dst);
    void (*encode)(const float *src, uint8_t *dst);
    void (*search)(const float *x, const float *w, uint8_t *dst);
    /* Whether all values of whole blocks are finite. */
    bool (*is_finite)(const struct TensorTypeInfo *info, const char *src, int64_t n);
} TensorTypeInfo;

const TensorTypeInfo *tensor_type_info(TensorType type);
bool tensor_type_from_gguf(uint32_t gguf_id, TensorType *out);
bool tensor_type_from_name(const char *name, TensorType *out); /* ignores case */

/* Computes bytes of a row of n elements; false where n is not a number of whole blocks, or the size overflows. */
bool tensor_type_row_bytes(TensorType type, int64_t n, size_t *out);

/* ---- blocks -------------------------------------------------------------------------------------------------- */

/* Converts n elements (whole blocks) of `type`. Neither side needs alignment. Dequantisation is exact and is the
 * definition against which every kernel is tested. The quantiser is for tools, tests and trained files: it rounds to
 * nearest and does not search for better scales, so published files may be a little better (quantize.h has the
 * search). */
void blocks_dequantize(TensorType type, const void *src, int64_t n, float *dst);
void blocks_quantize(TensorType type, const float *src, int64_t n, void *dst);

/* Returns whether none of n floats is NaN or infinite. */
bool finite_floats(const float *x, int64_t n);
/* The same for n elements (whole blocks) of any type: the values of a block are finite if its scales are. */
bool finite_weights(TensorType type, const void *src, int64_t n);

/* ---- 16-bit floats (float16.c) ------------------------------------------------------------------------------- */

/* IEEE half precision to single and back, exact in one direction and round-to-nearest-even in the other. */
float half_to_float(uint16_t h);
uint16_t float_to_half(float f);
/* The same for bfloat16; NaN stays NaN. */
float bf16_to_float(uint16_t h);
uint16_t float_to_bf16(float f);

/* The arithmetic of x86's vdpbf16ps in plain C: dot products of BF16 numbers, summed in a float. The instruction takes
 * its inputs in pairs and adds two products to an accumulator, the second of the pair first. The reference kernels and
 * the products of training (train/gemm.c) are both defined by these two functions. */

/* x rounded to the nearest BF16, ties to even; a subnormal x becomes a zero of its sign. */
uint16_t bf16_dot_operand(float x);
/* a * b + c with one rounding; a subnormal result becomes a zero of its sign. */
float bf16_dot_add(float a, float b, float c);

/* ---- choices of the numeric contract ------------------------------------------------------------------------- */

/* How keys and values are stored. KV_Q8 is the format of tensors of type Q8_0: 32 elements to a block of a
 * half-precision scale d and signed bytes q; the last block of a row is filled up with zeros. d * q is exact in a
 * float, so that the operations on values are the same for all types; scores of Q8 keys are integer products
 * (compute/cpu/kernels/scores.h). */
typedef enum KvType { KV_F16, KV_F32, KV_Q8, KV_TYPE_COUNT } KvType;
enum { KV_BLOCK = 32, KV_BLOCK_BYTES = 34 };
/* Returns bytes of n elements, the row of one slot. */
static inline size_t kv_row_bytes(KvType t, int64_t n) {
    return t == KV_Q8 ? (size_t)((n + KV_BLOCK - 1) / KV_BLOCK) * KV_BLOCK_BYTES : (size_t)n * (t == KV_F16 ? 2 : 4);
}
const char *kv_type_name(KvType t);

/* The number of bits to which the inputs of matrices of block types are rounded. The inputs of F32, F16 and BF16
 * matrices do not depend on it. */
typedef enum ActPrecision { ACT_PRECISION_Q16, ACT_PRECISION_Q8, ACT_PRECISION_COUNT } ActPrecision;
const char *act_precision_name(ActPrecision p);
/* Looks up "q16" (the default, also for NULL) or "q8"; false for any other name. */
bool act_precision_from_name(const char *name, ActPrecision *out);

/* The pairs of elements of a head that rotary position embeddings rotate together. */
typedef enum RopeStyle {
    ROPE_PAIRS,  /* x[2i] and x[2i+1], as in the architecture llama */
    ROPE_HALVES, /* x[i] and x[i + n/2], as in qwen2 and qwen3 ("neox") */
} RopeStyle;

#endif
