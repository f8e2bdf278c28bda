/* token_trie.c - sorts the tokens of a vocabulary by their bytes, and lays a trie over them.
 *
 * Sorted, the tokens that begin with the same bytes are neighbours. So a branch is a range of ranks, which a mask takes
 * or leaves as a whole. For branches that are worth it, the trie knows which characters occur below (automaton_runs.c has
 * the other half).
 *
 * Control tokens are not in the trie: a grammar is about text. */
#include "grammar/token_subset.h"

#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

enum { MIN_BRANCH = 6 }; /* nodes below, from which on a branch is described */

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

/* Sorts tokens into text, controls and ends. */
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

/* ---- the nodes over sorted tokens -------------------------------------------------------------------------------- */

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

/* With l->nodes NULL it only counts them. */
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

/* A node's branch ends where the next one at its depth or above begins; `open` holds the latest of each depth. */
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

bool trie_level_make(TrieLevel *l, const Tokenizer *tokenizer) {
    size_t n = add_nodes(l, tokenizer);
    if (n >= UINT32_MAX || !(l->nodes = calloc(n + 1, sizeof *l->nodes))) return false;
    add_nodes(l, tokenizer);
    l->n_nodes = (uint32_t)n;
    l->nodes[n] = (TrieNode){.first_rank = l->n_ranked, .end = l->n_nodes + 1};
    return set_ends(l);
}

void trie_level_free(TrieLevel *l) {
    free(l->nodes);
    free(l->ranked);
    *l = (TrieLevel){0};
}

/* ---- branches ----------------------------------------------------------------------------------------------- */

static void add_branch(TrieBranch *into, const TrieBranch *below) {
    into->characters.ascii[0] |= below->characters.ascii[0];
    into->characters.ascii[1] |= below->characters.ascii[1];
    into->characters.non_ascii |= below->characters.non_ascii;
    into->is_whole = into->is_whole && below->is_whole;
    if (below->max_chars + 1 > into->max_chars) into->max_chars = below->max_chars + 1;
}

/* The bytes that a character goes on with. */
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

/* Adds the characters that begin with the lead byte and have n_left bytes to come below node i. */
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

/* ---- opening -------------------------------------------------------------------------------------------------- */

static int fill(TokenTrie *t, const Tokenizer *tokenizer, Entry *entries, fr_error *err) {
    sort_kinds(t, tokenizer, entries);
    if (!trie_level_make(&t->all, tokenizer))
        return error_memory(err, "a vocabulary", VOCAB_MAX_PIECE * sizeof *entries);
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
        t->subsets = token_subsets_new();
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
    trie_level_free(&t->all);
    token_subsets_free(t->subsets);
    free(t->branches);
    free(t->is_text);
    free(t->is_end);
    free(t->controls);
    free(t);
}
