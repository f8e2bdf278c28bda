/* filters_number.c - filters of numbers, and `default`. */
#include "text/template/render.h"
#include "text/template/unicode_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static Value default_(Render *r, const Call *c) {
    bool missing = c->subject.kind == V_UNDEFINED || (argument_bool(c->at[1], false) && !value_truth(c->subject));
    if (!missing) return c->subject;
    return given(c->at[0]) ? c->at[0] : value_literal(r->w, "");
}

/* Digits of the base with single underscores between them, as Python's int() reads them. */
static bool read_int(Work *w, const Text *text, int64_t base, int64_t *out) {
    const Text *t = text_strip(w, text, NULL, true, true);
    size_t at = t->n > 0 && (t->data[0] == '-' || t->data[0] == '+');
    bool is_negative = at && t->data[0] == '-', after_digit = false;
    if (base == 16 && t->n - at > 2 && t->data[at] == '0' && (t->data[at + 1] | 32) == 'x') at += 2;
    if (base == 2 && t->n - at > 2 && t->data[at] == '0' && (t->data[at + 1] | 32) == 'b') at += 2;
    if (base == 8 && t->n - at > 2 && t->data[at] == '0' && (t->data[at + 1] | 32) == 'o') at += 2;
    *out = 0;
    for (; at < t->n; at++) {
        char ch = t->data[at];
        if (ch == '_' && after_digit) {
            after_digit = false;
            continue;
        }
        int digit = ch >= '0' && ch <= '9'                 ? ch - '0'
                    : (ch | 32) >= 'a' && (ch | 32) <= 'z' ? (ch | 32) - 'a' + 10
                                                           : 99;
        if (digit >= base) return false;
        if (__builtin_mul_overflow(*out, base, out) || __builtin_sub_overflow(*out, digit, out))
            work_fail(w, FR_ERR_UNSUPPORTED, "an integer has more than 64 bits");
        after_digit = true;
    }
    if (!is_negative && __builtin_sub_overflow((int64_t)0, *out, out))
        work_fail(w, FR_ERR_UNSUPPORTED, "an integer has more than 64 bits");
    return after_digit;
}

static bool read_float(Work *w, const Text *text, double *out) {
    const Text *t = text_strip(w, text, NULL, true, true);
    char copy[512];
    size_t n = 0;
    if (t->n >= sizeof copy) return false;
    for (size_t i = 0; i < t->n; i++) {
        bool between = i > 0 && i + 1 < t->n && t->data[i - 1] >= '0' && t->data[i - 1] <= '9' &&
                       t->data[i + 1] >= '0' && t->data[i + 1] <= '9';
        if (t->data[i] == '_' && between) continue;
        if (t->data[i] == '(') return false; /* nan(...) */
        copy[n++] = t->data[i];
    }
    return double_read(copy, n, out);
}

static bool float_to_int(double f, int64_t *out) {
    if (!(f > -9.2233720368547748e18 && f < 9.2233720368547748e18)) return false;
    *out = (int64_t)f;
    return true;
}

static Value to_int(Render *r, const Call *c) {
    int64_t i, base = argument_int(r, c->at[1], 10, "int: base");
    double f;
    Value v = c->subject, missing = given(c->at[0]) ? c->at[0] : value_int(0);
    value_need_defined(r->w, v);
    if (base < 2 || base > 36) work_fail(r->w, FR_ERR_FORMAT, "int: the base must be from 2 to 36");
    if (v.kind == V_INT || v.kind == V_BOOL) return value_int(v.kind == V_BOOL ? v.b : v.i);
    if (v.kind == V_FLOAT) return float_to_int(v.f, &i) ? value_int(i) : missing;
    if (v.kind != V_TEXT) return missing;
    if (read_int(r->w, v.text, base, &i)) return value_int(i);
    return read_float(r->w, v.text, &f) && float_to_int(f, &i) ? value_int(i) : missing;
}

static Value to_float(Render *r, const Call *c) {
    double f;
    value_need_defined(r->w, c->subject);
    if (is_number(c->subject)) return value_float(value_to_double(c->subject));
    if (is_text(c->subject) && read_float(r->w, c->subject.text, &f)) return value_float(f);
    return given(c->at[0]) ? c->at[0] : value_float(0);
}

static Value need_number(Render *r, Value v, const char *filter) {
    value_need_defined(r->w, v);
    if (!is_number(v)) work_fail(r->w, FR_ERR_FORMAT, "%s needs a number, not %s", filter, value_type_name(v));
    return v;
}

static Value absolute(Render *r, const Call *c) {
    Value v = need_number(r, c->subject, "abs");
    if (v.kind == V_FLOAT) return value_float(fabs(v.f));
    int64_t i = v.kind == V_BOOL ? v.b : v.i;
    if (i == INT64_MIN) work_fail(r->w, FR_ERR_UNSUPPORTED, "an integer has more than 64 bits");
    return value_int(i < 0 ? -i : i);
}

/* To the nearest multiple of 10^-precision, exactly halfway to the even one. */
static double round_float(double f, int64_t precision) {
    char text[400];
    if (!isfinite(f) || precision > 300) return f;
    if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        char *point = strpbrk(text, ",.");
        if (point) *point = '.';
        double rounded = f;
        double_read(text, strlen(text), &rounded);
        return rounded;
    }
    double unit = pow(10, -(double)precision);
    return isfinite(unit) ? rint(f / unit) * unit : 0;
}

static int64_t round_int(int64_t i, int64_t precision) {
    int64_t unit = 1;
    if (precision >= 0) return i;
    if (precision < -18) return 0;
    for (; precision < 0; precision++) unit *= 10;
    int64_t rest = i % unit, down = i - rest, half = unit / 2;
    if (rest < 0) rest += unit, down -= unit;
    return rest > half || (rest == half && down / unit % 2 != 0) ? down + unit : down;
}

static Value round_filter(Render *r, const Call *c) {
    Value v = need_number(r, c->subject, "round");
    int64_t precision = argument_int(r, c->at[0], 0, "round: precision");
    const Text *method = argument_text(r, c->at[1], "common", "round: method");
    if (text_is(method, "common")) {
        if (v.kind == V_FLOAT) return value_float(round_float(v.f, precision));
        return value_int(round_int(v.kind == V_BOOL ? v.b : v.i, precision));
    }
    double unit = pow(10, (double)precision), scaled = value_to_double(v) * unit;
    if (text_is(method, "ceil")) return value_float(ceil(scaled) / unit);
    if (text_is(method, "floor")) return value_float(floor(scaled) / unit);
    work_fail(r->w, FR_ERR_FORMAT, "round: the method must be common, ceil or floor");
}

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

const Builtin filters_number[] = {
    {"default", "default_value boolean", default_},
    {"d", "default_value boolean", default_},
    {"int", "default base", to_int},
    {"float", "default", to_float},
    {"abs", "", absolute},
    {"round", "precision method", round_filter},
    {"sum", "attribute start", sum},
    {"min", "case_sensitive attribute", min_filter},
    {"max", "case_sensitive attribute", max_filter},
    {NULL, NULL, NULL},
};
