/* pre_patterns.h - the published pre-tokenizers by their GGUF names. */
#ifndef TEXT_PRE_PATTERNS_H
#define TEXT_PRE_PATTERNS_H

#include <stdbool.h>
#include <stddef.h>

enum { PRE_MAX_PATTERNS = 6 };

typedef struct PreFamily {
    const char *names; /* separated by spaces */
    bool ignores_merges, adds_bos;
    const char *patterns[PRE_MAX_PATTERNS]; /* PCRE2, applied in turn to the pieces of the one before */
} PreFamily;

extern const PreFamily pre_families[];
extern const size_t pre_n_families;

#endif
