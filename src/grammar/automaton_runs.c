/* automaton_runs.c - the characters that a node can read again and again: what lets a mask take whole branches of the
 * vocabulary without reading them (token_mask.c).
 *
 * In the middle of a JSON string nearly every token is legal. To know that, it is enough that all characters below a branch
 * of the vocabulary's trie are among those that the node reads and comes back from. For a node that has a way to itself
 * (`[^"]*`) this holds for any number of characters; for the beginning of a counted rule (`[a-z]{2,40}`) for as many as the
 * count allows. Other nodes have no runs, and the branches are read. */
#include "grammar/automaton_parts.h"

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

/* Whether the bytes r[i..] lead from the node to the target, whatever they are. */
static bool reads(const Automaton *a, int32_t node, const ByteRanges *r, int i, int32_t target) {
    const GrammarNode *x = &a->nodes[node];
    for (int32_t k = x->first_edge; k < x->first_edge + x->n_edges; k++) {
        const GrammarEdge *e = &a->edges[k];
        if (e->lo > r->lo[i] || e->hi < r->hi[i]) continue;
        if (i + 1 == r->n ? e->to == target : reads(a, e->to, r, i + 1, target)) return true;
    }
    return false;
}

static bool reads_non_ascii(const Automaton *a, int32_t node, int32_t target) {
    for (size_t i = 0; i < sizeof non_ascii / sizeof *non_ascii; i++)
        if (!reads(a, node, &non_ascii[i], 0, target)) return false;
    return true;
}

/* The characters that lead from a node to another one. */
static CharRun characters_between(const Automaton *a, int32_t node, int32_t target) {
    CharRun run = {.non_ascii = reads_non_ascii(a, node, target)};
    const GrammarNode *x = &a->nodes[node];
    for (int32_t k = x->first_edge; k < x->first_edge + x->n_edges; k++)
        if (a->edges[k].to == target)
            for (int byte = a->edges[k].lo; byte <= a->edges[k].hi && byte < 128; byte++)
                run.ascii[byte / 64] |= (uint64_t)1 << byte % 64;
    return run;
}

static int size_of(const CharRun *r) {
    return __builtin_popcountll(r->ascii[0]) + __builtin_popcountll(r->ascii[1]) + r->non_ascii;
}

static CharRun common(const CharRun *a, const CharRun *b) {
    return (CharRun){{a->ascii[0] & b->ascii[0], a->ascii[1] & b->ascii[1]}, a->non_ascii && b->non_ascii};
}

enum { MIN_SIZE = 8 }; /* smaller runs are not worth the look */

static int32_t keep_run(Automaton *a, Work *w, const CharRun *run, int32_t *capacity) {
    if (size_of(run) < MIN_SIZE) return -1;
    for (int32_t i = a->n_runs - 1; i >= 0 && i >= a->n_runs - 16; i--)
        if (a->runs[i].non_ascii == run->non_ascii && memcmp(a->runs[i].ascii, run->ascii, sizeof run->ascii) == 0)
            return i;
    if (a->n_runs == *capacity) {
        int32_t wanted = *capacity ? 2 * *capacity : 16;
        a->runs = work_grow(w, a->runs, (size_t)a->n_runs * sizeof *a->runs, (size_t)wanted * sizeof *a->runs);
        *capacity = wanted;
    }
    a->runs[a->n_runs] = *run;
    return a->n_runs++;
}

/* The greatest of the runs by way of one of the node's targets. */
static void find_runs(const Automaton *a, int32_t node, CharRun *loop, CharRun *once) {
    const GrammarNode *x = &a->nodes[node];
    for (int32_t k = x->first_edge, last = -1; k < x->first_edge + x->n_edges; k++) {
        int32_t to = a->edges[k].to;
        if (to == last) continue; /* edges are sorted by target */
        last = to;
        CharRun step = characters_between(a, node, to), back = characters_between(a, to, to),
                both = common(&step, &back);
        if (size_of(&both) > size_of(loop)) *loop = both;
        if (a->nodes[to].is_end && size_of(&step) > size_of(once)) *once = step;
    }
}

void automaton_find_runs(Automaton *a, Work *w) {
    int32_t capacity = 0;
    for (int32_t node = 0; node < a->n_nodes; node++) {
        CharRun loop = {0}, once = {0};
        work_spend(w, 16 * (size_t)a->nodes[node].n_edges);
        find_runs(a, node, &loop, &once);
        a->nodes[node].loop = keep_run(a, w, &loop, &capacity);
        a->nodes[node].once = keep_run(a, w, &once, &capacity);
    }
}
