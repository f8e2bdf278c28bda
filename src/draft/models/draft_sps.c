/* draft_sps.c - the drafter `sps`: a chain of draws from a draft model.
 *
 * Speculative sampling in its first form (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2): the
 * draft model runs `length` steps ahead of the target. It is the tree with one branch everywhere, and the baseline
 * for all other trees. The papers accept tokens by ratios of p and q (--verify chain). By default the target's own
 * keyed draw decides (verifier.c), and with coupled=1 the draft draws with the same noise. Cost: `length` forwards of
 * the draft model a step. */
#include "draft/models/draft_model.h"

typedef struct SpsOptions {
    const char *model;
    bool coupled;
    int32_t length;
} SpsOptions;

static const Option option_table[] = {
    DRAFT_MODEL_OPTION_MODEL(SpsOptions),
    DRAFT_MODEL_OPTION_COUPLED(SpsOptions),
    {.key = "length",
     OPT_INT(SpsOptions, length, 1, DRAFT_MODEL_MAX_LEVELS),
     .default_value = "5",
     .help = "tokens in the chain"},
    {.key = NULL},
};

static int open_sps(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const SpsOptions *o = options;
    DraftShape shape = {.growth = DRAFT_PATHS, .n_levels = o->length, .coupled = o->coupled};
    for (int32_t i = 0; i < shape.n_levels; i++) shape.width[i] = 1;
    return draft_model_open(out, o->model, "sps", &shape, env, err);
}

extern const DrafterClass draft_sps_class;
const DrafterClass draft_sps_class = {
    .name = "sps",
    .summary = "a small model of the same vocabulary runs ahead: a chain of its tokens",
    .option_table = option_table,
    .options_size = sizeof(SpsOptions),
    .open = open_sps,
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
