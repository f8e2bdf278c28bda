/* draft_rsd_s.c - the drafter `rsd-s`: a tree by stochastic beam search over a draft model.
 *
 * Recursive Speculative Decoding with stochastic beam search (RSD-S, section 3.2.1; Kool et al. 2019): each
 * level keeps the `width` paths of greatest perturbed log-probability over all parents (draw.c holds the
 * arithmetic), which are `width` draws of whole paths without replacement. Unlikely parents get no children,
 * likely ones several, so that the nodes go where rsd-c would have to be told to put them. width * depth
 * nodes, `depth` forwards of the draft model a step. Greedy requests get plain beam search. Nodes stand in
 * falling order of their perturbed values, as printed.
 *
 * With coupled=1 all parents of a level share the target's noise of that output position. The paths are then
 * no longer independent draws; but among siblings the first is still the target's likeliest choice, and the
 * first path of the beam is the chain that `sps` would draw. */
#include "spec/drafters/small/draft_model.h"

static const DrafterOption options[] = {
    DRAFT_MODEL_OPTION_MODEL,
    DRAFT_MODEL_OPTION_COUPLED,
    {"width", "4", "paths kept at each level"},
    {"depth", "3", "levels"},
    {NULL, NULL, NULL},
};

static int open_rsd_s(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    int64_t width, depth;
    int status = draft_spec_get_int(spec, &draft_rsd_s_class, "width", 1, DRAFT_MODEL_MAX_WIDTH, &width, err);
    if (!status)
        status = draft_spec_get_int(spec, &draft_rsd_s_class, "depth", 1, DRAFT_MODEL_MAX_LEVELS, &depth, err);
    DraftShape shape = {.growth = DRAFT_BEAM};
    if (!status) status = draft_model_get_coupled(spec, &draft_rsd_s_class, &shape.coupled, err);
    if (status) return status;
    shape.n_levels = (int32_t)depth;
    for (int32_t i = 0; i < shape.n_levels; i++) shape.width[i] = (int32_t)width;
    return draft_model_open(out, draft_spec_get(spec, &draft_rsd_s_class, "model"), &draft_rsd_s_class, &shape, env,
                            err);
}

const DrafterClass draft_rsd_s_class = {
    .name = "rsd-s",
    .summary = "a small model of the same vocabulary: a tree by stochastic beam search",
    .options = options,
    .open = open_rsd_s,
    .close = draft_model_close,
    .draws = true,
    .set_sampling = draft_model_set_sampling,
    .begin = draft_model_begin,
    .observe = draft_model_observe,
    .propose = draft_model_propose,
    .end = draft_model_end,
};
