/* filters_select.c - map, select and their like, which apply a filter or test to each item. */
#include "text/template/render.h"

#include <string.h>

/* One step of a path: a name, or a number as the index of an item. */
static Value follow_step(Render *r, Value v, const Text *step) {
    bool is_number_text = step->n > 0 && step->n < 10;
    int64_t index = 0;
    for (size_t i = 0; i < step->n; i++) {
        is_number_text = is_number_text && step->data[i] >= '0' && step->data[i] <= '9';
        if (is_number_text) index = index * 10 + (step->data[i] - '0');
    }
    return value_item(r, v, is_number_text ? value_int(index) : value_text(step));
}

/* follow_path, but what is undefined on the way becomes `missing`, unless that is V_MISSING or none. */
static Value follow_path_or(Render *r, Value v, Value path, Value missing) {
    Text dot = {.data = ".", .n = 1};
    bool has_missing = given(missing) && missing.kind != V_NONE;
    if (!is_text(path)) {
        v = value_item(r, v, path);
        return v.kind == V_UNDEFINED && has_missing ? missing : v;
    }
    for (size_t at = 0; at <= path.text->n;) {
        size_t to = text_find(r->w, path.text, &dot, at);
        if (to > path.text->n) to = path.text->n;
        v = follow_step(r, v, text_slice(r->w, path.text, at, to));
        if (v.kind == V_UNDEFINED && has_missing) v = missing;
        at = to + 1;
    }
    return v;
}

Value follow_path(Render *r, Value v, Value path) { return follow_path_or(r, v, path, value_none()); }

/* The arguments behind the first `skip`, for the filter or test that they name. */
static Call rest_of(const Call *c, size_t skip) {
    Call rest = {.positional = c->positional + skip,
                 .n_positional = c->n_positional - skip,
                 .keywords = c->keywords,
                 .n_keywords = c->n_keywords};
    return rest;
}

static const Builtin *named(Render *r, BuiltinKind kind, Value name) {
    const Text *text = value_need_text(r->w, name, "the name of a filter or test");
    const Builtin *b = builtin_find(kind, text);
    if (!b) render_refuse_name(r, kind == BUILTIN_FILTER ? "filter" : "test", text);
    return b;
}

/* The items of what is mapped or selected from; nothing where it is false, be it none or 0. */
static const Seq *items_of(Render *r, Value v) {
    return value_truth(v) ? value_items(r->w, v) : seq_new(r->w, SEQ_LIST, 0);
}

static Value map_attribute(Render *r, const Call *c) {
    Value path = {.kind = V_MISSING}, missing = {.kind = V_MISSING};
    for (size_t i = 0; i < c->n_keywords; i++) {
        if (text_is(c->keywords[i].name, "attribute")) path = c->keywords[i].value;
        else if (text_is(c->keywords[i].name, "default")) missing = c->keywords[i].value;
        else work_fail(r->w, FR_ERR_FORMAT, "map has no argument of that name");
    }
    if (!given(path)) work_fail(r->w, FR_ERR_FORMAT, "map needs the name of a filter, or attribute=...");
    const Seq *items = items_of(r, c->subject);
    Seq *s = seq_new(r->w, SEQ_GENERATOR, items->n);
    for (size_t i = 0; i < items->n; i++) seq_add(r->w, s, follow_path_or(r, items->items[i], path, missing));
    return value_seq(s);
}

static Value map(Render *r, const Call *c) {
    if (c->n_positional == 0) return map_attribute(r, c);
    const Builtin *filter = named(r, BUILTIN_FILTER, c->positional[0]);
    const Seq *items = items_of(r, c->subject);
    Seq *s = seq_new(r->w, SEQ_GENERATOR, items->n);
    for (size_t i = 0; i < items->n; i++) {
        Call call = rest_of(c, 1);
        call.subject = items->items[i];
        seq_add(r->w, s, builtin_run(r, filter, &call));
    }
    return value_seq(s);
}

static Value choose(Render *r, const Call *c, bool by_attribute, bool wanted) {
    size_t skip = by_attribute;
    if (c->n_positional < skip) work_fail(r->w, FR_ERR_FORMAT, "the name of the attribute is missing");
    const Builtin *test = c->n_positional > skip ? named(r, BUILTIN_TEST, c->positional[skip]) : NULL;
    const Seq *items = items_of(r, c->subject);
    Seq *s = seq_new(r->w, SEQ_GENERATOR, 0);
    for (size_t i = 0; i < items->n; i++) {
        work_spend(r->w, 0);
        Value v = by_attribute ? follow_path(r, items->items[i], c->positional[0]) : items->items[i];
        if (test) {
            Call call = rest_of(c, skip + 1);
            call.subject = v;
            v = builtin_run(r, test, &call);
        }
        if (value_truth(v) == wanted) seq_add(r->w, s, items->items[i]);
    }
    return value_seq(s);
}

static Value select_filter(Render *r, const Call *c) { return choose(r, c, false, true); }
static Value reject(Render *r, const Call *c) { return choose(r, c, false, false); }
static Value select_attr(Render *r, const Call *c) { return choose(r, c, true, true); }
static Value reject_attr(Render *r, const Call *c) { return choose(r, c, true, false); }

static Value attr(Render *r, const Call *c) {
    const Text *name = value_need_text(r->w, c->at[0], "attr: the name");
    if (c->subject.kind == V_DICT && !method_find(r, c->subject, name))
        return value_undefined(name); /* no items of dicts */
    return value_attribute(r, c->subject, name);
}

const Builtin filters_select[] = {
    {"map", "*", map},
    {"select", "*", select_filter},
    {"reject", "*", reject},
    {"selectattr", "*", select_attr},
    {"rejectattr", "*", reject_attr},
    {"attr", "name!", attr},
    {NULL, NULL, NULL},
};
