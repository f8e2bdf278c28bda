/* token_splits.c - the ways in which a model may split a known text into tokens, as a tree.
 *
 * The problem: a grammar forces the text `"population":`, but not the tokens that it consists of. A model that was
 * trained on such texts uses the same tokens as its tokenizer. A model that was not, or that would have written
 * something else without the grammar, uses other tokens, and a chain of the tokenizer's tokens is rejected from the
 * first other token on.
 *
 * The idea: at each byte, only few tokens match the beginning of the remaining text. Each gets a probability from what
 * this request has written so far: the tokenizer's token by how often the model chose it, the other tokens by how often
 * the model chose one of that many bytes. The tree is grown best first, until the budget is used or no node is probable
 * enough.
 *
 *     population    ──┬─ population ── ":       0.94, 0.89
 *                     ├─ pop ── ulation         0.02
 *                     └─ p                      0.02
 *
 * Cost: a walk of the vocabulary's trie and one call of the tokenizer for each byte at which a node ends. */
#include "draft/text/token_splits.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CANDIDATES = 512 };
#define LEAST_CHANCE 0.01
#define HALF_WORD 0.5 /* the probability that a word at the end of the known text is complete */

void split_counts_begin(SplitCounts *c) {
    *c = (SplitCounts){.as_tokenizer = 8, .otherwise = 0.5, .by_length = {0.5, 0.5, 0.5, 0.5}};
}

static int length_class(size_t n) { return n < SPLIT_LENGTHS ? (int)n - 1 : SPLIT_LENGTHS - 1; }

void split_counts_add(SplitCounts *c, size_t n, bool is_as_tokenizer) {
    if (is_as_tokenizer) c->as_tokenizer++;
    else {
        c->otherwise++;
        c->by_length[length_class(n)]++;
    }
}

/* ---- the tokenizer's token --------------------------------------------------------------------------------------- */

/* A tokenizer that puts a blank before every text would change the known bytes. So such a tokenizer gets one more byte
 * before them, one that no token joins with the known bytes. */
int split_as_tokenizer(const Tokenizer *tokenizer, const KnownText *x, size_t at, int32_t *token, fr_error *err) {
    char text[SPLIT_MAX_BYTES + 1];
    size_t n_before = tokenizer_adds_space_prefix(tokenizer) ? 1 : 0, begin = 0, n = 0;
    text[0] = x->bytes[at] == '\n' || x->bytes[at] == ' ' ? 'x' : '\n';
    memcpy(text + n_before, x->bytes + at, x->n - at);
    int32_t *tokens;
    int64_t n_tokens, i = 0;
    int status = tokenizer_encode(tokenizer, text, n_before + x->n - at, 0, &tokens, &n_tokens, err);
    if (status) return status;
    for (; i < n_tokens; i++, begin += n) { /* the tokens of the blank and of the added byte come first */
        tokenizer_piece(tokenizer, tokens[i], false, &n);
        if (begin >= 2 * n_before && n > 0) break;
    }
    *token = i < n_tokens && begin == 2 * n_before ? tokens[i] : -1;
    free(tokens);
    return FR_OK;
}

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

typedef struct Candidate {
    int32_t parent, token;
    size_t end;   /* where the token ends in the known text */
    double split; /* the probability of the tokens up to here, given the text */
    double p;     /* `split` times the probability of the text */
} Candidate;

typedef struct Growth {
    const TokenTrie *trie;
    const SplitCounts *counts;
    const KnownText *known;
    Candidate candidates[MAX_CANDIDATES];
    int n;
} Growth;

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80);
}

static void add_candidate(Growth *w, int32_t parent, int32_t token, size_t end, double split) {
    const KnownText *x = w->known;
    double p = split * x->chance[end - 1];
    if (end == x->n && is_word(x->bytes[end - 1])) p *= HALF_WORD;
    if (p < LEAST_CHANCE || w->n == MAX_CANDIDATES) return;
    w->candidates[w->n++] = (Candidate){parent, token, end, split, p};
}

/* Chooses one of the tokens at node i of the trie: `usual` if it is among them, else the last one, because ordinary
 * tokens come after those of byte fallback. */
static int32_t token_at(const TrieLevel *l, uint32_t i, int32_t usual) {
    uint32_t end = l->nodes[i + 1].first_rank;
    for (uint32_t rank = l->nodes[i].first_rank; rank < end; rank++)
        if (l->ranked[rank] == usual) return usual;
    return l->ranked[end - 1];
}

/* Finds the tokens that known[at..] begins with, one of each length, the shortest first. Returns their number. */
static int beginnings(const TrieLevel *l, const KnownText *x, size_t at, int32_t usual, int32_t *tokens,
                      size_t *lengths) {
    uint32_t node, below = 0, end = l->n_nodes;
    int n = 0;
    for (size_t i = at; i < x->n; i++) {
        for (node = below; node < end && l->nodes[node].byte != (uint8_t)x->bytes[i]; node = l->nodes[node].end) {}
        if (node >= end) break;
        if (l->nodes[node].first_rank < l->nodes[node + 1].first_rank) {
            tokens[n] = token_at(l, node, usual);
            lengths[n++] = i + 1 - at;
        }
        below = node + 1;
        end = l->nodes[node].end;
    }
    return n;
}

static int expand(Growth *w, int32_t parent, size_t at, double split, fr_error *err) {
    int32_t tokens[SPLIT_MAX_BYTES], usual;
    size_t lengths[SPLIT_MAX_BYTES];
    const SplitCounts *c = w->counts;
    if (at == w->known->n) return FR_OK;
    int status = split_as_tokenizer(w->trie->tokenizer, w->known, at, &usual, err);
    if (status) return status;
    int n = beginnings(&w->trie->all, w->known, at, usual, tokens, lengths), i_usual = -1;
    double others = 0, as_usual = 0;
    for (int i = 0; i < n; i++)
        if (tokens[i] == usual) i_usual = i;
        else others += c->by_length[length_class(lengths[i])];
    if (i_usual >= 0) {
        as_usual = others > 0 ? c->as_tokenizer / (c->as_tokenizer + c->otherwise) : 1;
        add_candidate(w, parent, usual, at + lengths[i_usual], split * as_usual);
    }
    for (int i = 0; i < n; i++)
        if (i != i_usual)
            add_candidate(w, parent, tokens[i], at + lengths[i],
                          split * (1 - as_usual) * c->by_length[length_class(lengths[i])] / others);
    return FR_OK;
}

static Candidate take_best(Growth *w) {
    int best = 0;
    for (int i = 1; i < w->n; i++)
        if (w->candidates[i].p > w->candidates[best].p) best = i;
    Candidate c = w->candidates[best];
    w->candidates[best] = w->candidates[--w->n];
    return c;
}

int split_tree(Tree *t, int32_t budget, int32_t source, const TokenTrie *trie, const SplitCounts *c, const KnownText *x,
               fr_error *err) {
    Growth w = {.trie = trie, .counts = c, .known = x};
    int status = expand(&w, 0, 0, 1, err);
    for (; !status && budget > 0 && w.n > 0; budget--) {
        Candidate best = take_best(&w);
        int32_t node = tree_add(t, best.parent, best.token, (float)best.p, source);
        if (node < 0) break;
        status = expand(&w, node, best.end, best.split, err);
    }
    return status;
}
