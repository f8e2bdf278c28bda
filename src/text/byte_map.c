/* byte_map.c - reads the spelling character by character; the alphabet is an arithmetic rule, so there is no table. */
#include "text/byte_map.h"

#include "text/utf8.h"

static bool stands_for_itself(unsigned c) {
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

/* The byte written as code point c, or -1. */
static int byte_of(unsigned c) {
    if (c < 256) return stands_for_itself(c) ? (int)c : -1;
    /* The k-th byte that does not stand for itself: 0..0x20 (k to 32), 0x7F..0xA0 (to 66), 0xAD (67). */
    unsigned k = c - 256;
    if (k <= 0x20) return (int)k;
    if (k <= 66) return (int)(0x7F + k - 33);
    return k == 67 ? 0xAD : -1;
}

size_t byte_map_decode(const char *spelling, size_t n, char *out, bool *pure) {
    size_t n_out = 0;
    *pure = true;
    for (size_t i = 0; i < n;) {
        size_t need, got = utf8_scan(spelling + i, n - i, &need);
        bool whole = need > 0 && got == need;
        int byte = -1;
        if (whole && need == 1) byte = byte_of((unsigned char)spelling[i]);
        else if (whole && need == 2)
            byte = byte_of(((unsigned)spelling[i] & 0x1F) << 6 | ((unsigned)spelling[i + 1] & 0x3F));
        size_t taken = whole ? need : 1;
        if (byte >= 0) out[n_out++] = (char)byte;
        else
            for (size_t j = 0; j < taken; j++) out[n_out++] = spelling[i + j];
        *pure = *pure && byte >= 0;
        i += taken;
    }
    return n_out;
}
