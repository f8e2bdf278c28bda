/* test_pack.c - packed matrices of every type are unpacked again by the layout in pack.c and compared with
 * blocks_dequantize. */
#include "testing.h"

#include "base/mem.h"
#include "base/rng.h"
#include "gguf/tensor_type.h"
#include "gguf/codebook.h"
#include "compute/cpu/kernels/layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Shape {
    int64_t n_out, n_in;
} Shape;

static uint32_t random_u32(uint32_t i) {
    uint32_t w[4];
    rng_words(11, RNG_TEST, 0, i, w);
    return w[0];
}

/* Returns bytes of a file's rows: any bits are a block, but infinite and NaN scales would compare unequal. */
static unsigned char *random_rows(TensorType type, int64_t n_out, int64_t n_in) {
    size_t row_bytes;
    assert_true(tensor_type_row_bytes(type, n_in, &row_bytes));
    float *x = malloc((size_t)n_in * sizeof *x);
    unsigned char *rows = malloc((size_t)n_out * row_bytes + 1);
    assert_non_null(x);
    assert_non_null(rows);
    for (int64_t o = 0; o < n_out; o++) {
        for (int64_t k = 0; k < n_in; k++) x[k] = (float)(int32_t)random_u32((uint32_t)(o * n_in + k)) * 0x1p-31f;
        blocks_quantize(type, x, n_in, rows + 1 + (size_t)o * row_bytes); /* + 1: unaligned on purpose */
    }
    free(x);
    return rows;
}

static float half_at(const unsigned char *p, int i) {
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return half_to_float(h);
}

/* Returns the code of weight (row, j) of a slice: its low bits, then the plane of its high bits. */
static int code_of(const SliceForm *f, const unsigned char *codes, int row, int j) {
    const unsigned char *c = codes + row * 4 + j % 4, *high = c + 64 * f->low_bits;
    int g = j / 4, code = 0;
    if (f->low_bits == 8) code = c[g * 64];
    if (f->low_bits == 4) code = (c[g % 4 * 64] >> (g < 4 ? 0 : 4)) & 15;
    if (f->low_bits == 2) code = (c[g / 4 * 64] >> (g % 4 * 2)) & 3;
    if (f->high_bits == 1) code |= ((high[0] >> g) & 1) << f->low_bits;
    if (f->high_bits == 2) code |= ((high[g / 4 * 64] >> (g % 4 * 2)) & 3) << f->low_bits;
    return code;
}

/* Weight (row, k) of a tile, as the essay of pack.c describes it. */
static float unpack_block(TensorType type, const unsigned char *tile, int row, int64_t k) {
    const SliceForm *f = &slice_forms[type];
    int64_t slice = k / 32;
    int j = (int)(k % 32), half = j / 16, sub = (int)(slice % f->scale_slices);
    int code = code_of(f, tile + codes_offset(type, slice), row, j);
    const unsigned char *s = tile + scales_offset(type, slice);
    float x = (float)((f->codebook ? f->codebook[code] : code) - (int)f->bias);
    switch (f->scales) {
    case SCALES_NONE: break;
    case SCALES_HALF: return half_at(s, row) * x;
    case SCALES_HALF_MIN: return half_at(s, row) * x + half_at(s + 32, row);
    case SCALES_BYTE_MINS:
        return half_at(s, row) * (float)s[64 + sub * 32 + row] * x -
               half_at(s + 32, row) * (float)s[64 + sub * 32 + 16 + row];
    case SCALES_NIBBLE_MINS: {
        int both = s[64 + sub * 32 + half * 16 + row];
        return half_at(s, row) * (float)(both & 15) * x - half_at(s + 32, row) * (float)(both >> 4);
    }
    case SCALES_SIGNED: return half_at(s, row) * (float)(int8_t)s[32 + sub * 16 + row] * x;
    case SCALES_SIGNED_HALVES: return half_at(s, row) * (float)(int8_t)s[32 + sub * 32 + half * 16 + row] * x;
    case SCALES_ODD: return half_at(s, row) * (float)(2 * (s[32 + sub * 16 + row] & 15) + 1) * f->unit * x;
    case SCALES_ODD_HALVES:
        return half_at(s, row) * (float)(2 * (s[32 + sub * 16 + row] >> half * 4 & 15) + 1) * f->unit * x;
    case SCALES_EXPONENT: return ldexpf(x, s[row] - 128);
    case SCALES_SMALL_FLOATS: return nvfp4_scale(s[sub * 32 + half * 16 + row]) * x;
    }
    fail_msg("%s has no slices", tensor_type_info(type)->name);
    return 0;
}

static float unpack(const PackedMatrix *m, int64_t o, int64_t k) {
    const unsigned char *tile = (const unsigned char *)m->data + (size_t)(o / 16) * m->tile_bytes;
    int row = (int)(o % 16);
    float f;
    uint16_t h;
    switch (m->type) {
    case TYPE_F32: memcpy(&f, tile + (k * 16 + row) * 4, 4); return f;
    case TYPE_F16: memcpy(&h, tile + (k * 16 + row) * 2, 2); return half_to_float(h);
    case TYPE_BF16: memcpy(&h, tile + (k / 2 * 32 + row * 2 + k % 2) * 2, 2); return bf16_to_float(h);
    default: return unpack_block(m->type, tile, row, k);
    }
}

/* Reads the rows of the file out of the tiles in pieces and compares them byte by byte. */
static void check_rows_come_back(const PackedMatrix *m, const unsigned char *rows, size_t row_bytes) {
    unsigned char piece[PACKED_READ * sizeof(float) + 1], *row = malloc(row_bytes);
    assert_non_null(row);
    for (int64_t o = 0; o < m->n_out; o++) {
        size_t done = 0, bytes;
        for (int64_t k = 0; k < m->n_in; k += PACKED_READ) {
            int64_t n = m->n_in - k < PACKED_READ ? m->n_in - k : PACKED_READ;
            assert_true(tensor_type_row_bytes(m->type, n, &bytes));
            memset(piece, 0xaa, sizeof piece);
            packed_read_row(m, o, k, n, piece);
            assert_int_equal(piece[bytes], 0xaa);
            memcpy(row + done, piece, bytes);
            done += bytes;
        }
        assert_int_equal(done, row_bytes);
        if (memcmp(row, rows + (size_t)o * row_bytes, row_bytes) != 0)
            fail_msg("%s: row %lld is read back differently", tensor_type_info(m->type)->name, (long long)o);
    }
    free(row);
}

/* The same for rows of random bits, which no quantiser would write. */
static void any_bytes_come_back(void **state) {
    (void)state;
    enum { N_OUT = 18, N_IN = 512 };
    for (int type = 0; type < TYPE_COUNT; type++) {
        size_t row_bytes;
        PackedMatrix m;
        if (type == TYPE_BF16) continue; /* subnormal numbers are not read back */
        assert_true(tensor_type_row_bytes((TensorType)type, N_IN, &row_bytes));
        unsigned char *rows = malloc(N_OUT * row_bytes);
        assert_non_null(rows);
        for (size_t i = 0; i < N_OUT * row_bytes; i++) rows[i] = (unsigned char)random_u32((uint32_t)i);
        assert_int_equal(packed_init(&m, (TensorType)type, ACT_Q16, N_OUT, N_IN, NULL), FR_OK);
        packed_fill(&m, rows, 0, packed_n_tiles(&m));
        check_rows_come_back(&m, rows, row_bytes);
        packed_free(&m);
        free(rows);
    }
}

static void check(TensorType type, int64_t n_out, int64_t n_in) {
    const char *name = tensor_type_info(type)->name;
    size_t row_bytes;
    assert_true(tensor_type_row_bytes(type, n_in, &row_bytes));
    unsigned char *rows = random_rows(type, n_out, n_in);
    float *want = malloc((size_t)n_in * sizeof *want);
    assert_non_null(want);
    PackedMatrix m;
    assert_int_equal(packed_init(&m, type, ACT_Q16, n_out, n_in, NULL), FR_OK);
    memset(m.data, 0xaa, m.tile_bytes * (size_t)packed_n_tiles(&m));
    for (int64_t t = packed_n_tiles(&m) - 1; t >= 0; t--) packed_fill(&m, rows + 1, t, t + 1);
    for (int64_t o = 0; o < packed_n_tiles(&m) * TILE_ROWS; o++) {
        if (o < n_out) blocks_dequantize(type, rows + 1 + (size_t)o * row_bytes, n_in, want);
        else memset(want, 0, (size_t)n_in * sizeof *want);
        for (int64_t k = 0; k < n_in; k++) {
            float got = unpack(&m, o, k);
            /* dequantising blocks with a minimum may take one rounding more or less */
            if (fabsf(got - want[k]) > 1e-6f)
                fail_msg("%s %lldx%lld: weight (%lld,%lld) is %g, not %g", name, (long long)n_out, (long long)n_in,
                         (long long)o, (long long)k, (double)got, (double)want[k]);
        }
    }
    size_t file_bytes = row_bytes * 16;
    double most = type == TYPE_Q3_K ? 1.055 : 1.03; /* its 6-bit scales are bytes, and half a line is padding */
    if (lattice_of(type)) most = 8;                 /* their codes are stored for single weights (pack_lattice.c) */
    if (n_out == 48 && (double)m.tile_bytes > most * (double)file_bytes)
        fail_msg("%s: a tile has %zu bytes, its rows in the file %zu", name, m.tile_bytes, file_bytes);
    check_rows_come_back(&m, rows + 1, row_bytes);
    packed_free(&m);
    free(want);
    free(rows);
}

static void every_weight_is_found_again(void **state) {
    (void)state;
    static const Shape shapes[] = {{1, 256}, {15, 256}, {16, 512}, {17, 768}, {48, 1024}};
    for (int type = 0; type < TYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check((TensorType)type, shapes[i].n_out, shapes[i].n_in);
    for (int type = TYPE_Q8_0; type <= TYPE_Q5_1; type++) check((TensorType)type, 20, 96);
    for (int type = TYPE_F32; type <= TYPE_BF16; type++) check((TensorType)type, 20, 33);
}

static void rows_of_broken_blocks_are_refused(void **state) {
    (void)state;
    PackedMatrix m;
    fr_error err = {0};
    assert_int_equal(packed_init(&m, TYPE_Q8_0, ACT_Q16, 16, 33, &err), FR_ERR_UNSUPPORTED);
    assert_true(strlen(err.message) > 0);
    assert_null(m.data);
    assert_int_equal(packed_init(&m, TYPE_Q4_K, ACT_Q16, 16, 128, &err), FR_ERR_UNSUPPORTED);
    assert_int_equal(packed_init(&m, TYPE_F32, ACT_Q16, 0, 128, &err), FR_ERR_UNSUPPORTED);
    assert_int_equal(packed_init(&m, TYPE_F32, ACT_Q16, 16, (int64_t)INT32_MAX + 1, &err), FR_ERR_UNSUPPORTED);
}

static void subnormal_bf16_weights_become_zero(void **state) {
    (void)state;
    uint16_t row[4] = {0x007f, 0x8001, 0x0080, 0x3f80};
    PackedMatrix m;
    assert_int_equal(packed_init(&m, TYPE_BF16, ACT_Q16, 1, 4, NULL), FR_OK);
    packed_fill(&m, row, 0, 1);
    assert_true(unpack(&m, 0, 0) == 0 && !signbit(unpack(&m, 0, 0)));
    assert_true(unpack(&m, 0, 1) == 0 && signbit(unpack(&m, 0, 1)));
    assert_true(unpack(&m, 0, 2) == 0x1p-126f);
    assert_true(unpack(&m, 0, 3) == 1);
    packed_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_is_found_again),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(rows_of_broken_blocks_are_refused),
        cmocka_unit_test(subnormal_bf16_weights_become_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
