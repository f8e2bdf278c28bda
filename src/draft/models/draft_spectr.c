/* draft_spectr.c - the drafter `spectr`: K independent paths from a draft model.
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
#include "draft/models/draft_model.h"

typedef struct SpecTrOptions {
    const char *model;
    int32_t paths, length;
} SpecTrOptions;

static const Option option_table[] = {
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
    .summary = "a small model of the same vocabulary: several independent paths",
    .option_table = option_table,
    .options_size = sizeof(SpecTrOptions),
    .open = open_spectr,
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
