/* draft_sps.c - the drafter `sps`: a chain of draws from a draft model.
 *
 * Speculative sampling in its first form (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2):
 * the draft model runs `length` steps ahead of the target. It is the tree of one branch everywhere, and the
 * baseline that every tree has to beat. The papers accept with ratios of p and q (--verify chain); by
 * default the target's own keyed draw decides (verifier.c), and coupled=1 lets the draft draw with the same noise. Cost: `length` forwards
 * of the draft model a step. */
#include "spec/drafters/small/draft_model.h"

static const DrafterOption options[] = {
    DRAFT_MODEL_OPTION_MODEL,
    DRAFT_MODEL_OPTION_COUPLED,
    {"length", "5", "tokens in the chain"},
    {NULL, NULL, NULL},
};

static int open_sps(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    int64_t length;
    int status = draft_spec_get_int(spec, &draft_sps_class, "length", 1, DRAFT_MODEL_MAX_LEVELS, &length, err);
    DraftShape shape = {.growth = DRAFT_PATHS};
    if (!status) status = draft_model_get_coupled(spec, &draft_sps_class, &shape.coupled, err);
    if (status) return status;
    shape.n_levels = (int32_t)length;
    for (int32_t i = 0; i < shape.n_levels; i++) shape.width[i] = 1;
    return draft_model_open(out, draft_spec_get(spec, &draft_sps_class, "model"), &draft_sps_class, &shape, env, err);
}

const DrafterClass draft_sps_class = {
    .name = "sps",
    .summary = "a small model of the same vocabulary runs ahead: a chain of its tokens",
    .options = options,
    .open = open_sps,
    .close = draft_model_close,
    .draws = true,
    .set_sampling = draft_model_set_sampling,
    .begin = draft_model_begin,
    .observe = draft_model_observe,
    .propose = draft_model_propose,
    .end = draft_model_end,
};
