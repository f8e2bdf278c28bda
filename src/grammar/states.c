/* states.c - one byte further through a grammar.
 *
 * The problem: a grammar with nesting needs a stack, and one that is ambiguous needs many. A tree of drafts has hundreds of
 * nodes, each with stacks of its own; copying them for each node, or undoing what was read, costs more than the drafts
 * save. And a grammar comes from a stranger: no text may take exponential time.
 *
 * The idea: a stack is a place and, below it, the *set* of stacks that the running rule may return to. Sets are interned:
 * there is one of each, found by a hash of its frames, and it never changes (a graph-structured stack, Tomita 1986, in
 * persistent form). Reading a byte makes a new set that shares all that lies below. Rules that are called at the same byte
 * are called once, with all of their callers below; so after n bytes there are at most n + 1 different things below a
 * node, and the number of places grows with the grammar and the text, never with the number of derivations.
 *
 *     list ::= "[" (list ("," list)*)? "]"          after "[["
 *
 *       {(list: behind "[", below: {(list: behind item, below: {(root: behind list, below: {accept}})})}
 *
 * One byte in two phases. First, edges: each place whose node has an edge for the byte moves on, and where a rule ends, its
 * callers move on, perhaps to the end of their rule. Then calls, by rank of the rules (automaton.h): when it is a rule's turn,
 * all of its callers are known. A call that is the last thing in its rule passes its callers on instead of itself, so that
 * lists written as recursion do not grow the stack. A counted call is a frame with a number: when its rule ends for the
 * time number k, it goes on if k is enough, and calls the rule again if more are allowed.
 *
 * Invariants: frames are sorted, so equal sets are equal arrays; what is below a state is older and has a smaller id.
 * Cost: the first time, about 1 us for each place; later a look into a table. Limits: MAX_PLACES in a state. Proof:
 * tests/grammar/test_grammar_states.c, against a naive matcher that tries everything. */
#include "grammar/states_parts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PLACES = 20000 };

/* The array with room for one more element; NULL: no memory. */
static void *with_room(GrammarStates *s, void *array, int32_t n, int32_t *capacity, size_t each) {
    if (n < *capacity) return array;
    int32_t wanted = *capacity ? 2 * *capacity : 64;
    void *bigger = realloc(array, (size_t)wanted * each);
    if (!bigger) {
        s->is_full = true;
        return NULL;
    }
    *capacity = wanted;
    return bigger;
}

/* ---- the first phase: edges and ends ------------------------------------------------------------------------ */

static void add_place(GrammarStates *s, GrammarFrame f) {
    GrammarFrame *places = with_room(s, s->places, s->n_places, &s->place_capacity, sizeof *s->places);
    if (!places) return;
    s->places = places;
    if (s->n_places == MAX_PLACES) s->is_full = s->has_many_places = true;
    else s->places[s->n_places++] = f;
}

static bool grow_met_slots(GrammarStates *s) {
    size_t n_slots = s->n_met_slots ? 2 * s->n_met_slots : 256;
    uint32_t *slots = calloc(n_slots, sizeof *slots);
    if (!slots) return false;
    free(s->met_slots);
    s->met_slots = slots;
    s->n_met_slots = n_slots;
    for (int32_t i = 0; i < s->n_met; i++) {
        size_t at = states_hash_frame(s, 0, &s->met[i]) >> 32 & (n_slots - 1);
        while (slots[at]) at = (at + 1) & (n_slots - 1);
        slots[at] = (uint32_t)i + 1;
    }
    return true;
}

/* A place is reached; it will be looked at once (follow_places). */
static void meet(GrammarStates *s, GrammarFrame f) {
    GrammarFrame *met = with_room(s, s->met, s->n_met, &s->met_capacity, sizeof *s->met);
    if (!met) return;
    s->met = met;
    s->has_many_places |= s->n_met == MAX_PLACES;
    if (s->n_met == MAX_PLACES || (2 * ((size_t)s->n_met + 1) > s->n_met_slots && !grow_met_slots(s))) {
        s->is_full = true;
        return;
    }
    size_t at = states_hash_frame(s, 0, &f) >> 32 & (s->n_met_slots - 1);
    for (; s->met_slots[at]; at = (at + 1) & (s->n_met_slots - 1)) {
        const GrammarFrame *x = &s->met[s->met_slots[at] - 1];
        if (x->node == f.node && x->count == f.count && x->below == f.below) return;
    }
    s->met[s->n_met] = f;
    s->met_slots[at] = (uint32_t)++s->n_met;
}

static void forget_met(GrammarStates *s) {
    if (s->n_met == 0) return;
    memset(s->met_slots, 0, s->n_met_slots * sizeof *s->met_slots);
    s->n_met = 0;
}

static bool item_before(const GrammarStates *s, const CallItem *a, const CallItem *b) {
    const GrammarRule *rules = s->automaton->rules;
    return rules[a->rule].rank < rules[b->rule].rank;
}

static void push_item(GrammarStates *s, int32_t rule, GrammarFrame frame) {
    CallItem *items = with_room(s, s->items, s->n_items, &s->item_capacity, sizeof *s->items);
    if (!items) return;
    s->items = items;
    if (s->n_items == MAX_PLACES) {
        s->is_full = s->has_many_places = true;
        return;
    }
    CallItem item = {rule, frame};
    int32_t i = s->n_items++;
    for (int32_t up; i > 0 && item_before(s, &item, &items[up = (i - 1) / 2]); i = up) items[i] = items[up];
    items[i] = item;
}

static CallItem pop_item(GrammarStates *s) {
    CallItem first = s->items[0], last = s->items[--s->n_items];
    int32_t i = 0, n = s->n_items;
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && item_before(s, &s->items[child + 1], &s->items[child])) child++;
        if (!item_before(s, &s->items[child], &last)) break;
        s->items[i] = s->items[child];
    }
    s->items[i] = last;
    return first;
}

/* A node that only ends its rule. */
static bool only_ends(const GrammarNode *x) { return x->is_end && x->n_edges == 0 && x->n_calls == 0; }

static void push_calls(GrammarStates *s, const GrammarNode *x, const GrammarState *below) {
    const Automaton *a = s->automaton;
    for (int32_t k = x->first_call; k < x->first_call + x->n_calls; k++) {
        const GrammarCall *c = &a->calls[k];
        if (c->max != 0) push_item(s, c->rule, (GrammarFrame){~k, 0, below});
        else if (!only_ends(&a->nodes[c->to])) push_item(s, c->rule, (GrammarFrame){c->to, 0, below});
        else
            for (uint32_t i = 0; i < below->n; i++) push_item(s, c->rule, below->frames[i]);
    }
}

/* The rule of a counted call has ended for the time number count + 1. */
static void end_counted(GrammarStates *s, const GrammarFrame *f) {
    const GrammarCall *c = &s->automaton->calls[~f->node];
    int32_t n_done = f->count + 1;
    if (n_done >= c->min) meet(s, (GrammarFrame){c->to, 0, f->below});
    if (c->max == EXPR_UNBOUNDED) {
        if (n_done > c->min) n_done = c->min; /* more need not be told apart */
    } else if (n_done >= c->max) return;
    push_item(s, c->rule, (GrammarFrame){f->node, n_done, f->below});
}

static void return_to(GrammarStates *s, const GrammarFrame *f) {
    if (f->node >= 0) meet(s, *f);
    else end_counted(s, f);
}

static void follow_places(GrammarStates *s) {
    for (int32_t i = 0; i < s->n_met && !s->is_full; i++) {
        GrammarFrame f = s->met[i];
        const GrammarNode *x = &s->automaton->nodes[f.node];
        if (x->n_edges > 0 || f.node == AUTOMATON_ACCEPT) add_place(s, f);
        if (f.node == AUTOMATON_ACCEPT) continue;
        push_calls(s, x, f.below);
        for (uint32_t k = 0; x->is_end && k < f.below->n; k++) return_to(s, &f.below->frames[k]);
    }
    forget_met(s);
}

/* ---- the second phase: calls ------------------------------------------------------------------------------ */

/* The callers of the rule with the smallest rank, which is theirs together: the places they are taken from are behind
 * the places of the new state in s->places. */
static void make_calls(GrammarStates *s) {
    const Automaton *a = s->automaton;
    while (s->n_items > 0 && !s->is_full) {
        int32_t rule = s->items[0].rule, first = s->n_places;
        while (s->n_items > 0 && s->items[0].rule == rule && !s->is_full) add_place(s, pop_item(s).frame);
        if (s->is_full) return;
        const GrammarState *below = states_intern(s, s->places + first, s->n_places - first);
        s->n_places = first;
        if (!below) return;
        int32_t node = a->rules[rule].start;
        if (a->nodes[node].n_edges > 0) add_place(s, (GrammarFrame){node, 0, below});
        push_calls(s, &a->nodes[node], below);
    }
}

static const GrammarState *finish_state(GrammarStates *s) {
    make_calls(s);
    const GrammarState *made = s->is_full ? NULL : states_intern(s, s->places, s->n_places);
    s->n_places = s->n_items = 0;
    s->is_full = false;
    return made;
}

static const GrammarState *compute_next(GrammarStates *s, const GrammarState *state, uint8_t byte) {
    const Automaton *a = s->automaton;
    s->has_many_places = false;
    for (uint32_t i = 0; i < state->n; i++) {
        const GrammarFrame *f = &state->frames[i];
        const GrammarNode *x = &a->nodes[f->node];
        for (int32_t k = x->first_edge; k < x->first_edge + x->n_edges; k++)
            if (a->edges[k].lo <= byte && byte <= a->edges[k].hi) meet(s, (GrammarFrame){a->edges[k].to, 0, f->below});
    }
    follow_places(s);
    return finish_state(s);
}

/* Whether two bytes are on the same edges of a state. */
static bool are_alike(const Automaton *a, const GrammarState *state, uint8_t x, uint8_t y) {
    for (uint32_t i = 0; i < state->n; i++) {
        const GrammarNode *node = &a->nodes[state->frames[i].node];
        for (int32_t k = node->first_edge; k < node->first_edge + node->n_edges; k++) {
            const GrammarEdge *e = &a->edges[k];
            if ((e->lo <= x && x <= e->hi) != (e->lo <= y && y <= e->hi)) return false;
        }
    }
    return true;
}

/* Most letters do the same in the middle of a string: what is known for one is known for all. */
static void set_next(const Automaton *a, GrammarState *from, uint8_t byte, const GrammarState *next) {
    for (int class = 0; class < a->n_classes; class ++)
        if (!from->next[class] && are_alike(a, from, byte, a->class_byte[class])) from->next[class] = next;
}

const GrammarState *states_next(GrammarStates *s, const GrammarState *state, uint8_t byte, fr_error *err) {
    int class = s->automaton->byte_class[byte];
    const GrammarState *known = states_known(state, class);
    if (known) return known;
    GrammarState *from = (GrammarState *)(uintptr_t)state; /* its table is not part of what it is */
    if (!from->next) from->next = states_alloc(s, (size_t)s->automaton->n_classes * sizeof *from->next);
    const GrammarState *next = from->next ? compute_next(s, state, byte) : NULL;
    if (next) {
        set_next(s->automaton, from, byte, next);
        return next;
    }
    if (s->has_many_places)
        error_set(err, FR_ERR_UNSUPPORTED,
                  "the grammar is so ambiguous that the text may be in more than %d places of it, which is the limit",
                  MAX_PLACES);
    else error_memory(err, "the states of a grammar", sizeof *from);
    return NULL;
}

const GrammarState *states_for_controls(GrammarStates *s, const GrammarState *state) {
    for (uint32_t i = 0; i < state->n; i++) {
        const GrammarFrame *f = &state->frames[i];
        if (f->node >= 0 && s->automaton->nodes[f->node].reads_controls) add_place(s, *f);
    }
    return finish_state(s);
}

bool states_make_start(GrammarStates *s) {
    const GrammarFrame accept = {AUTOMATON_ACCEPT, 0, NULL};
    if (s->automaton->root_is_optional) add_place(s, accept);
    push_item(s, s->automaton->root, accept);
    s->start = finish_state(s);
    return s->start != NULL;
}
