/* other_vocab.h - a model with its tokens in another order: the same function of texts, with another vocabulary. */
#ifndef TESTS_OTHER_VOCAB_H
#define TESTS_OTHER_VOCAB_H

#include <stdint.h>

/* Reads the model at `from`, which has a SentencePiece vocabulary, and writes it to `to`: token i becomes token
 * other_vocab_id(i, n), and so do the rows of its embedding and its LM head. Each `every`-th token gets a text that no
 * other vocabulary has; 0: none. */
void other_vocab_write(const char *from, const char *to, int32_t every);
/* The three special tokens keep their places, and the others are in reverse order. */
static inline int32_t other_vocab_id(int32_t i, int32_t n) { return i < 3 ? i : n + 2 - i; }

#endif
