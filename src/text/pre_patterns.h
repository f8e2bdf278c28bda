/* pre_patterns.h - the published pre-tokenizers by their GGUF names. */
#ifndef TEXT_PRE_PATTERNS_H
#define TEXT_PRE_PATTERNS_H

#include <stdbool.h>
#include <stddef.h>

enum { PRE_MAX_PATTERNS = 6 };

/* Conventions of a family that its files do not state. */
enum {
    PRE_ADDS_BOS = 1,         /* a prompt begins with BOS unless the file says otherwise */
    PRE_IGNORES_MERGES = 2,   /* a word that is a token is taken whole, even if no merges lead to it */
    PRE_READS_CHARACTERS = 4, /* pieces are spelled in UTF-8 with U+2581 for a space, as SentencePiece spells them */
    PRE_NEWLINES_WHOLE = 8,   /* a run of newlines that is a token is taken whole */
};

typedef struct PreFamily {
    const char *names;     /* separated by spaces */
    unsigned flags;        /* PRE_* */
    const char *published; /* the only pattern of the family as its tokenizer.json has it; NULL: the same as patterns */
    const char *patterns[PRE_MAX_PATTERNS]; /* PCRE2, applied in turn to the pieces of the one before */
} PreFamily;

extern const PreFamily pre_families[];
extern const size_t pre_n_families;

#endif
