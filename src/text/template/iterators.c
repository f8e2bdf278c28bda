/* iterators.c - cycler and joiner, the two values of Jinja that change when they are used.
 *
 * A cycler gives its items in turn, and the first one again after the last. A joiner is called between the parts of a list: it
 * gives the empty string the first time and its separator each time after that. Both are a row of items with a place in it. */
#include "text/template/render.h"

static Value new_iterator(Render *r, ValueKind kind, const Value *items, size_t n) {
    Iterator *it = work_alloc(r->w, sizeof *it);
    *it = (Iterator){.items = items, .n = n};
    return (Value){.kind = kind, .iterator = it};
}

Value cycler_new(Render *r, const Call *c) {
    if (c->n_keywords) work_fail(r->w, FR_ERR_FORMAT, "cycler has no argument of that name");
    if (c->n_positional == 0) work_fail(r->w, FR_ERR_FORMAT, "cycler needs at least one item");
    return new_iterator(r, V_CYCLER, c->positional, c->n_positional);
}

Value joiner_new(Render *r, const Call *c) {
    Value *items = work_array(r->w, 2, sizeof *items);
    items[0] = value_literal(r->w, "");
    items[1] = given(c->at[0]) ? c->at[0] : value_literal(r->w, ", ");
    return new_iterator(r, V_JOINER, items, 2);
}

Value joiner_call(Render *r, Value joiner, const Call *c) {
    if (c->n_positional + c->n_keywords) work_fail(r->w, FR_ERR_FORMAT, "a joiner is called without arguments");
    Value v = joiner.iterator->items[joiner.iterator->at];
    joiner.iterator->at = 1;
    return v;
}

Value cycler_current(Value cycler) { return cycler.iterator->items[cycler.iterator->at]; }

static Value next(Render *r, const Call *c) {
    Iterator *it = c->subject.iterator;
    (void)r;
    Value v = cycler_current(c->subject);
    it->at = (it->at + 1) % it->n;
    return v;
}

static Value reset(Render *r, const Call *c) {
    (void)r;
    c->subject.iterator->at = 0;
    return value_none();
}

const Builtin cycler_methods[] = {{"next", "", next}, {"reset", "", reset}, {NULL, NULL, NULL}};
