/* schema.c - turns a JSON schema (drafts 7 to 2020-12, as far as servers use it) into a grammar of the JSON texts that
 * it allows.
 *
 * The problem: a schema tests values, and a grammar writes texts. Every text of the grammar must be valid, and the
 * model cannot write a text that the grammar lacks. So nothing is ignored that could make a text invalid: a keyword
 * that is not supported is refused by its name and place.
 *
 * Values are written in one of few ways. Members come in the order of `properties`; where names are given and
 * `additionalProperties` is not, there are no other members. Numbers have at most 16 digits before and after the point.
 * There is little white space: nothing, a blank, or the end of a line with at most 32 blanks or tabs, and only after
 * { [ , : and before } ].
 *
 * A reference becomes a rule, so schemas may be recursive. allOf, and keywords beside a reference or anyOf, are first
 * merged into one schema. oneOf is read as anyOf, and a notice says so where the alternatives do not differ in their
 * type, in a constant, or in a member that is constant in each.
 *
 * docs/CONSTRAINED.md lists the keywords. Proof: tests/grammar/test_schema.c; bench/schemas has a program that compares
 * hundreds of generated schemas with npm's ajv. */
#include "grammar/schema.h"
#include "text/template/template.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 200, MAX_REFERENCES = 100, MAX_PRODUCT = 1000 };

void schema_fail(const Schema *s, const char *fmt, ...) {
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    work_fail(s->w, FR_ERR_ARGUMENT, "JSON schema, at #%s: %s", s->path, text);
}

const Value *schema_get(const Schema *s, Value schema, const char *keyword) {
    return schema.kind == V_DICT ? dict_get_text(s->w, schema.dict, keyword) : NULL;
}

bool schema_count(const Schema *s, Value schema, const char *keyword, int32_t *out) {
    const Value *v = schema_get(s, schema, keyword);
    if (!v) return false;
    double count = v->kind == V_INT ? (double)v->i : v->kind == V_FLOAT ? v->f : -1;
    if (!(count >= 0) || count != floor(count)) schema_fail(s, "'%s' must be an integer from 0 on", keyword);
    if (count > EXPR_MAX_COUNT) schema_fail(s, "'%s' is above %d, which is the limit", keyword, EXPR_MAX_COUNT);
    *out = (int32_t)count;
    return true;
}

Seq *schema_list(const Schema *s, Value schema, const char *keyword) {
    const Value *v = schema_get(s, schema, keyword);
    if (!v) return NULL;
    if (v->kind != V_SEQ) schema_fail(s, "'%s' must be an array", keyword);
    return v->seq;
}

Dict *schema_dict(const Schema *s, Value schema, const char *keyword) {
    const Value *v = schema_get(s, schema, keyword);
    if (!v) return NULL;
    if (v->kind != V_DICT) schema_fail(s, "'%s' must be an object", keyword);
    return v->dict;
}

const Expr *schema_below(Schema *s, const char *keyword, const char *name, Value schema) {
    size_t before = s->n_path;
    int n = snprintf(s->path + before, sizeof s->path - before, name ? "/%s/%s" : "/%s", keyword, name);
    if (n > 0) s->n_path = strlen(s->path);
    const Expr *e = schema_expr(s, schema);
    s->n_path = before;
    s->path[before] = '\0';
    return e;
}

/* Returns whether a keyword does not restrict the valid values. */
static bool is_annotation(const Text *k) {
    static const char *const names[] = {"title",      "description", "default",         "examples",        "$schema",
                                        "$id",        "id",          "$comment",        "readOnly",        "writeOnly",
                                        "deprecated", "$defs",       "definitions",     "example",         "$anchor",
                                        "strict",     "name",        "contentEncoding", "contentMediaType"};
    if (k->n > 2 && memcmp(k->data, "x-", 2) == 0) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (text_is(k, names[i])) return true;
    return false;
}

/* ---- which type a keyword is about ----------------------------------------------------------------------- */

static const struct {
    const char *type;
    const char *keywords[16];
} keywords_of[] = {
    {"object",
     {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
      "propertyNames", NULL}},
    {"array", {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", NULL}},
    {"string", {"minLength", "maxLength", "pattern", "format", NULL}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", NULL}},
};

/* Returns the type that a keyword restricts. NULL: it restricts none. */
static const char *type_of_keyword(const Text *keyword) {
    for (size_t i = 0; i < sizeof keywords_of / sizeof *keywords_of; i++)
        for (const char *const *k = keywords_of[i].keywords; *k; k++)
            if (text_is(keyword, *k)) return keywords_of[i].type;
    return NULL;
}

static const char *const structural[] = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", NULL};

static bool is_structural(const Text *keyword) {
    for (const char *const *k = structural; *k; k++)
        if (text_is(keyword, *k)) return true;
    return false;
}

static void check_keywords(const Schema *s, const Dict *d) {
    for (size_t i = 0; i < d->n; i++) {
        const Text *k = d->entries[i].key.text;
        if (!is_annotation(k) && !is_structural(k) && !type_of_keyword(k))
            schema_fail(s, "the keyword '%.*s' is not supported", k->n < 60 ? (int)k->n : 60, k->data);
    }
}

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

static Value resolve(Schema *s, const Text *reference) {
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

static Value both_of(Schema *s, Value a, Value b);

/* ---- one schema where two hold ---------------------------------------------------------------------------
 *
 * allOf is common in schemas that share parts, and a grammar cannot intersect languages. But most keywords combine:
 * the result has the greater of two minima and the union of `required`, and a member that both schemas name gets a
 * schema that is merged in turn. Where two keywords do not combine, such as two patterns, the schema is refused. */

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
    if (is_annotation(k)) return a;
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
    if (reference) out = both_of(s, out, flattened(s, resolve(s, reference->text), depth + 1));
    for (size_t i = 0; all && i < all->seq->n; i++) out = both_of(s, out, flattened(s, all->seq->items[i], depth + 1));
    return out;
}

static Value both_of(Schema *s, Value a, Value b) {
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

/* ---- types ----------------------------------------------------------------------------------------------- */

static const Expr *null_or_boolean(Schema *s, bool is_null) {
    if (is_null) return expr_literal(s->w, "null");
    return expr_alt_of(s->w, expr_literal(s->w, "true"), expr_literal(s->w, "false"));
}

static const Expr *of_type(Schema *s, Value schema, const Value *type) {
    if (type->kind != V_TEXT) schema_fail(s, "'type' must be a string or an array of strings");
    if (text_is(type->text, "object")) return schema_object(s, schema);
    if (text_is(type->text, "array")) return schema_array(s, schema);
    if (text_is(type->text, "string")) return schema_string(s, schema);
    if (text_is(type->text, "number")) return schema_number(s, schema, false);
    if (text_is(type->text, "integer")) return schema_number(s, schema, true);
    if (text_is(type->text, "boolean")) return null_or_boolean(s, false);
    if (text_is(type->text, "null")) return null_or_boolean(s, true);
    schema_fail(s, "there is no type '%.*s'", type->text->n < 60 ? (int)type->text->n : 60, type->text->data);
}

static const Expr *of_types(Schema *s, Value schema, const Seq *types) {
    Expr *alt = expr_alt(s->w);
    for (size_t i = 0; i < types->n; i++) expr_add(s->w, alt, of_type(s, schema, &types->items[i]));
    return alt;
}

/* A schema without `type` allows the types that its keywords are about, or any value if it has no such keywords. */
static const Expr *of_keywords(Schema *s, Value schema) {
    Expr *alt = expr_alt(s->w);
    for (size_t t = 0; t < sizeof keywords_of / sizeof *keywords_of; t++) {
        bool is_meant = false;
        for (const char *const *k = keywords_of[t].keywords; *k; k++) is_meant |= schema_get(s, schema, *k) != NULL;
        if (is_meant)
            expr_add(
                s->w, alt,
                of_type(s, schema, &(Value){.kind = V_TEXT, .text = value_literal(s->w, keywords_of[t].type).text}));
    }
    return alt->n_parts > 0 ? alt : schema_any(s);
}

/* ---- constants ------------------------------------------------------------------------------------------- */

static bool type_fits(const Schema *s, const Value *type, Value v) {
    if (!type || type->kind == V_MISSING) return true;
    if (type->kind == V_SEQ) {
        work_spend(s->w, 64 * type->seq->n);
        for (size_t i = 0; i < type->seq->n; i++)
            if (type_fits(s, &type->seq->items[i], v)) return true;
        return false;
    }
    if (type->kind != V_TEXT) return false;
    bool is_whole = v.kind == V_INT || (v.kind == V_FLOAT && v.f == floor(v.f));
    switch (v.kind) {
    case V_NONE: return text_is(type->text, "null");
    case V_BOOL: return text_is(type->text, "boolean");
    case V_INT:
    case V_FLOAT: return text_is(type->text, "number") || (is_whole && text_is(type->text, "integer"));
    case V_TEXT: return text_is(type->text, "string");
    case V_SEQ: return text_is(type->text, "array");
    case V_DICT: return text_is(type->text, "object");
    default: return false;
    }
}

/* enum and const allow those of their values that have the type. Other keywords next to them are refused. */
static const Expr *of_constants(Schema *s, Value schema, const Seq *values, const Value *constant) {
    const Value *type = schema_get(s, schema, "type");
    for (size_t i = 0; i < schema.dict->n; i++) {
        const Text *k = schema.dict->entries[i].key.text;
        if (type_of_keyword(k))
            schema_fail(s, "'%.*s' beside enum or const is not supported; leave out the values that it excludes",
                        (int)k->n, k->data);
    }
    Expr *alt = expr_alt(s->w);
    if (!values && type_fits(s, type, *constant)) expr_add(s->w, alt, schema_constant(s, *constant));
    for (size_t i = 0; values && i < values->n; i++)
        if (type_fits(s, type, values->items[i]) && (!constant || value_equal(s->w, values->items[i], *constant)))
            expr_add(s->w, alt, schema_constant(s, values->items[i]));
    return alt;
}

/* ---- alternatives ---------------------------------------------------------------------------------------- */

/* Returns the only value that a schema allows by const or enum. NULL: there are several, or none is named. */
static const Value *constant_of(const Schema *s, Value schema) {
    const Value *v = schema_get(s, schema, "const");
    const Value *values = schema_get(s, schema, "enum");
    if (!v && values && values->kind == V_SEQ && values->seq->n == 1) v = &values->seq->items[0];
    return v;
}

static bool differ(const Schema *s, const Value *a, const Value *b) { return a && b && !value_equal(s->w, *a, *b); }

static bool types_differ(const Schema *s, Value a, Value b) {
    const Value *x = schema_get(s, a, "type"), *y = schema_get(s, b, "type");
    if (!x || !y || x->kind != V_TEXT || y->kind != V_TEXT || text_equal(x->text, y->text)) return false;
    bool x_number = text_is(x->text, "number") || text_is(x->text, "integer");
    return !x_number || !(text_is(y->text, "number") || text_is(y->text, "integer"));
}

static bool is_required(const Schema *s, Value schema, Value name) {
    const Value *required = schema_get(s, schema, "required");
    return required && required->kind == V_SEQ && value_contains(s->w, *required, name);
}

/* Returns whether it is easily seen that no value is valid under both schemas. */
static bool are_disjoint(Schema *s, Value a, Value b) {
    const Value *ref;
    for (int i = 0; i < 8 && (ref = schema_get(s, a, "$ref")) && ref->kind == V_TEXT; i++) a = resolve(s, ref->text);
    for (int i = 0; i < 8 && (ref = schema_get(s, b, "$ref")) && ref->kind == V_TEXT; i++) b = resolve(s, ref->text);
    if (types_differ(s, a, b) || differ(s, constant_of(s, a), constant_of(s, b))) return true;
    const Value *x = schema_get(s, a, "properties"), *y = schema_get(s, b, "properties");
    if (!x || !y || x->kind != V_DICT || y->kind != V_DICT) return false;
    for (size_t i = 0; i < x->dict->n; i++) {
        Value name = x->dict->entries[i].key;
        const Value *other = dict_get(s->w, y->dict, name);
        if (other && is_required(s, a, name) && is_required(s, b, name) &&
            (types_differ(s, x->dict->entries[i].value, *other) ||
             differ(s, constant_of(s, x->dict->entries[i].value), constant_of(s, *other))))
            return true;
    }
    return false;
}

static void note_one_of(Schema *s, const Seq *alternatives) {
    for (size_t i = 0; i < alternatives->n && i < 64; i++)
        for (size_t k = i + 1; k < alternatives->n && k < 64; k++)
            if (!are_disjoint(s, alternatives->items[i], alternatives->items[k])) {
                if (s->notice_size > 0 && !s->notice[0])
                    snprintf(s->notice, s->notice_size,
                             "at #%s, oneOf is read as anyOf: a value may be valid under several of its alternatives",
                             s->path);
                return;
            }
}

static Value without(Schema *s, const Dict *from, const char *keyword) {
    Dict *d = dict_new(s->w);
    for (size_t i = 0; i < from->n; i++)
        if (!text_is(from->entries[i].key.text, keyword))
            dict_set(s->w, d, from->entries[i].key, from->entries[i].value);
    return value_dict(d);
}

static bool says_anything(const Dict *d) {
    for (size_t i = 0; i < d->n; i++)
        if (!is_annotation(d->entries[i].key.text)) return true;
    return false;
}

static const Expr *of_alternatives(Schema *s, Value schema, const char *keyword) {
    const Seq *alternatives = schema_list(s, schema, keyword);
    Value rest = without(s, schema.dict, keyword);
    Expr *alt = expr_alt(s->w);
    char number[24];
    if (strcmp(keyword, "oneOf") == 0) note_one_of(s, alternatives);
    for (size_t i = 0; i < alternatives->n; i++) {
        snprintf(number, sizeof number, "%zu", i);
        Value one = alternatives->items[i];
        if (says_anything(rest.dict)) one = both_of(s, rest, one);
        expr_add(s->w, alt, schema_below(s, keyword, number, one));
    }
    return alt;
}

static const Expr *of_all(Schema *s, Value schema) {
    const Seq *all = schema_list(s, schema, "allOf");
    Value merged = without(s, schema.dict, "allOf");
    for (size_t i = 0; i < all->n; i++) merged = both_of(s, merged, all->items[i]);
    return schema_expr(s, merged);
}

/* ---- references ------------------------------------------------------------------------------------------ */

/* Returns a call of the rule with this name. Its expression is made at the first call, and a recursive schema calls the
 * rule again meanwhile. */
static const Expr *rule_of(Schema *s, const char *name, Value schema) {
    int32_t rule = keyed_names_find(&s->rules, name);
    if (rule < 0) {
        rule = expr_add_rule(s->g, name);
        keyed_names_add(s->w, &s->rules, name, rule);
        const Expr *body = schema_expr(s, schema);
        s->g->rules[rule].body = body;
    }
    return expr_rule(s->w, rule);
}

/* Keywords next to a reference hold as well. */
static const Expr *of_reference(Schema *s, Value schema, const Value *reference) {
    static const char space[] = " ";
    if (reference->kind != V_TEXT) schema_fail(s, "'$ref' must be a string");
    Value rest = without(s, schema.dict, "$ref");
    TextBuilder name = builder_new(s->w);
    builder_add(&name, reference->text);
    Value target = resolve(s, reference->text);
    if (says_anything(rest.dict)) {
        const JsonStyle style = {.indent = -1,
                                 .item_separator = value_literal(s->w, ",").text,
                                 .key_separator = value_literal(s->w, ":").text};
        builder_add_bytes(&name, space, 1, false);
        builder_add(&name, json_write(s->w, rest, &style));
        target = both_of(s, rest, target);
    }
    builder_add_bytes(&name, "", 1, false);
    return rule_of(s, builder_text(&name)->data, target);
}

/* ---- the schema ------------------------------------------------------------------------------------------ */

static const Expr *of_dict(Schema *s, Value schema) {
    check_keywords(s, schema.dict);
    const Value *v = schema_get(s, schema, "$ref"), *constant = schema_get(s, schema, "const");
    if (v) return of_reference(s, schema, v);
    if (schema_get(s, schema, "allOf")) return of_all(s, schema);
    if (schema_get(s, schema, "anyOf")) return of_alternatives(s, schema, "anyOf");
    if (schema_get(s, schema, "oneOf")) return of_alternatives(s, schema, "oneOf");
    const Seq *values = schema_list(s, schema, "enum");
    if (values || constant) return of_constants(s, schema, values, constant);
    if (!(v = schema_get(s, schema, "type"))) return of_keywords(s, schema);
    return v->kind == V_SEQ ? of_types(s, schema, v->seq) : of_type(s, schema, v);
}

const Expr *schema_expr(Schema *s, Value schema) {
    work_spend(s->w, 0);
    if (++s->depth > MAX_DEPTH) schema_fail(s, "schemas are nested deeper than %d, which is the limit", MAX_DEPTH);
    const Expr *e;
    if (schema.kind == V_BOOL) e = schema.b ? schema_any(s) : expr_nothing(s->w);
    else if (schema.kind == V_DICT) e = of_dict(s, schema);
    else schema_fail(s, "a schema must be an object, true or false");
    s->depth--;
    return e;
}

const Expr *schema_text(ExprGrammar *g, const char *text, size_t n, char *notice, size_t notice_size) {
    Schema s = {.g = g,
                .w = g->w,
                .root = json_read(g->w, text, n, TEMPLATE_OWN),
                .notice = notice,
                .notice_size = notice_size};
    return schema_expr(&s, s.root);
}

void schema_read(ExprGrammar *g, const char *text, size_t n, char *notice, size_t notice_size) {
    g->root = expr_add_rule(g, "the schema");
    const Expr *body = schema_text(g, text, n, notice, notice_size);
    g->rules[g->root].body = body;
}
