/* detokenizer.h - turns a stream of token ids into text, in whole characters. */
#ifndef TEXT_DETOKENIZER_H
#define TEXT_DETOKENIZER_H

#include "text/tokenizer.h"

/* The longest piece (1024 bytes) and the bytes held before, each of them invalid and written as U+FFFD. */
enum { DETOKENIZER_MAX_TEXT = 3 * (1024 + 4) };

/* Holds back at most the 3 bytes of an unfinished UTF-8 character. Bytes that can never become one come
 * out as U+FFFD. Zero-initialise with the tokenizer set. */
typedef struct Detokenizer {
    const Tokenizer *tokenizer;
    bool with_special; /* print control tokens too */
    bool strip_space;  /* drop the space that encoding put before the first word; cleared by
                        * the first text */
    char held[4];
    int n_held;
    char text[DETOKENIZER_MAX_TEXT]; /* what the last call returned */
    int n_text;
} Detokenizer;

/* The text that `token` completes; borrowed until the next call. Never half a character. */
const char *detokenizer_next(Detokenizer *d, int32_t token, size_t *n_bytes);
/* The bytes still held at the end of a text, as U+FFFD; usually none. */
const char *detokenizer_finish(Detokenizer *d, size_t *n_bytes);

#endif
