/* engine_rig.c - opens models and engines, runs requests, and compares their results. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "model_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static fr_model *open_model(const char *path, const fr_model_options *options) {
    fr_error err;
    fr_model *model;
    if (fr_model_open(&model, path, options, &err)) fail_msg("%s", err.message);
    return model;
}

fr_model *rig_open_model(const char *path, const char *kernels) { return rig_open_model_with(path, kernels, NULL); }

fr_model *rig_open_model_with(const char *path, const char *kernels, const char *activations) {
    return open_model(path, &(fr_model_options){.struct_size = sizeof(fr_model_options),
                                                .kernels = kernels,
                                                .activations = activations,
                                                .n_threads = 2});
}

fr_model *rig_open_model_in(const char *path, const char *backend) {
    return open_model(path,
                      &(fr_model_options){.struct_size = sizeof(fr_model_options), .backend = backend, .n_threads = 2});
}

fr_model *rig_open_random(const RandomModel *m) {
    char path[] = "build/random-XXXXXX";
    rig_write_random(m, path);
    fr_model *model = rig_open_model(path, NULL);
    unlink(path);
    return model;
}

fr_engine *rig_open_engine(const fr_model *model, const fr_engine_options *options) {
    fr_error err;
    fr_engine *engine;
    if (fr_engine_open(&engine, model, options, &err)) fail_msg("%s", err.message);
    return engine;
}

void rig_add_drafter(fr_engine *engine, const char *name, Drafter *drafter) {
    for (int i = 0; i < ENGINE_MAX_DRAFTERS; i++)
        if (!engine->drafters[i].spec) {
            engine->drafters[i] = (EngineDrafter){.spec = strdup(name),
                                                  .drafter = drafter,
                                                  .n_users = 1}; /* never makes room */
            return;
        }
    fail_msg("no room for another drafter");
}

int rig_open_request(fr_request **out, fr_engine *engine, const fr_request_options *options, fr_error *err) {
    int status = FR_OK;
    *out = NULL;
    for (int i = 0; i < options->n_drafts && !status; i++)
        status = fr_engine_open_draft(engine, options->drafts[i], err);
    if (!status && options->tree_budget == FR_TREE_BUDGET_AUTO) status = fr_engine_measure_costs(engine, err);
    return status ? status : fr_request_open(out, engine, options, err);
}

void rig_collect(const fr_request *request, Stream *out) {
    size_t n_bytes;
    const int32_t *tokens = fr_request_tokens(request, &out->n);
    const char *text = fr_request_text(request, &n_bytes);
    assert_true(out->n <= RIG_MAX_TOKENS && n_bytes < sizeof out->text);
    memcpy(out->tokens, tokens, (size_t)out->n * sizeof *tokens);
    memcpy(out->text, text, n_bytes + 1);
    out->stats.struct_size = sizeof out->stats;
    out->drafts.struct_size = sizeof out->drafts;
    assert_int_equal(fr_request_get_stats(request, &out->stats), FR_OK);
    assert_int_equal(fr_request_get_draft_stats(request, &out->drafts), FR_OK);
    snprintf(out->draft_error, sizeof out->draft_error, "%s", fr_request_draft_error(request));
    out->finish = fr_request_finish_reason(request);
}

fr_sampling rig_sampling(int i) {
    fr_sampling s = fr_sampling_default();
    switch (i) {
    case 0: break;
    case 1: s.temperature = 0.8f, s.seed = 1; break;
    case 2: s.temperature = 1, s.top_p = 0.9f, s.min_p = 0.02f, s.seed = 22; break;
    case 3: s.temperature = 1.3f, s.top_k = 20, s.repeat_penalty = 1.3f, s.seed = 333; break;
    default: s.frequency_penalty = 0.4f, s.presence_penalty = 0.3f, s.penalty_last_n = 16; break;
    }
    return s;
}
void rig_run_request(fr_engine *engine, const fr_request_options *options, Stream *out) {
    fr_error err;
    fr_request *request;
    if (rig_open_request(&request, engine, options, &err)) fail_msg("%s", err.message);
    int left;
    while ((left = fr_engine_step(engine, &err)) > 0) {}
    if (left < 0) fail_msg("%s", err.message);
    rig_collect(request, out);
    if (out->finish == FR_FINISH_ERROR) fail_msg("%s", fr_request_error(request)->message);
    fr_request_close(request);
}

void rig_assert_same(const Stream *expected, const Stream *got, const char *what) {
    for (int64_t i = 0; i < expected->n && i < got->n; i++)
        if (expected->tokens[i] != got->tokens[i])
            fail_msg("%s: token %lld is %d, but %d in plain decoding", what, (long long)i, got->tokens[i],
                     expected->tokens[i]);
    if (expected->n != got->n)
        fail_msg("%s: %lld tokens, but %lld in plain decoding", what, (long long)got->n, (long long)expected->n);
    if (strcmp(expected->text, got->text) != 0)
        fail_msg("%s: text '%s', but '%s' plainly", what, got->text, expected->text);
    if (expected->finish != got->finish) fail_msg("%s: finish %d, but %d plainly", what, got->finish, expected->finish);
    if (expected->stats.logits_hash != got->stats.logits_hash)
        fail_msg("%s: logits hash %016llx, but %016llx plainly", what, (unsigned long long)got->stats.logits_hash,
                 (unsigned long long)expected->stats.logits_hash);
}
