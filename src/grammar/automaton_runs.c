/* automaton_runs.c - finds the sets of characters that a node of an automaton can read repeatedly.
 *
 * In the middle of a JSON string nearly every token is allowed. To know that, it is enough that all characters below a
 * branch of the vocabulary's trie are among those that the node reads and comes back from (token_mask.c). For a node
 * that has a way to itself (`[^"]*`) this holds for any number of characters; for the beginning of a counted rule
 * (`[a-z]{2,40}`) it holds for as many as the count allows. Other nodes have no runs, and the branches are read byte by
 * byte. */
#include "grammar/automaton.h"

#include <string.h>

/* UTF-8 of the characters from U+0080 on, as code_range_bytes writes it. */
static const ByteRanges non_ascii[] = {
    {2, {0xC2, 0x80}, {0xDF, 0xBF}},
    {3, {0xE0, 0xA0, 0x80}, {0xE0, 0xBF, 0xBF}},
    {3, {0xE1, 0x80, 0x80}, {0xEC, 0xBF, 0xBF}},
    {3, {0xED, 0x80, 0x80}, {0xED, 0x9F, 0xBF}},
    {3, {0xEE, 0x80, 0x80}, {0xEF, 0xBF, 0xBF}},
    {4, {0xF0, 0x90, 0x80, 0x80}, {0xF0, 0xBF, 0xBF, 0xBF}},
    {4, {0xF1, 0x80, 0x80, 0x80}, {0xF3, 0xBF, 0xBF, 0xBF}},
    {4, {0xF4, 0x80, 0x80, 0x80}, {0xF4, 0x8F, 0xBF, 0xBF}},
};
enum { N_NON_ASCII = sizeof non_ascii / sizeof *non_ascii, MIN_RUN = 8 }; /* smaller runs do not pay */

typedef struct RunSearch {
    Work *w;
    Automaton *a;
    int32_t *from, *to; /* [n_nodes] the nodes before and after one more byte of a sequence */
    int32_t n_from, n_to;
    uint32_t *seen; /* [n_nodes] the number of the step in which the node was added to `to` last */
    uint32_t n_steps;
    int32_t *n_read, *n_read_from; /* [n_nodes] how many of the sequences lead here from the node n_read_from */
    int32_t *self; /* [n_nodes] index of the run of characters that lead from the node to itself; -1: none */
    CharRun *selves;
    int32_t n_selves, self_capacity, run_capacity;
} RunSearch;

/* Replaces s->from by the nodes that a byte leads to, whatever it is within its range. */
static void read_range(RunSearch *s, uint8_t lo, uint8_t hi) {
    const Automaton *a = s->a;
    s->n_to = 0;
    s->n_steps++;
    for (int32_t i = 0; i < s->n_from; i++) {
        const GrammarNode *x = &a->nodes[s->from[i]];
        work_spend(s->w, (size_t)x->n_edges);
        for (int32_t k = x->first_edge; k < x->first_edge + x->n_edges; k++) {
            const GrammarEdge *e = &a->edges[k];
            if (e->lo > lo || e->hi < hi || s->seen[e->to] == s->n_steps) continue;
            s->seen[e->to] = s->n_steps;
            s->to[s->n_to++] = e->to;
        }
    }
    int32_t *swap = s->from;
    s->from = s->to;
    s->to = swap;
    s->n_from = s->n_to;
}

/* Counts, for each node, how many sequences of non_ascii lead to it from this one. */
static void read_non_ascii(RunSearch *s, int32_t node) {
    for (int i = 0; i < N_NON_ASCII; i++) {
        const ByteRanges *r = &non_ascii[i];
        s->from[0] = node;
        s->n_from = 1;
        for (int k = 0; k < r->n && s->n_from > 0; k++) read_range(s, r->lo[k], r->hi[k]);
        for (int32_t k = 0; k < s->n_from; k++) {
            int32_t to = s->from[k];
            if (s->n_read_from[to] != node) s->n_read_from[to] = node, s->n_read[to] = 0;
            s->n_read[to]++;
        }
        if (s->n_from == 0) return;
    }
}

static bool reads_non_ascii(const RunSearch *s, int32_t node, int32_t target) {
    return s->n_read_from[target] == node && s->n_read[target] == N_NON_ASCII;
}

/* Bits lo..hi of the 64 that begin at `first`. */
static uint64_t bits_between(int lo, int hi, int first) {
    if (hi < first || lo > first + 63) return 0;
    lo = lo < first ? 0 : lo - first;
    hi = hi > first + 63 ? 63 : hi - first;
    return (~(uint64_t)0 >> (63 - hi)) & ~(uint64_t)0 << lo;
}

/* Returns the ASCII characters that lead from a node to the target of its edge number *k, which moves on to the next
 * target. */
static CharRun next_ascii(const Automaton *a, const GrammarNode *x, int32_t *k) {
    CharRun run = {.non_ascii = false};
    for (int32_t to = a->edges[*k].to; *k < x->first_edge + x->n_edges && a->edges[*k].to == to; ++*k)
        for (int i = 0; i < 2; i++) run.ascii[i] |= bits_between(a->edges[*k].lo, a->edges[*k].hi, 64 * i);
    return run;
}

static int size_of(const CharRun *r) {
    return __builtin_popcountll(r->ascii[0]) + __builtin_popcountll(r->ascii[1]) + r->non_ascii;
}

/* Finds the characters that lead from the node to itself. */
static void find_self(RunSearch *s, int32_t node) {
    const GrammarNode *x = &s->a->nodes[node];
    work_spend(s->w, (size_t)x->n_edges);
    for (int32_t k = x->first_edge; k < x->first_edge + x->n_edges;) {
        int32_t to = s->a->edges[k].to;
        CharRun run = next_ascii(s->a, x, &k);
        if (to != node || size_of(&run) < MIN_RUN - 1) continue;
        read_non_ascii(s, node);
        run.non_ascii = reads_non_ascii(s, node, node);
        s->selves = work_room(s->w, s->selves, (size_t)s->n_selves, &s->self_capacity, sizeof *s->selves);
        s->self[node] = s->n_selves;
        s->selves[s->n_selves++] = run;
    }
}

/* Finds the largest runs that begin with a step to one of the node's targets. */
static void find_runs(RunSearch *s, int32_t node, CharRun *loop, CharRun *once) {
    const Automaton *a = s->a;
    const GrammarNode *x = &a->nodes[node];
    bool has_read = false;
    work_spend(s->w, (size_t)x->n_edges);
    for (int32_t k = x->first_edge; k < x->first_edge + x->n_edges;) {
        int32_t to = a->edges[k].to;
        CharRun step = next_ascii(a, x, &k);
        if (size_of(&step) < MIN_RUN - 1 || (s->self[to] < 0 && !a->nodes[to].is_end)) continue;
        if (!has_read) read_non_ascii(s, node);
        has_read = true;
        step.non_ascii = reads_non_ascii(s, node, to);
        if (a->nodes[to].is_end && size_of(&step) > size_of(once)) *once = step;
        if (s->self[to] < 0) continue;
        const CharRun *back = &s->selves[s->self[to]];
        CharRun both = {{step.ascii[0] & back->ascii[0], step.ascii[1] & back->ascii[1]},
                        step.non_ascii && back->non_ascii};
        if (size_of(&both) > size_of(loop)) *loop = both;
    }
}

static int32_t keep_run(RunSearch *s, const CharRun *run) {
    Automaton *a = s->a;
    if (size_of(run) < MIN_RUN) return -1;
    for (int32_t i = a->n_runs - 1; i >= 0 && i >= a->n_runs - 16; i--)
        if (a->runs[i].non_ascii == run->non_ascii && memcmp(a->runs[i].ascii, run->ascii, sizeof run->ascii) == 0)
            return i;
    a->runs = work_room(s->w, a->runs, (size_t)a->n_runs, &s->run_capacity, sizeof *a->runs);
    a->runs[a->n_runs] = *run;
    return a->n_runs++;
}

void automaton_find_runs(Automaton *a, Work *w) {
    size_t n = (size_t)a->n_nodes;
    RunSearch s = {.w = w,
                   .a = a,
                   .from = work_array(w, n, sizeof *s.from),
                   .to = work_array(w, n, sizeof *s.to),
                   .seen = work_array(w, n, sizeof *s.seen),
                   .n_read = work_array(w, n, sizeof *s.n_read),
                   .n_read_from = work_array(w, n, sizeof *s.n_read_from),
                   .self = work_array(w, n, sizeof *s.self)};
    if (n) memset(s.n_read_from, -1, n * sizeof *s.n_read_from), memset(s.self, -1, n * sizeof *s.self);
    for (int32_t node = 0; node < a->n_nodes; node++) find_self(&s, node);
    if (n) memset(s.n_read_from, -1, n * sizeof *s.n_read_from); /* some nodes are read from again */
    for (int32_t node = 0; node < a->n_nodes; node++) {
        CharRun loop = {.non_ascii = false}, once = {.non_ascii = false};
        find_runs(&s, node, &loop, &once);
        a->nodes[node].loop = keep_run(&s, &loop);
        a->nodes[node].once = keep_run(&s, &once);
    }
}
