/* hot_tokens.h - the most frequent tokens of training data. */
#ifndef DATA_HOT_TOKENS_H
#define DATA_HOT_TOKENS_H

#include "train/data/sequences.h"

/* The n most frequent of n_vocab tokens in the sequences, ties going to the lower id. *out lists them in ascending
 * order and is freed with mem_free. 1 <= n <= n_vocab. */
int hot_tokens_choose(const Sequences *s, int32_t n_vocab, int32_t n, int32_t **out, fr_error *err);

#endif
