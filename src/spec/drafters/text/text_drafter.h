/* text_drafter.h - what the drafters that copy from text share: the text of each sequence, kept and fed.
 *
 * A method puts a TextDrafter first in its own struct and names these functions in its class, or calls them
 * from its own. Memory: an NgramText a sequence, 8 bytes a token and a table of its distinct tokens.
 */
#ifndef TEXT_TEXT_DRAFTER_H
#define TEXT_TEXT_DRAFTER_H

#include "spec/drafter/drafter.h"
#include "spec/drafters/text/ngram_text.h"

typedef struct TextDrafter {
    Drafter base;
    int32_t n_vocab, max_sequences, n_ctx;
    NgramText *texts; /* [max_sequences] */
} TextDrafter;

/* Fills a zeroed struct; after a failure text_drafter_release is safe. */
int text_drafter_init(TextDrafter *d, const DrafterEnv *env, fr_error *err);
void text_drafter_release(TextDrafter *d); /* the texts, not the struct */
NgramText *text_drafter_text(const TextDrafter *d, int32_t sequence);

/* For a DrafterClass. begin and observe put the tokens into the chains; observe_unindexed only keeps them,
 * so that matches are found in the prompt alone. */
int text_drafter_begin(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int text_drafter_observe(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int text_drafter_observe_unindexed(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n,
                                   fr_error *err);
void text_drafter_end(Drafter *d, int32_t sequence);

/* The estimate for a token that followed `n_token` of the `n_all` places that match m >= 1 tokens:
 * n_token / (n_all + doubt / m). A lone match of m tokens in the own text is continued with m / (m + 2) on
 * recorded answers (ngram_rule_best.c), one in other answers with m / (m + 6); places that agree are
 * believed more. Checked by `forerun replay --calibration`. */
enum { TEXT_DOUBT = 2, HISTORY_DOUBT = 6 };
double text_drafter_share(int64_t n_token, int64_t n_all, int32_t m, int32_t doubt);

#endif
