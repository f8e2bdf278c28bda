/* schema_string.c - schemas of strings, and expressions of JSON itself: white space, constants, any value.
 *
 * Formats are regular expressions for a part of what the format allows: every text that they match is valid, but
 * some valid texts do not match (an e-mail address here has no comments, and a URI begins with a scheme and two
 * slashes). Dates are exact: the 29th of February exists in leap years only. */
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

/* ---- strings --------------------------------------------------------------------------------------------- */

/* Returns an escape of four hexadecimal digits, which is no half of a surrogate pair; or two escapes that are both
 * halves. */
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

/* ---- constants ------------------------------------------------------------------------------------------- */

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

/* ---- any value ------------------------------------------------------------------------------------------- */

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

enum { MAX_LENGTH = 1 << 30 };

#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define LEAP_PAIR "(?:0[48]|[2468][048]|[13579][26])"
#define DATE \
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}" LEAP_PAIR "|(?:00|" LEAP_PAIR ")00)-02-29)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HEX "[0-9A-Fa-f]"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}"},
    {"email", "[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+)*@(?:" LABEL "\\.)+[A-Za-z]{2,24}"},
    {"hostname", LABEL "(?:\\." LABEL "){0,2}"},
    {"ipv4", BYTE "(?:\\." BYTE "){3}"},
    {"ipv6", "(?:" HEX "{1,4}:){7}" HEX "{1,4}"},
    {"uri", "[a-z][a-z0-9+.-]{0,20}://" LABEL "(?:\\." LABEL "){0,3}(?::[0-9]{1,4})?(?:/[A-Za-z0-9._~-]*)*"
            "(?:\\?[A-Za-z0-9._~=&-]*)?(?:#[A-Za-z0-9._~-]*)?"},
    {"duration", "P(?:[0-9]{1,4}D(?:T[0-9]{1,4}[HMS])?|[0-9]{1,4}Y(?:[0-9]{1,4}M)?|[0-9]{1,4}M|[0-9]{1,4}W|"
                 "T[0-9]{1,4}H(?:[0-9]{1,4}M)?(?:[0-9]{1,4}S)?|T[0-9]{1,4}M(?:[0-9]{1,4}S)?|T[0-9]{1,4}S)"},
};

/* These formats describe the purpose of a string or number, and allow every value. */
static const char *const remarks[] = {"password", "binary", "int32", "int64", "float", "double", NULL};

static const Expr *quoted(Schema *s, const Expr *characters) {
    return expr_seq_of3(s->w, expr_literal(s->w, "\""), characters, expr_literal(s->w, "\""));
}

/* Returns the regular expression of a format. NULL: the format allows every string. */
static const char *pattern_of_format(const Schema *s, const Value *format) {
    if (!is_text(*format)) schema_fail(s, "'format' must be a string");
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (text_is(format->text, formats[i].name)) return formats[i].pattern;
    for (const char *const *r = remarks; *r; r++)
        if (text_is(format->text, *r)) return NULL;
    schema_fail(s,
                "the format '%.*s' is not supported; known are date, time, date-time, duration, uuid, email, hostname, "
                "ipv4, ipv6, uri",
                format->text->n < 60 ? (int)format->text->n : 60, format->text->data);
}

/* ---- lengths --------------------------------------------------------------------------------------------- */

typedef struct Lengths {
    int64_t min, max; /* in characters; max < 0: there is no maximum */
} Lengths;

static Lengths lengths_of(const Expr *e);

static int64_t capped(int64_t n) { return n < MAX_LENGTH ? n : MAX_LENGTH; }

static Lengths lengths_of_list(const Expr *e) {
    Lengths sum = {0, 0};
    for (int32_t i = 0; i < e->n_parts; i++) {
        Lengths l = lengths_of(e->parts[i]);
        if (e->kind == EXPR_SEQ) {
            sum.min = capped(sum.min + l.min);
            sum.max = sum.max < 0 || l.max < 0 ? -1 : capped(sum.max + l.max);
        } else {
            if (i == 0 || l.min < sum.min) sum.min = l.min;
            sum.max = i > 0 && (sum.max < 0 || l.max < 0) ? -1 : i > 0 && sum.max > l.max ? sum.max : l.max;
        }
    }
    return sum;
}

/* Returns the lengths of the texts of an expression, in characters of the string: each literal that regex_expr makes is
 * the escape of one character. */
static Lengths lengths_of(const Expr *e) {
    if (e->kind == EXPR_BYTES || e->kind == EXPR_CLASS) return (Lengths){1, 1};
    if (e->kind == EXPR_SEQ || e->kind == EXPR_ALT) return lengths_of_list(e);
    if (e->kind != EXPR_REPEAT) return (Lengths){0, 0};
    Lengths l = lengths_of(e->body);
    int64_t most = e->max < 0 ? 0 : capped(l.max * e->max);
    return (Lengths){capped(l.min * e->min), l.max < 0 || (e->max < 0 && l.max > 0) ? -1 : most};
}

static bool within(Lengths l, int32_t min, int32_t max) {
    return l.min >= min && (max < 0 || (l.max >= 0 && l.max <= max));
}

/* Returns the texts of an expression whose length is allowed. That is the whole expression where no text is too short
 * or too long; otherwise a single part must be repeated, whose count is then restricted. NULL: the expression is of
 * another kind. */
static const Expr *with_length(Schema *s, const Expr *e, int32_t min, int32_t max) {
    if (within(lengths_of(e), min, max)) return e;
    Lengths others = {0, 0};
    const Expr *repeated = e->kind == EXPR_REPEAT ? e : NULL;
    for (int32_t i = 0; e->kind == EXPR_SEQ && i < e->n_parts; i++) {
        Lengths l = lengths_of(e->parts[i]);
        if (l.min != l.max && repeated) return NULL;
        if (l.min != l.max) repeated = e->parts[i];
        else others.min += l.min;
    }
    if (!repeated || repeated->kind != EXPR_REPEAT) return NULL;
    Lengths one = lengths_of(repeated->body);
    if (one.min != 1 || one.max != 1) return NULL;
    int64_t least = min - others.min, most = max < 0 ? -1 : max - others.min;
    if (least < repeated->min) least = repeated->min;
    if (repeated->max >= 0 && (most < 0 || most > repeated->max)) most = repeated->max;
    if (max >= 0 && most < least) return expr_nothing(s->w);
    const Expr *counted = expr_repeat(s->w, repeated->body, (int32_t)least, (int32_t)most);
    if (e->kind == EXPR_REPEAT) return counted;
    Expr *seq = expr_seq(s->w);
    for (int32_t i = 0; i < e->n_parts; i++) expr_add(s->w, seq, e->parts[i] == repeated ? counted : e->parts[i]);
    return seq;
}

const Expr *schema_string(Schema *s, Value schema) {
    const Value *pattern = schema_get(s, schema, "pattern"), *format = schema_get(s, schema, "format");
    int32_t min = 0, max = EXPR_UNBOUNDED;
    schema_count(s, schema, "minLength", &min);
    if (schema_count(s, schema, "maxLength", &max) && max < min) return expr_nothing(s->w);
    const char *form = format ? pattern_of_format(s, format) : NULL;
    if (form && pattern) schema_fail(s, "'pattern' beside 'format' is not supported; leave out one of them");
    const Expr *e = NULL;
    if (form) e = regex_expr(s->g, form, strlen(form), false);
    if (pattern && !is_text(*pattern)) schema_fail(s, "'pattern' must be a string");
    if (pattern) e = regex_expr(s->g, pattern->text->data, pattern->text->n, true);
    if (!e) return quoted(s, schema_string_characters(s, min, max));
    if (!(e = with_length(s, e, min, max)))
        schema_fail(
            s,
            "minLength or maxLength beside this pattern or format is not supported; write the length into the pattern");
    return quoted(s, e);
}
