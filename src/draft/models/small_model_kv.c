/* small_model_kv.c - a draft model beside the target: opening it, and its KV cache.
 *
 * Between steps the KV cache holds the context up to the token that was pending in the last proposal. The rows of the
 * tree are discarded after each proposal, and accepted tokens are run again as context: a few cheap rows in a forward
 * that is needed anyway. So the cache is always that of a fresh prefill, bit for bit. A prompt is run in the chunks in
 * which the target reads it, and a request that begins like another one takes its keys over (cached_kv.h).
 *
 * A draft model with a recurrent state. The rows of the tree leave no trace in the state (compute/sequences.c), so that it is
 * that of the context as well. Only the pending token would be taken back, where a proposal was not used and the next one begins
 * with the same token: so the state stops in front of it, and the pending token is run again, one row of a forward that
 * is needed anyway. As the engine does with the target's, the state at the last page border of the prompt is kept, for requests with the
 * same prompt. */
#include "draft/models/small_model_kv.h"

#include "base/mem.h"
#include "draft/models/draft_model.h"
#include "text/vocab.h"

#include <string.h>

enum { PREFILL_CHUNK = 256, PAGE_SIZE = 16 };

/* ---- opening ------------------------------------------------------------------------------------ */

static int open_files(SmallModelKv *r, const char *path, const DrafterEnv *env, fr_error *err) {
    int status = gguf_open(&r->gguf, path, err);
    if (!status) status = vocab_match(r->gguf, env->target, err);
    if (!status) status = model_open(&r->model, r->gguf, err);
    if (status) return status;
    r->is_recurrent = model_n_states(r->model) > 0;
    if (r->model->hparams.n_vocab == env->n_vocab) return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: has %d embeddings, but the target %s has %d; a draft model must have the same number", path,
                     r->model->hparams.n_vocab, gguf_path(env->target), env->n_vocab);
}

static int open_memory(SmallModelKv *r, const DrafterEnv *env, fr_error *err) {
    int64_t rows = (int64_t)(SMALL_MODEL_MAX_NEW + r->n_nodes) * env->max_sequences;
    if (rows > EXECUTOR_MAX_ROWS) rows = EXECUTOR_MAX_ROWS;
    r->max_rows = rows > PREFILL_CHUNK ? (int32_t)rows : PREFILL_CHUNK;
    size_t n = (size_t)r->max_rows;
    r->sequences = mem_calloc((size_t)env->max_sequences + (size_t)env->n_cached, sizeof *r->sequences);
    r->rows = mem_calloc(n, sizeof *r->rows);
    r->row_ids = mem_calloc(n, sizeof *r->row_ids);
    r->sampler = sampler_new(r->n_vocab);
    if (!r->sequences || !r->rows || !r->row_ids || !r->sampler)
        return error_memory(err, "a draft model's rows", n * sizeof *r->rows);
    sampler_use_kernels(r->sampler, env->device->rows);
    ExecutorOptions options = {.kv_type = KV_F16,
                               .page_size = PAGE_SIZE,
                               .n_ctx = r->n_ctx + r->n_nodes,
                               .max_sequences = env->max_sequences + env->n_cached,
                               .n_pages = cached_kv_n_pages(env, r->n_ctx + r->n_nodes, PAGE_SIZE),
                               .max_rows = r->max_rows,
                               .max_logits = env->max_sequences * r->n_nodes};
    WeightsOptions weights = env->weights->options;
    weights.progress = NULL;
    int status = env->device->backend->weights_open(&r->weights, r->model, &weights, err);
    if (!status) status = executor_open(&r->executor, env->device, r->weights, &options, err);
    if (!status) status = cached_kv_open(&r->cached, r->executor, env, err);
    for (int32_t i = 0; i < env->n_cached && !status; i++)
        r->sequences[env->max_sequences + i] = (DraftSequence){.begun = true, .kv = r->cached.sequences[i]};
    return status;
}

int small_model_kv_open(SmallModelKv *r, const char *path, int32_t n_nodes, const DrafterEnv *env, fr_error *err) {
    r->n_nodes = n_nodes;
    r->n_vocab = env->n_vocab;
    r->max_sequences = env->max_sequences;
    r->n_cached = env->n_cached;
    r->n_ctx = env->n_ctx;
    r->mark_every = env->page_size > 0 ? env->page_size : PAGE_SIZE;
    int status = open_files(r, path, env, err);
    if (!status) status = open_memory(r, env, err);
    for (int32_t i = 0; !status && i < r->max_sequences; i++) small_model_kv_set_sampling(r, i, &SAMPLING_DEFAULT, 0);
    return status;
}

void small_model_kv_close(SmallModelKv *r) {
    for (int32_t i = 0; r->sequences && i < r->max_sequences; i++) mem_free(r->sequences[i].tokens);
    mem_free(r->sequences);
    mem_free(r->rows);
    mem_free(r->row_ids);
    cached_kv_close(&r->cached);
    executor_close(r->executor);
    weights_close(r->weights);
    sampler_free(r->sampler);
    model_close(r->model);
    gguf_close(r->gguf);
}

/* ---- sequences ---------------------------------------------------------------------------------- */

DraftSequence *small_model_kv_sequence(const SmallModelKv *r, int32_t sequence) {
    fr_assert(sequence >= 0 && sequence < r->max_sequences + r->n_cached);
    return &r->sequences[sequence];
}

void small_model_kv_set_sampling(SmallModelKv *r, int32_t sequence, const SamplingOptions *sampling,
                                 uint64_t position) {
    DraftSequence *s = small_model_kv_sequence(r, sequence);
    s->position = position;
    s->greedy = sampling->temperature == 0;
    s->dist = *sampling;
    if (s->greedy) s->dist.temperature = 1, s->dist.top_k = 0, s->dist.top_p = 1, s->dist.min_p = 0;
}

static int append(const SmallModelKv *r, DraftSequence *s, const int32_t *tokens, int64_t n, fr_error *err) {
    if (n > r->n_ctx - s->n)
        return error_set(err, FR_ERR_CONTEXT, "the draft model's context of %d tokens is full", r->n_ctx);
    memcpy(s->tokens + s->n, tokens, (size_t)n * sizeof *tokens);
    s->n += (int32_t)n;
    return FR_OK;
}

/* Appends rows for the next n context tokens to r->rows; reserves KV cache for them and n_more rows. */
static int put_rows(SmallModelKv *r, const DraftSequence *s, int32_t n, int32_t n_more, fr_error *err) {
    int32_t done = executor_sequence_length(r->executor, s->kv);
    int status = cached_kv_reserve(&r->cached, s->kv, n + n_more, err);
    for (int32_t i = 0; i < n && !status; i++, r->n_rows++)
        r->rows[r->n_rows] = (Row){.token = s->tokens[done + i], .sequence = s->kv, .parent = i ? r->n_rows - 1 : -1};
    return status;
}

static void commit(SmallModelKv *r, const DraftSequence *s, int32_t first_row, int32_t n) {
    for (int32_t i = 0; i < n; i++) r->row_ids[i] = first_row + i;
    executor_commit(r->executor, s->kv, r->row_ids, n);
}

/* Runs the context up to token `end` in forwards of its own, in chunks. */
static int prefill(SmallModelKv *r, const DraftSequence *s, int32_t end, fr_error *err) {
    for (int32_t n; (n = end - executor_sequence_length(r->executor, s->kv)) > 0;) {
        if (n > PREFILL_CHUNK) n = PREFILL_CHUNK;
        r->n_rows = 0;
        int status = put_rows(r, s, n, 0, err);
        if (!status) status = executor_forward(r->executor, r->rows, n, err);
        if (status) return status;
        r->n_forwards++;
        commit(r, s, 0, n);
    }
    return FR_OK;
}

int small_model_kv_begin(SmallModelKv *r, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    DraftSequence *s = small_model_kv_sequence(r, sequence);
    fr_assert(!s->begun && n > 0);
    size_t room = (size_t)r->n_ctx + DRAFT_MODEL_MAX_LEVELS;
    s->tokens = mem_calloc(room, sizeof *s->tokens);
    if (!s->tokens) return error_memory(err, "a draft model's context", room * sizeof *s->tokens);
    s->n = 0;
    int status = executor_sequence_open(r->executor, &s->kv, err);
    s->begun = status == FR_OK;
    return status ? status : append(r, s, tokens, n, err);
}

int small_model_kv_observe_prompt(SmallModelKv *r, int32_t sequence, int64_t end, fr_error *err) {
    const DraftSequence *s = small_model_kv_sequence(r, sequence);
    int status = prefill(r, s, (int32_t)end, err);
    if (!status && end == s->n - 1) executor_sequence_mark(r->executor, s->kv, (int32_t)(end - end % r->mark_every));
    return status;
}

int32_t small_model_kv_n_held(const SmallModelKv *r, int32_t sequence) {
    const DraftSequence *s = small_model_kv_sequence(r, sequence);
    return s->begun ? executor_sequence_length(r->executor, s->kv) : 0;
}

int32_t small_model_kv_reach(const SmallModelKv *r, int32_t sequence, int32_t n) {
    return executor_sequence_reach(r->executor, small_model_kv_sequence(r, sequence)->kv, n);
}

void small_model_kv_take_over(SmallModelKv *r, int32_t from, int32_t to, int32_t n) {
    cached_kv_take_over(&r->cached, small_model_kv_sequence(r, from)->kv, small_model_kv_sequence(r, to)->kv, n);
}

int small_model_kv_observe(SmallModelKv *r, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    DraftSequence *s = small_model_kv_sequence(r, sequence);
    s->position += (uint64_t)n;
    return append(r, s, tokens, n, err);
}

void small_model_kv_end(SmallModelKv *r, int32_t sequence) {
    DraftSequence *s = small_model_kv_sequence(r, sequence);
    if (s->begun) executor_sequence_close(r->executor, s->kv);
    mem_free(s->tokens);
    s->tokens = NULL;
    s->begun = false;
    small_model_kv_set_sampling(r, sequence, &SAMPLING_DEFAULT, 0);
}

/* ---- a proposal ----------------------------------------------------------------------------------- */

int small_model_kv_catch_up(SmallModelKv *r, const DraftSequence *s, fr_error *err) {
    return prefill(r, s, s->n - SMALL_MODEL_MAX_NEW, err);
}

int small_model_kv_put_context(SmallModelKv *r, const DraftSequence *s, int32_t *n_rows, fr_error *err) {
    /* If the last proposal was not used by the engine, the pending token has already run (never in a recurrent state). */
    if (executor_sequence_length(r->executor, s->kv) == s->n) executor_sequence_truncate(r->executor, s->kv, s->n - 1);
    *n_rows = s->n - executor_sequence_length(r->executor, s->kv);
    fr_assert(*n_rows <= SMALL_MODEL_MAX_NEW);
    int status = put_rows(r, s, *n_rows, r->n_nodes, err);
    if (!status) r->rows[r->n_rows - 1].want_logits = true;
    return status;
}

void small_model_kv_commit_context(SmallModelKv *r, const DraftSequence *s, int32_t first_row, int32_t n_rows) {
    commit(r, s, first_row, r->is_recurrent ? n_rows - 1 : n_rows);
}

void small_model_kv_dist(SmallModelKv *r, DraftSequence *s, const Tree *t, int32_t node, int32_t row, float *dist) {
    for (int32_t i = node; i > 0; i = t->nodes[i].parent) s->tokens[s->n + t->nodes[i].depth - 1] = t->nodes[i].token;
    sampler_dist(r->sampler, &s->dist, executor_logits(r->executor, row), s->tokens, s->n + t->nodes[node].depth, dist);
}
