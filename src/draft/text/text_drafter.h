/* text_drafter.h - shared by the drafters that copy from text: keeps and indexes the text of each sequence.
 *
 * A method puts a TextDrafter first in its own struct, and names these functions in its class or calls them from its
 * own. Memory: an NgramText for each sequence, which has 8 bytes for each token and a table of its distinct tokens.
 */
#ifndef TEXT_TEXT_DRAFTER_H
#define TEXT_TEXT_DRAFTER_H

#include "draft/drafter.h"
#include "draft/text/text_index.h"

typedef struct TextDrafter {
    Drafter base;
    int32_t n_vocab, max_sequences, n_ctx;
    NgramText *texts; /* [max_sequences] */
} TextDrafter;

/* Fills a zeroed struct; after a failure text_drafter_release is safe. */
int text_drafter_init(TextDrafter *d, const DrafterEnv *env, fr_error *err);
void text_drafter_release(TextDrafter *d); /* frees the texts, not the struct */
NgramText *text_drafter_text(const TextDrafter *d, int32_t sequence);

/* Functions of a DrafterClass. begin and observe index the tokens; observe_unindexed only stores them, so that matches
 * are found only in the prompt. */
int text_drafter_begin(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int text_drafter_observe(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int text_drafter_observe_unindexed(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
void text_drafter_end(Drafter *d, int32_t sequence);

/* The estimated probability of a token that followed `n_token` of the `n_all` places that match m >= 1 tokens: n_token
 * / (n_all + smoothing / m). On recorded answers a single match of m tokens in the same text is continued with
 * frequency m / (m + 2) (draft_ngram_trie.c), and a match in other answers with frequency m / (m + 6); several places
 * that agree are more reliable. `forerun replay --calibration` measures these frequencies. */
enum { TEXT_SMOOTHING = 2, HISTORY_SMOOTHING = 6 };
double text_drafter_share(int64_t n_token, int64_t n_all, int32_t m, int32_t smoothing);

#endif
