/* template_json.c - reads JSON into values of a template, and writes values as JSON.
 *
 * Reading is as strict as Python's json.loads, and also refuses numbers that fit neither an int64 nor a double.
 * Writing is the filter `tojson`, which Hugging Face defines as Python's json.dumps(x, ensure_ascii=False). If any
 * string in the value is data, the whole output is data: what a user wrote must not complete a special token with a
 * quote or brace of the template's. */
#include "text/template/template.h"
#include "text/template/template_text.h"
#include "text/template/value.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Reader {
    Work *w;
    const char *json;
    size_t n, at;
    TemplateMark mark;
    bool is_role; /* the next string is the value of the key "role" */
} Reader;

__attribute__((noreturn)) static void refuse(const Reader *r, const char *what) {
    work_fail(r->w, FR_ERR_ARGUMENT, "the JSON is not valid at byte %zu: %s", r->at, what);
}

static void skip_space(Reader *r) {
    while (r->at < r->n && strchr(" \t\r\n", r->json[r->at]) && r->json[r->at]) r->at++;
}

static char peek(Reader *r) {
    skip_space(r);
    return r->at < r->n ? r->json[r->at] : '\0';
}

static bool skip_if(Reader *r, char c) {
    if (peek(r) != c) return false;
    r->at++;
    return true;
}

static void expect(Reader *r, char c, const char *what) {
    if (!skip_if(r, c)) refuse(r, what);
}

static int32_t read_hex4(Reader *r) {
    int32_t code = 0;
    if (r->n - r->at < 4) refuse(r, "\\u needs four hexadecimal digits");
    for (int i = 0; i < 4; i++) {
        char c = r->json[r->at++];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) refuse(r, "\\u needs four hexadecimal digits");
        code = code << 4 | digit;
    }
    return code;
}

/* Reads the digits of \u, and those of a second \u if both are a surrogate pair. One half of a pair becomes U+FFFD. */
static int32_t read_unicode_escape(Reader *r) {
    int32_t high = read_hex4(r);
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high <= 0xDBFF && r->n - r->at >= 6 && r->json[r->at] == '\\' && r->json[r->at + 1] == 'u') {
        size_t before = r->at;
        r->at += 2;
        int32_t low = read_hex4(r);
        if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        r->at = before;
    }
    return 0xFFFD;
}

static void read_escape(Reader *r, TextBuilder *b) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->n ? r->json[r->at++] : '\0';
    const char *known = c ? strchr(letters, c) : NULL;
    if (c == 'u') builder_add_code(b, read_unicode_escape(r), true);
    else if (known) builder_add_bytes(b, &meanings[known - letters], 1, true);
    else refuse(r, "an unknown escape in a string");
}

static bool is_role_name(const Text *t) {
    static const char *const names[] = {"system",   "user",    "assistant", "tool",        "developer",
                                        "function", "ipython", "model",     "environment", "tool_response",
                                        "tools",    "context", "document",  "documents"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (text_is(t, names[i])) return true;
    return false;
}

static Value read_string(Reader *r) {
    bool is_role = r->is_role;
    TextBuilder b = builder_new(r->w);
    r->at++;
    for (;;) {
        size_t from = r->at;
        while (r->at < r->n && r->json[r->at] != '"' && r->json[r->at] != '\\' && (unsigned char)r->json[r->at] >= 0x20)
            r->at++;
        builder_add_bytes(&b, r->json + from, r->at - from, true);
        if (r->at == r->n) refuse(r, "a string does not end");
        char c = r->json[r->at++];
        if (c == '"') break;
        if (c != '\\') refuse(r, "a control character in a string");
        read_escape(r, &b);
    }
    const Text *t = builder_text(&b);
    bool is_own = r->mark == TEMPLATE_OWN || (r->mark == TEMPLATE_MESSAGES && is_role && is_role_name(t));
    return value_text(is_own ? text_new(r->w, t->data, t->n, false) : t);
}

static Value read_number(Reader *r) {
    size_t from = r->at, digits = r->at + (r->json[r->at] == '-');
    while (r->at < r->n && r->json[r->at] && strchr("+-.0123456789eE", r->json[r->at])) r->at++;
    const char *text = r->json + from;
    size_t n = r->at - from;
    if (digits >= r->at || r->json[digits] < '0' || r->json[digits] > '9' ||
        (r->json[digits] == '0' && digits + 1 < r->at && r->json[digits + 1] >= '0' && r->json[digits + 1] <= '9') ||
        r->json[r->at - 1] < '0' || r->json[r->at - 1] > '9')
        refuse(r, "a number is malformed");
    double f;
    if (!double_read(text, n, &f)) refuse(r, "a number is malformed");
    if (memchr(text, '.', n) || memchr(text, 'e', n) || memchr(text, 'E', n)) return value_float(f);
    char copy[24];
    if (n >= sizeof copy) refuse(r, "an integer has more than 64 bits");
    memcpy(copy, text, n);
    copy[n] = '\0';
    errno = 0;
    long long v = strtoll(copy, NULL, 10);
    if (errno) refuse(r, "an integer has more than 64 bits");
    return value_int(v);
}

static Value read_value(Reader *r);

static Value read_array(Reader *r) {
    Seq *s = seq_new(r->w, SEQ_LIST, 0);
    r->at++;
    if (skip_if(r, ']')) return value_seq(s);
    do seq_add(r->w, s, read_value(r));
    while (skip_if(r, ','));
    expect(r, ']', "expected ',' or ']'");
    return value_seq(s);
}

static Value read_object(Reader *r) {
    Dict *d = dict_new(r->w);
    r->at++;
    if (skip_if(r, '}')) return value_dict(d);
    do {
        if (peek(r) != '"') refuse(r, "expected a name in quotes");
        r->is_role = false;
        Value key = read_string(r);
        expect(r, ':', "expected ':'");
        r->is_role = text_is(key.text, "role");
        dict_set(r->w, d, key, read_value(r));
    } while (skip_if(r, ','));
    expect(r, '}', "expected ',' or '}'");
    return value_dict(d);
}

static bool skip_word(Reader *r, const char *word) {
    size_t n = strlen(word);
    if (r->n - r->at < n || memcmp(r->json + r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

static Value read_scalar(Reader *r) {
    char c = peek(r);
    if (c == '"') return read_string(r);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
    if (skip_word(r, "true")) return value_bool(true);
    if (skip_word(r, "false")) return value_bool(false);
    if (skip_word(r, "null")) return value_none();
    refuse(r, r->at == r->n ? "a value is missing" : "expected a value");
}

static Value read_value(Reader *r) {
    work_spend(r->w, 0);
    work_enter(r->w);
    char c = peek(r);
    if (c == '[' || c == '{') r->is_role = false;
    Value v = c == '[' ? read_array(r) : c == '{' ? read_object(r) : read_scalar(r);
    work_leave(r->w);
    return v;
}

Value json_read(Work *w, const char *json, size_t n, int mark) {
    Reader r = {.w = w, .json = json, .n = n, .mark = (TemplateMark)mark};
    work_spend(w, n);
    Value v = read_value(&r);
    skip_space(&r);
    if (r.at < n) refuse(&r, "something follows the value");
    return v;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

typedef struct Writer {
    TextBuilder out;
    const JsonStyle *style;
    int level;
    bool any_data;
} Writer;

static void put(Writer *w, const char *text) { builder_add_literal(&w->out, text); }

static void put_escaped(Writer *w, int32_t code) {
    char text[16];
    if (code >= 0x10000)
        sprintf(text, "\\u%04x\\u%04x", 0xD7C0 + (unsigned)(code >> 10), 0xDC00 + (unsigned)(code & 0x3FF));
    else sprintf(text, "\\u%04x", (unsigned)code);
    put(w, text);
}

static void put_string(Writer *w, const Text *t) {
    static const char special[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    work_spend(w->out.w, t->n);
    w->any_data = w->any_data || text_has_data(w->out.w, t);
    put(w, "\"");
    for (size_t at = 0; at < t->n;) {
        int32_t code;
        size_t n = char_next(t->data, t->n, at, &code);
        const char *known = code > 0 && code < 0x80 ? strchr(special, code) : NULL;
        if (known) builder_add_bytes(&w->out, (char[]){'\\', letters[known - special]}, 2, false);
        else if (code < 0x20 || (w->style->ensure_ascii && code > 0x7e)) put_escaped(w, code);
        else builder_add_bytes(&w->out, t->data + at, n, false);
        at += n;
    }
    put(w, "\"");
}

static void new_line(Writer *w) {
    if (w->style->indent < 0) return;
    Text space = {.data = " ", .n = 1};
    put(w, "\n");
    builder_add_repeated(&w->out, &space, (int64_t)w->style->indent * w->level);
}

static void put_value(Writer *w, Value v);

static void put_list(Writer *w, const Seq *s) {
    put(w, "[");
    w->level++;
    for (size_t i = 0; i < s->n; i++) {
        if (i) builder_add(&w->out, w->style->item_separator);
        new_line(w);
        put_value(w, s->items[i]);
    }
    w->level--;
    if (s->n) new_line(w);
    put(w, "]");
}

static void put_key(Writer *w, Value key) {
    char number[32];
    switch (key.kind) {
    case V_TEXT: put_string(w, key.text); return;
    case V_NONE: put(w, "\"null\""); return;
    case V_BOOL: put(w, key.b ? "\"true\"" : "\"false\""); return;
    case V_INT: snprintf(number, sizeof number, "%lld", (long long)key.i); break;
    case V_FLOAT: number[double_write(number, key.f)] = '\0'; break;
    default:
        work_fail(w->out.w, FR_ERR_FORMAT, "tojson: a key of a dict must be a string or a number, not %s",
                  value_type_name(key));
    }
    put(w, "\"");
    put(w, number);
    put(w, "\"");
}

/* Returns the entries in the order of their keys. They are sorted by insertion, because dicts that are sorted are
 * small. */
static const DictEntry *sorted(Work *w, const Dict *d) {
    DictEntry *e = work_array(w, d->n, sizeof *e);
    for (size_t i = 0; i < d->n; i++) {
        size_t at = i;
        for (; at > 0 && value_order(w, d->entries[i].key, e[at - 1].key, "<") < 0; at--) e[at] = e[at - 1];
        e[at] = d->entries[i];
    }
    return e;
}

static void put_dict(Writer *w, const Dict *d) {
    const DictEntry *entries = w->style->sort_keys ? sorted(w->out.w, d) : d->entries;
    put(w, "{");
    w->level++;
    for (size_t i = 0; i < d->n; i++) {
        if (i) builder_add(&w->out, w->style->item_separator);
        new_line(w);
        put_key(w, entries[i].key);
        builder_add(&w->out, w->style->key_separator);
        put_value(w, entries[i].value);
    }
    w->level--;
    if (d->n) new_line(w);
    put(w, "}");
}

static void put_float(Writer *w, double f) {
    char number[32];
    if (isnan(f)) put(w, "NaN");
    else if (isinf(f)) put(w, f < 0 ? "-Infinity" : "Infinity");
    else builder_add_bytes(&w->out, number, double_write(number, f), false);
}

static void put_value(Writer *w, Value v) {
    Work *work = w->out.w;
    work_spend(work, 0);
    work_enter(work);
    if (v.kind == V_TEXT) put_string(w, v.text);
    else if (v.kind == V_NONE) put(w, "null");
    else if (v.kind == V_BOOL) put(w, v.b ? "true" : "false");
    else if (v.kind == V_INT) value_write(&w->out, v);
    else if (v.kind == V_FLOAT) put_float(w, v.f);
    else if (v.kind == V_SEQ && v.seq->flavour <= SEQ_TUPLE) put_list(w, v.seq);
    else if (v.kind == V_DICT) put_dict(w, v.dict);
    else {
        value_need_defined(work, v);
        work_fail(work, FR_ERR_FORMAT, "tojson: a value of type %s cannot be written as JSON", value_type_name(v));
    }
    work_leave(work);
}

const Text *json_write(Work *work, Value v, const JsonStyle *style) {
    Writer w = {.out = builder_new(work), .style = style};
    put_value(&w, v);
    if (w.any_data) memset(w.out.marks, 1, w.out.n);
    return builder_text(&w.out);
}
