/* test_finite.c - NaN and infinity in files: a number of any type that is not finite is found at every place, and a
 * model with such a number in any tensor is refused with the tensor's name, by every backend; so is a drafter file. */
#include "all_drafters.h"
#include "engine_rig.h"
#include "model_patch.h"

#include "compute/backend.h"
#include "gguf/tensor_type.h"
#include "random_model.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "build/finite.gguf"
#define BAD "build/finite-bad.gguf"

/* Bytes that make a number NaN or infinite, and the greatest numbers that are finite, for every kind of number that a
 * block may have. */
static const struct {
    size_t n;
    uint8_t bytes[4];
} patterns[] = {
    {4, {0, 0, 0x80, 0x7f}}, /* floats */
    {4, {0, 0, 0x80, 0xff}},
    {4, {0, 0, 0xc0, 0x7f}},
    {4, {1, 0, 0x80, 0x7f}},
    {4, {0xff, 0xff, 0xff, 0xff}},
    {4, {0xff, 0xff, 0x7f, 0x7f}},
    {2, {0, 0x7c}}, /* halves */
    {2, {0, 0xfc}},
    {2, {0, 0x7e}},
    {2, {1, 0x7c}},
    {2, {0xff, 0xff}},
    {2, {0xff, 0x7b}},
    {2, {0x80, 0x7f}}, /* BF16 */
    {2, {0x80, 0xff}},
    {2, {0xc0, 0x7f}},
    {2, {0x81, 0x7f}},
    {2, {0x7f, 0xff}},
    {1, {253}}, /* exponents of MXFP4 */
    {1, {254}},
    {1, {255}},
    {1, {252}},
    {1, {0x7f}}, /* scales of NVFP4 */
    {1, {0xff}},
    {1, {0x7e}},
    {1, {0xfe}},
    {4, {0, 0xc0, 0, 0x70}}, /* words 2 and 3 of the four that have the scale of IQ1_M in their upper bits */
    {4, {0, 0xc0, 0, 0xff}},
    {4, {0, 0xbf, 0, 0xff}},
};
enum { N_PATTERNS = sizeof patterns / sizeof *patterns, N_BAD = 5 };

/* Returns whether all numbers that are read in a block are finite. */
static bool block_is_finite(TensorType type, const char *block) {
    float x[256];
    int n = (int)tensor_type_info(type)->block_n;
    blocks_dequantize(type, block, n, x);
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    /* Seven ones are NaN in the format of its scales, but nvfp4_decode reads a number. */
    for (int i = 0; i < 4 && type == TYPE_NVFP4; i++)
        if ((block[i] & 0x7f) == 0x7f) return false;
    return true;
}

/* Writes one of the patterns into a sound block, so that some of its numbers are not finite. There are several ways,
 * which have numbers; after the last comes the first. */
static void damage_block(TensorType type, char *block, int way) {
    size_t bytes = tensor_type_info(type)->block_bytes, n_places = bytes * N_PATTERNS;
    for (size_t i = 0, n_ways = 0; i < n_places || n_ways > 0; i++) {
        size_t at = i % n_places / N_PATTERNS, n = patterns[i % N_PATTERNS].n;
        char kept[4];
        if (at + n > bytes) continue;
        memcpy(kept, block + at, n);
        memcpy(block + at, patterns[i % N_PATTERNS].bytes, n);
        if (!block_is_finite(type, block) && n_ways++ == (size_t)way) return;
        memcpy(block + at, kept, n);
    }
    fail_msg("%s: no pattern makes a number of the block infinite", tensor_type_info(type)->name);
}

/* Writes each pattern to each place of a block. Whatever it is there, finite_weights must agree with the numbers that
 * are read. Returns how many were not finite. */
static int check_places(TensorType type, const char *all, int n_blocks, int b) {
    const TensorTypeInfo *info = tensor_type_info(type);
    char *block = (char *)all + (size_t)b * info->block_bytes;
    int n_bad = 0;
    for (size_t at = 0; at < info->block_bytes; at++)
        for (int p = 0; p < N_PATTERNS; p++) {
            char kept[4];
            if (at + patterns[p].n > info->block_bytes) continue;
            memcpy(kept, block + at, patterns[p].n);
            memcpy(block + at, patterns[p].bytes, patterns[p].n);
            bool is_finite = block_is_finite(type, block);
            if (finite_weights(type, all, (int64_t)n_blocks * info->block_n) != is_finite)
                fail_msg("%s: with pattern %d at byte %zu, block %d is %s", info->name, p, at, b,
                         is_finite ? "finite" : "not finite");
            if (!is_finite) assert_true(finite_weights(type, all, (int64_t)b * info->block_n));
            n_bad += !is_finite;
            memcpy(block + at, kept, patterns[p].n);
        }
    return n_bad;
}

static void every_place_of_every_type(void **state) {
    (void)state;
    for (int i = 0; i < TYPE_COUNT; i++) {
        TensorType type = (TensorType)i;
        const TensorTypeInfo *info = tensor_type_info(type);
        int n_blocks = info->block_n == 1 ? 200 : 7, step = info->block_n == 1 ? 1 : 3;
        int64_t n = (int64_t)n_blocks * info->block_n;
        char *data = malloc((size_t)n_blocks * info->block_bytes + 1), *unaligned = data + 1;
        float *x = malloc((size_t)n * sizeof *x);
        assert_true(data && x);
        for (int64_t k = 0; k < n; k++) x[k] = (float)(k * 37 % 101 - 50) / 50;
        blocks_quantize(type, x, n, unaligned);
        assert_true(finite_weights(type, unaligned, n));
        for (int b = 0; b < n_blocks; b += step)
            if (check_places(type, unaligned, n_blocks, b) < 2) fail_msg("%s: too few bad numbers", info->name);
        free(data);
        free(x);
    }
}

static void rows_of_floats(void **state) {
    (void)state;
    float x[130];
    for (int n = 0; n <= 130; n++) {
        for (int i = 0; i < 130; i++) x[i] = i % 2 ? FLT_MAX : -FLT_TRUE_MIN;
        assert_true(finite_floats(x, n));
        for (int i = 0; i < n; i++) {
            float kept = x[i];
            x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
            assert_false(finite_floats(x, n));
            x[i] = kept;
        }
    }
}

/* ---- models --------------------------------------------------------------------------------------------- */

static void refuse(const char *path, const char *tensor) {
    for (const Backend *const *b = backends(); *b; b++) {
        fr_model *m;
        fr_error err;
        const fr_model_options o = {.struct_size = sizeof o, .backend = (*b)->name, .n_threads = 2};
        int status = fr_model_open(&m, path, &o, &err);
        char want[128];
        snprintf(want, sizeof want, "tensor %s holds NaN or infinity", tensor);
        if (status != FR_ERR_FORMAT || !strstr(err.message, want))
            fail_msg("%s, %s: %d, %s", (*b)->name, tensor, status, status ? err.message : "accepted");
    }
}

/* Writes one bad number into each tensor in turn. */
static int check_each_tensor(const RandomModel *m) {
    fr_error err;
    if (random_model_write(m, MODEL, &err)) fail_msg("%s", err.message);
    fr_model_close(rig_open_model(MODEL, NULL));
    ModelPatch p;
    model_patch_open(&p, MODEL);
    int64_t n = gguf_n_tensors(p.gguf);
    for (int64_t i = 0; i < n; i++) {
        const GgufTensor *t = gguf_tensor(p.gguf, i);
        const TensorTypeInfo *info = tensor_type_info(t->type);
        size_t n_blocks = t->bytes / info->block_bytes, block = (size_t)i * 7919 % n_blocks;
        if (i % 3 == 0) block = n_blocks - 1;
        char *at = (char *)model_patch_tensor(&p, t->name) + block * info->block_bytes, kept[256];
        memcpy(kept, at, info->block_bytes);
        damage_block(t->type, at, (int)(i % N_BAD));
        model_patch_write(&p, BAD);
        if (strcmp(t->name, "rope_freqs.weight") != 0 || i % N_BAD) refuse(BAD, t->name);
        memcpy(at, kept, info->block_bytes);
    }
    model_patch_close(&p);
    return (int)n;
}

static void every_tensor_of_a_model(void **state) {
    (void)state;
    int n = 0;
    for (int type = 0; type < TYPE_COUNT; type++) {
        int32_t width = tensor_type_info((TensorType)type)->block_n == 256 ? 256 : 64;
        RandomModel m = {.arch = type % 3 == 0   ? "llama"
                                 : type % 3 == 1 ? "qwen2"
                                                 : "qwen3",
                         .n_layer = 1,
                         .n_embd = width,
                         .n_head = 4,
                         .n_head_kv = 4,
                         .n_ff = width,
                         .n_vocab = 270,
                         .tied = type % 2,
                         .types = {(TensorType)type},
                         .n_types = 1,
                         .seed = (uint64_t)type};
        n += check_each_tensor(&m);
    }
    assert_true(n > 100);
}

static void every_tensor_of_a_drafter(void **state) {
    (void)state;
    all_drafters_write_files();
    fr_model *model = rig_open_model(ALL_DRAFTERS_TARGET, NULL);
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 64});
    for (int k = 0; all_drafters[k]; k++) {
        static const char option[] = ":file=";
        const char *path = strstr(all_drafters[k], option);
        char spec[96];
        if (!path) continue;
        snprintf(spec, sizeof spec, "%.*s:file=" BAD, (int)(path - all_drafters[k]), all_drafters[k]);
        ModelPatch p;
        model_patch_open(&p, path + strlen(option));
        for (int64_t i = 0; i < gguf_n_tensors(p.gguf); i++) {
            const GgufTensor *t = gguf_tensor(p.gguf, i);
            fr_error err;
            size_t bytes = tensor_type_info(t->type)->block_bytes;
            char *last = (char *)model_patch_tensor(&p, t->name) + t->bytes - bytes, kept[256];
            memcpy(kept, last, bytes);
            damage_block(t->type, last, (int)(i % N_BAD));
            model_patch_write(&p, BAD);
            int status = fr_engine_open_draft(e, spec, &err);
            if (status != FR_ERR_FORMAT || !strstr(err.message, t->name))
                fail_msg("%s, %s: %d, %s", all_drafters[k], t->name, status, status ? err.message : "accepted");
            memcpy(last, kept, bytes);
        }
        model_patch_close(&p);
    }
    ModelPatch p; /* a draft model is a model */
    fr_error err;
    model_patch_open(&p, ALL_DRAFTERS_MODEL);
    damage_block(TYPE_F32, model_patch_tensor(&p, "blk.0.ffn_up.weight"), 1);
    model_patch_write(&p, BAD);
    model_patch_close(&p);
    assert_int_equal(fr_engine_open_draft(e, "sps:model=" BAD, &err), FR_ERR_FORMAT);
    assert_non_null(strstr(err.message, "blk.0.ffn_up.weight"));
    fr_engine_close(e);
    fr_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_place_of_every_type),
        cmocka_unit_test(rows_of_floats),
        cmocka_unit_test(every_tensor_of_a_model),
        cmocka_unit_test(every_tensor_of_a_drafter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
