/* json_layout.c - how a JSON text uses white space, and what it will use next. A text keeps its style: whether an end of line,
 * a blank or nothing followed the last {, [, comma and colon outside of strings and came before the last } or ], and how far lines
 * were indented. */
#include "draft/text/json_layout.h"

#include <string.h>

static int style_of(char c) { return c == '{' ? 0 : c == '[' ? 1 : c == ',' ? 2 : c == ':' ? 3 : 4; }

static bool opens(char c) { return c == '{' || c == '['; }
static bool closes(char c) { return c == '}' || c == ']'; }

static void read_space(JsonLayout *l, char c) {
    if (c == '\n') {
        if (l->space != SPACE_LINE) l->before = l->indent;
        l->space = SPACE_LINE;
        l->indent = 0;
    } else if (l->space == SPACE_LINE) l->indent++;
    else l->space = SPACE_BLANK;
}

void json_layout_read(JsonLayout *l, char c) {
    if (l->in_string) {
        if (c == '"' && !l->is_escaped) {
            l->in_string = false;
            l->last = c;
        }
        l->is_escaped = c == '\\' && !l->is_escaped;
        return;
    }
    if (c == ' ' || c == '\n' || c == '\t') {
        read_space(l, c);
        return;
    }
    if (l->last && (style_of(l->last) < 4 || closes(c))) {
        l->style[style_of(l->last)] = l->space;
        l->is_known[style_of(l->last)] = true;
        if (opens(l->last) && l->space == SPACE_LINE && l->indent > l->before) l->unit = l->indent - l->before;
    }
    l->space = SPACE_NONE;
    l->in_string = c == '"';
    l->last = opens(c) || closes(c) || c == ',' || c == ':' ? c : 0;
}

/* What follows the last mark, or comes before the end of an object or array: what followed it before; else what suits what followed other marks; else a blank behind , and :. */
static Space expected_style(const JsonLayout *l) {
    int i = style_of(l->last);
    if (l->is_known[i]) return l->style[i];
    bool has_lines = (l->is_known[0] && l->style[0] == SPACE_LINE) || (l->is_known[1] && l->style[1] == SPACE_LINE);
    if (l->last != ':' && has_lines) return SPACE_LINE;
    if (i == 4) return SPACE_NONE;
    if (l->last == ',' && l->is_known[3]) return l->style[3];
    if (l->last == ':' && l->is_known[2] && l->style[2] == SPACE_NONE) return SPACE_NONE;
    return l->last == ',' || l->last == ':' ? SPACE_BLANK : SPACE_NONE;
}

size_t json_layout_space(const JsonLayout *l, char *out) {
    bool is_in_line = l->space == SPACE_LINE;
    Space style = is_in_line ? SPACE_LINE : expected_style(l);
    if (style == SPACE_NONE) return 0;
    int32_t unit = opens(l->last) ? l->unit : style_of(l->last) == 4 ? -l->unit : 0, n = 0;
    size_t n_out = 0;
    if (is_in_line) n = l->before + unit - l->indent;
    else {
        out[n_out++] = style == SPACE_BLANK ? ' ' : '\n';
        if (style == SPACE_LINE) n = l->indent + unit;
    }
    n = n < 0 ? 0 : n > JSON_MAX_INDENT ? JSON_MAX_INDENT : n;
    memset(out + n_out, ' ', (size_t)n);
    return n_out + (size_t)n;
}

bool json_layout_is_known(const JsonLayout *l) { return l->is_known[style_of(l->last)]; }
