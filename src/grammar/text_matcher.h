/* text_matcher.h - finds the first occurrence of a text, byte by byte (Knuth, Morris and Pratt 1977).
 *
 * The state is the number of bytes of the text that the bytes read so far end with; n: the text has come. */
#ifndef GRAMMAR_TEXT_MATCHER_H
#define GRAMMAR_TEXT_MATCHER_H

#include <stdint.h>

typedef struct TextMatcher {
    const char *text; /* [n] borrowed */
    int32_t n;
    int32_t *border; /* [n + 1] borrowed; of the first k bytes, the longest proper beginning that is also their end */
} TextMatcher;

void text_matcher_init(TextMatcher *m, const char *text, int32_t n, int32_t *border); /* n > 0 */
/* The state after one more byte; from a state k < n. */
int32_t text_matcher_next(const TextMatcher *m, int32_t k, uint8_t byte);

#endif
