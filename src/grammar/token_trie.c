/* token_trie.c - sorts the tokens of a vocabulary by their bytes, and builds a trie over them.
 *
 * Sorted tokens that begin with the same bytes are neighbours, so a branch of the trie is a range of ranks, which a
 * mask takes or leaves as a whole. For larger branches the trie knows which characters occur below, to be compared with
 * the runs of a state (automaton_build.c).
 *
 * Control tokens are not in the trie, because a grammar describes text. */
#include "grammar/token_trie.h"
#include "text/utf8.h"
#include "text/vocab.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_BRANCH = 6 }; /* the number of nodes from which on a branch is described */

typedef struct Entry {
    const char *bytes;
    uint32_t n;
    int32_t token;
} Entry;

static int by_bytes(const void *x, const void *y) {
    const Entry *a = x, *b = y;
    uint32_t n = a->n < b->n ? a->n : b->n;
    int order = memcmp(a->bytes, b->bytes, n);
    if (order) return order;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

static void set_bit(uint64_t *bits, int32_t i) { bits[i / 64] |= (uint64_t)1 << i % 64; }

/* Divides the tokens into those with text, control tokens, and those that end a text. */
static void sort_kinds(TokenTrie *t, const Tokenizer *tokenizer, Entry *entries) {
    uint32_t n_text = 0;
    for (int32_t token = 0; token < tokenizer_n_vocab(tokenizer); token++) {
        size_t n;
        if (tokenizer_is_eog(tokenizer, token)) {
            set_bit(t->is_end, token);
            t->n_ends++;
            continue;
        }
        if (tokenizer_is_special(tokenizer, token)) {
            t->controls[t->n_controls++] = token;
            continue;
        }
        const char *bytes = tokenizer_piece(tokenizer, token, false, &n);
        if (n == 0) continue;
        set_bit(t->is_text, token);
        entries[n_text++] = (Entry){bytes, (uint32_t)n, token};
    }
    qsort(entries, n_text, sizeof *entries, by_bytes);
    for (uint32_t i = 0; i < n_text; i++) t->all.ranked[i] = entries[i].token;
    t->all.n_ranked = n_text;
}

/* ---- the nodes over sorted tokens ------------------------------------------------------------------------ */

static Entry entry_of(const TrieLevel *l, const Tokenizer *tokenizer, uint32_t rank) {
    size_t n;
    const char *bytes = tokenizer_piece(tokenizer, l->ranked[rank], false, &n);
    return (Entry){bytes, (uint32_t)n, l->ranked[rank]};
}

static uint32_t n_common(const Entry *a, const Entry *b) {
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

/* Fills the nodes, or only counts them where l->nodes is NULL. */
static size_t add_nodes(TrieLevel *l, const Tokenizer *tokenizer) {
    size_t n = 0;
    Entry before = {"", 0, -1};
    for (uint32_t rank = 0; rank < l->n_ranked; rank++) {
        Entry e = entry_of(l, tokenizer, rank);
        for (uint32_t d = n_common(&before, &e); d < e.n; d++, n++)
            if (l->nodes)
                l->nodes[n] = (TrieNode){.first_rank = rank, .depth = (uint16_t)(d + 1), .byte = (uint8_t)e.bytes[d]};
        before = e;
    }
    return n;
}

/* A node's branch ends where the next node at its depth or above begins. `open` holds the latest node of each depth. */
static bool set_ends(TrieLevel *l) {
    uint32_t *open = calloc(VOCAB_MAX_PIECE + 2, sizeof *open), n_open = 0;
    if (!open) return false;
    for (uint32_t i = 0; i <= l->n_nodes; i++) {
        uint32_t depth = i < l->n_nodes ? l->nodes[i].depth : 1;
        while (n_open >= depth) l->nodes[open[--n_open]].end = i;
        open[n_open++] = i;
    }
    free(open);
    return true;
}

static bool level_make(TrieLevel *l, const Tokenizer *tokenizer) {
    size_t n = add_nodes(l, tokenizer);
    if (n >= UINT32_MAX || !(l->nodes = calloc(n + 1, sizeof *l->nodes))) return false;
    add_nodes(l, tokenizer);
    l->n_nodes = (uint32_t)n;
    l->nodes[n] = (TrieNode){.first_rank = l->n_ranked, .end = l->n_nodes + 1};
    return set_ends(l);
}

static void level_free(TrieLevel *l) {
    free(l->nodes);
    free(l->ranked);
    *l = (TrieLevel){0};
}

/* ---- branches -------------------------------------------------------------------------------------------- */

static void add_branch(TrieBranch *into, const TrieBranch *below) {
    into->characters.ascii[0] |= below->characters.ascii[0];
    into->characters.ascii[1] |= below->characters.ascii[1];
    into->characters.non_ascii |= below->characters.non_ascii;
    into->is_whole = into->is_whole && below->is_whole;
    if (below->max_chars + 1 > into->max_chars) into->max_chars = below->max_chars + 1;
}

/* Returns how many bytes follow the first byte of a character; -1: no character begins so. */
static int n_following(uint8_t lead) {
    return lead < 0xC2 ? -1 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : lead < 0xF5 ? 3 : -1;
}

static bool may_follow(uint8_t lead, bool is_second, uint8_t byte) {
    uint8_t lo = 0x80, hi = 0xBF;
    if (is_second && lead == 0xE0) lo = 0xA0;
    if (is_second && lead == 0xED) hi = 0x9F;
    if (is_second && lead == 0xF0) lo = 0x90;
    if (is_second && lead == 0xF4) hi = 0x8F;
    return byte >= lo && byte <= hi;
}

/* Adds the characters that begin with the lead byte and of which n_left bytes are below node i. */
static void add_characters(TrieBranch *into, const TokenTrie *t, const TrieBranch *all, uint32_t i, uint8_t lead,
                           int n_left, bool is_second) {
    if (n_left == 0) {
        add_branch(into, &all[i]);
        into->characters.non_ascii = true;
        return;
    }
    if (t->all.nodes[i].first_rank != t->all.nodes[i + 1].first_rank) into->is_whole = false; /* a token ends here */
    for (uint32_t k = i + 1; k < t->all.nodes[i].end && into->is_whole; k = t->all.nodes[k].end)
        if (may_follow(lead, is_second, t->all.nodes[k].byte)) add_characters(into, t, all, k, lead, n_left - 1, false);
        else into->is_whole = false;
}

static void describe(const TokenTrie *t, TrieBranch *all, uint32_t i) {
    TrieBranch b = {.is_whole = true};
    for (uint32_t k = i + 1; k < t->all.nodes[i].end && b.is_whole; k = t->all.nodes[k].end) {
        uint8_t byte = t->all.nodes[k].byte;
        int n = n_following(byte);
        if (byte < 0x80) {
            b.characters.ascii[byte / 64] |= (uint64_t)1 << byte % 64;
            add_branch(&b, &all[k]);
        } else if (n < 0) b.is_whole = false;
        else add_characters(&b, t, all, k, byte, n, true);
    }
    all[i] = b;
}

static int make_branches(TokenTrie *t, fr_error *err) {
    TrieBranch *all = calloc(t->all.n_nodes + (size_t)1, sizeof *all);
    if (!all) return error_memory(err, "a vocabulary", (t->all.n_nodes + (size_t)1) * sizeof *all);
    uint32_t n = 1;
    for (uint32_t i = t->all.n_nodes; i-- > 0;) describe(t, all, i);
    for (uint32_t i = 0; i < t->all.n_nodes; i++) n += t->all.nodes[i].end - i > MIN_BRANCH && all[i].is_whole;
    t->branches = calloc(n, sizeof *t->branches);
    t->n_branches = 1;
    for (uint32_t i = 0; i < t->all.n_nodes && t->branches; i++) {
        if (t->all.nodes[i].end - i <= MIN_BRANCH || !all[i].is_whole) continue;
        t->all.nodes[i].branch = t->n_branches;
        t->branches[t->n_branches++] = all[i];
    }
    free(all);
    t->n_bytes += n * sizeof *t->branches;
    return t->branches ? FR_OK : error_memory(err, "a vocabulary", n * sizeof *t->branches);
}

/* ---- subsets ---------------------------------------------------------------------------------------------
 *
 * In the middle of a JSON string the tokens without quotes, backslashes and control characters are allowed whatever
 * the rest of the grammar is: nine of ten. They are the same for every schema, so they are collected once for a
 * model, and a mask begins with their bits. Only the other tokens are walked through (token_mask.c). Where the
 * number of characters is limited, the longest tokens are read one by one. */

enum { MAX_SUBSETS = 16 };

typedef struct TokenSubsets {
    pthread_mutex_t lock;
    int n, n_tried;
    CharRun tried[MAX_SUBSETS]; /* sets without a subset, because it would not pay */
    TokenSubset subsets[MAX_SUBSETS];
} TokenSubsets;

static TokenSubsets *subsets_new(void) {
    TokenSubsets *s = calloc(1, sizeof *s);
    if (s) pthread_mutex_init(&s->lock, NULL);
    return s;
}

static void free_subset(TokenSubset *s) {
    free(s->bits);
    free(s->longest);
    level_free(&s->others);
}

static void subsets_free(TokenSubsets *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) free_subset(&s->subsets[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static bool equal(const CharRun *a, const CharRun *b) {
    return a->ascii[0] == b->ascii[0] && a->ascii[1] == b->ascii[1] && a->non_ascii == b->non_ascii;
}

/* Returns the number of characters of a text if all of them are in the set; otherwise -1. */
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

/* False: the subset would not pay, or memory ran out. */
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
    if (fits && s->n_tokens > t->all.n_ranked / 2 && level_make(&s->others, t->tokenizer)) return true;
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

/* ---- opening --------------------------------------------------------------------------------------------- */

static int fill(TokenTrie *t, const Tokenizer *tokenizer, Entry *entries, fr_error *err) {
    sort_kinds(t, tokenizer, entries);
    if (!level_make(&t->all, tokenizer)) return error_memory(err, "a vocabulary", VOCAB_MAX_PIECE * sizeof *entries);
    t->n_bytes += (t->all.n_nodes + (size_t)1) * sizeof *t->all.nodes;
    return make_branches(t, err);
}

int token_trie_open(TokenTrie **out, const Tokenizer *tokenizer, int32_t n_vocab, fr_error *err) {
    size_t n = (size_t)tokenizer_n_vocab(tokenizer);
    TokenTrie *t = calloc(1, sizeof *t);
    Entry *entries = malloc((n + 1) * sizeof *entries);
    *out = NULL;
    int status = FR_OK;
    if (t) {
        t->tokenizer = tokenizer;
        t->n_vocab = n_vocab;
        t->n_words = ((size_t)n_vocab + 63) / 64;
        t->is_text = calloc(t->n_words, sizeof *t->is_text);
        t->is_end = calloc(t->n_words, sizeof *t->is_end);
        t->all.ranked = malloc((n + 1) * sizeof *t->all.ranked);
        t->controls = malloc((n + 1) * sizeof *t->controls);
        t->subsets = subsets_new();
        t->n_bytes = sizeof *t + 2 * t->n_words * sizeof *t->is_text + 2 * (n + 1) * sizeof *t->controls;
    }
    if (!t || !entries || !t->is_text || !t->is_end || !t->all.ranked || !t->controls || !t->subsets)
        status = error_memory(err, "a vocabulary", (n + 1) * sizeof *entries);
    if (!status) status = fill(t, tokenizer, entries, err);
    free(entries);
    if (status) token_trie_close(t);
    else *out = t;
    return status;
}

void token_trie_close(TokenTrie *t) {
    if (!t) return;
    level_free(&t->all);
    subsets_free(t->subsets);
    free(t->branches);
    free(t->is_text);
    free(t->is_end);
    free(t->controls);
    free(t);
}
