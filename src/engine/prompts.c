/* prompts.c - which prompts are read in a step, how much of each, and where their sequences are marked.
 *
 * Chunks. The rows of prompts and those of trees are one forward. So that no stream that is being generated waits for a
 * long prompt, a step reads at most prefill_chunk rows of all prompts together: every decoding request gets its token
 * after T(prefill_chunk + trees), however many prompts of whichever length are being read.
 *
 * Several prompts share the chunk: the oldest gets half of it, the others share the other half evenly, and what one
 * does not need goes to the oldest that does. If prompts were read strictly by age, a prompt of ten tokens would wait
 * for the 100,000 tokens before it; if all got equal parts, none of n long prompts that arrive together would be
 * finished before all of them nearly are.
 *
 *     chunk 256, three prompts with 1000, 20 and 500 tokens to go      rows 172, 20, 64
 *
 * A request that an older one is reading for (prefix_cache_is_filling) waits, and gets nothing. Chunks change no token.
 * Proof: tests/engine/test_prompt_plan.c. */
#include "engine/engine.h"
#include "engine/request.h"

/* Returns how many tokens r has yet to read: all of its context except the pending one. */
static int32_t n_unread(const fr_request *r) {
    return (int32_t)r->n_context - 1 - executor_sequence_length(r->engine->executor, r->sequence);
}

/* Returns how many requests read their prompts. */
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

/* Raises the rows of r to at most n, from the *n_left rows that are left. */
static void give(fr_request *r, int32_t n, int32_t *n_left) {
    n = (int32_t)min_i64(min_i64(n, n_unread(r)), r->n_step_rows + *n_left);
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

/* ---- marks ----------------------------------------------------------------------------------------------
 *
 * A request marks its sequence at some places of its prompt, so that other requests can begin there, or the request
 * itself when its pages have been taken.
 *
 * Problem. A model with a recurrent state, or one that gives back the keys that windows have passed, can be cut at
 * marks only (compute/sequences.c). Requests of a service begin with the same instructions, but where these end is
 * not known before a second request comes; and a mark costs memory: a state of some ten megabytes, or the pages of a
 * window.
 *
 * Marks are set at borders of pages, so that no page is copied:
 *
 *     the end     the last border in the prompt, for the same prompt again and for a request whose pages are taken; it
 *                 is before the last token if a drafter needs hidden states, because the same prompt then reads one
 *     the branch  the last border at which another context had the same tokens, although this one had to begin earlier
 *                 because there was no mark
 *     the grid    every quarter of the prompt, but at most once per chunk of the prefill
 *
 * Example. The instructions have 2000 tokens and each question 100; pages have 16 tokens and chunks 256; so the grid is
 * 528.
 *
 *     first request     reads 2100                    marks 528, 1056, 1584 and 2096
 *     second            takes over 1584, reads 516    marks 2000 (the branch) and 2096
 *     third             takes over 2000, reads 100
 *
 * A request that shares nothing pays for a few marks. When it loses: prompts that share less than a quarter of their
 * length with an earlier one, the first time. It changes no token. Proof: tests/engine/test_prompt_marks.c. */

enum { GRID = 4 };

static int32_t round_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

static int32_t grid_of(const fr_request *r) {
    const fr_engine_options *o = &r->engine->options;
    int32_t part = (int32_t)(r->n_context / GRID) + 1, chunk = o->prefill_chunk;
    return round_up(part > chunk ? part : chunk, o->kv_page_size);
}

void prompt_marks_set(const fr_request *r, int32_t from, int32_t to) {
    const fr_engine *e = r->engine;
    int32_t end = (int32_t)r->n_context - 1 - r->needs_hidden, grid = grid_of(r),
            last = end - end % e->options.kv_page_size;
    bool shares = e->prefixes.n > 0;
    for (int32_t n = round_up(from + 1, grid); shares && n <= to && n < last; n += grid)
        executor_sequence_mark(e->executor, r->sequence, n);
    if (shares && r->branch > from && r->branch <= to) executor_sequence_mark(e->executor, r->sequence, r->branch);
    if (last > from && last <= to) executor_sequence_mark(e->executor, r->sequence, last);
}
