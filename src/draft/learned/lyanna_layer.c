/* lyanna_layer.c - hidden states from hidden states (Lyanna, section 4.1).
 *
 * The problem. A drafter that reads its own tokens is wrong from the first wrong token on, and what it computed since
 * is lost.
 *
 * The idea. One transformer layer with a KV cache of its own continues only from hidden states. With h_t the
 * target's hidden state after its final norm and E(x) its embedding,
 *
 *     entry of t    e_t = Layer(fc [E(x_{t+1}) ; h_t])     for every token that the target has read
 *     chain         h_1 = e of the last entry, which reads h_0 and the pending token;
 *                   h_{i+1} = Layer(h_i), at the next position
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
 * A parallel chain does not read h_1, h_2, .. It reads the input of the last entry plus a learned vector v_s of the
 * step instead, so that all its rows run in one forward:
 *
 *     input   E(x1) h0     E(x2) h1     E(x3) h2   (E(x3) h2) + v_1   (E(x3) h2) + v_2
 *
 * A file may have a second layer for the steps after the first one ("later"), because predicting from a state that no
 * token went into is another task than predicting from the target's state and a token. It runs on the same cache: its
 * steps see the keys and values that the first layer made of the entries, and their own. The inputs of its steps may
 * also contain the pending token, which is known before the chain:
 *
 *     h_{i+1} = Later(h_i)     or     h_{i+1} = Later(fc' [E(x3) ; h_i])
 *
 * The steps of a chain attend to each other and are discarded after it; accepted tokens get new entries from the
 * target's true hidden states. Entries wait in a queue until a chain is needed, so that the entries of all sequences
 * are one forward, and so is each step of the chains. That is 1 + (depth - 1) forwards of one layer for any number of
 * sequences, and 2 with a parallel chain.
 *
 * The layer is a standard one: a norm before attention, unless its training began from an EAGLE drafter, whose layer
 * has none, and one before the feed-forward part; the target's heads, rope and epsilon. Its output has no norm, because
 * it replaces the target's hidden state after the final norm. Proof: tests/draft/test_draft_lyanna.c, against the same
 * layer in double precision. */
#include "draft/learned/lyanna.h"

#include "gguf/tensor_type.h"

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

/* Reads the kind of chain. A file without the key has a serial one. */
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

/* Reads what the later layer reads, if there is one. */
static int read_later(LyannaLayer *l, fr_error *err) {
    static const char *const choices[] = {"state", "token", NULL};
    LearnedDrafter *d = l->learned;
    int choice = 0;
    l->has_later = gguf_find_key(d->file.gguf, DRAFTER_KEY(LYANNA LAYER_LATER LAYER_KEY_FEED_FORWARD)) >= 0;
    if (!l->has_later) return FR_OK;
    int status = drafter_file_choice(&d->file, LYANNA_KEY_LATER_INPUT, choices, &choice, err);
    if (status || choice == 0) return status;
    if (l->n_inputs)
        return error_set(err, FR_ERR_FORMAT, "%s: the steps of a parallel chain cannot read the state before them",
                         gguf_path(d->file.gguf));
    return learned_linear_open(d, LYANNA LAYER_LATER LAYER_FC, 2 * d->n_embd, d->n_embd, true, MAX_ROWS, &l->later_fc,
                               err);
}

/* Reads whether the first layer has a norm before its attention. A file without the key has one. */
static int read_attn_norm(LyannaLayer *l, bool *has_norm, fr_error *err) {
    static const char *const choices[] = {"rms", "none", NULL};
    LearnedDrafter *d = l->learned;
    int choice = 0;
    int status = FR_OK;
    if (gguf_find_key(d->file.gguf, DRAFTER_KEY(LYANNA_KEY_ATTN_NORM)) >= 0)
        status = drafter_file_choice(&d->file, LYANNA_KEY_ATTN_NORM, choices, &choice, err);
    *has_norm = choice == 0;
    if (status || *has_norm || l->n_inputs == 0) return status;
    return error_set(err, FR_ERR_FORMAT, "%s: a parallel chain needs a norm before its attention",
                     gguf_path(d->file.gguf));
}

static int read_weights(LyannaLayer *l, fr_error *err) {
    int64_t embd = l->learned->n_embd, n_in = l->is_fused ? 2 * embd : embd;
    OneLayerParts parts = {.first = "lyanna"};
    int status = read_attn_norm(l, &parts.has_attn_norm, err);
    if (!status) status = learned_linear_open(l->learned, LYANNA LAYER_FC, n_in, embd, true, MAX_ROWS, &l->fc, err);
    if (!status) status = read_later(l, err);
    if (status) return status;
    parts.second = l->has_later ? LYANNA_LATER : NULL;
    return one_layer_open(&l->layer, l->learned, &parts, err);
}

static int allocate(LyannaLayer *l, fr_error *err) {
    const EntryQueueOptions entries = {.fc = l->fc, .reads_tokens = l->is_fused, .max_rows = MAX_ROWS};
    int64_t h = l->learned->n_embd, n = l->later_fc ? l->max_group : 0;
    const LearnedBuffer buffers[] = {{&l->chains, (int64_t)l->max_group * l->depth * h},
                                     {&l->pairs, n * 2 * h},
                                     {&l->inputs, n * h}};
    int status = learned_open_buffers(l->learned, buffers, l->later_fc ? 3 : 1, err);
    return status ? status : entry_queue_open(&l->entries, l->learned, &l->layer, &entries, err);
}

int lyanna_layer_open(LyannaLayer *l, LearnedDrafter *learned, const DrafterEnv *env, int32_t depth, int32_t max_group,
                      fr_error *err) {
    *l = (LyannaLayer){.learned = learned, .depth = depth, .max_group = max_group};
    fr_assert(max_group >= 1 && max_group * depth <= MAX_ROWS);
    int status = read_first_token(l, err);
    if (!status) status = read_chain(l, err);
    if (!status) status = read_weights(l, err);
    if (!status) status = one_layer_open_executor(&l->layer, learned, env->n_ctx, depth, MAX_ROWS, 1, err);
    return status ? status : allocate(l, err);
}

void lyanna_layer_close(LyannaLayer *l) {
    learned_linear_close(l->learned, l->fc);
    learned_linear_close(l->learned, l->later_fc);
    entry_queue_close(&l->entries);
    one_layer_close(&l->layer);
}

/* ---- the chain ------------------------------------------------------------------------------------ */

static float *state_of(const LyannaLayer *l, int32_t i, int32_t step) {
    return l->chains->floats + ((int64_t)i * l->depth + step) * l->learned->n_embd;
}

/* Computes what the rows of the next step of all n sequences read, by the later layer's fc, from h_step and the pending
 * token. */
static void fuse_step(LyannaLayer *l, const int32_t *sequences, int32_t n, int32_t step) {
    int64_t h = l->learned->n_embd;
    for (int32_t i = 0; i < n; i++) {
        const LearnedSequence *s = &l->learned->sequences[sequences[i]];
        learned_embed(l->learned, &s->context[s->n_tokens - 1], 1, (Slice){l->pairs, i * 2 * h});
        learned_write(l->pairs, (2 * (int64_t)i + 1) * h, state_of(l, i, step - 1), h);
    }
    learned_linear(l->learned, l->later_fc, LINEAR_SET, l->pairs, n, l->inputs);
    buffer_pull(l->inputs, 0, n * h);
    for (int32_t i = 0; i < n; i++) l->entries.rows[i].input = l->inputs->floats + i * h;
}

/* Computes h_{step+1} from h_step, for all n sequences. */
static int run_step(LyannaLayer *l, const int32_t *sequences, int32_t n, int32_t step, fr_error *err) {
    int64_t h = l->learned->n_embd;
    int32_t n_run = (step - 1) * n; /* rows of the earlier steps */
    for (int32_t i = 0; i < n; i++)
        l->entries.rows[i] = (Row){.sequence = l->entries.sequences[sequences[i]].kv,
                                   .parent = step == 1 ? -1 : n_run - n + i,
                                   .want_hidden = true,
                                   .input = state_of(l, i, step - 1)};
    if (l->later_fc) fuse_step(l, sequences, n, step);
    int status = step == 1 ? executor_forward(l->layer.executor, l->entries.rows, n, err)
                           : executor_extend(l->layer.executor, l->entries.rows, n, err);
    for (int32_t i = 0; i < n && !status; i++)
        memcpy(state_of(l, i, step), executor_hidden(l->layer.executor, n_run + i), (size_t)h * sizeof(float));
    return status;
}

/* Computes h_2 .. h_depth of the parallel chains of all n sequences, in one forward. */
static int run_parallel(LyannaLayer *l, const int32_t *sequences, int32_t n, fr_error *err) {
    int64_t h = l->learned->n_embd;
    int32_t n_rows = 0;
    for (int32_t i = 0; i < n; i++) {
        const EntrySequence *p = &l->entries.sequences[sequences[i]];
        for (int32_t step = 1; step < l->depth; step++, n_rows++) {
            const float *learned = l->chain_inputs + (step <= l->n_inputs ? step - 1 : l->n_inputs - 1) * h;
            float *input = state_of(l, i, step);
            for (int64_t k = 0; k < h; k++) input[k] = p->input[k] + learned[k];
            l->entries.rows[n_rows] =
                (Row){.sequence = p->kv, .parent = step == 1 ? -1 : n_rows - 1, .want_hidden = true, .input = input};
        }
    }
    int status = executor_forward(l->layer.executor, l->entries.rows, n_rows, err);
    for (int32_t row = 0; row < n_rows && !status; row++)
        memcpy(l->chains->floats + (row / (l->depth - 1) * l->depth + row % (l->depth - 1) + 1) * h,
               executor_hidden(l->layer.executor, row), (size_t)h * sizeof(float));
    return status;
}

static int run_serial(LyannaLayer *l, const int32_t *sequences, int32_t n, fr_error *err) {
    int status = FR_OK;
    for (int32_t step = 1; step < l->depth && !status; step++) status = run_step(l, sequences, n, step, err);
    return status;
}

int lyanna_layer_chain(LyannaLayer *l, const int32_t *sequences, int32_t n, fr_error *err) {
    size_t h = (size_t)l->learned->n_embd;
    int status = entry_queue_run(&l->entries, sequences, n, err);
    for (int32_t i = 0; i < n && !status; i++) {
        const EntrySequence *p = &l->entries.sequences[sequences[i]];
        memcpy(state_of(l, i, 0), p->feature, h * sizeof *p->feature);
        if (l->depth > 1) status = entry_queue_reserve(&l->entries, p, l->depth - 1, err);
    }
    executor_choose_layer(l->layer.executor, l->has_later);
    if (!status && l->depth > 1)
        status = l->n_inputs ? run_parallel(l, sequences, n, err) : run_serial(l, sequences, n, err);
    executor_choose_layer(l->layer.executor, 0);
    for (int32_t i = 0; i < n && !status && l->depth > 1; i++)
        executor_commit(l->layer.executor, l->entries.sequences[sequences[i]].kv, NULL, 0); /* discards the steps */
    buffer_push(l->chains, 0, (int64_t)n * l->depth * l->learned->n_embd);
    return status;
}
