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

static const uint32_t bad_floats[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff};
static const uint16_t bad_halves[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff};
static const uint16_t bad_bf16s[] = {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff};
static const uint8_t bad_exponents[] = {253, 254, 255, 253, 255};
enum { N_BAD = 5 };

/* The place of the i-th number of a block that can be NaN or infinite; -1: there is none. */
static int place_in_block(TensorType type, int i) {
    if (type == TYPE_Q6_K || type == TYPE_Q3_K) return i > 0 ? -1 : type == TYPE_Q6_K ? 208 : 108;
    if (type == TYPE_Q2_K) return i < 2 ? 80 + 2 * i : -1;
    if (type == TYPE_NVFP4) return i < 4 ? i : -1;
    if (type == TYPE_IQ1_M) return i == 0 ? 52 : -1;
    bool has_two = type == TYPE_Q4_1 || type == TYPE_Q5_1 || type == TYPE_Q4_K || type == TYPE_Q5_K;
    return i < 1 + has_two ? 2 * i : -1;
}

static void write_bad(TensorType type, char *at, int which) {
    if (type == TYPE_MXFP4) *at = (char)bad_exponents[which];
    else if (type == TYPE_NVFP4) *at = (char)(which % 2 ? 0x7f : 0xff);
    else if (type == TYPE_IQ1_M) at[1] = (char)0xc0, at[3] = (char)(which % 2 ? 0x70 : 0xff); /* its words 2 and 3 */
    else if (type == TYPE_F32) memcpy(at, &bad_floats[which], 4);
    else memcpy(at, type == TYPE_BF16 ? &bad_bf16s[which] : &bad_halves[which], 2);
}

/* The number of bytes from that place on that write_bad may change. */
static size_t bytes_of_bad(TensorType type) {
    return type == TYPE_F32 || type == TYPE_IQ1_M ? 4 : type == TYPE_NVFP4 ? 1 : 2;
}

static void every_place_of_every_type(void **state) {
    (void)state;
    for (int type = 0; type < TYPE_COUNT; type++) {
        const TensorTypeInfo *info = tensor_type_info((TensorType)type);
        int n_blocks = info->block_n == 1 ? 200 : 7;
        size_t bytes = (size_t)n_blocks * info->block_bytes;
        char *data = malloc(bytes + 1), *unaligned = data + 1;
        for (size_t i = 0; i < bytes; i++) unaligned[i] = (char)(i * 37);
        for (int b = 0; b < n_blocks; b++) /* any codes, with the greatest finite numbers */
            for (int i = 0; place_in_block((TensorType)type, i) >= 0; i++) {
                static const float most[] = {FLT_MAX};
                static const uint16_t most_half[] = {0x7bff}, most_bf16[] = {0xff7f};
                char *at = unaligned + (size_t)b * info->block_bytes + place_in_block((TensorType)type, i);
                if (type == TYPE_MXFP4) *at = (char)252;
                else if (type == TYPE_NVFP4) *at = (char)(i % 2 ? 0x7e : 0xfe);
                else if (type == TYPE_IQ1_M) at[1] = (char)0xbf, at[3] = (char)(0xff);
                else if (type == TYPE_F32) memcpy(at, most, 4);
                else memcpy(at, type == TYPE_BF16 ? most_bf16 : most_half, 2);
            }
        int64_t n = (int64_t)n_blocks * info->block_n;
        assert_true(finite_weights((TensorType)type, unaligned, n));
        for (int b = 0; b < n_blocks; b++)
            for (int i = 0; place_in_block((TensorType)type, i) >= 0; i++)
                for (int which = 0; which < N_BAD; which++) {
                    char kept[4], *at = unaligned + (size_t)b * info->block_bytes + place_in_block((TensorType)type, i);
                    memcpy(kept, at, bytes_of_bad((TensorType)type));
                    write_bad((TensorType)type, at, which);
                    if (finite_weights((TensorType)type, unaligned, n))
                        fail_msg("%s: number %d of block %d, kind %d, is not found", info->name, i, b, which);
                    assert_true(finite_weights((TensorType)type, unaligned, (int64_t)b * info->block_n));
                    memcpy(at, kept, bytes_of_bad((TensorType)type));
                }
        free(data);
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
        char *at = (char *)model_patch_tensor(&p, t->name) + block * info->block_bytes + place_in_block(t->type, 0),
             kept[4];
        memcpy(kept, at, bytes_of_bad(t->type));
        write_bad(t->type, at, (int)(i % N_BAD));
        model_patch_write(&p, BAD);
        if (strcmp(t->name, "rope_freqs.weight") != 0 || i % N_BAD) refuse(BAD, t->name);
        memcpy(at, kept, bytes_of_bad(t->type));
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
    static const char *const methods[] = {"redrafter", "medusa", "hydra", "eagle", "lyanna"};
    all_drafters_write_files();
    fr_model *model = rig_open_model(ALL_DRAFTERS_TARGET, NULL);
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 64});
    for (size_t k = 0; k < sizeof methods / sizeof *methods; k++) {
        char path[64], spec[96];
        snprintf(path, sizeof path, "build/all-%s.gguf", methods[k]);
        snprintf(spec, sizeof spec, "%s:file=" BAD, methods[k]);
        ModelPatch p;
        model_patch_open(&p, path);
        for (int64_t i = 0; i < gguf_n_tensors(p.gguf); i++) {
            const GgufTensor *t = gguf_tensor(p.gguf, i);
            fr_error err;
            char *at = (char *)model_patch_tensor(&p, t->name) + t->bytes - (t->type == TYPE_F32 ? 4 : 2),
                 kept[4] = {0};
            memcpy(kept, at, t->type == TYPE_F32 ? 4 : 2);
            write_bad(t->type, at, (int)(i % N_BAD));
            model_patch_write(&p, BAD);
            int status = fr_engine_open_draft(e, spec, &err);
            if (status != FR_ERR_FORMAT || !strstr(err.message, t->name))
                fail_msg("%s, %s: %d, %s", methods[k], t->name, status, status ? err.message : "accepted");
            memcpy(at, kept, t->type == TYPE_F32 ? 4 : 2);
        }
        model_patch_close(&p);
    }
    ModelPatch p; /* a draft model is a model */
    fr_error err;
    model_patch_open(&p, ALL_DRAFTERS_MODEL);
    write_bad(TYPE_F32, model_patch_tensor(&p, "blk.0.ffn_up.weight"), 1);
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
