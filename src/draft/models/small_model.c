/* small_model.c - the draft model of draft_model.c: its files, its KV cache, and what it has read of each sequence.
 *
 * The KV cache. Between steps it holds the context up to the token that was pending in the last proposal. The rows of
 * the tree are discarded after each proposal, and accepted tokens are run again as context: a few cheap rows in a
 * forward that is needed anyway. So the cache is always that of a fresh prefill, bit for bit. A prompt is run in the
 * chunks in which the target reads it, and a request that begins like another one takes over its keys (cached_kv.h).
 *
 * A draft model may have a recurrent state. The rows of the tree leave no trace in it (compute/sequences.c), so the
 * state is that of the context as well. But it cannot be moved back, and the pending token would have to be taken back
 * if a proposal is not used and the next one begins with the same token. So the state stops before the pending token,
 * which is run again, as one row of a forward that is needed anyway. The state at the last page border of the prompt is
 * kept for requests with the same prompt, like the target's state in the engine.
 *
 * Another vocabulary. A draft model whose vocabulary differs from the target's reads the text in tokens of its own
 * (retokenizer.c) and proposes the tokens that both vocabularies contain: token-level intersection (Timor et al. 2025,
 * arXiv 2502.05202). Its logits become a row of the target's vocabulary, with -inf for all other tokens, and trees are
 * grown from such rows. So q is the draft's distribution restricted to the shared tokens and normalised, which is
 * what is drawn from, declared and divided by. A drafted token is run as the draft model's token of the same text. When
 * the step has committed it, the text may have other tokens there; the rows that are no longer right are then run
 * again. A recurrent state cannot be moved back, so it stops before the segment that is still open.
 *
 * Invariants: the cache of a sequence depends on its context only; sequences do not affect each other. Proof:
 * tests/draft/test_draft_model.c, tests/lossless/test_draft_model_text.c. */
#include "draft/models/small_model.h"

#include "base/hash.h"
#include "base/mem.h"
#include "draft/drafter_file.h"
#include "text/vocab.h"

#include <string.h>

enum { PREFILL_CHUNK = 256, PAGE_SIZE = 16 };

/* ---- opening ------------------------------------------------------------------------------------------ */

/* In another vocabulary a text has a different number of tokens; this much room is enough unless it has very short
 * ones. */
enum { OWN_CTX_FACTOR = 2 };

static int open_other_vocab(SmallModel *r, const DrafterEnv *env, fr_error *err) {
    r->has_other_vocab = true;
    r->n_own_ctx = (int32_t)min_i64((int64_t)OWN_CTX_FACTOR * env->n_ctx, INT32_MAX / 4);
    r->restricted = mem_calloc((size_t)env->n_vocab, sizeof *r->restricted);
    if (!r->restricted) return error_memory(err, "a row of logits", (size_t)env->n_vocab * sizeof *r->restricted);
    /* The rows of an open segment must fit beside a tree if they are run in every step. */
    int32_t max_open = r->is_recurrent ? SMALL_MODEL_MAX_NEW - 1 : RETOKENIZER_MAX_OPEN;
    const int32_t settings[] = {max_open, OWN_CTX_FACTOR};
    r->weights_mark = hash64(settings, sizeof settings, r->weights_mark);
    return retokenizer_open(&r->retokenizer, r->gguf, r->model->hparams.n_vocab, env->target, env->n_vocab, max_open,
                            err);
}

static int open_files(SmallModel *r, const char *path, const DrafterEnv *env, fr_error *err) {
    int status = gguf_open(&r->gguf, path, err);
    int match = status ? status : vocab_match(r->gguf, env->target, err);
    if (match && match != FR_ERR_MISMATCH) return match;
    if (!status) status = model_open(&r->model, r->gguf, err);
    if (status) return status;
    r->is_recurrent = model_n_states(r->model) > 0;
    r->weights_mark = gguf_weights_mark(r->gguf);
    r->n_own_ctx = env->n_ctx;
    bool is_same = match == FR_OK && r->model->hparams.n_vocab == env->n_vocab;
    return is_same ? FR_OK : open_other_vocab(r, env, err);
}

static int open_memory(SmallModel *r, int32_t n_rows, const DrafterEnv *env, fr_error *err) {
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
    DrafterEnv own = *env;
    if (r->has_other_vocab) own.cached_tokens *= OWN_CTX_FACTOR;
    ExecutorOptions options = {.kv_type = KV_F16,
                               .page_size = PAGE_SIZE,
                               .n_ctx = r->n_own_ctx + r->n_nodes,
                               .max_sequences = env->max_sequences + env->n_cached,
                               .n_pages = cached_kv_n_pages(&own, r->n_own_ctx + r->n_nodes, PAGE_SIZE),
                               .max_rows = r->max_rows,
                               .max_logits = env->max_sequences * r->n_nodes};
    int status = weights_open_draft(&r->weights, env->device, env->weights, r->model, n_rows, err);
    if (!status) status = executor_open(&r->executor, env->device, r->weights, &options, err);
    if (!status) status = cached_kv_open(&r->cached, r->executor, env, err);
    for (int32_t i = 0; i < env->n_cached && !status; i++) {
        DraftSequence *s = &r->sequences[env->max_sequences + i];
        *s = (DraftSequence){.begun = true, .kv = r->cached.sequences[i]};
        if (r->has_other_vocab) status = retokenized_text_open(&s->text, r->n_ctx, r->n_own_ctx, err);
    }
    return status;
}

static void set_options(DraftSequence *s, const SamplingOptions *sampling, uint64_t position) {
    s->position = position;
    s->greedy = sampling->temperature == 0;
    s->dist = *sampling;
    if (s->greedy) s->dist.temperature = 1, s->dist.top_k = 0, s->dist.top_p = 1, s->dist.min_p = 0;
}

int small_model_open(SmallModel *r, const char *path, int32_t n_nodes, int32_t n_levels, const DrafterEnv *env,
                     fr_error *err) {
    int32_t n_rows = (n_nodes + n_levels - 1) / n_levels;
    r->n_nodes = n_nodes;
    r->n_vocab = env->n_vocab;
    r->max_sequences = env->max_sequences;
    r->n_cached = env->n_cached;
    r->n_ctx = env->n_ctx;
    r->mark_every = env->page_size > 0 ? env->page_size : PAGE_SIZE;
    int status = open_files(r, path, env, err);
    if (!status) status = open_memory(r, n_rows, env, err);
    for (int32_t i = 0; !status && i < r->max_sequences; i++) set_options(&r->sequences[i], &SAMPLING_DEFAULT, 0);
    return status;
}

void small_model_close(SmallModel *r) {
    for (int32_t i = 0; r->sequences && i < r->max_sequences + r->n_cached; i++) {
        mem_free(r->sequences[i].tokens);
        retokenized_text_close(&r->sequences[i].text);
    }
    mem_free(r->sequences);
    mem_free(r->rows);
    mem_free(r->row_ids);
    cached_kv_close(&r->cached);
    executor_close(r->executor);
    weights_close(r->weights);
    sampler_free(r->sampler);
    retokenizer_close(&r->retokenizer);
    mem_free(r->restricted);
    model_close(r->model);
    gguf_close(r->gguf);
}

/* ---- sequences --------------------------------------------------------------------------------------- */

DraftSequence *small_model_sequence(const SmallModel *r, int32_t sequence) {
    fr_assert(sequence >= 0 && sequence < r->max_sequences + r->n_cached);
    return &r->sequences[sequence];
}

/* The context as the draft model reads it, its number of tokens, and how many of the first ones nothing changes. */
static const int32_t *own_tokens(const SmallModel *r, const DraftSequence *s) {
    return r->has_other_vocab ? s->text.tokens : s->tokens;
}

static int32_t n_own(const SmallModel *r, const DraftSequence *s) { return r->has_other_vocab ? s->text.n : s->n; }

static int32_t n_final(const SmallModel *r, const DraftSequence *s) {
    return r->has_other_vocab ? s->text.n_closed : s->n;
}

/* Returns how many of the draft model's tokens belong to the first n tokens of the target for certain. */
static int32_t own_end(const SmallModel *r, const DraftSequence *s, int64_t n) {
    if (!r->has_other_vocab || n == 0) return (int32_t)n;
    return s->text.ends[n];
}

static int append(SmallModel *r, DraftSequence *s, const int32_t *tokens, int64_t n, fr_error *err) {
    if (n > r->n_ctx - s->n)
        return error_set(err, FR_ERR_CONTEXT, "the draft model's context of %d tokens is full", r->n_ctx);
    memcpy(s->tokens + s->n, tokens, (size_t)n * sizeof *tokens);
    s->n += (int32_t)n;
    if (!r->has_other_vocab) return FR_OK;
    int status = retokenizer_append(&r->retokenizer, &s->text, tokens, n, err);
    if (executor_sequence_length(r->executor, s->kv) > s->text.n_same)
        executor_sequence_truncate(r->executor, s->kv, s->text.n_same);
    return status;
}

/* Appends rows for the next n context tokens to r->rows; reserves KV cache for them and n_more rows. */
static int put_rows(SmallModel *r, const DraftSequence *s, int32_t n, int32_t n_more, fr_error *err) {
    int32_t done = executor_sequence_length(r->executor, s->kv);
    int status = cached_kv_reserve(&r->cached, s->kv, n + n_more, err);
    for (int32_t i = 0; i < n && !status; i++, r->n_rows++)
        r->rows[r->n_rows] = (Row){.token = own_tokens(r, s)[done + i],
                                   .sequence = s->kv,
                                   .parent = i ? r->n_rows - 1 : -1};
    return status;
}

static void commit(SmallModel *r, const DraftSequence *s, int32_t first_row, int32_t n) {
    for (int32_t i = 0; i < n; i++) r->row_ids[i] = first_row + i;
    executor_commit(r->executor, s->kv, r->row_ids, n);
}

/* Runs the context up to the draft model's token `end` in forwards of its own, in chunks. */
static int prefill(SmallModel *r, const DraftSequence *s, int32_t end, fr_error *err) {
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

static DraftSequence *sequence_at(const Drafter *drafter, int32_t sequence) {
    return small_model_sequence((const SmallModel *)drafter, sequence);
}

void small_model_set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling, uint64_t position) {
    set_options(sequence_at(drafter, sequence), sampling, position);
}

int small_model_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    SmallModel *r = (SmallModel *)drafter;
    DraftSequence *s = small_model_sequence(r, sequence);
    fr_assert(!s->begun && n > 0);
    size_t room = (size_t)r->n_ctx + DRAFT_MODEL_MAX_LEVELS;
    s->tokens = mem_calloc(room, sizeof *s->tokens);
    if (!s->tokens) return error_memory(err, "a draft model's context", room * sizeof *s->tokens);
    s->n = 0;
    int status = r->has_other_vocab ? retokenized_text_open(&s->text, r->n_ctx, r->n_own_ctx, err) : FR_OK;
    if (!status) status = executor_sequence_open(r->executor, &s->kv, err);
    s->begun = status == FR_OK;
    return status ? status : append(r, s, tokens, n, err);
}

int small_model_observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                               fr_error *err) {
    SmallModel *r = (SmallModel *)drafter;
    const DraftSequence *s = small_model_sequence(r, sequence);
    int64_t end = first + n;
    int status = prefill(r, s, own_end(r, s, end), err);
    (void)hidden;
    if (!status && end == s->n - 1)
        executor_sequence_mark(r->executor, s->kv, own_end(r, s, end - end % r->mark_every));
    return status;
}

void small_model_take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n) {
    SmallModel *r = (SmallModel *)drafter;
    const DraftSequence *a = small_model_sequence(r, from);
    DraftSequence *b = small_model_sequence(r, to);
    int32_t n_tokens = own_end(r, a, n);
    if (r->has_other_vocab && to >= r->max_sequences) retokenized_text_copy(&a->text, &b->text, n);
    cached_kv_take_over(&r->cached, a->kv, b->kv, n_tokens);
}

int32_t small_model_n_held(const Drafter *drafter, int32_t sequence) {
    const SmallModel *r = (const SmallModel *)drafter;
    const DraftSequence *s = small_model_sequence(r, sequence);
    if (!s->begun) return 0;
    int32_t n = executor_sequence_length(r->executor, s->kv);
    return r->has_other_vocab ? retokenized_text_n_within(&s->text, n) : n;
}

int32_t small_model_reach(const Drafter *drafter, int32_t sequence, int32_t n) {
    const SmallModel *r = (const SmallModel *)drafter;
    const DraftSequence *s = small_model_sequence(r, sequence);
    if (!r->has_other_vocab) return executor_sequence_reach(r->executor, s->kv, n);
    for (;;) { /* a length that can be reached need not be the end of one of the target's tokens */
        int32_t end = own_end(r, s, n), reached = executor_sequence_reach(r->executor, s->kv, end);
        if (reached == end) return n;
        n = retokenized_text_n_within(&s->text, reached);
    }
}

bool small_model_save(const Drafter *drafter, int32_t sequence, Buf *out) {
    const SmallModel *r = (const SmallModel *)drafter;
    const DraftSequence *s = small_model_sequence(r, sequence);
    return buf_append(out, &r->weights_mark, sizeof r->weights_mark) &&
           (!r->has_other_vocab || retokenized_text_save(&s->text, out)) &&
           executor_sequence_save(r->executor, s->kv, out);
}

int small_model_load(Drafter *drafter, int32_t sequence, ByteReader *in, fr_error *err) {
    const SmallModel *r = (SmallModel *)drafter;
    uint64_t mark;
    if (!bytes_read(in, &mark, sizeof mark)) return error_set(err, FR_ERR_FORMAT, "it is cut short");
    if (mark != r->weights_mark) return error_set(err, FR_ERR_MISMATCH, "the draft model has changed");
    DraftSequence *s = sequence < 0 ? NULL : small_model_sequence(r, sequence);
    int status = FR_OK;
    if (r->has_other_vocab)
        status = retokenized_text_load(&r->retokenizer, s ? &s->text : NULL, r->n_ctx, r->n_own_ctx, in, err);
    if (!status) status = executor_sequence_load(r->executor, s ? s->kv : -1, in, err);
    if (status && s && r->has_other_vocab) retokenized_text_clear(&s->text);
    return status;
}

int small_model_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    DraftSequence *s = sequence_at(drafter, sequence);
    s->position += (uint64_t)n;
    return append((SmallModel *)drafter, s, tokens, n, err);
}

void small_model_end(Drafter *drafter, int32_t sequence) {
    DraftSequence *s = sequence_at(drafter, sequence);
    if (s->begun) executor_sequence_close(((SmallModel *)drafter)->executor, s->kv);
    mem_free(s->tokens);
    retokenized_text_close(&s->text);
    s->tokens = NULL;
    s->begun = false;
    set_options(s, &SAMPLING_DEFAULT, 0);
}

/* ---- rows of a proposal -------------------------------------------------------------------------------- */

int small_model_catch_up(SmallModel *r, const DraftSequence *s, fr_error *err) {
    return prefill(r, s, n_own(r, s) - SMALL_MODEL_MAX_NEW, err);
}

int small_model_put_context(SmallModel *r, const DraftSequence *s, int32_t *n_rows, fr_error *err) {
    /* If the engine did not use the last proposal, the pending token has already run (never in a recurrent state). */
    int32_t n = n_own(r, s);
    if (executor_sequence_length(r->executor, s->kv) == n) executor_sequence_truncate(r->executor, s->kv, n - 1);
    *n_rows = n - executor_sequence_length(r->executor, s->kv);
    fr_assert(*n_rows <= SMALL_MODEL_MAX_NEW);
    int status = put_rows(r, s, *n_rows, r->n_nodes, err);
    if (!status) r->rows[r->n_rows - 1].want_logits = true;
    return status;
}

void small_model_commit_context(SmallModel *r, const DraftSequence *s, int32_t first_row, int32_t n_rows) {
    int32_t n_open = n_own(r, s) - n_final(r, s);
    if (r->is_recurrent) n_rows -= n_open > 1 ? n_open : 1;
    commit(r, s, first_row, n_rows);
}

void small_model_dist(SmallModel *r, DraftSequence *s, const Tree *t, int32_t node, int32_t row, float *dist) {
    for (int32_t i = node; i > 0; i = t->nodes[i].parent) s->tokens[s->n + t->nodes[i].depth - 1] = t->nodes[i].token;
    const float *logits = executor_logits(r->executor, row);
    if (r->has_other_vocab) retokenizer_restrict(&r->retokenizer, logits, r->restricted), logits = r->restricted;
    sampler_dist(r->sampler, &s->dist, logits, s->tokens, s->n + t->nodes[node].depth, dist);
}

int32_t small_model_token(const SmallModel *r, int32_t token) {
    return r->has_other_vocab ? retokenizer_to_draft(&r->retokenizer, token) : token;
}

bool small_model_can_draft(const SmallModel *r, int32_t sequence) {
    const DraftSequence *s = small_model_sequence(r, sequence);
    return !r->has_other_vocab ||
           (s->text.is_whole && s->text.n > 0 && s->text.n - s->text.n_closed <= r->retokenizer.max_open);
}

double small_model_shared_vocab(const Drafter *drafter) {
    const SmallModel *r = (const SmallModel *)drafter;
    return r->has_other_vocab ? (double)r->retokenizer.n_shared / r->n_vocab : 0;
}

int64_t small_model_n_forwards(const Drafter *drafter) { return ((const SmallModel *)drafter)->n_forwards; }
