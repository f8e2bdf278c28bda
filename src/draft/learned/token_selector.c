/* token_selector.c - the selector of DFlash 2 (z-lab 2026), which makes a coherent path of positions that were
 * predicted at once.
 *
 * The problem. As in markov_head.c: no position of a block knows which tokens the others get.
 *
 * The idea. Only the best tokens of each position are candidates, 16 in published files. A pair of neighbours, the
 * token a and a candidate b after it, has a score of a low rank, whose numbers the hidden state of the position weighs:
 *
 *     score(b after a) = logit(b) + sum over r of A[a][r] * (H hidden)[r] * B[b][r]
 *
 * The softmax of the scores of all candidates is the distribution after a. So every node of a tree has one of its own,
 * as with a Markov head, at the price of a few vectors where that head computes a product with the whole vocabulary.
 *
 * When it loses: a token that is not among the candidates is never drafted. Proof: tests/draft/test_draft_dflash.c. */
#include "draft/learned/logit_corrections.h"

#include <math.h>

int token_selector_open(TokenSelector *s, LearnedDrafter *learned, int32_t n_embd, int32_t n_top, fr_error *err) {
    const GgufTensor *t = gguf_find_tensor(learned->file.gguf, DFLASH_SELECTOR_BEFORE);
    if (!t && n_top == 0) return FR_OK;
    if (!t || n_top == 0)
        return error_set(err, FR_ERR_FORMAT, "%s: has only one of tensor %s and key %s", gguf_path(learned->file.gguf),
                         DFLASH_SELECTOR_BEFORE, DFLASH DFLASH_KEY_SELECTOR_TOP);
    if (t->dims[0] < 1 || t->dims[0] > DFLASH_MAX_SELECTOR_RANK)
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s has a rank of %lld, but must have one from 1 to %d",
                         gguf_path(learned->file.gguf), DFLASH_SELECTOR_BEFORE, (long long)t->dims[0],
                         DFLASH_MAX_SELECTOR_RANK);
    *s = (TokenSelector){.learned = learned, .rank = (int32_t)t->dims[0], .n_top = n_top, .n_embd = n_embd};
    const LearnedBuffer buffers[] = {{&s->state, n_embd}, {&s->gate, s->rank}};
    const ArenaItem items[] = {ARENA_ITEM(&s->vector, s->rank), ARENA_ITEM(&s->candidate, s->rank)};
    int status = own_embedding_read(&s->before, learned, DFLASH_SELECTOR_BEFORE, s->rank, err);
    if (!status) status = own_embedding_read(&s->after, learned, DFLASH_SELECTOR_AFTER, s->rank, err);
    if (!status)
        status = learned_linear_open(learned, DFLASH_SELECTOR_HIDDEN, n_embd, s->rank, false, 1, &s->hidden, err);
    if (!status) status = learned_open_buffers(learned, buffers, ARENA_COUNT(buffers), err);
    return status ? status : arena_take(&learned->arena, items, ARENA_COUNT(items), "a selector", err);
}

void token_selector_close(TokenSelector *s) {
    if (s->rank) learned_linear_close(s->learned, s->hidden);
    own_embedding_close(&s->before);
    own_embedding_close(&s->after);
}

void token_selector_apply(TokenSelector *s, int32_t token, const float *hidden, float *logits) {
    int32_t n_vocab = s->learned->n_vocab, n = logits_top_k(logits, n_vocab, s->n_top, s->tokens);
    float kept[TOP_K_MAX];
    embedding_row(&s->before.tensor, token, s->vector);
    learned_write(s->state, 0, hidden, s->n_embd);
    learned_linear(s->learned, s->hidden, LINEAR_SET, s->state, 1, s->gate);
    buffer_pull(s->gate, 0, s->rank);
    for (int32_t r = 0; r < s->rank; r++) s->vector[r] *= s->gate->floats[r];
    for (int32_t i = 0; i < n; i++) {
        kept[i] = logits[s->tokens[i]];
        embedding_row(&s->after.tensor, s->tokens[i], s->candidate);
        for (int32_t r = 0; r < s->rank; r++) kept[i] += s->vector[r] * s->candidate[r];
    }
    for (int32_t i = 0; i < n_vocab; i++) logits[i] = -INFINITY;
    for (int32_t i = 0; i < n; i++) logits[s->tokens[i]] = kept[i];
}
