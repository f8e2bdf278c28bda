/* value.c - lists and dicts, and the truth, equality, order, length and iteration of values, as Python defines them.
 *
 * A dict keeps its entries in the order of insertion, as in Python. When there are more than a few, it has a hash
 * table of them; the hash has a random key, because the keys of dicts come from files and messages that are not
 * trusted. */
#include "text/template/template_text.h"
#include "text/template/value.h"

#include <math.h>
#include <string.h>

/* ---- properties of values --------------------------------------------------------------------------------------- */

const char *value_type_name(Value v) {
    static const char *const seqs[] = {"list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"};
    switch (v.kind) {
    case V_NONE: return "NoneType";
    case V_BOOL: return "bool";
    case V_INT: return "int";
    case V_FLOAT: return "float";
    case V_TEXT: return "str";
    case V_SEQ: return seqs[v.seq->flavour];
    case V_DICT: return "dict";
    case V_NAMESPACE: return "Namespace";
    case V_LOOP: return "LoopContext";
    case V_MACRO: return "Macro";
    case V_FUNCTION: return "function";
    case V_CYCLER: return "Cycler";
    case V_JOINER: return "Joiner";
    default: return "Undefined";
    }
}

bool is_list_like(Value v) { return v.kind == V_SEQ && v.seq->flavour <= SEQ_RANGE; }

void value_need_defined(Work *w, Value v) {
    if (v.kind != V_UNDEFINED) return;
    if (!v.text) work_fail(w, FR_ERR_FORMAT, "an undefined value is used");
    work_fail(w, FR_ERR_FORMAT, "%.*s", (int)(v.text->n < 200 ? v.text->n : 200), v.text->data);
}

const Text *value_need_text(Work *w, Value v, const char *what) {
    value_need_defined(w, v);
    if (v.kind != V_TEXT) work_fail(w, FR_ERR_FORMAT, "%s must be a string, not %s", what, value_type_name(v));
    return v.text;
}

int64_t value_need_int(Work *w, Value v, const char *what) {
    value_need_defined(w, v);
    if (v.kind == V_BOOL) return v.b;
    if (v.kind != V_INT) work_fail(w, FR_ERR_FORMAT, "%s must be an integer, not %s", what, value_type_name(v));
    return v.i;
}

double value_to_double(Value v) { return v.kind == V_FLOAT ? v.f : v.kind == V_BOOL ? (double)v.b : (double)v.i; }

bool value_truth(Value v) {
    switch (v.kind) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_BOOL: return v.b;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_TEXT: return v.text->n > 0;
    case V_SEQ: return v.seq->flavour == SEQ_GENERATOR || v.seq->n > 0;
    case V_DICT: return v.dict->n > 0;
    default: return true;
    }
}

static bool seqs_equal(Work *w, const Seq *a, const Seq *b) {
    if (a == b) return true;
    if (a->flavour != b->flavour || a->n != b->n || a->flavour > SEQ_KEYS) return false;
    work_enter(w);
    bool same = true;
    for (size_t i = 0; i < a->n && same; i++) same = value_equal(w, a->items[i], b->items[i]);
    work_leave(w);
    return same;
}

static bool dicts_equal(Work *w, const Dict *a, const Dict *b) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    work_enter(w);
    bool same = true;
    for (size_t i = 0; i < a->n && same; i++) {
        const Value *other = dict_get(w, b, a->entries[i].key);
        same = other && value_equal(w, a->entries[i].value, *other);
    }
    work_leave(w);
    return same;
}

static int64_t as_int(Value v) { return v.kind == V_BOOL ? v.b : v.i; }

bool value_equal(Work *w, Value a, Value b) {
    work_spend(w, 0);
    if (is_number(a) && is_number(b)) {
        if (a.kind == V_FLOAT || b.kind == V_FLOAT) return value_to_double(a) == value_to_double(b);
        return as_int(a) == as_int(b);
    }
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case V_TEXT: return text_same(w, a.text, b.text);
    case V_SEQ: return seqs_equal(w, a.seq, b.seq);
    case V_DICT: return dicts_equal(w, a.dict, b.dict);
    case V_NAMESPACE: return a.dict == b.dict;
    case V_FUNCTION: return a.function == b.function;
    case V_MACRO: return a.macro == b.macro;
    case V_LOOP: return a.loop == b.loop;
    case V_CYCLER:
    case V_JOINER: return a.iterator == b.iterator;
    default: return true; /* none, undefined */
    }
}

static int order_numbers(Value a, Value b) {
    if (a.kind != V_FLOAT && b.kind != V_FLOAT) return as_int(a) < as_int(b) ? -1 : as_int(a) > as_int(b);
    double x = value_to_double(a), y = value_to_double(b);
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

static int order_seqs(Work *w, const Seq *a, const Seq *b, const char *operator_name) {
    work_enter(w);
    int order = 0;
    for (size_t i = 0; i < a->n && i < b->n && order == 0; i++)
        if (!value_equal(w, a->items[i], b->items[i])) order = value_order(w, a->items[i], b->items[i], operator_name);
    work_leave(w);
    return order ? order : a->n < b->n ? -1 : a->n > b->n;
}

int value_order(Work *w, Value a, Value b, const char *operator_name) {
    work_spend(w, 0);
    value_need_defined(w, a);
    value_need_defined(w, b);
    if (is_number(a) && is_number(b)) return order_numbers(a, b);
    if (a.kind == V_TEXT && b.kind == V_TEXT) {
        work_count(w, a.text->n < b.text->n ? a.text->n : b.text->n);
        return text_order(a.text, b.text);
    }
    if (a.kind == V_SEQ && b.kind == V_SEQ && a.seq->flavour == b.seq->flavour && a.seq->flavour <= SEQ_TUPLE)
        return order_seqs(w, a.seq, b.seq, operator_name);
    work_fail(w, FR_ERR_FORMAT, "'%s' is not supported between %s and %s", operator_name, value_type_name(a),
              value_type_name(b));
}

static uint64_t value_hash(Work *w, const HashKey *key, Value v);

static uint64_t hash_seq(Work *w, const HashKey *key, const Seq *s) {
    uint64_t h = s->n;
    work_enter(w);
    for (size_t i = 0; i < s->n; i++) h = keyed_hash_u64(key, h ^ value_hash(w, key, s->items[i]));
    work_leave(w);
    return h;
}

/* Equal values have equal hashes, so an integer and the float of the same value do. */
static uint64_t hash_double(const HashKey *key, double f) {
    uint64_t bits;
    if (f >= -9e18 && f <= 9e18 && f == floor(f)) return keyed_hash_u64(key, (uint64_t)(int64_t)f);
    memcpy(&bits, &f, sizeof bits);
    return keyed_hash_u64(key, bits);
}

static uint64_t value_hash(Work *w, const HashKey *key, Value v) {
    work_spend(w, v.kind == V_TEXT ? v.text->n : 0);
    switch (v.kind) {
    case V_BOOL: return keyed_hash_u64(key, v.b);
    case V_INT: return hash_double(key, (double)v.i);
    case V_FLOAT: return hash_double(key, v.f);
    case V_TEXT: return keyed_hash(key, v.text->data, v.text->n);
    case V_SEQ:
        if (v.seq->flavour == SEQ_TUPLE || v.seq->flavour == SEQ_RANGE) return hash_seq(w, key, v.seq);
        if (v.seq->flavour == SEQ_VALUES || v.seq->flavour == SEQ_GENERATOR)
            return v.kind; /* these are equal only to themselves */
        break;
    case V_DICT: break;
    default: return v.kind;
    }
    work_fail(w, FR_ERR_FORMAT, "a %s cannot be the key of a dict", value_type_name(v));
}

void value_need_hashable(Work *w, Value v) {
    HashKey none = {0};
    value_hash(w, &none, v);
}

/* Python hashes an item that is looked for in a dict or in a view of one, even if it is empty, and refuses what has
 * no hash. */
static void need_item_of_dict(Work *w, Value container, Value item) {
    bool is_pair = item.kind == V_SEQ && item.seq->flavour == SEQ_TUPLE && item.seq->n == 2;
    bool is_view = container.kind == V_SEQ;
    if (container.kind == V_DICT || (is_view && container.seq->flavour == SEQ_KEYS)) value_need_hashable(w, item);
    if (is_view && container.seq->flavour == SEQ_ITEMS && is_pair) value_need_hashable(w, item.seq->items[0]);
}

bool value_contains(Work *w, Value container, Value item) {
    if (container.kind == V_TEXT)
        return text_find(w, container.text, value_need_text(w, item, "what is looked for in a string"), 0) <=
               container.text->n;
    need_item_of_dict(w, container, item);
    if (container.kind == V_DICT) return dict_get(w, container.dict, item) != NULL;
    const Seq *items = value_items(w, container);
    for (size_t i = 0; i < items->n; i++)
        if (value_equal(w, items->items[i], item)) return true;
    return false;
}

int64_t value_length(Work *w, Value v) {
    switch (v.kind) {
    case V_UNDEFINED: return 0;
    case V_TEXT: return (int64_t)text_n_chars(w, v.text);
    case V_DICT: return (int64_t)v.dict->n;
    case V_SEQ:
        if (v.seq->flavour != SEQ_GENERATOR) return (int64_t)v.seq->n;
        break;
    default: break;
    }
    work_fail(w, FR_ERR_FORMAT, "a value of type %s has no length", value_type_name(v));
}

bool value_is_iterable(Value v) {
    return v.kind == V_UNDEFINED || v.kind == V_TEXT || v.kind == V_SEQ || v.kind == V_DICT;
}

static Seq *characters(Work *w, const Text *t) {
    Seq *s = seq_new(w, SEQ_LIST, 0);
    int32_t code;
    for (size_t at = 0, n; at < t->n; at += n) {
        work_spend(w, 0);
        n = char_next(t->data, t->n, at, &code);
        seq_add(w, s, value_text(text_slice(w, t, at, at + n)));
    }
    return s;
}

Seq *value_items(Work *w, Value v) {
    Seq *s;
    switch (v.kind) {
    case V_UNDEFINED: return seq_new(w, SEQ_LIST, 0);
    case V_TEXT: return characters(w, v.text);
    case V_DICT:
        work_spend(w, v.dict->n);
        s = seq_new(w, SEQ_LIST, v.dict->n);
        for (size_t i = 0; i < v.dict->n; i++) seq_add(w, s, v.dict->entries[i].key);
        return s;
    case V_SEQ:
        if (v.seq->flavour != SEQ_GENERATOR) return v.seq;
        s = seq_new(w, SEQ_LIST, 0);
        *s = *v.seq;
        s->flavour = SEQ_LIST;
        v.seq->n = v.seq->capacity = 0;
        return s;
    default: work_fail(w, FR_ERR_FORMAT, "a value of type %s cannot be iterated", value_type_name(v));
    }
}

/* ---- lists and dicts --------------------------------------------------------------------------------------------- */

enum { DICT_SCANNED = 8 }; /* up to this number, entries are compared one by one */

Value value_literal(Work *w, const char *text) { return value_text(text_new(w, text, strlen(text), false)); }

Seq *seq_new(Work *w, SeqFlavour flavour, size_t capacity) {
    Seq *s = work_alloc(w, sizeof *s);
    s->flavour = flavour;
    s->capacity = capacity ? capacity : 1;
    s->items = work_array(w, s->capacity, sizeof *s->items);
    return s;
}

void seq_add(Work *w, Seq *s, Value item) {
    work_count(w, 1);
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

/* Returns the slot of the entry with this key, or the free slot where it would be added. */
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
    work_spend(w, d->n_slots);
    d->slots = work_array(w, d->n_slots, sizeof *d->slots);
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
