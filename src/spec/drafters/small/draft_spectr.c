/* draft_spectr.c - the drafter `spectr`: K independent paths from a draft model.
 *
 * SpecTr (Sun et al. 2023, arXiv 2310.15141): the draft model continues the text K times, each time by
 * itself. A path of L tokens is L draws from q, so that siblings are draws with replacement; the rule of the paper,
 * K-SEQ, tries them one after the other (--verify k-seq). Paths that agree so far share their nodes, and a node
 * that j paths pass has j draws in its group. paths=3, length=2:
 *
 *   1  cat sat                                   draws below the root: cat, dog, cat
 *   2  dog ran      the ─┬─ cat ─┬─ sat          below cat: sat (path 1), ran (path 3)
 *   3  cat ran           │       └─ ran          below dog: ran
 *                        └─ dog ─── ran          5 nodes of at most 6
 *
 * There is no `coupled` option: with the target's noise all paths would be the same. Greedy requests part at the
 * root, where each path takes another of the K most probable tokens; under a ratio rule they are one path, for K draws
 * from a distribution of one token are the same draw. Cost: `length` forwards of the draft model a
 * step, and one pass over V for each path in each. It loses to rsd-c where paths agree, for a second draw of the
 * same token offers nothing new. */
#include "spec/drafters/small/draft_model.h"

static const DrafterOption options[] = {
    DRAFT_MODEL_OPTION_MODEL,
    {"paths", "4", "independent paths"},
    {"length", "4", "tokens in each"},
    {NULL, NULL, NULL},
};

static int open_spectr(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    const DrafterClass *class = &draft_spectr_class;
    int64_t paths, length;
    int status = draft_spec_get_int(spec, class, "paths", 1, DRAFT_MODEL_MAX_WIDTH, &paths, err);
    if (!status) status = draft_spec_get_int(spec, class, "length", 1, DRAFT_MODEL_MAX_LEVELS, &length, err);
    if (status) return status;
    DraftShape shape = {.growth = DRAFT_PATHS, .n_levels = (int32_t)length};
    for (int32_t i = 0; i < shape.n_levels; i++) shape.width[i] = (int32_t)paths;
    return draft_model_open(out, draft_spec_get(spec, class, "model"), class, &shape, env, err);
}

const DrafterClass draft_spectr_class = {
    .name = "spectr",
    .summary = "a small model of the same vocabulary: several independent paths",
    .options = options,
    .open = open_spectr,
    .close = draft_model_close,
    .draws = true,
    .set_sampling = draft_model_set_sampling,
    .begin = draft_model_begin,
    .observe = draft_model_observe,
    .propose = draft_model_propose,
    .end = draft_model_end,
};
