/* value_tests.c - what can stand behind `is`. */
#include "text/template/render.h"
#include "text/template/unicode_text.h"

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
    return builtin_run(r, method_find(r, text, &name), &call);
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

/* The same object: what is equal and of the same type comes close enough for none, booleans and small numbers. */
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
