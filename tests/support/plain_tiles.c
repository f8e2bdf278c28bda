/* plain_tiles.c - tiles in plain C, after the pseudocode of LDTILECFG, TILELOADD, TILESTORED, TDPBSSD and TDPBF16PS in
 * Intel's manual, and the code of table "amx" compiled over them: its bits are tested on every CPU with AVX-512. */
#include "plain_tiles.h"

#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx512.h"

#include "gguf/tensor_type.h"
#include "compute/cpu/kernels/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Tile {
    int n_rows, n_bytes;
    unsigned char row[TILE_MAX_ROWS][TILE_MAX_BYTES];
    bool is_set; /* was anything put into it since the configuration? The CPU has zeros then, but no code should rely on
                  * it */
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
        check(c->row_bytes[t] % 4 == 0, "a row does not consist of whole groups of four bytes");
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
    count(&plain_tiles_counts.n_loads);
}

void plain_tile_store(int t, void *p, size_t stride) {
    const Tile *tile = filled(t);
    check(stride >= (size_t)tile->n_bytes, "rows in memory overlap");
    for (int r = 0; r < tile->n_rows; r++)
        memcpy((unsigned char *)p + (size_t)r * stride, tile->row[r], (size_t)tile->n_bytes);
}

/* A row of a register as 16 integers, with the operators of C on all of them at once; modulo 2^32, so that sanitizers
 * do not check each of them. */
typedef uint32_t Words __attribute__((vector_size(TILE_MAX_BYTES)));

/* c[n] += the sum of a[k] * b[k / 4][4 n + k % 4] over k < n_bytes. */
static void dot_row(unsigned char *c, const unsigned char *a, int n_bytes, const Tile *b) {
    Words sum, words = {0};
    memcpy(&sum, c, sizeof sum);
    for (int k = 0; k < n_bytes; k++, words >>= 8) {
        if (k % 4 == 0) memcpy(&words, b->row[k / 4], sizeof words);
        sum += (((words & 0xff) ^ 0x80) - 0x80) * (uint32_t)(int8_t)a[k];
    }
    memcpy(c, &sum, sizeof sum);
}

static void check_product(int c, int a, int b) {
    const Tile *sum = filled(c), *left = filled(a), *right = filled(b);
    check(c != a && c != b && a != b, "a register is named twice");
    check(sum->n_rows == left->n_rows, "result and left side have different numbers of rows");
    check(sum->n_bytes == right->n_bytes, "result and right side have different numbers of columns");
    check(left->n_bytes == 4 * right->n_rows, "left and right side have different numbers of inputs");
    count(&plain_tiles_counts.n_products);
}

void plain_tile_dot_bytes(int c, int a, int b) {
    check_product(c, a, b);
    Tile *sum = &state.tile[c];
    const Tile *left = &state.tile[a], *right = &state.tile[b];
    for (int r = 0; r < sum->n_rows; r++)
        dot_row(sum->row[r], left->row[r], left->n_bytes - plain_tiles_are_wrong, right);
}

/* Returns number i of the row; a subnormal one is a zero. */
static float bf16_at(const unsigned char *row, int i) {
    uint16_t h;
    memcpy(&h, row + 2 * i, sizeof h);
    return bf16_to_float(bf16_dot_operand(bf16_to_float(h)));
}

/* The even and the odd inputs of all pairs are summed apart, from zero and in ascending order, each step rounded once;
 * then the two sums are added, and their sum is added to the register's old value. Subnormal numbers are zeros at every
 * step. */
static float dot_bf16(float c, const Tile *left, const Tile *right, int row, int column) {
    float even = 0, odd = 0;
    for (int k = 0; k < right->n_rows; k++) {
        even = bf16_dot_add(bf16_at(left->row[row], 2 * k), bf16_at(right->row[k], 2 * column), even);
        odd = bf16_dot_add(bf16_at(left->row[row], 2 * k + 1), bf16_at(right->row[k], 2 * column + 1), odd);
    }
    return bf16_dot_add(c, 1, bf16_dot_add(odd, 1, even));
}

void plain_tile_dot_bf16(int c, int a, int b) {
    check_product(c, a, b);
    Tile *sum = &state.tile[c];
    for (int r = 0; r < sum->n_rows; r++)
        for (int n = 0; n < sum->n_bytes / 4; n++) {
            float x;
            memcpy(&x, sum->row[r] + 4 * n, sizeof x);
            x = dot_bf16(x, &state.tile[a], &state.tile[b], r, n);
            memcpy(sum->row[r] + 4 * n, &x, sizeof x);
        }
}

#include "compute/cpu/kernels/tile_body.h"

const Kernels *kernels_plain_tiles(void) {
    static Kernels table;
    if (!table.name) fill_tile_table(&table, "amx over plain tiles");
    /* The ways alternate with the number of rows, because their times over these tiles mean nothing. */
    for (int form = 0; form < 2; form++)
        for (int kind = 0; kind < SCALE_KINDS; kind++)
            for (int n = 1; n <= TILE_WAY_ROWS; n++)
                tile_ways.of[form][kind][n - 1] = (unsigned char)((n + form + kind) % N_TILE_WAYS);
    return &table;
}
#endif
