/* text_matcher.c - finds the first occurrence of a text, byte by byte.
 *
 * Where a byte does not go on with the text, what has been read may still end with a shorter beginning of it: "<</think>" after
 * "<" has read "<" again. The borders say which beginnings these are, so that no byte is read twice. */
#include "grammar/text_matcher.h"

#include <stdlib.h>

int32_t text_matcher_next(const TextMatcher *m, int32_t k, uint8_t byte) {
    while (k > 0 && (uint8_t)m->text[k] != byte) k = m->border[k];
    return (uint8_t)m->text[k] == byte ? k + 1 : 0;
}

bool text_matcher_open(TextMatcher *m, const char *text, int32_t n) {
    *m = (TextMatcher){.text = text, .n = n, .border = calloc((size_t)n + 1, sizeof *m->border)};
    if (!m->border) return false;
    for (int32_t k = 2; k <= n; k++) m->border[k] = text_matcher_next(m, m->border[k - 1], (uint8_t)text[k - 1]);
    return true;
}

void text_matcher_close(TextMatcher *m) { free(m->border); }
