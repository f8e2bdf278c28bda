/* prompt_plan.c - which prompts are read in a step, and how much of each.
 *
 * The rows of prompts and those of trees are one forward. So that no stream that is being generated waits for a long
 * prompt, a step reads at most prefill_chunk rows of all prompts together: every decoding request gets its token after
 * T(prefill_chunk + trees), however many prompts of whichever length are being read.
 *
 * Several prompts share the chunk: the oldest gets half of it, the others share the other half evenly, and what one does
 * not need goes to the oldest that does. In order of age alone, a prompt of ten tokens would wait for the 100,000 before
 * it; in equal parts, of n long prompts that arrive together none would be finished before all are nearly so.
 *
 *     chunk 256, three prompts with 1000, 20 and 500 tokens to go      rows 172, 20, 64
 *
 * A request that an older one is reading for (prefix_cache_is_filling) waits, and gets nothing. Chunks change no token.
 * Proof: tests/engine/test_prompt_plan.c. */
#include "engine/prompt_plan.h"

#include "engine/engine.h"
#include "engine/request.h"

/* Tokens that it has yet to read: all of its context but the pending one. */
static int32_t n_unread(const fr_request *r) {
    return (int32_t)r->n_context - 1 - executor_sequence_length(r->engine->executor, r->sequence);
}

static int32_t least_of(int32_t a, int32_t b) { return a < b ? a : b; }

/* Returns how many requests read. */
static int find_readers(fr_engine *e) {
    int n = 0;
    for (int i = 0; i < e->step.n_by_age; i++) {
        fr_request *r = e->step.by_age[i];
        r->is_prefill_step = request_is_prefilling(r);
        r->n_step_rows = 0;
        n += r->is_prefill_step;
    }
    return n;
}

/* Gives r up to n rows in all, of those that are left. */
static void give(fr_request *r, int32_t n, int32_t *n_left) {
    n = least_of(least_of(n, n_unread(r)), r->n_step_rows + *n_left);
    if (n <= r->n_step_rows || prefix_cache_is_filling(r, n)) return;
    *n_left -= n - r->n_step_rows;
    r->n_step_rows = n;
}

void prompt_plan(fr_engine *e) {
    int n_readers = find_readers(e);
    int32_t chunk = e->options.prefill_chunk, n_left = chunk, share = chunk - chunk / 2;
    for (int i = 0; i < e->step.n_by_age; i++) {
        fr_request *r = e->step.by_age[i];
        if (!r->is_prefill_step) continue;
        give(r, share, &n_left);
        share = n_readers > 1 ? chunk / 2 / (n_readers - 1) : 0;
    }
    for (int i = 0; i < e->step.n_by_age && n_left > 0; i++)
        if (e->step.by_age[i]->is_prefill_step) give(e->step.by_age[i], chunk, &n_left);
}
