/* gbnf.c - reads grammars in GBNF, as users of llama.cpp write them.
 *
 *     root  ::= "{" ws pair ("," ws pair)* "}"    # a comment
 *     pair  ::= "\"" [a-z_]{1,20} "\":" ws [0-9]+
 *     ws    ::= [ \t\n]?
 *
 * A rule ends with its line, except within parentheses and after `|` or `::=`. Items are literals, classes, `.` (any
 * character), names of rules and groups. `*`, `+`, `?`, `{m}`, `{m,}`, `{,n}` or `{m,n}` may follow each. Literals and
 * classes have the escapes \n \t \r \\ \" \[ \] and \xHH, \uHHHH, \UHHHHHHHH, which are code points. Texts are UTF-8.
 *
 * Three items are forerun's own, for tools that are called in the middle of free text:
 *
 *     %text "<call>"             any text without that mark; after %text "<call>" "{" it also does not begin with "{"
 *     %mark "<call>"             the literal, which may also be written as a control token with that name
 *     %json {"type": "object"}   the texts of a JSON schema */
#include "grammar/readers.h"

#include <string.h>

enum { MAX_STACKED = 10, MAX_NESTING = 200, MAX_MARK = 200 };

typedef struct Gbnf {
    Cursor c;
    ExprGrammar *g;
    KeyedNames names; /* the numbers of rules by name */
    int depth;
    char *notice; /* [notice_size] about schemas */
    size_t notice_size;
} Gbnf;

static bool is_word(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Skips blanks and comments; with `lines` also the ends of lines, because the rule cannot end here. */
static void skip_space(Gbnf *p, bool lines) {
    for (;;) {
        int c = cursor_peek(&p->c);
        if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) p->c.at++;
        else if (c == '#')
            while (cursor_peek(&p->c) >= 0 && cursor_peek(&p->c) != '\n' && cursor_peek(&p->c) != '\r') p->c.at++;
        else return;
    }
}

static const char *read_name(Gbnf *p) {
    size_t from = p->c.at;
    while (is_word(cursor_peek(&p->c))) p->c.at++;
    if (p->c.at == from) cursor_fail(&p->c, "expected the name of a rule");
    return cursor_copy(&p->c, from, p->c.at);
}

static int32_t rule_named(Gbnf *p, const char *name) {
    int32_t found = keyed_names_find(&p->names, name);
    if (found < 0) keyed_names_add(p->g->w, &p->names, name, found = expr_add_rule(p->g, name));
    return found;
}

/* Reads one character of a literal or class, and resolves escapes. */
static uint32_t read_character(Gbnf *p) {
    int c = cursor_peek(&p->c);
    if (c != '\\') return cursor_code(&p->c);
    p->c.at++;
    c = cursor_peek(&p->c);
    p->c.at++;
    switch (c) {
    case 'x': return cursor_hex(&p->c, 2);
    case 'u': return cursor_hex(&p->c, 4);
    case 'U': return cursor_hex(&p->c, 8);
    case 't': return '\t';
    case 'r': return '\r';
    case 'n': return '\n';
    case '\\':
    case '"':
    case '[':
    case ']': return (uint32_t)c;
    default: break;
    }
    cursor_fail(&p->c, "an unknown escape; known are \\n \\t \\r \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH");
}

static const Text *read_text(Gbnf *p) {
    TextBuilder b = builder_new(p->g->w);
    char utf8[4];
    p->c.at++;
    while (cursor_peek(&p->c) != '"') {
        if (cursor_peek(&p->c) < 0 || cursor_peek(&p->c) == '\n') cursor_fail(&p->c, "a literal does not end");
        int n = code_write(read_character(p), utf8);
        builder_add_bytes(&b, utf8, (size_t)n, false);
    }
    p->c.at++;
    return builder_text(&b);
}

static const Expr *read_literal(Gbnf *p) {
    const Text *t = read_text(p);
    return expr_bytes(p->g->w, t->data, t->n);
}

static const Expr *read_class(Gbnf *p) {
    CodeSet set = {0};
    p->c.at++;
    bool negated = cursor_skip(&p->c, '^');
    while (cursor_peek(&p->c) != ']') {
        if (cursor_peek(&p->c) < 0) cursor_fail(&p->c, "a class does not end");
        uint32_t lo = read_character(p), hi = lo;
        if (cursor_peek(&p->c) == '-' && cursor_peek_at(&p->c, 1) != ']') {
            p->c.at++;
            if (cursor_peek(&p->c) < 0) cursor_fail(&p->c, "a class does not end");
            hi = read_character(p);
        }
        if (lo > hi) cursor_fail(&p->c, "a range of a class is empty: its end is before its beginning");
        code_set_add(p->g->w, &set, lo, hi);
    }
    p->c.at++;
    if (negated) set = code_set_negate(p->g->w, &set);
    return expr_class(p->g->w, &set);
}

static const Expr *read_alternatives(Gbnf *p, bool is_nested);

static const Expr *read_group(Gbnf *p) {
    p->c.at++;
    if (++p->depth > MAX_NESTING) cursor_fail(&p->c, "groups are nested deeper than 200, which is the limit");
    const Expr *e = read_alternatives(p, true);
    p->depth--;
    if (!cursor_skip(&p->c, ')')) cursor_fail(&p->c, "a group does not end: expected ')'");
    return e;
}

/* ---- items of forerun's own ------------------------------------------------------------------------------ */

static const Text *read_mark(Gbnf *p) {
    skip_space(p, false);
    if (cursor_peek(&p->c) != '"') cursor_fail(&p->c, "expected a literal after %text or %mark");
    const Text *t = read_text(p);
    if (t->n == 0 || t->n > MAX_MARK) cursor_fail(&p->c, "the literal of %text or %mark must have 1 to 200 bytes");
    return t;
}

/* If a mark ends as it begins, it is not clear where the text before it ends. */
static bool overlaps_itself(const Text *mark) {
    for (size_t n = 1; n < mark->n; n++)
        if (memcmp(mark->data, mark->data + mark->n - n, n) == 0) return true;
    return false;
}

static const Expr *read_free_text(Gbnf *p) {
    static const Text none = {.n = 0};
    const Text *mark = read_mark(p), *beginning = &none;
    if (overlaps_itself(mark)) cursor_fail(&p->c, "the mark of %text must not end as it begins");
    skip_space(p, false);
    if (cursor_peek(&p->c) == '"') beginning = read_mark(p);
    if (beginning->n && memmem(beginning->data, beginning->n, mark->data, mark->n))
        cursor_fail(&p->c, "the second literal of %text must not contain the first");
    return expr_text(p->g->w, mark->data, mark->n, beginning->data, beginning->n);
}

/* Reads a schema, which is an object of JSON, up to its closing brace. */
static const Expr *read_schema(Gbnf *p) {
    skip_space(p, false);
    size_t from = p->c.at;
    int depth = 0;
    bool in_string = false;
    do {
        int c = cursor_peek(&p->c);
        if (c < 0 || (depth == 0 && c != '{')) cursor_fail(&p->c, "expected an object with a JSON schema after %json");
        if (c == '"') in_string = !in_string;
        else if (in_string && c == '\\') p->c.at++;
        else if (!in_string) depth += (c == '{') - (c == '}');
        p->c.at++;
    } while (depth > 0);
    return schema_text(p->g, p->c.text + from, p->c.at - from, p->notice, p->notice_size);
}

static const Expr *read_own(Gbnf *p) {
    if (cursor_skip_text(&p->c, "%text")) return read_free_text(p);
    if (cursor_skip_text(&p->c, "%json")) return read_schema(p);
    if (!cursor_skip_text(&p->c, "%mark")) cursor_fail(&p->c, "an unknown item; known are %text, %mark and %json");
    const Text *t = read_mark(p);
    return expr_mark(p->g->w, t->data, t->n);
}

/* Reads an item. NULL: no item begins here. */
static const Expr *read_item(Gbnf *p) {
    int c = cursor_peek(&p->c);
    if (c == '%') return read_own(p);
    if (c == '"') return read_literal(p);
    if (c == '[') return read_class(p);
    if (c == '(') return read_group(p);
    if (c == '.') return p->c.at++, expr_range(p->g->w, 0, CODE_MAX);
    if (c == '<' || c == '!')
        cursor_fail(&p->c, "tokens as items of a grammar are not supported; write the text of the token as a literal");
    if (!is_word(c)) return NULL;
    return expr_rule(p->g->w, rule_named(p, read_name(p)));
}

static bool begins_rule(const Gbnf *p) {
    size_t at = p->c.at;
    while (at < p->c.n && is_word((unsigned char)p->c.text[at])) at++;
    if (at == p->c.at) return false;
    while (at < p->c.n && (p->c.text[at] == ' ' || p->c.text[at] == '\t')) at++;
    return p->c.n - at >= 3 && memcmp(p->c.text + at, "::=", 3) == 0;
}

static const Expr *read_sequence(Gbnf *p, bool is_nested) {
    Expr *seq = expr_seq(p->g->w);
    for (;;) {
        skip_space(p, is_nested);
        if (is_nested && begins_rule(p)) cursor_fail(&p->c, "a group does not end: expected ')'");
        const Expr *item = read_item(p);
        if (!item) return seq->n_parts == 1 ? seq->parts[0] : seq;
        int32_t min, max;
        skip_space(p, is_nested);
        for (int n = 0; cursor_quantifier(&p->c, &min, &max); n++) {
            if (n == MAX_STACKED) cursor_fail(&p->c, "more than 10 quantifiers in a row, which is the limit");
            item = expr_repeat(p->g->w, item, min, max);
            skip_space(p, is_nested);
        }
        expr_add(p->g->w, seq, item);
    }
}

static const Expr *read_alternatives(Gbnf *p, bool is_nested) {
    Expr *alt = expr_alt(p->g->w);
    do {
        skip_space(p, true);
        expr_add(p->g->w, alt, read_sequence(p, is_nested));
        skip_space(p, is_nested);
    } while (cursor_skip(&p->c, '|'));
    return alt->n_parts == 1 ? alt->parts[0] : alt;
}

static void read_rule(Gbnf *p) {
    int32_t rule = rule_named(p, read_name(p));
    skip_space(p, false);
    if (!cursor_skip_text(&p->c, "::=")) cursor_fail(&p->c, "expected '::=' after the name of a rule");
    if (p->g->rules[rule].body) cursor_fail(&p->c, "a rule is defined twice");
    const Expr *body = read_alternatives(p, false);
    p->g->rules[rule].body = body;
    int c = cursor_peek(&p->c);
    if (c >= 0 && c != '\n' && c != '\r') cursor_fail(&p->c, "expected an item of the rule or the end of the line");
}

void gbnf_read(ExprGrammar *g, const char *text, size_t n, char *notice, size_t notice_size) {
    Gbnf p = {.c = {.w = g->w, .text = text, .n = n, .what = "grammar"},
              .g = g,
              .notice = notice,
              .notice_size = notice_size};
    skip_space(&p, true);
    while (cursor_peek(&p.c) >= 0) {
        read_rule(&p);
        skip_space(&p, true);
    }
    int32_t root = keyed_names_find(&p.names, "root");
    if (root < 0 || !g->rules[root].body)
        work_fail(g->w, FR_ERR_ARGUMENT, "the grammar has no rule 'root', with which it begins");
    g->root = root;
}
