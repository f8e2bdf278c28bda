/* test_ranks_assistant.c - the drafter mtp with an assistant of Gemma 4, beside a target that is divided among
 * processes: trees and texts are those of one process, also where some processes have more KV heads than others, or
 * none. */
#include "assistant_rig.h"
#include "engine_rig.h"

#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

enum { N_PROMPT = 24, N_TOKENS = 8, MOST_RANKS = 4 };

static fr_model *open_divided(const char *path, int n_ranks) {
    fr_error err;
    fr_model *m = NULL;
    const fr_model_options options = {.struct_size = sizeof options, .n_threads = 1, .n_ranks = n_ranks};
    if (fr_model_open(&m, path, &options, &err)) fail_msg("%s", err.message);
    return m;
}

/* Variant 1 has a cache of bytes, a temperature, and pages of layers with a window that are given back. */
static void generate(const fr_model *m, const char *spec, int variant, Stream *out) {
    int32_t prompt[N_PROMPT];
    rig_tokens(9, ASSISTANT_VOCAB, prompt, N_PROMPT);
    fr_engine *e = rig_open_engine(m, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                           .n_ctx = variant ? 1024 : 128,
                                                           .n_threads = 1,
                                                           .kv_page_size = variant ? 4 : 16,
                                                           .kv_type = variant ? FR_KV_Q8 : FR_KV_F16,
                                                           .prefill_chunk = 7});
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .drafts = &spec,
                            .n_drafts = 1,
                            .tree_budget = 8,
                            .ignore_eos = 1};
    fr_engine_stats stats = {.struct_size = sizeof stats};
    o.sampling.temperature = (float)variant, o.sampling.seed = 4;
    rig_run_request(e, &o, out);
    fr_engine_get_stats(e, &stats);
    assert_int_equal(stats.n_divided_drafts, m->ranks != NULL);
    fr_engine_close(e);
    assert_string_equal(out->draft_error, "");
}

/* Runs the first files with one process and then with up to 4, at least n_ranks of them. */
static void check_files(int n_files, int n_ranks) {
    static Stream plain[ASSISTANT_FILES], got;
    for (int n = 1; n <= MOST_RANKS; n = n == 1 ? n_ranks : n + 1) {
        fr_model *targets[ASSISTANT_TARGETS];
        for (int i = 0; i < ASSISTANT_TARGETS; i++) targets[i] = open_divided(assistant_targets[i].path, n);
        for (int i = 0; i < n_files; i++) {
            const AssistantFile *f = &assistant_files[i];
            Stream *out = n == 1 ? &plain[i] : &got;
            char spec[80];
            snprintf(spec, sizeof spec, "mtp:file=%s,depth=2,top=2", f->path);
            generate(targets[f->target], spec, i % 2, out);
            rig_assert_same(&plain[i], out, spec);
            assert_true(out->stats.drafted > 0);
            if (out->stats.drafted != plain[i].stats.drafted || out->stats.accepted != plain[i].stats.accepted)
                fail_msg("%s: %d processes draft other trees", spec, n);
        }
        for (int i = 0; i < ASSISTANT_TARGETS; i++) fr_model_close(targets[i]);
    }
}

/* The targets have one or two KV heads, so that of three or four processes some have none. */
static void processes_change_no_tree(void **state) {
    assistant_rig_open(state);
    check_files(ASSISTANT_FILES, 2);
    assistant_rig_close(state);
}

/* Three processes have 1, 1 and 2 of the four KV heads. */
static void heads_that_do_not_divide_evenly_change_no_tree(void **state) {
    AssistantTarget *t = &assistant_targets[0];
    for (int i = 0; i < 6; i++) t->model.kv_head_counts[i] = 4;
    t->model.n_head_kv = t->n_kv[ASSISTANT_FULL] = t->n_kv[ASSISTANT_LOCAL] = 4;
    assistant_rig_open(state);
    check_files(1, 3);
    assistant_rig_close(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_change_no_tree),
        cmocka_unit_test(heads_that_do_not_divide_evenly_change_no_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
