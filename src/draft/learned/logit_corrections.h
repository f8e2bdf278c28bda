/* logit_corrections.h - what is added to a learned drafter's logits, or to the log-probabilities of a node's children,
 * to bring them nearer to the target's: token info, its gate, what the current text taught, a confidence head, and the
 * Markov head of DSpark with its own confidence head.
 * learned_files.h lists the keys and tensors.
 *
 *   H hidden size, V vocabulary
 *
 * Token info, gate and confidence head are read from the drafter's open file into a zeroed struct. If the file has no
 * such correction, opening succeeds, and nothing is corrected. After a failed open, close is safe. */
#ifndef LEARNED_LOGIT_CORRECTIONS_H
#define LEARNED_LOGIT_CORRECTIONS_H

#include "draft/learned/layer_entries.h"
#include "draft/learned/learned.h"
#include "draft/learned/learned_files.h"

/* ---- token info: the influence of a token on the next one ---------------------------------------------------- */

typedef enum TokenInfoForm {
    TOKEN_INFO_F16,     /* a table of 16-bit floats */
    TOKEN_INFO_Q8,      /* a table of Q8_0 blocks, slightly more than half as large */
    TOKEN_INFO_FACTORS, /* no table: the factors are multiplied on demand */
} TokenInfoForm;

/* Lyanna's E': d is its rank, n the number of tokens that have info. */
typedef struct TokenInfo {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    const char *method;      /* the file's method; borrowed */
    TokenInfoForm form;
    int32_t n;                          /* number of tokens that have info; 0: the file has no token info */
    int32_t *hot;                       /* [n] these tokens, ascending; NULL: the whole vocabulary */
    int32_t *index_of;                  /* [V] index in hot, or -1; NULL: the whole vocabulary */
    float *gain;                        /* [n] */
    Linear *down, *up;                  /* [d][H], [n][d]; closed once the table is computed */
    Lookup *table;                      /* [n][n] */
    Buffer *embeddings, *narrow, *wide; /* [TOKEN_INFO_BATCH][H], [d], [n] */
} TokenInfo;

enum { TOKEN_INFO_BATCH = 64, TOKEN_INFO_MAX_RANK = 1 << 16 };
#define TOKEN_INFO_MAX_BYTES ((size_t)4 << 30)

/* Reads the factors and the hot tokens of that method and computes the table. Refuses a table larger than
 * TOKEN_INFO_MAX_BYTES. */
int token_info_open(TokenInfo *t, LearnedDrafter *learned, const char *method, TokenInfoForm form, fr_error *err);
void token_info_close(TokenInfo *t);

/* Adds the info of tokens[i], if it has one, to rows[i] [V]. n <= TOKEN_INFO_BATCH. */
void token_info_add(TokenInfo *t, const int32_t *tokens, int32_t n, float *rows);

/* ---- the gate: token info that depends on the state ------------------------------------------------------------ */

enum { INFO_GATE_MAX_RANK = 1024 };

/* The bias on the logits after a token, gated by the hidden state; r is its rank. */
typedef struct InfoGate {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    int32_t rank;            /* 0: the file has no gate; info_gate_states and info_gate_bias may not be called */
    Linear *state, *up;      /* [r][H], [V][r] */
    float *of_token;         /* [V][r] */
    Buffer *products, *rows; /* [max_tokens][r], [max_tokens][V] */
    Buffer *states;          /* [max_states][r] */
} InfoGate;

/* Takes at most max_states states, and at most max_tokens tokens, in one call. */
int info_gate_open(InfoGate *g, LearnedDrafter *learned, int32_t max_states, int32_t max_tokens, fr_error *err);
void info_gate_close(InfoGate *g);

/* Computes g->states [n][r] from n hidden states [n][H], and copies them to the CPU's memory. */
void info_gate_states(InfoGate *g, Buffer *hidden, int32_t n);

/* Sets rows[i] [V] to the bias after tokens[i] at a state [r]. */
void info_gate_bias(InfoGate *g, const float *state, const int32_t *tokens, int32_t n, float *rows);

/* ---- live info: what a text teaches about its tokens while it is generated ------------------------------------- */

enum { LIVE_INFO_SETS = 64, LIVE_INFO_WAYS = 4, LIVE_INFO_ENTRIES = 16 };

/* The correction of the logits after one token. */
typedef struct LiveInfoRow {
    int64_t last_used; /* 0: the row is free */
    int32_t token, n;
    int32_t ids[LIVE_INFO_ENTRIES];
    float deltas[LIVE_INFO_ENTRIES];
} LiveInfoRow;

/* The corrections that one sequence has learned; they end with the request. */
typedef struct LiveInfo {
    LiveInfoRow rows[LIVE_INFO_SETS][LIVE_INFO_WAYS];
    int64_t n_learned;
} LiveInfo;

void live_info_reset(LiveInfo *l);
/* Adds the correction of what follows `token` to the logits. */
void live_info_add(const LiveInfo *l, int32_t token, float *logits);
/* Learns from the target's logits after `token` and from the logits that were drafted there, both [n_vocab]. The
 * drafted ones include the correction so far. Compares softmax(logits / temperature). */
void live_info_learn(LiveInfo *l, int32_t token, const float *target, const float *draft, int32_t n_vocab,
                     double temperature);

/* ---- the confidence head: whether the best token will be accepted ----------------------------------------------- */

#define CONFIDENCE_MAX_MARGIN 12.0 /* bound on the absolute value of logit(p) */

typedef struct Confidence {
    int32_t n_embd;
    float *weights; /* [H + CONFIDENCE_SCALARS]; NULL: the file has no such head */
} Confidence;

int confidence_open(Confidence *c, LearnedDrafter *learned, const char *method, fr_error *err);
void confidence_close(Confidence *c);

/* Returns the part of the logit that depends on the state [H]; 0 without a head. */
float confidence_of_state(const Confidence *c, const float *state);
/* Corrects the log-probabilities of a node's n most probable children, which are given best first. The best child gets
 * the probability that the head predicts, and the others are scaled to match. */
void confidence_correct(const Confidence *c, float of_state, double *log_p, int32_t n);

/* ---- the Markov head of dflash: the influence of the token before a position (markov_head.c) -------------------- */

enum { MARKOV_MAX_RANK = 4096 };

/* DSpark's heads; r is the rank, D the size of the vocabulary of the drafter's LM head. */
typedef struct MarkovHead {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    int32_t rank;            /* 0: the file has no such head, and markov_head_logits may not be called */
    int32_t n_embd, n_vocab; /* H and D */
    OwnEmbedding before;     /* [V][r] a vector of the token before */
    Linear *output;          /* [D][r] */
    Linear *gate;            /* [r][H + r]; NULL: the head is not gated */
    Linear *joint;           /* [3r][2r + H]; NULL: the head is not recurrent */
    Buffer *narrow, *wide;   /* [r], [D] */
    Buffer *inputs, *gates;  /* what gate or joint reads and gives */
    float *states;           /* [TREE_MAX_NODES][r] of a recurrent head, of each node of a tree */
    Confidence confidence;   /* reads a hidden state [H] and then, as a rule, the vector of the token before [r] */
    float *state;            /* [H + r] */
} MarkovHead;

int markov_head_open(MarkovHead *m, LearnedDrafter *learned, int32_t n_embd, int32_t n_vocab, fr_error *err);
void markov_head_close(MarkovHead *m);
/* Returns the sum of the logits [D] of a position, whose hidden state is `hidden` [H], and of what the token before it
 * adds to them, which is that of a node of a tree. Valid until the next call. A recurrent head needs the call for the
 * node's parent before. */
const float *markov_head_logits(MarkovHead *m, const Tree *t, int32_t node, const float *hidden, const float *logits);
/* Corrects the log-probabilities of the children of a node with that token (confidence_correct), given the hidden state
 * [H] of their position. */
void markov_head_correct(MarkovHead *m, int32_t token, const float *hidden, double *log_p, int32_t n);

/* ---- the selector of dflash: paths through the best tokens of each position (token_selector.c) ------------------ */

/* The selector of DFlash 2; r is its rank. */
typedef struct TokenSelector {
    LearnedDrafter *learned;     /* borrowed */
    int32_t rank, n_top, n_embd; /* rank 0: the file has no selector, and selector_apply may not be called */
    OwnEmbedding before, after;  /* [V][r] vectors of the token before, and of candidates */
    Linear *hidden;              /* [r][H] */
    Buffer *state, *gate;        /* [H], [r] */
    float *vector, *candidate;   /* [r] */
    int32_t tokens[TOP_K_MAX];   /* scratch */
} TokenSelector;

/* Opens the selector of a file, which keeps the n_top best tokens of a position. */
int token_selector_open(TokenSelector *s, LearnedDrafter *learned, int32_t n_embd, int32_t n_top, fr_error *err);
void token_selector_close(TokenSelector *s);
/* Adds to the logits [V] of the best tokens of a position what the selector says about them after `token`, given the
 * hidden state [H] of the position. The logits of all other tokens become -inf. */
void token_selector_apply(TokenSelector *s, int32_t token, const float *hidden, float *logits);

#endif
