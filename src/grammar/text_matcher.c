/* text_matcher.c - finds the first occurrence of a text, byte by byte.
 *
 * Where a byte does not go on with the text, what has been read may still end with a shorter beginning of it: "<</think>" after
 * "<" has read "<" again. The borders say which beginnings these are, so that no byte is read twice. */
#include "grammar/text_matcher.h"

int32_t text_matcher_next(const TextMatcher *m, int32_t k, uint8_t byte) {
    while (k > 0 && (uint8_t)m->text[k] != byte) k = m->border[k];
    return (uint8_t)m->text[k] == byte ? k + 1 : 0;
}

void text_matcher_init(TextMatcher *m, const char *text, int32_t n, int32_t *border) {
    *m = (TextMatcher){.text = text, .n = n, .border = border};
    border[0] = border[1] = 0;
    for (int32_t k = 2; k <= n; k++) border[k] = text_matcher_next(m, border[k - 1], (uint8_t)text[k - 1]);
}
