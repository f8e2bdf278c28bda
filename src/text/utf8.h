/* utf8.h - recognises well-formed UTF-8, and beginnings of it (Unicode 15, table 3-7). */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H

#include <stddef.h>

/* Returns how many bytes of p[0..n) belong to one well-formed character, and sets *need to the length of that
 * character. The character is complete if both are equal. Both are 0 if p[0] cannot begin a character, or if n is 0.
 * For an invalid sequence, the result is the length of its "maximal subpart", which one U+FFFD replaces. */
size_t utf8_scan(const char *p, size_t n, size_t *need);

#endif
