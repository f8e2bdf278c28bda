/* schema_string.c - schemas of strings: length, pattern, format.
 *
 * Formats are regular expressions for a part of what the format allows: every text that they match is valid, and not every
 * valid text matches (an e-mail address here has no comments, a URI begins with a scheme and two slashes). Dates are exact: the
 * 29th of February exists in leap years only. */
#include "grammar/schema.h"

#include <string.h>

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

/* These say what a string or number is for, and allow everything. */
static const char *const remarks[] = {"password", "binary", "int32", "int64", "float", "double", NULL};

static const Expr *quoted(Schema *s, const Expr *characters) {
    return expr_seq_of3(s->w, expr_literal(s->w, "\""), characters, expr_literal(s->w, "\""));
}

/* NULL: it allows everything. */
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

/* ---- lengths ------------------------------------------------------------------------------------------------ */

typedef struct Lengths {
    int64_t min, max; /* characters; max < 0: without end */
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

/* In characters of the string: the literals in an expression of regex_expr are escapes of one character. */
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

/* The texts of an expression that are not shorter or longer than allowed: where no text is; or where a single part is
 * repeated, by its count. NULL: it cannot be said. */
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
