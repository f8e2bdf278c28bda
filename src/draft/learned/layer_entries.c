/* layer_entries.c - a drafter's layer, and the entries of all sequences in one forward.
 *
 * The problem. After each step a drafter's layer needs an entry for each accepted token of each sequence. The engine
 * passes the hidden states on sequence by sequence (observe_tree). A forward of a few rows costs nearly as much as one
 * of many, because it reads the same weights, so a forward for each sequence makes drafting most expensive where many
 * requests run at once.
 *
 * The idea. Nothing reads the entries before the next proposal. So they wait in a queue for each sequence, and
 * entry_queue_run computes those of all sequences that draft together.
 *
 *     observe_tree of A     A: cat sat          B:
 *     observe_tree of B     A: cat sat          B: the
 *     propose for A and B   one forward of three rows, in which each row attends only to its own sequence
 *
 * What does not fit into the queue, such as a prompt, runs at once without results: the last entry always stays in the
 * queue, and a proposal needs nothing but the layer's output for it. A row has the same bits in every batch, so drafts
 * do not depend on which sequences draft together.
 *
 * A drafter that does not pay must cost nothing, and the entries of every token would cost a layer's forward. So while
 * it is idle the queue keeps the latest entries and drops older ones. The entries then have a gap, as they have if the
 * prompt was not shown to the drafter. The layer reads what is there as one text: the last hidden state knows the whole
 * context, so proposals after a gap are a little worse, and other requests take over only what is before it.
 *
 * Layers that attend to states of the target (dflash) have entries without results: only keys and values.
 *
 * The layer is opened as a model with one layer, so that paging, tree attention, threads and quantised weights work as
 * they do for the target.
 *
 * Proof: tests/draft/test_draft_eagle.c, entries together against one by one. */
#include "draft/learned/layer_entries.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"

#include <string.h>

/* ---- the layer -------------------------------------------------------------------------------------- */

enum { PAGE_SIZE = 16 };

static int read_vector(LearnedDrafter *d, const char *method, const char *what, float **out, fr_error *err) {
    return drafter_file_vector(&d->file, learned_name(method, what).text, d->n_embd, out, err);
}

/* Reads layer i, whose tensors have names that begin with `method`. *n_ff grows to its feed-forward width. */
static int read_layer(OneLayer *l, LearnedDrafter *d, int32_t i_layer, const char *method, bool has_attn_norm,
                      int32_t *widest_ff, fr_error *err) {
    const Hparams *h = &d->target->hparams;
    int64_t embd = h->n_embd, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    LayerSpec *spec = &l->specs[i_layer];
    float **attn_norm = &l->norms[2 * i_layer], **ffn_norm = attn_norm + 1;
    int32_t n_ff = 0;
    int status = drafter_file_int(&d->file, learned_name(method, LAYER_KEY_FEED_FORWARD).text, 1, 1 << 20, &n_ff, err);
    if (n_ff > *widest_ff) *widest_ff = n_ff;
    if (!status && has_attn_norm) status = read_vector(d, method, LAYER_ATTN_NORM, attn_norm, err);
    if (!status) status = read_vector(d, method, LAYER_FFN_NORM, ffn_norm, err);
    const struct {
        const char *name;
        int64_t n_in, n_out;
        const GgufTensor **out;
    } matrices[] = {{LAYER_ATTN_Q, embd, q_dim, &spec->matrices[MATRIX_Q]},
                    {LAYER_ATTN_K, embd, kv_dim, &spec->matrices[MATRIX_K]},
                    {LAYER_ATTN_V, embd, kv_dim, &spec->matrices[MATRIX_V]},
                    {LAYER_ATTN_OUTPUT, q_dim, embd, &spec->matrices[MATRIX_O]},
                    {LAYER_FFN_GATE, embd, n_ff, &spec->matrices[MATRIX_GATE]},
                    {LAYER_FFN_UP, embd, n_ff, &spec->matrices[MATRIX_UP]},
                    {LAYER_FFN_DOWN, n_ff, embd, &spec->matrices[MATRIX_DOWN]}};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices && !status; i++)
        status = drafter_file_matrix(&d->file, learned_name(method, matrices[i].name).text, matrices[i].n_in,
                                     matrices[i].n_out, matrices[i].out, err);
    spec->attn_norm = *attn_norm;
    spec->ffn_norm = *ffn_norm;
    return status;
}

int one_layer_open(OneLayer *l, LearnedDrafter *d, const char *method, const char *second, bool has_attn_norm,
                   bool wants_logits, fr_error *err) {
    int32_t n_ff = 0;
    if (d->target->hparams.latent.rank)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: drafters with a layer of their own cannot draft for a model with latent attention (MLA), "
                         "whose cache has no keys and values of heads; use another method",
                         gguf_path(d->target->gguf));
    int status = read_layer(l, d, 0, method, has_attn_norm, &n_ff, err);
    if (!status && second) status = read_layer(l, d, 1, second, true, &n_ff, err);
    if (status) return status;
    l->model = model_of_layers(d->target, l->specs, second ? 2 : 1, n_ff);
    l->model.takes_turns = second != NULL;
    if (wants_logits && (status = head_tokens_set(d, &l->model, err))) return status;
    return d->backend->submodel(&l->weights, d->weights, &l->model, err);
}

int one_layer_open_executor(OneLayer *l, LearnedDrafter *d, int32_t n_ctx, int32_t n_more, int32_t max_rows,
                            int32_t max_logits, fr_error *err) {
    const ExecutorOptions options = {.kv_type = KV_F16,
                                     .page_size = PAGE_SIZE,
                                     .n_ctx = n_ctx + TREE_MAX_NODES + n_more,
                                     .max_sequences = d->max_sequences + d->env.n_cached,
                                     .n_pages = cached_kv_n_pages(&d->env, n_ctx + TREE_MAX_NODES + n_more, PAGE_SIZE),
                                     .max_rows = max_rows,
                                     .max_logits = max_logits};
    return executor_open(&l->executor, d->device, l->weights, &options, err);
}

void one_layer_close(OneLayer *l) {
    executor_close(l->executor);
    weights_close(l->weights);
    for (size_t i = 0; i < sizeof l->norms / sizeof *l->norms; i++) mem_free(l->norms[i]);
}

/* ---- sequences with queues ---------------------------------------------------------------------------- */

int entry_queue_open(EntryQueue *q, LearnedDrafter *learned, OneLayer *layer, const EntryQueueOptions *options,
                     fr_error *err) {
    fr_assert(options->max_rows >= ENTRY_QUEUE_LENGTH);
    *q = (EntryQueue){.learned = learned,
                      .layer = layer,
                      .options = *options,
                      .shape = &executor_weights(layer->executor)->model->hparams};
    int64_t h = q->shape->n_embd, rows = options->max_rows, n = learned->max_sequences,
            n_all = n + learned->env.n_cached, n_streams = options->streams.n;
    int64_t n_vocab = options->wants_logits ? q->shape->n_vocab : 0;
    q->width = (n_streams ? n_streams : 1) * (int64_t)learned->n_embd;
    float *features, *last_inputs, *logits, *hidden;
    int32_t *tokens;
    const ArenaItem items[] = {ARENA_ITEM(&q->sequences, n_all),
                               ARENA_ITEM(&features, n * h),
                               ARENA_ITEM(&last_inputs, n * h),
                               ARENA_ITEM(&logits, n * n_vocab),
                               ARENA_ITEM(&tokens, n_all * ENTRY_QUEUE_LENGTH),
                               ARENA_ITEM(&hidden, n_all * ENTRY_QUEUE_LENGTH * q->width),
                               ARENA_ITEM(&q->rows, rows),
                               ARENA_ITEM(&q->row_ids, rows)};
    const LearnedBuffer buffers[] = {{&q->pairs, rows *
                                                     (options->streams.only_stores ? 1
                                                      : n_streams                  ? 3
                                                                                   : 2) *
                                                     h},
                                     {&q->inputs, rows * h},
                                     {&q->streams, rows * q->width}};
    int status = arena_take(&learned->arena, items, ARENA_COUNT(items), "entries", err);
    if (!status) status = learned_open_buffers(learned, buffers, n_streams ? 3 : 2, err);
    if (!status) status = cached_kv_open(&q->cached, layer->executor, &learned->env, err);
    for (int64_t i = 0; i < n && !status; i++) {
        q->sequences[i].feature = features + i * h;
        q->sequences[i].input = last_inputs + i * h;
        q->sequences[i].logits = n_vocab ? logits + i * n_vocab : NULL;
    }
    for (int64_t i = 0; i < n_all && !status; i++) {
        q->sequences[i].tokens = tokens + i * ENTRY_QUEUE_LENGTH;
        q->sequences[i].hidden = hidden + i * ENTRY_QUEUE_LENGTH * q->width;
        q->sequences[i].begun = i >= n;
        if (i >= n) q->sequences[i].kv = q->cached.sequences[i - n];
    }
    return status;
}

void entry_queue_close(EntryQueue *q) { cached_kv_close(&q->cached); }

int entry_queue_begin(EntryQueue *q, int32_t sequence, fr_error *err) {
    EntrySequence *s = &q->sequences[sequence];
    int status = executor_sequence_open(q->layer->executor, &s->kv, err);
    s->n_queued = 0;
    s->has_gap = false;
    s->begun = status == FR_OK;
    return status;
}

void entry_queue_end(EntryQueue *q, int32_t sequence) {
    EntrySequence *s = &q->sequences[sequence];
    if (s->begun) executor_sequence_close(q->layer->executor, s->kv);
    s->begun = false;
}

/* ---- rows ------------------------------------------------------------------------------------------- */

static void norm(const EntryQueue *q, Slice x, int32_t n_rows, int64_t n, const float *gain) {
    if (gain) q->learned->backend->rmsnorm(q->learned->device, x, n_rows, n, gain, q->shape->rms_eps);
}

/* The embedding of a token, with its norm. */
static void set_token(EntryQueue *q, int32_t token, Slice out) {
    int64_t h = q->shape->n_embd;
    if (q->options.embedding) {
        embedding_row(q->options.embedding, token, q->pairs->floats + out.first);
        buffer_push(q->pairs, out.first, h);
    } else {
        learned_embed(q->learned, &token, 1, out);
    }
    norm(q, out, 1, h, q->options.token_norm);
}

void entry_queue_set_pair(EntryQueue *q, int32_t i, int32_t token, const float *hidden) {
    int64_t h = q->shape->n_embd;
    if (q->options.streams.n) {
        const Slice stream = {q->pairs, 3 * h * i}, of_hidden = {q->pairs, 3 * h * i + 2 * h};
        learned_write(q->pairs, stream.first, hidden, h);
        learned_write(q->pairs, of_hidden.first, hidden, h);
        set_token(q, token, (Slice){q->pairs, stream.first + h});
        norm(q, of_hidden, 1, h, q->options.hidden_norm);
        if (q->options.streams.keeps_normed) norm(q, stream, 1, h, q->options.hidden_norm);
        return;
    }
    int64_t width = q->options.reads_tokens ? 2 * h : h;
    const Slice of_hidden = {q->pairs, (i + 1) * width - h};
    if (q->options.reads_tokens) set_token(q, token, (Slice){q->pairs, i * width});
    learned_write(q->pairs, of_hidden.first, hidden, h);
    norm(q, of_hidden, 1, h, q->options.hidden_norm);
}

void entry_queue_fuse(EntryQueue *q, int32_t n) {
    int64_t h = q->shape->n_embd;
    bool has_streams = q->options.streams.n > 0;
    Buffer *inputs = has_streams ? q->pairs : q->inputs;
    int64_t width = has_streams ? 3 * h : h;
    if (!has_streams) learned_linear(q->learned, q->options.fc, LINEAR_SET, q->pairs, n, q->inputs);
    buffer_pull(inputs, 0, n * width);
    for (int32_t i = 0; i < n; i++) q->rows[i].input = inputs->floats + i * width;
}

/* Copies what an entry keeps of a hidden state that the engine gave. */
static void take_hidden(const EntryQueue *q, const float *hidden, float *out) {
    size_t n = (size_t)q->learned->n_embd;
    const EntryStreams *s = &q->options.streams;
    if (s->n == 0) memcpy(out, hidden, n * sizeof *out);
    for (int32_t k = 0; k < s->n; k++)
        memcpy(out + (size_t)k * n, hidden + (1 + (size_t)s->at[k]) * n, n * sizeof *out);
}

/* Row i is an entry of the sequence, after the row before it unless it is the first. `kept` is what it keeps of the
 * hidden state; NULL: that is already in q->streams. */
static void pack(EntryQueue *q, const EntrySequence *s, int32_t i, bool is_first, int32_t token, const float *kept) {
    if (q->options.streams.n == 0) entry_queue_set_pair(q, i, token, kept);
    else if (kept) learned_write(q->streams, i * q->width, kept, q->width);
    q->rows[i] = (Row){.token = token, .sequence = s->kv, .parent = is_first ? -1 : i - 1};
    q->row_ids[i] = i;
}

/* The queue of a sequence becomes rows from row n on. Returns the new number of rows. */
static int32_t pack_queue(EntryQueue *q, const EntrySequence *s, int32_t n) {
    for (int32_t i = 0; i < s->n_queued; i++)
        pack(q, s, n + i, i == 0, s->tokens[i], s->hidden + (int64_t)i * q->width);
    return n + s->n_queued;
}

/* Makes the pairs of n entries from their streams. */
static void fuse_streams(EntryQueue *q, int32_t n) {
    const EntryStreams *s = &q->options.streams;
    int64_t n_embd = q->learned->n_embd, h = q->shape->n_embd;
    const float eps = q->shape->rms_eps;
    if (s->norm && !s->norms_each) norm(q, (Slice){q->streams, 0}, n, q->width, s->norm);
    for (int32_t i = 0; i < n && s->norm && s->norms_each; i++)
        for (int32_t k = 0; k < s->n; k++)
            q->learned->backend->rmsnorm(q->learned->device, (Slice){q->streams, i * q->width + k * n_embd}, 1, n_embd,
                                         s->norm + k * n_embd, eps);
    learned_linear(q->learned, q->options.fc, LINEAR_SET, q->streams, n, q->inputs);
    buffer_pull(q->inputs, 0, n * h);
    for (int32_t i = 0; i < n; i++) entry_queue_set_pair(q, i, q->rows[i].token, q->inputs->floats + i * h);
}

/* Stores the keys and values of n entries, which the layers make of their fused streams. */
static int store_entries(EntryQueue *q, int32_t n, fr_error *err) {
    int64_t h = q->shape->n_embd;
    learned_linear(q->learned, q->options.fc, LINEAR_SET, q->streams, n, q->inputs);
    norm(q, (Slice){q->inputs, 0}, n, h, q->options.hidden_norm);
    buffer_pull(q->inputs, 0, n * h);
    for (int32_t i = 0; i < n; i++) q->rows[i].input = q->inputs->floats + i * h;
    return executor_store(q->layer->executor, q->rows, n, err);
}

static int forward(EntryQueue *q, int32_t n_rows, fr_error *err) {
    if (q->options.streams.only_stores) return store_entries(q, n_rows, err);
    if (q->options.streams.n) fuse_streams(q, n_rows);
    entry_queue_fuse(q, n_rows);
    return executor_forward(q->layer->executor, q->rows, n_rows, err);
}

/* ---- adding ----------------------------------------------------------------------------------------- */

/* Runs the queue and n more entries, without results. */
static int run_now(EntryQueue *q, EntrySequence *s, const int32_t *tokens, const float *const *hidden, int32_t n,
                   fr_error *err) {
    int32_t n_rows = pack_queue(q, s, 0);
    for (int32_t i = 0; i < n; i++, n_rows++) {
        if (q->options.streams.n) {
            take_hidden(q, hidden[i], q->streams->floats + n_rows * q->width);
            buffer_push(q->streams, n_rows * q->width, q->width);
        }
        pack(q, s, n_rows, n_rows == 0, tokens[i], q->options.streams.n ? NULL : hidden[i]);
    }
    int status = cached_kv_reserve(&q->cached, s->kv, n_rows, err);
    if (!status) status = forward(q, n_rows, err);
    if (status) return status;
    executor_commit(q->layer->executor, s->kv, q->row_ids, n_rows);
    s->n_queued = 0;
    return FR_OK;
}

int entry_queue_add(EntryQueue *q, int32_t sequence, const int32_t *tokens, const float *const *hidden, int32_t n,
                    fr_error *err) {
    EntrySequence *s = &q->sequences[sequence];
    int32_t first = 0;
    while (s->n_queued + n - first > ENTRY_QUEUE_LENGTH) {
        int32_t most = q->options.max_rows - s->n_queued, now = n - first - 1 < most ? n - first - 1 : most;
        int status = run_now(q, s, tokens + first, hidden + first, now, err);
        if (status) return status;
        first += now;
    }
    for (; first < n; first++, s->n_queued++) {
        s->tokens[s->n_queued] = tokens[first];
        take_hidden(q, hidden[first], s->hidden + s->n_queued * q->width);
    }
    return FR_OK;
}

static int32_t n_entries(const EntryQueue *q, const EntrySequence *s) {
    return executor_sequence_length(q->layer->executor, s->kv) + s->n_queued;
}

/* Notes that the next entry does not follow the last one. */
static void begin_gap(EntrySequence *s, int32_t n_whole) {
    if (!s->has_gap || n_whole < s->n_whole) s->n_whole = n_whole;
    s->has_gap = true;
}

/* Makes room for n entries in the queue, if it is too full, by dropping the older half of it, or all. */
static void drop_entries(EntryQueue *q, EntrySequence *s, int32_t n) {
    int32_t n_dropped = ENTRY_QUEUE_LENGTH / 2;
    size_t width = (size_t)q->width;
    if (s->n_queued + n <= ENTRY_QUEUE_LENGTH) return;
    if (s->n_queued < n_dropped || n > ENTRY_QUEUE_LENGTH / 2) n_dropped = s->n_queued;
    begin_gap(s, n_entries(q, s) - s->n_queued);
    s->n_queued -= n_dropped;
    memmove(s->tokens, s->tokens + n_dropped, (size_t)s->n_queued * sizeof *s->tokens);
    memmove(s->hidden, s->hidden + (size_t)n_dropped * width, (size_t)s->n_queued * width * sizeof *s->hidden);
}

int entry_queue_add_step(EntryQueue *q, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    EntrySequence *s = &q->sequences[sequence];
    int32_t n = v->verdict->n_path + 1;
    int64_t first = q->learned->sequences[sequence].n_hidden - n; /* the position of the pending token */
    int status = FR_OK;
    if (!s->has_gap && n_entries(q, s) < first) begin_gap(s, n_entries(q, s));
    if (v->is_idle) drop_entries(q, s, n);
    for (int32_t depth = 0; depth < n && !status; depth++) {
        int32_t token = feedback_after(v, depth);
        status = entry_queue_add(q, sequence, &token, &v->hidden[feedback_node(v, depth)], 1, err);
    }
    return status;
}

/* ---- taking over ------------------------------------------------------------------------------------ */

int32_t entry_queue_n_held(const EntryQueue *q, int32_t sequence) {
    const EntrySequence *s = &q->sequences[sequence];
    int32_t n = s->begun ? n_entries(q, s) : 0;
    if (s->begun && s->has_gap) return s->n_whole;
    return sequence < q->learned->max_sequences || n == s->n_kept ? n : 0;
}

/* Entries in the KV cache are shared, and queued ones are copied. */
void entry_queue_take_over(EntryQueue *q, int32_t from, int32_t to, int32_t n) {
    EntrySequence *a = &q->sequences[from], *b = &q->sequences[to];
    int32_t n_run = n ? executor_sequence_length(q->layer->executor, a->kv) : 0;
    if (n_run > n) n_run = n;
    cached_kv_take_over(&q->cached, a->kv, b->kv, n_run);
    b->n_kept = n;
    b->has_gap = false;
    b->n_queued = n - n_run;
    memcpy(b->tokens, a->tokens, (size_t)b->n_queued * sizeof *b->tokens);
    memcpy(b->hidden, a->hidden, (size_t)b->n_queued * (size_t)q->width * sizeof *b->hidden);
}

/* ---- saving ------------------------------------------------------------------------------------------
 *
 * The mark of the weights (uint64), the number of queued entries (int32), their tokens and hidden states, and the
 * sequence of the layer's executor. */

bool entry_queue_save(const EntryQueue *q, int32_t sequence, Buf *out) {
    const EntrySequence *s = &q->sequences[sequence];
    size_t n = (size_t)s->n_queued;
    return buf_append(out, &q->learned->weights_mark, sizeof q->learned->weights_mark) &&
           buf_append(out, &s->n_queued, sizeof s->n_queued) && buf_append(out, s->tokens, n * sizeof *s->tokens) &&
           buf_append(out, s->hidden, n * (size_t)q->width * sizeof *s->hidden) &&
           executor_sequence_save(q->layer->executor, s->kv, out);
}

static int take_queue(const EntryQueue *q, int32_t *n, const char **tokens, const char **hidden, ByteReader *in,
                      fr_error *err) {
    uint64_t mark;
    bool fits = bytes_read(in, &mark, sizeof mark) && bytes_read(in, n, sizeof *n);
    if (fits && mark != q->learned->weights_mark)
        return error_set(err, FR_ERR_MISMATCH, "the drafter's file has changed");
    fits = fits && *n >= 0 && *n <= ENTRY_QUEUE_LENGTH &&
           (*tokens = bytes_take(in, (size_t)*n * sizeof(int32_t))) != NULL &&
           (*hidden = bytes_take(in, (size_t)*n * (size_t)q->width * sizeof(float))) != NULL;
    for (int32_t i = 0, token; i < *n && fits; i++) {
        memcpy(&token, *tokens + (size_t)i * sizeof token, sizeof token);
        fits = token >= 0 && token < q->learned->n_vocab;
    }
    return fits ? FR_OK : error_set(err, FR_ERR_FORMAT, "the entries of a drafter are damaged");
}

int entry_queue_load(EntryQueue *q, int32_t sequence, ByteReader *in, fr_error *err) {
    EntrySequence *s = &q->sequences[sequence < 0 ? 0 : sequence];
    const char *tokens = NULL, *hidden = NULL;
    int32_t n = 0;
    int status = take_queue(q, &n, &tokens, &hidden, in, err);
    if (!status) status = executor_sequence_load(q->layer->executor, sequence < 0 ? -1 : s->kv, in, err);
    if (sequence < 0) return status;
    s->n_queued = s->n_kept = 0;
    if (status) return status;
    s->n_queued = n;
    s->n_kept = n + executor_sequence_length(q->layer->executor, s->kv);
    memcpy(s->tokens, tokens, (size_t)n * sizeof *s->tokens);
    memcpy(s->hidden, hidden, (size_t)n * (size_t)q->width * sizeof *s->hidden);
    return FR_OK;
}

/* ---- running ---------------------------------------------------------------------------------------- */

/* Stores the results of the last entry of a sequence, row `last`, and commits its entries, which end there. */
static void take_results(EntryQueue *q, EntrySequence *s, int32_t last) {
    Executor *e = q->layer->executor;
    size_t h = (size_t)q->shape->n_embd;
    bool has_results = !q->options.streams.only_stores;
    if (has_results) memcpy(s->feature, executor_hidden(e, last) + q->layer->feature_at, h * sizeof *s->feature);
    if (has_results) memcpy(s->input, q->inputs->floats + (size_t)last * h, h * sizeof *s->input);
    if (s->logits) memcpy(s->logits, executor_logits(e, last), (size_t)q->shape->n_vocab * sizeof *s->logits);
    executor_commit(e, s->kv, q->row_ids + last + 1 - s->n_queued, s->n_queued);
    s->n_queued = 0;
}

/* Runs the queues of n sequences, which fit into max_rows, in one forward. */
static int run_together(EntryQueue *q, const int32_t *sequences, int32_t n, fr_error *err) {
    int32_t n_rows = 0;
    int status = FR_OK;
    for (int32_t i = 0; i < n && !status; i++) {
        const EntrySequence *s = &q->sequences[sequences[i]];
        if (s->n_queued == 0) continue;
        status = cached_kv_reserve(&q->cached, s->kv, s->n_queued, err);
        n_rows = pack_queue(q, s, n_rows);
        q->rows[n_rows - 1].want_hidden = !q->options.streams.only_stores;
        q->rows[n_rows - 1].want_logits = q->options.wants_logits;
    }
    if (status || n_rows == 0) return status;
    status = forward(q, n_rows, err);
    if (status) return status;
    n_rows = 0;
    for (int32_t i = 0; i < n; i++) {
        EntrySequence *s = &q->sequences[sequences[i]];
        if (s->n_queued == 0) continue;
        n_rows += s->n_queued;
        take_results(q, s, n_rows - 1);
    }
    return FR_OK;
}

int entry_queue_run(EntryQueue *q, const int32_t *sequences, int32_t n, fr_error *err) {
    int32_t first = 0, n_rows = 0;
    int status = FR_OK;
    for (int32_t i = 0; i < n && !status; i++) {
        int32_t more = q->sequences[sequences[i]].n_queued;
        if (n_rows + more > q->options.max_rows) {
            status = run_together(q, sequences + first, i - first, err);
            first = i;
            n_rows = 0;
        }
        n_rows += more;
    }
    return status ? status : run_together(q, sequences + first, n - first, err);
}
