/* containers.c - lists and dicts. A dict keeps its entries in the order of insertion, as Python's do, and has a hash table
 * over them once there are more than a few; its hash has a random key, because keys come from files and messages. */
#include "text/template/value.h"

#include <string.h>

enum { DICT_SCANNED = 8 }; /* entries that are compared one by one */

Value value_literal(Work *w, const char *text) { return value_text(text_new(w, text, strlen(text), false)); }

Seq *seq_new(Work *w, SeqFlavour flavour, size_t capacity) {
    Seq *s = work_alloc(w, sizeof *s);
    s->flavour = flavour;
    s->capacity = capacity;
    s->items = capacity ? work_array(w, capacity, sizeof *s->items) : NULL;
    return s;
}

void seq_add(Work *w, Seq *s, Value item) {
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 4;
        s->items = work_grow(w, s->items, s->n * sizeof *s->items, capacity * sizeof *s->items);
        s->capacity = capacity;
    }
    s->items[s->n++] = item;
}

Value seq_pair(Work *w, Value a, Value b) {
    Seq *s = seq_new(w, SEQ_TUPLE, 2);
    seq_add(w, s, a);
    seq_add(w, s, b);
    return value_seq(s);
}

Dict *dict_new(Work *w) { return work_alloc(w, sizeof(Dict)); }

/* The slot of `key`: of its entry, or the free one where it would go. */
static size_t find_slot(Work *w, const Dict *d, Value key) {
    size_t at = (size_t)value_hash(w, &d->key, key) & (d->n_slots - 1);
    while (d->slots[at] && !value_equal(w, d->entries[d->slots[at] - 1].key, key)) at = (at + 1) & (d->n_slots - 1);
    return at;
}

static DictEntry *find(Work *w, const Dict *d, Value key) {
    if (d->slots) {
        uint32_t entry = d->slots[find_slot(w, d, key)];
        return entry ? &d->entries[entry - 1] : NULL;
    }
    for (size_t i = 0; i < d->n; i++)
        if (value_equal(w, d->entries[i].key, key)) return &d->entries[i];
    return NULL;
}

static void rehash(Work *w, Dict *d) {
    if (d->n_slots == 0) d->key = hash_key_new();
    d->n_slots = 4 * d->capacity;
    d->slots = work_array(w, d->n_slots, sizeof *d->slots);
    work_spend(w, d->n_slots);
    for (size_t i = 0; i < d->n; i++) d->slots[find_slot(w, d, d->entries[i].key)] = (uint32_t)i + 1;
}

void dict_set(Work *w, Dict *d, Value key, Value value) {
    value_need_hashable(w, key);
    DictEntry *known = find(w, d, key);
    if (known) {
        known->value = value;
        return;
    }
    if (d->n == d->capacity) {
        if (d->n >= UINT32_MAX / 4) work_fail(w, FR_ERR_MEMORY, "a dict has too many entries");
        size_t capacity = d->capacity ? 2 * d->capacity : DICT_SCANNED;
        d->entries = work_grow(w, d->entries, d->n * sizeof *d->entries, capacity * sizeof *d->entries);
        d->capacity = capacity;
        if (capacity > DICT_SCANNED) rehash(w, d);
    }
    d->entries[d->n++] = (DictEntry){key, value};
    if (d->slots) d->slots[find_slot(w, d, key)] = (uint32_t)d->n;
}

const Value *dict_get(Work *w, const Dict *d, Value key) {
    work_spend(w, 0);
    DictEntry *e = find(w, d, key);
    return e ? &e->value : NULL;
}

const Value *dict_get_text(Work *w, const Dict *d, const char *key) {
    Text text = {.data = key, .n = strlen(key)};
    return dict_get(w, d, value_text(&text));
}
