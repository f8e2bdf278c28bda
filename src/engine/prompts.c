/* prompts.c - which prompts are read in a step, how much of each, and where their sequences are marked.
 *
 * Chunks. The rows of prompts and those of trees are one forward, so every stream that is being generated waits for the
 * prompts in it. A step reads at most prefill_chunk rows of all prompts together, and fewer while a request decodes: as
 * many as fit into the time max_gap_s, which is twice a step without prompts if the option is 0. The time of a step is
 * T(rows), the measured cost of a forward (compute/cost.h), times what the last steps took compared with it, because a
 * step also drafts, verifies and calls back, and because the curve is extrapolated beyond its last point.
 *
 *     one stream, T(1) = 20 ms, T(n) = 15 ms + n 3 ms from 4 rows on     gap 40 ms: 8 rows; gap 100 ms: 27 rows
 *
 * If arithmetic limits the forwards, every row costs the same, and reading in short pieces loses little time. If they
 * wait for memory, a short gap makes a prompt take longer. At least one row is always read, so that every prompt
 * advances, and LEAST_CHUNK rows where the streams by themselves take longer than the gap.
 *
 * Several prompts share the chunk: the oldest gets half of it, the others share the other half evenly, and what one
 * does not need goes to the oldest that does. If prompts were read strictly by age, a prompt of ten tokens would wait
 * for the 100,000 tokens before it; if all got equal parts, none of n long prompts that arrive together would be
 * finished before all of them nearly are.
 *
 *     chunk 256, three prompts with 1000, 20 and 500 tokens to go      rows 172, 20, 64
 *
 * A request that an older one is reading for (prefix_cache_is_filling) waits, and gets nothing. Chunks change no token.
 * Proof: tests/engine/test_prompt_plan.c; for the tokens, tests/lossless/test_lossless.c. */
#include "engine/engine.h"
#include "engine/request.h"

/* Returns how many tokens r has yet to read: all of its context except the pending one. */
static int32_t n_unread(const fr_request *r) {
    return (int32_t)r->n_context - 1 - executor_sequence_length(r->engine->executor, r->sequence);
}

/* ---- the size of the chunk ---------------------------------------------------------------------------- */

enum { LEAST_CHUNK = 8 };
#define OWN_STEPS 2.0  /* the default gap, in steps without prompts */
#define MEMORY 0.2     /* the part of an error by which a ratio changes ... */
#define MOST_WRONG 0.5 /* ... and the greatest error that counts, so that one slow step does not matter */

/* Returns the expected time of a forward over the rows of trees and n rows of prompts. */
static double chunk_s(const ChunkInput *in, int32_t n) {
    CostCurve cost = *in->cost;
    double keys = in->n_tree_rows * cost.n_context + n * (in->n_read + 0.5 * n), read = 0;
    if (in->n_tree_rows > 0) read += cost.n_context;
    if (n > 0) read += in->n_read;
    double logits_s = in->n_tree_rows * cost.logits_s;
    cost.n_context = cost.logits_s = 0;
    return cost_curve_at(&cost, in->n_tree_rows + n) + read * cost.key_read_s + keys * cost.key_s + logits_s;
}

static double ratio_or_1(double ratio) { return ratio > 0 ? ratio : 1; }

int32_t prompt_chunk(const ChunkInput *in) {
    double gap_s = in->max_gap_s > 0 ? in->max_gap_s : OWN_STEPS * ratio_or_1(in->plain_ratio) * chunk_s(in, 0);
    double ratio = in->prompt_ratio > 0 ? in->prompt_ratio : ratio_or_1(in->plain_ratio);
    bool can_keep = ratio * chunk_s(in, 0) <= gap_s;
    int32_t fits = can_keep ? 1 : LEAST_CHUNK, too_many = in->most + 1; /* more rows never take less time */
    while (too_many - fits > 1) {
        int32_t n = fits + (too_many - fits) / 2;
        if (ratio * chunk_s(in, n) <= gap_s) fits = n;
        else too_many = n;
    }
    return fits < in->most ? fits : in->most;
}

static ChunkInput chunk_input(const fr_engine *e, int32_t n_tree_rows) {
    return (ChunkInput){.cost = &e->policy.cost,
                        .n_tree_rows = n_tree_rows,
                        .n_read = e->step.n_read,
                        .max_gap_s = e->options.max_gap_s,
                        .plain_ratio = e->step.plain_ratio,
                        .prompt_ratio = e->step.prompt_ratio,
                        .most = e->options.prefill_chunk};
}

int32_t prompt_rows(fr_engine *e, int32_t n_tree_rows) {
    double n_read = 0;
    int n_readers = 0;
    for (int i = 0; i < e->step.n_by_age; i++) {
        const fr_request *r = e->step.by_age[i];
        if (!request_is_prefilling(r)) continue;
        n_read += executor_sequence_length(e->executor, r->sequence);
        n_readers++;
    }
    e->step.n_read = n_readers ? n_read / n_readers : 0;
    if (n_tree_rows < 1 || e->policy.cost.n == 0) return e->options.prefill_chunk;
    const ChunkInput in = chunk_input(e, n_tree_rows);
    return prompt_chunk(&in);
}

double prompt_spare_s(const fr_engine *e, int32_t n_tree_rows) {
    const ChunkInput in = chunk_input(e, n_tree_rows);
    double step_s = ratio_or_1(in.plain_ratio) * chunk_s(&in, 0),
           gap_s = in.max_gap_s > 0 ? in.max_gap_s : OWN_STEPS * step_s;
    return gap_s > step_s ? gap_s - step_s : 0;
}

/* Moves a ratio of measured to expected times towards that of one step. */
static void learn(double *ratio, double seconds, double expected_s) {
    double wrong = seconds / (ratio_or_1(*ratio) * expected_s) - 1;
    wrong = wrong > MOST_WRONG ? MOST_WRONG : wrong < -MOST_WRONG ? -MOST_WRONG : wrong;
    *ratio = ratio_or_1(*ratio) * (1 + MEMORY * wrong);
}

/* Counts the rows of trees and of prompts in this step. */
static void count_rows(const fr_engine *e, int32_t *n_tree_rows, int32_t *n_prompt_rows) {
    *n_tree_rows = *n_prompt_rows = 0;
    for (int i = 0; i < e->step.n_by_age; i++) {
        const fr_request *r = e->step.decoding_first[i];
        *(r->is_prefill_step ? n_prompt_rows : n_tree_rows) += r->n_step_rows;
    }
}

double prompt_expected_s(const fr_engine *e) {
    int32_t n_tree_rows, n_prompt_rows;
    count_rows(e, &n_tree_rows, &n_prompt_rows);
    const ChunkInput in = chunk_input(e, n_tree_rows);
    return chunk_s(&in, n_prompt_rows);
}

void prompt_observe_step(fr_engine *e, double seconds) {
    int32_t n_tree_rows, n_prompt_rows;
    count_rows(e, &n_tree_rows, &n_prompt_rows);
    if (e->policy.cost.n == 0 || n_tree_rows < 1) return;
    learn(n_prompt_rows ? &e->step.prompt_ratio : &e->step.plain_ratio, seconds, prompt_expected_s(e));
}

/* ---- its parts ------------------------------------------------------------------------------------------ */

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

void prompt_plan(fr_engine *e, int32_t n_tree_rows) {
    int n_readers = find_readers(e);
    int32_t chunk = prompt_rows(e, n_tree_rows), n_left = chunk, share = chunk - chunk / 2;
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
 * marks only (compute/sequence_marks.c). Requests of a service begin with the same instructions, but where these end is
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
