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
 * Both operands are packed in panels of 16 outputs (gemm_panels.h), pair by pair. A line of a B panel feeds all lanes
 * of one vdpbf16ps; the dwords of an A panel are broadcast to all lanes one at a time.
 *
 * Cost. Each pair takes 16 vdpbf16ps with 2 loads and 8 broadcasts. Packing costs a quarter of a cycle for each number
 * of B, once for ROWS rows of A: with 512 rows, 16 cycles of arithmetic follow for each number, which is why packed
 * weights are not kept. The kernel loses where m or n is small, because it always computes 8 x 32 outputs. Memory: the
 * panels are on the stack, some 270 KB.
 *
 * Proof: tests/train/test_gemm.c, the bits of gemm_bf16_plain on shapes around every edge.
 */
#if defined(__x86_64__)
#include "base/system.h"

#define WHOLE_SQUARES false
#include "train/gemm_panels.h"

#include <math.h>

enum { TILE_ROWS = 8 };

/* ---- the tile ---------------------------------------------------------------------------------------- */

/* c: the tile's first output; n_rows x n_columns of the tile lie inside the matrix. a: the tile's first row in its
 * panel; b: two panels */
static void multiply_tile(const uint16_t *a, const uint16_t *b, int64_t n_pairs, float alpha, bool accumulate, float *c,
                          int64_t c_stride, int64_t n_rows, int64_t n_columns) {
    for (int64_t r = 0; r < min_i64(n_rows, TILE_ROWS); r++)
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
    pack(a, &p->a, i, n_rows, (n_rows + LANES - 1) / LANES, first, n_inputs, PAIR_BY_PAIR);
    for (int64_t j = 0; j < p->n; j += TILE_COLUMNS) {
        int64_t n_columns = min_i64(p->n - j, TILE_COLUMNS);
        pack(b, &p->b, j, n_columns, TILE_PANELS, first, n_inputs, PAIR_BY_PAIR);
        prefetch(&p->b, j + TILE_COLUMNS, min_i64(p->n - j - TILE_COLUMNS, TILE_COLUMNS), first, n_inputs);
        for (int64_t r = 0; r < n_rows; r += TILE_ROWS)
            multiply_tile(a + r / LANES * PANEL + r % LANES * 2, b, n_pairs, p->alpha, accumulate,
                          p->c + (i + r) * p->c_stride + j, p->c_stride, n_rows - r, n_columns);
    }
}

void gemm_bf16_avx512(const Bf16Product *p) {
    for (int64_t i = 0; i < p->m; i += ROWS)
        for (int64_t first = 0; first < p->k; first += DEPTH)
            multiply_block(p, i, min_i64(p->m - i, ROWS), first, min_i64(p->k - first, DEPTH));
}

/* ---- is it worth it? --------------------------------------------------------------------------------- */

enum { CHAINS = 12, ROUNDS = 4000, RUNS = 200 };

/* Returns seconds of ROUNDS rounds of as many chains as hide the latency. */
static double chains_s(bool is_bf16) {
    __m512 acc[CHAINS];
    volatile float sink;
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_setzero_ps();
    double start = clock_s();
    for (int k = 0; k < ROUNDS; k++) UNROLL for (int i = 0; i < CHAINS; i++) {
            __asm__ volatile("" : "+v"(acc[i])); /* compilers would compute equal chains once */
            if (is_bf16) acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)acc[i], (__m512bh)acc[i]);
            else acc[i] = _mm512_fmadd_ps(acc[i], acc[i], acc[i]);
        }
    double s = clock_s() - start;
    UNROLL for (int i = 0; i < CHAINS; i++) sink = _mm512_cvtss_f32(acc[i]);
    (void)sink;
    return s;
}

/* An instruction on BF16 does twice the operations of one on floats. It takes as long on Zen 4, and four times as long
 * or more on Sapphire Rapids; the bound lies between, and the runs of the two alternate, so that what else the machine
 * does cannot make two runs of the program choose differently. */
bool gemm_bf16_is_faster(void) {
    double floats_s = 1, bf16_s = 1; /* the best of the runs */
    for (int run = 0; run < RUNS; run++) {
        floats_s = fmin(floats_s, chains_s(false));
        bf16_s = fmin(bf16_s, chains_s(true));
    }
    return bf16_s < 1.5 * floats_s;
}
#endif
