/* step.c - the engine: one step for all running requests.
 *
 *     1 propose   each decoding request gets a token tree inside its budget
 *     2 pack      trees and prompt chunks become rows of one batch
 *     3 forward   the target reads them all in one pass
 *     4 verify    a path of each tree and one token of the target's own
 *     5 commit    accepted rows stay in the KV cache, drafters observe, tokens go out
 *
 * A request keeps this invariant between steps: its KV holds all of its context but the last token, the
 * pending one. The prompt is no exception: prefill runs all of it but the last token, which is the root of
 * the first tree, so that every generated token comes from a decoding step.
 *
 * Nothing a drafter does can change a token: trees are validated, and only the rule of acceptance chooses. What
 * goes wrong with one request (its context, its pages) ends that request and no other.
 */
#include "base/clock.h"
#include "base/threads.h"
#include "engine/engine.h"
#include "spec/tree/union.h"

#include <stdlib.h>
#include <string.h>

static int complete_options(const fr_model *model, fr_engine_options *o, fr_error *err) {
    if (o->n_threads < 0 || o->n_threads > THREADS_MAX)
        return error_set(err, FR_ERR_ARGUMENT, "%d threads where 1 to %d are possible", o->n_threads, THREADS_MAX);
    if (o->n_ctx < 0 || o->kv_page_size < 0 || o->max_requests < 0 || o->prefill_chunk < 0 || o->n_ctx > 1 << 24 ||
        o->kv_page_size > 4096 || o->max_requests > 4096)
        return error_set(err, FR_ERR_ARGUMENT, "engine options out of range: n_ctx %d, kv_page_size %d, max_requests "
                         "%d, prefill_chunk %d", o->n_ctx, o->kv_page_size, o->max_requests, o->prefill_chunk);
    if (o->kv_tokens < 0 || o->kv_tokens > INT32_MAX || o->prefix_cache > 4096)
        return error_set(err, FR_ERR_ARGUMENT, "engine options out of range: kv_tokens %lld, prefix_cache %d",
                         (long long)o->kv_tokens, o->prefix_cache);
    _Static_assert((int)KV_F16 == FR_KV_F16 && (int)KV_F32 == FR_KV_F32 && (int)KV_Q8 == FR_KV_Q8, "one numbering");
    if ((int)o->kv_type < 0 || (int)o->kv_type >= KV_TYPE_COUNT)
        return error_set(err, FR_ERR_ARGUMENT, "there is no KV type %d", (int)o->kv_type);
    int n_ctx_train = model->model->hparams.n_ctx_train;
    if (!o->n_threads) o->n_threads = threads_n_cores();
    if (!o->n_ctx) {
        o->n_ctx = n_ctx_train < 4096 ? n_ctx_train : 4096;
        if (o->kv_tokens && o->kv_tokens < o->n_ctx) o->n_ctx = (int)o->kv_tokens;
    }
    if (o->kv_tokens && o->kv_tokens < o->n_ctx)
        return error_set(err, FR_ERR_ARGUMENT, "a KV cache of %lld tokens does not hold one context of %d; give it %d "
                         "tokens at least, or ask for a shorter context", (long long)o->kv_tokens, o->n_ctx, o->n_ctx);
    if (!o->kv_page_size) o->kv_page_size = 16;
    if (!o->max_requests) o->max_requests = 1;
    if (!o->prefix_cache) o->prefix_cache = 8;
    if (!o->prefill_chunk) o->prefill_chunk = 256;
    if (o->prefill_chunk > EXECUTOR_MAX_ROWS / 2) o->prefill_chunk = EXECUTOR_MAX_ROWS / 2;
    return FR_OK;
}

/* Sequence i is that of the request at place i; behind them come those of the prefix cache. One more stays closed, for
 * measuring (draft_policy.c). */
static int open_sequences(fr_engine *e, int n, fr_error *err) {
    int status = FR_OK;
    for (int32_t i = 0, id; i < n && !status; i++) {
        status = executor_sequence_open(e->executor, &id, err);
        fr_assert(status || id == i);
    }
    return status;
}

static int open_engine(fr_engine *e, fr_error *err) {
    const fr_engine_options *o = &e->options;
    int64_t rows = o->prefill_chunk + (int64_t)o->max_requests * TREE_MAX_NODES;
    e->n_rows_max = rows < EXECUTOR_MAX_ROWS ? (int32_t)rows : EXECUTOR_MAX_ROWS;
    int status = prefix_cache_open(e, err);
    if (status) return status;
    ExecutorOptions options = {.kv_type = (KvType)o->kv_type,
                               .page_size = o->kv_page_size, .n_ctx = o->n_ctx,
                               .max_sequences = o->max_requests + e->n_cached + 1, .max_rows = e->n_rows_max};
    options.n_pages = o->kv_tokens ? (o->kv_tokens + o->kv_page_size - 1) / o->kv_page_size
                                   : o->max_requests * ((int64_t)o->n_ctx / o->kv_page_size + 1);
    size_t n = (size_t)o->max_requests;
    e->rows = calloc((size_t)e->n_rows_max, sizeof *e->rows);
    e->row_logits = calloc((size_t)e->n_rows_max, sizeof *e->row_logits);
    e->row_hidden = calloc((size_t)e->n_rows_max, sizeof *e->row_hidden);
    e->requests = calloc(n, sizeof *e->requests);
    e->stepping = calloc(n, sizeof *e->stepping);
    e->by_age = calloc(n, sizeof *e->by_age);
    e->propose_sequences = calloc(n, sizeof *e->propose_sequences);
    e->propose_budgets = calloc(n, sizeof *e->propose_budgets);
    e->propose_trees = calloc(n, sizeof *e->propose_trees);
    e->budget_trees = calloc(n, sizeof *e->budget_trees);
    e->allocated_budgets = calloc(n, sizeof *e->allocated_budgets);
    e->budget_scratch = calloc(n * FR_TREE_BUDGET_AUTO_MAX, sizeof *e->budget_scratch);
    e->scratch = verify_scratch_new(e->model->model->hparams.n_vocab);
    if (!e->rows || !e->row_logits || !e->row_hidden || !e->requests || !e->stepping || !e->by_age || !e->propose_sequences || !e->propose_budgets ||
        !e->propose_trees || !e->budget_trees || !e->allocated_budgets || !e->budget_scratch || !e->scratch)
        return error_memory(err, "an engine", (size_t)e->n_rows_max * sizeof *e->rows);
    const Weights *w = e->model->weights;
    const DeviceOptions device = {.kernels = w->options.kernels, .n_threads = o->n_threads, .pin_threads = o->pin_threads};
    status = w->backend->device_open(&e->device, &device, err);
    if (!status) status = executor_open(&e->executor, e->device, w, &options, err);
    return status ? status : open_sequences(e, o->max_requests + e->n_cached, err);
}

int fr_engine_open(fr_engine **out, const fr_model *model, const fr_engine_options *options, fr_error *err) {
    *out = NULL;
    fr_engine *e = calloc(1, sizeof *e);
    if (!e) return error_memory(err, "an engine", sizeof *e);
    e->model = model;
    if (options) e->options = *options;
    int status = complete_options(model, &e->options, err);
    if (!status) status = open_engine(e, err);
    if (status) {
        fr_engine_close(e);
        return status;
    }
    *out = e;
    return FR_OK;
}

void fr_engine_close(fr_engine *e) {
    if (!e) return;
    engine_keep_costs(e);
    engine_close_drafters(e);
    prefix_cache_close(e);
    executor_close(e->executor);
    device_close(e->device);
    verify_scratch_free(e->scratch);
    void *all[] = {e->rows, e->row_logits, e->row_hidden, e->requests, e->stepping, e->by_age, e->propose_sequences,
                   e->propose_budgets, e->propose_trees, e->budget_trees, e->allocated_budgets, e->budget_scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(e);
}

/* Appends n rows, whose slots are claimed; tokens and parents come from the caller. */
static Row *append_rows(fr_request *r, int32_t n) {
    fr_engine *e = r->engine;
    r->first_row = e->n_rows;
    r->n_step_rows = n;
    e->n_rows += n;
    return &e->rows[r->first_row];
}

static void pack_prompt(fr_request *r, int32_t *n_chunk_left) {
    fr_engine *e = r->engine;
    int32_t done = executor_sequence_length(e->executor, r->sequence), whole = (int32_t)r->n_context - done;
    int32_t n = whole - 1 < *n_chunk_left ? whole - 1 : *n_chunk_left;
    r->is_prefill_step = true;
    r->n_step_rows = 0;
    if (n < 1 || e->n_rows + n > e->n_rows_max || prefix_is_coming(r, n) || !pages_claim(r, whole, whole)) return;
    Row *rows = append_rows(r, n);
    for (int32_t i = 0; i < n; i++)
        rows[i] = (Row){.token = r->context[done + i], .sequence = r->sequence, .parent = i ? r->first_row + i - 1 : -1,
                        .want_hidden = r->needs_hidden && done + i >= r->n_read};
    *n_chunk_left -= n;
}

static void pack_tree(fr_request *r) {
    fr_engine *e = r->engine;
    r->is_prefill_step = false;
    r->n_step_rows = 0;
    if (e->n_rows + r->tree.n > e->n_rows_max) return;
    int32_t n = pages_claim(r, r->tree.n, verify_rule_needs_its_trees(r->rule) ? r->tree.n : 1);
    if (n < 1) return;
    if (n < r->tree.n) union_prune(&r->tree, n - 1);
    Row *rows = append_rows(r, n);
    for (int32_t i = 0; i < n; i++)
        rows[i] = (Row){.token = r->tree.nodes[i].token, .sequence = r->sequence,
                        .parent = i ? r->first_row + r->tree.nodes[i].parent : -1, .want_logits = true};
}

static void take_prompt_rows(fr_request *r) {
    fr_engine *e = r->engine;
    int32_t *rows = e->commit_rows, done = executor_sequence_length(e->executor, r->sequence), n_again = r->n_read - done;
    if (n_again < 0) n_again = 0;
    if (n_again > r->n_step_rows) n_again = r->n_step_rows;
    r->stats.n_recomputed += n_again;
    if (r->needs_hidden && n_again < r->n_step_rows) { /* what it read before was shown before */
        for (int32_t i = n_again; i < r->n_step_rows; i++)
            e->row_hidden[i - n_again] = executor_hidden(e->executor, r->first_row + i);
        request_observe_prompt(r, done + n_again, r->n_step_rows - n_again);
    }
    for (int32_t i = 0; i < r->n_step_rows; i++) rows[i] = r->first_row + i;
    executor_commit(e->executor, r->sequence, rows, r->n_step_rows);
}

/* Steps by depth: was there a child to accept, and was one accepted? */
static void count_depths(fr_stats *s, const Tree *t, const VerifyResult *v) {
    for (int32_t depth = 1; depth <= v->n_path + 1 && depth <= FR_MAX_DEPTH; depth++) {
        int32_t parent = depth == 1 ? 0 : v->path[depth - 2];
        bool offered = false;
        for (int32_t i = parent + 1; i < t->n && !offered; i++) offered = t->nodes[i].parent == parent;
        s->offered_at[depth] += offered;
        s->accepted_at[depth] += depth <= v->n_path;
    }
}

/* Nodes that their drafter wants counted apart, and how many of the first n_accepted of the path are such. */
static void count_resampled(fr_stats *s, const Tree *t, const VerifyResult *v, int64_t n_accepted) {
    for (int32_t i = 1; i < t->n; i++) s->resampled += t->nodes[i].kind == NODE_RESAMPLED;
    for (int64_t i = 0; i < n_accepted; i++) s->resampled_accepted += t->nodes[v->path[i]].kind == NODE_RESAMPLED;
}

static void verify_and_emit(fr_request *r) {
    fr_engine *e = r->engine;
    double start_s = clock_s();
    for (int32_t i = 0; i < r->tree.n; i++) {
        e->row_logits[i] = executor_logits(e->executor, r->first_row + i);
        e->row_hidden[i] = executor_hidden(e->executor, r->first_row + i);
    }
    KeyedRandom random_source;
    random_keyed(&random_source, r->sampling.seed, (uint64_t)r->stats.n_generated);
    VerifyInput in = {.tree = &r->tree, .logits = e->row_logits, .n_vocab = e->model->model->hparams.n_vocab,
                      .sampling = &r->sampling, .position = (uint64_t)r->stats.n_generated,
                      .context = r->context, .n_context = r->n_context, .random_source = &random_source.random_source, .options = r->rule_options};
    VerifyResult v;
    fr_error err;
    if (r->rule->verify(&in, e->scratch, &v, &err)) {
        request_fail(r, &err);
        return;
    }

    int32_t tokens[TREE_MAX_NODES], sources[TREE_MAX_NODES], *rows = e->commit_rows;
    const float *logits[TREE_MAX_NODES];
    rows[0] = r->first_row;
    logits[0] = e->row_logits[0];
    for (int32_t i = 0; i < v.n_path; i++) {
        tokens[i] = r->tree.nodes[v.path[i]].token;
        sources[i] = r->tree.nodes[v.path[i]].source;
        rows[i + 1] = r->first_row + v.path[i];
        logits[i + 1] = e->row_logits[v.path[i]];
    }
    tokens[v.n_path] = v.next_token;
    sources[v.n_path] = -1;
    executor_commit(e->executor, r->sequence, rows, v.n_path + 1);
    count_depths(&r->stats, &r->tree, &v);
    r->stats.n_steps++;
    r->stats.drafted += r->tree.n - 1;
    r->stats.undrafted_steps += r->tree.n == 1;
    r->stats.verify_s += clock_s() - start_s;
    request_observe_tree(r, &v);
    int64_t n_accepted = r->stats.accepted;
    request_emit(r, tokens, sources, logits, v.n_path + 1);
    count_resampled(&r->stats, &r->tree, &v, r->stats.accepted - n_accepted);
}

/* Nodes that a request's tree may have: its budget, what fits in its context and text, its share of rows. The text
 * of a ratio or lossy rule depends on its trees, which therefore must not depend on neighbours: it sits out where rows are
 * short. */
static int32_t step_budget(const fr_request *r, int n_running) {
    int64_t budget = r->tree_budget, useful = request_tokens_left(r) - 1;
    int64_t share = (r->engine->n_rows_max - r->engine->options.prefill_chunk) / n_running - 1;
    int64_t room = r->engine->options.n_ctx - r->n_context;
    if (useful <= 0) return 0;
    if (budget > share && !verify_rule_needs_its_trees(r->rule)) budget = share;
    if (budget > room) budget = room;
    return budget > 0 ? (int32_t)budget : 0;
}

/* Sorts the running requests: decoding ones to the front, each kind by age. Returns how many decode. */
static int gather(fr_engine *e) {
    int n_decoding = 0, n = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < e->n_by_age; i++)
            if (request_is_prefilling(e->by_age[i]) == (pass == 1)) e->stepping[n++] = e->by_age[i];
        if (pass == 0) n_decoding = n;
    }
    return n_decoding;
}

static void begin_decoding(fr_request *r) {
    if (r->decode_started_s > 0) return;
    r->decode_started_s = clock_s();
    r->stats.prefill_s = r->decode_started_s - r->started_s;
}

static int run_forward(fr_engine *e, int n_decoding, fr_error *err) {
    double start_s = clock_s();
    int status = executor_forward(e->executor, e->rows, e->n_rows, err);
    double spent_s = clock_s() - start_s;
    for (int i = 0; i < n_decoding; i++) e->stepping[i]->stats.forward_s += spent_s;
    if (e->cost.n) cost_curve_observe(&e->cost, e->n_rows, spent_s);
    return status;
}

/* Rows of the coming forward besides the nodes of planned trees. */
static int32_t n_fixed_rows(const fr_engine *e, int n_decoding, int n_running) {
    int64_t n = 0, n_prompt = 0;
    for (int i = 0; i < n_decoding; i++) n += e->stepping[i]->has_auto_budget ? 1 : e->stepping[i]->tree.n;
    for (int i = n_decoding; i < n_running; i++)
        n_prompt += e->stepping[i]->n_context - 1 - executor_sequence_length(e->executor, e->stepping[i]->sequence);
    return (int32_t)(n + (n_prompt < e->options.prefill_chunk ? n_prompt : e->options.prefill_chunk));
}

int fr_engine_step(fr_engine *e, fr_error *err) {
    pages_begin_step(e);
    prefix_cache_share(e);
    int n_running = e->n_by_age, n_decoding = gather(e), n_left = 0;
    e->n_rows = 0;
    for (int i = 0; i < n_decoding; i++) {
        begin_decoding(e->stepping[i]);
        e->stepping[i]->step_budget = step_budget(e->stepping[i], n_running);
    }
    engine_propose(e, e->stepping, n_decoding);
    engine_allocate_budgets(e, e->stepping, n_decoding, n_fixed_rows(e, n_decoding, n_running));
    int32_t n_chunk_left = e->options.prefill_chunk;
    for (int i = 0; i < n_running; i++) { /* in order of age: a claim may set a younger one back into its prefill */
        if (request_is_prefilling(e->by_age[i])) pack_prompt(e->by_age[i], &n_chunk_left);
        else pack_tree(e->by_age[i]);
    }
    if (e->n_rows > 0) {
        int status = run_forward(e, n_decoding, err);
        if (status) return status;
    }
    for (int i = 0; i < n_running; i++) {
        fr_request *r = e->stepping[i];
        if (r->finish || !r->n_step_rows) continue;
        if (r->is_prefill_step) take_prompt_rows(r);
        else verify_and_emit(r);
    }
    for (int i = 0; i < n_running; i++) n_left += !e->stepping[i]->finish;
    return n_left;
}
