/* utf8.h - recognises well-formed UTF-8, and beginnings of it (Unicode 15, table 3-7). */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H

#include <stddef.h>

/* How many bytes of p[0..n) begin one well-formed character, and in *need how many that character has.
 * The character is whole when both are equal; 0 (with *need 0) when p[0] can begin none or n is 0. What is
 * returned for a broken character is the length of its "maximal subpart", which stands for one U+FFFD. */
size_t utf8_scan(const char *p, size_t n, size_t *need);

#endif
