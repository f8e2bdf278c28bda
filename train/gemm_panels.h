/* gemm_panels.h - how the operands of a BF16 product are cut into blocks and packed, for the kernels of gemm.h;
 * included once by each, with WHOLE_SQUARES defined: whether panels are filled with zeros to whole squares of 32
 * inputs.
 *
 * Both operands are packed in panels of 16 outputs:
 *
 *     panel[pair l][output 0..15] = (x[output][2l], x[output][2l+1])        a dword of two BF16
 *
 * or, as the left side of a tile product is loaded, with each square of 16 outputs and 16 pairs turned:
 *
 *     panel[square][output 0..15][pair 0..15]
 *
 * Packing rounds to BF16 and rearranges in one of two ways: where inputs are adjacent in memory, 16 x 16 dwords are
 * transposed; where outputs are adjacent, two rows at a time are interleaved. Numbers beyond the edge of a matrix are
 * packed as zeros, so the inner loop has no edge cases; masks keep loads and stores inside the matrices. */
#include "base/mem.h"
#include "train/gemm.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

enum {
    LANES = 16,      /* outputs of a panel */
    ROWS = 512,      /* rows of A in a block */
    TILE_PANELS = 2, /* panels of B that are multiplied together */
    TILE_COLUMNS = TILE_PANELS * LANES,
    DEPTH = BF16_DEPTH,
    PANEL = DEPTH * LANES + 2 * LANES, /* numbers of a full panel, and one line of padding, so that the same offset in
                                          neighbouring panels maps to different cache sets */
};

/* A line of a panel holds one pair of inputs of 16 outputs, or the pairs of one output in a square of 32 inputs. */
typedef enum PanelOrder { PAIR_BY_PAIR, OUTPUT_BY_OUTPUT } PanelOrder;

static __mmask16 first_lanes(int64_t n) { return (__mmask16)(n >= LANES ? 0xffff : n <= 0 ? 0 : (1u << n) - 1); }

/* ---- packing ----------------------------------------------------------------------------------------- */

/* 16 x 16 dwords */
INLINE void transpose(__m512i x[16]) {
    __m512i y[16];
    UNROLL for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 8; i++) {
        x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    }
}

/* 32 inputs of up to 16 outputs; low and high mask the inputs that exist. */
INLINE void pack_square(uint16_t *panel, const float *x, int64_t stride, int64_t n_outputs, __mmask16 low,
                        __mmask16 high, PanelOrder order) {
    __m512i row[LANES];
    UNROLL for (int i = 0; i < LANES; i++, x += stride) {
        __asm__("" : "+r"(x)); /* keep one pointer that walks down the rows; compilers would keep sixteen */
        bool exists = i < n_outputs;
        __m512 a = _mm512_maskz_loadu_ps(exists ? low : 0, x), b = _mm512_maskz_loadu_ps(exists ? high : 0, x + LANES);
        row[i] = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    }
    if (order == PAIR_BY_PAIR) transpose(row);
    UNROLL for (int i = 0; i < LANES; i++) _mm512_store_si512(panel + i * 2 * LANES, row[i]);
}

/* One panel of x: [n_outputs][stride], n_inputs of each row. A panel has room for whole blocks of 32 inputs. */
INLINE void pack_adjacent_inputs(uint16_t *panel, const float *x, int64_t stride, int64_t n_outputs, int64_t n_inputs,
                                 PanelOrder order) {
    int64_t at = 0;
    if (n_outputs >= LANES)
        for (; at + 2 * LANES <= n_inputs; at += 2 * LANES)
            pack_square(panel + at * LANES, x + at, stride, LANES, 0xffff, 0xffff, order);
    for (; at < n_inputs; at += 2 * LANES)
        pack_square(panel + at * LANES, x + at, stride, n_outputs, first_lanes(n_inputs - at),
                    first_lanes(n_inputs - at - LANES), order);
}

/* Panels of x: [n_inputs][stride], n_outputs of each row. Reads row by row, so that memory is read in order. */
static void pack_adjacent_outputs(uint16_t *panels, const float *x, int64_t stride, int64_t n_outputs, int64_t n_panels,
                                  int64_t n_inputs) {
    static const _Alignas(64) uint16_t interleaved[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i order = _mm512_load_si512(interleaved);
    for (int64_t at = 0; at < n_inputs; at += 2, x += 2 * stride, panels += 2 * LANES)
        for (int64_t i = 0; i < n_panels; i++) {
            __mmask16 there = first_lanes(n_outputs - i * LANES), next = at + 1 < n_inputs ? there : 0;
            __m512 a = _mm512_maskz_loadu_ps(there, x + i * LANES),
                   b = _mm512_maskz_loadu_ps(next, x + stride + i * LANES);
            _mm512_store_si512(panels + i * PANEL, _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a)));
        }
}

/* Panels that pack_adjacent_outputs made, with zeros for missing inputs, output by output. */
static void turn_squares(uint16_t *panels, int64_t n_panels, int64_t n_inputs) {
    for (int64_t i = 0; i < n_panels; i++)
        for (int64_t at = 0; at < n_inputs; at += 2 * LANES) {
            uint16_t *square = panels + i * PANEL + at * LANES;
            __m512i row[LANES];
            UNROLL for (int r = 0; r < LANES; r++) row[r] = _mm512_load_si512(square + r * 2 * LANES);
            transpose(row);
            UNROLL for (int r = 0; r < LANES; r++) _mm512_store_si512(square + r * 2 * LANES, row[r]);
        }
}

/* Zeros for the inputs that are missing in the last square. */
static void fill_squares(uint16_t *panels, int64_t n_panels, int64_t n_inputs) {
    for (int64_t i = 0; i < n_panels; i++)
        for (int64_t at = (n_inputs + 1) / 2 * 2; at % (2 * LANES); at += 2)
            _mm512_store_si512(panels + i * PANEL + at * LANES, _mm512_setzero_si512());
}

/* `n_panels` panels: n_outputs outputs from `output` on, n_inputs inputs from `first` on. */
INLINE void pack(uint16_t *panels, const Bf16Operand *x, int64_t output, int64_t n_outputs, int64_t n_panels,
                 int64_t first, int64_t n_inputs, PanelOrder order) {
    if (x->inputs_adjacent) {
        for (int64_t i = 0; i < n_panels; i++)
            pack_adjacent_inputs(panels + i * PANEL, x->at + (output + i * LANES) * x->stride + first, x->stride,
                                 n_outputs - i * LANES, n_inputs, order);
        return;
    }
    pack_adjacent_outputs(panels, x->at + first * x->stride + output, x->stride, n_outputs, n_panels, n_inputs);
    if (WHOLE_SQUARES) fill_squares(panels, n_panels, n_inputs);
    if (order == OUTPUT_BY_OUTPUT) turn_squares(panels, n_panels, n_inputs);
}

/* Prefetches what `pack` will read next. */
static void prefetch(const Bf16Operand *x, int64_t output, int64_t n_outputs, int64_t first, int64_t n_inputs) {
    int64_t row = x->inputs_adjacent ? output : first, at = x->inputs_adjacent ? first : output;
    int64_t n_rows = x->inputs_adjacent ? n_outputs : n_inputs, n = x->inputs_adjacent ? n_inputs : n_outputs;
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t k = 0; k < n; k += 16)
            _mm_prefetch((const char *)(x->at + (row + i) * x->stride + at + k), _MM_HINT_T1);
}
