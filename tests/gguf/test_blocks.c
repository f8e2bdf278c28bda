/* test_blocks.c - unit tests of float16.c and the blocks_*.c: compares bits with their definition, layouts element by
 * element, and quantisers by their error; and all of these with files that other programs quantised. */
#include "testing.h"

#include "base/mem.h"
#include "base/rng.h"
#include "gguf/tensor_type.h"
#include "gguf/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- halves ---------------------------------------------------------------------------------- */

/* Returns the value of a finite half by its definition. */
static double half_value(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 0x3ff;
    double v = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -v : v;
}

static void every_half_is_its_value(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = half_to_float((uint16_t)h);
        bool special = (h & 0x7c00) == 0x7c00, nan = special && (h & 0x3ff);
        if (nan) {
            if (!isnan(f) || !isnan(half_to_float(float_to_half(f))))
                fail_msg("half %04x is NaN, not %g", h, (double)f);
        } else {
            double wanted = special ? (h & 0x8000 ? -INFINITY : INFINITY) : half_value((uint16_t)h);
            if ((double)f != wanted || float_to_half(f) != h)
                fail_msg("half %04x gives %a, wanted %a, and back %04x", h, (double)f, wanted, float_to_half(f));
        }
        if (!signbit(f) != !(h & 0x8000)) fail_msg("half %04x loses its sign", h);
    }
}

static void floats_round_to_the_nearest_half(void **state) {
    (void)state;
    for (uint16_t h = 0; h < 0x7c00; h++) {
        double here = half_value(h), next = h == 0x7bff ? 65536 : half_value((uint16_t)(h + 1));
        float tie = (float)((here + next) / 2); /* exact: one bit more than a half */
        uint16_t even = h & 1 ? (uint16_t)(h + 1) : h;
        uint16_t at = float_to_half(tie), below = float_to_half(nextafterf(tie, 0)),
                 above = float_to_half(nextafterf(tie, INFINITY)), minus = float_to_half(-tie);
        if (at != even || below != h || above != h + 1 || minus != (even | 0x8000))
            fail_msg("around %a: %04x %04x %04x %04x", (double)tie, below, at, above, minus);
    }
    assert_int_equal(float_to_half(1e30f), 0x7c00);
    assert_int_equal(float_to_half(-INFINITY), 0xfc00);
    assert_int_equal(float_to_half(1e-30f), 0);
    assert_true(isnan(half_to_float(float_to_half(NAN))));
}

static void brain_floats_are_upper_halves(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_float((uint16_t)h);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        assert_int_equal(bits, h << 16);
        if (isnan(f)) assert_true(isnan(bf16_to_float(float_to_bf16(f))));
        else assert_int_equal(float_to_bf16(f), h);
    }
    static const struct {
        float f;
        uint16_t h;
    } ties[] = {{0x1.01p0f, 0x3f80}, {0x1.03p0f, 0x3f82}, {0x1.010002p0f, 0x3f81}, {3.4028234e38f, 0x7f80}};
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++) assert_int_equal(float_to_bf16(ties[i].f), ties[i].h);
    uint32_t low_nan = 0x7f800001;
    float f;
    memcpy(&f, &low_nan, sizeof f);
    assert_true(isnan(bf16_to_float(float_to_bf16(f)))); /* its payload is in the half that is cut off */
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* Sets one byte in a block that is zero except for its scales (see scaled_block): the element that must change, and its
 * new value. */
typedef struct Probe {
    TensorType type;
    int byte, value;
    int element;
    float wanted;
} Probe;

/* d = 2, m or dmin = 0.5, sub-block scales 1 and minima 0 (in Q6_K: scale b is b+1). */
static void scaled_block(TensorType type, uint8_t *block) {
    uint16_t two = 0x4000, half = 0x3800;
    memset(block, 0, tensor_type_info(type)->block_bytes);
    memcpy(block + (type == TYPE_Q6_K ? 208 : 0), &two, 2);
    if (type == TYPE_Q4_1 || type == TYPE_Q5_1 || type == TYPE_Q4_K || type == TYPE_Q5_K) memcpy(block + 2, &half, 2);
    if (type == TYPE_Q4_K || type == TYPE_Q5_K) {
        for (int i = 4; i < 8; i++) block[i] = 1;
        for (int i = 12; i < 16; i++) block[i] = 1;
    }
    if (type == TYPE_Q6_K)
        for (int i = 0; i < 16; i++) block[192 + i] = (uint8_t)(i + 1);
}

static void each_bit_is_at_the_place_of_the_format(void **state) {
    (void)state;
    static const Probe probes[] = {
        {TYPE_Q8_0, 2 + 0, 0x81, 0, -254},
        {TYPE_Q8_0, 2 + 31, 0x05, 31, 10},
        {TYPE_Q4_0, 2 + 3, 0x0f, 3, 14},
        {TYPE_Q4_0, 2 + 3, 0xa0, 19, 4},
        {TYPE_Q4_0, 2 + 15, 0x10, 31, -14},
        {TYPE_Q4_1, 4 + 0, 0x09, 0, 18.5f},
        {TYPE_Q4_1, 4 + 15, 0xf0, 31, 30.5f},
        {TYPE_Q5_0, 2, 0x01, 0, 0},
        {TYPE_Q5_0, 3, 0x80, 15, 0},
        {TYPE_Q5_0, 4, 0x01, 16, 0},
        {TYPE_Q5_0, 6 + 7, 0x0c, 7, -8},
        {TYPE_Q5_0, 6 + 7, 0xf0, 23, -2},
        {TYPE_Q5_1, 7, 0x80, 31, 32.5f},
        {TYPE_Q5_1, 8 + 2, 0x07, 2, 14.5f},
        {TYPE_Q4_K, 16 + 0, 0x05, 0, 10},
        {TYPE_Q4_K, 16 + 31, 0xf0, 63, 30},
        {TYPE_Q4_K, 16 + 32, 0x01, 64, 2},
        {TYPE_Q4_K, 16 + 127, 0x10, 255, 2},
        {TYPE_Q5_K, 16 + 4, 0x01, 4, 32},
        {TYPE_Q5_K, 16 + 4, 0x80, 228, 32},
        {TYPE_Q5_K, 48 + 33, 0x06, 65, 12},
        {TYPE_Q5_K, 48 + 33, 0x60, 97, 12},
        {TYPE_Q6_K, 0, 0x01, 0, 2 * -31},
        {TYPE_Q6_K, 31, 0x02, 31, 4 * -30},
        {TYPE_Q6_K, 32, 0x0f, 32, 6 * -17},
        {TYPE_Q6_K, 5, 0x30, 69, 10 * -29},
        {TYPE_Q6_K, 63, 0x10, 127, 16 * -31},
        {TYPE_Q6_K, 64, 0x01, 128, 18 * -31},
        {TYPE_Q6_K, 128 + 0, 0x01, 0, 2 * -16},
        {TYPE_Q6_K, 128 + 0, 0x08, 32, 0},
        {TYPE_Q6_K, 128 + 1, 0x30, 65, 10 * 16},
        {TYPE_Q6_K, 128 + 63, 0x80, 255, 0},
        {TYPE_Q6_K, 192 + 3, 0xff, 48, 64}, /* a scale of -1, signed */
    };
    for (size_t p = 0; p < sizeof probes / sizeof *probes; p++) {
        Probe x = probes[p];
        uint8_t block[256];
        float before[256], after[256];
        int n = (int)tensor_type_info(x.type)->block_n;
        scaled_block(x.type, block);
        blocks_dequantize(x.type, block, n, before);
        block[x.byte] = (uint8_t)x.value;
        blocks_dequantize(x.type, block, n, after);
        if (after[x.element] != x.wanted)
            fail_msg("%s byte %d = %02x: element %d is %g, wanted %g", tensor_type_info(x.type)->name, x.byte, x.value,
                     x.element, (double)after[x.element], (double)x.wanted);
        if (x.type == TYPE_Q6_K && x.byte >= 192) continue; /* a scale changes sixteen */
        for (int i = 0; i < n; i++)
            if (i != x.element && after[i] != before[i])
                fail_msg("%s byte %d also changes element %d", tensor_type_info(x.type)->name, x.byte, i);
    }
}

/* Packs scales 33 + b and minima 60 - 5b into the twelve bytes, and reads them back one by one. */
static void packed_scales_unpack(void **state) {
    (void)state;
    uint8_t block[144] = {0};
    uint16_t one = 0x3c00;
    memcpy(block, &one, 2);
    memcpy(block + 2, &one, 2);
    for (int b = 0; b < 8; b++) {
        int s = 33 + b, m = 60 - 5 * b;
        if (b < 4) block[4 + b] |= (uint8_t)s, block[8 + b] |= (uint8_t)m;
        else {
            block[4 + b - 4] |= (uint8_t)(s >> 4 << 6), block[8 + b - 4] |= (uint8_t)(m >> 4 << 6);
            block[12 + b - 4] = (uint8_t)((s & 15) | (m & 15) << 4);
        }
    }
    memset(block + 16, 0x11, 128);
    float x[256];
    blocks_dequantize(TYPE_Q4_K, block, 256, x);
    for (int i = 0; i < 256; i++) {
        int b = i / 32;
        float wanted = (float)(33 + b - (60 - 5 * b));
        if (x[i] != wanted) fail_msg("element %d is %g, wanted %g", i, (double)x[i], (double)wanted);
    }
}

/* ---- quantisers ------------------------------------------------------------------------------ */

enum { N_VALUES = 256 * 64 };

static double relative_rms(const float *a, const float *b, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)a[i] * a[i];
    }
    return sqrt(difference / size);
}

/* The greatest relative error for normal numbers, a little above what was measured. */
static const struct {
    TensorType type;
    double rms_max;
} quality[] = {
    {TYPE_F32, 0},      {TYPE_F16, 0.0003},   {TYPE_BF16, 0.002},  {TYPE_Q8_0, 0.0065}, {TYPE_Q4_0, 0.1},
    {TYPE_Q4_1, 0.085}, {TYPE_Q5_0, 0.05},    {TYPE_Q5_1, 0.042},  {TYPE_Q4_K, 0.09},   {TYPE_Q5_K, 0.045},
    {TYPE_Q6_K, 0.022}, {TYPE_Q2_K, 0.34},    {TYPE_Q3_K, 0.2},    {TYPE_IQ4_NL, 0.09}, {TYPE_IQ4_XS, 0.09},
    {TYPE_MXFP4, 0.13}, {TYPE_IQ2_XXS, 0.37}, {TYPE_IQ2_XS, 0.32}, {TYPE_IQ2_S, 0.28},  {TYPE_IQ3_XXS, 0.2},
    {TYPE_IQ3_S, 0.15}, {TYPE_IQ1_S, 0.62},   {TYPE_IQ1_M, 0.53},  {TYPE_NVFP4, 0.12},
};

/* A type without a row may have three times the error of the best possible code, which is 2^-bits. */
static double greatest_error(TensorType type) {
    const TensorTypeInfo *info = tensor_type_info(type);
    for (size_t q = 0; q < sizeof quality / sizeof *quality; q++)
        if (quality[q].type == type) return quality[q].rms_max;
    return 3 * exp2(-8.0 * info->block_bytes / info->block_n);
}

static void quantisers_stay_within_their_error(void **state) {
    (void)state;
    static float x[N_VALUES], y[N_VALUES];
    static uint8_t bytes[N_VALUES * 4];
    for (uint32_t i = 0; i < N_VALUES; i++) {
        double u = rng_uniform(1, RNG_TEST, 0, i), v = rng_uniform(1, RNG_TEST, 1, i);
        x[i] = (float)(0.02 * sqrt(-2 * log(u)) * cos(6.283185307 * v));
    }
    for (int i = 0; i < TYPE_COUNT; i++) {
        TensorType type = (TensorType)i;
        blocks_quantize(type, x, N_VALUES, bytes);
        blocks_dequantize(type, bytes, N_VALUES, y);
        double rms = relative_rms(x, y, N_VALUES), most = greatest_error(type);
        if (!(rms <= most)) fail_msg("%s: relative error %g, at most %g", tensor_type_info(type)->name, rms, most);
    }
}

static void odd_values_quantise_sanely(void **state) {
    (void)state;
    static const float rows[][2] = {{0, 0}, {1e-30f, -1e-30f}, {1e30f, 1}, {-1e-6f, 0}, {5, 5}, {NAN, INFINITY}};
    for (int type = 0; type < TYPE_COUNT; type++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            float x[256], y[256];
            uint8_t bytes[1024];
            for (int i = 0; i < 256; i++) x[i] = rows[r][i % 2];
            blocks_quantize((TensorType)type, x, 256, bytes);
            blocks_dequantize((TensorType)type, bytes, 256, y);
            for (int i = 0; i < 256 && r < 5; i++) {
                float part = type == TYPE_MXFP4 || type == TYPE_NVFP4
                                 ? 0.21f
                                 : 0.07f; /* their numbers are 1, 1.5, 2, 3, 4, 6, ... */
                bool near = fabsf(y[i] - x[i]) <= part * fabsf(rows[r][0]) + 1e-6f;
                if (r == 2 ? type > TYPE_BF16 && !isfinite(y[i]) : !near)
                    fail_msg("%s: %g became %g", tensor_type_info((TensorType)type)->name, (double)x[i], (double)y[i]);
            }
        }
}

/* ---- what other programs read in the same bytes ----------------------------------------------------------- */

static size_t from_hex(const char *hex, uint8_t *out, size_t max) {
    size_t n = 0;
    for (unsigned byte; n < max && sscanf(hex + 2 * n, "%2x", &byte) == 1 && hex[2 * n] != ' '; n++)
        out[n] = (uint8_t)byte;
    return n;
}

/* The ggml that wrote the golden blocks reads the types whose numbers in files are below this. */
enum { N_GGML_TYPES = 41 };

/* tests/golden/data/blocks.txt: random blocks, and the numbers that ggml reads in them (make_blocks.py). */
static void random_blocks_equal_those_of_ggml(void **state) {
    (void)state;
    static char line[4096];
    FILE *f = fopen("tests/golden/data/blocks.txt", "r");
    bool is_there[TYPE_COUNT] = {false};
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        TensorType type;
        uint8_t block[256];
        float wanted[256], got[256];
        char *bytes = strchr(line, ' '), *numbers = strrchr(line, ' ');
        assert_true(bytes && numbers > bytes);
        *bytes = '\0';
        assert_true(tensor_type_from_name(line, &type));
        is_there[type] = true;
        size_t n = from_hex(numbers + 1, (uint8_t *)wanted, sizeof wanted) / sizeof *wanted, size;
        assert_true(tensor_type_row_bytes(type, (int64_t)n, &size));
        assert_int_equal(from_hex(bytes + 1, block, sizeof block), size);
        blocks_dequantize(type, block, (int64_t)n, got);
        for (size_t i = 0; i < n; i++)
            if (got[i] != wanted[i] && !(fabsf(got[i] - wanted[i]) <= 1e-7f * fabsf(wanted[i])))
                fail_msg("%s: element %zu is %a, not %a", line, i, (double)got[i], (double)wanted[i]);
    }
    fclose(f);
    for (int type = TYPE_Q8_0; type < TYPE_COUNT; type++) {
        const TensorTypeInfo *info = tensor_type_info((TensorType)type);
        if (is_there[type]) continue;
        if (info->gguf_id < N_GGML_TYPES) fail_msg("%s is missing in tests/golden/data/blocks.txt", info->name);
        print_message("%s is not compared: ggml has no type %u\n", info->name, info->gguf_id);
    }
}

/* ---- files by other programs ------------------------------------------------------------------------- */

static float *dequantized(const Gguf *g, const char *name, int64_t *n) {
    const GgufTensor *t = gguf_find_tensor(g, name);
    assert_non_null(t);
    *n = t->dims[0] * t->dims[1];
    float *x = mem_alloc((size_t)*n * sizeof *x);
    assert_non_null(x);
    blocks_dequantize(t->type, t->data, *n, x);
    return x;
}

static void files_quantised_by_other_programs_agree(void **state) {
    (void)state;
    need_shared();
    static const struct {
        const char *exact, *coarse, *tensor;
        TensorType type;
        double rms_max;
    } cases[] = {
        {"llama-a-f32", "llama-a-f16", "blk.0.ffn_up.weight", TYPE_F16, 0.0003},
        {"llama-a-f32", "llama-a-bf16", "blk.0.ffn_up.weight", TYPE_BF16, 0.002},
        {"llama-a-f32", "llama-a-q8_0", "blk.1.attn_q.weight", TYPE_Q8_0, 0.007},
        {"llama-b-f32", "llama-b-q4_0", "blk.1.ffn_down.weight", TYPE_Q4_0, 0.11},
        {"llama-k-q6_k", "llama-k-q4_k", "blk.0.ffn_up.weight", TYPE_Q4_K, 0.09},
        {"llama-k-q6_k", "llama-k-q5_k", "blk.0.ffn_up.weight", TYPE_Q5_K, 0.05},
        {"llama-k-q5_k", "llama-k-q6_k", "blk.0.ffn_up.weight", TYPE_Q6_K, 0.05},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char path[2][128];
        Gguf *g[2];
        float *x[2];
        int64_t n[2];
        const char *names[2] = {cases[c].exact, cases[c].coarse};
        for (int i = 0; i < 2; i++) {
            snprintf(path[i], sizeof path[i], "../shared/data/golden/models/%s.gguf", names[i]);
            fr_error err = {0};
            if (gguf_open(&g[i], path[i], &err)) fail_msg("%s", err.message);
            x[i] = dequantized(g[i], cases[c].tensor, &n[i]);
        }
        assert_int_equal(gguf_find_tensor(g[1], cases[c].tensor)->type, cases[c].type);
        assert_int_equal(n[0], n[1]);
        double rms = relative_rms(x[0], x[1], n[0]);
        if (!(rms > 0 && rms <= cases[c].rms_max))
            fail_msg("%s against %s: relative difference %g, at most %g", path[1], path[0], rms, cases[c].rms_max);
        for (int i = 0; i < 2; i++) mem_free(x[i]), gguf_close(g[i]);
    }
}

static void row_sizes_are_whole_blocks(void **state) {
    (void)state;
    size_t n;
    assert_true(tensor_type_row_bytes(TYPE_Q6_K, 512, &n) && n == 420);
    assert_false(tensor_type_row_bytes(TYPE_Q6_K, 511, &n));
    assert_false(tensor_type_row_bytes(TYPE_Q8_0, -32, &n));
    assert_false(tensor_type_row_bytes(TYPE_F32, INT64_MAX, &n));
    TensorType type;
    assert_true(tensor_type_from_name("q4_k", &type) && type == TYPE_Q4_K);
    assert_true(tensor_type_from_name("Q2_K", &type) && type == TYPE_Q2_K);
    assert_true(tensor_type_from_name("IQ2_XS", &type) && type == TYPE_IQ2_XS);
    assert_false(tensor_type_from_name("TQ2_0", &type));
    assert_true(tensor_type_row_bytes(TYPE_NVFP4, 192, &n) && n == 108);
    assert_false(tensor_type_row_bytes(TYPE_NVFP4, 96, &n));
    assert_true(tensor_type_from_gguf(39, &type) && type == TYPE_MXFP4);
    assert_true(tensor_type_row_bytes(TYPE_MXFP4, 96, &n) && n == 51);
    assert_false(tensor_type_row_bytes(TYPE_IQ4_XS, 96, &n));
    assert_true(tensor_type_from_gguf(30, &type) && type == TYPE_BF16);
    assert_false(tensor_type_from_gguf(4, &type));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_is_its_value),
        cmocka_unit_test(floats_round_to_the_nearest_half),
        cmocka_unit_test(brain_floats_are_upper_halves),
        cmocka_unit_test(each_bit_is_at_the_place_of_the_format),
        cmocka_unit_test(random_blocks_equal_those_of_ggml),
        cmocka_unit_test(packed_scales_unpack),
        cmocka_unit_test(quantisers_stay_within_their_error),
        cmocka_unit_test(odd_values_quantise_sanely),
        cmocka_unit_test(files_quantised_by_other_programs_agree),
        cmocka_unit_test(row_sizes_are_whole_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
