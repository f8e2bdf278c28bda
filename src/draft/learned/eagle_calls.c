/* eagle_calls.c - what `eagle` and `mtp` share but for the trees (eagle_tree.c): memory, the entries of the sequences, a
 * proposal. The essay is in draft_eagle.c. */
#include "draft/learned/eagle_calls.h"

#include <string.h>

enum { MIN_ROWS = 64 }; /* of a forward: a prompt is read in such chunks */

/* ---- opening ------------------------------------------------------------------------------------ */

int eagle_plan(Eagle *d, const char *method, const EaglePlan *plan, const DrafterEnv *env, fr_error *err) {
    int32_t depth = plan->depth, top = plan->top;
    if (top + (depth - 1) * top * top >= TREE_MAX_NODES)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: depth %d with top %d finds more than the %d nodes of a tree; make one of them smaller",
                         method, depth, top, TREE_MAX_NODES - 1);
    double chance[EAGLE_MAX_DEPTH * EAGLE_MAX_TOP];
    static_tree_prior(chance, depth, top);
    static_tree_build(&d->shape, chance, depth, top, top);
    int32_t rows = depth * top, n = EAGLE_MAX_ROWS / rows, max_group = n < env->max_sequences ? n : env->max_sequences;
    d->depth = depth;
    d->top = top;
    d->is_static = plan->is_static;
    d->n_ctx = env->n_ctx;
    d->max_rows = max_group * rows > MIN_ROWS ? max_group * rows : MIN_ROWS;
    return learned_reserve_group(&d->learned, max_group, err);
}

int eagle_open_layer(Eagle *d, const char *method, const EntryQueueOptions *input, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t front = l->max_group * d->top;
    EntryQueueOptions entries = *input;
    entries.fc = d->fc, entries.wants_logits = true, entries.max_rows = d->max_rows;
    const ArenaItem items[] = {
        ARENA_ITEM(&d->group, l->max_group), ARENA_ITEM(&d->front, front),
        ARENA_ITEM(&d->next, front),         ARENA_ITEM(&d->front_rows, front),
        ARENA_ITEM(&d->logits, l->n_vocab),  ARENA_ITEM(&d->features, front * l->n_embd),
    };
    int status = one_layer_open_executor(&d->layer, l, d->n_ctx, EAGLE_MAX_DEPTH * EAGLE_MAX_TOP, d->max_rows,
                                         (int32_t)front, err);
    if (!status) status = arena_take(&l->arena, items, ARENA_COUNT(items), method, err);
    return status ? status : entry_queue_open(&d->entries, l, &d->layer, &entries, err);
}

void eagle_release(Eagle *d) {
    learned_linear_close(&d->learned, d->fc);
    token_info_close(&d->info);
    confidence_close(&d->confidence);
    entry_queue_close(&d->entries);
    one_layer_close(&d->layer);
    learned_release(&d->learned);
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

int eagle_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    int status = learned_begin(drafter, sequence, tokens, n, err);
    return status ? status : entry_queue_begin(&((Eagle *)drafter)->entries, sequence, err);
}

int eagle_observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                         fr_error *err) {
    Eagle *d = (Eagle *)drafter;
    const int32_t *after = d->learned.sequences[sequence].context + first + 1;
    int status = learned_observe_prompt(drafter, sequence, first, hidden, n, err);
    return status ? status : entry_queue_add(&d->entries, sequence, after, hidden, n, err);
}

void eagle_take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n) {
    Eagle *d = (Eagle *)drafter;
    if (to < d->learned.max_sequences) learned_take_over(drafter, from, to, n);
    entry_queue_take_over(&d->entries, from, to, n);
}

int32_t eagle_n_held(const Drafter *drafter, int32_t sequence) {
    return entry_queue_n_held(&((const Eagle *)drafter)->entries, sequence);
}

int eagle_observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    int status = learned_observe_tree(drafter, sequence, v, err);
    return status ? status : entry_queue_add_step(&((Eagle *)drafter)->entries, sequence, v, err);
}

void eagle_end(Drafter *drafter, int32_t sequence) {
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

int eagle_propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                  fr_error *err) {
    return learned_propose((LearnedDrafter *)drafter, sequences, budgets, trees, n, draft_together, err);
}
