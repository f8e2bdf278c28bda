/* lyanna_layer.c - hidden states from hidden states (Lyanna, section 4.1).
 *
 * The problem. A drafter that reads its own tokens is wrong from the first wrong token on, and what it computed since
 * is lost.
 *
 * The idea. One transformer layer with a KV cache of its own continues from hidden states alone. With h_t the
 * target's hidden state after its final norm and E(x) its embedding,
 *
 *     entry of t    e_t = Layer(fc [E(x_{t+1}) ; h_t])     for every token that the target has read
 *     chain         h_1 = the last entry's, of h_0 and the pending token; h_{i+1} = Layer(h_i), at the next position
 *
 * and W_head h_i predicts the token i positions after the pending one. The last entry is the paper's first draft
 * step, the only one whose input contains a token. No later step does, so h_2 .. h_k are the same whichever tokens
 * are proposed.
 *
 *     position   0            1            2              3           4
 *     input   E(x1) h0     E(x2) h1     E(x3) h2       h_1         h_2          x3 is pending
 *     output                             h_1           h_2         h_3          of h_1, h_2, h_3: tokens x4, x5, x6
 *     kept       yes          yes          yes           no          no
 *
 * A parallel chain has no h_1, h_2, .. in its inputs. Their place is taken by the input of the last entry plus a learned
 * vector v_s of the step, so that all rows run in one forward, with the entries that are new:
 *
 *     input   E(x1) h0     E(x2) h1     E(x3) h2   (E(x3) h2) + v_1   (E(x3) h2) + v_2
 *
 * The steps of a chain attend to each other and are discarded after it; accepted tokens get new entries from the
 * target's true hidden states. Entries wait in a queue until a chain is needed, so that those of all sequences are
 * one forward, as is each step of the chains: 1 + (depth - 1) forwards of one layer for any number of sequences, and
 * 1 with a parallel chain.
 *
 * The layer is a standard one (a norm before attention and one before the feed-forward part; the target's heads, rope
 * and epsilon) and runs in the executor as a model whose rows bring their input. Its output has no norm, because it
 * replaces the target's hidden state after the final norm. Proof: tests/unit/test_draft_lyanna.c, against the same in
 * double precision. */
#include "spec/drafters/learned/lyanna_layer.h"

#include "format/blocks.h"
#include "spec/drafters/learned/lyanna.h"

#include <string.h>

enum { MAX_ROWS = 512, MAX_INPUTS = 64 };

/* ---- opening ------------------------------------------------------------------------------------ */

static int read_first_token(LyannaLayer *l, fr_error *err) {
    static const char *const choices[] = {"fused", "none", NULL};
    int choice = 0;
    int status = drafter_file_choice(&l->learned->file, LYANNA_KEY_FIRST_TOKEN, choices, &choice, err);
    l->is_fused = choice == 0;
    return status;
}

/* A file without the key has a serial chain. */
static int read_chain(LyannaLayer *l, fr_error *err) {
    static const char *const choices[] = {"serial", "parallel", NULL};
    LearnedDrafter *d = l->learned;
    const GgufTensor *inputs = NULL;
    int choice = 0;
    if (gguf_find_key(d->file.gguf, DRAFTER_KEY(LYANNA_KEY_CHAIN)) < 0) return FR_OK;
    int status = drafter_file_choice(&d->file, LYANNA_KEY_CHAIN, choices, &choice, err);
    if (status || choice == 0) return status;
    int64_t h = d->n_embd;
    status = drafter_file_int(&d->file, LYANNA_KEY_CHAIN_INPUTS, 1, MAX_INPUTS, &l->n_inputs, err);
    if (!status) status = drafter_file_matrix(&d->file, LYANNA_CHAIN_INPUTS, h, l->n_inputs, &inputs, err);
    const ArenaItem items[] = {ARENA_ITEM(&l->chain_inputs, l->n_inputs * h)};
    if (!status) status = arena_take(&d->arena, items, ARENA_COUNT(items), "lyanna", err);
    if (!status) blocks_dequantize(inputs->type, inputs->data, l->n_inputs * h, l->chain_inputs);
    return status;
}

static int read_weights(LyannaLayer *l, fr_error *err) {
    static const OneLayerNames names = {.key_feed_forward = LYANNA_KEY_FEED_FORWARD,
                                        .attn_norm = LYANNA_ATTN_NORM,
                                        .q = LYANNA_ATTN_Q,
                                        .k = LYANNA_ATTN_K,
                                        .v = LYANNA_ATTN_V,
                                        .o = LYANNA_ATTN_OUTPUT,
                                        .ffn_norm = LYANNA_FFN_NORM,
                                        .gate = LYANNA_FFN_GATE,
                                        .up = LYANNA_FFN_UP,
                                        .down = LYANNA_FFN_DOWN};
    int64_t embd = l->learned->n_embd;
    int status = learned_linear_open(l->learned, LYANNA_FC, l->is_fused ? 2 * embd : embd, embd, true, MAX_ROWS, &l->fc,
                                     err);
    return status ? status : one_layer_open(&l->layer, l->learned, &names, err);
}

static int allocate(LyannaLayer *l, fr_error *err) {
    int64_t h = l->learned->n_embd, rows = l->max_rows, n = l->learned->max_sequences;
    float *features, *last_inputs, *hidden;
    int32_t *tokens;
    const ArenaItem items[] = {ARENA_ITEM(&l->entries, n),
                               ARENA_ITEM(&features, n * h),
                               ARENA_ITEM(&last_inputs, n * h),
                               ARENA_ITEM(&tokens, n * LYANNA_QUEUE),
                               ARENA_ITEM(&hidden, n * LYANNA_QUEUE * h),
                               ARENA_ITEM(&l->rows, rows),
                               ARENA_ITEM(&l->row_ids, rows),
                               ARENA_ITEM(&l->pairs, rows * 2 * h),
                               ARENA_ITEM(&l->inputs, rows * h),
                               ARENA_ITEM(&l->chains, l->max_group * l->depth * h)};
    int status = arena_take(&l->learned->arena, items, ARENA_COUNT(items), "lyanna", err);
    for (int64_t i = 0; i < n && !status; i++) {
        l->entries[i].feature = features + i * h;
        l->entries[i].input = last_inputs + i * h;
        l->entries[i].tokens = tokens + i * LYANNA_QUEUE;
        l->entries[i].hidden = hidden + i * LYANNA_QUEUE * h;
    }
    return status;
}

int lyanna_layer_open(LyannaLayer *l, LearnedDrafter *learned, const DrafterEnv *env, int32_t depth, int32_t max_group,
                      fr_error *err) {
    *l = (LyannaLayer){.learned = learned, .depth = depth, .max_group = max_group, .max_rows = MAX_ROWS};
    fr_assert(max_group >= 1 && max_group * depth <= MAX_ROWS);
    int status = read_first_token(l, err);
    if (!status) status = read_chain(l, err);
    if (!status) status = read_weights(l, err);
    if (!status) status = allocate(l, err);
    return status ? status : one_layer_open_executor(&l->layer, learned, env->n_ctx, depth, MAX_ROWS, err);
}

void lyanna_layer_close(LyannaLayer *l) {
    learned_linear_close(l->learned, l->fc);
    one_layer_close(&l->layer);
}

/* ---- entries: the tokens that the target has read--------------------------------------------------------- */

int lyanna_layer_begin(LyannaLayer *l, int32_t sequence, fr_error *err) {
    LyannaEntries *p = &l->entries[sequence];
    int status = executor_sequence_open(l->layer.executor, &p->kv, err);
    p->n_queued = 0;
    p->begun = status == FR_OK;
    return status;
}

void lyanna_layer_end(LyannaLayer *l, int32_t sequence) {
    LyannaEntries *p = &l->entries[sequence];
    if (p->begun) executor_sequence_close(l->layer.executor, p->kv);
    p->begun = false;
}

/* Appends the queue of a sequence to the n_rows rows; returns the new number of rows. */
static int32_t pack_queue(LyannaLayer *l, const LyannaEntries *p, int32_t n_rows) {
    int64_t h = l->learned->n_embd, width = l->is_fused ? 2 * h : h;
    for (int32_t i = 0; i < p->n_queued; i++, n_rows++) {
        float *pair = l->pairs + n_rows * width;
        if (l->is_fused) learned_embed(l->learned, p->tokens[i], pair);
        memcpy(pair + (width - h), p->hidden + i * h, (size_t)h * sizeof *pair);
        l->rows[n_rows] = (Row){.token = p->tokens[i],
                                .sequence = p->kv,
                                .parent = i ? n_rows - 1 : -1,
                                .want_hidden = i == p->n_queued - 1,
                                .input = l->inputs + n_rows * h};
        l->row_ids[n_rows] = n_rows;
    }
    return n_rows;
}

/* Appends the rows of h_2 .. h_depth to the n_rows rows, the first of them below row `last`, or below the entries that are
 * committed (-1). chain: [depth][H] holds their inputs until the forward. Returns the new number of rows. */
static int32_t pack_chain(LyannaLayer *l, const LyannaEntries *p, int32_t last, float *chain, int32_t n_rows) {
    int64_t h = l->learned->n_embd;
    for (int32_t step = 1; step < l->depth; step++, n_rows++) {
        const float *learned = l->chain_inputs + (step <= l->n_inputs ? step - 1 : l->n_inputs - 1) * h;
        float *input = chain + step * h;
        for (int64_t i = 0; i < h; i++) input[i] = p->input[i] + learned[i];
        l->rows[n_rows] =
            (Row){.sequence = p->kv, .parent = step == 1 ? last : n_rows - 1, .want_hidden = true, .input = input};
    }
    return n_rows;
}

/* The inputs of the entries in the queues' n_rows rows, and the rows of parallel chains after them. Returns the new number
 * of rows. */
static int32_t make_inputs(LyannaLayer *l, const int32_t *sequences, int32_t n, float *chains, int32_t n_rows) {
    int64_t h = l->learned->n_embd;
    int32_t last = -1;
    learned_linear(l->learned, l->fc, LINEAR_SET, l->pairs, n_rows, l->inputs);
    for (int32_t i = 0; i < n; i++) {
        LyannaEntries *p = &l->entries[sequences[i]];
        last += p->n_queued;
        if (p->n_queued) memcpy(p->input, l->inputs + last * h, (size_t)h * sizeof *p->input);
        if (chains) n_rows = pack_chain(l, p, p->n_queued ? last : -1, chains + i * l->depth * h, n_rows);
    }
    return n_rows;
}

/* Keeps the entries of the queues, and copies the states of the chains. */
static void take_results(LyannaLayer *l, const int32_t *sequences, int32_t n, float *chains, int32_t n_entries) {
    size_t h = (size_t)l->learned->n_embd;
    int32_t first = 0, row = n_entries;
    for (int32_t i = 0; i < n; i++) {
        LyannaEntries *p = &l->entries[sequences[i]];
        int32_t end = first + p->n_queued;
        if (p->n_queued) memcpy(p->feature, executor_hidden(l->layer.executor, end - 1), h * sizeof *p->feature);
        for (int32_t step = 1; chains && step < l->depth; step++, row++)
            memcpy(chains + (size_t)(i * l->depth + step) * h, executor_hidden(l->layer.executor, row),
                   h * sizeof *chains);
        if (p->n_queued || chains) executor_commit(l->layer.executor, p->kv, l->row_ids + first, p->n_queued);
        p->n_queued = 0;
        first = end;
    }
}

/* Runs the queues of n sequences, which fit into max_rows, in one forward; with them, unless `chains` [n][depth][H] is NULL,
 * the chains that follow, whose states h_2 .. h_depth are written there. */
static int run_queues(LyannaLayer *l, const int32_t *sequences, int32_t n, float *chains, fr_error *err) {
    int32_t n_entries = 0, n_more = chains ? l->depth - 1 : 0;
    int status = FR_OK;
    for (int32_t i = 0; i < n && !status; i++) {
        const LyannaEntries *p = &l->entries[sequences[i]];
        if (p->n_queued + n_more) status = executor_reserve(l->layer.executor, p->kv, p->n_queued + n_more, err);
        n_entries = pack_queue(l, p, n_entries);
    }
    if (status || n_entries + n * n_more == 0) return status;
    int32_t n_rows = make_inputs(l, sequences, n, n_more ? chains : NULL, n_entries);
    status = executor_forward(l->layer.executor, l->rows, n_rows, err);
    if (!status) take_results(l, sequences, n, n_more ? chains : NULL, n_entries);
    return status;
}

int lyanna_layer_add(LyannaLayer *l, int32_t sequence, int32_t token, const float *hidden, fr_error *err) {
    LyannaEntries *p = &l->entries[sequence];
    int64_t h = l->learned->n_embd;
    int status = p->n_queued == LYANNA_QUEUE ? run_queues(l, &sequence, 1, NULL, err) : FR_OK;
    if (status) return status;
    p->tokens[p->n_queued] = token;
    memcpy(p->hidden + p->n_queued++ * h, hidden, (size_t)h * sizeof *hidden);
    return FR_OK;
}

/* ---- the chain ------------------------------------------------------------------------------------ */

/* Runs all queued entries, and parallel chains with them, in as few forwards as possible. */
static int make_entries(LyannaLayer *l, const int32_t *sequences, int32_t n, fr_error *err) {
    int64_t chain = (int64_t)l->depth * l->learned->n_embd;
    float *chains = l->n_inputs ? l->chains : NULL;
    int32_t first = 0, n_rows = 0;
    int status = FR_OK;
    for (int32_t i = 0; i < n && !status; i++) {
        int32_t more = l->entries[sequences[i]].n_queued + (chains ? l->depth - 1 : 0);
        if (n_rows + more > l->max_rows) {
            status = run_queues(l, sequences + first, i - first, chains ? chains + first * chain : NULL, err);
            first = i;
            n_rows = 0;
        }
        n_rows += more;
    }
    return status ? status : run_queues(l, sequences + first, n - first, chains ? chains + first * chain : NULL, err);
}

/* Computes h_{step+1} from h_step, for all n sequences. */
static int run_step(LyannaLayer *l, const int32_t *sequences, int32_t n, int32_t step, fr_error *err) {
    int64_t h = l->learned->n_embd;
    int32_t n_run = (step - 1) * n; /* rows of the steps before */
    for (int32_t i = 0; i < n; i++)
        l->rows[i] = (Row){.sequence = l->entries[sequences[i]].kv,
                           .parent = step == 1 ? -1 : n_run - n + i,
                           .want_hidden = true,
                           .input = l->chains + ((int64_t)i * l->depth + step - 1) * h};
    int status = step == 1 ? executor_forward(l->layer.executor, l->rows, n, err)
                           : executor_extend(l->layer.executor, l->rows, n, err);
    for (int32_t i = 0; i < n && !status; i++)
        memcpy(l->chains + ((int64_t)i * l->depth + step) * h, executor_hidden(l->layer.executor, n_run + i),
               (size_t)h * sizeof(float));
    return status;
}

int lyanna_layer_chain(LyannaLayer *l, const int32_t *sequences, int32_t n, fr_error *err) {
    size_t h = (size_t)l->learned->n_embd;
    int status = make_entries(l, sequences, n, err);
    for (int32_t i = 0; i < n && !status; i++) {
        const LyannaEntries *p = &l->entries[sequences[i]];
        memcpy(l->chains + (size_t)(i * l->depth) * h, p->feature, h * sizeof *p->feature);
        if (l->depth > 1 && !l->n_inputs) status = executor_reserve(l->layer.executor, p->kv, l->depth - 1, err);
    }
    if (l->n_inputs) return status;
    for (int32_t step = 1; step < l->depth && !status; step++) status = run_step(l, sequences, n, step, err);
    for (int32_t i = 0; i < n && l->depth > 1 && !status; i++)
        executor_commit(l->layer.executor, l->entries[sequences[i]].kv, NULL, 0); /* discards the steps */
    return status;
}
