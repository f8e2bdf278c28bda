/* draft_model.h - a second, smaller model as drafter: the common part of `sps`, `rsd-c`, `rsd-s`, `spectr` and
 * `specinfer`. */
#ifndef SMALL_DRAFT_MODEL_H
#define SMALL_DRAFT_MODEL_H

#include "draft/models/small_model.h"

enum { DRAFT_MODEL_MAX_WIDTH = 64 };

typedef enum DraftGrowth {
    DRAFT_BRANCHES, /* width[l] children of each node of level l, drawn without replacement */
    DRAFT_BEAM,     /* stochastic beam search: width[l] nodes at level l + 1 */
    DRAFT_PATHS,    /* width[l] independent paths reach level l + 1; a path splits into as many as width[l] is times
                     * width[l - 1], of which it is a multiple. Common prefixes are shared */
} DraftGrowth;

/* The tree that a method grows below the pending token, and the noise that it is drawn with. */
typedef struct DraftShape {
    DraftGrowth growth;
    int32_t n_levels;
    int32_t width[DRAFT_MODEL_MAX_LEVELS];
    bool coupled; /* draws use the target's noise, unless the tree needs distributions; not with several DRAFT_PATHS */
    uint64_t i_model; /* the model's index among those that draft for one tree: no two of them share noise */
} DraftShape;

/* Rows of an option table for the fields `const char *model` and `bool coupled` of S. */
#define DRAFT_MODEL_OPTION_MODEL(S) \
    { \
        .key = "model", OPT_FILE(S, model), .required = "draft model", \
        .help = "GGUF file of the draft model, best with the target's vocabulary" \
    }
#define DRAFT_MODEL_OPTION_COUPLED(S) \
    { \
        .key = "coupled", OPT_FLAG(S, coupled), .default_value = "1", \
        .help = "1: draw with the target's own noise, so that more tokens are accepted (rule sampled only); 0: draw " \
                "with independent noise" \
    }

/* Parses the number of children of the nodes of each level, such as "3-2-1" or "3x2x1", into branch
 * [DRAFT_MODEL_MAX_LEVELS]. */
int draft_model_parse_branch(const char *text, int32_t *branch, int32_t *n_levels, fr_error *err);

/* Opens the model at `path`, as small_model_open does. Refuses shapes with more nodes than a Tree has. `method` names
 * the drafter in errors. */
int draft_model_open(Drafter **out, const char *path, const char *method, const DraftShape *shape,
                     const DrafterEnv *env, fr_error *err);
/* These are functions of a DrafterClass, whose others are in small_model.h. propose adds to the nodes that are already
 * in a tree. */
void draft_model_close(Drafter *drafter);
int draft_model_propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                        fr_error *err);

/* Returns whether the drafter will draw this tree at random and declare the distributions. The budget then limits the
 * shape before drawing; otherwise the finished tree is pruned to the budget. */
bool draft_model_declares(const Drafter *drafter, int32_t sequence, const Tree *t);

#endif
