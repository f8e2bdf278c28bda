/* draft_rsd_s.c - the drafter `rsd-s`: a tree by stochastic beam search over a draft model.
 *
 * Recursive Speculative Decoding with stochastic beam search (RSD-S, section 3.2.1; Kool et al. 2019): each level
 * keeps the `width` paths of greatest perturbed log-probability over all parents (arithmetic: gumbel.c). These are
 * `width` draws of whole paths without replacement. Likely parents get several children and unlikely ones none,
 * whereas rsd-c has fixed numbers. The tree has width * depth nodes and costs `depth` forwards of the draft model a
 * step. Greedy requests get plain beam search. The nodes of a level are in descending order of their perturbed
 * values. Under the rule `transport` a level consists of whole groups instead (grow_level.c).
 *
 * With coupled=1 all parents of a level share the target's noise of that output position. The paths are then no
 * longer independent draws; but the first of each group of siblings is still the most probable choice of the target,
 * and the first path of the beam is the chain that `sps` would draw. */
#include "draft/models/draft_model.h"

typedef struct RsdSOptions {
    const char *model;
    bool coupled;
    int32_t width, depth;
} RsdSOptions;

static const Option option_table[] = {
    DRAFT_MODEL_OPTION_MODEL(RsdSOptions),
    DRAFT_MODEL_OPTION_COUPLED(RsdSOptions),
    {.key = "width",
     OPT_INT(RsdSOptions, width, 1, DRAFT_MODEL_MAX_WIDTH),
     .default_value = "4",
     .help = "paths kept at each level"},
    {.key = "depth",
     OPT_INT(RsdSOptions, depth, 1, DRAFT_MODEL_MAX_LEVELS),
     .default_value = "3",
     .help = "number of levels"},
    {.key = NULL},
};

static int open_rsd_s(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const RsdSOptions *o = options;
    DraftShape shape = {.growth = DRAFT_BEAM, .n_levels = o->depth, .coupled = o->coupled};
    for (int32_t i = 0; i < shape.n_levels; i++) shape.width[i] = o->width;
    return draft_model_open(out, o->model, "rsd-s", &shape, env, err);
}

extern const DrafterClass draft_rsd_s_class;
const DrafterClass draft_rsd_s_class = {
    .name = "rsd-s",
    .summary = "a small model of the same vocabulary: a tree by stochastic beam search",
    .option_table = option_table,
    .options_size = sizeof(RsdSOptions),
    .open = open_rsd_s,
    .close = draft_model_close,
    .draws = true,
    .set_sampling = draft_model_set_sampling,
    .begin = draft_model_begin,
    .observe_prompt = draft_model_observe_prompt,
    .take_over = draft_model_take_over,
    .n_held = draft_model_n_held,
    .reach = draft_model_reach,
    .observe = draft_model_observe,
    .propose = draft_model_propose,
    .end = draft_model_end,
};
