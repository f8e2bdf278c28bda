/* draft_specinfer.c - the drafter `specinfer`: several draft models, one tree.
 *
 * SpecInfer (Miao et al. 2024, arXiv 2305.09781, merge-based token trees): small models with different errors each
 * draft a chain, and the chains are merged into one tree. Models that propose the same token share its node, and both
 * continue from there. The group below a node then holds one draw of each model whose path passes through it, each
 * from its own q, and the rule of the paper tries them one after the other (multi-step speculative sampling; --verify
 * multi-round):
 *
 *   A  the cat sat       the ─── cat ─┬─ sat     below the: cat ~ q_A, cat ~ q_B: one node, two draws
 *   B  the cat ran                    └─ ran     below cat: sat ~ q_A, ran ~ q_B
 *
 * With `branch` each model drafts a tree of its own (expansion-based token trees): in branch=1-3-1 every node of level
 * 1 gets three children, drawn independently of each other, or the three best ones of a greedy request. Then one model
 * is enough.
 *
 * Each model is a DraftModel with a chain or such a tree (draft_model.c) that adds to the tree of the models before it.
 * Without distributions, the union is pruned to the budget by p_accept. With distributions nothing may be pruned, so
 * the budget is divided among the models beforehand. A ',' ends an option, so files are joined by '+', which their
 * names therefore cannot contain. Cost: one forward of each model for each level and step, over all sequences. It loses
 * if the models propose the same tokens, or if one of them is much better than the others. */
#include "draft/models/draft_model.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_MODELS = 8, MAX_PATH = 1024 };

typedef struct SpecInferOptions {
    const char *models;
    int32_t length, n_levels; /* n_levels 0: a chain of `length` */
    int32_t branch[DRAFT_MODEL_MAX_LEVELS];
    bool coupled;
} SpecInferOptions;

static int parse_branch(void *out, const char *text, fr_error *err) {
    SpecInferOptions *o = out;
    int64_t n_paths = 1;
    int status = draft_model_parse_branch(text, o->branch, &o->n_levels, err);
    for (int32_t i = 0; i < o->n_levels && !status; i++) {
        n_paths *= o->branch[i];
        if (n_paths > DRAFT_MODEL_MAX_WIDTH)
            return error_set(err, FR_ERR_ARGUMENT, "has more than %d paths", DRAFT_MODEL_MAX_WIDTH);
    }
    return status;
}

static const Option option_table[] = {
    {.key = "models",
     OPT_FILE(SpecInferOptions, models),
     .required = "draft models",
     .metavar = "FILE+FILE",
     .joined_by = '+',
     .help = "GGUF files of the draft models, joined by '+', best with the target's vocabulary"},
    {.key = "length",
     OPT_INT(SpecInferOptions, length, 1, DRAFT_MODEL_MAX_LEVELS),
     .default_value = "4",
     .help = "tokens in the chain of each model"},
    {.key = "branch",
     OPT_CUSTOM(parse_branch),
     .metavar = "N-N-N",
     .default_help = "a chain",
     .help = "a tree of each model in place of its chain: children of each node, level by level, joined by '-' or 'x'"},
    DRAFT_MODEL_OPTION_COUPLED(SpecInferOptions),
    {.key = NULL},
};

typedef struct SpecInfer {
    Drafter base;
    int32_t n_models;
    Drafter *models[MAX_MODELS];
    int32_t *shares; /* [max_sequences] the current model's part of each budget */
} SpecInfer;

static void close_specinfer(Drafter *drafter) {
    SpecInfer *s = (SpecInfer *)drafter;
    for (int32_t i = 0; i < s->n_models; i++) draft_model_close(s->models[i]);
    mem_free(s->shares);
    mem_free(s);
}

/* Opens each of the files in `paths`, which are joined by '+'. */
static int open_models(SpecInfer *s, const char *paths, DraftShape *shape, const DrafterEnv *env, fr_error *err) {
    int32_t n_nodes = 0;
    for (int32_t i = 0; i < shape->n_levels; i++) n_nodes += shape->width[i];
    for (const char *p = paths;; p++) {
        char path[MAX_PATH] = {0};
        size_t n = strcspn(p, "+");
        if (n == 0 || n >= sizeof path)
            return error_set(err, FR_ERR_ARGUMENT, "specinfer: 'models=%.80s' must be file names joined by '+'", paths);
        if (s->n_models == MAX_MODELS)
            return error_set(err, FR_ERR_ARGUMENT, "specinfer: more than %d models", MAX_MODELS);
        memcpy(path, p, n);
        shape->i_model = (uint64_t)s->n_models;
        int status = draft_model_open(&s->models[s->n_models], path, "specinfer", shape, env, err);
        if (status) return status;
        s->n_models++;
        if (s->n_models * n_nodes > TREE_MAX_NODES - 1)
            return error_set(err, FR_ERR_ARGUMENT,
                             "specinfer: the drafts of %d models with %d nodes each have more than %d nodes; make them "
                             "shorter",
                             s->n_models, n_nodes, TREE_MAX_NODES - 1);
        p += n;
        if (!*p) return FR_OK;
    }
}

static int open_specinfer(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const SpecInferOptions *o = options;
    DraftShape shape = {.growth = DRAFT_PATHS,
                        .n_levels = o->n_levels ? o->n_levels : o->length,
                        .coupled = o->coupled};
    for (int32_t i = 0, n = 1; i < shape.n_levels; i++) shape.width[i] = n *= o->n_levels ? o->branch[i] : 1;
    SpecInfer *s = mem_calloc(1, sizeof *s);
    if (!s) return error_memory(err, "specinfer", sizeof *s);
    s->shares = mem_calloc((size_t)env->max_sequences, sizeof *s->shares);
    int status = s->shares ? open_models(s, o->models, &shape, env, err)
                           : error_memory(err, "specinfer", (size_t)env->max_sequences * sizeof *s->shares);
    if (status) close_specinfer(&s->base);
    else *out = &s->base;
    return status;
}

static void set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling, uint64_t position) {
    SpecInfer *s = (SpecInfer *)drafter;
    for (int32_t i = 0; i < s->n_models; i++) small_model_set_sampling(s->models[i], sequence, sampling, position);
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    SpecInfer *s = (SpecInfer *)drafter;
    int status = FR_OK;
    for (int32_t i = 0; i < s->n_models && !status; i++)
        status = small_model_begin(s->models[i], sequence, tokens, n, err);
    return status;
}

static int observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                          fr_error *err) {
    SpecInfer *s = (SpecInfer *)drafter;
    int status = FR_OK;
    for (int32_t i = 0; i < s->n_models && !status; i++)
        status = small_model_observe_prompt(s->models[i], sequence, first, hidden, n, err);
    return status;
}

static void take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n) {
    SpecInfer *s = (SpecInfer *)drafter;
    for (int32_t i = 0; i < s->n_models; i++) small_model_take_over(s->models[i], from, to, n);
}

/* The models may hold different numbers, because one may have dropped its cached sequences (cached_kv.h). */
static int32_t n_held(const Drafter *drafter, int32_t sequence) {
    const SpecInfer *s = (const SpecInfer *)drafter;
    int32_t least = INT32_MAX;
    for (int32_t i = 0; i < s->n_models; i++) {
        int32_t n = small_model_n_held(s->models[i], sequence);
        if (n < least) least = n;
    }
    return least;
}

static int32_t reach(const Drafter *drafter, int32_t sequence, int32_t n) {
    const SpecInfer *s = (const SpecInfer *)drafter;
    for (int32_t i = 0; i < s->n_models; i++) n = small_model_reach(s->models[i], sequence, n);
    return n;
}

static bool save(const Drafter *drafter, int32_t sequence, Buf *out) {
    const SpecInfer *s = (const SpecInfer *)drafter;
    bool fits = true;
    for (int32_t i = 0; i < s->n_models && fits; i++) fits = small_model_save(s->models[i], sequence, out);
    return fits;
}

static int load(Drafter *drafter, int32_t sequence, ByteReader *in, fr_error *err) {
    const SpecInfer *s = (const SpecInfer *)drafter;
    int status = FR_OK;
    for (int32_t i = 0; i < s->n_models && !status; i++) status = small_model_load(s->models[i], sequence, in, err);
    return status;
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    SpecInfer *s = (SpecInfer *)drafter;
    int status = FR_OK;
    for (int32_t i = 0; i < s->n_models && !status; i++)
        status = small_model_observe(s->models[i], sequence, tokens, n, err);
    return status;
}

static void end(Drafter *drafter, int32_t sequence) {
    SpecInfer *s = (SpecInfer *)drafter;
    for (int32_t i = 0; i < s->n_models; i++) small_model_end(s->models[i], sequence);
}

static double shared_vocab(const Drafter *drafter) {
    const SpecInfer *s = (const SpecInfer *)drafter;
    double least = 0;
    for (int32_t i = 0; i < s->n_models; i++) {
        double share = small_model_shared_vocab(s->models[i]);
        if (share > 0 && (least == 0 || share < least)) least = share;
    }
    return least;
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

extern const DrafterClass draft_specinfer_class;
const DrafterClass draft_specinfer_class = {
    .name = "specinfer",
    .summary = "small models: a chain or a tree of each, merged into one tree",
    .option_table = option_table,
    .options_size = sizeof(SpecInferOptions),
    .open = open_specinfer,
    .close = close_specinfer,
    .draws = true,
    .set_sampling = set_sampling,
    .begin = begin,
    .observe_prompt = observe_prompt,
    .take_over = take_over,
    .n_held = n_held,
    .reach = reach,
    .save = save,
    .load = load,
    .observe = observe,
    .propose = propose,
    .end = end,
    .shared_vocab = shared_vocab,
};
