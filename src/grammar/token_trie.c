/* token_trie.c - sorts the tokens of a vocabulary by their bytes, and lays a trie over them.
 *
 * Sorted, the tokens that begin with the same bytes are neighbours. So a branch is a range of ranks, which a mask takes
 * or leaves as a whole. For branches that are worth it, the trie knows which characters occur below (automaton_runs.c has
 * the other half).
 *
 * Control tokens are not in the trie: a grammar is about text. */
#include "grammar/token_trie.h"

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

static uint32_t n_common(const Entry *a, const Entry *b) {
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

static void set_bit(uint64_t *bits, int32_t i) { bits[i / 64] |= (uint64_t)1 << i % 64; }

/* Sorts tokens into text, controls and ends. */
static void sort_kinds(TokenTrie *t, const Tokenizer *tokenizer, Entry *entries) {
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
        entries[t->n_ranked++] = (Entry){bytes, (uint32_t)n, token};
    }
    qsort(entries, t->n_ranked, sizeof *entries, by_bytes);
}

static size_t count_nodes(const Entry *entries, uint32_t n) {
    size_t n_nodes = 0;
    for (uint32_t i = 0; i < n; i++) n_nodes += entries[i].n - (i ? n_common(&entries[i - 1], &entries[i]) : 0);
    return n_nodes;
}

static void add_nodes(TokenTrie *t, const Entry *entries) {
    uint32_t n = 0;
    for (uint32_t rank = 0; rank < t->n_ranked; rank++) {
        const Entry *e = &entries[rank];
        t->ranked[rank] = e->token;
        for (uint32_t d = rank ? n_common(e - 1, e) : 0; d < e->n; d++)
            t->nodes[n++] = (TrieNode){.first_rank = rank, .depth = (uint16_t)(d + 1), .byte = (uint8_t)e->bytes[d]};
    }
    t->n_nodes = n;
    t->nodes[n] = (TrieNode){.first_rank = t->n_ranked, .end = n + 1};
}

/* A node's branch ends where the next one at its depth or above begins; `open` holds the latest of each depth. */
static bool set_ends(TokenTrie *t) {
    uint32_t *open = malloc((VOCAB_MAX_PIECE + 2) * sizeof *open), n_open = 0;
    if (!open) return false;
    for (uint32_t i = 0; i <= t->n_nodes; i++) {
        uint32_t depth = i < t->n_nodes ? t->nodes[i].depth : 1;
        while (n_open >= depth) t->nodes[open[--n_open]].end = i;
        open[n_open++] = i;
    }
    free(open);
    return true;
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
    if (t->nodes[i].first_rank != t->nodes[i + 1].first_rank) into->is_whole = false; /* a token ends here */
    for (uint32_t k = i + 1; k < t->nodes[i].end && into->is_whole; k = t->nodes[k].end)
        if (may_follow(lead, is_second, t->nodes[k].byte)) add_characters(into, t, all, k, lead, n_left - 1, false);
        else into->is_whole = false;
}

static void describe(const TokenTrie *t, TrieBranch *all, uint32_t i) {
    TrieBranch b = {.is_whole = true};
    for (uint32_t k = i + 1; k < t->nodes[i].end && b.is_whole; k = t->nodes[k].end) {
        uint8_t byte = t->nodes[k].byte;
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
    TrieBranch *all = malloc((t->n_nodes + (size_t)1) * sizeof *all);
    if (!all) return error_memory(err, "a vocabulary", (t->n_nodes + (size_t)1) * sizeof *all);
    uint32_t n = 1;
    for (uint32_t i = t->n_nodes; i-- > 0;) describe(t, all, i);
    for (uint32_t i = 0; i < t->n_nodes; i++) n += t->nodes[i].end - i > MIN_BRANCH && all[i].is_whole;
    t->branches = calloc(n, sizeof *t->branches);
    t->n_branches = 1;
    for (uint32_t i = 0; i < t->n_nodes && t->branches; i++) {
        if (t->nodes[i].end - i <= MIN_BRANCH || !all[i].is_whole) continue;
        t->nodes[i].branch = t->n_branches;
        t->branches[t->n_branches++] = all[i];
    }
    free(all);
    t->n_bytes += n * sizeof *t->branches;
    return t->branches ? FR_OK : error_memory(err, "a vocabulary", n * sizeof *t->branches);
}

/* ---- opening -------------------------------------------------------------------------------------------------- */

static int fill(TokenTrie *t, const Tokenizer *tokenizer, Entry *entries, fr_error *err) {
    sort_kinds(t, tokenizer, entries);
    size_t n_nodes = count_nodes(entries, t->n_ranked);
    if (n_nodes >= UINT32_MAX) return error_memory(err, "a vocabulary", n_nodes);
    t->nodes = calloc(n_nodes + 1, sizeof *t->nodes);
    if (!t->nodes) return error_memory(err, "a vocabulary", (n_nodes + 1) * sizeof *t->nodes);
    t->n_bytes += (n_nodes + 1) * sizeof *t->nodes;
    add_nodes(t, entries);
    if (!set_ends(t)) return error_memory(err, "a vocabulary", VOCAB_MAX_PIECE * sizeof(uint32_t));
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
        t->ranked = malloc((n + 1) * sizeof *t->ranked);
        t->controls = malloc((n + 1) * sizeof *t->controls);
        t->n_bytes = sizeof *t + 2 * t->n_words * sizeof *t->is_text + 2 * (n + 1) * sizeof *t->ranked;
    }
    if (!t || !entries || !t->is_text || !t->is_end || !t->ranked || !t->controls)
        status = error_memory(err, "a vocabulary", (n + 1) * sizeof *entries);
    if (!status) status = fill(t, tokenizer, entries, err);
    free(entries);
    if (status) token_trie_close(t);
    else *out = t;
    return status;
}

void token_trie_close(TokenTrie *t) {
    if (!t) return;
    free(t->nodes);
    free(t->branches);
    free(t->ranked);
    free(t->is_text);
    free(t->is_end);
    free(t->controls);
    free(t);
}
