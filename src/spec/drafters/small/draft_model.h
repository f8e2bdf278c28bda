/* draft_model.h - a second, smaller model as drafter: what `sps`, `rsd-c`, `rsd-s`, `spectr` and `specinfer`
 * share, and their classes. */
#ifndef SMALL_DRAFT_MODEL_H
#define SMALL_DRAFT_MODEL_H

#include "spec/drafter/drafter.h"

enum { DRAFT_MODEL_MAX_LEVELS = 64, DRAFT_MODEL_MAX_WIDTH = 64 };

typedef enum DraftGrowth {
    DRAFT_BRANCHES, /* width[l] children of each node of level l, drawn without replacement */
    DRAFT_BEAM,     /* stochastic beam search: width[l] nodes at level l + 1 */
    DRAFT_PATHS,    /* width[l] independent paths, the same at every level; where they agree they share nodes */
} DraftGrowth;

/* The tree a method grows below the pending token, and the noise it is drawn with. */
typedef struct DraftShape {
    DraftGrowth growth;
    int32_t n_levels;
    int32_t width[DRAFT_MODEL_MAX_LEVELS];
    bool coupled;    /* to the target's own draw, where no distributions are asked for; not for several DRAFT_PATHS */
    uint64_t i_model; /* among the models of one tree: models of different numbers never share noise */
} DraftShape;

/* The options that these methods share. */
#define DRAFT_MODEL_OPTION_MODEL {"model", "", "GGUF file of the draft model, with the target's vocabulary"}
#define DRAFT_MODEL_OPTION_COUPLED                                                                           \
    {"coupled", "1",                                                                                         \
     "1: draw with the target's own noise, which is accepted more often; 0, and under every rule but "      \
     "sampled: with other noise"}

/* Reads `coupled` of the spec. */
int draft_model_get_coupled(const DraftSpec *spec, const DrafterClass *class, bool *coupled, fr_error *err);
/* Opens the model at `path`; refuses one whose vocabulary is not the target's, and trees that no Tree holds. */
int draft_model_open(Drafter **out, const char *path, const DrafterClass *class, const DraftShape *shape,
                     const DrafterEnv *env, fr_error *err);
/* The rest of the vtable. propose adds to what already stands in a tree. */
void draft_model_close(Drafter *drafter);
void draft_model_set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling,
                              uint64_t position);
int draft_model_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int draft_model_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int draft_model_propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets,
                        Tree *const *trees, int n, fr_error *err);
void draft_model_end(Drafter *drafter, int32_t sequence);

/* Will it draw this tree by chance and declare the distributions? Then the budget cuts the shape, not the nodes. */
bool draft_model_declares(const Drafter *drafter, int32_t sequence, const Tree *t);
/* Forwards of the draft model so far; for measurements. */
int64_t draft_model_n_forwards(const Drafter *drafter);

extern const DrafterClass draft_sps_class, draft_rsd_c_class, draft_rsd_s_class, draft_spectr_class,
    draft_specinfer_class;

#endif
