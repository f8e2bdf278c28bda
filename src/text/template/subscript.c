/* subscript.c - v[key], v[from:to:step] and v.name.
 *
 * As in Jinja, [ ] looks for an item first and then for an attribute, the dot the other way round: d.items is the method,
 * d['items'] the entry. What is not there is undefined, and an undefined value has neither. */
#include "text/template/render.h"
#include "text/template/unicode_text.h"

#include <string.h>

static Value undefined_part(Render *r, Value v, Value key) {
    TextBuilder b = builder_new(r->w);
    builder_add_literal(&b, "'");
    builder_add_literal(&b, value_type_name(v));
    builder_add_literal(&b, is_text(key) ? " object' has no attribute '" : " object' has no element '");
    value_write(&b, key);
    builder_add_literal(&b, "'");
    return value_undefined(builder_text(&b));
}

static Value text_item(Render *r, const Text *t, int64_t i, Value whole, Value key) {
    int64_t n = (int64_t)text_n_chars(r->w, t);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return undefined_part(r, whole, key);
    size_t from = text_char_offset(r->w, t, (size_t)i);
    int32_t code;
    return value_text(text_slice(r->w, t, from, from + char_next(t->data, t->n, from, &code)));
}

static bool find_item(Render *r, Value v, Value key, Value *out) {
    if (v.kind == V_DICT) {
        if (key.kind == V_DICT || (key.kind == V_SEQ && key.seq->flavour != SEQ_TUPLE)) return false;
        const Value *found = dict_get(r->w, v.dict, key);
        if (found) *out = *found;
        return found != NULL;
    }
    if (key.kind != V_INT && key.kind != V_BOOL) return false;
    int64_t i = key.kind == V_BOOL ? key.b : key.i;
    if (v.kind == V_TEXT) {
        *out = text_item(r, v.text, i, v, key);
        return true;
    }
    if (!is_list_like(v)) return false;
    if (i < 0) i += (int64_t)v.seq->n;
    if (i < 0 || i >= (int64_t)v.seq->n) return false;
    *out = v.seq->items[i];
    return true;
}

static bool find_attribute(Render *r, Value v, const Text *name, Value *out) {
    if (v.kind == V_NAMESPACE) {
        const Value *found = dict_get(r->w, v.dict, value_text(name));
        if (found) *out = *found;
        return found != NULL;
    }
    if (v.kind == V_LOOP) {
        *out = loop_attribute(r, v.loop, name);
        return out->kind != V_MISSING;
    }
    if (v.kind == V_MACRO && text_is(name, "name")) {
        *out = value_text(v.macro->node->name);
        return true;
    }
    if (v.kind == V_CYCLER && text_is(name, "current")) {
        *out = cycler_current(v);
        return true;
    }
    const Builtin *method = method_find(r, v, name);
    if (!method) return false;
    struct Function *f = work_alloc(r->w, sizeof *f);
    *f = (struct Function){method, v};
    *out = (Value){.kind = V_FUNCTION, .function = f};
    return true;
}

Value value_item(Render *r, Value v, Value key) {
    Value out;
    value_need_defined(r->w, v);
    if (find_item(r, v, key, &out)) return out;
    if (is_text(key) && find_attribute(r, v, key.text, &out)) return out;
    return undefined_part(r, v, key);
}

Value value_attribute(Render *r, Value v, const Text *name) {
    Value out;
    value_need_defined(r->w, v);
    if (find_attribute(r, v, name, &out) || find_item(r, v, value_text(name), &out)) return out;
    return undefined_part(r, v, value_text(name));
}

/* ---- slices ------------------------------------------------------------------------------------------------ */

/* The bounds that Python computes for n items: *from, and the number of items that are taken. */
static int64_t slice_count(Render *r, int64_t n, Value from_value, Value to_value, int64_t step, int64_t *from) {
    int64_t lowest = step < 0 ? -1 : 0, highest = step < 0 ? n - 1 : n;
    int64_t to = step < 0 ? -1 : n;
    *from = step < 0 ? n - 1 : 0;
    Value given_values[] = {from_value, to_value};
    int64_t *bounds[] = {from, &to};
    for (int k = 0; k < 2; k++) {
        if (given_values[k].kind == V_NONE) continue;
        int64_t v = value_need_int(r->w, given_values[k], "the bound of a slice");
        if (v < 0) v = v < -n ? lowest : v + n;
        else if (v > highest) v = highest;
        *bounds[k] = v;
    }
    if (step > 0) return *from < to ? (to - *from - 1) / step + 1 : 0;
    return to < *from ? (*from - to - 1) / (step == INT64_MIN ? INT64_MAX : -step) + 1 : 0;
}

static Value slice_text(Render *r, const Text *t, int64_t from, int64_t count, int64_t step) {
    if (count == 0) return value_literal(r->w, "");
    if (step == 1) {
        size_t begin = text_char_offset(r->w, t, (size_t)from);
        Text rest = {.data = t->data + begin, .n = t->n - begin};
        return value_text(text_slice(r->w, t, begin, begin + text_char_offset(r->w, &rest, (size_t)count)));
    }
    const Seq *chars = value_items(r->w, value_text(t));
    TextBuilder b = builder_new(r->w);
    for (int64_t k = 0; k < count; k++) builder_add(&b, chars->items[from + k * step].text);
    return value_text(builder_text(&b));
}

static Value slice_range(Render *r, const Seq *s, int64_t from, int64_t count, int64_t step) {
    Seq *out = seq_new(r->w, SEQ_RANGE, (size_t)count);
    for (int64_t k = 0; k < count; k++) seq_add(r->w, out, s->items[from + k * step]);
    out->start = s->start + from * s->step;
    out->step = s->step * step;
    out->stop = out->start + count * out->step;
    return value_seq(out);
}

Value value_slice(Render *r, Value v, Value from_value, Value to_value, Value step_value) {
    value_need_defined(r->w, v);
    if (!is_text(v) && !is_list_like(v))
        work_fail(r->w, FR_ERR_FORMAT, "a value of type %s has no slices", value_type_name(v));
    int64_t step = step_value.kind == V_NONE ? 1 : value_need_int(r->w, step_value, "the step of a slice"), from;
    if (step == 0) work_fail(r->w, FR_ERR_FORMAT, "the step of a slice cannot be 0");
    int64_t n = is_text(v) ? (int64_t)text_n_chars(r->w, v.text) : (int64_t)v.seq->n;
    int64_t count = slice_count(r, n, from_value, to_value, step, &from);
    if (count <= 1) step = 1; /* it is not used, and must not overflow */
    work_spend(r->w, (size_t)count);
    if (is_text(v)) return slice_text(r, v.text, from, count, step);
    if (v.seq->flavour == SEQ_RANGE) return slice_range(r, v.seq, from, count, step);
    Seq *s = seq_new(r->w, v.seq->flavour, (size_t)count);
    for (int64_t k = 0; k < count; k++) seq_add(r->w, s, v.seq->items[from + k * step]);
    return value_seq(s);
}
