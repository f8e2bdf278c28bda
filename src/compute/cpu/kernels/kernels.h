/* kernels.h - the arithmetic of a forward: one table of function pointers, chosen once at run time.
 *
 * The numeric contract. Every function here fixes the exact sequence of IEEE-754 single-precision operations for each
 * output element; ref.c and ref_matmul.c are that specification in plain C. An output element depends on its own
 * inputs and the inner dimension only: never on the number of rows, on tile edges, on the part of the outputs that a
 * call computes, or on other inputs of the call. All tables give the same bits; for BF16 that is the arithmetic of
 * vdpbf16ps, which ref_matmul.c spells out. Fused multiply-adds are explicit (fmaf or intrinsic); contraction by the
 * compiler is off.
 *
 * NaN and infinity. The operations are those of IEEE-754, so an output is NaN in all tables or in none; the bits of a
 * NaN that an operation makes are unspecified. Where numbers are converted, every bit of the result is defined: a block
 * of activations, or of a KV_Q8 row, that holds NaN or infinity becomes zeros with a scale of NaN, and exp_sum and
 * softmax set all numbers of a row to NaN (0x7fc00000) if one of them is NaN or the greatest is infinite.
 *
 * Reductions (norms, attention scores, softmax sums) use 16 running sums, element i going to sum i%16 in
 * ascending i, folded at the end as 16 -> 8 -> 4 -> 2 -> 1 by adding the upper half to the lower. Missing
 * elements of a last group of 16 are zeros.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/error.h"
#include "base/system.h"
#include "base/row_kernels.h"
#include "gguf/tensor_type.h"

enum {
    TILE_ROWS = 16,   /* output rows interleaved in one tile of a packed matrix */
    ACT_BLOCK = 32,   /* inputs that share one scale in quantised activations */
    KEYS_PACKED = 64, /* the most keys or values that attention converts at once for many rows */
};

/* The form of activations that a weight type is multiplied with. */
typedef enum ActForm {
    ACT_Q16,  /* block types: 16-bit integers with one float scale per 32; layout.h */
    ACT_Q8,   /* an option for block types: 8-bit integers; half the work, 200 times the rounding error */
    ACT_F32,  /* F32, F16 weights: floats, unchanged */
    ACT_BF16, /* BF16 weights: rounded to bfloat16 (nearest even), n_in padded to even with zero */
    ACT_FORM_COUNT,
} ActForm;

/* Returns the form for a weight type; block types use `blocks`, which is ACT_Q16 or ACT_Q8. */
ActForm act_form(TensorType weight_type, ActForm blocks);
const char *act_form_name(ActForm form);
/* Returns the bytes of one row of activations in that form, a multiple of 64. */
size_t act_row_bytes(ActForm form, int64_t n_in);
/* Returns the offset of input i, a multiple of ACT_BLOCK, in such a row. A row may be converted in pieces, each of
 * which but the last is a multiple of ACT_BLOCK, and has the same bits then. */
size_t act_offset(ActForm form, int64_t i);

/* Weights of y = W x, [n_out][n_in], repacked in tiles of TILE_ROWS output rows so that one load brings
 * the same inputs of 16 outputs. The layout of each type is drawn in pack.c; it is the same for all
 * tables. The last tile is padded with zero rows. */
typedef struct PackedMatrix {
    TensorType type;
    ActForm act; /* the form of the activations it is multiplied with */
    int64_t n_out, n_in;
    size_t tile_bytes; /* one tile: TILE_ROWS rows of n_in inputs */
    float scale;       /* a factor of the outputs, mostly 1; matmul ignores it, its caller multiplies */
    void *data;        /* [n_tiles][tile_bytes] */
} PackedMatrix;

static inline int64_t packed_n_tiles(const PackedMatrix *m) { return (m->n_out + TILE_ROWS - 1) / TILE_ROWS; }
static inline size_t packed_bytes(const PackedMatrix *m) { return (size_t)packed_n_tiles(m) * m->tile_bytes; }

/* Sets the shape, and data to NULL; for `blocks` see act_form. Fails if n_in is not whole blocks of the type, or if
 * the size overflows. The caller points data to packed_bytes bytes, which are whole cache lines and aligned to one. */
int packed_shape(PackedMatrix *m, TensorType type, ActForm blocks, int64_t n_out, int64_t n_in, fr_error *err);
/* Sets the shape and allocates data; packed_free frees it. */
int packed_init(PackedMatrix *m, TensorType type, ActForm blocks, int64_t n_out, int64_t n_in, fr_error *err);
/* Fills tiles [tile_begin, tile_end) from rows in the layout of the file ([n_out][row_bytes], unaligned). */
void packed_fill(PackedMatrix *m, const void *rows, int64_t tile_begin, int64_t tile_end);
void packed_free(PackedMatrix *m);
/* Writes inputs [k, k + n) of a row in the layout of the file, as packed_fill received them, except that subnormal
 * BF16 weights are zeros. k is a multiple of PACKED_READ, which is whole blocks of every type; n is one, too, unless
 * the row ends there. */
enum { PACKED_READ = 256 };
void packed_read_row(const PackedMatrix *m, int64_t row, int64_t k, int64_t n, void *out);

typedef struct Kernels {
    const char *name; /* "ref"; "avx2", "avx-vnni", "avx512", "avx512-bf16", "amx"; "neon", "neon-dot", "neon-i8mm" */

    /* Converts one row of activations to `form`. A block whose greatest magnitude is below 2^-100 becomes zeros. */
    void (*act_convert)(ActForm form, const float *x, int64_t n, void *out);

    /* y[r*y_stride + o] = sum_k W[o][k] * x[r][k] for r < n_rows and every output o of tiles
     * [tile_begin, tile_end). x: n_rows activation rows, act_row_bytes(w->act, n_in) apart. ref_matmul.c has the order
     * of operations of each type. */
    void (*matmul)(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride, int64_t tile_begin,
                   int64_t tile_end);

    /* y = x / sqrt(mean(x^2) + eps) * w, one row; y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, int64_t n, float eps);
    /* x += y */
    void (*add)(float *x, const float *y, int64_t n);
    /* gate = silu(gate) * up, silu(x) = x / (1 + exp(-x)) with the exp of ref.c */
    void (*silu_mul)(float *gate, const float *up, int64_t n);
    /* gate = gelu(gate) * up, gelu(x) = x / (1 + exp(-x (a + b x^2))) with a = 2 sqrt(2/pi), b = 0.044715 a */
    void (*gelu_mul)(float *gate, const float *up, int64_t n);
    /* x = x / (1 + exp(-gate)); NaN where the gate is NaN or infinite */
    void (*sigmoid_mul)(float *x, const float *gate, int64_t n);
    /* x = cap * tanh(x / cap), tanh(y) = 1 - 2 / (exp(2y) + 1); NaN where x is NaN or infinite */
    void (*soft_cap)(float *x, int64_t n, float cap);
    /* Rotates n_heads heads of head_dim in place over their first n_rot components; cos_sin holds
     * cos, sin pairs [n_rot/2][2] of this row's position. */
    void (*rope)(RopeStyle style, float *x, int64_t n_heads, int64_t head_dim, int64_t n_rot, const float *cos_sin);
    /* dst[i] = x[i] in the type of the cache, rounded to nearest even. Each block of KV_Q8 has d = amax/127 and
     * q = x * (127/amax), rounded to the nearest integer. */
    void (*kv_store)(KvType type, const float *x, int64_t n, void *dst);

    /* Attention of one row, one KV head and the n_q query heads that share it.
     * scores[h*score_stride + i] = scale * dot(q[h], K[slots[i]]) for i < n_keys;
     * q: [n_q][head_dim]; K of slot s starts at k + s*slot_bytes. The type is KV_F32 or KV_F16: the scores of a
     * cache of type KV_Q8 are those of scores.h. */
    void (*attn_scores)(KvType type, const float *q, int64_t n_q, int64_t head_dim, const void *k, size_t slot_bytes,
                        const int32_t *slots, int64_t n_keys, float scale, float *scores, int64_t score_stride);
    /* x[i] = exp(x[i] - *greatest) in place, or NaN (see above); sets *greatest to the greatest x[i], and returns the
     * sum. */
    float (*exp_sum)(float *x, int64_t n, float *greatest);
    /* x[i] = exp(x[i] - max) / sum, or NaN (see above), in place. */
    void (*softmax)(float *x, int64_t n);
    /* x = a x + b y: a product and then one fused multiply-add. */
    void (*scale_add)(float *x, float a, const float *y, float b, int64_t n);
    /* x = x / by */
    void (*divide_all)(float *x, int64_t n, float by);
    /* out[h][d] += sum_i w[h*w_stride + i] * V[slots[i]][d], one fused multiply-add per key in ascending
     * i, so that two calls over adjacent ranges equal one call over both. out: [n_q][head_dim]. */
    void (*attn_mix)(KvType type, const float *w, int64_t w_stride, int64_t n_q, int64_t head_dim, const void *v,
                     size_t slot_bytes, const int32_t *slots, int64_t n_keys, float *out);

    /* Attention of many rows that see the same keys, which are converted once for all rows. head_dim is a multiple
     * of 16, and 0 < n <= KEYS_PACKED. pack_keys: out[d*KEYS_PACKED + i] = K[slots[i]][d] for i < n, of type KV_F32
     * or KV_F16; the rest is unspecified. unpack_values: out[i*head_dim + d] = V[slots[i]][d], of any type. */
    void (*pack_keys)(KvType type, int64_t head_dim, const void *k, size_t slot_bytes, const int32_t *slots, int64_t n,
                      float *out);
    void (*unpack_values)(KvType type, int64_t head_dim, const void *v, size_t slot_bytes, const int32_t *slots,
                          int64_t n, float *out);
    /* scores[h][i] = scale * dot(q[h], key i) for i < n, with the bits of attn_scores. */
    void (*packed_scores)(const float *const *q, int64_t n_q, int64_t head_dim, const float *keys, int64_t n,
                          float scale, float *const *scores);
    /* out[h][d] += sum_i w[h][i] * value i, with the bits of attn_mix. */
    void (*mix_values)(const float *const *w, int64_t n_q, int64_t head_dim, const float *values, int64_t n,
                       float *const *out);

    /* The delta rule (model.h, DeltaNetSpec) of one head and position: S = decay * from [n][n], with a row for each
     * component of k; d = beta * (v - S' k); to = S + k d'; out = to' q. Each column is computed by itself; its sums
     * begin with zero and take one fused multiply-add for each row in ascending order, as does each element of to.
     * If q is NULL, out is not computed. from may be to. */
    void (*delta_rule)(const float *from, float *to, int64_t n, const float *k, const float *v, float decay, float beta,
                       const float *q, float *out);
    /* The update of Mamba-2 (model.h, Mamba2Spec): to = decay * from + k x' [n_k][n], with a row for each component
     * of k; out = to' q. The order of sums and the meaning of NULL are those of delta_rule. */
    void (*ssm_update)(const float *from, float *to, int64_t n_k, int64_t n, const float *k, const float *x,
                       float decay, const float *q, float *out);

    /* Runs n_rounds rounds of the multiply-and-add of matmul on registers, and returns the number of operations; a
     * multiplication and an addition count as two. */
    double (*peak_loop)(PeakKind kind, int64_t n_rounds);
    /* Reads [p, p + bytes) as fast as it can; bytes is a multiple of 256, and p is aligned to 64. The result means
     * nothing. */
    uint32_t (*read_loop)(const void *p, size_t bytes);

    /* Whether act_convert and matmul have activations of ACT_Q16 as words (layout.h). */
    bool acts_are_words;

    /* Passes over rows of logits, for the sampler. */
    const RowKernels *rows;

    /* The ways in which matmul reads weights (product_ways.h); NULL if the table has only one. */
    struct ReadChoice *reads;
    /* Whether matmul takes tiles of outputs in pairs (product_ways.h); NULL if the table has only one way. */
    struct PairChoice *pairs;
    /* Products by tile instructions (product_ways.h); NULL if the table has none. */
    const struct TileProducts *tiles;
} Kernels;

/* Measures the two limits of this machine with which the time of a forward is compared. Takes about half a
 * second; fails only where memory runs out. */
int machine_measure(const Kernels *kernels, int n_threads, MachineSpeed *out, fr_error *err);

/* Returns the named table, or the best one that this CPU can run if the name is NULL or "auto". Returns NULL if the
 * name is unknown or the CPU lacks the instructions. The first call for a table measures its ways (product_ways.h),
 * some ten milliseconds. */
const Kernels *kernels_select(const char *name);
/* As kernels_select, with an error that lists the available tables. */
int kernels_find(const char *name, const Kernels **out, fr_error *err);
/* Returns all tables that this CPU can run, from "ref" upwards, and their number in *n. For tests and `perf`. */
const Kernels *const *kernels_available(int *n);

#endif
