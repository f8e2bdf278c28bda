/* engine_rig.h - running requests in tests: one model, one set of options, what came out. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

#include "testing.h"

#include "devil.h"

enum { RIG_MAX_TOKENS = 1024 };

/* What a request said. */
typedef struct Stream {
    int64_t n;
    int32_t tokens[RIG_MAX_TOKENS];
    char text[16 * RIG_MAX_TOKENS];
    fr_stats stats;
    fr_finish finish;
} Stream;

/* Opens or fails the test. */
fr_model *rig_open_model(const char *path, const char *kernels);
fr_model *rig_open_model_with(const char *path, const char *kernels, const char *activations);
fr_engine *rig_open_engine(const fr_model *model, const fr_engine_options *options);
/* Makes `drafter` answer to the spec `name` in this engine; it stays the test's. */
void rig_add_drafter(fr_engine *engine, const char *name, Drafter *drafter);
/* Runs a request to its end. */
void rig_run_request(fr_engine *engine, const fr_request_options *options, Stream *out);
void rig_collect(const fr_request *request, Stream *out);
/* Fails, printing both, where the two differ in tokens, text, finish or logits. */
void rig_assert_same(const Stream *expected, const Stream *got, const char *what);

#endif
