/* entry_sharing.c - what other sequences and other processes take over of the entries of a sequence: the complete
 * entries of each layer, which share pages of its KV cache, and the queue. The essay is in layer_entries.c. */
#include "draft/learned/layer_entries.h"

#include <string.h>

static Executor *executor_of(const EntryQueue *q, int32_t k) { return q->layers[k].layer->executor; }

static int32_t n_complete(const EntryQueue *q, const EntrySequence *s) {
    return entry_queue_n_entries(q, s) - s->n_queued;
}

/* ---- taking over ------------------------------------------------------------------------------------ */

int32_t entry_queue_n_held(const EntryQueue *q, int32_t sequence) {
    const EntrySequence *s = &q->sequences[sequence];
    int32_t n = s->begun ? entry_queue_n_entries(q, s) : 0;
    if (s->begun && s->has_gap) return s->n_whole;
    return sequence < q->learned->max_sequences || n == s->n_kept ? n : 0;
}

/* If the text goes on beyond the tokens that the complete entries depend on, it can take over all of them, and the
 * queued ones as far as it has their tokens. Otherwise it must be cut before its own last tokens. */
int32_t entry_queue_usable(const EntryQueue *q, int32_t sequence, int32_t n_common) {
    const EntrySequence *s = &q->sequences[sequence];
    int32_t n_next = s->begun && n_complete(q, s) + q->n_layers <= n_common ? 1 : q->n_layers;
    return n_common > n_next ? n_common - n_next : 0;
}

/* Complete entries are shared, and queued ones are copied. Features are not known. A proposal finds them again if the
 * queue then has n - 1 entries of n layers, which is so unless the prompt was not shown to the drafter. */
void entry_queue_take_over(EntryQueue *q, int32_t from, int32_t to, int32_t n) {
    EntrySequence *a = &q->sequences[from], *b = &q->sequences[to];
    int32_t n_shared = n ? n_complete(q, a) : 0;
    if (n_shared > n) n_shared = n;
    for (int32_t k = 0; k < q->n_layers; k++) cached_kv_take_over(&q->cached[k], a->kv, b->kv, n_shared);
    b->n_kept = n;
    b->has_gap = false;
    b->n_queued = n - n_shared;
    b->n_seen = 0;
    if (b->feature) memset(b->feature, 0, (size_t)(q->n_layers * q->shape->n_embd) * sizeof *b->feature);
    memcpy(b->tokens, a->tokens, (size_t)b->n_queued * sizeof *b->tokens);
    memcpy(b->hidden, a->hidden, (size_t)b->n_queued * (size_t)q->width * sizeof *b->hidden);
}

/* ---- saving ------------------------------------------------------------------------------------------
 *
 * The mark of the weights (uint64), the number of queued entries (int32), their tokens and hidden states, and the
 * sequence of each layer's executor. */

bool entry_queue_save(const EntryQueue *q, int32_t sequence, Buf *out) {
    const EntrySequence *s = &q->sequences[sequence];
    size_t n = (size_t)s->n_queued;
    bool fits = buf_append(out, &q->learned->weights_mark, sizeof q->learned->weights_mark) &&
                buf_append(out, &s->n_queued, sizeof s->n_queued) &&
                buf_append(out, s->tokens, n * sizeof *s->tokens) &&
                buf_append(out, s->hidden, n * (size_t)q->width * sizeof *s->hidden);
    for (int32_t k = 0; k < q->n_layers && fits; k++) fits = executor_sequence_save(executor_of(q, k), s->kv, out);
    return fits;
}

static int refuse_damaged(fr_error *err) {
    return error_set(err, FR_ERR_FORMAT, "the entries of a drafter are damaged");
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
    return fits ? FR_OK : refuse_damaged(err);
}

int entry_queue_load(EntryQueue *q, int32_t sequence, ByteReader *in, fr_error *err) {
    EntrySequence *s = &q->sequences[sequence < 0 ? 0 : sequence];
    const char *tokens = NULL, *hidden = NULL;
    int32_t n = 0;
    int status = take_queue(q, &n, &tokens, &hidden, in, err);
    for (int32_t k = 0; k < q->n_layers && !status; k++)
        status = executor_sequence_load(executor_of(q, k), sequence < 0 ? -1 : s->kv, in, err);
    if (sequence < 0) return status;
    s->n_queued = s->n_seen = s->n_kept = 0;
    if (status) return status;
    for (int32_t k = 0; k < q->n_layers; k++)
        if (executor_sequence_length(executor_of(q, k), s->kv) != n_complete(q, s)) return refuse_damaged(err);
    s->n_queued = n;
    s->n_kept = entry_queue_n_entries(q, s);
    memcpy(s->tokens, tokens, (size_t)n * sizeof *s->tokens);
    memcpy(s->hidden, hidden, (size_t)n * (size_t)q->width * sizeof *s->hidden);
    return FR_OK;
}
