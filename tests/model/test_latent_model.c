/* test_latent_model.c - models with latent attention: which files are refused, with which messages, and the bytes of a
 * token in the cache. Their values: test_reference.c, test_golden_own.c; their bits: test_forward.c,
 * test_architectures.c. */
#include "testing.h"

#include "compute/cpu/cpu.h"
#include "compute/executor.h"
#include "model_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LATENT_SHAPE \
    .arch = "deepseek2", .n_layer = 2, .n_embd = 32, .n_head = 3, .n_head_kv = 1, .n_ff = 40, .n_vocab = 33, \
    .kv_rank = 12, .q_rank = 8, .plain_dim = 10, .n_rot = 6, .value_dim = 14, .n_dense = 1, .n_expert = 12, \
    .n_expert_used = 3, .n_ff_expert = 8, .n_ff_shared = 16, .has_sigmoid_router = true, .n_groups = 4, \
    .n_groups_used = 2, .seed = 1

static const RandomModel sound = {LATENT_SHAPE}, joined = {LATENT_SHAPE, .joins_kv_b = true};

/* Returns the place after a string of the file, which is preceded by its length. */
static char *find_behind(char *bytes, size_t n, const char *text) {
    size_t length = strlen(text);
    for (size_t i = 8; i + length < n; i++)
        if (memcmp(bytes + i, text, length) == 0 && bytes[i - 8] == (char)length) return bytes + i + length;
    fail_msg("the file has no '%s'", text);
    return NULL;
}

/* Opens a model after one of its keys was set to a number, or, with value -1, after a key or tensor was renamed. */
static int open_changed(const RandomModel *m, const char *name, int value, fr_error *err) {
    enum { BEHIND_TYPE = 4 };
    char path[] = "build/latent-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    if (random_model_write(m, path, err)) fail_msg("%s", err->message);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(n);
    assert_true(bytes && fread(bytes, 1, n, f) == n);
    fclose(f);
    unlink(path);
    char *at = find_behind(bytes, n, name);
    if (value < 0) at[-1] = '#';
    else memcpy(at + BEHIND_TYPE, &value, sizeof value);
    Gguf *g;
    Model *model = NULL;
    if (gguf_open_memory(&g, bytes, n, "changed", err)) fail_msg("%s", err->message);
    int status = model_open(&model, g, err);
    model_close(model);
    gguf_close(g);
    free(bytes);
    return status;
}

static void unfit_files_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const RandomModel *m;
        const char *name;
        int value;
        const char *says;
    } changes[] = {
        {&sound, "deepseek2.attention.kv_lora_rank", 0, "kv_lora_rank is 0, but must lie between 1 and"},
        {&sound, "deepseek2.attention.kv_lora_rank", -1, "attention.kv_lora_rank is missing"},
        {&sound, "deepseek2.attention.kv_lora_rank", 13, "attn_kv_a_mqa.weight has the wrong shape"},
        {&sound, "deepseek2.attention.q_lora_rank", 9, "attn_q_a.weight has the wrong shape"},
        {&sound, "deepseek2.attention.q_lora_rank", 0, "attn_q.weight is missing"},
        {&sound, "deepseek2.attention.key_length_mla", 6, "key_length_mla is 6, but must lie between 7 and"},
        {&sound, "deepseek2.attention.value_length_mla", 15, "attn_v_b.weight has the wrong shape"},
        {&sound, "deepseek2.rope.dimension_count", 5, "dimension_count is 5, but must be even"},
        {&sound, "deepseek2.expert_group_count", 5, "expert_count is 12, but must lie between 10 and 10"},
        {&sound, "deepseek2.expert_group_used_count", 0, "expert_group_used_count is 0, but must lie between 1 and 4"},
        {&sound, "deepseek2.expert_group_used_count", 5, "expert_group_used_count is 5, but"},
        {&sound, "deepseek2.expert_gating_func", 3, "expert_gating_func is 3, but must lie between 0 and 2"},
        {&sound, "deepseek2.leading_dense_block_count", 0, "blk.0.ffn_gate_inp.weight is missing"},
        {&sound, "blk.1.attn_k_b.weight", -1, "tensor blk.1.attn_k_b.weight is missing"},
        {&sound, "blk.1.attn_kv_a_norm.weight", -1, "tensor blk.1.attn_kv_a_norm.weight is missing"},
        {&joined, "blk.1.attn_kv_b.weight", -1, "tensor blk.1.attn_k_b.weight is missing"},
        {&joined, "deepseek2.attention.value_length", 15, "attn_kv_b.weight has the wrong shape"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        fr_error err = {0};
        if (open_changed(changes[i].m, changes[i].name, changes[i].value, &err) == FR_OK ||
            !strstr(err.message, changes[i].says))
            fail_msg("%s %d: the error should contain '%s', and is '%s'", changes[i].name, changes[i].value,
                     changes[i].says, err.message);
    }
}

/* One latent and one rotated key for each layer, nothing for single heads, and no values. */
static void a_token_takes_one_latent_of_each_layer(void **state) {
    (void)state;
    Gguf *g = rig_random_gguf(&sound);
    Weights *w = rig_weights(g, NULL);
    CostWork work;
    w->backend->work(w, KV_F16, &work);
    assert_true(work.kv_bytes_per_key == 2 * (12 + 6) * 2);
    RigOptions o = rig_options(40, 1);
    o.kv_type = KV_F16;
    Executor *e = rig_executor(w, &o);
    const CpuKv *kv = &((const CpuContext *)(const void *)executor_context(e))->kv[KV_ALL];
    assert_int_equal(cpu_kv_n_planes(kv), 2);
    assert_int_equal(kv->slot_bytes, (12 + 6) * 2);
    assert_ptr_equal(cpu_kv_keys(kv, 1, 0), cpu_kv_values(kv, 1, 0));
    rig_executor_close(e);
    rig_weights_close(w);
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(unfit_files_are_refused_by_name),
                                       cmocka_unit_test(a_token_takes_one_latent_of_each_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
