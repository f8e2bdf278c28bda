/* engine.c - opening and closing an engine: its options, its memory, its drafters and what its forwards cost.
 *
 * Everything slow happens here: files are read, memory is taken and times are measured when the engine opens, or in
 * fr_engine_open_draft and fr_engine_measure_costs. Opening a request is cheap, and a decoding step takes no memory. */
#include "engine/engine.h"

#include "compute/cost.h"
#include "base/mem.h"
#include "base/threads.h"
#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

/* Replaces each 0 in the options by its default, and refuses values out of range. */
static int complete_options(const fr_model *model, fr_engine_options *o, fr_error *err) {
    if (o->n_threads < 0 || o->n_threads > THREADS_MAX)
        return error_set(err, FR_ERR_ARGUMENT, "n_threads is %d; it must be 0 (one per core) to %d", o->n_threads,
                         THREADS_MAX);
    if (o->n_ctx < 0 || o->kv_page_size < 0 || o->max_requests < 0 || o->prefill_chunk < 0 || o->n_ctx > 1 << 24 ||
        o->kv_page_size > 4096 || o->max_requests > 4096 || o->max_queued < 0 || o->max_queued > 1 << 20)
        return error_set(err, FR_ERR_ARGUMENT,
                         "engine options out of range: n_ctx %d, kv_page_size %d, max_requests "
                         "%d, prefill_chunk %d, max_queued %d",
                         o->n_ctx, o->kv_page_size, o->max_requests, o->prefill_chunk, o->max_queued);
    if (o->kv_tokens < 0 || o->kv_tokens > INT32_MAX || o->prefix_cache > 4096)
        return error_set(err, FR_ERR_ARGUMENT, "engine options out of range: kv_tokens %lld, prefix_cache %d",
                         (long long)o->kv_tokens, o->prefix_cache);
    if (!(o->max_gap_s >= 0))
        return error_set(err, FR_ERR_ARGUMENT, "max_gap_s is %g; it must be 0 (twice a step) or more", o->max_gap_s);
    _Static_assert((int)KV_F16 == FR_KV_F16 && (int)KV_F32 == FR_KV_F32 && (int)KV_Q8 == FR_KV_Q8, "one numbering");
    if ((int)o->kv_type < 0 || (int)o->kv_type >= KV_TYPE_COUNT)
        return error_set(err, FR_ERR_ARGUMENT, "there is no KV type %d", (int)o->kv_type);
    int n_ctx_train = model->model->hparams.n_ctx_train;
    if (!o->n_threads) o->n_threads = threads_n_physical_cores();
    if (!o->n_ctx) {
        o->n_ctx = n_ctx_train < 4096 ? n_ctx_train : 4096;
        if (o->kv_tokens && o->kv_tokens < o->n_ctx) o->n_ctx = (int)o->kv_tokens;
    }
    if (o->kv_tokens && o->kv_tokens < o->n_ctx)
        return error_set(err, FR_ERR_ARGUMENT,
                         "a KV cache of %lld tokens does not hold one context of %d; give it at "
                         "least %d tokens, or set a shorter context",
                         (long long)o->kv_tokens, o->n_ctx, o->n_ctx);
    if (!o->kv_page_size) o->kv_page_size = 16;
    if (!o->max_requests) o->max_requests = 1;
    if (!o->prefix_cache) o->prefix_cache = 8;
    if (!o->prefill_chunk) o->prefill_chunk = 256;
    if (o->prefill_chunk > EXECUTOR_MAX_ROWS / 2) o->prefill_chunk = EXECUTOR_MAX_ROWS / 2;
    return FR_OK;
}

/* Opens the sequences: sequence i belongs to the request running[i], and those of the prefix cache follow. The executor
 * has room for one more, which is opened when costs are measured (draft_policy.c). */
static int open_sequences(fr_engine *e, int n, fr_error *err) {
    int status = FR_OK;
    for (int32_t i = 0, id; i < n && !status; i++) {
        status = executor_sequence_open(e->executor, &id, err);
        fr_assert(status || id == i);
    }
    return status;
}

static int take_memory(fr_engine *e, fr_error *err) {
    size_t n = (size_t)e->options.max_requests;
    int64_t rows = e->options.prefill_chunk + (int64_t)n * TREE_MAX_NODES;
    EngineStep *s = &e->step;
    DraftPolicy *p = &e->policy;
    e->n_places = e->options.max_requests + e->options.max_queued;
    s->n_rows_max = rows < EXECUTOR_MAX_ROWS ? (int32_t)rows : EXECUTOR_MAX_ROWS;
    const ArenaItem items[] = {
        ARENA_ITEM(&e->requests, e->n_places),
        ARENA_ITEM(&e->running, n),
        ARENA_ITEM(&s->by_age, n),
        ARENA_ITEM(&s->decoding_first, n),
        ARENA_ITEM(&s->rows, s->n_rows_max),
        ARENA_ITEM(&s->row_logits, s->n_rows_max),
        ARENA_ITEM(&s->row_hidden, s->n_rows_max),
        ARENA_ITEM(&s->verifying, n),
        ARENA_ITEM(&s->extra_rows, s->n_rows_max),
        ARENA_ITEM(&s->propose_sequences, n),
        ARENA_ITEM(&s->propose_budgets, n),
        ARENA_ITEM(&s->propose_trees, n),
        ARENA_ITEM(&p->trees, n),
        ARENA_ITEM(&p->budgets, n),
        ARENA_ITEM(&p->scratch, n * FR_TREE_BUDGET_AUTO_MAX),
    };
    int status = arena_take(&e->arena, items, ARENA_COUNT(items), "an engine", err);
    return status ? status : prefix_cache_open(e, err);
}

/* Allocates the scratch memory of verification, for as many requests as can be verified at the same time. */
static int open_scratch(fr_engine *e, fr_error *err) {
    int n = e->device->n_threads < e->options.max_requests ? e->device->n_threads : e->options.max_requests;
    e->scratch = mem_calloc((size_t)n, sizeof *e->scratch);
    for (; e->scratch && e->n_scratch < n; e->n_scratch++) {
        VerifyScratch *s = verify_scratch_new(e->model->model->hparams.n_vocab);
        if (!s) break;
        sampler_use_kernels(s->sampler, e->device->rows);
        e->scratch[e->n_scratch] = s;
    }
    return e->n_scratch == n ? FR_OK : error_memory(err, "the scratch memory of verification", 0);
}

/* Returns how many pages the layers with a window get: for each request its window and the rows of a step, as much
 * again for marks and the prefix cache, and the longest step of one request. 0: there are no such layers, or this is no
 * less than the other layers have. */
static int64_t n_window_pages(const fr_engine *e, int64_t n_pages) {
    const fr_engine_options *o = &e->options;
    int64_t window = model_window(e->model->model), size = o->kv_page_size, n = o->max_requests;
    int64_t rows = o->prefill_chunk > TREE_MAX_NODES ? o->prefill_chunk : TREE_MAX_NODES;
    int64_t longest = window + rows < o->n_ctx ? window + rows : o->n_ctx, other = window + FR_TREE_BUDGET;
    int64_t pages = longest / size + 2 + 2 * n * (other / size + 2);
    return window > 0 && pages < n_pages ? pages : 0;
}

static int open_executor(fr_engine *e, fr_error *err) {
    const fr_engine_options *o = &e->options;
    ExecutorOptions options = {.kv_type = (KvType)o->kv_type,
                               .page_size = o->kv_page_size,
                               .n_ctx = o->n_ctx,
                               .max_sequences = o->max_requests + e->prefixes.n + 1,
                               .max_rows = e->step.n_rows_max,
                               .max_logits = o->max_requests}; /* request_queue_reserve takes more for trees */
    options.n_pages = o->kv_tokens ? (o->kv_tokens + o->kv_page_size - 1) / o->kv_page_size
                                   : o->max_requests * ((int64_t)o->n_ctx / o->kv_page_size + 1);
    options.n_window_pages = n_window_pages(e, options.n_pages);
    const Weights *w = e->model->weights;
    const DeviceOptions device = {.kernels = w->options.kernels,
                                  .n_threads = o->n_threads,
                                  .pin_threads = o->pin_threads};
    int status = w->backend->device_open(&e->device, &device, err);
    if (!status) status = executor_open(&e->executor, e->device, w, &options, err);
    return status ? status : open_sequences(e, o->max_requests + e->prefixes.n, err);
}

static int open_one(void *user, const char *spec, fr_error *err) { return drafter_pool_open_draft(user, spec, err); }

static int open_draft(fr_engine *e, const char *spec, fr_error *err) {
    int status = drafter_each(spec, open_one, e, err);
    return status || !drafter_names_auto(spec) ? status : draft_policy_measure_costs(e, err);
}

static int open_engine(fr_engine *e, fr_error *err) {
    const char *cost_cache = e->options.cost_cache;
    const char *const *drafts = e->options.drafts; /* the caller's strings */
    int n_drafts = e->options.n_drafts;
    e->options.drafts = NULL;
    e->options.n_drafts = 0;
    int status = check_strings(drafts, n_drafts, "fr_engine_open", "drafts", err);
    if (!status && cost_cache && !(e->cost_cache = strdup(cost_cache)))
        status = error_memory(err, "an engine", strlen(cost_cache));
    e->options.cost_cache = e->cost_cache;
    if (!status) status = complete_options(e->model, &e->options, err);
    if (!status) status = take_memory(e, err);
    if (!status) status = open_executor(e, err);
    if (!status) status = open_scratch(e, err);
    for (int i = 0; i < n_drafts && !status; i++) status = open_draft(e, drafts[i], err);
    return status;
}

/* Closes an engine that runs no callback. */
static void close_engine(fr_engine *e) {
    FpEnv caller_env = fp_env_enter();
    for (int i = 0; e->requests && i < e->n_places; i++) fr_request_close(e->requests[i]);
    draft_policy_save_costs(e);
    drafter_pool_close(e);
    prefix_cache_close(e);
    executor_close(e->executor);
    device_close(e->device);
    for (int i = 0; i < e->n_scratch; i++) verify_scratch_free(e->scratch[i]);
    mem_free(e->scratch);
    arena_free(&e->arena);
    free(e->cost_cache);
    model_release(e->model);
    free(e);
    fp_env_leave(&caller_env);
}

int fr_engine_open(fr_engine **out, const fr_model *model, const fr_engine_options *options, fr_error *err) {
    int status = check_given(out, "fr_engine_open", "out", err);
    if (status) return status;
    *out = NULL;
    if ((status = check_given(model, "fr_engine_open", "model", err))) return status;
    fr_engine_options o = {0};
    if ((status = read_options(&o, sizeof o, options, "fr_engine_open", "fr_engine_options", err))) return status;
    fr_engine *e = calloc(1, sizeof *e);
    if (!e) return error_memory(err, "an engine", sizeof *e);
    e->model = (fr_model *)model; /* only its number of users changes */
    atomic_fetch_add(&e->model->n_users, 1);
    e->options = o;
    e->grammar_work = GRAMMAR_STEP_WORK;
    FpEnv caller_env = fp_env_enter();
    status = open_engine(e, err);
    if (status) close_engine(e);
    else *out = e;
    fp_env_leave(&caller_env);
    return status;
}

void fr_engine_close(fr_engine *e) {
    if (!e) return;
    if (!e->is_in_callback) {
        close_engine(e);
        return;
    }
    e->is_closing = true; /* engine_end_step closes it */
    for (int i = 0; i < e->n_places; i++) fr_request_close(e->requests[i]);
}

int engine_end_step(fr_engine *e, fr_error *err) {
    for (int i = 0; i < e->n_places; i++)
        if (e->requests[i] && e->requests[i]->is_closed) fr_request_close(e->requests[i]);
    if (!e->is_closing) return FR_OK;
    close_engine(e);
    return error_set(err, FR_ERR_CANCELLED, "fr_engine_step: the engine was closed within on_token");
}

int engine_check_call(const fr_engine *e, const char *function, fr_error *err) {
    int status = check_given(e, function, "engine", err);
    if (status || !e->is_in_callback) return status;
    return error_set(err, FR_ERR_ARGUMENT,
                     "%s was called within on_token of a request of the same engine; call it after fr_engine_step has "
                     "returned",
                     function);
}

int fr_engine_open_draft(fr_engine *e, const char *spec, fr_error *err) {
    int status = engine_check_call(e, "fr_engine_open_draft", err);
    if (!status) status = check_given(spec, "fr_engine_open_draft", "spec", err);
    if (status) return status;
    FpEnv caller_env = fp_env_enter();
    status = open_draft(e, spec, err);
    fp_env_leave(&caller_env);
    return status;
}

/* The search for the notice of one of several drafters. */
typedef struct NoticeSearch {
    const fr_engine *engine;
    const char *found; /* "": none yet */
} NoticeSearch;

static int find_notice(void *user, const char *spec, fr_error *err) {
    NoticeSearch *s = user;
    (void)err;
    if (!*s->found) s->found = drafter_pool_notice(s->engine, spec);
    return FR_OK;
}

const char *fr_engine_draft_notice(const fr_engine *e, const char *spec) {
    NoticeSearch s = {e, ""};
    if (e && spec) (void)drafter_each(spec, find_notice, &s, NULL);
    return s.found;
}

int fr_engine_measure_costs(fr_engine *e, fr_error *err) {
    int status = engine_check_call(e, "fr_engine_measure_costs", err);
    if (status) return status;
    FpEnv caller_env = fp_env_enter();
    status = draft_policy_measure_costs(e, err);
    fp_env_leave(&caller_env);
    return status;
}

int fr_engine_get_options(const fr_engine *e, fr_engine_options *out) {
    static const fr_engine_options none;
    int status = fill_result(out, e ? &e->options : &none, sizeof none);
    return e ? status : FR_ERR_ARGUMENT;
}

static void add_exchanges(const fr_model *m, fr_engine_stats *stats) {
    CommCounts counts = comm_counts(m->ranks->comm);
    stats->n_ranks = comm_size(m->ranks->comm);
    stats->n_exchanges = counts.n_gathers + counts.n_broadcasts;
    stats->exchanged_bytes = counts.n_gather_bytes + counts.n_broadcast_bytes;
    stats->exchange_s = counts.seconds;
    stats->exchange_latency_s = m->weights->exchange_s;
    stats->exchange_bytes_per_s = m->weights->exchange_bytes_per_s;
    stats->n_divided_drafts = ranks_n_drafts(m->ranks);
    stats->draft_whole_s = m->ranks->draft_whole_s;
    stats->draft_divided_s = m->ranks->draft_divided_s;
    stats->draft_divided_is_measured = m->ranks->has_timed_divided;
}

int fr_engine_get_stats(const fr_engine *e, fr_engine_stats *out) {
    fr_engine_stats stats = {0};
    if (!e) {
        (void)fill_result(out, &stats, sizeof stats);
        return FR_ERR_ARGUMENT;
    }
    int64_t page = e->options.kv_page_size, n_pages = executor_n_pages(e->executor);
    int64_t n_running = executor_n_pages_of(e->executor, e->options.max_requests),
            n_held = n_pages - executor_n_free_pages(e->executor);
    int64_t n_window_pages = executor_n_window_pages(e->executor);
    CostWork work;
    cost_work(e->model->weights, (KvType)e->options.kv_type, &work);
    double bytes = (double)n_pages * work.kept_bytes[KV_ALL] +
                   (double)(n_window_pages ? n_window_pages : n_pages) * work.kept_bytes[KV_WINDOW];
    stats = (fr_engine_stats){.n_running = request_queue_n_running(e),
                              .n_queued = e->n_queued,
                              .kv_tokens = n_pages * page,
                              .kv_tokens_running = n_running * page,
                              .kv_tokens_prefixes = (n_held - n_running) * page,
                              .kv_window_tokens = n_window_pages * page,
                              .kv_window_tokens_held = (n_window_pages - executor_n_free_window_pages(e->executor)) *
                                                       page,
                              .kv_bytes = (int64_t)(bytes * (double)page)};
    if (e->model->ranks) add_exchanges(e->model, &stats);
    return fill_result(out, &stats, sizeof stats);
}

double fr_engine_forward_s(const fr_engine *e, int n_rows, int64_t n_context) {
    if (!e || e->policy.cost.n == 0 || n_rows < 1 || n_context < 0) return 0;
    FpEnv caller_env = fp_env_enter();
    CostCurve cost = e->policy.cost;
    cost.n_context = (double)n_context;
    double seconds = cost_curve_at(&cost, n_rows);
    fp_env_leave(&caller_env);
    return seconds;
}
