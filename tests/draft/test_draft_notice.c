/* test_draft_notice.c - fr_engine_draft_notice: which drafters note that their weights were published for a target of
 * 16 bits, and for which targets. */
#include "all_drafters.h"
#include "learned_rig.h"

#include <string.h>

#define TARGET_16 "build/notice-16.gguf"
#define COMPANION "mtp:file=build/notice-companion.gguf"

/* A target of ALL_DRAFTERS_EMBD and ALL_DRAFTERS_VOCAB; with a layer for mtp if it is qwen35. */
static void write_target(const char *path, const char *arch, TensorType type) {
    RandomModel m = {.arch = arch,
                     .n_layer = 2,
                     .n_embd = ALL_DRAFTERS_EMBD,
                     .n_head = 4,
                     .n_head_kv = 2,
                     .n_ff = 96,
                     .n_vocab = ALL_DRAFTERS_VOCAB,
                     .types = {type},
                     .n_types = 1,
                     .seed = 21};
    if (strcmp(arch, "qwen35") == 0) {
        m.n_key_heads = m.n_conv = m.attention_interval = 2;
        m.n_value_heads = 4, m.delta_dim = 8, m.n_nextn = 1;
    }
    fr_error err;
    if (random_model_write(&m, path, &err)) fail_msg("%s", err.message);
}

/* Opens a draft, and returns whether it has a notice with these words; another notice fails. */
static bool has_notice(fr_engine *e, const char *draft, const char *words) {
    fr_error err;
    assert_string_equal(fr_engine_draft_notice(e, draft), "");
    if (fr_engine_open_draft(e, draft, &err)) fail_msg("%s: %s", draft, err.message);
    const char *notice = fr_engine_draft_notice(e, draft);
    if (*notice && !strstr(notice, words)) fail_msg("'%s' does not contain '%s'", notice, words);
    return *notice;
}

static fr_engine *open_engine(fr_model **model, const char *target) {
    *model = rig_open_model(target, NULL);
    return rig_open_engine(*model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 64});
}

static bool is_published(const char *spec) { return strstr(spec, "eagle3:") || strstr(spec, "dflash:"); }

/* The other files name the target that they were trained for. */
static void published_files_note_a_quantised_target(void **state) {
    (void)state;
    fr_model *model;
    all_drafters_write_files();
    fr_engine *e = open_engine(&model, ALL_DRAFTERS_TARGET);
    for (int i = 0; all_drafters[i]; i++)
        if (has_notice(e, all_drafters[i], "is quantised (Q8_0)") != is_published(all_drafters[i]))
            fail_msg("%s: notice '%s'", all_drafters[i], fr_engine_draft_notice(e, all_drafters[i]));
    assert_non_null(strstr(fr_engine_draft_notice(e, "pld+eagle3:file=build/all-eagle3.gguf"), "forerun train eagle3"));
    assert_string_equal(fr_engine_draft_notice(NULL, "pld"), "");
    assert_string_equal(fr_engine_draft_notice(e, NULL), "");
    fr_engine_close(e);
    fr_model_close(model);
}

static void a_target_of_16_bits_is_not_noted(void **state) {
    (void)state;
    static const TensorType types[] = {TYPE_F16, TYPE_F32, TYPE_BF16};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        fr_model *model;
        write_target(TARGET_16, "llama", types[k]);
        fr_engine *e = open_engine(&model, TARGET_16);
        for (int i = 0; all_drafters[i]; i++)
            if (is_published(all_drafters[i])) assert_false(has_notice(e, all_drafters[i], ""));
        fr_engine_close(e);
        fr_model_close(model);
    }
}

/* Only a layer in a file beside the target's is noted. */
static void companions_note_a_quantised_target(void **state) {
    (void)state;
    static const TensorType types[] = {TYPE_Q4_0, TYPE_F16};
    write_target("build/notice-companion.gguf", "qwen35", TYPE_F16);
    for (int is_float = 0; is_float < 2; is_float++) {
        fr_model *model;
        write_target(TARGET_16, "qwen35", types[is_float]);
        fr_engine *e = open_engine(&model, TARGET_16);
        assert_int_equal(has_notice(e, COMPANION, "build/notice-companion.gguf: "), !is_float);
        assert_false(has_notice(e, "mtp", ""));
        fr_engine_close(e);
        fr_model_close(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_files_note_a_quantised_target),
        cmocka_unit_test(a_target_of_16_bits_is_not_noted),
        cmocka_unit_test(companions_note_a_quantised_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
