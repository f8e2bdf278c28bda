/* lexer.c - splits a template into text and tags, and tags into tokens.
 *
 * White space is treated as Jinja does with trim_blocks and lstrip_blocks:
 *   - a minus at the inner edge of a tag, {%- or -%}, removes all white space on that side;
 *   - a block tag or comment removes one newline after it, and the blanks before it if nothing else precedes it on its
 *     line; a plus, {%+ or +%}, keeps them. {{ }} removes neither.
 * Newlines of all kinds become \n, and one at the very end of the template is removed. */
#include "text/template/syntax.h"
#include "text/template/template_text.h"

#include <stdlib.h>
#include <string.h>

typedef struct Lexer {
    Work *w;
    const char *s; /* [n] the source with normalised newlines, followed by zeros */
    size_t n, at;
    bool line_starts; /* the last match ended with a newline, or there was none yet */
    char open[256];   /* brackets that are open in the current tag */
    int n_open;
    Token *tokens;
    size_t n_tokens, capacity;
} Lexer;

static void add(Lexer *l, TokenKind kind, int op, Value value) {
    if (l->n_tokens == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 256;
        l->tokens = work_grow(l->w, l->tokens, l->n_tokens * sizeof *l->tokens, capacity * sizeof *l->tokens);
        l->capacity = capacity;
    }
    l->tokens[l->n_tokens++] = (Token){kind, l->w->line, op, value};
}

/* Moves on to `to` and counts the lines. */
static void advance(Lexer *l, size_t to) {
    for (; l->at < to; l->at++)
        if (l->s[l->at] == '\n') l->w->line++;
}

static size_t skip_spaces(const Lexer *l, size_t at) {
    int32_t code;
    while (at < l->n) {
        size_t n = char_next(l->s, l->n, at, &code);
        if (!code_is_space(code)) break;
        at += n;
    }
    return at;
}

/* Returns the length of the end of a tag at `at`, with the white space that it removes. 0: the tag does not end
 * there. */
static size_t match_end(const Lexer *l, size_t at, const char *end, bool trims) {
    char sign = l->s[at];
    size_t from = at + (sign == '-' || (sign == '+' && trims));
    if (from + 2 > l->n || memcmp(l->s + from, end, 2) != 0) return 0;
    if (sign == '-') return skip_spaces(l, from + 2) - at;
    return from + 2 - at + (trims && sign != '+' && l->s[from + 2] == '\n');
}

/* ---- text between tags -------------------------------------------------------------------------------- */

/* Adds the text s[from..to), which is followed by a tag. The sign of the tag, if it is '-' or '+', decides which
 * white space at the end of the text is removed. */
static void add_text(Lexer *l, size_t from, size_t to, char sign, bool is_block) {
    size_t end = to;
    Text all = {.data = l->s + from, .n = to - from};
    if (sign == '-') end = from + text_strip(l->w, &all, NULL, false, true)->n;
    else if (sign != '+' && is_block) {
        size_t line = to;
        while (line > from && l->s[line - 1] != '\n') line--;
        if ((line > from || l->line_starts) && skip_spaces(l, line) >= to) end = line;
    }
    if (end > from) add(l, TOKEN_DATA, 0, value_text(text_new(l->w, l->s + from, end - from, false)));
}

/* Returns the length of the tag {% raw %} or {% endraw %} at `at`. 0: there is another tag. */
static size_t match_raw(const Lexer *l, size_t at, const char *word, bool trims) {
    size_t n_word = strlen(word), from = at + 2;
    if (at + 2 > l->n || memcmp(l->s + at, "{%", 2) != 0) return 0;
    from += l->s[from] == '-' || l->s[from] == '+';
    from = skip_spaces(l, from);
    if (l->n - from < n_word || memcmp(l->s + from, word, n_word) != 0) return 0;
    from = skip_spaces(l, from + n_word);
    if (l->s[from] == '+' && !trims) return 0;
    size_t end = match_end(l, from, "%}", true);
    if (end == 0) return 0;
    if (!trims && l->s[from] != '-') end = 2;
    return from + end - at;
}

static void end_match(Lexer *l, size_t to) {
    l->line_starts = to > 0 && l->s[to - 1] == '\n';
    advance(l, to);
}

static void lex_raw(Lexer *l, size_t n_begin) {
    end_match(l, l->at + n_begin);
    for (size_t to = l->at; to < l->n; to++) {
        size_t n = l->s[to] == '{' ? match_raw(l, to, "endraw", true) : 0;
        if (n == 0) continue;
        add_text(l, l->at, to, l->s[to + 2], true);
        end_match(l, to + n);
        return;
    }
    work_fail(l->w, FR_ERR_FORMAT, "{%% raw %%} is not closed by {%% endraw %%}");
}

static void lex_comment(Lexer *l) {
    for (size_t at = l->at; at < l->n; at++) {
        size_t n = match_end(l, at, "#}", true);
        if (n == 0) continue;
        end_match(l, at + n);
        return;
    }
    work_fail(l->w, FR_ERR_FORMAT, "a comment {# is not closed by #}");
}

/* ---- inside tags ---------------------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) || (unsigned char)c >= 0x80;
}

static size_t skip_digits(const Lexer *l, size_t at) {
    while (is_digit(l->s[at]) || (l->s[at] == '_' && is_digit(l->s[at + 1]))) at++;
    return at;
}

static size_t match_float(const Lexer *l) {
    size_t whole = skip_digits(l, l->at), at = whole;
    if (l->at > 0 && l->s[l->at - 1] == '.') return whole;
    if (l->s[at] == '.' && is_digit(l->s[at + 1])) at = skip_digits(l, at + 1);
    if (l->s[at] == 'e' || l->s[at] == 'E') {
        size_t digits = at + 1 + (l->s[at + 1] == '+' || l->s[at + 1] == '-');
        if (is_digit(l->s[digits])) at = skip_digits(l, digits);
    }
    return at;
}

static Value read_integer(Lexer *l, const char *digits) {
    char *end;
    int base = digits[0] != '0' || !digits[1]         ? 10
               : digits[1] == 'x' || digits[1] == 'X' ? 16
               : digits[1] == 'b' || digits[1] == 'B' ? 2
                                                      : 8;
    bool has_prefix = base != 10 && !is_digit(digits[1]);
    int64_t v = 0;
    for (end = (char *)(uintptr_t)digits + (has_prefix ? 2 : 0); *end; end++) {
        int digit = is_digit(*end) ? *end - '0' : (*end | 32) - 'a' + 10;
        if (digit < 0 || digit >= base || (!has_prefix && base == 8 && digit))
            work_fail(l->w, FR_ERR_FORMAT, "the number %.40s is malformed", digits);
        if (__builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, digit, &v))
            work_fail(l->w, FR_ERR_UNSUPPORTED, "the number %.40s has more than 64 bits", digits);
    }
    return value_int(v);
}

static void lex_number(Lexer *l) {
    char digits[64];
    size_t to = match_float(l), n = 0;
    bool is_float = to > skip_digits(l, l->at);
    while (!is_float && is_name_char(l->s[to])) to++;
    for (size_t i = l->at; i < to; i++) {
        if (l->s[i] == '_') continue;
        if (n + 1 >= sizeof digits) work_fail(l->w, FR_ERR_FORMAT, "a number has too many digits");
        digits[n++] = l->s[i];
    }
    digits[n] = '\0';
    double f = 0;
    if (is_float) double_read(digits, n, &f);
    add(l, TOKEN_LITERAL, 0, is_float ? value_float(f) : read_integer(l, digits));
    advance(l, to);
}

static int32_t read_hex(Lexer *l, size_t at, int n_digits) {
    char digits[9] = "", *end;
    for (int i = 0; i < n_digits && at + (size_t)i < l->n; i++) digits[i] = l->s[at + (size_t)i];
    unsigned long code = strtoul(digits, &end, 16);
    if (end != digits + n_digits || digits[0] == '-' || digits[0] == '+' || code > 0x10FFFF ||
        (code >= 0xD800 && code <= 0xDFFF))
        work_fail(l->w, FR_ERR_FORMAT, "a string has the malformed escape \\x, \\u or \\U");
    return (int32_t)code;
}

/* Reads the escape after the backslash at `at` as Python does, and returns where it ends. */
static size_t lex_escape(Lexer *l, size_t at, TextBuilder *b) {
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->s[at + 1];
    const char *known = c ? strchr(letters, c) : NULL;
    int n_hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == '\n') return at + 2;
    if (known) builder_add_bytes(b, &meanings[known - letters], 1, false);
    else if (n_hex) builder_add_code(b, read_hex(l, at + 2, n_hex), false);
    else if (c >= '0' && c <= '7') {
        int32_t code = 0;
        size_t to = at + 1;
        for (; to < at + 4 && l->s[to] >= '0' && l->s[to] <= '7'; to++) code = code * 8 + (l->s[to] - '0');
        builder_add_code(b, code, false);
        return to;
    } else if (c == 'N') work_fail(l->w, FR_ERR_UNSUPPORTED, "the escape \\N{...} is not supported in strings");
    else {
        builder_add_bytes(b, l->s + at, 1, false);
        return at + 1;
    }
    return at + 2 + (size_t)n_hex;
}

static void lex_string(Lexer *l) {
    char quote = l->s[l->at];
    TextBuilder b = builder_new(l->w);
    size_t at = l->at + 1;
    while (at < l->n && l->s[at] != quote) {
        if (l->s[at] == '\\' && at + 1 < l->n) {
            at = lex_escape(l, at, &b);
            continue;
        }
        builder_add_bytes(&b, l->s + at, 1, false);
        at++;
    }
    if (at >= l->n) work_fail(l->w, FR_ERR_FORMAT, "a string is not closed");
    add(l, TOKEN_LITERAL, 0, value_text(builder_text(&b)));
    advance(l, at + 1);
}

static void lex_bracket(Lexer *l, char c) {
    char want = c == ')' ? '(' : c == ']' ? '[' : '{';
    if (strchr("([{", c)) {
        if (l->n_open == (int)sizeof l->open)
            work_fail(l->w, FR_ERR_MEMORY, "more than %zu brackets are open", sizeof l->open);
        l->open[l->n_open++] = c;
    } else if (l->n_open == 0 || l->open[--l->n_open] != want) work_fail(l->w, FR_ERR_FORMAT, "unexpected '%c'", c);
}

static void lex_operator(Lexer *l) {
    static const struct {
        char spelling[3];
        int op;
    } doubles[] = {{"//", OP_FLOOR_DIVIDE}, {"**", OP_POWER}, {"==", OP_EQ},
                   {"!=", OP_NE},           {">=", OP_GE},    {"<=", OP_LE}};
    const char *s = l->s + l->at;
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++)
        if (memcmp(s, doubles[i].spelling, 2) == 0) {
            add(l, TOKEN_OPERATOR, doubles[i].op, value_none());
            l->at += 2;
            return;
        }
    if (!*s || !strchr("+-/*%~[](){}><=.:|,;", *s))
        work_fail(l->w, FR_ERR_FORMAT, "unexpected character '%.1s' in a tag", *s ? s : "\\0");
    if (strchr("()[]{}", *s)) lex_bracket(l, *s);
    add(l, TOKEN_OPERATOR, *s, value_none());
    l->at++;
}

static void lex_tag(Lexer *l, bool is_block) {
    const char *end = is_block ? "%}" : "}}";
    l->n_open = 0;
    for (;;) {
        advance(l, skip_spaces(l, l->at));
        if (l->at >= l->n) work_fail(l->w, FR_ERR_FORMAT, "a tag is not closed by %s", end);
        size_t n_end = l->n_open == 0 ? match_end(l, l->at, end, is_block) : 0;
        char c = l->s[l->at];
        if (n_end) {
            add(l, is_block ? TOKEN_TAG_END : TOKEN_PRINT_END, 0, value_none());
            end_match(l, l->at + n_end);
            return;
        }
        if (is_digit(c)) lex_number(l);
        else if (c == '"' || c == '\'') lex_string(l);
        else if (is_name_char(c)) {
            size_t to = l->at;
            while (is_name_char(l->s[to])) to++;
            add(l, TOKEN_NAME, 0, value_text(text_new(l->w, l->s + l->at, to - l->at, false)));
            l->at = to;
        } else lex_operator(l);
    }
}

/* ---- the whole template ---------------------------------------------------------------------------------- */

static void normalise(Lexer *l, const char *source, size_t n) {
    char *copy = work_alloc(l->w, n + 4); /* zeros after the end, because matching looks ahead */
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        copy[to++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (to > 0 && copy[to - 1] == '\n') to--;
    copy[to] = '\0';
    l->s = copy;
    l->n = to;
}

static size_t find_tag(const Lexer *l) {
    for (size_t at = l->at; at + 1 < l->n; at++)
        if (l->s[at] == '{' && (l->s[at + 1] == '{' || l->s[at + 1] == '%' || l->s[at + 1] == '#')) return at;
    return l->n;
}

static void lex_from_tag(Lexer *l, size_t tag) {
    char kind = l->s[tag + 1], sign = l->s[tag + 2];
    add_text(l, l->at, tag, sign, kind != '{');
    advance(l, tag);
    size_t n_raw = kind == '%' ? match_raw(l, tag, "raw", false) : 0;
    if (n_raw) {
        lex_raw(l, n_raw);
        return;
    }
    l->at += sign == '-' || sign == '+' ? 3 : 2;
    if (kind == '#') {
        lex_comment(l);
        return;
    }
    add(l, kind == '%' ? TOKEN_TAG_BEGIN : TOKEN_PRINT_BEGIN, 0, value_none());
    lex_tag(l, kind == '%');
}

const Token *lexer_run(Work *w, const char *source, size_t n) {
    Lexer l = {.w = w, .line_starts = true};
    w->line = 1;
    normalise(&l, source, n);
    while (l.at < l.n) {
        size_t tag = find_tag(&l);
        if (tag < l.n) lex_from_tag(&l, tag);
        else {
            add_text(&l, l.at, l.n, '+', false);
            advance(&l, l.n);
        }
    }
    add(&l, TOKEN_END, 0, value_none());
    return l.tokens;
}
