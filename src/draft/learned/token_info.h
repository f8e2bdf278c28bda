/* token_info.h - the influence of a token on the next one, added to a drafter's logits: Lyanna's E'.
 *
 *   H hidden size, d rank, n number of tokens that have info: those of <method>.hot_tokens, or the whole vocabulary
 *
 * Keys of a drafter's file, after "forerun-drafter." (layer_names.h has the names):
 *   <method>.token_info.rank     d; 0, or the key is missing: the file has no token info
 *   <method>.hot_tokens          optional; array of I32, ascending: the only tokens that have info, and whose logits it changes
 * Tensors, if d > 0:
 *   <method>.token_info.down.weight [d][H], .up.weight [n][d], .gain [n]
 */
#ifndef LEARNED_TOKEN_INFO_H
#define LEARNED_TOKEN_INFO_H

#include "draft/learned/learned.h"

typedef enum TokenInfoForm {
    TOKEN_INFO_F16,     /* a table of halves */
    TOKEN_INFO_Q8,      /* a table of Q8_0 blocks, slightly more than half as large */
    TOKEN_INFO_FACTORS, /* no table: the factors are multiplied on demand */
} TokenInfoForm;

typedef struct TokenInfo {
    LearnedDrafter *learned; /* borrowed: file, target, products */
    const char *method;      /* of the file; borrowed */
    TokenInfoForm form;
    int32_t n;                         /* number of tokens that have info; 0: the file has no token info */
    int32_t *hot;                      /* [n] these tokens, ascending; NULL: the whole vocabulary */
    int32_t *index_of;                 /* [n_vocab] index in hot, or -1; NULL likewise */
    float *gain;                       /* [n] */
    Linear *down, *up;                 /* [d][H], [n][d]; closed once the table is computed */
    Lookup *table;                     /* [n][n] */
    float *embeddings, *narrow, *wide; /* [TOKEN_INFO_BATCH][H], [d], [n] */
} TokenInfo;

enum { TOKEN_INFO_BATCH = 64, TOKEN_INFO_MAX_RANK = 1 << 16 };

/* Reads the factors and hot tokens of the open file of that method and computes the table; a file without token info
 * is allowed. Refuses a table larger than TOKEN_INFO_MAX_BYTES. After a failure token_info_close is safe on a zeroed
 * struct. */
#define TOKEN_INFO_MAX_BYTES ((size_t)4 << 30)
int token_info_open(TokenInfo *t, LearnedDrafter *learned, const char *method, TokenInfoForm form, fr_error *err);
void token_info_close(TokenInfo *t);

/* rows[i] [n_vocab] += the info of tokens[i], if it has one. n <= TOKEN_INFO_BATCH. */
void token_info_add(TokenInfo *t, const int32_t *tokens, int32_t n, float *rows);

#endif
