/* lyanna_gate.h - token info that depends on the state: Lyanna's bias on the logits after a token, gated by the hidden
 * state of the chain.
 *
 *   H hidden size, V vocabulary, r rank
 *
 * Key, after "forerun-drafter.":
 *   lyanna.gate.rank             r; 0, or the key is missing: the file has no gate
 * Tensors, if r > 0:
 *   lyanna.gate.state.weight [r][H], lyanna.gate.token.weight [r][H], lyanna.gate.up.weight [V][r]
 */
#ifndef LEARNED_LYANNA_GATE_H
#define LEARNED_LYANNA_GATE_H

#include "draft/learned/learned.h"

enum { LYANNA_GATE_MAX_RANK = 1024 };

typedef struct LyannaGate {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    int32_t rank;            /* 0: the file has no gate, and no other function may be called */
    Linear *state, *up;      /* [r][H], [V][r] */
    float *of_token;         /* [V][r] */
    float *products;         /* [max_tokens][r] */
} LyannaGate;

/* Reads the open file, for at most max_states states and max_tokens tokens at a time; a file without a gate is allowed.
 * After a failure lyanna_gate_close is safe on a zeroed struct. */
int lyanna_gate_open(LyannaGate *g, LearnedDrafter *learned, int32_t max_states, int32_t max_tokens, fr_error *err);
void lyanna_gate_close(LyannaGate *g);

/* states [n][r] of n hidden states [n][H]. */
void lyanna_gate_states(LyannaGate *g, const float *hidden, int32_t n, float *states);

/* rows[i] [V] = the bias after tokens[i] at a state [r]. */
void lyanna_gate_bias(LyannaGate *g, const float *state, const int32_t *tokens, int32_t n, float *rows);

#endif
