/* draft_model_methods.c - the drafters `sps`, `rsd-c`, `rsd-s` and `spectr`. They differ in the shape of the tree that
 * one draft model grows (draft_model.c). */
#include "draft/models/draft_model.h"

/* What the classes have in common. */
#define DRAFT_MODEL_CALLS \
    .close = draft_model_close, .draws = true, .set_sampling = small_model_set_sampling, .begin = small_model_begin, \
    .observe_prompt = small_model_observe_prompt, .take_over = small_model_take_over, .n_held = small_model_n_held, \
    .reach = small_model_reach, .save = small_model_save, .load = small_model_load, .observe = small_model_observe, \
    .propose = draft_model_propose, .end = small_model_end, .shared_vocab = small_model_shared_vocab

/* ---- sps ------------------------------------------------------------------------------------------------- */

/* `sps` is a chain of draws from a draft model.
 *
 * Speculative sampling in its first form (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2): the
 * draft model runs `length` steps ahead of the target. It is the tree with one branch everywhere, and the baseline
 * for all other trees. The papers accept tokens by ratios of p and q (--verify chain). By default the target's own
 * keyed draw decides (verifier.c), and with coupled=1 the draft draws with the same noise. Cost: `length` forwards of
 * the draft model a step. */
typedef struct SpsOptions {
    const char *model;
    bool coupled;
    int32_t length;
} SpsOptions;

static const Option sps_options[] = {
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
    .summary = "a small model runs ahead: a chain of its tokens",
    .option_table = sps_options,
    .options_size = sizeof(SpsOptions),
    .open = open_sps,
    DRAFT_MODEL_CALLS,
};

/* ---- rsd-c ----------------------------------------------------------------------------------------------- */

/* `rsd-c` is a tree of constant branching factors, drawn from a draft model.
 *
 * Recursive Speculative Decoding with constant branching factors (RSD-C, section 3.2.1): b = (b_0, ..., b_L-1). Each
 * node at depth l gets b_l children, the Gumbel-top-b_l of its distribution, in descending order of their perturbed
 * values. That is prod(b_0 .. b_l) nodes at depth l + 1, and L forwards of the draft model a step. branch=3-2-1:
 *
 *     root ─┬─ x1 ─┬─ . ── .        3 + 6 + 6 = 15 nodes, 3 forwards
 *           │      └─ . ── .        the target's choice is accepted if it is one of x1 x2 x3,
 *           ├─ x2 ─┬─ ...           the next one if it is one of two children,
 *           └─ x3 ─┴─ ...           and the third one if it is the only child
 *
 * A comma ends an option, so the factors are joined by '-' or 'x'. */
typedef struct RsdCOptions {
    const char *model;
    bool coupled;
    int32_t n_levels, branch[DRAFT_MODEL_MAX_LEVELS];
} RsdCOptions;

static int parse_branch(void *out, const char *text, fr_error *err) {
    RsdCOptions *o = out;
    return draft_model_parse_branch(text, o->branch, &o->n_levels, err);
}

static const Option rsd_c_options[] = {
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
    .summary = "a small model: a tree with a fixed number of children at each level",
    .option_table = rsd_c_options,
    .options_size = sizeof(RsdCOptions),
    .open = open_rsd_c,
    DRAFT_MODEL_CALLS,
};

/* ---- rsd-s ----------------------------------------------------------------------------------------------- */

/* `rsd-s` is a tree by stochastic beam search over a draft model.
 *
 * Recursive Speculative Decoding with stochastic beam search (RSD-S, section 3.2.1; Kool et al. 2019): each level
 * keeps the `width` paths of greatest perturbed log-probability over all parents (arithmetic: gumbel.c). These are
 * `width` draws of whole paths without replacement. Likely parents get several children and unlikely ones none,
 * whereas rsd-c has fixed numbers. The tree has width * depth nodes and costs `depth` forwards of the draft model a
 * step. Greedy requests get plain beam search. The nodes of a level are in descending order of their perturbed
 * values. Under the rule `transport` a level consists of whole groups of siblings instead (draft_model.c).
 *
 * With coupled=1 all parents of a level share the target's noise of that output position. The paths are then no
 * longer independent draws; but the first of each group of siblings is still the most probable choice of the target,
 * and the first path of the beam is the chain that `sps` would draw. */
typedef struct RsdSOptions {
    const char *model;
    bool coupled;
    int32_t width, depth;
} RsdSOptions;

static const Option rsd_s_options[] = {
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
    .summary = "a small model: a tree by stochastic beam search",
    .option_table = rsd_s_options,
    .options_size = sizeof(RsdSOptions),
    .open = open_rsd_s,
    DRAFT_MODEL_CALLS,
};

/* ---- spectr ---------------------------------------------------------------------------------------------- */

/* `spectr` draws K independent paths from a draft model.
 *
 * SpecTr (Sun et al. 2023, arXiv 2310.15141): the draft model continues the text K times independently. A path of L
 * tokens is L draws from q, so siblings are draws with replacement; the rule of the paper, K-SEQ, tries them one
 * after the other (--verify k-seq). Paths share the nodes of their common prefix, and a node that j paths pass
 * through has j draws in its group. paths=3, length=2:
 *
 *   1  cat sat                                   draws below the root: cat, dog, cat
 *   2  dog ran      the ─┬─ cat ─┬─ sat          below cat: sat (path 1), ran (path 3)
 *   3  cat ran           │       └─ ran          below dog: ran
 *                        └─ dog ─── ran          5 nodes of at most 6
 *
 * There is no `coupled` option: with the target's noise all paths would be the same. Greedy paths split at the root,
 * where each takes another of the K most probable tokens; under a ratio rule they are one path, because K draws from
 * a distribution of one token are equal. Cost: `length` forwards of the draft model a step, and one pass over V for
 * each path in each of them. It loses to rsd-c if paths agree, since a second draw of the same token proposes nothing
 * new. */
typedef struct SpecTrOptions {
    const char *model;
    int32_t paths, length;
} SpecTrOptions;

static const Option spectr_options[] = {
    DRAFT_MODEL_OPTION_MODEL(SpecTrOptions),
    {.key = "paths",
     OPT_INT(SpecTrOptions, paths, 1, DRAFT_MODEL_MAX_WIDTH),
     .default_value = "4",
     .help = "number of independent paths"},
    {.key = "length",
     OPT_INT(SpecTrOptions, length, 1, DRAFT_MODEL_MAX_LEVELS),
     .default_value = "4",
     .help = "tokens in each path"},
    {.key = NULL},
};

static int open_spectr(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const SpecTrOptions *o = options;
    DraftShape shape = {.growth = DRAFT_PATHS, .n_levels = o->length};
    for (int32_t i = 0; i < shape.n_levels; i++) shape.width[i] = o->paths;
    return draft_model_open(out, o->model, "spectr", &shape, env, err);
}

extern const DrafterClass draft_spectr_class;
const DrafterClass draft_spectr_class = {
    .name = "spectr",
    .summary = "a small model: several independent paths",
    .option_table = spectr_options,
    .options_size = sizeof(SpecTrOptions),
    .open = open_spectr,
    DRAFT_MODEL_CALLS,
};
