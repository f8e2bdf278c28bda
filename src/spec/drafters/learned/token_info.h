/* token_info.h - what the token before tells about the next one, added to a drafter's logits: Lyanna's E'.
 *
 *   H hidden size, d rank, n the tokens that have info: those of <method>.hot_tokens, or the whole vocabulary
 *
 * Keys of a drafter's file, behind "forerun-drafter.":
 *   <method>.token_info.rank     d; 0, or no such key: the file has no token info
 *   <method>.hot_tokens          optional; array of I32, rising: the only tokens that give and get info
 * Tensors, where d > 0:
 *   <method>.token_info.down.weight [d][H], .up.weight [n][d], .gain [n]
 */
#ifndef LEARNED_TOKEN_INFO_H
#define LEARNED_TOKEN_INFO_H

#include "spec/drafters/learned/learned.h"

typedef enum TokenInfoForm {
    TOKEN_INFO_F16,     /* a table of halves */
    TOKEN_INFO_Q8,      /* a table of Q8_0 blocks, just over half as large */
    TOKEN_INFO_FACTORS, /* no table: multiplied when it is needed */
} TokenInfoForm;

typedef struct TokenInfo {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    const char *method;      /* whose file; borrowed */
    TokenInfoForm form;
    int32_t n;               /* tokens that give and get info; 0: there is none */
    int32_t *hot;            /* [n] which, rising; NULL: all of the vocabulary */
    int32_t *place_of;       /* [n_vocab] place in hot, or -1; NULL likewise */
    float *gain;             /* [n] */
    Linear *down, *up;       /* [d][H], [n][d]; closed once the table is there */
    Lookup *table;           /* [n][n] */
    float *embeddings, *narrow, *wide; /* [TOKEN_INFO_BATCH][H], [d], [n] */
} TokenInfo;

enum { TOKEN_INFO_BATCH = 64, TOKEN_INFO_MAX_RANK = 1 << 16 }; /* tokens of one call at most */

/* Reads the factors and hot tokens of the open file of that method, and makes the table; a file without token info opens too. Refuses a
 * table beyond TOKEN_INFO_MAX_BYTES, naming the remedy. After a failure token_info_close is safe on a zeroed struct. */
#define TOKEN_INFO_MAX_BYTES ((size_t)4 << 30)
int token_info_open(TokenInfo *t, LearnedDrafter *learned, const char *method, TokenInfoForm form, fr_error *err);
void token_info_close(TokenInfo *t);

/* rows[i] += what tokens[i] tells, [n_vocab] each; nothing where there is no info. */
void token_info_add(TokenInfo *t, const int32_t *tokens, int32_t n, float *rows);

#endif
