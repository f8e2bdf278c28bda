/* head_tokens.c - LM heads over some of the target's tokens: FR-Spec (Zhao et al. 2025, "FR-Spec: Accelerating
 * Large-Vocabulary Language Models via Frequency-Ranked Speculative Sampling", arXiv 2502.14856), and the maps that
 * published drafters of the architectures eagle3 and dflash bring along.
 *
 * The problem. With a large vocabulary the LM head is most of what a small drafter reads: 128,000 rows of a matrix for
 * one layer. Few of these rows ever matter, because a quarter of the tokens makes up nearly all of a text.
 *
 * The idea. The drafter computes logits only for the tokens that are frequent in its training data. A token that is not
 * among them has the logit -infinity and is never drafted; the target may still choose it, so the text is the same.
 *
 *     tokens       0     3     8            the key head_tokens of the file, or its tensor d2t
 *     head       W_0   W_3   W_8            these rows of the target's LM head, or of the drafter's own
 *     logits      .5   2.1   -.7
 *     spread      .5  -inf  -inf  2.1  -inf  -inf  -inf  -inf  -.7    for everything that follows
 *
 * Rows of a matrix are quantised by themselves, so that a logit has the same bits as in the whole head. Where another
 * drafter of the same target also proposes tokens (a union), it reaches those that are missing here.
 *
 * When it loses: where a text has many rare tokens. Proof: tests/draft/test_head_tokens.c. */
#include "draft/learned/learned.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Takes the rows of the drafter's tokens out of a matrix with a row for each token of the target. */
static int take_rows(LearnedDrafter *d, const GgufTensor *from, const GgufTensor **out, fr_error *err) {
    size_t row_bytes = from->bytes / (size_t)from->dims[1];
    GgufTensor *t;
    char *rows;
    const ArenaItem items[] = {ARENA_ITEM(&t, 1), ARENA_ITEM(&rows, (size_t)d->head.n * row_bytes)};
    int status = arena_take(&d->arena, items, ARENA_COUNT(items), "an LM head over some tokens", err);
    if (status) return status;
    for (int32_t i = 0; i < d->head.n; i++)
        memcpy(rows + (size_t)i * row_bytes, (const char *)from->data + (size_t)d->head.tokens[i] * row_bytes,
               row_bytes);
    *t = *from;
    t->dims[1] = d->head.n;
    t->bytes = (size_t)d->head.n * row_bytes;
    t->data = rows;
    *out = t;
    return FR_OK;
}

/* Takes the numbers of the drafter's tokens out of a vector; NULL stays NULL. */
static int take_numbers(LearnedDrafter *d, const float *from, const float **out, fr_error *err) {
    float *numbers;
    const ArenaItem items[] = {ARENA_ITEM(&numbers, d->head.n)};
    *out = NULL;
    int status = from ? arena_take(&d->arena, items, 1, "a bias of some tokens", err) : FR_OK;
    if (status || !from) return status;
    for (int32_t i = 0; i < d->head.n; i++) numbers[i] = from[d->head.tokens[i]];
    *out = numbers;
    return FR_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

int head_tokens_read(LearnedDrafter *d, const DrafterFile *f, fr_error *err) {
    int status = drafter_file_tokens(f, HEAD_TOKENS_KEY, d->n_vocab, &d->head.tokens, &d->head.n, err);
    const ArenaItem items[] = {ARENA_ITEM(&d->head.row, d->head.n)};
    d->head.is_list = d->head.tokens != NULL;
    return status || !d->head.tokens ? status : arena_take(&d->arena, items, 1, "logits of some tokens", err);
}

void head_tokens_close(LearnedDrafter *d) {
    weights_close(d->head.weights);
    mem_free(d->head.tokens);
}

int head_tokens_set(LearnedDrafter *d, Model *m, fr_error *err) {
    if (!d->head.is_list) return FR_OK;
    int status = take_rows(d, m->output, &m->output, err);
    if (!status) status = take_numbers(d, m->output_bias, &m->output_bias, err);
    m->hparams.n_vocab = d->head.n;
    return status;
}

int head_rows_read(LearnedDrafter *d, const char *name, int64_t n_in, const GgufTensor **out, fr_error *err) {
    bool has_all = d->head.is_list || !d->head.tokens;
    int status = drafter_file_matrix(&d->file, name, n_in, has_all ? d->n_vocab : d->head.n, out, err);
    return status || !d->head.is_list ? status : take_rows(d, *out, out, err);
}

int own_head_read(LearnedDrafter *d, Model *m, const char *name, fr_error *err) {
    Hparams *h = &m->hparams;
    bool has_own = drafter_file_has(&d->file, name) || drafter_file_has(&d->file, GGUF_MAP);
    if (d->head.is_list && has_own)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: has the key %s, which is for the target's LM head, and a head of its own",
                         gguf_path(d->file.gguf), HEAD_TOKENS_KEY);
    int status = drafter_file_map(&d->file, d->n_vocab, &d->head.tokens, &d->head.n, err);
    h->n_vocab = d->head.n;
    if (status) return status;
    if (has_own) return drafter_file_matrix(&d->file, name, h->n_embd, h->n_vocab, &m->output, err);
    m->output = d->target->output;
    m->output_bias = d->target->output_bias;
    h->logit_scale = d->target->hparams.logit_scale;
    h->logit_cap = d->target->hparams.logit_cap;
    if (h->n_embd == d->n_embd) return head_tokens_set(d, m, err);
    return error_set(err, FR_ERR_FORMAT,
                     "%s: has no %s, and its width of %d is not the target's, whose LM head it would use",
                     gguf_path(d->file.gguf), name, h->n_embd);
}

int learned_head_reserve(LearnedDrafter *d, int64_t max_rows, fr_error *err) {
    LearnedHead *head = &d->head;
    if (!head->tokens) return d->backend->head_reserve(d->device, d->weights, (int32_t)max_rows, err);
    head->model = model_of_layers(d->target, NULL, 0, 1);
    int status = head_tokens_set(d, &head->model, err);
    if (!status) status = d->backend->submodel(&head->weights, d->weights, &head->model, false, err);
    return status ? status : d->backend->head_reserve(d->device, head->weights, (int32_t)max_rows, err);
}

int learned_output_open(LearnedDrafter *d, const char *name, int64_t n_in, bool has_bias, int64_t max_rows,
                        Linear **out, fr_error *err) {
    if (!d->head.tokens) return learned_linear_open(d, name, n_in, d->n_vocab, has_bias, max_rows, out, err);
    char tensor[96];
    const GgufTensor *rows;
    float *all_bias = NULL;
    const float *bias = NULL;
    snprintf(tensor, sizeof tensor, "%s.weight", name);
    int status = head_rows_read(d, tensor, n_in, &rows, err);
    snprintf(tensor, sizeof tensor, "%s.bias", name);
    if (!status && has_bias) status = drafter_file_vector(&d->file, tensor, d->n_vocab, &all_bias, err);
    if (!status) status = take_numbers(d, all_bias, &bias, err);
    if (!status) status = d->backend->linear_open(out, d->device, d->weights, rows, bias, (int32_t)max_rows, err);
    mem_free(all_bias);
    return status;
}

/* ---- logits ------------------------------------------------------------------------------------------- */

void learned_spread(const LearnedDrafter *d, const float *logits, float *out) {
    if (!d->head.tokens) {
        memcpy(out, logits, (size_t)d->n_vocab * sizeof *logits);
        return;
    }
    for (int32_t i = 0; i < d->n_vocab; i++) out[i] = -INFINITY;
    for (int32_t i = 0; i < d->head.n; i++) out[d->head.tokens[i]] = logits[i];
}

/* Brings n_rows rows of logits to the CPU and makes them rows of the target's vocabulary, the last one first, because
 * they become longer. */
static void finish_rows(LearnedDrafter *d, Buffer *logits, int32_t n_rows) {
    int64_t n = d->head.n;
    buffer_pull(logits, 0, n_rows * n);
    for (int32_t r = n_rows - 1; r >= 0 && d->head.tokens; r--) {
        memcpy(d->head.row, logits->floats + r * n, (size_t)n * sizeof *d->head.row);
        learned_spread(d, d->head.row, logits->floats + (int64_t)r * d->n_vocab);
    }
}

void learned_head(LearnedDrafter *d, Buffer *x, int32_t n_rows, Buffer *logits) {
    d->backend->head(d->device, d->head.tokens ? d->head.weights : d->weights, (Slice){x, 0}, n_rows,
                     (Slice){logits, 0});
    finish_rows(d, logits, n_rows);
}

void learned_output(LearnedDrafter *d, const Linear *output, Buffer *x, int32_t n_rows, Buffer *logits) {
    learned_linear(d, output, LINEAR_SET, x, n_rows, logits);
    finish_rows(d, logits, n_rows);
}
