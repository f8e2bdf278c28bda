/* draft_rsd_c.c - the drafter `rsd-c`: a tree of constant branching factors, drawn from a draft model.
 *
 * Recursive Speculative Decoding with constant branching factors (RSD-C, section 3.2.1): b = (b_0, ..., b_L-1). Each
 * node at depth l gets b_l children, the Gumbel-top-b_l of its distribution, in descending order of their perturbed
 * values. That is prod(b_0 .. b_l) nodes at depth l + 1, and L forwards of the draft model a step. branch=3-2-1:
 *
 *     root ─┬─ x1 ─┬─ . ── .        3 + 6 + 6 = 15 nodes, 3 forwards
 *           │      └─ . ── .
 *           ├─ x2 ─┬─ ...           the target's choice may be one of x1 x2 x3,
 *           └─ x3 ─┴─ ...           then one of two, then one
 *
 * A comma ends an option, so the factors are joined by '-' or 'x'. */
#include "draft/models/draft_model.h"

#include <stdlib.h>

typedef struct RsdCOptions {
    const char *model;
    bool coupled;
    int32_t n_levels, branch[DRAFT_MODEL_MAX_LEVELS];
} RsdCOptions;

/* "3-2-1" or "3x2x1". */
static int parse_branch(void *out, const char *text, fr_error *err) {
    RsdCOptions *o = out;
    o->n_levels = 0;
    for (const char *p = text;; p++) {
        char *end;
        long b = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : 0;
        if (b < 1 || b > DRAFT_MODEL_MAX_WIDTH || o->n_levels == DRAFT_MODEL_MAX_LEVELS ||
            (*end && *end != '-' && *end != 'x'))
            return error_set(err, FR_ERR_ARGUMENT, "must be 1 to %d integers from 1 to %d joined by '-', such as 3-2-1",
                             DRAFT_MODEL_MAX_LEVELS, DRAFT_MODEL_MAX_WIDTH);
        o->branch[o->n_levels++] = (int32_t)b;
        p = end;
        if (!*p) return FR_OK;
    }
}

static const Option option_table[] = {
    DRAFT_MODEL_OPTION_MODEL(RsdCOptions),
    DRAFT_MODEL_OPTION_COUPLED(RsdCOptions),
    {.key = "branch",
     OPT_CUSTOM(parse_branch),
     .default_value = "3-2-1",
     .metavar = "N-N-N",
     .help = "children of each node, level by level, joined by '-' or 'x'"},
    {.key = NULL},
};

static int open_rsd_c(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const RsdCOptions *o = options;
    DraftShape shape = {.growth = DRAFT_BRANCHES, .n_levels = o->n_levels, .coupled = o->coupled};
    for (int32_t i = 0; i < shape.n_levels; i++) shape.width[i] = o->branch[i];
    return draft_model_open(out, o->model, "rsd-c", &shape, env, err);
}

extern const DrafterClass draft_rsd_c_class;
const DrafterClass draft_rsd_c_class = {
    .name = "rsd-c",
    .summary = "a small model of the same vocabulary: a tree with a fixed number of children at each level",
    .option_table = option_table,
    .options_size = sizeof(RsdCOptions),
    .open = open_rsd_c,
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
