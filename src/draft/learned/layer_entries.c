/* layer_entries.c - the entries of a drafter's layers, those of all sequences in one forward.
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
 * The rows of a block (eagle3) depend on nothing but the entries before them, so they run in the same forward.
 *
 * Several layers (`mtp`). Layer k > 1 runs on the same entries after layer k - 1, whose feature it reads in the place
 * of h, with the token k places after that of h. Each layer has an executor, and entry i has the same position in all.
 *
 *     entry        0          1          2          3          queue: entries 2 and 3
 *     layer 1   h0 x1      h1 x2      h2 x3      h3 x4         x4 is the pending token
 *     layer 2   f0 x2      f1 x3      f2 x4      f3 ?          f: what layer 1 makes of the entry
 *     layer 3   g0 x3      g1 x4      g2 ?                     g: what layer 2 makes of it
 *
 * So of n layers the last n - 1 entries are not complete, because their tokens are not known yet. They stay in the
 * queue with their hidden states, and each proposal runs them again, up to the last token that is known. What is kept
 * of a sequence is therefore the same number of complete entries in each executor, and a queue from which all others
 * follow; no feature has to be kept. A complete entry depends on n tokens after that of its h, so a sequence can take
 * over only as many as it has these tokens for (entry_queue_usable). The other way is to keep each layer's last feature
 * and as many entries as it can have. It runs n - 1 rows less for each proposal, but layers of different lengths cannot
 * be cut together, and their features would have to be kept for each place where a sequence may be cut.
 *
 * Proof: tests/draft/test_draft_eagle.c, entries together against one by one; tests/draft/test_draft_mtp_layers.c,
 * several layers. */
#include "draft/learned/layer_entries.h"

#include "base/mem.h"

#include <string.h>

/* A sequence in a run: its queue, and in a prompt n more entries after it. */
struct EntryRun {
    EntrySequence *sequence;
    const int32_t *tokens;      /* [n] */
    const float *const *hidden; /* [n] */
    int32_t n;
};

/* ---- sequences with queues ---------------------------------------------------------------------------- */

static int open_layers(EntryQueue *q, OneLayer *first, fr_error *err) {
    const EntryQueueOptions *o = &q->options;
    const ArenaItem items[] = {ARENA_ITEM(&q->layers, q->n_layers), ARENA_ITEM(&q->cached, q->n_layers)};
    int status = arena_take(&q->learned->arena, items, ARENA_COUNT(items), "entries", err);
    if (status) return status;
    q->layers[0] = (LaterLayer){.layer = first,
                                .fc = o->fc,
                                .token_norm = o->token_norm,
                                .hidden_norm = o->hidden_norm,
                                .embedding = o->embedding};
    for (int32_t k = 1; k < q->n_layers; k++) q->layers[k] = o->later[k - 1];
    for (int32_t k = 0; k < q->n_layers && !status; k++)
        status = cached_kv_open(&q->cached[k], q->layers[k].layer->executor, &q->learned->env, err);
    return status;
}

int entry_queue_open(EntryQueue *q, LearnedDrafter *learned, OneLayer *layer, const EntryQueueOptions *options,
                     fr_error *err) {
    fr_assert(options->max_rows >= ENTRY_QUEUE_LENGTH && options->n_later < ENTRY_QUEUE_LENGTH / 2);
    fr_assert(!options->mask.streams || (options->streams.n && !options->streams.only_stores && !options->n_later));
    *q = (EntryQueue){.learned = learned,
                      .options = *options,
                      .n_layers = 1 + options->n_later,
                      .shape = &executor_weights(layer->executor)->model->hparams};
    learned->entries = q;
    int64_t h = q->shape->n_embd, rows = options->max_rows, n = learned->max_sequences,
            n_all = n + learned->env.n_cached, n_streams = options->streams.n;
    int64_t n_vocab = options->wants_logits ? q->shape->n_vocab : 0, of_pair = n_streams ? 3 : 2;
    if (options->streams.only_stores) of_pair = 1;
    q->width = (n_streams ? n_streams : 1) * (int64_t)learned->n_embd;
    float *features, *last_inputs, *logits, *hidden;
    int32_t *tokens;
    const ArenaItem items[] = {ARENA_ITEM(&q->sequences, n_all),
                               ARENA_ITEM(&q->runs, n),
                               ARENA_ITEM(&features, n * q->n_layers * h),
                               ARENA_ITEM(&last_inputs, n * h),
                               ARENA_ITEM(&logits, n * n_vocab),
                               ARENA_ITEM(&tokens, n_all * ENTRY_QUEUE_LENGTH),
                               ARENA_ITEM(&hidden, n_all * ENTRY_QUEUE_LENGTH * q->width),
                               ARENA_ITEM(&q->rows, rows),
                               ARENA_ITEM(&q->row_ids, rows)};
    const LearnedBuffer buffers[] = {{&q->pairs, rows * of_pair * h},
                                     {&q->inputs, rows * h},
                                     {&q->streams, rows * q->width}};
    int status = arena_take(&learned->arena, items, ARENA_COUNT(items), "entries", err);
    if (!status) status = learned_open_buffers(learned, buffers, n_streams ? 3 : 2, err);
    if (!status) status = open_layers(q, layer, err);
    for (int64_t i = 0; i < n && !status; i++) {
        q->sequences[i].feature = features + i * q->n_layers * h;
        q->sequences[i].input = last_inputs + i * h;
        q->sequences[i].logits = n_vocab ? logits + i * n_vocab : NULL;
    }
    for (int64_t i = 0; i < n_all && !status; i++) {
        q->sequences[i].tokens = tokens + i * ENTRY_QUEUE_LENGTH;
        q->sequences[i].hidden = hidden + i * ENTRY_QUEUE_LENGTH * q->width;
        q->sequences[i].begun = i >= n;
        if (i >= n) q->sequences[i].kv = q->cached[0].sequences[i - n];
    }
    return status;
}

void entry_queue_close(EntryQueue *q) {
    for (int32_t k = 0; q->cached && k < q->n_layers; k++) cached_kv_close(&q->cached[k]);
}

static Executor *executor_of(const EntryQueue *q, int32_t k) { return q->layers[k].layer->executor; }

/* Opens the sequence in each executor. They open and close the same ones, so that it has one id. */
int entry_queue_begin(EntryQueue *q, int32_t sequence, fr_error *err) {
    EntrySequence *s = &q->sequences[sequence];
    int status = FR_OK;
    int32_t n_open = 0, id;
    s->n_queued = s->n_seen = 0;
    s->has_gap = false;
    for (; n_open < q->n_layers && !status; n_open += !status) {
        status = executor_sequence_open(executor_of(q, n_open), &id, err);
        fr_assert(status || n_open == 0 || id == s->kv);
        if (!status) s->kv = id;
    }
    s->begun = status == FR_OK;
    while (status && n_open > 0) executor_sequence_close(executor_of(q, --n_open), s->kv);
    return status;
}

void entry_queue_end(EntryQueue *q, int32_t sequence) {
    EntrySequence *s = &q->sequences[sequence];
    for (int32_t k = 0; k < q->n_layers && s->begun; k++) executor_sequence_close(executor_of(q, k), s->kv);
    s->begun = false;
}

/* Returns the number of complete entries, which are in all executors. The last one has no others, and one that gave up
 * its cached sequences (cached_kv_reserve) has none. */
static int32_t n_complete(const EntryQueue *q, const EntrySequence *s) {
    int32_t n = INT32_MAX;
    for (int32_t k = 0; k < q->n_layers; k++) {
        int32_t length = executor_sequence_length(executor_of(q, k), s->kv);
        if (length < n) n = length;
    }
    return n;
}

int32_t entry_queue_n_entries(const EntryQueue *q, const EntrySequence *s) { return n_complete(q, s) + s->n_queued; }

int entry_queue_reserve(EntryQueue *q, const EntrySequence *s, int32_t n, fr_error *err) {
    int status = FR_OK;
    for (int32_t k = 0; k < q->n_layers && !status; k++) status = cached_kv_reserve(&q->cached[k], s->kv, n, err);
    return status;
}

/* ---- rows ------------------------------------------------------------------------------------------- */

static void norm(const EntryQueue *q, Slice x, int32_t n_rows, int64_t n, const float *gain) {
    if (gain) q->learned->backend->rmsnorm(q->learned->device, x, n_rows, n, gain, q->shape->rms_eps);
}

/* The embedding of a token, with its norm. */
static void set_token(EntryQueue *q, const LaterLayer *l, int32_t token, Slice out) {
    int64_t h = q->shape->n_embd;
    if (l->embedding) {
        embedding_row(l->embedding, token, q->pairs->floats + out.first);
        buffer_push(q->pairs, out.first, h);
    } else {
        learned_embed(q->learned, &token, 1, out);
    }
    norm(q, out, 1, h, l->token_norm);
}

void entry_queue_set_pair(EntryQueue *q, int32_t layer, int32_t i, int32_t token, const float *hidden) {
    const LaterLayer *l = &q->layers[layer];
    int64_t h = q->shape->n_embd;
    if (q->options.streams.n) {
        const Slice stream = {q->pairs, 3 * h * i}, of_hidden = {q->pairs, 3 * h * i + 2 * h};
        learned_write(q->pairs, stream.first, hidden, h);
        learned_write(q->pairs, of_hidden.first, hidden, h);
        set_token(q, l, token, (Slice){q->pairs, stream.first + h});
        norm(q, of_hidden, 1, h, l->hidden_norm);
        if (q->options.streams.keeps_normed) norm(q, stream, 1, h, l->hidden_norm);
        return;
    }
    int64_t width = q->options.reads_tokens ? 2 * h : h;
    const Slice of_hidden = {q->pairs, (i + 1) * width - h};
    if (q->options.reads_tokens) set_token(q, l, token, (Slice){q->pairs, i * width});
    learned_write(q->pairs, of_hidden.first, hidden, h);
    norm(q, of_hidden, 1, h, l->hidden_norm);
}

void entry_queue_fuse(EntryQueue *q, int32_t layer, int32_t n) {
    int64_t h = q->shape->n_embd;
    const Linear *fc = q->options.streams.n ? NULL : q->layers[layer].fc;
    Buffer *inputs = fc ? q->inputs : q->pairs;
    int64_t width = q->options.streams.n ? 3 * h : h;
    if (fc) learned_linear(q->learned, fc, LINEAR_SET, q->pairs, n, q->inputs);
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

static int32_t token_of(const EntryRun *r, int32_t entry) {
    const EntrySequence *s = r->sequence;
    return entry < s->n_queued ? s->tokens[entry] : r->tokens[entry - s->n_queued];
}

/* Sets row i of the first layer, an entry of the run. */
static void pack_first(EntryQueue *q, const EntryRun *r, int32_t entry, int32_t i) {
    const EntrySequence *s = r->sequence;
    bool is_queued = entry < s->n_queued;
    const float *queued = is_queued ? s->hidden + entry * q->width : NULL;
    const float *given = is_queued ? NULL : r->hidden[entry - s->n_queued];
    if (q->options.streams.n == 0) {
        entry_queue_set_pair(q, 0, i, token_of(r, entry), is_queued ? queued : given);
    } else if (is_queued) {
        learned_write(q->streams, i * q->width, queued, q->width);
    } else {
        take_hidden(q, given, q->streams->floats + i * q->width);
        buffer_push(q->streams, i * q->width, q->width);
    }
}

/* Sets row i of layer k, an entry of the run, given the row of layer k - 1 for it. */
static void pack_later(EntryQueue *q, int32_t k, const EntryRun *r, int32_t entry, int32_t i, int32_t i_before) {
    const OneLayer *before = q->layers[k - 1].layer;
    const float *feature = executor_hidden(before->executor, i_before) + before->feature_at;
    entry_queue_set_pair(q, k, i, token_of(r, entry + k), feature);
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
    learned_linear(q->learned, q->layers[0].fc, LINEAR_SET, q->streams, n, q->inputs);
    buffer_pull(q->inputs, 0, n * h);
    for (int32_t i = 0; i < n; i++) entry_queue_set_pair(q, 0, i, q->rows[i].token, q->inputs->floats + i * h);
}

/* Stores the keys and values of n entries, which the layers make of their fused streams. */
static int store_entries(EntryQueue *q, int32_t n, fr_error *err) {
    int64_t h = q->shape->n_embd;
    learned_linear(q->learned, q->layers[0].fc, LINEAR_SET, q->streams, n, q->inputs);
    norm(q, (Slice){q->inputs, 0}, n, h, q->layers[0].hidden_norm);
    buffer_pull(q->inputs, 0, n * h);
    for (int32_t i = 0; i < n; i++) q->rows[i].input = q->inputs->floats + i * h;
    return executor_store(executor_of(q, 0), q->rows, n, err);
}

static int forward(EntryQueue *q, int32_t k, int32_t n_rows, fr_error *err) {
    if (q->options.streams.only_stores) return store_entries(q, n_rows, err);
    if (q->options.streams.n) fuse_streams(q, n_rows);
    entry_queue_fuse(q, k, n_rows);
    return executor_forward(executor_of(q, k), q->rows, n_rows, err);
}

/* ---- runs ------------------------------------------------------------------------------------------- */

/* Returns how many entries of a run layer k runs: in a proposal those whose token is known, otherwise the complete
 * ones. */
static int32_t n_rows_of(const EntryQueue *q, const EntryRun *r, int32_t k, bool has_results) {
    int32_t n = r->sequence->n_queued + r->n - (has_results ? k : q->options.n_later);
    return n > 0 ? n : 0;
}

/* Sets the rows of the block of a run after row n_rows - 1, which is its last entry if it has any. Returns the number
 * of rows with them. */
static int32_t pack_masks(EntryQueue *q, const EntryRun *r, int32_t n_rows, bool has_entries) {
    EntrySequence *s = r->sequence;
    s->first_mask = n_rows;
    for (int32_t i = 0; i < s->n_masks; i++, n_rows++) {
        learned_write(q->streams, n_rows * q->width, q->options.mask.streams, q->width);
        q->rows[n_rows] = (Row){.token = q->options.mask.token,
                                .sequence = s->kv,
                                .parent = i || has_entries ? n_rows - 1 : -1,
                                .want_logits = true};
        q->row_ids[n_rows] = n_rows;
    }
    return n_rows;
}

/* Sets the rows of layer k for n_runs runs. Returns their number. */
static int32_t pack(EntryQueue *q, int32_t k, int32_t n_runs, bool has_results) {
    int32_t n_rows = 0, n_before = 0;
    for (const EntryRun *r = q->runs; r < q->runs + n_runs; r++) {
        int32_t n = n_rows_of(q, r, k, has_results);
        for (int32_t entry = 0; entry < n; entry++, n_rows++) {
            if (k == 0) pack_first(q, r, entry, n_rows);
            else pack_later(q, k, r, entry, n_rows, n_before + entry);
            q->rows[n_rows] = (Row){.token = token_of(r, entry + k),
                                    .sequence = r->sequence->kv,
                                    .parent = entry ? n_rows - 1 : -1,
                                    .want_hidden = k < q->options.n_later};
            q->row_ids[n_rows] = n_rows;
        }
        if (n && has_results) {
            q->rows[n_rows - 1].want_hidden = !q->options.streams.only_stores;
            q->rows[n_rows - 1].want_logits = k == 0 && q->options.wants_logits;
        }
        if (k > 0) n_before += n_rows_of(q, r, k - 1, has_results);
        if (has_results) n_rows = pack_masks(q, r, n_rows, n > 0);
    }
    return n_rows;
}

/* Stores the results of row `last` of layer k, the last entry that it has run of a sequence. */
static void take_results(EntryQueue *q, int32_t k, EntrySequence *s, int32_t last) {
    const Executor *e = executor_of(q, k);
    size_t h = (size_t)q->shape->n_embd;
    if (!q->options.streams.only_stores)
        memcpy(s->feature + (size_t)k * h, executor_hidden(e, last) + q->layers[k].layer->feature_at,
               h * sizeof *s->feature);
    if (k > 0) return;
    if (q->layers[0].fc) memcpy(s->input, q->inputs->floats + (size_t)last * h, h * sizeof *s->input);
    if (s->logits) memcpy(s->logits, executor_logits(e, last), (size_t)q->shape->n_vocab * sizeof *s->logits);
}

static int run_layer(EntryQueue *q, int32_t k, int32_t n_runs, bool has_results, fr_error *err) {
    int status = FR_OK;
    for (const EntryRun *r = q->runs; r < q->runs + n_runs && !status; r++) {
        int32_t n_masks = has_results ? r->sequence->n_masks : 0;
        status = cached_kv_reserve(&q->cached[k], r->sequence->kv, n_rows_of(q, r, k, has_results) + n_masks, err);
    }
    int32_t n_rows = status ? 0 : pack(q, k, n_runs, has_results), first = 0;
    if (n_rows) status = forward(q, k, n_rows, err);
    for (const EntryRun *r = q->runs; r < q->runs + n_runs && !status; r++) {
        int32_t n = n_rows_of(q, r, k, has_results), n_masks = has_results ? r->sequence->n_masks : 0;
        if (n && has_results) take_results(q, k, r->sequence, first + n - 1);
        if (n + n_masks) executor_commit(executor_of(q, k), r->sequence->kv, q->row_ids + first, n);
        first += n + n_masks;
    }
    return status;
}

/* The entries that are not complete become the queue. */
static void keep_incomplete(EntryQueue *q, const EntryRun *r) {
    EntrySequence *s = r->sequence;
    size_t width = (size_t)q->width;
    int32_t n = s->n_queued + r->n, first = n > q->options.n_later ? n - q->options.n_later : 0;
    for (int32_t i = 0; i < n - first; i++) {
        int32_t given = first + i - s->n_queued;
        s->tokens[i] = token_of(r, first + i);
        if (given >= 0) take_hidden(q, r->hidden[given], s->hidden + (size_t)i * width);
        else memmove(s->hidden + (size_t)i * width, s->hidden + (size_t)(first + i) * width, width * sizeof *s->hidden);
    }
    s->n_queued = n - first;
}

/* Runs the entries of the first n_runs of q->runs: those that are complete or, with has_results, all of them. */
static int run(EntryQueue *q, int32_t n_runs, bool has_results, fr_error *err) {
    int status = FR_OK;
    for (const EntryRun *r = q->runs; r < q->runs + n_runs; r++) {
        int32_t n = n_complete(q, r->sequence); /* the rows after them, of the last proposal, run again */
        for (int32_t k = 0; k < q->options.n_later; k++)
            executor_sequence_truncate(executor_of(q, k), r->sequence->kv, n);
    }
    for (int32_t k = 0; k < q->n_layers && !status; k++) status = run_layer(q, k, n_runs, has_results, err);
    for (const EntryRun *r = q->runs; r < q->runs + n_runs && !status; r++) {
        keep_incomplete(q, r);
        r->sequence->n_seen = has_results ? r->sequence->n_queued : 0;
    }
    return status;
}

/* Runs the queues of n sequences, which fit into max_rows, in one forward of each layer, and their blocks with them. */
static int run_together(EntryQueue *q, const int32_t *sequences, int32_t n, fr_error *err) {
    int32_t n_runs = 0;
    for (int32_t i = 0; i < n; i++) {
        EntrySequence *s = &q->sequences[sequences[i]];
        if (s->n_queued > s->n_seen || s->n_masks) q->runs[n_runs++] = (EntryRun){.sequence = s};
    }
    return run(q, n_runs, true, err);
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

/* ---- adding ----------------------------------------------------------------------------------------- */

int entry_queue_add(EntryQueue *q, int32_t sequence, const int32_t *tokens, const float *const *hidden, int32_t n,
                    fr_error *err) {
    EntrySequence *s = &q->sequences[sequence];
    int32_t first = 0;
    while (s->n_queued + n - first > ENTRY_QUEUE_LENGTH) {
        int32_t most = q->options.max_rows - s->n_queued, now = n - first - 1 < most ? n - first - 1 : most;
        q->runs[0] = (EntryRun){s, tokens + first, hidden + first, now};
        int status = run(q, 1, false, err);
        if (status) return status;
        first += now;
    }
    for (; first < n; first++, s->n_queued++) {
        s->tokens[s->n_queued] = tokens[first];
        take_hidden(q, hidden[first], s->hidden + s->n_queued * q->width);
    }
    return FR_OK;
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
    begin_gap(s, n_complete(q, s));
    s->n_queued -= n_dropped;
    s->n_seen = 0;
    memmove(s->tokens, s->tokens + n_dropped, (size_t)s->n_queued * sizeof *s->tokens);
    memmove(s->hidden, s->hidden + (size_t)n_dropped * width, (size_t)s->n_queued * width * sizeof *s->hidden);
}

int entry_queue_add_step(EntryQueue *q, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    EntrySequence *s = &q->sequences[sequence];
    int32_t n = v->verdict->n_path + 1;
    int64_t first = q->learned->sequences[sequence].n_hidden - n; /* the position of the pending token */
    int status = FR_OK;
    int32_t n_whole = n_complete(q, s), n_held = n_whole + s->n_queued;
    if (n_whole < n_held - q->options.n_later) n_whole = n_held - q->options.n_later;
    if (!s->has_gap && n_held < first) begin_gap(s, n_whole);
    if (v->is_idle) drop_entries(q, s, n);
    for (int32_t depth = 0; depth < n && !status; depth++) {
        int32_t token = feedback_after(v, depth);
        status = entry_queue_add(q, sequence, &token, &v->hidden[feedback_node(v, depth)], 1, err);
    }
    return status;
}
