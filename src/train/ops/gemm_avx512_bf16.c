/* gemm_avx512_bf16.c - products of BF16 with AVX-512.
 *
 * The problem. vdpbf16ps does 64 operations; to run at full rate, it needs its operands in registers and in the
 * first-level cache. The matrices of training come in three orders (x W^T, dy W, dy^T x), in float, and are large.
 *
 * The idea (Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication, ACM TOMS 34, 2008): cut, pack, and
 * keep each part in the cache that fits it.
 *
 *     A, ROWS x DEPTH     packed once per block, 256 KB: second-level cache
 *     B, DEPTH x 32       packed when its turn comes, 16 KB: first-level cache
 *     C, 8 x 32           16 accumulators in registers
 *
 * Both operands are packed alike, in panels of 16 outputs:
 *
 *     panel[pair l][output 0..15] = (x[output][2l], x[output][2l+1])        a dword of two BF16
 *
 * A line of a B panel feeds all lanes of one vdpbf16ps; of an A panel, one dword at a time is broadcast to all lanes.
 * Packing rounds to BF16 and rearranges in one of two ways: where inputs are adjacent in memory, 16 x 16 dwords are
 * transposed; where outputs are adjacent, two rows at a time are interleaved. Numbers beyond the edge of a matrix are
 * packed as zeros, so the inner loop has no edge cases; masks keep loads and stores inside the matrices.
 *
 * Cost. For each pair, 16 vdpbf16ps with 2 loads and 8 broadcasts. Packing costs a quarter of a cycle for each number
 * of B, once for ROWS rows of A: with 512 rows, 16 cycles of arithmetic follow for each number, which is why packed
 * weights are not kept. The kernel loses where m or n is small, because it always computes 8 x 32 outputs. Memory: the
 * panels are on the stack, some 270 KB.
 *
 * Proof: tests/train/test_gemm.c, the same bits as gemm_bf16.c on shapes around every edge.
 */
#if defined(__x86_64__)
#include "train/ops/gemm_bf16.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

enum {
    LANES = 16, /* outputs of a panel */
    ROWS = 512, /* of A in a block */
    TILE_ROWS = 8,
    TILE_PANELS = 2,
    TILE_COLUMNS = TILE_PANELS * LANES,
    DEPTH = BF16_DEPTH,
    PANEL = DEPTH * LANES + 2 * LANES, /* numbers of a full panel, and one line of padding, so that the same offset in
                                          neighbouring panels maps to different cache sets */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

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
                        __mmask16 high) {
    __m512i row[LANES];
    UNROLL for (int i = 0; i < LANES; i++, x += stride) {
        __asm__("" : "+r"(x)); /* keep one pointer that walks down the rows; compilers would keep sixteen */
        bool exists = i < n_outputs;
        __m512 a = _mm512_maskz_loadu_ps(exists ? low : 0, x), b = _mm512_maskz_loadu_ps(exists ? high : 0, x + LANES);
        row[i] = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    }
    transpose(row);
    UNROLL for (int i = 0; i < LANES; i++) _mm512_store_si512(panel + i * 2 * LANES, row[i]);
}

/* One panel of x: [n_outputs][stride], n_inputs of each row. A panel has room for whole blocks of 32 inputs. */
static void pack_adjacent_inputs(uint16_t *panel, const float *x, int64_t stride, int64_t n_outputs, int64_t n_inputs) {
    int64_t at = 0;
    if (n_outputs >= LANES)
        for (; at + 2 * LANES <= n_inputs; at += 2 * LANES)
            pack_square(panel + at * LANES, x + at, stride, LANES, 0xffff, 0xffff);
    for (; at < n_inputs; at += 2 * LANES)
        pack_square(panel + at * LANES, x + at, stride, n_outputs, first_lanes(n_inputs - at),
                    first_lanes(n_inputs - at - LANES));
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

/* `n_panels` panels: n_outputs outputs from `output` on, n_inputs inputs from `first` on. */
static void pack(uint16_t *panels, const Bf16Operand *x, int64_t output, int64_t n_outputs, int64_t n_panels,
                 int64_t first, int64_t n_inputs) {
    if (!x->inputs_adjacent)
        pack_adjacent_outputs(panels, x->at + first * x->stride + output, x->stride, n_outputs, n_panels, n_inputs);
    for (int64_t i = 0; x->inputs_adjacent && i < n_panels; i++)
        pack_adjacent_inputs(panels + i * PANEL, x->at + (output + i * LANES) * x->stride + first, x->stride,
                             n_outputs - i * LANES, n_inputs);
}

/* Prefetches what `pack` will read next. */
static void prefetch(const Bf16Operand *x, int64_t output, int64_t n_outputs, int64_t first, int64_t n_inputs) {
    int64_t row = x->inputs_adjacent ? output : first, at = x->inputs_adjacent ? first : output;
    int64_t n_rows = x->inputs_adjacent ? n_outputs : n_inputs, n = x->inputs_adjacent ? n_inputs : n_outputs;
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t k = 0; k < n; k += 16)
            _mm_prefetch((const char *)(x->at + (row + i) * x->stride + at + k), _MM_HINT_T1);
}

/* ---- the tile ---------------------------------------------------------------------------------------- */

/* c: the tile's first output; n_rows x n_columns of the tile lie inside the matrix. a: the tile's first row in its
 * panel; b: two panels */
static void multiply_tile(const uint16_t *a, const uint16_t *b, int64_t n_pairs, float alpha, bool accumulate, float *c,
                          int64_t c_stride, int64_t n_rows, int64_t n_columns) {
    for (int64_t r = 0; r < least(n_rows, TILE_ROWS); r++)
        for (int64_t v = 0; v < n_columns; v += LANES) _mm_prefetch((const char *)(c + r * c_stride + v), _MM_HINT_T0);
    __m512 acc[TILE_ROWS][TILE_PANELS];
    UNROLL for (int r = 0; r < TILE_ROWS; r++) UNROLL for (int v = 0; v < TILE_PANELS; v++)
        acc[r][v] = _mm512_setzero_ps();
    for (int64_t l = 0; l < n_pairs; l++, a += 2 * LANES, b += 2 * LANES) {
        __m512i column[TILE_PANELS];
        UNROLL for (int v = 0; v < TILE_PANELS; v++) column[v] = _mm512_load_si512(b + v * PANEL);
        UNROLL for (int r = 0; r < TILE_ROWS; r++) {
            int32_t pair;
            __builtin_memcpy(&pair, a + 2 * r, sizeof pair);
            __m512i row = _mm512_set1_epi32(pair);
            UNROLL for (int v = 0; v < TILE_PANELS; v++)
                acc[r][v] = _mm512_dpbf16_ps(acc[r][v], (__m512bh)row, (__m512bh)column[v]);
        }
    }
    __m512 factor = _mm512_set1_ps(alpha);
    UNROLL for (int r = 0; r < TILE_ROWS; r++) UNROLL for (int v = 0; v < TILE_PANELS; v++) {
        float *to = c + r * c_stride + v * LANES;
        __mmask16 there = r < n_rows ? first_lanes(n_columns - v * LANES) : 0;
        __m512 value = _mm512_mul_ps(acc[r][v], factor);
        if (accumulate) value = _mm512_add_ps(_mm512_maskz_loadu_ps(there, to), value);
        _mm512_mask_storeu_ps(to, there, value);
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------ */

/* Rows i .. i + n_rows - 1 and inputs first .. first + n_inputs - 1. */
static void multiply_block(const Bf16Product *p, int64_t i, int64_t n_rows, int64_t first, int64_t n_inputs) {
    _Alignas(64) uint16_t a[ROWS / LANES * PANEL], b[TILE_PANELS * PANEL];
    int64_t n_pairs = (n_inputs + 1) / 2;
    bool accumulate = p->accumulate || first > 0;
    pack(a, &p->a, i, n_rows, (n_rows + LANES - 1) / LANES, first, n_inputs);
    for (int64_t j = 0; j < p->n; j += TILE_COLUMNS) {
        int64_t n_columns = least(p->n - j, TILE_COLUMNS);
        pack(b, &p->b, j, n_columns, TILE_PANELS, first, n_inputs);
        prefetch(&p->b, j + TILE_COLUMNS, least(p->n - j - TILE_COLUMNS, TILE_COLUMNS), first, n_inputs);
        for (int64_t r = 0; r < n_rows; r += TILE_ROWS)
            multiply_tile(a + r / LANES * PANEL + r % LANES * 2, b, n_pairs, p->alpha, accumulate,
                          p->c + (i + r) * p->c_stride + j, p->c_stride, n_rows - r, n_columns);
    }
}

void gemm_bf16_avx512(const Bf16Product *p) {
    for (int64_t i = 0; i < p->m; i += ROWS)
        for (int64_t first = 0; first < p->k; first += DEPTH)
            multiply_block(p, i, least(p->m - i, ROWS), first, least(p->k - first, DEPTH));
}
#endif
