/* token_mask.c - the tokens that may follow, by a walk over the vocabulary's trie.
 *
 * The problem: of 128,000 tokens a grammar allows perhaps three, perhaps all but four thousand, and in every step the
 * question is asked anew. Reading each token's bytes takes 10 ms.
 *
 * The idea: the walk carries the state of the grammar down the trie, and leaves a branch as soon as no text can go on
 * with its bytes: where little is allowed, little is visited. Where nearly everything is allowed, in the middle of a
 * string, the tokens of harmless characters are taken at once, and only the others are walked through (token_subset.h); where
 * that does not help, a branch is taken as a whole if the state can read all characters below it (StateRun). What is taken is
 * a list of ranges of ranks; if they are more than half of the vocabulary, the mask is all text without the gaps between them.
 * And a mask belongs to a state: the same state has it at once.
 *
 * Cost at V = 128,000: bench/bench_grammar.c. Proof: tests/grammar/test_token_mask.c, against token_mask_slow, and that
 * against a naive matcher. */
#include "grammar/token_mask.h"

#include "grammar/token_subset.h"
#include "text/vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LONG = 3000 }; /* tokens that are looked at one by one */

typedef struct RankRange {
    uint32_t begin, end;
} RankRange;

typedef struct Ranges {
    RankRange *at;
    uint32_t n, capacity, n_ranks;
} Ranges;

static bool add_range(Ranges *r, uint32_t begin, uint32_t end) {
    if (begin == end) return true;
    r->n_ranks += end - begin;
    if (r->n > 0 && r->at[r->n - 1].end == begin) {
        r->at[r->n - 1].end = end;
        return true;
    }
    if (r->n == r->capacity) {
        uint32_t capacity = r->capacity ? 2 * r->capacity : 256;
        RankRange *bigger = realloc(r->at, capacity * sizeof *bigger);
        if (!bigger) return false;
        r->at = bigger;
        r->capacity = capacity;
    }
    r->at[r->n++] = (RankRange){begin, end};
    return true;
}

/* Whether the state can read all texts below a node, whatever they are. */
static bool reads_branch(const GrammarStates *s, const GrammarState *state, const TrieBranch *b) {
    if (!state->has_runs) states_find_runs(s, state);
    for (int i = 0; i < state->n_runs; i++) {
        const CharRun *c = state->runs[i].characters;
        if (b->max_chars <= state->runs[i].n && !(b->characters.ascii[0] & ~c->ascii[0]) &&
            !(b->characters.ascii[1] & ~c->ascii[1]) && (c->non_ascii || !b->characters.non_ascii))
            return true;
    }
    return false;
}

/* Fills the ranges of the tokens of a level that can follow. Branches are known for the whole vocabulary only. */
static int walk(GrammarStates *s, const TokenTrie *t, const TrieLevel *l, const GrammarState *state, Ranges *out,
                fr_error *err) {
    const uint8_t *classes = states_automaton(s)->byte_class;
    const GrammarState *path[VOCAB_MAX_PIECE + 2];
    path[0] = state;
    for (uint32_t i = 0; i < l->n_nodes;) {
        const TrieNode *x = &l->nodes[i];
        const GrammarState *before = path[x->depth - 1], *next = states_known(before, classes[x->byte]);
        if (!next && !(next = states_next(s, before, x->byte, err))) return FR_ERR_MEMORY;
        bool is_all = next->n > 0 && x->branch && reads_branch(s, next, &t->branches[x->branch]);
        uint32_t end = is_all ? x->end : i + 1;
        if (next->n > 0 && !add_range(out, x->first_rank, l->nodes[end].first_rank))
            return error_memory(err, "a token mask", out->capacity * sizeof *out->at);
        path[x->depth] = next;
        i = next->n == 0 ? x->end : end;
    }
    return FR_OK;
}

static void set_bit(uint64_t *bits, int32_t i) { bits[i / 64] |= (uint64_t)1 << i % 64; }

static void add_ranges(const TrieLevel *l, const Ranges *r, uint64_t *bits) {
    for (uint32_t k = 0; k < r->n; k++)
        for (uint32_t rank = r->at[k].begin; rank < r->at[k].end; rank++) set_bit(bits, l->ranked[rank]);
}

/* Most tokens: all that have a text, without those between the ranges. */
static void remove_gaps(const TokenTrie *t, const Ranges *r, uint64_t *bits) {
    uint32_t rank = 0;
    memcpy(bits, t->is_text, t->n_words * sizeof *bits);
    for (uint32_t k = 0; k <= r->n; k++) {
        uint32_t begin = k < r->n ? r->at[k].begin : t->all.n_ranked;
        for (; rank < begin; rank++) bits[t->all.ranked[rank] / 64] &= ~((uint64_t)1 << t->all.ranked[rank] % 64);
        if (k < r->n) rank = r->at[k].end;
    }
}

/* Tokens of a subset that have more characters than a run allows. */
static uint32_t n_too_long(const TokenSubset *b, const StateRun *run) {
    if (run->n == INT32_MAX) return 0;
    return run->n > SUBSET_MAX_CHARS ? b->n_longer[SUBSET_MAX_CHARS] : b->n_longer[run->n];
}

/* The subset that a run of the state allows; NULL: there is none that helps. */
static const TokenSubset *find_subset(const GrammarStates *s, const TokenTrie *t, const GrammarState *state,
                                      uint32_t *n_long) {
    if (!state->has_runs) states_find_runs(s, state);
    for (int i = 0; i < state->n_runs; i++) {
        const TokenSubset *b = token_subset_of(t, state->runs[i].characters);
        if (b && (*n_long = n_too_long(b, &state->runs[i])) <= MAX_LONG) return b;
    }
    return NULL;
}

/* The mask of a state in the middle of a string: the subset, without what is too long, and of the others what can follow. */
static int fill_by_subset(GrammarStates *s, const TokenTrie *t, const GrammarState *state, const TokenSubset *b,
                          uint32_t n_long, TokenMask *m, Ranges *ranges, fr_error *err) {
    memcpy(m->bits, b->bits, t->n_words * sizeof *m->bits);
    m->n_allowed = (int32_t)b->n_tokens;
    for (uint32_t i = 0; i < n_long; i++) {
        const GrammarState *next = state;
        bool allowed;
        int status = token_read(s, t, b->longest[i], &next, &allowed, err);
        if (status) return status;
        if (allowed) continue;
        m->bits[b->longest[i] / 64] &= ~((uint64_t)1 << b->longest[i] % 64);
        m->n_allowed--;
    }
    int status = walk(s, t, &b->others, state, ranges, err);
    if (status) return status;
    add_ranges(&b->others, ranges, m->bits);
    m->n_allowed += (int32_t)ranges->n_ranks;
    return FR_OK;
}

static int fill(GrammarStates *s, const TokenTrie *t, const GrammarState *state, TokenMask *m, Ranges *ranges,
                fr_error *err) {
    uint32_t n_long;
    const TokenSubset *b = find_subset(s, t, state, &n_long);
    if (b) return fill_by_subset(s, t, state, b, n_long, m, ranges, err);
    int status = walk(s, t, &t->all, state, ranges, err);
    if (status) return status;
    if (ranges->n_ranks <= t->all.n_ranked / 2) add_ranges(&t->all, ranges, m->bits);
    else remove_gaps(t, ranges, m->bits);
    m->n_allowed = (int32_t)ranges->n_ranks;
    return FR_OK;
}

/* Control tokens are read as their spelling, from the places that read them. */
static int add_controls(GrammarStates *s, const TokenTrie *t, const GrammarState *state, TokenMask *m, fr_error *err) {
    for (int32_t i = 0; i < t->n_controls && state->reads_controls; i++) {
        const GrammarState *next = state;
        bool allowed;
        int status = token_read(s, t, t->controls[i], &next, &allowed, err);
        if (status) return status;
        if (!allowed) continue;
        set_bit(m->bits, t->controls[i]);
        m->n_allowed++;
    }
    return FR_OK;
}

const TokenMask *token_mask_of(GrammarStates *s, const TokenTrie *t, const GrammarState *state, fr_error *err) {
    if (state->mask) return state->mask;
    Ranges ranges = {0};
    size_t n_bytes = sizeof(TokenMask) + t->n_words * sizeof(uint64_t);
    TokenMask *m = states_alloc(s, n_bytes);
    int status = m ? fill(s, t, state, m, &ranges, err) : (int)error_memory(err, "a token mask", n_bytes);
    if (!status) status = add_controls(s, t, state, m, err);
    free(ranges.at);
    if (status) return NULL;
    for (size_t i = 0; i < t->n_words && state->accepts; i++) m->bits[i] |= t->is_end[i];
    if (state->accepts) m->n_allowed += t->n_ends;
    ((GrammarState *)(uintptr_t)state)->mask = m; /* not part of what the state is */
    return m;
}

int token_mask_slow(GrammarStates *s, const TokenTrie *t, const GrammarState *state, uint64_t *bits, fr_error *err) {
    memset(bits, 0, t->n_words * sizeof *bits);
    for (int32_t token = 0; token < t->n_vocab; token++) {
        const GrammarState *next = state;
        bool allowed;
        int status = token_read(s, t, token, &next, &allowed, err);
        if (status) return status;
        if (allowed) set_bit(bits, token);
    }
    return FR_OK;
}

static bool has_bit(const uint64_t *bits, int32_t i) { return bits[i / 64] >> i % 64 & 1; }

/* The state in which nothing is allowed. */
static const GrammarState *nowhere(GrammarStates *s) { return states_intern(s, NULL, 0); }

int token_read(GrammarStates *s, const TokenTrie *t, int32_t token, const GrammarState **state, bool *allowed,
               fr_error *err) {
    const GrammarState *at = *state;
    size_t n = 0;
    *allowed = false;
    if (token >= 0 && token < t->n_vocab) {
        const char *bytes = tokenizer_piece(t->tokenizer, token, at->reads_controls, &n);
        bool is_end = has_bit(t->is_end, token);
        if (is_end) n = 0;
        if (n > 0 && !has_bit(t->is_text, token) && !(at = states_for_controls(s, at)))
            return error_memory(err, "the state of a grammar", sizeof *at);
        for (size_t i = 0; i < n && at->n > 0; i++)
            if (!(at = states_next(s, at, (uint8_t)bytes[i], err))) return FR_ERR_MEMORY;
        *allowed = is_end ? (*state)->accepts : n > 0 && at->n > 0;
    }
    if (n == 0 && !(at = nowhere(s))) return error_memory(err, "the state of a grammar", sizeof *at);
    *state = at;
    return FR_OK;
}

void token_mask_apply(const TokenMask *m, const float *logits, int32_t n_vocab, float *out) {
    for (int32_t first = 0; first < n_vocab; first += 64) {
        uint64_t bits = m->bits[first / 64];
        int32_t n = n_vocab - first < 64 ? n_vocab - first : 64;
        if (n < 64) bits &= ((uint64_t)1 << n) - 1;
        if (__builtin_popcountll(bits) > 32) { /* what is written last is the smaller part */
            memcpy(out + first, logits + first, (size_t)n * sizeof *out);
            uint64_t forbidden = ~bits & (n < 64 ? ((uint64_t)1 << n) - 1 : ~(uint64_t)0);
            for (; forbidden; forbidden &= forbidden - 1) out[first + __builtin_ctzll(forbidden)] = -INFINITY;
        } else {
            for (int32_t i = 0; i < n; i++) out[first + i] = -INFINITY;
            for (; bits; bits &= bits - 1) out[first + __builtin_ctzll(bits)] = logits[first + __builtin_ctzll(bits)];
        }
    }
}
