/* draft_rsd_c.c - the drafter `rsd-c`: a tree of constant branching factors, drawn from a draft model.
 *
 * Recursive Speculative Decoding with constant branching factors (RSD-C, section 3.2.1): b = (b_0, ...,
 * b_L-1); each node at depth l gets b_l children, the Gumbel-top-b_l of its distribution, in falling order of their
 * perturbed values. A tree of prod(b_0 .. b_l) nodes at depth l + 1, and L forwards of the draft model a
 * step. branch=3-2-1:
 *
 *     root ─┬─ x1 ─┬─ . ── .        3 + 6 + 6 = 15 nodes, 3 forwards
 *           │      └─ . ── .
 *           ├─ x2 ─┬─ ...           the target's draw is looked for among x1 x2 x3,
 *           └─ x3 ─┴─ ...           then among two, then in one place
 *
 * A comma separates the options of a draft, so that the factors are joined by '-' or 'x'. */
#include "spec/drafters/small/draft_model.h"

#include <stdlib.h>

static const DrafterOption options[] = {
    DRAFT_MODEL_OPTION_MODEL,
    DRAFT_MODEL_OPTION_COUPLED,
    {"branch", "3-2-1",
     "children of each node, level by level, joined by - or x (a comma would end the option)"},
    {NULL, NULL, NULL},
};

static int parse_branch(const char *text, DraftShape *shape, fr_error *err) {
    for (const char *p = text;; p++) {
        char *end;
        long b = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : 0;
        if (b < 1 || b > DRAFT_MODEL_MAX_WIDTH || shape->n_levels == DRAFT_MODEL_MAX_LEVELS ||
            (*end && *end != '-' && *end != 'x'))
            return error_set(err, FR_ERR_ARGUMENT,
                             "rsd-c: 'branch=%.80s' wants 1 to %d numbers from 1 to %d joined by '-', "
                             "such as 3-2-1",
                             text, DRAFT_MODEL_MAX_LEVELS, DRAFT_MODEL_MAX_WIDTH);
        shape->width[shape->n_levels++] = (int32_t)b;
        p = end;
        if (!*p) return FR_OK;
    }
}

static int open_rsd_c(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    DraftShape shape = {.growth = DRAFT_BRANCHES};
    int status = parse_branch(draft_spec_get(spec, &draft_rsd_c_class, "branch"), &shape, err);
    if (!status) status = draft_model_get_coupled(spec, &draft_rsd_c_class, &shape.coupled, err);
    if (status) return status;
    return draft_model_open(out, draft_spec_get(spec, &draft_rsd_c_class, "model"), &draft_rsd_c_class, &shape, env,
                            err);
}

const DrafterClass draft_rsd_c_class = {
    .name = "rsd-c",
    .summary = "a small model of the same vocabulary: a tree with a fixed number of children at each level",
    .options = options,
    .open = open_rsd_c,
    .close = draft_model_close,
    .draws = true,
    .set_sampling = draft_model_set_sampling,
    .begin = draft_model_begin,
    .observe = draft_model_observe,
    .propose = draft_model_propose,
    .end = draft_model_end,
};
