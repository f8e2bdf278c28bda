/* utf8.c - recognises UTF-8 by the table of well-formed byte sequences in the Unicode standard. */
#include "text/utf8.h"

size_t utf8_scan(const char *p, size_t n, size_t *need) {
    *need = 0;
    if (n == 0) return 0;
    unsigned char lead = (unsigned char)p[0];
    /* Only the second byte has special bounds: they exclude overlong forms, surrogates, and code points above
     * U+10FFFF. */
    unsigned char low = 0x80, high = 0xBF;
    if (lead < 0x80) return *need = 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    *need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    size_t got = 1;
    for (; got < n && got < *need; got++) {
        unsigned char c = (unsigned char)p[got];
        if (c < low || c > high) break;
        low = 0x80;
        high = 0xBF;
    }
    return got;
}
