/* filters_sequences.c - the filters of lists, dicts and other sequences: items, sorting, grouping, a filter or test for
 * each item, and sums. Filters that return a generator in Jinja return one here, too: it is empty after it was read
 * once. */
#include "text/template/render.h"

#include "text/template/template_text.h"

#include <string.h>

/* ---- paths such as "function.name" or 0, which lead from a value to an item or attribute ------------------------- */

/* Follows one step of a path: a name, or digits, which are the index of an item. */
static Value follow_step(Render *r, Value v, const Text *step) {
    work_spend(r->w, step->n);
    bool is_number_text = step->n > 0 && step->n < 10;
    int64_t index = 0;
    for (size_t i = 0; i < step->n; i++) {
        is_number_text = is_number_text && step->data[i] >= '0' && step->data[i] <= '9';
        if (is_number_text) index = index * 10 + (step->data[i] - '0');
    }
    return value_item(r, v, is_number_text ? value_int(index) : value_text(step));
}

/* Follows a whole path. An undefined value on the way is replaced by `missing`, if that is given and not none. */
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

static Value follow_path(Render *r, Value v, Value path) { return follow_path_or(r, v, path, value_none()); }

/* ---- sequences --------------------------------------------------------------------------------------------------- */

static Seq *generator(Render *r) { return seq_new(r->w, SEQ_GENERATOR, 0); }
static bool set(Value v) { return given(v) && v.kind != V_NONE; }

static Value length(Render *r, const Call *c) { return value_int(value_length(r->w, c->subject)); }

static Value list(Render *r, const Call *c) {
    const Seq *items = value_items(r->w, c->subject);
    work_spend(r->w, items->n);
    Seq *s = seq_new(r->w, SEQ_LIST, items->n);
    for (size_t i = 0; i < items->n; i++) seq_add(r->w, s, items->items[i]);
    return value_seq(s);
}

static Value first(Render *r, const Call *c) {
    Value v = c->subject;
    if (v.kind == V_SEQ && v.seq->flavour == SEQ_GENERATOR && v.seq->n > 0) {
        v.seq->n--, v.seq->capacity--;
        return *v.seq->items++;
    }
    if (is_text(v) && v.text->n) {
        int32_t code;
        return value_text(text_slice(r->w, v.text, 0, char_next(v.text->data, v.text->n, 0, &code)));
    }
    const Seq *items = value_items(r->w, v);
    return items->n ? items->items[0] : value_undefined(value_literal(r->w, "No first item, sequence was empty.").text);
}

static Value last(Render *r, const Call *c) {
    if (c->subject.kind == V_SEQ && c->subject.seq->flavour == SEQ_GENERATOR)
        work_fail(r->w, FR_ERR_FORMAT, "last: a generator has no last item; use list first");
    const Seq *items = value_items(r->w, c->subject);
    return items->n ? items->items[items->n - 1]
                    : value_undefined(value_literal(r->w, "No last item, sequence was empty.").text);
}

static Value join(Render *r, const Call *c) {
    const Seq *items = value_items(r->w, c->subject);
    const Text *separator = given(c->at[0]) ? value_str(r->w, c->at[0]) : value_literal(r->w, "").text;
    TextBuilder b = builder_new(r->w);
    for (size_t i = 0; i < items->n; i++) {
        if (i) builder_add(&b, separator);
        work_spend(r->w, separator->n);
        value_write(&b, set(c->at[1]) ? follow_path(r, items->items[i], c->at[1]) : items->items[i]);
    }
    return value_text(builder_text(&b));
}

static Value reverse(Render *r, const Call *c) {
    const Seq *items = value_items(r->w, c->subject);
    Seq *s = generator(r);
    TextBuilder b = builder_new(r->w);
    for (size_t i = items->n; i-- > 0;) {
        work_spend(r->w, 0);
        if (is_text(c->subject)) builder_add(&b, items->items[i].text);
        else seq_add(r->w, s, items->items[i]);
    }
    return is_text(c->subject) ? value_text(builder_text(&b)) : value_seq(s);
}

static Value items_filter(Render *r, const Call *c) {
    Seq *s = generator(r);
    if (c->subject.kind == V_UNDEFINED) return value_seq(s);
    if (c->subject.kind != V_DICT)
        work_fail(r->w, FR_ERR_FORMAT, "items: a dict is needed, not %s", value_type_name(c->subject));
    for (size_t i = 0; i < c->subject.dict->n; i++) {
        work_spend(r->w, 0);
        seq_add(r->w, s, seq_pair(r->w, c->subject.dict->entries[i].key, c->subject.dict->entries[i].value));
    }
    return value_seq(s);
}

/* ---- sorting --------------------------------------------------------------------------------------------------- */

typedef struct Keyed {
    Value key, item;
} Keyed;

static bool comes_first(Render *r, const Keyed *a, const Keyed *b, bool descends) {
    int order = descends ? value_order(r->w, b->key, a->key, "<") : value_order(r->w, a->key, b->key, "<");
    return order <= 0 || order == 2;
}

/* Sorts k[0..n) by merging, which is stable. */
static void merge_sort(Render *r, Keyed *k, Keyed *scratch, size_t n, bool descends) {
    if (n < 2) return;
    size_t half = n / 2, i = 0, j = half, to = 0;
    merge_sort(r, k, scratch, half, descends);
    merge_sort(r, k + half, scratch, n - half, descends);
    memcpy(scratch, k, n * sizeof *k);
    while (i < half || j < n) {
        bool left = j == n || (i < half && comes_first(r, &scratch[i], &scratch[j], descends));
        k[to++] = left ? scratch[i++] : scratch[j++];
    }
}

static Value without_case(Render *r, Value v) {
    return is_text(v) ? value_text(text_with_case(r->w, v.text, CASE_LOWER)) : v;
}

/* Returns the value by which `sort` compares an item. The path "a,b" means both attributes. */
static Value sort_key(Render *r, Value item, Value path, bool ignores_case) {
    Text comma = {.data = ",", .n = 1};
    if (!set(path)) return ignores_case ? without_case(r, item) : item;
    if (!is_text(path) || text_find(r->w, path.text, &comma, 0) > path.text->n) {
        Value v = follow_path(r, item, path);
        return ignores_case ? without_case(r, v) : v;
    }
    Seq *keys = seq_new(r->w, SEQ_TUPLE, 2);
    for (size_t at = 0; at <= path.text->n;) {
        size_t to = text_find(r->w, path.text, &comma, at);
        if (to > path.text->n) to = path.text->n;
        Value v = follow_path(r, item, value_text(text_slice(r->w, path.text, at, to)));
        seq_add(r->w, keys, ignores_case ? without_case(r, v) : v);
        at = to + 1;
    }
    return value_seq(keys);
}

/* Returns a sorted copy of the items. They are compared by the value at the end of `path`, or, if that is V_MISSING, by
 * themselves. The sort is stable. */
static Seq *sort_items(Render *r, const Seq *items, Value path, bool ignores_case, bool descends) {
    work_spend(r->w, items->n);
    Keyed *k = work_array(r->w, items->n, 2 * sizeof *k);
    for (size_t i = 0; i < items->n; i++)
        k[i] = (Keyed){sort_key(r, items->items[i], path, ignores_case), items->items[i]};
    merge_sort(r, k, k + items->n, items->n, descends);
    Seq *s = seq_new(r->w, SEQ_LIST, items->n);
    for (size_t i = 0; i < items->n; i++) seq_add(r->w, s, k[i].item);
    return s;
}

static Value sort(Render *r, const Call *c) {
    const Seq *items = value_items(r->w, c->subject);
    return value_seq(sort_items(r, items, c->at[2], !argument_bool(c->at[1], false), argument_bool(c->at[0], false)));
}

static Value dict_sort(Render *r, const Call *c) {
    if (c->subject.kind != V_DICT)
        work_fail(r->w, FR_ERR_FORMAT, "dictsort: a dict is needed, not %s", value_type_name(c->subject));
    const Text *by = argument_text(r, c->at[1], "key", "dictsort: by");
    if (!text_is(by, "key") && !text_is(by, "value"))
        work_fail(r->w, FR_ERR_FORMAT, "dictsort: by must be 'key' or 'value'");
    const Seq *pairs = value_items(r->w, items_filter(r, c));
    return value_seq(sort_items(r, pairs, value_int(text_is(by, "value")), !argument_bool(c->at[0], false),
                                argument_bool(c->at[2], false)));
}

static Value unique(Render *r, const Call *c) {
    const Seq *items = value_items(r->w, c->subject);
    bool ignores_case = !argument_bool(c->at[0], false);
    Dict *seen = dict_new(r->w);
    Seq *s = generator(r);
    for (size_t i = 0; i < items->n; i++) {
        Value key = set(c->at[1]) ? follow_path(r, items->items[i], c->at[1]) : items->items[i];
        if (ignores_case) key = without_case(r, key);
        if (dict_get(r->w, seen, key)) continue;
        dict_set(r->w, seen, key, value_none());
        seq_add(r->w, s, items->items[i]);
    }
    return value_seq(s);
}

/* ---- grouping -------------------------------------------------------------------------------------------------- */

static Value group_by(Render *r, const Call *c) {
    bool ignores_case = !argument_bool(c->at[2], false);
    const Seq *items = sort_items(r, value_items(r->w, c->subject), c->at[0], ignores_case, false);
    Seq *groups = seq_new(r->w, SEQ_LIST, 0), *group = NULL;
    Value last_key = value_none();
    for (size_t i = 0; i < items->n; i++) {
        Value name = follow_path(r, items->items[i], c->at[0]);
        if (name.kind == V_UNDEFINED && set(c->at[1])) name = c->at[1];
        Value key = ignores_case ? without_case(r, name) : name;
        if (!group || !value_equal(r->w, key, last_key)) {
            group = seq_new(r->w, SEQ_LIST, 0);
            seq_add(r->w, groups, seq_pair(r->w, name, value_seq(group)));
        }
        seq_add(r->w, group, items->items[i]);
        last_key = key;
    }
    return value_seq(groups);
}

static Value batch(Render *r, const Call *c) {
    int64_t size = value_need_int(r->w, c->at[0], "batch: linecount");
    const Seq *items = value_items(r->w, c->subject);
    Seq *s = generator(r), *line = NULL;
    if (size < 1) work_fail(r->w, FR_ERR_FORMAT, "batch: linecount must be at least 1");
    for (size_t i = 0; i < items->n; i++) {
        work_spend(r->w, 0);
        if (!line || (int64_t)line->n == size) seq_add(r->w, s, value_seq(line = seq_new(r->w, SEQ_LIST, 0)));
        seq_add(r->w, line, items->items[i]);
    }
    while (line && set(c->at[1]) && (int64_t)line->n < size) {
        work_spend(r->w, 0);
        seq_add(r->w, line, c->at[1]);
    }
    return value_seq(s);
}

static Value slice(Render *r, const Call *c) {
    int64_t n_slices = value_need_int(r->w, c->at[0], "slice: slices");
    const Seq *items = value_items(r->w, c->subject);
    Seq *s = generator(r);
    if (n_slices < 1) work_fail(r->w, FR_ERR_FORMAT, "slice: slices must be at least 1");
    int64_t each = (int64_t)items->n / n_slices, with_one_more = (int64_t)items->n % n_slices;
    size_t at = 0;
    for (int64_t k = 0; k < n_slices; k++) {
        Seq *part = seq_new(r->w, SEQ_LIST, 0);
        work_spend(r->w, (size_t)each);
        for (int64_t i = 0; i < each + (k < with_one_more); i++) seq_add(r->w, part, items->items[at++]);
        if (set(c->at[1]) && k >= with_one_more) seq_add(r->w, part, c->at[1]);
        seq_add(r->w, s, value_seq(part));
    }
    return value_seq(s);
}

/* ---- map, select and reject: a filter or test for each item --------------------------------------------------- */

/* Returns a call with the arguments after the first `skip`: those of the filter or test that is named there. */
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

/* Returns the items of the subject. A false value, such as none or 0, has no items. */
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
    for (size_t i = 0; i < items->n; i++) {
        work_spend(r->w, 0);
        seq_add(r->w, s, follow_path_or(r, items->items[i], path, missing));
    }
    return value_seq(s);
}

static Value map(Render *r, const Call *c) {
    if (c->n_positional == 0) return map_attribute(r, c);
    const Builtin *filter = named(r, BUILTIN_FILTER, c->positional[0]);
    const Seq *items = items_of(r, c->subject);
    Seq *s = seq_new(r->w, SEQ_GENERATOR, items->n);
    for (size_t i = 0; i < items->n; i++) {
        work_spend(r->w, 0);
        Call call = rest_of(c, 1);
        call.subject = items->items[i];
        seq_add(r->w, s, builtin_run(r, filter, &call));
    }
    return value_seq(s);
}

/* Returns the items that pass a test, or that fail it. The first argument names an attribute to be tested, or else the
 * test; without a test, the truth of the value decides. */
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

/* ---- the sum and the extremes ----------------------------------------------------------------------------------- */

static Value sum(Render *r, const Call *c) {
    const Seq *items = value_items(r->w, c->subject);
    Value total = given(c->at[1]) ? c->at[1] : value_int(0);
    for (size_t i = 0; i < items->n; i++) {
        work_spend(r->w, 0);
        total = evaluate_binary(r, '+', total,
                                given(c->at[0]) && c->at[0].kind != V_NONE ? follow_path(r, items->items[i], c->at[0])
                                                                           : items->items[i]);
    }
    return total;
}

static Value extreme(Render *r, const Call *c, const char *operator_name, int wanted) {
    const Seq *items = value_items(r->w, c->subject);
    bool ignores_case = !argument_bool(c->at[0], false);
    Value best = value_undefined(value_literal(r->w, "No aggregated item, sequence was empty.").text), best_key = best;
    for (size_t i = 0; i < items->n; i++) {
        work_spend(r->w, 0);
        Value key = given(c->at[1]) && c->at[1].kind != V_NONE ? follow_path(r, items->items[i], c->at[1])
                                                               : items->items[i];
        if (ignores_case) key = without_case(r, key);
        int order = i == 0 ? 0 : value_order(r->w, key, best_key, operator_name);
        if (i && order != wanted) continue;
        best = items->items[i];
        best_key = key;
    }
    return best;
}

static Value min_filter(Render *r, const Call *c) { return extreme(r, c, "<", -1); }
static Value max_filter(Render *r, const Call *c) { return extreme(r, c, ">", 1); }

const Builtin filters_sequences[] = {
    {"length", "", length},
    {"count", "", length},
    {"list", "", list},
    {"first", "", first},
    {"last", "", last},
    {"join", "d attribute", join},
    {"reverse", "", reverse},
    {"items", "", items_filter},
    {"sort", "reverse case_sensitive attribute", sort},
    {"dictsort", "case_sensitive by reverse", dict_sort},
    {"unique", "case_sensitive attribute", unique},
    {"groupby", "attribute! default case_sensitive", group_by},
    {"batch", "linecount! fill_with", batch},
    {"slice", "slices! fill_with", slice},
    {"map", "*", map},
    {"select", "*", select_filter},
    {"reject", "*", reject},
    {"selectattr", "*", select_attr},
    {"rejectattr", "*", reject_attr},
    {"sum", "attribute start", sum},
    {"min", "case_sensitive attribute", min_filter},
    {"max", "case_sensitive attribute", max_filter},
    {NULL, NULL, NULL},
};
