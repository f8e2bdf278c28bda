/* token_mask.h - which tokens a grammar allows in a state, and the state after one of them. */
#ifndef GRAMMAR_TOKEN_MASK_H
#define GRAMMAR_TOKEN_MASK_H

#include "grammar/states.h"
#include "grammar/token_trie.h"

/* A token is allowed if a text that the grammar matches can go on with its bytes. Tokens that end a text are allowed
 * where the text matches. Control tokens are read by their spelling in text that the grammar leaves free and where
 * it wants a mark (GrammarNode.reads_controls); they are not allowed elsewhere. */
struct TokenMask {
    int32_t n_allowed;
    uint64_t bits[]; /* [n_words of the trie] bit i: token i is allowed */
};

/* A mask that is being computed. */
typedef struct MaskWork MaskWork;

/* Finds the mask of a state, which is computed once and belongs to the states. STATES_WAIT: the quota of the states ran
 * out;
 * *work (NULL at first) then keeps what has been done for the next call. Work for another state is given up. */
int token_mask_find(MaskWork **work, GrammarStates *s, const TokenTrie *t, const GrammarState *state,
                    const TokenMask **out, fr_error *err);
void mask_work_free(MaskWork *work); /* NULL is fine; call it before the states are freed */
/* The same without a quota. NULL: it failed. */
const TokenMask *token_mask_of(GrammarStates *s, const TokenTrie *t, const GrammarState *state, fr_error *err);
/* Finds the same bits by reading each token: slow, for tests. bits: [n_words]. */
int token_mask_slow(GrammarStates *s, const TokenTrie *t, const GrammarState *state, uint64_t *bits, fr_error *err);

/* Replaces *state by the one after a token; a token that is not allowed leads to the state without places. After a
 * token that ends the text nothing is allowed either. STATES_WAIT: the quota ran out, and *state is what it was. */
int token_read(GrammarStates *s, const TokenTrie *t, int32_t token, const GrammarState **state, bool *allowed,
               fr_error *err);

/* Copies the logits of the tokens that are allowed, and writes -INFINITY for the others. */
void token_mask_apply(const TokenMask *m, const float *logits, int32_t n_vocab, float *out);

#endif
