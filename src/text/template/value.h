/* value.h - the values that the expressions of a template compute: those of Python that chat templates use.
 *
 * Values are allocated in a Work, are immutable, and may be shared freely. There are three exceptions: {% set ns.x =
 * ... %} changes a namespace; a generator, which `map`, `select` and others return, is empty after it was read once,
 * as in Python; and a cycler or joiner changes when it is used. */
#ifndef TEMPLATE_VALUE_H
#define TEMPLATE_VALUE_H

#include "base/hash.h"
#include "text/template/template_text.h"

typedef enum ValueKind {
    V_MISSING,   /* an argument that was not given */
    V_UNDEFINED, /* text: the error that using it causes; NULL: a general one */
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_TEXT,
    V_SEQ,
    V_DICT,
    V_NAMESPACE, /* dict: its attributes */
    V_FUNCTION,  /* a global function or a method of a value */
    V_MACRO,
    V_LOOP, /* the variable `loop` */
    V_CYCLER,
    V_JOINER,
} ValueKind;

typedef struct Seq Seq;
typedef struct Dict Dict;

typedef struct Value {
    ValueKind kind;
    union {
        bool b;
        int64_t i;
        double f;
        const Text *text;
        Seq *seq;
        Dict *dict;
        const struct Function *function;
        const struct Macro *macro;
        const struct Loop *loop;
        struct Iterator *iterator;
    };
} Value;

typedef enum SeqFlavour { SEQ_LIST, SEQ_TUPLE, SEQ_RANGE, SEQ_KEYS, SEQ_VALUES, SEQ_ITEMS, SEQ_GENERATOR } SeqFlavour;

struct Seq {
    SeqFlavour flavour;
    Value *items;
    size_t n, capacity;
    int64_t start, stop, step; /* the arguments of range(), for SEQ_RANGE */
};

typedef struct DictEntry {
    Value key, value;
} DictEntry;

struct Dict {
    DictEntry *entries; /* [n] in the order of insertion */
    size_t n, capacity;
    uint32_t *slots; /* [n_slots] 1 + the index of an entry; 0: a free slot. NULL while there are few entries */
    size_t n_slots;
    HashKey key;
};

/* A cycler or a joiner. */
typedef struct Iterator {
    const Value *items;
    size_t n, at;
} Iterator;

/* ---- making values ------------------------------------------------------------------------------------- */

static inline Value value_none(void) { return (Value){.kind = V_NONE}; }
static inline Value value_bool(bool b) { return (Value){.kind = V_BOOL, .b = b}; }
static inline Value value_int(int64_t i) { return (Value){.kind = V_INT, .i = i}; }
static inline Value value_float(double f) { return (Value){.kind = V_FLOAT, .f = f}; }
static inline Value value_text(const Text *t) { return (Value){.kind = V_TEXT, .text = t}; }
static inline Value value_seq(Seq *s) { return (Value){.kind = V_SEQ, .seq = s}; }
static inline Value value_dict(Dict *d) { return (Value){.kind = V_DICT, .dict = d}; }
static inline Value value_undefined(const Text *name) { return (Value){.kind = V_UNDEFINED, .text = name}; }
Value value_literal(Work *w, const char *text); /* a string of the template's own */

Seq *seq_new(Work *w, SeqFlavour flavour, size_t capacity);
void seq_add(Work *w, Seq *s, Value item);
Value seq_pair(Work *w, Value a, Value b); /* a tuple */

Dict *dict_new(Work *w);
void dict_set(Work *w, Dict *d, Value key, Value value);
const Value *dict_get(Work *w, const Dict *d, Value key); /* NULL: the key does not exist */
const Value *dict_get_text(Work *w, const Dict *d, const char *key);

/* ---- properties ---------------------------------------------------------------------- */

static inline bool is_text(Value v) { return v.kind == V_TEXT; }
static inline bool is_number(Value v) { return v.kind == V_BOOL || v.kind == V_INT || v.kind == V_FLOAT; }
bool is_list_like(Value v); /* list, tuple or range: what can be indexed */

bool value_truth(Value v);
bool value_equal(Work *w, Value a, Value b);
int value_order(Work *w, Value a, Value b,
                const char *operator_name); /* negative, 0 or 1; 2 for a comparison with NaN, which is neither */
void value_need_hashable(Work *w, Value v); /* refuses what cannot be a key, such as a list */
bool value_contains(Work *w, Value container, Value item);
int64_t value_length(Work *w, Value v);
/* Returns the items over which `for` would iterate. It refuses other values. A generator is empty afterwards. */
Seq *value_items(Work *w, Value v);
bool value_is_iterable(Value v);
const char *value_type_name(Value v); /* as in Python: "str", "dict", ... */

/* Refuses an undefined value, with the error message that Jinja has for it. */
void value_need_defined(Work *w, Value v);
const Text *value_need_text(Work *w, Value v, const char *what);
int64_t value_need_int(Work *w, Value v, const char *what);
double value_to_double(Value number);

/* ---- as text (python_text.c) ------------------------------------------------------------- */

const Text *value_str(Work *w, Value v);   /* str(v); an empty string for an undefined value */
void value_write(TextBuilder *b, Value v); /* appends str(v) */
void value_write_repr(TextBuilder *b, Value v);
size_t double_write(char out[32], double f); /* writes repr(f), and returns its length */
bool double_read(const char *text, size_t n, double *out);

/* ---- JSON (template_json.c) ------------------------------------------------------------------ */

typedef struct JsonStyle {
    int indent; /* -1: all on one line */
    const Text *item_separator, *key_separator;
    bool sort_keys, ensure_ascii;
} JsonStyle;

/* `mark` is a TemplateMark (template.h). */
Value json_read(Work *w, const char *json, size_t n, int mark);
const Text *json_write(Work *w, Value v, const JsonStyle *style);

#endif
