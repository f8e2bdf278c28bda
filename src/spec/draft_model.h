/* draft_model.h - a second, smaller model as drafter: what `sps`, `rsd-c` and `rsd-s` share, and their
 * classes. */
#ifndef SPEC_DRAFT_MODEL_H
#define SPEC_DRAFT_MODEL_H

#include "spec/drafter.h"

enum { DRAFT_MODEL_MAX_LEVELS = 64, DRAFT_MODEL_MAX_WIDTH = 64 };

/* The tree a method grows below the pending token. */
typedef struct DraftShape {
    int32_t n_levels;
    int32_t width[DRAFT_MODEL_MAX_LEVELS]; /* children of each node of a level; of a beam: nodes of the level
                                              below */
    bool beam;
} DraftShape;

/* Every method's options start with these: `DRAFT_MODEL_OPTIONS, {...}, {NULL, NULL, NULL}`. */
#define DRAFT_MODEL_OPTIONS                                                                                  \
    {"model", "", "GGUF file of the draft model, with the target's vocabulary"}, {                           \
        "coupled", "1",                                                                                      \
            "1: draw with the target's own noise, which is accepted more often; 0: with other noise"         \
    }

/* Opens the model named in the spec; refuses one whose vocabulary is not the target's, and trees that no Tree
 * holds. */
int draft_model_open(Drafter **out, const DraftSpec *spec, const DrafterClass *class, const DraftShape *shape,
                     const DrafterEnv *env, fr_error *err);
/* The rest of the vtable. */
void draft_model_close(Drafter *drafter);
void draft_model_set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling,
                              uint64_t position);
int draft_model_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int draft_model_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int draft_model_propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets,
                        Tree *const *trees, int n, fr_error *err);
void draft_model_end(Drafter *drafter, int32_t sequence);

/* Forwards of the draft model so far; for measurements. */
int64_t draft_model_n_forwards(const Drafter *drafter);

extern const DrafterClass draft_sps_class, draft_rsd_c_class, draft_rsd_s_class;

#endif
