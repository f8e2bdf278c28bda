/* states_intern.c - sets of places that exist once: their memory, and the table that finds them. */
#include "grammar/states_parts.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CHUNK = 16 << 10, LARGEST_CHUNK = 1 << 20 };

typedef struct StateChunk {
    struct StateChunk *next;
    size_t used, size;
} Chunk;

/* ---- memory ------------------------------------------------------------------------------------------- */

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

/* ---- sets that exist once ------------------------------------------------------------------------------- */

uint64_t states_hash_frame(const GrammarStates *s, uint64_t hash, const GrammarFrame *f) {
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
    for (int32_t i = 0; i < n; i++) hash = states_hash_frame(s, hash, &frames[i]);
    hash ^= hash >> 29; /* the high bits are the good ones */
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

/* ---- opening ----------------------------------------------------------------------------------- */

GrammarStates *states_new(const Automaton *a) {
    GrammarStates *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->automaton = a;
    s->key = hash_key_new();
    if (states_make_start(s)) return s;
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
