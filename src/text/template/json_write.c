/* json_write.c - the filter `tojson`, which Hugging Face defines as Python's json.dumps(x, ensure_ascii=False).
 *
 * The whole output is data as soon as any string in it is: what a user wrote must not complete a special token with a
 * quote or brace of ours. */
#include "text/template/unicode_text.h"
#include "text/template/value.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
    w->any_data = w->any_data || text_has_data(t);
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

/* The entries in the order of their keys, by insertion: dicts that are sorted are small. */
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
