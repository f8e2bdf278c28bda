/* engine_rig.h - runs requests in tests, and compares what they generate. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

#include "testing.h"

#include "devil.h"
#include "random_model.h"

enum { RIG_MAX_TOKENS = 1024 };

/* The result of a request. */
typedef struct Stream {
    int64_t n;
    int32_t tokens[RIG_MAX_TOKENS];
    char text[16 * RIG_MAX_TOKENS];
    fr_stats stats;
    fr_draft_stats drafts;
    char draft_error[256];
    fr_finish finish;
} Stream;

/* Sampling of different kinds, for 0 <= i < RIG_N_SAMPLINGS: greedy first, then temperatures with filters, and
 * penalties. */
enum { RIG_N_SAMPLINGS = 5 };
fr_sampling rig_sampling(int i);

/* Opens or fails the test. */
fr_model *rig_open_model(const char *path, const char *kernels);
fr_model *rig_open_model_with(const char *path, const char *kernels, const char *activations);
fr_model *rig_open_model_in(const char *path, const char *backend);
fr_model *rig_open_random(const RandomModel *m); /* written to a temporary file below build/, which is unlinked */
fr_engine *rig_open_engine(const fr_model *model, const fr_engine_options *options);
/* Opens `drafter` in this engine under the spec `name`. The drafter belongs to the test, and must outlive the
 * engine. */
void rig_add_drafter(fr_engine *engine, const char *name, Drafter *drafter);
/* Opens a request, after opening the drafters that it names. */
int rig_open_request(fr_request **out, fr_engine *engine, const fr_request_options *options, fr_error *err);
/* Runs a request to its end. */
void rig_run_request(fr_engine *engine, const fr_request_options *options, Stream *out);
void rig_collect(const fr_request *request, Stream *out);
/* Fails, and prints both values, if the two differ in tokens, text, finish or logits. */
void rig_assert_same(const Stream *expected, const Stream *got, const char *what);

#endif
