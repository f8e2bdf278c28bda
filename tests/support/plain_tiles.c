/* plain_tiles.c - tiles in plain C, after the pseudocode of LDTILECFG, TILELOADD, TILESTORED, TDPBSSD and TDPBSUD in
 * Intel's manual, and the code of table "amx" compiled over them: its bits are tested wherever AVX-512 is at hand. */
#include "plain_tiles.h"

#if defined(__x86_64__)
#include "kernels/simd_avx512.h"
#include "kernels/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Tile {
    int n_rows, n_bytes;
    unsigned char row[TILE_MAX_ROWS][TILE_MAX_BYTES];
    bool is_set; /* was anything put into it since the configuration? The CPU has zeros then, but no code should rely on it */
} Tile;

static _Thread_local struct {
    bool is_configured;
    Tile tile[TILE_REGISTERS];
} state;

void (*plain_tiles_on_fault)(const char *what);
TileCounts plain_tiles_counts;
bool plain_tiles_are_wrong;

static void count(int64_t *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

static void check(bool holds, const char *what) {
    if (holds) return;
    if (plain_tiles_on_fault) plain_tiles_on_fault(what);
    fprintf(stderr, "tiles: %s\n", what);
    abort();
}

void plain_tile_configure(const TileConfig *c) {
    check(c->palette == 1, "the palette is not 1");
    check(c->start_row == 0, "the first row is not 0");
    for (int i = 0; i < 14; i++) check(c->reserved[i] == 0, "a reserved byte is set");
    for (int t = 0; t < 16; t++) {
        bool is_used = c->rows[t] || c->row_bytes[t];
        check(t < TILE_REGISTERS || !is_used, "a register is configured that does not exist");
        check(c->rows[t] <= TILE_MAX_ROWS, "a register has more than 16 rows");
        check(c->row_bytes[t] <= TILE_MAX_BYTES, "a register has rows of more than 64 bytes");
        check(!c->rows[t] == !c->row_bytes[t], "a register has rows without bytes or bytes without rows");
        check(c->row_bytes[t] % 4 == 0, "a row is not whole groups of four bytes");
    }
    memset(&state, 0, sizeof state);
    state.is_configured = true;
    for (int t = 0; t < TILE_REGISTERS; t++) {
        state.tile[t].n_rows = c->rows[t];
        state.tile[t].n_bytes = c->row_bytes[t];
    }
    count(&plain_tiles_counts.n_configured);
}

void plain_tile_release(void) {
    check(state.is_configured, "registers are released that are not configured");
    memset(&state, 0, sizeof state);
    count(&plain_tiles_counts.n_released);
}

static Tile *configured(int t) {
    check(state.is_configured, "a register is used before the configuration");
    check(t >= 0 && t < TILE_REGISTERS, "a register is used that does not exist");
    check(state.tile[t].n_rows > 0, "a register is used that has no shape");
    return &state.tile[t];
}

static Tile *filled(int t) {
    Tile *tile = configured(t);
    check(tile->is_set, "a register is used before anything was put into it");
    return tile;
}

void plain_tile_zero(int t) {
    Tile *tile = configured(t);
    memset(tile->row, 0, sizeof tile->row);
    tile->is_set = true;
}

void plain_tile_load(int t, const void *p, size_t stride) {
    Tile *tile = configured(t);
    check(stride >= (size_t)tile->n_bytes, "rows in memory overlap");
    memset(tile->row, 0, sizeof tile->row);
    for (int r = 0; r < tile->n_rows; r++)
        memcpy(tile->row[r], (const unsigned char *)p + (size_t)r * stride, (size_t)tile->n_bytes);
    tile->is_set = true;
}

void plain_tile_store(int t, void *p, size_t stride) {
    const Tile *tile = filled(t);
    check(stride >= (size_t)tile->n_bytes, "rows in memory overlap");
    for (int r = 0; r < tile->n_rows; r++)
        memcpy((unsigned char *)p + (size_t)r * stride, tile->row[r], (size_t)tile->n_bytes);
}

static void dot_row(int32_t *c, int n_columns, const unsigned char *a, int n_bytes, const Tile *b, bool b_is_signed) {
    for (int k = 0; k < n_bytes; k++)
        for (int n = 0; n < n_columns; n++) {
            unsigned char code = b->row[k / 4][n * 4 + k % 4];
            c[n] += (int8_t)a[k] * (b_is_signed ? (int8_t)code : code);
        }
}

void plain_tile_dot(int c, int a, int b, bool b_is_signed) {
    Tile *sum = filled(c), *left = filled(a), *right = filled(b);
    check(c != a && c != b && a != b, "a register is named twice");
    check(sum->n_rows == left->n_rows, "result and left side have different numbers of rows");
    check(sum->n_bytes == right->n_bytes, "result and right side have different numbers of columns");
    check(left->n_bytes == 4 * right->n_rows, "left and right side have different numbers of inputs");
    for (int r = 0; r < sum->n_rows; r++) {
        int32_t row[TILE_MAX_BYTES / 4];
        memcpy(row, sum->row[r], sizeof row);
        dot_row(row, sum->n_bytes / 4, left->row[r], left->n_bytes - plain_tiles_are_wrong, right, b_is_signed);
        memcpy(sum->row[r], row, sizeof row);
    }
    count(&plain_tiles_counts.n_products);
}

#define TABLE kernels_plain_tiles
#define TABLE_NAME "amx over plain tiles"
#define TABLE_ROWS row_kernels_avx512
#define TABLE_HAS_TILES
#include "kernels/table_body.h"
#endif
