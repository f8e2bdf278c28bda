/* prompt_marks.c - where in its prompt a request marks its sequence, so that other requests, or itself later, can begin there.
 *
 * Problem. A model with a recurrent state, or one that gives back the keys that windows have passed, can be cut at marks only
 * (compute/sequences.c). Requests of a service begin with the same instructions, but where these end is not known before
 * a second request comes; and a mark costs memory: a state of some ten megabytes, or the pages of a window.
 *
 * Marks are set at borders of pages, so that no page is copied:
 *
 *     the end     the last border of the prompt: for the same prompt, and for a request whose pages are taken; where a drafter
 *                 reads hidden states, before the last token, because the same request again reads one
 *     the branch  where another context turned out to differ, although this one had to begin earlier for want of a mark
 *     the grid    every quarter of the prompt, but no more often than once a chunk of the prefill
 *
 * Example. Instructions of 2000 tokens, questions of 100; page 16, chunk 256; so a grid of 528.
 *
 *     first request     reads 2100                    marks 528, 1056, 1584 and 2096
 *     second            takes over 1584, reads 516    marks 2000 (the branch) and 2096
 *     third             takes over 2000, reads 100
 *
 * A request without neighbours pays for a few marks. When it loses: prompts that share less than a quarter of their length with
 * one that was read before, once. It changes no token. Proof: tests/engine/test_prompt_marks.c. */
#include "engine/prompt_marks.h"

#include "engine/engine.h"
#include "engine/request.h"

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
