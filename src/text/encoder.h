/* encoder.h - what the parts of the tokenizer share: merging, the two kinds of BPE, pre-tokenizers and the search
 * for special tokens. Only src/text, forerun convert and tests include it; the others use tokenizer.h. */
#ifndef TEXT_ENCODER_H
#define TEXT_ENCODER_H

#include "base/hash.h"
#include "base/mem.h"
#include "text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- merging neighbours, the best pair first (pair_merge.c) ------------------------------------------------------ */

/* A span text[at..at+n) of the text that is being merged. n = 0: it was merged into its left neighbour. */
typedef struct MergeSymbol {
    uint32_t at, n;
    int32_t prev, next; /* indices of its neighbours; -1: it has none */
    int32_t id;         /* chosen by the caller; -1: it has none */
} MergeSymbol;

typedef struct MergeCandidate {
    uint64_t key; /* priority << 32 | index of the left symbol; the smallest key is merged first */
    int32_t right, result;
    uint32_t n; /* the bytes of both symbols; the candidate is out of date when they have another sum */
} MergeCandidate;

/* The working memory of one thread, which is used again for each word. Zero-initialise it. After merger_run, the
 * result is the list that begins with symbols[0] and follows `next`. */
typedef struct Merger {
    MergeSymbol *symbols;
    MergeCandidate *heap;
    size_t n_symbols, symbols_capacity;
    size_t n_heap, heap_capacity;
} Merger;

/* Whether two neighbours may be merged (left->at + left->n == right->at). If so, it sets *priority, of which the
 * smallest is merged first, and *result, the id of the merged symbol. */
typedef bool (*MergePairFn)(const void *ctx, const char *text, const MergeSymbol *left, const MergeSymbol *right,
                            uint32_t *priority, int32_t *result);

void merger_clear(Merger *m);
bool merger_add(Merger *m, uint32_t at, uint32_t n, int32_t id); /* appends a symbol; false: no memory */
/* Makes each character of text[at..end) a symbol, and each byte that is not UTF-8. */
bool merger_add_characters(Merger *m, const Vocab *v, const char *text, size_t at, size_t end);
bool merger_run(Merger *m, const char *text, MergePairFn pair, const void *ctx); /* false: no memory */
void merger_close(Merger *m);

/* ---- one call of tokenizer_encode -------------------------------------------------------------------------------- */

/* The tokens so far, and working memory. */
typedef struct Encoding {
    int32_t *ids; /* malloc'ed */
    int64_t n, capacity;
    Merger merger;
    Buf text;        /* the normalised text of SPM, or the copy that a pre-tokenizer matches */
    Buf unmarked;    /* BPE over characters: the text with spaces for U+2581 */
    size_t *ends[2]; /* the ends of the pieces that a pre-tokenizer cuts: its patterns use two lists in turn */
    size_t n_ends[2], ends_capacity[2];
} Encoding;

bool encoding_add(Encoding *e, int32_t id); /* false: no memory */
/* Adds the tokens of bytes that are no piece: their byte tokens if the vocabulary has them; otherwise its unknown
 * token, once for a run of such bytes; otherwise nothing. *unknown_run says that such a run has begun. */
bool encoding_add_bytes(Encoding *e, const Vocab *v, const char *bytes, size_t n, bool *unknown_run);
void encoding_close(Encoding *e); /* frees everything but ids */

/* Copies text[0..n) with a space for each U+2581, which vocabularies write for a space. Returns the length of the
 * copy. */
size_t marks_to_spaces(const char *text, size_t n, char *out);

/* ---- pre-tokenizers: the words that BPE may merge within (pretokenizer.c) ---------------------------------------- */

enum { PRE_MAX_PATTERNS = 6 };

/* Conventions that the name of a pre-tokenizer implies. */
enum {
    PRE_ADDS_BOS = 1,         /* a prompt begins with BOS unless the file says otherwise */
    PRE_IGNORES_MERGES = 2,   /* a word that is a token is that token, even if no merges lead to it */
    PRE_READS_CHARACTERS = 4, /* pieces are spelled in UTF-8 with U+2581 for a space, as SentencePiece spells them */
    PRE_NEWLINES_WHOLE = 8,   /* a run of newlines that is a token is that token */
};

/* The pre-tokenizers that cut texts alike. */
typedef struct PreFamily {
    const char *names;     /* their names in GGUF files, separated by spaces */
    unsigned flags;        /* PRE_* */
    const char *published; /* the only pattern as tokenizer.json has it; NULL: it is the same as patterns[0] */
    const char *patterns[PRE_MAX_PATTERNS]; /* for PCRE2; each is applied to the pieces that the one before has cut */
} PreFamily;

extern const PreFamily pre_families[];
extern const size_t pre_n_families;

typedef struct Pretokenizer Pretokenizer; /* immutable after it was opened */

/* `name` is the value of tokenizer.ggml.pre. The error for an unknown name lists the known ones; it also contains
 * `path`. */
int pretokenizer_open(Pretokenizer **out, const char *name, size_t n, const char *path, fr_error *err);
void pretokenizer_close(Pretokenizer *p);
unsigned pretokenizer_flags(const Pretokenizer *p);         /* PRE_* */
unsigned pretokenizer_flags_of(const char *name, size_t n); /* the same by name; 0 for an unknown name */

/* Cuts text[0..n), which may be any bytes, but not empty. *ends points into e: the pieces are [0, ends[0]),
 * [ends[0], ends[1]), ... */
int pretokenizer_split(const Pretokenizer *p, const char *text, size_t n, Encoding *e, const size_t **ends,
                       size_t *n_ends, fr_error *err);

/* ---- BPE by a list of merges, over bytes or characters (bpe.c) --------------------------------------------------- */

typedef struct BpePair {
    int32_t left, right; /* symbols; left -1: the slot is free */
    uint32_t rank;
    int32_t result;
} BpePair;

/* A symbol below the size of the vocabulary is a token. The others are strings that occur only on the way to a token.
 * Zero-initialise it. */
typedef struct Bpe {
    Pretokenizer *pre;
    BpePair *pairs; /* a hash table with open addressing; n_slots is a power of two */
    size_t n_slots;
    HashKey key; /* the key of the hashes of pairs */
    char *bytes; /* the texts of the merges; keys of v->by_text are here, too: bpe_close makes the vocabulary invalid */
    int32_t n_symbols;
    int32_t byte_symbol[256];
} Bpe;

/* Reads tokenizer.ggml.merges and tokenizer.ggml.pre. Adds the strings that are no tokens to v->by_text, and sets
 * v->adds_bos if the file does not say. */
int bpe_open(Bpe *b, Vocab *v, const Gguf *g, fr_error *err);
void bpe_close(Bpe *b);
/* Appends the tokens of text[0..n), 0 < n < 2^31. */
int bpe_encode(const Bpe *b, const Vocab *v, const char *text, size_t n, Encoding *e, fr_error *err);

/* ---- BPE by the scores of pieces (spm.c) ------------------------------------------------------------------------- */

/* Appends the tokens of text[0..n), n < 2^31. `prefixed` puts a space before the text. */
int spm_encode(const Vocab *v, const char *text, size_t n, bool prefixed, Encoding *e, fr_error *err);

/* ---- the special tokens of a vocabulary (vocab_special.c) -------------------------------------------------------- */

/* Finds the special tokens of a vocabulary whose pieces and types have been read, corrects their types, and sets what
 * the file says about BOS, EOS and a space before a text. types_given: the file lists the types of its tokens. */
int vocab_read_special(Vocab *v, const Gguf *g, bool types_given, fr_error *err);

/* ---- special tokens in a text (tokenizer.c) ---------------------------------------------------------------------- */

typedef struct SpecialPiece {
    Piece piece; /* borrowed from the Vocab */
    int32_t id;
} SpecialPiece;

typedef struct SpecialSet {
    SpecialPiece *sorted; /* by bytes, then by id */
    int32_t n;
    int32_t first[257]; /* sorted[first[c]..first[c + 1]) begin with byte c */
} SpecialSet;

/* Collects the user-defined tokens, and with `all` also control and unknown tokens. Zero-initialise the set. */
int special_set_open(SpecialSet *s, const Vocab *v, bool all, fr_error *err);
void special_set_close(SpecialSet *s);
/* Returns the position of the first special token in text[from..n), or n, if there is none. The longest one at that
 * position counts. */
size_t special_set_find(const SpecialSet *s, const char *text, size_t n, size_t from, int32_t *id, size_t *n_bytes);

#endif
