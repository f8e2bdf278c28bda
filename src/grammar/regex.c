/* regex.c - reads regular expressions as ECMAScript writes them, as far as they describe regular languages.
 *
 * Supported are literals, `.`, classes with ranges and negation, \d \D \w \W \s \S, escapes (\t \n \r \f \v \0 \xHH
 * \uHHHH \u{H} and punctuation), groups ( ), (?: ), (?<name> ), alternatives, and * + ? {m} {m,} {m,n}, also with a ?
 * that makes them lazy, which matches the same texts. ^ and $ may only be where an alternative of the whole expression
 * begins or ends. Lookaround, back references, \b, \B, \p and flags are refused by name.
 *
 * As a grammar, an expression describes the whole text. As `pattern` of a JSON schema it may match anywhere in the
 * string, and it is about the characters of the string, not about how JSON writes them: a `"` in a class is written
 * \" there (json_character). Each character is written in one way, so no character that the pattern forbids can be
 * written as an escape such as \u0041. */
#include "grammar/readers.h"

#include <stdio.h>
#include <string.h>

enum { MAX_STACKED = 10, MAX_NESTING = 200 };

typedef struct Regex {
    Cursor c;
    ExprGrammar *g;
    bool is_json;
    int depth;
} Regex;

static const Expr *character(const Regex *p, const CodeSet *set) {
    return p->is_json ? json_character(p->g->w, set) : expr_class(p->g->w, set);
}

/* ---- characters ------------------------------------------------------------------------------------------ */

static void add_digits(Work *w, CodeSet *s) { code_set_add(w, s, '0', '9'); }

static void add_word(Work *w, CodeSet *s) {
    add_digits(w, s);
    code_set_add(w, s, 'A', 'Z');
    code_set_add(w, s, '_', '_');
    code_set_add(w, s, 'a', 'z');
}

static void add_space(Work *w, CodeSet *s) {
    static const CodeRange spaces[] = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                                       {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                       {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) code_set_add(w, s, spaces[i].lo, spaces[i].hi);
}

/* Finds the class that a letter names, such as d in \d. False: it names none. */
static bool class_of_letter(Work *w, int letter, CodeSet *out) {
    CodeSet s = {0};
    int small = letter | 0x20;
    if (small == 'd') add_digits(w, &s);
    else if (small == 'w') add_word(w, &s);
    else if (small == 's') add_space(w, &s);
    else return false;
    *out = letter == small ? s : code_set_negate(w, &s);
    return true;
}

static uint32_t read_braced_code(Regex *p) {
    uint32_t code = 0;
    int n = 0;
    for (; cursor_peek(&p->c) != '}'; n++) {
        Cursor digit = p->c;
        code = code << 4 | cursor_hex(&digit, 1);
        p->c.at++;
        if (code > CODE_MAX) cursor_fail(&p->c, "an escape is no character of Unicode");
    }
    p->c.at++;
    if (n == 0) cursor_fail(&p->c, "an escape has no digits");
    return code;
}

static uint32_t read_unicode(Regex *p) {
    if (cursor_skip(&p->c, '{')) return read_braced_code(p);
    if ((cursor_peek(&p->c) | 0x20) == 'd' && cursor_peek_at(&p->c, 1) >= '8') { /* \uD83D\uDE00 */
        uint32_t half[2];
        for (int i = 0; i < 2; i++) {
            half[i] = 0;
            if (i == 1 && !cursor_skip_text(&p->c, "\\u"))
                cursor_fail(&p->c, "half of a surrogate pair is no character");
            for (int k = 0; k < 4; k++) {
                half[i] = half[i] << 4 | cursor_hex(&p->c, 1);
            }
        }
        if (half[0] > 0xDBFF || half[1] < 0xDC00 || half[1] > 0xDFFF)
            cursor_fail(&p->c, "half of a surrogate pair is no character");
        return 0x10000 + ((half[0] - 0xD800) << 10) + (half[1] - 0xDC00);
    }
    return cursor_hex(&p->c, 4);
}

/* Reads an escape of one character, after its backslash. */
static uint32_t read_escape(Regex *p, bool in_class) {
    static const char letters[] = "tnrfv0", meanings[] = "\t\n\r\f\v";
    int c = cursor_peek(&p->c);
    if (c < 0) cursor_fail(&p->c, "the expression ends with a backslash");
    p->c.at++;
    const char *known = strchr(letters, c);
    if (known) return (uint32_t)(unsigned char)meanings[known - letters];
    if (c == 'x') return cursor_hex(&p->c, 2);
    if (c == 'u') return read_unicode(p);
    if (c == 'b' && in_class) return '\b';
    if (c == 'b' || c == 'B') cursor_fail(&p->c, "word boundaries (\\b, \\B) are not supported");
    if ((c >= '1' && c <= '9') || c == 'k') cursor_fail(&p->c, "back references are not supported");
    if (c == 'p' || c == 'P') cursor_fail(&p->c, "Unicode properties (\\p) are not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) cursor_fail(&p->c, "an unknown escape");
    p->c.at--;
    return cursor_code(&p->c);
}

/* Reads one member of a class. True: it is a class such as \d, in *set. False: it is a character, in *code. */
static bool read_member(Regex *p, CodeSet *set, uint32_t *code) {
    if (!cursor_skip(&p->c, '\\')) {
        *code = cursor_code(&p->c);
        return false;
    }
    if (cursor_peek(&p->c) >= 0 && class_of_letter(p->g->w, cursor_peek(&p->c), set)) {
        p->c.at++;
        return true;
    }
    *code = read_escape(p, true);
    return false;
}

static const Expr *read_class(Regex *p) {
    Work *w = p->g->w;
    CodeSet set = {0}, more;
    bool negated = cursor_skip(&p->c, '^');
    while (cursor_peek(&p->c) != ']') {
        uint32_t lo, hi;
        if (cursor_peek(&p->c) < 0) cursor_fail(&p->c, "a class does not end");
        if (read_member(p, &more, &lo)) {
            code_set_add_set(w, &set, &more);
            continue;
        }
        hi = lo;
        if (cursor_peek(&p->c) == '-' && cursor_peek_at(&p->c, 1) != ']') {
            p->c.at++;
            if (cursor_peek(&p->c) < 0) cursor_fail(&p->c, "a class does not end");
            if (read_member(p, &more, &hi)) cursor_fail(&p->c, "a range of a class ends with a class");
            if (hi < lo) cursor_fail(&p->c, "a range of a class is empty: its end is before its beginning");
        }
        code_set_add(w, &set, lo, hi);
    }
    p->c.at++;
    if (negated) set = code_set_negate(w, &set);
    return character(p, &set);
}

static const Expr *any_but_line_ends(const Regex *p) {
    CodeSet ends = {0};
    code_set_add(p->g->w, &ends, '\n', '\n');
    code_set_add(p->g->w, &ends, '\r', '\r');
    code_set_add(p->g->w, &ends, 0x2028, 0x2029);
    CodeSet set = code_set_negate(p->g->w, &ends);
    return character(p, &set);
}

/* ---- groups and sequences -------------------------------------------------------------------------------- */

static const Expr *read_alternatives(Regex *p, bool is_whole);

static const Expr *read_group(Regex *p) {
    if (cursor_skip(&p->c, '?')) {
        bool is_named = cursor_peek(&p->c) == '<' && cursor_peek_at(&p->c, 1) != '=' && cursor_peek_at(&p->c, 1) != '!';
        if (is_named)
            while (cursor_peek(&p->c) >= 0 && cursor_peek(&p->c) != '>') p->c.at++;
        if (!cursor_skip(&p->c, is_named ? '>' : ':'))
            cursor_fail(
                &p->c,
                "lookahead, lookbehind and flags are not supported; the only groups with (? are (?: and (?<name>");
    }
    if (++p->depth > MAX_NESTING) cursor_fail(&p->c, "groups are nested deeper than 200, which is the limit");
    const Expr *e = read_alternatives(p, false);
    p->depth--;
    if (!cursor_skip(&p->c, ')')) cursor_fail(&p->c, "a group does not end: expected ')'");
    return e;
}

static const Expr *read_atom(Regex *p) {
    CodeSet set = {0};
    int c = cursor_peek(&p->c);
    if (cursor_skip(&p->c, '(')) return read_group(p);
    if (cursor_skip(&p->c, '[')) return read_class(p);
    if (cursor_skip(&p->c, '.')) return any_but_line_ends(p);
    if (c == '*' || c == '+' || c == '?') cursor_fail(&p->c, "nothing to repeat");
    if (c == '^' || c == '$')
        cursor_fail(&p->c, "^ and $ are supported only where an alternative of the whole expression begins or ends");
    if (!cursor_skip(&p->c, '\\')) {
        uint32_t code = cursor_code(&p->c);
        code_set_add(p->g->w, &set, code, code);
    } else if (cursor_peek(&p->c) >= 0 && class_of_letter(p->g->w, cursor_peek(&p->c), &set)) p->c.at++;
    else {
        uint32_t code = read_escape(p, false);
        code_set_add(p->g->w, &set, code, code);
    }
    return character(p, &set);
}

static bool is_quantifier(const Regex *p) {
    int c = cursor_peek(&p->c), next = cursor_peek_at(&p->c, 1);
    return c == '*' || c == '+' || c == '?' || (c == '{' && next >= '0' && next <= '9');
}

static bool ends_alternative(const Regex *p) {
    int c = cursor_peek(&p->c);
    return c < 0 || c == '|' || c == ')';
}

static const Expr *any_characters(const Regex *p) {
    CodeSet all = {0};
    code_set_add(p->g->w, &all, 0, CODE_MAX);
    return expr_repeat(p->g->w, character(p, &all), 0, EXPR_UNBOUNDED);
}

/* Reads one alternative. is_whole: it is an alternative of the whole expression, and not of a group. */
static const Expr *read_sequence(Regex *p, bool is_whole) {
    Work *w = p->g->w;
    Expr *seq = expr_seq(w);
    bool begins = is_whole && cursor_skip(&p->c, '^'), ends = false;
    if (is_whole && p->is_json && !begins) expr_add(w, seq, any_characters(p));
    while (!ends_alternative(p)) {
        if (is_whole && cursor_peek(&p->c) == '$') {
            p->c.at++;
            if (ends_alternative(p)) {
                ends = true;
                break;
            }
            p->c.at--;
        }
        const Expr *atom = read_atom(p);
        for (int n = 0; is_quantifier(p); n++) {
            int32_t min, max;
            if (n == MAX_STACKED) cursor_fail(&p->c, "more than 10 quantifiers in a row, which is the limit");
            cursor_quantifier(&p->c, &min, &max);
            cursor_skip(&p->c, '?');
            atom = expr_repeat(w, atom, min, max);
        }
        expr_add(w, seq, atom);
    }
    if (is_whole && p->is_json && !ends) expr_add(w, seq, any_characters(p));
    return seq->n_parts == 1 ? seq->parts[0] : seq;
}

static const Expr *read_alternatives(Regex *p, bool is_whole) {
    Expr *alt = expr_alt(p->g->w);
    do expr_add(p->g->w, alt, read_sequence(p, is_whole));
    while (cursor_skip(&p->c, '|'));
    return alt->n_parts == 1 ? alt->parts[0] : alt;
}

const Expr *regex_expr(ExprGrammar *g, const char *text, size_t n, bool is_json) {
    Regex p = {.c = {.w = g->w, .text = text, .n = n, .what = "regular expression"}, .g = g, .is_json = is_json};
    const Expr *e = read_alternatives(&p, true);
    if (cursor_peek(&p.c) >= 0) cursor_fail(&p.c, "a ')' without '('");
    return e;
}

void regex_read(ExprGrammar *g, const char *text, size_t n) {
    g->root = expr_add_rule(g, "the expression");
    g->rules[g->root].body = regex_expr(g, text, n, false);
}

/* ---- characters of JSON strings -------------------------------------------------------------------------- */

const Expr *json_character(Work *w, const CodeSet *set) {
    static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    CodeSet escaped = {0};
    code_set_add(w, &escaped, 0, 0x1F);
    code_set_add(w, &escaped, '"', '"');
    code_set_add(w, &escaped, '\\', '\\');
    CodeSet plain = code_set_minus(w, set, &escaped);
    Expr *alt = expr_alt(w);
    expr_add(w, alt, expr_class(w, &plain));
    for (uint32_t code = 0; code <= '\\'; code++) {
        if (!code_set_has(set, code) || !code_set_has(&escaped, code)) continue;
        char *text = work_alloc(w, 8);
        const char *known = code ? strchr(meanings, (int)code) : NULL;
        if (known) snprintf(text, 8, "\\%c", letters[known - meanings]);
        else snprintf(text, 8, "\\u%04x", code);
        expr_add(w, alt, expr_literal(w, text));
    }
    return alt->n_parts == 1 ? alt->parts[0] : alt;
}
