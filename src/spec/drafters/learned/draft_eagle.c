/* draft_eagle.c - the drafter `eagle`: EAGLE-2 (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature
 * Uncertainty", arXiv 2401.15077, and "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", arXiv
 * 2406.16858).
 *
 * The problem. Tokens are hard to predict for a small model. The target's next hidden state is easier, because hidden
 * states change more regularly than tokens; but it depends on which token was chosen.
 *
 * The idea. One transformer layer f with a KV cache of its own predicts hidden states, given the chosen token:
 *
 *     f_t = f(fc [E(x_{t+1}) ; h_t])        E(x) the target's embedding, h_t its hidden state after the final norm
 *     distribution of x_{t+2} = softmax(W_head f_t)  the target's own LM head
 *
 * The cache holds an entry for each token that the target has read. Below the pending token the layer continues with
 * its own f in place of h, as a tree (eagle_tree.c): a node's row attends to its ancestors.
 *
 *     entry      0            1            2                      tree
 *     input   E(x1) h0     E(x2) h1     E(x3) h2        x3 pending ── cat: E(cat) f_2 ── sat: E(sat) f_cat
 *                                        gives f_2                 └─ dog: E(dog) f_2
 *
 * After a step, the rows of the tree are discarded, and the accepted tokens get entries from the target's hidden states,
 * before the next proposal and for all sequences together (entry_queue.c). Under the ratio rules recursive and transport the
 * children of a node are drawn at random (learned_draw.c), and all ranking is by psi.
 *
 * The layer runs in the executor (backend/executor.h) as a model with one layer whose rows bring their input, so
 * paging, tree attention, threads and quantised weights work as they do for the target. EAGLE's layer has no norm
 * before its attention and none at its end.
 *
 * Files: eagle.h. If the drafter was trained with token info (token_info.h), the info of a token is added to the
 * logits after it.
 *
 * Cost: a forward of the layer for the accepted tokens, then one a level, each for all sequences together, with the LM head
 * for up to `top` rows a sequence in each. When it loses: if the target has few layers. Proof:
 * tests/unit/test_draft_eagle.c, against the layer in double precision over each path by itself. */
#include "base/mem.h"
#include "spec/drafters/learned/eagle.h"
#include "spec/drafters/learned/eagle_tree.h"

#include <string.h>

enum { MIN_ROWS = 64 }; /* of a forward: a prompt is read in such chunks */

typedef struct EagleOptions {
    const char *file;
    bool coupled, draws;
    int32_t depth, top;
    bool is_static;
} EagleOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(EagleOptions),
    {.key = "depth",
     OPT_INT(EagleOptions, depth, 1, EAGLE_MAX_DEPTH),
     .default_value = "5",
     .help = "maximal length of a path"},
    {.key = "top",
     OPT_INT(EagleOptions, top, 1, EAGLE_MAX_TOP),
     .default_value = "8",
     .help = "children of a node, and nodes expanded at each level"},
    {.key = "tree",
     OPT_CHOICE(EagleOptions, is_static, "dynamic", "static"),
     .default_value = "dynamic",
     .help = "dynamic: EAGLE-2's tree; static: EAGLE-1's, whose shape is fixed in advance"},
    LEARNED_OPTION_COUPLED(EagleOptions),
    LEARNED_OPTION_DRAW(EagleOptions),
    {.key = NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void close_eagle(Drafter *drafter) {
    Eagle *d = (Eagle *)drafter;
    learned_linear_close(&d->learned, d->fc);
    token_info_close(&d->info);
    confidence_close(&d->confidence);
    entry_queue_close(&d->entries);
    one_layer_close(&d->layer);
    learned_release(&d->learned);
    mem_free(d);
}

static int read_weights(Eagle *d, fr_error *err) {
    static const OneLayerNames names = {.key_feed_forward = EAGLE_KEY_FEED_FORWARD,
                                        .q = EAGLE_ATTN_Q,
                                        .k = EAGLE_ATTN_K,
                                        .v = EAGLE_ATTN_V,
                                        .o = EAGLE_ATTN_OUTPUT,
                                        .ffn_norm = EAGLE_FFN_NORM,
                                        .gate = EAGLE_FFN_GATE,
                                        .up = EAGLE_FFN_UP,
                                        .down = EAGLE_FFN_DOWN};
    LearnedDrafter *l = &d->learned;
    int64_t embd = l->n_embd;
    int status = learned_linear_open(l, EAGLE_FC, 2 * embd, embd, true, d->max_rows, &d->fc, err);
    return status ? status : one_layer_open(&d->layer, l, &names, err);
}

static int allocate(Eagle *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t front = l->max_group * d->top;
    const EntryQueueOptions entries = {.fc = d->fc, .reads_tokens = true, .wants_logits = true, .max_rows = d->max_rows};
    const ArenaItem items[] = {
        ARENA_ITEM(&d->group, l->max_group), ARENA_ITEM(&d->front, front),
        ARENA_ITEM(&d->next, front),         ARENA_ITEM(&d->front_rows, front),
        ARENA_ITEM(&d->logits, l->n_vocab),  ARENA_ITEM(&d->features, front * l->n_embd),
    };
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "eagle", err);
    return status ? status : entry_queue_open(&d->entries, l, &d->layer, &entries, err);
}

static int apply_options(Eagle *d, const EagleOptions *o, const DrafterEnv *env, fr_error *err) {
    int32_t depth = o->depth, top = o->top;
    if (top + (depth - 1) * top * top >= TREE_MAX_NODES)
        return error_set(err, FR_ERR_ARGUMENT,
                         "eagle: depth %d with top %d finds more than the %d nodes of a tree; make one of "
                         "them smaller",
                         depth, top, TREE_MAX_NODES - 1);
    double chance[EAGLE_MAX_DEPTH * EAGLE_MAX_TOP];
    static_tree_prior(chance, depth, top);
    static_tree_build(&d->shape, chance, depth, top, top);
    int32_t rows = depth * top, n = EAGLE_MAX_ROWS / rows, max_group = n < env->max_sequences ? n : env->max_sequences;
    d->depth = depth;
    d->top = top;
    d->is_static = o->is_static;
    d->n_ctx = env->n_ctx;
    d->max_rows = max_group * rows > MIN_ROWS ? max_group * rows : MIN_ROWS;
    return learned_reserve_group(&d->learned, max_group, err);
}

static int open_eagle(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const EagleOptions *o = options;
    Eagle *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "eagle", sizeof *d);
    int status = apply_options(d, o, env, err);
    d->learned.coupled = o->coupled;
    d->learned.draws = o->draws;
    if (!status) status = learned_open(&d->learned, o->file, "eagle", env, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = token_info_open(&d->info, &d->learned, "eagle", TOKEN_INFO_F16, err);
    if (!status) status = confidence_open(&d->confidence, &d->learned, "eagle", err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status)
        status = one_layer_open_executor(&d->layer, &d->learned, env->n_ctx, EAGLE_MAX_DEPTH * EAGLE_MAX_TOP,
                                         d->max_rows, d->learned.max_group * d->top, err);
    if (!status) status = allocate(d, err);
    if (status) {
        close_eagle(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

void eagle_find_top(Eagle *d, const EagleMember *m, int32_t node, const float *feature, const float *logits,
                    EagleTop *out) {
    int32_t path[TREE_MAX_NODES], n_path = learned_path(m->tree, node, path);
    memcpy(d->logits, logits, (size_t)d->learned.n_vocab * sizeof *logits);
    token_info_add(&d->info, &m->tree->nodes[node].token, 1, d->logits);
    out->n = learned_top(&d->learned, m->sequence, path, n_path, d->logits, d->top, out->tokens, out->log_p);
    if (!d->learned.sequences[m->sequence].is_drawing) /* else these are psi, not estimates */
        confidence_correct(&d->confidence, confidence_of_state(&d->confidence, feature), out->log_p, out->n);
}

/* ---- observations ------------------------------------------------------------------------------------ */

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    int status = learned_begin(drafter, sequence, tokens, n, err);
    return status ? status : entry_queue_begin(&((Eagle *)drafter)->entries, sequence, err);
}

static int observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                          fr_error *err) {
    Eagle *d = (Eagle *)drafter;
    const int32_t *after = d->learned.sequences[sequence].context + first + 1;
    int status = learned_observe_prompt(drafter, sequence, first, hidden, n, err);
    return status ? status : entry_queue_add(&d->entries, sequence, after, hidden, n, err);
}

static void take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n) {
    Eagle *d = (Eagle *)drafter;
    if (to < d->learned.max_sequences) learned_take_over(drafter, from, to, n);
    entry_queue_take_over(&d->entries, from, to, n);
}

static int32_t n_held(const Drafter *drafter, int32_t sequence) {
    return entry_queue_n_held(&((const Eagle *)drafter)->entries, sequence);
}

static int observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    int status = learned_observe_tree(drafter, sequence, v, err);
    return status ? status : entry_queue_add_step(&((Eagle *)drafter)->entries, sequence, v, err);
}

static void end(Drafter *drafter, int32_t sequence) {
    entry_queue_end(&((Eagle *)drafter)->entries, sequence);
    learned_end(drafter, sequence);
}

/* ---- a proposal ----------------------------------------------------------------------------------- */

static int draft_together(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    Eagle *d = (Eagle *)learned;
    int32_t sequences[EAGLE_MAX_ROWS];
    d->n_group = n;
    for (int32_t i = 0; i < n; i++) {
        EagleMember *m = &d->group[i];
        m->sequence = sequences[i] = members[i].sequence;
        m->entries = &d->entries.sequences[m->sequence];
        m->tree = members[i].tree;
        m->budget = members[i].budget;
    }
    int status = entry_queue_run(&d->entries, sequences, n, err);
    return status ? status : eagle_grow_trees(d, err);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    return learned_propose((LearnedDrafter *)drafter, sequences, budgets, trees, n, draft_together, err);
}

extern const DrafterClass draft_eagle_class;
const DrafterClass draft_eagle_class = {
    .name = "eagle",
    .summary = "one layer trained for the target predicts its next hidden states: EAGLE-2 and EAGLE-1",
    .option_table = option_table,
    .options_size = sizeof(EagleOptions),
    .needs_hidden = true,
    .open = open_eagle,
    .close = close_eagle,
    .set_sampling = learned_set_sampling,
    .begin = begin,
    .observe_prompt = observe_prompt,
    .take_over = take_over,
    .n_held = n_held,
    .observe_tree = observe_tree,
    .observe = learned_observe,
    .propose = propose,
    .end = end,
};
