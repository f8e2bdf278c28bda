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

enum { MAX_DEPTH = 200 };

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
bool schema_is_annotation(const Text *k) {
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
        if (!schema_is_annotation(k) && !is_structural(k) && !type_of_keyword(k))
            schema_fail(s, "the keyword '%.*s' is not supported", k->n < 60 ? (int)k->n : 60, k->data);
    }
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
    for (int i = 0; i < 8 && (ref = schema_get(s, a, "$ref")) && ref->kind == V_TEXT; i++)
        a = schema_resolve(s, ref->text);
    for (int i = 0; i < 8 && (ref = schema_get(s, b, "$ref")) && ref->kind == V_TEXT; i++)
        b = schema_resolve(s, ref->text);
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
        if (!schema_is_annotation(d->entries[i].key.text)) return true;
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
        if (says_anything(rest.dict)) one = schema_both(s, rest, one);
        expr_add(s->w, alt, schema_below(s, keyword, number, one));
    }
    return alt;
}

static const Expr *of_all(Schema *s, Value schema) {
    const Seq *all = schema_list(s, schema, "allOf");
    Value merged = without(s, schema.dict, "allOf");
    for (size_t i = 0; i < all->n; i++) merged = schema_both(s, merged, all->items[i]);
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
    Value target = schema_resolve(s, reference->text);
    if (says_anything(rest.dict)) {
        const JsonStyle style = {.indent = -1,
                                 .item_separator = value_literal(s->w, ",").text,
                                 .key_separator = value_literal(s->w, ":").text};
        builder_add_bytes(&name, space, 1, false);
        builder_add(&name, json_write(s->w, rest, &style));
        target = schema_both(s, rest, target);
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
