/* test_matrix_scales.c - factors of whole matrices (layer_matrix_scale): outputs are multiplied by them, each expert's
 * by its own, and files that have factors where they cannot be used are refused with the tensor's name. Values:
 * test_golden_own.c, test_reference.c. */
#include "testing.h"

#include "model_patch.h"
#include "model_rig.h"
#include "random_model.h"

#include <math.h>
#include <string.h>

#define PATH "build/matrix-scales.gguf"

static const RandomModel model = {.arch = "qwen3moe",
                                  .n_layer = 2,
                                  .n_embd = 64,
                                  .n_head = 2,
                                  .n_head_kv = 1,
                                  .head_dim = 64,
                                  .n_ff = 64,
                                  .n_vocab = 61,
                                  .n_expert = 5,
                                  .n_expert_used = 2,
                                  .n_ff_expert = 64,
                                  .types = {TYPE_NVFP4},
                                  .n_types = 1,
                                  .has_scales = true,
                                  .seed = 5};

static void write_model(const RandomModel *m) {
    fr_error err;
    if (random_model_write(m, PATH, &err)) fail_msg("%s", err.message);
}

static float first_scale(const Gguf *g, const char *name, int64_t i) {
    return ((const float *)gguf_find_tensor(g, name)->data)[i];
}

static void each_matrix_has_its_own(void **state) {
    (void)state;
    write_model(&model);
    Gguf *g = rig_gguf(PATH);
    Weights *w = rig_weights(g, NULL);
    const LayerSpec *l = &w->model->layers[1];
    assert_true(layer_matrix_scale(l, MATRIX_Q, 0) == first_scale(g, "blk.1.attn_q.scale", 0));
    for (int64_t e = 0; e < model.n_expert; e++)
        assert_true(layer_matrix_scale(l, MATRIX_EXPERT_UP, e) == first_scale(g, "blk.1.ffn_up_exps.scale", e));
    assert_true(layer_matrix_scale(l, MATRIX_Q_A, 0) == 1);
    rig_weights_close(w);
    gguf_close(g);
}

/* Outputs double if the factor does, and factors of inputs change nothing. */
static void only_the_factor_of_a_matrix_counts(void **state) {
    (void)state;
    enum { N = 6 };
    static const char *const changed[] = {NULL, "blk.0.attn_q.input_scale", "blk.0.attn_q.scale",
                                          "blk.1.ffn_down_exps.scale"};
    static float logits[4][N * 61];
    int32_t tokens[N];
    rig_tokens(3, 61, tokens, N);
    for (int k = 0; k < 4; k++) {
        ModelPatch p;
        write_model(&model);
        model_patch_open(&p, PATH);
        for (int64_t i = 0; changed[k] && i < gguf_find_tensor(p.gguf, changed[k])->dims[0]; i++)
            ((float *)model_patch_tensor(&p, changed[k]))[i] *= 2;
        model_patch_write(&p, PATH);
        model_patch_close(&p);
        Gguf *g = rig_gguf(PATH);
        Weights *w = rig_weights(g, NULL);
        RigOptions o = rig_options(N, N);
        Executor *e = rig_executor(w, &o);
        rig_append(e, rig_sequence(e), tokens, N, N, 61, logits[k]);
        rig_executor_close(e);
        rig_weights_close(w);
        gguf_close(g);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    assert_true(memcmp(logits[0], logits[2], sizeof logits[0]) != 0);
    assert_true(memcmp(logits[0], logits[3], sizeof logits[0]) != 0);
}

/* Renames the tensor `name` to new_name, which has the same length; or, with new_name NULL, makes its first number
 * NaN. */
static void expect_refusal(const RandomModel *m, const char *name, const char *new_name, const char *says) {
    ModelPatch p;
    fr_error err = {0};
    size_t n = strlen(name), at = 0;
    write_model(m);
    model_patch_open(&p, PATH);
    while (at + n < p.n && memcmp(p.bytes + at, name, n) != 0) at++;
    assert_true(at + n < p.n);
    if (new_name) memcpy(p.bytes + at, new_name, n);
    else *(float *)model_patch_tensor(&p, name) = NAN;
    model_patch_write(&p, PATH);
    model_patch_close(&p);
    Gguf *g = rig_gguf(PATH);
    Model *opened = NULL;
    if (model_open(&opened, g, &err) == FR_OK || !strstr(err.message, says))
        fail_msg("the error should contain '%s': '%s'", says, err.message);
    gguf_close(g);
}

static void what_cannot_be_used_is_refused(void **state) {
    (void)state;
    expect_refusal(&model, "blk.0.attn_q.scale", "blk.0.attn_q.scalf", "blk.0.attn_q.scalf is not part of");
    expect_refusal(&model, "blk.0.attn_q.scale", "blk.0.attn_x.scale", "blk.0.attn_x.scale is not part of");
    expect_refusal(&model, "blk.0.attn_q.scale", NULL, "blk.0.attn_q.scale holds NaN or infinity");
    expect_refusal(&model, "blk.1.attn_q.scale", "blk.1.attn_q.wcale", "blk.1.attn_q.wcale is not part of");
    /* the factor of a norm, which is no matrix */
    expect_refusal(&model, "blk.1.attn_output.scale", "blk.1.attn_q_norm.scale",
                   "blk.1.attn_q_norm.scale is not part of");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_matrix_has_its_own),
                                       cmocka_unit_test(only_the_factor_of_a_matrix_counts),
                                       cmocka_unit_test(what_cannot_be_used_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
