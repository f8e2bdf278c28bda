/* lyanna_gate.c - token info gated by the state.
 *
 * The problem. Token info (token_info.c) is the same wherever a token occurs, so what follows "New" does not depend on
 * what the text is about. The chain of hidden states knows that, but no token may enter the chain.
 *
 * The idea. Both meet after the chain, in a bilinear form of low rank:
 *
 *     l' = l_s + E'(t) + U ((P h_s) * (Q E[t]))       P, Q [r][H]; U [V][r]; * is elementwise
 *
 * h_s depends on no token, so P h_s is computed once for each state of a chain and is as valid for re-sampling as l_s is.
 * Q E[t] depends on the token alone, so it is a table, computed when the file is opened.
 *
 *     P h_1 .. P h_5       one product for all chains of a proposal
 *     nodes of a level     r multiplications each, and one product with U for all of them: 4 x V x 32 for top=4, r = 32
 *
 * Proof: tests/draft/test_draft_lyanna.c, against the formula in double precision; test_train_unroll.c against the trained
 * network. */
#include "draft/learned/lyanna_gate.h"

#include "base/mem.h"
#include "draft/learned/lyanna.h"

enum { BATCH = 64 };

/* *rank stays 0 if the file has no such key. */
static int read_rank(LyannaGate *g, fr_error *err) {
    const DrafterFile *f = &g->learned->file;
    if (gguf_find_key(f->gguf, DRAFTER_KEY(LYANNA_KEY_GATE_RANK)) < 0) return FR_OK;
    return drafter_file_int(f, LYANNA_KEY_GATE_RANK, 0, LYANNA_GATE_MAX_RANK, &g->rank, err);
}

/* g->of_token = Q E[t] of all tokens. */
static int compute_table(LyannaGate *g, fr_error *err) {
    LearnedDrafter *l = g->learned;
    Linear *token = NULL;
    float *embeddings = mem_alloc((size_t)(BATCH * l->n_embd) * sizeof *embeddings);
    int32_t tokens[BATCH];
    if (!embeddings) return error_memory(err, "lyanna", (size_t)(BATCH * l->n_embd) * sizeof *embeddings);
    int status = learned_linear_open(l, LYANNA_GATE_TOKEN, l->n_embd, g->rank, false, BATCH, &token, err);
    for (int32_t first = 0; first < l->n_vocab && !status; first += BATCH) {
        int32_t n = l->n_vocab - first < BATCH ? l->n_vocab - first : BATCH;
        for (int32_t i = 0; i < n; i++) tokens[i] = first + i;
        l->backend->embed(l->weights, tokens, n, embeddings);
        learned_linear(l, token, LINEAR_SET, embeddings, n, g->of_token + (int64_t)first * g->rank);
    }
    learned_linear_close(l, token);
    mem_free(embeddings);
    return status;
}

int lyanna_gate_open(LyannaGate *g, LearnedDrafter *learned, int32_t max_states, int32_t max_tokens, fr_error *err) {
    *g = (LyannaGate){.learned = learned};
    int status = read_rank(g, err);
    if (status || g->rank == 0) return status;
    int64_t rank = g->rank;
    const ArenaItem items[] = {ARENA_ITEM(&g->of_token, learned->n_vocab * rank),
                               ARENA_ITEM(&g->products, max_tokens * rank)};
    status = arena_take(&learned->arena, items, ARENA_COUNT(items), "lyanna", err);
    if (!status)
        status = learned_linear_open(learned, LYANNA_GATE_STATE, learned->n_embd, rank, false, max_states, &g->state,
                                     err);
    if (!status)
        status = learned_linear_open(learned, LYANNA_GATE_UP, rank, learned->n_vocab, false, max_tokens, &g->up, err);
    return status ? status : compute_table(g, err);
}

void lyanna_gate_close(LyannaGate *g) {
    if (!g->learned) return; /* lyanna_gate_open was not called */
    learned_linear_close(g->learned, g->state);
    learned_linear_close(g->learned, g->up);
}

void lyanna_gate_states(LyannaGate *g, const float *hidden, int32_t n, float *states) {
    learned_linear(g->learned, g->state, LINEAR_SET, hidden, n, states);
}

void lyanna_gate_bias(LyannaGate *g, const float *state, const int32_t *tokens, int32_t n, float *rows) {
    int64_t rank = g->rank;
    for (int32_t i = 0; i < n; i++)
        for (int64_t k = 0; k < rank; k++) g->products[i * rank + k] = state[k] * g->of_token[tokens[i] * rank + k];
    learned_linear(g->learned, g->up, LINEAR_SET, g->products, n, rows);
}
