/* eagle_calls.h - what `eagle` and `mtp` share: a layer with a KV cache of its own between a linear layer and an LM head, whose
 * input is a token and the hidden state before it. They differ in where its weights come from (draft_eagle.c,
 * draft_mtp.c); each has a struct that begins with an Eagle. */
#ifndef LEARNED_EAGLE_CALLS_H
#define LEARNED_EAGLE_CALLS_H

#include "draft/learned/eagle_tree.h"

/* Options that several methods have. */
typedef struct EaglePlan {
    int32_t depth, top;
    bool is_static;
} EaglePlan;

/* Opening, in this order, on a zeroed struct: eagle_plan; learned_open or learned_open_target; the weights, which are fc and
 * layer.weights; eagle_open_layer, whose options say what is special in the input of an entry. */
int eagle_plan(Eagle *d, const char *method, const EaglePlan *plan, const DrafterEnv *env, fr_error *err);
int eagle_open_layer(Eagle *d, const char *method, const EntryQueueOptions *input, fr_error *err);
void eagle_release(Eagle *d); /* everything but the struct itself, after a failure as well */

/* The functions of a DrafterClass. */
int eagle_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int eagle_observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                         fr_error *err);
void eagle_take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n);
int32_t eagle_n_held(const Drafter *drafter, int32_t sequence);
int eagle_observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err);
int eagle_propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                  fr_error *err);
void eagle_end(Drafter *drafter, int32_t sequence);

#define EAGLE_CALLS \
    .needs_hidden = true, .set_sampling = learned_set_sampling, .begin = eagle_begin, \
    .observe_prompt = eagle_observe_prompt, .take_over = eagle_take_over, .n_held = eagle_n_held, \
    .observe_tree = eagle_observe_tree, .observe = learned_observe, .propose = eagle_propose, .end = eagle_end

#endif
