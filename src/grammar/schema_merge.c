/* schema_merge.c - resolves references, and makes one schema where two hold together.
 *
 * allOf is common in schemas that share parts, and a grammar cannot intersect languages. But most keywords combine: the
 * result has the greater of two minima and the union of `required`, and a member that both schemas name gets a schema
 * that is merged in turn. Where two keywords do not combine, such as two patterns, the schema is refused. */
#include "grammar/schema.h"

#include <string.h>

enum { MAX_REFERENCES = 100, MAX_PRODUCT = 1000 };

/* ---- JSON pointers --------------------------------------------------------------------------------------- */

/* Decodes a part of a JSON pointer: ~1 is '/', ~0 is '~', and %XX is a byte, because the pointer is part of a URI. */
static const Text *pointer_part(Schema *s, const char *part, size_t n) {
    TextBuilder b = builder_new(s->w);
    for (size_t i = 0; i < n; i++) {
        char c = part[i];
        if (c == '~' && i + 1 < n && (part[i + 1] == '0' || part[i + 1] == '1')) c = part[++i] == '0' ? '~' : '/';
        else if (c == '%' && n - i > 2) {
            Cursor hex = {.w = s->w, .text = part, .n = n, .at = i + 1, .what = "a reference"};
            c = (char)cursor_hex(&hex, 2);
            i += 2;
        }
        builder_add_bytes(&b, &c, 1, false);
    }
    return builder_text(&b);
}

static const Value *step_into(Schema *s, Value at, const Text *part) {
    if (at.kind == V_DICT) return dict_get(s->w, at.dict, value_text(part));
    if (at.kind != V_SEQ || part->n == 0 || part->n > 9) return NULL;
    size_t index = 0;
    for (size_t i = 0; i < part->n; i++) {
        if (part->data[i] < '0' || part->data[i] > '9') return NULL;
        index = 10 * index + (size_t)(part->data[i] - '0');
    }
    return index < at.seq->n ? &at.seq->items[index] : NULL;
}

Value schema_resolve(Schema *s, const Text *reference) {
    const char *p = reference->data, *end = p + reference->n;
    int n_shown = reference->n < 100 ? (int)reference->n : 100;
    if (p == end || *p != '#' || (p + 1 < end && p[1] != '/'))
        schema_fail(s, "the reference '%.*s' is not supported: only those within the schema are, such as #/$defs/name",
                    n_shown, p);
    const Value *at = &s->root;
    for (p++; p < end;) {
        const char *slash = memchr(p + 1, '/', (size_t)(end - p - 1));
        if (!slash) slash = end;
        at = step_into(s, *at, pointer_part(s, p + 1, (size_t)(slash - p - 1)));
        if (!at) schema_fail(s, "the reference '%.*s' leads nowhere", n_shown, reference->data);
        p = slash;
    }
    return *at;
}

/* ---- one schema where two hold --------------------------------------------------------------------------- */

static Value all_of(Schema *s, Value a, Value b) {
    Dict *d = dict_new(s->w);
    Seq *both = seq_new(s->w, SEQ_LIST, 2);
    seq_add(s->w, both, a);
    seq_add(s->w, both, b);
    dict_set(s->w, d, value_literal(s->w, "allOf"), value_seq(both));
    return value_dict(d);
}

static Value common_types(Schema *s, Value a, Value b) {
    Seq *left = seq_new(s->w, SEQ_LIST, 1), *x = left, *y = seq_new(s->w, SEQ_LIST, 1),
        *out = seq_new(s->w, SEQ_LIST, 1);
    if (a.kind == V_SEQ) x = a.seq;
    else seq_add(s->w, x, a);
    if (b.kind == V_SEQ) y = b.seq;
    else seq_add(s->w, y, b);
    for (size_t i = 0; i < x->n; i++) {
        work_spend(s->w, 64 * y->n);
        for (size_t k = 0; k < y->n; k++) {
            Value p = x->items[i], q = y->items[k];
            if (!is_text(p) || !is_text(q)) schema_fail(s, "'type' must be a string or an array of strings");
            if (text_equal(p.text, q.text)) seq_add(s->w, out, p);
            else if (text_is(p.text, "integer") && text_is(q.text, "number")) seq_add(s->w, out, p);
            else if (text_is(p.text, "number") && text_is(q.text, "integer")) seq_add(s->w, out, q);
        }
    }
    return value_seq(out);
}

static Value common_values(Schema *s, Value a, Value b) {
    Seq *out = seq_new(s->w, SEQ_LIST, 4);
    if (a.kind != V_SEQ || b.kind != V_SEQ) schema_fail(s, "'enum' must be an array");
    for (size_t i = 0; i < a.seq->n; i++)
        if (value_contains(s->w, b, a.seq->items[i])) seq_add(s->w, out, a.seq->items[i]);
    return value_seq(out);
}

static Value united(Schema *s, Value a, Value b) {
    Seq *out = seq_new(s->w, SEQ_LIST, 4);
    if (a.kind != V_SEQ || b.kind != V_SEQ) schema_fail(s, "'required' must be an array");
    for (size_t i = 0; i < a.seq->n; i++) seq_add(s->w, out, a.seq->items[i]);
    for (size_t i = 0; i < b.seq->n; i++)
        if (!value_contains(s->w, a, b.seq->items[i])) seq_add(s->w, out, b.seq->items[i]);
    return value_seq(out);
}

/* Two anyOf hold together where an alternative of each holds: all pairs are alternatives of the result. */
static Value product(Schema *s, Value a, Value b) {
    Seq *out = seq_new(s->w, SEQ_LIST, 4);
    if (a.kind != V_SEQ || b.kind != V_SEQ) schema_fail(s, "'anyOf' must be an array");
    if (a.seq->n * b.seq->n > MAX_PRODUCT)
        schema_fail(s, "the alternatives of several anyOf make more than %d combinations", MAX_PRODUCT);
    for (size_t i = 0; i < a.seq->n; i++)
        for (size_t k = 0; k < b.seq->n; k++) seq_add(s->w, out, all_of(s, a.seq->items[i], b.seq->items[k]));
    return value_seq(out);
}

static bool starts_with(const Text *t, const char *start) {
    size_t n = strlen(start);
    return t->n >= n && memcmp(t->data, start, n) == 0;
}

static bool is_minimum(const Text *k) {
    return starts_with(k, "min") || text_is(k, "exclusiveMinimum") || text_is(k, "uniqueItems");
}

static bool is_maximum(const Text *k) { return starts_with(k, "max") || text_is(k, "exclusiveMaximum"); }

/* Returns the schema of a member that one side names. The other side may name it too, or restrict all members that it
 * does not name. */
static Value member_of(Schema *s, Value member, Value other, Value name) {
    const Value *theirs = schema_get(s, other, "properties"), *rest = schema_get(s, other, "additionalProperties");
    if (theirs && theirs->kind == V_DICT && (theirs = dict_get(s->w, theirs->dict, name)))
        return all_of(s, member, *theirs);
    if (!rest || (rest->kind == V_BOOL && rest->b)) return member;
    return rest->kind == V_BOOL ? value_bool(false) : all_of(s, member, *rest);
}

static Value all_members(Schema *s, Value a, Value b) {
    Dict *out = dict_new(s->w);
    Dict *x = schema_dict(s, a, "properties"), *y = schema_dict(s, b, "properties");
    for (size_t i = 0; x && i < x->n; i++)
        dict_set(s->w, out, x->entries[i].key, member_of(s, x->entries[i].value, b, x->entries[i].key));
    for (size_t i = 0; y && i < y->n; i++)
        if (!dict_get(s->w, out, y->entries[i].key))
            dict_set(s->w, out, y->entries[i].key, member_of(s, y->entries[i].value, a, y->entries[i].key));
    return value_dict(out);
}

static Value merge_keyword(Schema *s, const Text *k, Value a, Value b) {
    if (schema_is_annotation(k)) return a;
    if (text_is(k, "type")) return common_types(s, a, b);
    if (text_is(k, "enum")) return common_values(s, a, b);
    if (text_is(k, "required")) return united(s, a, b);
    if (text_is(k, "anyOf") || text_is(k, "oneOf")) return product(s, a, b);
    if (text_is(k, "items") || text_is(k, "additionalProperties")) return all_of(s, a, b);
    if (value_equal(s->w, a, b)) return a;
    if (is_number(a) && is_number(b)) {
        if (is_minimum(k)) return value_order(s->w, a, b, "<") < 0 ? b : a;
        if (is_maximum(k)) return value_order(s->w, a, b, "<") < 0 ? a : b;
    }
    schema_fail(s, "two values of '%.*s' that hold together (allOf, or beside a reference) are not supported",
                k->n < 60 ? (int)k->n : 60, k->data);
}

/* Resolves references and allOf at the top of a schema, so that its keywords can be merged. */
static Value flattened(Schema *s, Value v, int depth) {
    if (depth > MAX_REFERENCES) schema_fail(s, "allOf and references refer to each other without end");
    if (v.kind != V_DICT) return v;
    const Value *reference = schema_get(s, v, "$ref"), *all = schema_get(s, v, "allOf");
    if (!reference && !all) return v;
    Dict *rest = dict_new(s->w);
    for (size_t i = 0; i < v.dict->n; i++)
        if (!text_is(v.dict->entries[i].key.text, "$ref") && !text_is(v.dict->entries[i].key.text, "allOf"))
            dict_set(s->w, rest, v.dict->entries[i].key, v.dict->entries[i].value);
    Value out = value_dict(rest);
    if (reference && reference->kind != V_TEXT) schema_fail(s, "'$ref' must be a string");
    if (all && all->kind != V_SEQ) schema_fail(s, "'allOf' must be an array");
    if (reference) out = schema_both(s, out, flattened(s, schema_resolve(s, reference->text), depth + 1));
    for (size_t i = 0; all && i < all->seq->n; i++)
        out = schema_both(s, out, flattened(s, all->seq->items[i], depth + 1));
    return out;
}

Value schema_both(Schema *s, Value a, Value b) {
    work_spend(s->w, 0);
    a = flattened(s, a, 0);
    b = flattened(s, b, 0);
    if (a.kind == V_BOOL) return a.b ? b : a;
    if (b.kind == V_BOOL) return b.b ? a : b;
    if (a.kind != V_DICT || b.kind != V_DICT) schema_fail(s, "a schema must be an object, true or false");
    Dict *out = dict_new(s->w);
    bool has_members = schema_get(s, a, "properties") || schema_get(s, b, "properties");
    if (has_members && (schema_get(s, a, "patternProperties") || schema_get(s, b, "patternProperties")))
        schema_fail(s, "'patternProperties' is not supported in allOf or beside a reference");
    for (size_t i = 0; i < a.dict->n; i++) {
        const DictEntry *e = &a.dict->entries[i];
        const Value *other = dict_get(s->w, b.dict, e->key);
        if (!text_is(e->key.text, "properties"))
            dict_set(s->w, out, e->key, other ? merge_keyword(s, e->key.text, e->value, *other) : e->value);
    }
    for (size_t i = 0; i < b.dict->n; i++) {
        const DictEntry *e = &b.dict->entries[i];
        if (!text_is(e->key.text, "properties") && !dict_get(s->w, a.dict, e->key))
            dict_set(s->w, out, e->key, e->value);
    }
    if (has_members) dict_set(s->w, out, value_literal(s->w, "properties"), all_members(s, a, b));
    return value_dict(out);
}
