/* token_subset.c - the tokens that consist of given characters, and a trie of all others.
 *
 * In the middle of a JSON string the tokens without quotes, backslashes and control characters are allowed whatever the rest
 * of the grammar is: nine of ten. They are the same for every schema, so they are collected once for a model, and a mask
 * begins with their bits. Only the others, with quotes mostly, are walked through (token_mask.c). Where the number of
 * characters is limited, the longest tokens are looked at one by one. */
#include "grammar/token_subset.h"

#include "text/utf8.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SUBSETS = 16 };

struct TokenSubsets {
    pthread_mutex_t lock;
    int n, n_tried;
    CharRun tried[MAX_SUBSETS]; /* sets that were not worth it */
    TokenSubset subsets[MAX_SUBSETS];
};

TokenSubsets *token_subsets_new(void) {
    TokenSubsets *s = calloc(1, sizeof *s);
    if (s) pthread_mutex_init(&s->lock, NULL);
    return s;
}

static void free_subset(TokenSubset *s) {
    free(s->bits);
    free(s->longest);
    trie_level_free(&s->others);
}

void token_subsets_free(TokenSubsets *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) free_subset(&s->subsets[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static bool equal(const CharRun *a, const CharRun *b) {
    return a->ascii[0] == b->ascii[0] && a->ascii[1] == b->ascii[1] && a->non_ascii == b->non_ascii;
}

/* The characters of a text if all are in the set; else -1. */
static int count_characters(const CharRun *set, const char *text, size_t n) {
    int n_chars = 0;
    for (size_t i = 0; i < n; n_chars++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 128) {
            if (!(set->ascii[c / 64] >> c % 64 & 1)) return -1;
            i++;
            continue;
        }
        size_t need, got = utf8_scan(text + i, n - i, &need);
        if (!set->non_ascii || need == 0 || got != need) return -1;
        i += need;
    }
    return n_chars;
}

typedef struct Counted {
    int32_t token, n_chars;
} Counted;

static int by_length(const void *x, const void *y) {
    const Counted *a = x, *b = y;
    if (a->n_chars != b->n_chars) return a->n_chars > b->n_chars ? -1 : 1;
    return a->token < b->token ? -1 : 1;
}

/* Divides the tokens into those of the set and the others. */
static void divide(const TokenTrie *t, TokenSubset *s, Counted *counted) {
    for (uint32_t rank = 0; rank < t->all.n_ranked; rank++) {
        size_t n;
        int32_t token = t->all.ranked[rank];
        const char *text = tokenizer_piece(t->tokenizer, token, false, &n);
        int n_chars = count_characters(&s->characters, text, n);
        if (n_chars < 0) {
            s->others.ranked[s->others.n_ranked++] = token;
            continue;
        }
        s->bits[token / 64] |= (uint64_t)1 << token % 64;
        counted[s->n_tokens++] = (Counted){token, n_chars};
        for (int k = 0; k < n_chars && k <= SUBSET_MAX_CHARS; k++) s->n_longer[k]++;
    }
    qsort(counted, s->n_tokens, sizeof *counted, by_length);
    for (uint32_t i = 0; i < s->n_tokens; i++) s->longest[i] = counted[i].token;
}

/* False: it is not worth it, or memory ran out. */
static bool make_subset(const TokenTrie *t, TokenSubset *s, const CharRun *characters) {
    size_t n = t->all.n_ranked + (size_t)1;
    *s = (TokenSubset){.characters = *characters};
    s->bits = calloc(t->n_words, sizeof *s->bits);
    s->longest = malloc(n * sizeof *s->longest);
    s->others.ranked = malloc(n * sizeof *s->others.ranked);
    Counted *counted = malloc(n * sizeof *counted);
    bool fits = s->bits && s->longest && s->others.ranked && counted;
    if (fits) divide(t, s, counted);
    free(counted);
    if (fits && s->n_tokens > t->all.n_ranked / 2 && trie_level_make(&s->others, t->tokenizer)) return true;
    free_subset(s);
    return false;
}

static const TokenSubset *find_or_make(const TokenTrie *t, TokenSubsets *s, const CharRun *characters) {
    for (int i = 0; i < s->n; i++)
        if (equal(&s->subsets[i].characters, characters)) return &s->subsets[i];
    for (int i = 0; i < s->n_tried; i++)
        if (equal(&s->tried[i], characters)) return NULL;
    if (s->n == MAX_SUBSETS || s->n_tried == MAX_SUBSETS) return NULL;
    if (make_subset(t, &s->subsets[s->n], characters)) return &s->subsets[s->n++];
    s->tried[s->n_tried++] = *characters;
    return NULL;
}

const TokenSubset *token_subset_of(const TokenTrie *t, const CharRun *characters) {
    int n_ascii = __builtin_popcountll(characters->ascii[0]) + __builtin_popcountll(characters->ascii[1]);
    if (n_ascii < 64) return NULL; /* most tokens have other characters */
    pthread_mutex_lock(&t->subsets->lock);
    const TokenSubset *found = find_or_make(t, t->subsets, characters);
    pthread_mutex_unlock(&t->subsets->lock);
    return found;
}
