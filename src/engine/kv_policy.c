/* kv_policy.c - who gets the pages of the KV cache when there are not enough of them.
 *
 * Problem. Requests come without saying how long they become, and a cache with room for the longest of all would
 * stand mostly empty. So the cache holds kv_tokens tokens, requests take pages as they grow, and one day a page is
 * wanted and none is free.
 *
 * Rule: age goes first. In every step the running requests claim their slots in order of arrival. A decoding request
 * claims its tree; a prefilling one claims all of its context, read in this step or later, so that no younger one
 * settles where it is about to grow. Whoever lacks a page gets it from, in this order:
 *
 *     1  the prefix cache       finished requests, least recently used first
 *     2  its own tree           the drafts of least probability go; one row, plain decoding, is enough
 *     3  the youngest request   gives back its last page, and the one before, and then the next youngest
 *     4  nobody                 it waits; so does everyone younger in this step
 *
 * The tree of a ratio rule is not cut, for its text depends on it: such a request goes to 3 with the whole tree.
 *
 * A request that gave pages back keeps its context and its drafters, which hold text and none of the target's KV. It
 * is one whose prefill is not done: once its whole context has slots, the missing tokens are read again, and by the
 * numeric contract (docs/ARCHITECTURE.md) their keys and values have the same bits as before. Only pages that are
 * wanted are taken, from the end, so that little is read twice.
 *
 * Example. Pages of 4; 5 pages; A (older) holds 8 tokens, B 12: none is free. A's next token wants a third page. The
 * prefix cache is empty, and A's tree cannot shrink below its root. B gives back tokens 8..11 and claims slots for all
 * 12 and its pending token, which are not there: it waits with 8. A finishes, B reads 8..11 again and goes on.
 *
 * Invariants
 *   - The oldest request gets what it wants: all others can be made to give theirs. kv_tokens >= n_ctx
 *     (fr_engine_open sees to it), so one request alone always fits. Therefore every step brings the oldest further,
 *     and every request is the oldest one day: no livelock, no starvation.
 *   - A request only takes from younger ones, which have not claimed in this step yet: no claimed slot is lost.
 *   - Claims of one step never depend on the result of a forward. What is read again changes no token.
 * Proof: tests/test_kv_policy.c (the rule, step by step), tests/test_kv_pressure.c (no token changes). */
#include "engine/kv_policy.h"

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
        if (e->requests[i] && !e->requests[i]->finish) e->step.by_age[e->step.n_by_age++] = e->requests[i];
    qsort(e->step.by_age, (size_t)e->step.n_by_age, sizeof *e->step.by_age, compare_arrivals);
}

/* The last page of the youngest request that holds one; false when all younger than r hold none. */
static bool take_page_from_younger(const fr_request *r) {
    fr_engine *e = r->engine;
    int k = e->step.n_by_age - 1;
    while (e->step.by_age[k] != r && (e->step.by_age[k]->finish || executor_sequence_length(e->executor, e->step.by_age[k]->sequence) == 0)) k--;
    fr_request *from = e->step.by_age[k];
    if (from == r) return false;
    int32_t length = executor_sequence_length(e->executor, from->sequence), size = e->options.kv_page_size;
    if (length > from->n_read) from->n_read = length;
    executor_sequence_truncate(e->executor, from->sequence, (length - 1) / size * size);
    if (!from->is_preempted) from->stats.n_preempted++;
    from->is_preempted = true;
    return true;
}

int32_t kv_policy_claim(fr_request *r, int32_t n, int32_t n_least) {
    fr_engine *e = r->engine;
    fr_error err;
    if (e->step.pages_short) return 0;
    while (executor_room(e->executor, r->sequence) < n && prefix_cache_drop(e)) {}
    while (executor_room(e->executor, r->sequence) < n_least && take_page_from_younger(r)) {}
    int32_t room = executor_room(e->executor, r->sequence);
    if (n > room) n = room > n_least ? room : n_least; /* below n_least the refusal says what is missing */
    int status = executor_reserve(e->executor, r->sequence, n, &err);
    if (!status) {
        r->is_preempted = false;
        return n;
    }
    if (status == FR_ERR_MEMORY && r != e->step.by_age[0]) e->step.pages_short = true;
    else request_fail(r, &err);
    return 0;
}
