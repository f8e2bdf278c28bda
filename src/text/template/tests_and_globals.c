/* tests_and_globals.c - the tests, which follow `is`, and the global functions. */
#include "text/template/render.h"
#include "text/template/template_text.h"

#include <string.h>
#include <time.h>

static Value defined(Render *r, const Call *c) {
    (void)r;
    return value_bool(c->subject.kind != V_UNDEFINED);
}

static Value undefined(Render *r, const Call *c) {
    (void)r;
    return value_bool(c->subject.kind == V_UNDEFINED);
}

#define KIND_TEST(name, condition) \
    static Value name(Render *r, const Call *c) { \
        (void)r; \
        Value v = c->subject; \
        return value_bool(condition); \
    }
KIND_TEST(none, v.kind == V_NONE)
KIND_TEST(boolean, v.kind == V_BOOL)
KIND_TEST(is_true, v.kind == V_BOOL && v.b)
KIND_TEST(is_false, v.kind == V_BOOL && !v.b)
KIND_TEST(integer, v.kind == V_INT)
KIND_TEST(float_number, v.kind == V_FLOAT)
KIND_TEST(number, is_number(v))
KIND_TEST(string, v.kind == V_TEXT)
KIND_TEST(mapping, v.kind == V_DICT)
KIND_TEST(sequence, v.kind == V_TEXT || v.kind == V_DICT || v.kind == V_UNDEFINED || is_list_like(v))
KIND_TEST(iterable, value_is_iterable(v) || v.kind == V_LOOP)
KIND_TEST(callable,
          v.kind == V_FUNCTION || v.kind == V_MACRO || v.kind == V_UNDEFINED || v.kind == V_LOOP || v.kind == V_JOINER)
KIND_TEST(escaped, v.kind == V_TEXT && v.text->is_safe)

static Value remainder_is(Render *r, const Call *c, Value divisor, int64_t wanted) {
    return value_bool(value_equal(r->w, evaluate_binary(r, '%', c->subject, divisor), value_int(wanted)));
}

static Value odd(Render *r, const Call *c) { return remainder_is(r, c, value_int(2), 1); }
static Value even(Render *r, const Call *c) { return remainder_is(r, c, value_int(2), 0); }
static Value divisible_by(Render *r, const Call *c) { return remainder_is(r, c, c->at[0], 0); }

static Value case_is(Render *r, const Call *c, const char *method) {
    Text name = {.data = method, .n = 7};
    Value text = value_text(argument_str(r, c->subject));
    Call call = {.subject = text};
    return builtin_run(r, method_find(text, &name), &call);
}

static Value lower(Render *r, const Call *c) { return case_is(r, c, "islower"); }
static Value upper(Render *r, const Call *c) { return case_is(r, c, "isupper"); }

static Value equal(Render *r, const Call *c) { return value_bool(value_equal(r->w, c->subject, c->at[0])); }
static Value unequal(Render *r, const Call *c) { return value_bool(!value_equal(r->w, c->subject, c->at[0])); }
static Value less(Render *r, const Call *c) { return value_bool(value_order(r->w, c->subject, c->at[0], "<") < 0); }
static Value greater(Render *r, const Call *c) { return value_bool(value_order(r->w, c->subject, c->at[0], ">") == 1); }
static Value at_most(Render *r, const Call *c) {
    return value_bool(value_order(r->w, c->subject, c->at[0], "<=") <= 0);
}
static Value in(Render *r, const Call *c) { return value_bool(value_contains(r->w, c->at[0], c->subject)); }

static Value at_least(Render *r, const Call *c) {
    int order = value_order(r->w, c->subject, c->at[0], ">=");
    return value_bool(order == 0 || order == 1);
}

/* Returns whether both are the same object. Lists and dicts are compared by their addresses. For other values it is
 * enough that their types and values are equal, as they are for none, booleans and small integers in Python. */
static Value same_as(Render *r, const Call *c) {
    Value a = c->subject, b = c->at[0];
    if (a.kind != b.kind) return value_bool(false);
    if (a.kind == V_SEQ) return value_bool(a.seq == b.seq);
    if (a.kind == V_DICT) return value_bool(a.dict == b.dict);
    return value_bool(value_equal(r->w, a, b));
}

static Value is_filter(Render *r, const Call *c) {
    return value_bool(builtin_find(BUILTIN_FILTER, argument_str(r, c->subject)) != NULL);
}
static Value is_test(Render *r, const Call *c) {
    return value_bool(builtin_find(BUILTIN_TEST, argument_str(r, c->subject)) != NULL);
}

const Builtin value_tests[] = {
    {"defined", "", defined},
    {"undefined", "", undefined},
    {"none", "", none},
    {"boolean", "", boolean},
    {"true", "", is_true},
    {"false", "", is_false},
    {"integer", "", integer},
    {"float", "", float_number},
    {"number", "", number},
    {"string", "", string},
    {"mapping", "", mapping},
    {"sequence", "", sequence},
    {"iterable", "", iterable},
    {"callable", "", callable},
    {"escaped", "", escaped},
    {"odd", "", odd},
    {"even", "", even},
    {"divisibleby", "num!", divisible_by},
    {"lower", "", lower},
    {"upper", "", upper},
    {"sameas", "other!", same_as},
    {"in", "seq!", in},
    {"eq", "b!", equal},
    {"equalto", "b!", equal},
    {"==", "b!", equal},
    {"ne", "b!", unequal},
    {"!=", "b!", unequal},
    {"lt", "b!", less},
    {"lessthan", "b!", less},
    {"<", "b!", less},
    {"gt", "b!", greater},
    {"greaterthan", "b!", greater},
    {">", "b!", greater},
    {"le", "b!", at_most},
    {"<=", "b!", at_most},
    {"ge", "b!", at_least},
    {">=", "b!", at_least},
    {"filter", "", is_filter},
    {"test", "", is_test},
    {NULL, NULL, NULL},
};

/* ---- cycler and joiner ----------------------------------------------------------------------------------------- */

/* These two values change when they are used. A cycler returns its items in turn, and begins again after the last
 * one. A joiner returns an empty string at its first call and its separator at all later ones. Both are a list of
 * items with a position in it. */

static Value new_iterator(Render *r, ValueKind kind, const Value *items, size_t n) {
    Iterator *it = work_alloc(r->w, sizeof *it);
    *it = (Iterator){.items = items, .n = n};
    return (Value){.kind = kind, .iterator = it};
}

static Value cycler_new(Render *r, const Call *c) {
    if (c->n_keywords) work_fail(r->w, FR_ERR_FORMAT, "cycler has no argument of that name");
    if (c->n_positional == 0) work_fail(r->w, FR_ERR_FORMAT, "cycler needs at least one item");
    return new_iterator(r, V_CYCLER, c->positional, c->n_positional);
}

static Value joiner_new(Render *r, const Call *c) {
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

/* ---- global functions: Jinja's, and raise_exception and strftime_now, which Hugging Face adds ----------------- */

enum { RANGE_MAX = 100000 }; /* items; Jinja's sandbox has the same limit */

/* Returns the number of items of range(start, stop, step). */
static uint64_t range_count(int64_t start, int64_t stop, int64_t step) {
    if (step > 0) return start < stop ? ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step + 1 : 0;
    return stop < start ? ((uint64_t)start - (uint64_t)stop - 1) / (0 - (uint64_t)step) + 1 : 0;
}

static Value range(Render *r, const Call *c) {
    bool one = !given(c->at[1]);
    int64_t start = one ? 0 : value_need_int(r->w, c->at[0], "range: start"),
            stop = value_need_int(r->w, c->at[!one], "range: stop");
    int64_t step = argument_int(r, c->at[2], 1, "range: step");
    if (step == 0) work_fail(r->w, FR_ERR_FORMAT, "range: the step cannot be 0");
    uint64_t n = range_count(start, stop, step);
    if (n > RANGE_MAX) work_fail(r->w, FR_ERR_MEMORY, "a range has more than %d items, which is the limit", RANGE_MAX);
    work_spend(r->w, n);
    Seq *s = seq_new(r->w, SEQ_RANGE, n);
    s->start = start, s->stop = stop, s->step = step;
    for (uint64_t i = 0; i < n; i++) seq_add(r->w, s, value_int(start + (int64_t)i * step));
    return value_seq(s);
}

/* Returns the dict that dict(mapping or pairs, key=value, ...) makes. */
static Dict *make_dict(Render *r, const Call *c) {
    Dict *d = dict_new(r->w);
    if (c->n_positional > 1) work_fail(r->w, FR_ERR_FORMAT, "dict takes at most one argument without a name");
    if (c->n_positional == 1 && c->positional[0].kind == V_DICT) {
        const Dict *from = c->positional[0].dict;
        for (size_t i = 0; i < from->n; i++) dict_set(r->w, d, from->entries[i].key, from->entries[i].value);
    } else if (c->n_positional == 1) {
        const Seq *pairs = value_items(r->w, c->positional[0]);
        for (size_t i = 0; i < pairs->n; i++) {
            const Seq *pair = value_items(r->w, pairs->items[i]);
            if (pair->n != 2) work_fail(r->w, FR_ERR_FORMAT, "dict needs pairs of a key and a value");
            dict_set(r->w, d, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < c->n_keywords; i++) dict_set(r->w, d, value_text(c->keywords[i].name), c->keywords[i].value);
    return d;
}

static Value dict(Render *r, const Call *c) { return value_dict(make_dict(r, c)); }
static Value new_namespace(Render *r, const Call *c) { return (Value){.kind = V_NAMESPACE, .dict = make_dict(r, c)}; }

static Value raise_exception(Render *r, const Call *c) {
    const Text *message = value_str(r->w, c->at[0]);
    r->was_refused = true;
    work_fail(r->w, FR_ERR_ARGUMENT, "%.*s", (int)(message->n < 400 ? message->n : 400), message->data);
}

static Value strftime_now(Render *r, const Call *c) {
    const Text *form = value_need_text(r->w, c->at[0], "strftime_now: the format");
    char copy[256], out[512];
    struct tm parts;
    time_t now = (time_t)r->time;
    if (form->n >= sizeof copy)
        work_fail(r->w, FR_ERR_MEMORY, "strftime_now: the format is longer than %zu bytes, which is the limit",
                  sizeof copy - 1);
    memcpy(copy, form->data, form->n);
    copy[form->n] = '\0';
    if (!localtime_r(&now, &parts)) work_fail(r->w, FR_ERR_INTERNAL, "the local time is unknown");
    size_t n = strftime(out, sizeof out, copy, &parts);
    return value_text(text_copy(r->w, out, n, text_has_data(r->w, form)));
}

const Builtin global_functions[] = {
    {"range", "start! stop step", range},
    {"dict", "*", dict},
    {"namespace", "*", new_namespace},
    {"raise_exception", "message!", raise_exception},
    {"strftime_now", "format!", strftime_now},
    {"cycler", "*", cycler_new},
    {"joiner", "sep", joiner_new},
    {NULL, NULL, NULL},
};
