/* request_queue.c - which open requests run, and which wait for a place.
 *
 * An engine holds max_requests + max_queued open requests, in no particular order. The executor has max_requests
 * sequences for them, each of which belongs to at most one running request. A request runs while it has a sequence:
 * from its opening or, if no sequence is free, from the beginning of a later step, until its text ends. A request that
 * has ended keeps its results until it is closed, but no sequence.
 *
 *     max_requests 2, max_queued 2      A and B run, C and D wait; A ends; in the next step C runs; E may be opened as
 *                                       soon as A is closed, because until then four requests are open
 *
 * Waiting requests run in order of arrival. A request that is opened while a sequence is free overtakes no other: a
 * free sequence is given to a waiting request at the next step, and as long as requests wait, a new one waits too.
 * Checking options, copying the prompt and finding drafters are done when a request is opened, so that mistakes are
 * reported at once; drafters see its prompt when it begins to run. Proof: tests/engine/test_request_queue.c. */
#include "base/system.h"
#include "engine/engine.h"
#include "engine/request.h"

/* Returns the index of the first free place of an array; n: there is none. */
static int find_free(fr_request *const *places, int n) {
    int i = 0;
    while (i < n && places[i]) i++;
    return i;
}

int request_queue_check(const fr_engine *e, fr_error *err) {
    if (find_free(e->requests, e->n_places) < e->n_places) return FR_OK;
    if (e->options.max_queued == 0)
        return error_set(err, FR_ERR_MEMORY, "the engine already holds its %d requests; close one first", e->n_places);
    return error_set(err, FR_ERR_MEMORY,
                     "the queue is full: the engine already holds its %d requests, of which at most %d wait; try again "
                     "when one has ended and is closed",
                     e->n_places, e->options.max_queued);
}

/* Returns how many rows of logits a request needs at most: one for each node of a tree within its budget. */
static int32_t n_logits_of(const fr_request *r) { return 1 + (r->options.n_drafts > 0 ? r->tree_budget : 0); }

/* At most max_requests of the open requests run together; in the worst case, these are the ones with the most rows. */
int request_queue_reserve(const fr_request *r, fr_error *err) {
    const fr_engine *e = r->engine;
    int32_t n_requests[FR_TREE_BUDGET_MAX + 2] = {0}; /* by their number of rows */
    int64_t n_rows = 0, n_left = e->options.max_requests;
    n_requests[n_logits_of(r)]++;
    for (int i = 0; i < e->n_places; i++)
        if (e->requests[i] && !e->requests[i]->finish) n_requests[n_logits_of(e->requests[i])]++;
    for (int32_t n = FR_TREE_BUDGET_MAX + 1; n > 0 && n_left > 0; n--) {
        int64_t k = n_requests[n] < n_left ? n_requests[n] : n_left;
        n_rows += k * n;
        n_left -= k;
    }
    if (n_rows > e->step.n_rows_max) n_rows = e->step.n_rows_max;
    return executor_reserve_logits(e->executor, (int32_t)n_rows, err);
}

static void run(fr_request *r, int sequence) {
    fr_engine *e = r->engine;
    r->sequence = sequence;
    e->running[sequence] = r;
    r->started_s = clock_s();
    r->stats.queue_s = r->started_s - r->opened_s;
    if (r->is_queued) e->n_queued--;
    r->is_queued = false;
    request_drafts_begin(r);
}

void request_queue_add(fr_request *r) {
    fr_engine *e = r->engine;
    int sequence = find_free(e->running, e->options.max_requests);
    e->requests[find_free(e->requests, e->n_places)] = r;
    r->arrival = e->n_arrivals++;
    r->opened_s = clock_s();
    if (e->n_queued == 0 && sequence < e->options.max_requests) {
        run(r, sequence);
        return;
    }
    r->is_queued = true;
    e->n_queued++;
}

static fr_request *find_oldest_queued(const fr_engine *e) {
    fr_request *oldest = NULL;
    for (int i = 0; i < e->n_places; i++) {
        fr_request *r = e->requests[i];
        if (r && r->is_queued && (!oldest || r->arrival < oldest->arrival)) oldest = r;
    }
    return oldest;
}

void request_queue_admit(fr_engine *e) {
    for (int i = 0; i < e->options.max_requests && e->n_queued > 0; i++)
        if (!e->running[i]) run(find_oldest_queued(e), i);
}

void request_queue_leave(fr_request *r) {
    fr_engine *e = r->engine;
    if (r->is_queued) {
        e->n_queued--;
        r->is_queued = false;
        r->stats.queue_s = clock_s() - r->opened_s;
    }
    if (r->sequence >= 0) e->running[r->sequence] = NULL;
    r->sequence = -1;
}

void request_queue_remove(const fr_request *r) {
    fr_engine *e = r->engine;
    for (int i = 0; i < e->n_places; i++)
        if (e->requests[i] == r) e->requests[i] = NULL;
}

int request_queue_n_running(const fr_engine *e) {
    int n = 0;
    for (int i = 0; i < e->options.max_requests; i++) n += e->running[i] != NULL;
    return n;
}
