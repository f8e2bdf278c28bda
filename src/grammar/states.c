/* states.c - reads one byte after the other by a grammar.
 *
 * The problem: a grammar with nesting needs a stack, and an ambiguous one needs many. A tree of drafts has hundreds of
 * nodes, each with stacks of its own; copying them for each node, or undoing what was read, would cost more than the
 * drafts save. And a grammar comes from a stranger: no text may take exponential time.
 *
 * The idea: a stack is a place and, below it, the *set* of stacks that the running rule may return to. Sets are
 * interned: there is one of each, found by a hash of its frames, and it never changes (a graph-structured stack, Tomita
 * 1986, in persistent form). Reading a byte makes a new set that shares all that lies below. Rules that are called at
 * the same byte are called once, with all of their callers below; so after n bytes there are at most n + 1 different
 * sets below a node, and the number of places grows with the grammar and the text, never with the number of
 * derivations.
 *
 *     list ::= "[" (list ("," list)*)? "]"          after "[["
 *
 *       {(list: after "[", below: {(list: after item, below: {(root: after list, below: {accept}})})}
 *
 * A byte is read in two phases. First come the edges: each place whose node has an edge for the byte moves on, and
 * where a rule ends, its callers move on, perhaps to the end of their rule. Then come the calls, by rank of the rules
 * (automaton.h): when it is a rule's turn, all of its callers are known. A call that is the last item of its rule
 * passes its callers on instead of itself, so lists that are written as recursion do not grow the stack. A counted call
 * is a frame with a number: when its rule has ended k times, the text can go on after the call if k is enough, and the
 * rule is called again if more are allowed.
 *
 * Reading can be interrupted after each place and each rule (states.h). There is one reading at a time, in `reading`;
 * before another state is computed, that reading is finished, and its state is then known.
 *
 * Invariants: frames are sorted, so equal sets are equal arrays; what is below a state is older and has a smaller id.
 * Cost: about 1 us for each place when a state is computed; later a look into a table. Limits: MAX_PLACES in a state,
 * MAX_BYTES for all states. Proof: tests/grammar/test_grammar_states.c, against a matcher that tries everything. */
#include "grammar/states.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PLACES = 20000, MAX_BYTES = 256 << 20, FIRST_CHUNK = 16 << 10, LARGEST_CHUNK = 1 << 20 };

typedef struct StateChunk {
    struct StateChunk *next;
    size_t used, size;
} Chunk;

typedef struct CallItem { /* a call that is to be made in the second phase */
    int32_t rule;
    GrammarFrame frame; /* the caller */
} CallItem;

/* A byte that is being read, and how far the reading has come. */
typedef struct Reading {
    const GrammarState *from; /* NULL: none */
    uint8_t byte;
    uint32_t i_place; /* the index of a place of `from` */
    int32_t i_met;
} Reading;

struct GrammarStates {
    const Automaton *automaton;
    HashKey key;
    GrammarState **table; /* [n_slots] open addressing, a power of two; NULL: free */
    size_t n_slots, n_states, n_bytes;
    Chunk *chunks;
    const GrammarState *start;
    int64_t quota;
    Reading reading;
    GrammarFrame *places, *met; /* the places of the new state; all places that were met in the first phase */
    int32_t n_places, n_met, place_capacity, met_capacity;
    uint32_t *met_slots; /* [n_met_slots] 1 + index into met; 0: free */
    size_t n_met_slots;
    CallItem *items; /* a heap */
    int32_t n_items, item_capacity;
    bool is_full;         /* memory or MAX_PLACES ran out */
    bool has_many_places; /* it was MAX_PLACES */
};

void states_set_quota(GrammarStates *s, int64_t units) { s->quota = units; }
int64_t states_quota(const GrammarStates *s) { return s->quota; }
void states_spend(GrammarStates *s, int64_t units) { s->quota -= units; }

/* ---- memory ---------------------------------------------------------------------------------------------- */

void *states_alloc(GrammarStates *s, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    Chunk *c = s->chunks;
    if (!c || bytes > c->size - c->used) {
        size_t size = c ? 2 * c->size : FIRST_CHUNK;
        if (size > LARGEST_CHUNK) size = LARGEST_CHUNK;
        if (size < bytes) size = bytes;
        if (!(c = malloc(sizeof *c + 16 + size))) return NULL;
        *c = (Chunk){s->chunks, 0, size};
        s->chunks = c;
        s->n_bytes += size;
    }
    char *base = (char *)c + ((sizeof *c + 15) & ~(size_t)15);
    void *p = base + c->used;
    c->used += bytes;
    return memset(p, 0, bytes);
}

size_t states_bytes(const GrammarStates *s) { return s->n_bytes + s->n_slots * sizeof *s->table; }

const Automaton *states_automaton(const GrammarStates *s) { return s->automaton; }

/* ---- sets that exist once -------------------------------------------------------------------------------- */

/* The high bits of the hash are the good ones. */
static uint64_t hash_frame(const GrammarStates *s, uint64_t hash, const GrammarFrame *f) {
    hash = keyed_hash_u64(&s->key, hash ^ ((uint64_t)(uint32_t)f->node << 32 | (uint32_t)f->count));
    return keyed_hash_u64(&s->key, (hash >> 7) ^ hash ^ (f->below ? f->below->id + 1u : 0u));
}

static int by_place(const void *x, const void *y) {
    const GrammarFrame *a = x, *b = y;
    if (a->node != b->node) return a->node < b->node ? -1 : 1;
    if (a->count != b->count) return a->count < b->count ? -1 : 1;
    uint32_t i = a->below ? a->below->id + 1 : 0, k = b->below ? b->below->id + 1 : 0;
    return i == k ? 0 : i < k ? -1 : 1;
}

/* Sorts the frames, removes duplicates, and returns how many are left. */
static int32_t sort_frames(GrammarFrame *f, int32_t n) {
    int32_t n_left = 0;
    if (n > 1) qsort(f, (size_t)n, sizeof *f, by_place);
    for (int32_t i = 0; i < n; i++)
        if (n_left == 0 || by_place(&f[n_left - 1], &f[i]) != 0) f[n_left++] = f[i];
    return n_left;
}

static bool grow_table(GrammarStates *s) {
    size_t n_slots = s->n_slots ? 2 * s->n_slots : 256;
    GrammarState **table = calloc(n_slots, sizeof *table);
    if (!table) return false;
    for (size_t i = 0; i < s->n_slots; i++) {
        if (!s->table[i]) continue;
        size_t at = s->table[i]->hash & (n_slots - 1);
        while (table[at]) at = (at + 1) & (n_slots - 1);
        table[at] = s->table[i];
    }
    free(s->table);
    s->table = table;
    s->n_slots = n_slots;
    return true;
}

static bool same_frames(const GrammarState *a, const GrammarFrame *frames, int32_t n) {
    if (a->n != (uint32_t)n) return false;
    for (int32_t i = 0; i < n; i++)
        if (a->frames[i].node != frames[i].node || a->frames[i].count != frames[i].count ||
            a->frames[i].below != frames[i].below)
            return false;
    return true;
}

static GrammarState *make_state(GrammarStates *s, const GrammarFrame *frames, int32_t n, uint64_t hash) {
    GrammarState *made = states_alloc(s, sizeof *made + (size_t)n * sizeof *frames);
    if (!made) return NULL;
    made->id = (uint32_t)s->n_states++;
    made->n = (uint32_t)n;
    made->hash = hash;
    if (n) memcpy(made->frames, frames, (size_t)n * sizeof *frames);
    for (int32_t i = 0; i < n; i++) {
        made->accepts |= frames[i].node == AUTOMATON_ACCEPT;
        if (frames[i].node < 0) continue;
        made->is_free |= s->automaton->nodes[frames[i].node].is_free;
        made->reads_controls |= s->automaton->nodes[frames[i].node].reads_controls;
    }
    return made;
}

const GrammarState *states_intern(GrammarStates *s, GrammarFrame *frames, int32_t n) {
    uint64_t hash = 0;
    n = sort_frames(frames, n);
    s->quota -= 8 + 8 * (int64_t)n;
    for (int32_t i = 0; i < n; i++) hash = hash_frame(s, hash, &frames[i]);
    hash ^= hash >> 29;
    if (2 * (s->n_states + 1) > s->n_slots && !grow_table(s)) {
        s->is_full = true;
        return NULL;
    }
    size_t at = hash & (s->n_slots - 1);
    for (; s->table[at]; at = (at + 1) & (s->n_slots - 1))
        if (s->table[at]->hash == hash && same_frames(s->table[at], frames, n)) return s->table[at];
    s->table[at] = make_state(s, frames, n, hash);
    if (!s->table[at]) s->is_full = true;
    return s->table[at];
}

/* Returns the array with room for one more element; NULL: no memory. */
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

/* ---- the first phase: edges and ends --------------------------------------------------------------------- */

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
        size_t at = hash_frame(s, 0, &s->met[i]) >> 32 & (n_slots - 1);
        while (slots[at]) at = (at + 1) & (n_slots - 1);
        slots[at] = (uint32_t)i + 1;
    }
    return true;
}

/* Notes a place that was reached, unless it has been reached before: each place is followed once. */
static void meet(GrammarStates *s, GrammarFrame f) {
    s->quota -= 4;
    GrammarFrame *met = with_room(s, s->met, s->n_met, &s->met_capacity, sizeof *s->met);
    if (!met) return;
    s->met = met;
    s->has_many_places |= s->n_met == MAX_PLACES;
    if (s->n_met == MAX_PLACES || (2 * ((size_t)s->n_met + 1) > s->n_met_slots && !grow_met_slots(s))) {
        s->is_full = true;
        return;
    }
    size_t at = hash_frame(s, 0, &f) >> 32 & (s->n_met_slots - 1);
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
    s->quota -= 8;
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

/* Returns whether a node does nothing but end its rule. */
static bool only_ends(const GrammarNode *x) { return x->is_end && x->n_edges == 0 && x->n_calls == 0; }

static void push_calls(GrammarStates *s, const GrammarNode *x, const GrammarState *below) {
    const Automaton *a = s->automaton;
    for (int32_t k = x->first_call; k < x->first_call + x->n_calls && !s->is_full; k++) {
        const GrammarCall *c = &a->calls[k];
        if (c->max != 0) push_item(s, c->rule, (GrammarFrame){~k, 0, below});
        else if (!only_ends(&a->nodes[c->to])) push_item(s, c->rule, (GrammarFrame){c->to, 0, below});
        else
            for (uint32_t i = 0; i < below->n; i++) push_item(s, c->rule, below->frames[i]);
    }
}

/* Goes on after the rule of a counted call has ended once more. */
static void end_counted(GrammarStates *s, const GrammarFrame *f) {
    const GrammarCall *c = &s->automaton->calls[~f->node];
    int32_t n_done = f->count + 1;
    if (n_done >= c->min) meet(s, (GrammarFrame){c->to, 0, f->below});
    if (c->max == EXPR_UNBOUNDED) {
        if (n_done > c->min) n_done = c->min; /* higher counts do the same */
    } else if (n_done >= c->max) return;
    push_item(s, c->rule, (GrammarFrame){f->node, n_done, f->below});
}

static void return_to(GrammarStates *s, const GrammarFrame *f) {
    if (f->node >= 0) meet(s, *f);
    else end_counted(s, f);
}

/* Moves the places of the state before along their edges. False: the quota ran out. */
static bool follow_edges(GrammarStates *s) {
    Reading *r = &s->reading;
    for (; r->i_place < r->from->n && !s->is_full; r->i_place++) {
        const GrammarFrame *f = &r->from->frames[r->i_place];
        const GrammarNode *x = &s->automaton->nodes[f->node];
        if (s->quota <= 0) return false;
        s->quota -= 2 + x->n_edges;
        for (int32_t k = x->first_edge; k < x->first_edge + x->n_edges; k++) {
            const GrammarEdge *e = &s->automaton->edges[k];
            if (e->lo <= r->byte && r->byte <= e->hi) meet(s, (GrammarFrame){e->to, 0, f->below});
        }
    }
    return true;
}

/* Goes on from all places that were met, to their callers where their rule ends. False: the quota ran out. */
static bool follow_places(GrammarStates *s) {
    for (int32_t *i = &s->reading.i_met; *i < s->n_met && !s->is_full; ++*i) {
        GrammarFrame f = s->met[*i];
        const GrammarNode *x = &s->automaton->nodes[f.node];
        if (s->quota <= 0) return false;
        s->quota -= 2;
        if (x->n_edges > 0 || f.node == AUTOMATON_ACCEPT) add_place(s, f);
        if (f.node == AUTOMATON_ACCEPT) continue;
        push_calls(s, x, f.below);
        for (uint32_t k = 0; x->is_end && k < f.below->n && !s->is_full; k++) return_to(s, &f.below->frames[k]);
    }
    return true;
}

/* ---- the second phase: calls ----------------------------------------------------------------------------- */

/* Calls the rules that are wanted, by rank. All callers of a rule become one set, which is collected after the
 * places of the new state in s->places. False: the quota ran out. */
static bool make_calls(GrammarStates *s) {
    const Automaton *a = s->automaton;
    while (s->n_items > 0 && !s->is_full) {
        if (s->quota <= 0) return false;
        int32_t rule = s->items[0].rule, first = s->n_places;
        while (s->n_items > 0 && s->items[0].rule == rule && !s->is_full) add_place(s, pop_item(s).frame);
        if (s->is_full) return true;
        const GrammarState *below = states_intern(s, s->places + first, s->n_places - first);
        s->n_places = first;
        if (!below) return true;
        int32_t node = a->rules[rule].start;
        if (a->nodes[node].n_edges > 0) add_place(s, (GrammarFrame){node, 0, below});
        push_calls(s, &a->nodes[node], below);
    }
    return true;
}

/* Makes the new state and ends the reading. NULL: memory or a limit ran out. */
static const GrammarState *finish_state(GrammarStates *s) {
    const GrammarState *made = s->is_full ? NULL : states_intern(s, s->places, s->n_places);
    forget_met(s);
    s->n_places = s->n_items = 0;
    s->is_full = false;
    s->reading = (Reading){.from = NULL};
    return made;
}

/* ---- reading bytes --------------------------------------------------------------------------------------- */

/* Enters the state after a byte into the table of the state before, for all classes of bytes that are on the same
 * edges. Most letters do the same in the middle of a string, so a state that is found for one of them holds for all. */
static void set_next(GrammarStates *s, GrammarState *from, uint8_t byte, const GrammarState *next) {
    const Automaton *a = s->automaton;
    int32_t n_differ[257] = {
        0}; /* the number of edges that distinguish a class from that of the byte, as the difference to the class
             * before */
    for (uint32_t i = 0; i < from->n; i++) {
        const GrammarNode *x = &a->nodes[from->frames[i].node];
        s->quota -= x->n_edges;
        for (int32_t k = x->first_edge; k < x->first_edge + x->n_edges; k++) {
            const GrammarEdge *e = &a->edges[k];
            int32_t sign = e->lo <= byte && byte <= e->hi ? -1 : 1;
            n_differ[0] += sign < 0;
            n_differ[a->byte_class[e->lo]] += sign;
            n_differ[a->byte_class[e->hi] + 1] -= sign;
        }
    }
    for (int32_t class = 0, n = 0; class < a->n_classes; class ++) {
        n += n_differ[class];
        if (n == 0 && !from->next[class]) from->next[class] = next;
    }
}

static int fail(const GrammarStates *s, fr_error *err) {
    if (s->has_many_places)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "the grammar is so ambiguous that the text may be in more than %d places of it, which is the "
                         "limit",
                         MAX_PLACES);
    return error_memory(err, "the states of a grammar", sizeof(GrammarState));
}

/* Continues the reading in s->reading. */
static int run_reading(GrammarStates *s, fr_error *err) {
    GrammarState *from = (GrammarState *)(uintptr_t)s->reading.from; /* only its table changes */
    uint8_t byte = s->reading.byte;
    if (!follow_edges(s) || !follow_places(s) || !make_calls(s)) return STATES_WAIT;
    const GrammarState *next = finish_state(s);
    if (!next) return fail(s, err);
    set_next(s, from, byte, next);
    return FR_OK;
}

int states_read(GrammarStates *s, const GrammarState *state, uint8_t byte, const GrammarState **next, fr_error *err) {
    int class = s->automaton->byte_class[byte];
    GrammarState *from = (GrammarState *)(uintptr_t)state;
    while (!(*next = states_known(state, class))) {
        bool is_other = s->reading.from && (s->reading.from != state || s->reading.byte != byte);
        if (!s->reading.from) {
            if (s->n_bytes > MAX_BYTES)
                return error_set(err, FR_ERR_UNSUPPORTED,
                                 "the states of the grammar take more than %d MiB, which is the limit",
                                 MAX_BYTES >> 20);
            if (!from->next) from->next = states_alloc(s, (size_t)s->automaton->n_classes * sizeof *from->next);
            if (!from->next) return error_memory(err, "the states of a grammar", sizeof *from);
            s->has_many_places = false;
            s->reading = (Reading){.from = state, .byte = byte};
        }
        int status = run_reading(s, err);
        if (status && (status == STATES_WAIT || !is_other)) return status; /* an error of another reading is not ours */
    }
    return FR_OK;
}

int states_for_controls(GrammarStates *s, const GrammarState *state, const GrammarState **out, fr_error *err) {
    if ((*out = state->controls)) return FR_OK;
    while (s->reading.from) /* which uses the working memory */
        if (run_reading(s, NULL) == STATES_WAIT) return STATES_WAIT;
    for (uint32_t i = 0; i < state->n; i++) {
        const GrammarFrame *f = &state->frames[i];
        if (f->node >= 0 && s->automaton->nodes[f->node].reads_controls) add_place(s, *f);
    }
    s->quota -= state->n;
    s->has_many_places = false;
    if (!(*out = finish_state(s))) return fail(s, err);
    ((GrammarState *)(uintptr_t)state)->controls = *out;
    return FR_OK;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

GrammarStates *states_new(const Automaton *a) {
    GrammarStates *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->automaton = a;
    s->key = hash_key_new();
    s->quota = INT64_MAX;
    const GrammarFrame accept = {AUTOMATON_ACCEPT, 0, NULL};
    if (a->root_is_optional) add_place(s, accept);
    push_item(s, a->root, accept);
    (void)make_calls(s);
    if ((s->start = finish_state(s))) return s;
    states_free(s);
    return NULL;
}

void states_free(GrammarStates *s) {
    if (!s) return;
    for (Chunk *next; s->chunks; s->chunks = next) {
        next = s->chunks->next;
        free(s->chunks);
    }
    free(s->table);
    free(s->places);
    free(s->met);
    free(s->met_slots);
    free(s->items);
    free(s);
}

const GrammarState *states_start(const GrammarStates *s) { return s->start; }
