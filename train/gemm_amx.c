/* gemm_amx.c - the precision "bf16-tiles" by tile instructions; gemm.h has its arithmetic.
 *
 * The blocks are those of gemm_avx512_bf16.c, and so are the panels of B: 16 lines of one are a right-hand tile as they
 * lie. The panels of A are packed output by output, so that 16 lines are a left-hand tile.
 *
 *     C0 C1     16 x 16 floats each: 32 x 32 outputs at once
 *     C2 C3
 *     A0 A1     16 outputs x 16 pairs; each is loaded once for two products, and so are
 *     B0 B1     16 pairs x 16 outputs
 *
 * A block of 256 inputs is eight such steps, 32 products for 32 loads; then the results go through memory to vectors,
 * which multiply by alpha and add. Registers are configured for a product of matrices and released at its end.
 *
 * Only this file is compiled for AMX (Makefile); with a compiler that does not know AMX it calls plain C.
 * tests/support/plain_gemm_tiles.c includes this file with TILE_GEMM, the function's name, and its own tiles defined.
 *
 * Proof: tests/train/test_gemm.c, the bits of gemm_bf16_tiles_plain by tiles in plain C. Its speed has not been
 * measured. */
#if defined(__x86_64__)
#include "train/gemm.h"

#if !defined(TILE_GEMM) && (defined(__AMX_BF16__) || defined(__AMXBF16__)) /* GCC, Clang */
#include "base/tiles_amx.h"
#define TILE_GEMM gemm_bf16_tiles_amx
#endif

#if !defined(TILE_GEMM)
void gemm_bf16_tiles_amx(const Bf16Product *p) { gemm_bf16_tiles_plain(p); }
#else
#define WHOLE_SQUARES true
#include "train/gemm_panels.h"

#include "base/system.h"

enum { SIDE = TILE_MAX_ROWS, SQUARE = SIDE * 2 * LANES /* numbers of BF16 */ };
_Static_assert((int)SIDE == (int)LANES, "a tile has the outputs of a panel");

static void configure_tiles(void) {
    TileConfig c = {.palette = 1};
    for (int t = 0; t < TILE_REGISTERS; t++) c.rows[t] = TILE_MAX_ROWS, c.row_bytes[t] = TILE_MAX_BYTES;
    TILE_CONFIGURE(&c);
}

/* c[row panel][column panel] = two panels of a times two of b. */
static void multiply_panels(const uint16_t *a, const uint16_t *b, int64_t n_inputs, float c[2][2][SIDE][SIDE]) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t at = 0; at < n_inputs; at += 2 * SIDE, a += SQUARE, b += SQUARE) {
        TILE_LOAD(4, a, TILE_MAX_BYTES);
        TILE_LOAD(6, b, TILE_MAX_BYTES);
        TILE_LOAD(7, b + PANEL, TILE_MAX_BYTES);
        TILE_DOT_BF16(0, 4, 6);
        TILE_DOT_BF16(1, 4, 7);
        TILE_LOAD(5, a + PANEL, TILE_MAX_BYTES);
        TILE_DOT_BF16(2, 5, 6);
        TILE_DOT_BF16(3, 5, 7);
    }
    TILE_STORE(0, c[0][0], TILE_MAX_BYTES);
    TILE_STORE(1, c[0][1], TILE_MAX_BYTES);
    TILE_STORE(2, c[1][0], TILE_MAX_BYTES);
    TILE_STORE(3, c[1][1], TILE_MAX_BYTES);
}

/* y: the first of n_rows x n_columns outputs that exist; more than two panels have are left out. */
static void add_panels(float c[2][2][SIDE][SIDE], float alpha, bool accumulate, float *y, int64_t y_stride,
                       int64_t n_rows, int64_t n_columns) {
    __m512 factor = _mm512_set1_ps(alpha);
    for (int64_t r = 0; r < min_i64(n_rows, 2 * SIDE); r++)
        for (int v = 0; v < TILE_PANELS; v++) {
            float *to = y + r * y_stride + v * LANES;
            __mmask16 there = first_lanes(n_columns - v * LANES);
            __m512 value = _mm512_mul_ps(_mm512_load_ps(c[r / SIDE][v][r % SIDE]), factor);
            if (accumulate) value = _mm512_add_ps(_mm512_maskz_loadu_ps(there, to), value);
            _mm512_mask_storeu_ps(to, there, value);
        }
}

/* Rows i .. i + n_rows - 1 and inputs first .. first + n_inputs - 1. */
static void multiply_block(const Bf16Product *p, int64_t i, int64_t n_rows, int64_t first, int64_t n_inputs) {
    _Alignas(64) uint16_t a[ROWS / LANES * PANEL], b[TILE_PANELS * PANEL];
    _Alignas(64) float c[2][2][SIDE][SIDE];
    bool accumulate = p->accumulate || first > 0;
    pack(a, &p->a, i, n_rows, (n_rows + 2 * LANES - 1) / (2 * LANES) * 2, first, n_inputs, OUTPUT_BY_OUTPUT);
    for (int64_t j = 0; j < p->n; j += TILE_COLUMNS) {
        int64_t n_columns = min_i64(p->n - j, TILE_COLUMNS);
        pack(b, &p->b, j, n_columns, TILE_PANELS, first, n_inputs, PAIR_BY_PAIR);
        prefetch(&p->b, j + TILE_COLUMNS, min_i64(p->n - j - TILE_COLUMNS, TILE_COLUMNS), first, n_inputs);
        for (int64_t r = 0; r < n_rows; r += 2 * SIDE) {
            multiply_panels(a + r / LANES * PANEL, b, n_inputs, c);
            add_panels(c, p->alpha, accumulate, p->c + (i + r) * p->c_stride + j, p->c_stride, n_rows - r, n_columns);
        }
    }
}

void TILE_GEMM(const Bf16Product *p) {
    configure_tiles();
    for (int64_t i = 0; i < p->m; i += ROWS)
        for (int64_t first = 0; first < p->k; first += DEPTH)
            multiply_block(p, i, min_i64(p->m - i, ROWS), first, min_i64(p->k - first, DEPTH));
    TILE_RELEASE();
}
#endif
#endif
