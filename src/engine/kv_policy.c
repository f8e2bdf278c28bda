/* kv_policy.c - which request gets the pages of the KV cache when there are not enough of them.
 *
 * Problem. The length of a request is not known in advance, and a cache with room for the longest possible contexts of
 * all requests would be mostly empty. So the cache holds kv_tokens tokens, requests take pages as they grow, and at
 * some point a request needs a page and none is free.
 *
 * Rule: older requests go first. In every step the running requests claim their slots in order of arrival. A decoding
 * request claims slots for its tree; a prefilling one for all of its context, whether it is read in this step or later,
 * so that no younger request takes the pages that it is about to need. A request short of a page takes it from, in this
 * order:
 *
 *     1  the prefix cache       marks of any sequence, if pages of windows are missing; then finished requests, least
 *                               recently used first
 *     2  its own tree           the least probable drafts are dropped, down to one row, which is plain decoding
 *     3  the youngest request   its last page, then the one before, and then those of the next youngest
 *     4  nothing                the request waits, and so do all younger ones in this step
 *
 * The tree of a ratio rule is not cut, because its text depends on it: such a request goes to 3 for its whole tree.
 *
 * Layers with a window may have pages of their own (compute/sequences.c). A request needs such pages for its window and
 * for the rows of the step, and none for the part of the prompt that it reads later.
 *
 * A request that gave pages back keeps its context and its drafters, which hold text and none of the target's KV. It is
 * then like a request whose prefill is not finished: once there are slots for its whole context, the missing tokens are
 * read again, and by the numeric contract (docs/ARCHITECTURE.md) their keys and values have the same bits as before.
 * Pages are taken only when they are needed, and from the end, so that little is read twice.
 *
 * Example. Pages of 4 tokens; 5 pages; A (older) holds 8 tokens, B 12, so no page is free. A's next token needs a third
 * page. The prefix cache is empty, and A's tree cannot be smaller than its root. B gives back tokens 8..11, claims
 * slots for all 12 and its pending token, finds none, and waits with 8 tokens. When A finishes, B reads 8..11 again and
 * goes on.
 *
 * Invariants
 *   - The oldest request gets what it claims: all others can be made to give up their pages. kv_tokens >= n_ctx
 *     (fr_engine_open checks it), so a single request always fits. Therefore every step brings the oldest request
 *     further, and every request becomes the oldest at some point: no livelock, no starvation.
 *   - A request takes pages only from younger ones, which have not claimed in this step yet: no claimed slot is lost.
 *   - Claims of a step never depend on the result of a forward. Reading again changes no token.
 * Proof: tests/engine/test_kv_policy.c (the rule, step by step), tests/engine/test_kv_pressure.c (no token changes). */
#include "engine/engine.h"
#include "engine/request.h"

#include <stdlib.h>

static int compare_arrivals(const void *a, const void *b) {
    uint64_t x = (*(fr_request *const *)a)->arrival, y = (*(fr_request *const *)b)->arrival;
    return (x > y) - (x < y);
}

void kv_policy_begin_step(fr_engine *e) {
    e->step.n_by_age = 0;
    e->step.pages_short = false;
    for (int i = 0; i < e->options.max_requests; i++)
        if (e->running[i]) e->step.by_age[e->step.n_by_age++] = e->running[i];
    qsort(e->step.by_age, (size_t)e->step.n_by_age, sizeof *e->step.by_age, compare_arrivals);
}

static bool holds_pages(const fr_request *r) {
    return !r->finish && executor_sequence_length(r->engine->executor, r->sequence) > 0;
}

/* Frees the last page of the youngest request that holds one. False: no request younger than r holds a page. */
static bool take_page_from_younger(const fr_request *r) {
    fr_engine *e = r->engine;
    int k = e->step.n_by_age - 1;
    while (e->step.by_age[k] != r && !holds_pages(e->step.by_age[k])) k--;
    fr_request *from = e->step.by_age[k];
    if (from == r) return false;
    int32_t length = executor_sequence_length(e->executor, from->sequence), size = e->options.kv_page_size;
    if (length > from->n_read) from->n_read = length;
    executor_sequence_truncate(e->executor, from->sequence, (length - 1) / size * size);
    if (!from->is_preempted) from->stats.n_preempted++;
    from->is_preempted = true;
    return true;
}

int32_t kv_policy_claim(fr_request *r, int32_t n, int32_t n_least, int32_t n_ahead) {
    fr_engine *e = r->engine;
    fr_error err;
    if (e->step.pages_short) return 0;
    while (executor_room(e->executor, r->sequence, n_ahead) < n &&
           (executor_drop_mark(e->executor, r->sequence, n) || prefix_cache_drop(e))) {}
    while (executor_room(e->executor, r->sequence, n_ahead) < n_least && take_page_from_younger(r)) {}
    int32_t room = executor_room(e->executor, r->sequence, n_ahead);
    if (n > room)
        n = room > n_least ? room
                           : n_least; /* with less than n_least, executor_reserve fails and names what is missing */
    int status = executor_reserve_ahead(e->executor, r->sequence, n, n_ahead, &err);
    if (!status) {
        r->is_preempted = false;
        return n;
    }
    if (status == FR_ERR_MEMORY && r != e->step.by_age[0]) e->step.pages_short = true;
    else request_fail(r, &err);
    return 0;
}
