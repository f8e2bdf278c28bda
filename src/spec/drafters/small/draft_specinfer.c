/* draft_specinfer.c - the drafter `specinfer`: several draft models, one tree.
 *
 * SpecInfer (Miao et al. 2024, arXiv 2305.09781, merge-based token trees): small models that err in different ways
 * each draft a chain, and the chains become one tree. Where two models say the same token they share its node, and both
 * go on from there. The group below a node then holds one draw of each model whose path passes there, each from its
 * own q, and the rule of the paper tries them one after the other (multi-step speculative sampling;
 * --verify multi-round):
 *
 *   A  the cat sat       the ─── cat ─┬─ sat     below the: cat ~ q_A, cat ~ q_B: one node, two draws
 *   B  the cat ran                    └─ ran     below cat: sat ~ q_A, ran ~ q_B
 *
 * Each model is a DraftModel with a chain (draft_model.c) that adds to what the models before it left in the tree.
 * Without distributions the union is pruned to the budget by p_accept. With distributions nothing may be pruned, and the budget is dealt
 * out to the models beforehand. A ',' ends an option, so that files are joined by '+', which cannot stand in their
 * names. Cost: `length` forwards of each model a step, over all sequences. It loses where the models say the same,
 * or where one of them is much better than the others. */
#include "spec/drafters/small/draft_model.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_MODELS = 8 };

static const DrafterOption options[] = {
    {"models", "", "GGUF files of the draft models, joined by +, each with the target's vocabulary"},
    {"length", "4", "tokens in the chain of each model"},
    DRAFT_MODEL_OPTION_COUPLED,
    {NULL, NULL, NULL},
};

typedef struct SpecInfer {
    Drafter base;
    int32_t n_models;
    Drafter *models[MAX_MODELS];
    int32_t *shares; /* [max_sequences] the budgets of one model */
} SpecInfer;

static void close_specinfer(Drafter *drafter) {
    SpecInfer *s = (SpecInfer *)drafter;
    for (int32_t i = 0; i < s->n_models; i++) draft_model_close(s->models[i]);
    mem_free(s->shares);
    mem_free(s);
}

/* Opens each of the files in `paths`, which are joined by +. */
static int open_models(SpecInfer *s, const char *paths, DraftShape *shape, const DrafterEnv *env, fr_error *err) {
    for (const char *p = paths;; p++) {
        char path[sizeof((DraftSpec *)0)->options[0].value] = {0};
        size_t n = strcspn(p, "+");
        if (s->n_models == MAX_MODELS)
            return error_set(err, FR_ERR_ARGUMENT, "specinfer: more than %d models", MAX_MODELS);
        memcpy(path, p, n); /* shorter than an option's value */
        shape->i_model = (uint64_t)s->n_models;
        int status = draft_model_open(&s->models[s->n_models], path, &draft_specinfer_class, shape, env, err);
        if (status) return status;
        s->n_models++;
        if (s->n_models * shape->n_levels > TREE_MAX_NODES - 1)
            return error_set(err, FR_ERR_ARGUMENT,
                             "specinfer: %d chains of %d have more than %d nodes; make them shorter", s->n_models,
                             shape->n_levels, TREE_MAX_NODES - 1);
        p += n;
        if (!*p) return FR_OK;
    }
}

static int open_specinfer(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    const DrafterClass *class = &draft_specinfer_class;
    DraftShape shape = {.growth = DRAFT_PATHS};
    int64_t length;
    int status = draft_spec_get_int(spec, class, "length", 1, DRAFT_MODEL_MAX_LEVELS, &length, err);
    if (!status) status = draft_model_get_coupled(spec, class, &shape.coupled, err);
    if (status) return status;
    shape.n_levels = (int32_t)length;
    for (int32_t i = 0; i < shape.n_levels; i++) shape.width[i] = 1;
    SpecInfer *s = mem_calloc(1, sizeof *s);
    int32_t *shares = s ? mem_calloc((size_t)env->max_sequences, sizeof *shares) : NULL;
    if (!shares) {
        mem_free(s);
        return error_memory(err, class->name, sizeof *s);
    }
    s->shares = shares;
    status = open_models(s, draft_spec_get(spec, class, "models"), &shape, env, err);
    if (status)
        close_specinfer(&s->base);
    else
        *out = &s->base;
    return status;
}

static void set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling, uint64_t position) {
    SpecInfer *s = (SpecInfer *)drafter;
    for (int32_t i = 0; i < s->n_models; i++) draft_model_set_sampling(s->models[i], sequence, sampling, position);
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    SpecInfer *s = (SpecInfer *)drafter;
    int status = FR_OK;
    for (int32_t i = 0; i < s->n_models && !status; i++) status = draft_model_begin(s->models[i], sequence, tokens, n, err);
    return status;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    SpecInfer *s = (SpecInfer *)drafter;
    int status = FR_OK;
    for (int32_t i = 0; i < s->n_models && !status; i++) status = draft_model_observe(s->models[i], sequence, tokens, n, err);
    return status;
}

static void end(Drafter *drafter, int32_t sequence) {
    SpecInfer *s = (SpecInfer *)drafter;
    for (int32_t i = 0; i < s->n_models; i++) draft_model_end(s->models[i], sequence);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    SpecInfer *s = (SpecInfer *)drafter;
    int status = FR_OK;
    for (int32_t i = 0; i < s->n_models && !status; i++) {
        for (int k = 0; k < n; k++) {
            s->shares[k] = budgets[k];
            if (draft_model_declares(s->models[i], sequences[k], trees[k]))
                s->shares[k] = budgets[k] / s->n_models + (i < budgets[k] % s->n_models);
        }
        status = draft_model_propose(s->models[i], sequences, s->shares, trees, n, err);
    }
    return status;
}

const DrafterClass draft_specinfer_class = {
    .name = "specinfer",
    .summary = "several small models of the same vocabulary: a chain of each, united in one tree",
    .options = options,
    .open = open_specinfer,
    .close = close_specinfer,
    .draws = true,
    .set_sampling = set_sampling,
    .begin = begin,
    .observe = observe,
    .propose = propose,
    .end = end,
};
