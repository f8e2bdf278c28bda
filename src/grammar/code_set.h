/* code_set.h - sets of Unicode code points, and the byte sequences of UTF-8 that they are. */
#ifndef GRAMMAR_CODE_SET_H
#define GRAMMAR_CODE_SET_H

#include "base/work.h"

enum { CODE_MAX = 0x10FFFF };

typedef struct CodeRange {
    uint32_t lo, hi;
} CodeRange;

/* Ascending, apart from each other; zero-initialise. Surrogates may be in a set, but have no byte sequences. */
typedef struct CodeSet {
    CodeRange *ranges;
    int32_t n, capacity;
} CodeSet;

void code_set_add(Work *w, CodeSet *s, uint32_t lo, uint32_t hi);
void code_set_add_set(Work *w, CodeSet *s, const CodeSet *more);
CodeSet code_set_negate(Work *w, const CodeSet *s);
CodeSet code_set_minus(Work *w, const CodeSet *a, const CodeSet *b);
bool code_set_has(const CodeSet *s, uint32_t code);

/* A sequence of 1 to 4 ranges of bytes. */
typedef struct ByteRanges {
    int n;
    uint8_t lo[4], hi[4];
} ByteRanges;

/* Calls emit for sequences that together are exactly the UTF-8 of the code points lo..hi. */
void code_range_bytes(uint32_t lo, uint32_t hi, void (*emit)(void *user, const ByteRanges *bytes), void *user);
/* Writes the UTF-8 of one code point; returns its length. A surrogate is written as U+FFFD. */
int code_write(uint32_t code, char out[4]);

#endif
