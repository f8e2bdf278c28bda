/* schema_values.c - expressions of JSON itself: white space, strings, constants, any value. */
#include "grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_INDENT = 32 };

const Expr *schema_rule(Schema *s, const char *name, const Expr *(*make)(Schema *s)) {
    int32_t rule = keyed_names_find(&s->rules, name);
    if (rule < 0) {
        rule = expr_add_rule(s->g, name);
        keyed_names_add(s->w, &s->rules, name, rule);
        const Expr *body = make(s);
        s->g->rules[rule].body = body;
    }
    return expr_rule(s->w, rule);
}

static const Expr *make_space(Schema *s) {
    Work *w = s->w;
    CodeSet indent = {0};
    code_set_add(w, &indent, '\t', '\t');
    code_set_add(w, &indent, ' ', ' ');
    const Expr *line = expr_seq_of(w, expr_literal(w, "\n"), expr_repeat(w, expr_class(w, &indent), 0, MAX_INDENT));
    return expr_optional(w, expr_alt_of(w, expr_literal(w, " "), line));
}

const Expr *schema_space(Schema *s) { return schema_rule(s, "white space", make_space); }

/* ---- strings -------------------------------------------------------------------------------------------------- */

/* An escape of four digits: of anything but half of a surrogate pair, or of both halves. */
static const Expr *unicode_escape(ExprGrammar *g) {
    static const char pattern[] = "\\\\u(?:[0-9A-Ca-cE-Fe-f][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}|"
                                  "[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2})";
    return regex_expr(g, pattern, sizeof pattern - 1, false);
}

static const Expr *make_character(Schema *s) {
    Work *w = s->w;
    CodeSet plain = {0};
    Expr *alt = expr_alt(w);
    code_set_add(w, &plain, 0x20, '"' - 1);
    code_set_add(w, &plain, '"' + 1, '\\' - 1);
    code_set_add(w, &plain, '\\' + 1, CODE_MAX);
    expr_add(w, alt, expr_class(w, &plain));
    static const char escape[] = "\\\\[\"\\\\/bfnrt]";
    expr_add(w, alt, regex_expr(s->g, escape, sizeof escape - 1, false));
    expr_add(w, alt, unicode_escape(s->g));
    return alt;
}

static const Expr *make_characters(Schema *s) { return expr_repeat(s->w, make_character(s), 0, EXPR_UNBOUNDED); }

const Expr *schema_string_characters(Schema *s, int32_t min, int32_t max) {
    if (min == 0 && max == EXPR_UNBOUNDED) return schema_rule(s, "the characters of a string", make_characters);
    return expr_repeat(s->w, schema_rule(s, "a character of a string", make_character), min, max);
}

const Expr *schema_text_literal(Schema *s, const Text *text) {
    TextBuilder b = builder_new(s->w);
    Cursor c = {.w = s->w, .text = text->data, .n = text->n, .what = "a string of the schema"};
    builder_add_bytes(&b, "\"", 1, false);
    while (c.at < c.n) {
        CodeSet one = {0};
        size_t from = c.at;
        uint32_t code = cursor_code(&c);
        if (code >= 0x20 && code != '"' && code != '\\') {
            builder_add_bytes(&b, c.text + from, c.at - from, false);
            continue;
        }
        code_set_add(s->w, &one, code, code);
        const Expr *escaped = json_character(s->w, &one)->parts[1];
        builder_add_bytes(&b, escaped->bytes, escaped->n_bytes, false);
    }
    builder_add_bytes(&b, "\"", 1, false);
    const Text *literal = builder_text(&b);
    return expr_bytes(s->w, literal->data, literal->n);
}

/* ---- constants -------------------------------------------------------------------------------------------------- */

static void add_space(Schema *s, Expr *seq) { expr_add(s->w, seq, schema_space(s)); }

static const Expr *constant_list(Schema *s, const Seq *list) {
    Expr *seq = expr_seq(s->w);
    expr_add(s->w, seq, expr_literal(s->w, "["));
    add_space(s, seq);
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0) expr_add(s->w, seq, expr_literal(s->w, ",")), add_space(s, seq);
        expr_add(s->w, seq, schema_constant(s, list->items[i]));
    }
    if (list->n > 0) add_space(s, seq);
    expr_add(s->w, seq, expr_literal(s->w, "]"));
    return seq;
}

static const Expr *constant_dict(Schema *s, const Dict *dict) {
    Expr *seq = expr_seq(s->w);
    expr_add(s->w, seq, expr_literal(s->w, "{"));
    add_space(s, seq);
    for (size_t i = 0; i < dict->n; i++) {
        if (i > 0) expr_add(s->w, seq, expr_literal(s->w, ",")), add_space(s, seq);
        expr_add(s->w, seq, schema_text_literal(s, dict->entries[i].key.text));
        expr_add(s->w, seq, expr_literal(s->w, ":"));
        add_space(s, seq);
        expr_add(s->w, seq, schema_constant(s, dict->entries[i].value));
    }
    if (dict->n > 0) add_space(s, seq);
    expr_add(s->w, seq, expr_literal(s->w, "}"));
    return seq;
}

const Expr *schema_constant(Schema *s, Value v) {
    char *text = work_alloc(s->w, 40);
    work_enter(s->w);
    const Expr *e = NULL;
    switch (v.kind) {
    case V_NONE: e = expr_literal(s->w, "null"); break;
    case V_BOOL: e = expr_literal(s->w, v.b ? "true" : "false"); break;
    case V_INT:
        snprintf(text, 40, "%lld", (long long)v.i);
        e = expr_literal(s->w, text);
        break;
    case V_FLOAT:
        if (!isfinite(v.f)) schema_fail(s, "a constant is beyond the range of a double, which is about 1.8e308");
        text[double_write(text, v.f)] = '\0';
        e = expr_literal(s->w, text);
        break;
    case V_TEXT: e = schema_text_literal(s, v.text); break;
    case V_SEQ: e = constant_list(s, v.seq); break;
    case V_DICT: e = constant_dict(s, v.dict); break;
    default: schema_fail(s, "a constant is no JSON value");
    }
    work_leave(s->w);
    return e;
}

/* ---- any value ---------------------------------------------------------------------------------------------------- */

static const Expr *make_any(Schema *s) {
    static const char *const types[] = {"object", "array", "string", "number", "boolean", "null"};
    Expr *alt = expr_alt(s->w);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        Dict *d = dict_new(s->w);
        dict_set(s->w, d, value_literal(s->w, "type"), value_literal(s->w, types[i]));
        expr_add(s->w, alt, schema_expr(s, value_dict(d)));
    }
    return alt;
}

const Expr *schema_any(Schema *s) { return schema_rule(s, "any value", make_any); }
