/* token_mask.c - finds the tokens that may follow by a walk over the vocabulary's trie.
 *
 * The problem: of 128,000 tokens a grammar allows perhaps three, perhaps all but four thousand, and every step needs
 * to know which. Reading each token's bytes takes 10 ms.
 *
 * The idea: the walk carries the state of the grammar down the trie and leaves a branch as soon as no text can go on
 * with its bytes. So where little is allowed, little is visited. Where nearly everything is allowed, in the middle of a
 * string, the tokens that consist of allowed characters are taken at once, and only the others are walked through
 * (TokenSubset); where that does not help, a branch is taken as a whole if the state can read all characters below it
 * (StateRun). The result of the walk is a list of ranges of ranks; if they are more than half of the vocabulary, the
 * mask is all text without the gaps between them. A mask belongs to its state, so the same state has it at once.
 *
 * The walk can be interrupted when the quota of the states has run out, because one mask of a hostile grammar takes
 * seconds. MaskWork keeps the place in the trie and the states on the path to it.
 *
 * Cost at V = 128,000: bench/bench_grammar.c. Proof: tests/grammar/test_token_mask.c, against token_mask_slow, and that
 * against a naive matcher. */
#include "grammar/states.h"

#include "text/vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LONG = 3000, MAX_MASK_WORK = 1000000000 }; /* MAX_LONG: tokens that are read one by one */

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

/* Returns whether the state can read all texts below a node, whatever they are. */
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

/* ---- the walk -------------------------------------------------------------------------------------------- */

typedef enum MaskStage { MASK_BEGINS, MASK_READS_LONG, MASK_WALKS, MASK_READS_CONTROLS } MaskStage;

struct MaskWork {
    const GrammarState *state;
    MaskStage stage;
    TokenMask *mask;
    const TokenSubset *subset; /* NULL: the whole vocabulary is walked through */
    uint32_t n_long, i_long;   /* tokens of the subset that have to be read one by one */
    uint32_t i_node;           /* the node of the trie that the walk has reached */
    int32_t i_control;
    int64_t n_spent;
    Ranges ranges;
    const GrammarState *path[VOCAB_MAX_PIECE + 2]; /* [depth] the states on the path to it */
};

/* Fills the ranges of those tokens of a level that can follow. Only the level of the whole vocabulary has branches. */
static int walk(MaskWork *m, GrammarStates *s, const TokenTrie *t, const TrieLevel *l, fr_error *err) {
    const uint8_t *classes = states_automaton(s)->byte_class;
    m->path[0] = m->state;
    while (m->i_node < l->n_nodes) {
        const TrieNode *x = &l->nodes[m->i_node];
        const GrammarState *before = m->path[x->depth - 1], *next = states_known(before, classes[x->byte]);
        if (states_quota(s) <= 0) return STATES_WAIT;
        int status = next ? FR_OK : states_read(s, before, x->byte, &next, err);
        if (status) return status;
        states_spend(s, 1);
        bool is_all = next->n > 0 && x->branch && reads_branch(s, next, &t->branches[x->branch]);
        uint32_t end = is_all ? x->end : m->i_node + 1;
        if (next->n > 0 && !add_range(&m->ranges, x->first_rank, l->nodes[end].first_rank))
            return error_memory(err, "a token mask", m->ranges.capacity * sizeof *m->ranges.at);
        m->path[x->depth] = next;
        m->i_node = next->n == 0 ? x->end : end;
    }
    return FR_OK;
}

static void set_bit(uint64_t *bits, int32_t i) { bits[i / 64] |= (uint64_t)1 << i % 64; }

static void add_ranges(const TrieLevel *l, const Ranges *r, uint64_t *bits) {
    for (uint32_t k = 0; k < r->n; k++)
        for (uint32_t rank = r->at[k].begin; rank < r->at[k].end; rank++) set_bit(bits, l->ranked[rank]);
}

/* Where most tokens are allowed: takes all that have a text, and removes those between the ranges. */
static void remove_gaps(const TokenTrie *t, const Ranges *r, uint64_t *bits) {
    uint32_t rank = 0;
    memcpy(bits, t->is_text, t->n_words * sizeof *bits);
    for (uint32_t k = 0; k <= r->n; k++) {
        uint32_t begin = k < r->n ? r->at[k].begin : t->all.n_ranked;
        for (; rank < begin; rank++) bits[t->all.ranked[rank] / 64] &= ~((uint64_t)1 << t->all.ranked[rank] % 64);
        if (k < r->n) rank = r->at[k].end;
    }
}

/* Returns the number of tokens of a subset that have more characters than a run allows. */
static uint32_t n_too_long(const TokenSubset *b, const StateRun *run) {
    if (run->n == INT32_MAX) return 0;
    return run->n > SUBSET_MAX_CHARS ? b->n_longer[SUBSET_MAX_CHARS] : b->n_longer[run->n];
}

/* Returns the subset that a run of the state allows. NULL: there is none that helps. */
static const TokenSubset *find_subset(const GrammarStates *s, const TokenTrie *t, const GrammarState *state,
                                      uint32_t *n_long) {
    if (!state->has_runs) states_find_runs(s, state);
    for (int i = 0; i < state->n_runs; i++) {
        const TokenSubset *b = token_subset_of(t, state->runs[i].characters);
        if (b && (*n_long = n_too_long(b, &state->runs[i])) <= MAX_LONG) return b;
    }
    return NULL;
}

/* ---- the stages of a mask -------------------------------------------------------------------------------- */

/* In the middle of a string the mask begins with a subset of the tokens. */
static int begin_mask(MaskWork *m, GrammarStates *s, const TokenTrie *t, fr_error *err) {
    size_t n_bytes = sizeof(TokenMask) + t->n_words * sizeof(uint64_t);
    if (!(m->mask = states_alloc(s, n_bytes))) return error_memory(err, "a token mask", n_bytes);
    states_spend(s, (int64_t)t->n_words);
    m->subset = find_subset(s, t, m->state, &m->n_long);
    if (!m->subset) return FR_OK;
    memcpy(m->mask->bits, m->subset->bits, t->n_words * sizeof *m->mask->bits);
    m->mask->n_allowed = (int32_t)m->subset->n_tokens;
    return FR_OK;
}

/* Tokens of the subset that may be too long are read one by one. */
static int read_long(MaskWork *m, GrammarStates *s, const TokenTrie *t, fr_error *err) {
    for (; m->subset && m->i_long < m->n_long; m->i_long++) {
        const GrammarState *next = m->state;
        int32_t token = m->subset->longest[m->i_long];
        bool allowed;
        if (states_quota(s) <= 0) return STATES_WAIT;
        int status = token_read(s, t, token, &next, &allowed, err);
        if (status) return status;
        if (allowed) continue;
        m->mask->bits[token / 64] &= ~((uint64_t)1 << token % 64);
        m->mask->n_allowed--;
    }
    return FR_OK;
}

static int walk_tokens(MaskWork *m, GrammarStates *s, const TokenTrie *t, fr_error *err) {
    const TrieLevel *l = m->subset ? &m->subset->others : &t->all;
    int status = walk(m, s, t, l, err);
    if (status) return status;
    if (!m->subset && m->ranges.n_ranks > l->n_ranked / 2) remove_gaps(t, &m->ranges, m->mask->bits);
    else add_ranges(l, &m->ranges, m->mask->bits);
    m->mask->n_allowed += (int32_t)m->ranges.n_ranks;
    states_spend(s, l->n_ranked / 8);
    return FR_OK;
}

/* Control tokens are read by their spelling, from the places that read them. */
static int read_controls(MaskWork *m, GrammarStates *s, const TokenTrie *t, fr_error *err) {
    for (; m->state->reads_controls && m->i_control < t->n_controls; m->i_control++) {
        const GrammarState *next = m->state;
        bool allowed;
        if (states_quota(s) <= 0) return STATES_WAIT;
        int status = token_read(s, t, t->controls[m->i_control], &next, &allowed, err);
        if (status) return status;
        if (!allowed) continue;
        set_bit(m->mask->bits, t->controls[m->i_control]);
        m->mask->n_allowed++;
    }
    return FR_OK;
}

static int run_mask(MaskWork *m, GrammarStates *s, const TokenTrie *t, fr_error *err) {
    static int (*const stages[])(MaskWork * m, GrammarStates * s, const TokenTrie *t,
                                 fr_error *err) = {begin_mask, read_long, walk_tokens, read_controls};
    for (; m->stage <= MASK_READS_CONTROLS; m->stage++) {
        int status = states_quota(s) > 0 ? stages[m->stage](m, s, t, err) : STATES_WAIT;
        if (status) return status;
    }
    return FR_OK;
}

/* The mask is complete and becomes that of its state. */
static void publish(const MaskWork *m, const TokenTrie *t) {
    TokenMask *mask = m->mask;
    for (size_t i = 0; i < t->n_words && m->state->accepts; i++) mask->bits[i] |= t->is_end[i];
    if (m->state->accepts) mask->n_allowed += t->n_ends;
    ((GrammarState *)(uintptr_t)m->state)->mask = mask; /* not part of what the state is */
}

void mask_work_free(MaskWork *work) {
    if (work) free(work->ranges.at);
    free(work);
}

int token_mask_find(MaskWork **work, GrammarStates *s, const TokenTrie *t, const GrammarState *state,
                    const TokenMask **out, fr_error *err) {
    int status = FR_OK;
    if ((*out = state->mask)) return FR_OK;
    if (*work && (*work)->state != state) {
        mask_work_free(*work);
        *work = NULL;
    }
    if (!*work && !(*work = calloc(1, sizeof **work))) return error_memory(err, "a token mask", sizeof **work);
    MaskWork *m = *work;
    int64_t before = states_quota(s);
    m->state = state;
    status = run_mask(m, s, t, err);
    m->n_spent += before - states_quota(s);
    if (status == STATES_WAIT && m->n_spent > MAX_MASK_WORK)
        status = error_set(
            err, FR_ERR_UNSUPPORTED,
            "to find the tokens that may follow in the grammar takes more than %d steps, which is the limit",
            MAX_MASK_WORK);
    if (status == STATES_WAIT) return status;
    if (!status) publish(m, t);
    mask_work_free(m);
    *work = NULL;
    *out = state->mask;
    return status;
}

const TokenMask *token_mask_of(GrammarStates *s, const TokenTrie *t, const GrammarState *state, fr_error *err) {
    MaskWork *work = NULL;
    const TokenMask *m = NULL;
    int64_t quota = states_quota(s);
    states_set_quota(s, INT64_MAX);
    (void)token_mask_find(&work, s, t, state, &m, err);
    states_set_quota(s, quota);
    if (work) mask_work_free(work);
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

/* Returns the state in which nothing is allowed. */
static const GrammarState *nowhere(GrammarStates *s) { return states_intern(s, NULL, 0); }

int token_read(GrammarStates *s, const TokenTrie *t, int32_t token, const GrammarState **state, bool *allowed,
               fr_error *err) {
    const GrammarState *at = *state;
    size_t n = 0;
    int status = FR_OK;
    *allowed = false;
    if (token >= 0 && token < t->n_vocab) {
        const char *bytes = tokenizer_piece(t->tokenizer, token, at->reads_controls, &n);
        bool is_end = has_bit(t->is_end, token);
        if (is_end) n = 0;
        if (n > 0 && !has_bit(t->is_text, token)) status = states_for_controls(s, at, &at, err);
        for (size_t i = 0; i < n && !status && at->n > 0; i++) status = states_read(s, at, (uint8_t)bytes[i], &at, err);
        if (status) return status;
        states_spend(s, (int64_t)n);
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
        if (__builtin_popcountll(bits) > 32) { /* the smaller part is written last */
            memcpy(out + first, logits + first, (size_t)n * sizeof *out);
            uint64_t forbidden = ~bits & (n < 64 ? ((uint64_t)1 << n) - 1 : ~(uint64_t)0);
            for (; forbidden; forbidden &= forbidden - 1) out[first + __builtin_ctzll(forbidden)] = -INFINITY;
        } else {
            for (int32_t i = 0; i < n; i++) out[first + i] = -INFINITY;
            for (; bits; bits &= bits - 1) out[first + __builtin_ctzll(bits)] = logits[first + __builtin_ctzll(bits)];
        }
    }
}
