/* filters_values.c - the filters of a single value: `attr`, `default`, and those of numbers. */
#include "text/template/render.h"

#include "base/math_functions.h"
#include "text/template/template_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static Value attr(Render *r, const Call *c) {
    const Text *name = value_need_text(r->w, c->at[0], "attr: the name");
    if (c->subject.kind == V_DICT && !method_find(c->subject, name))
        return value_undefined(name); /* `attr` does not look for the items of a dict */
    return value_attribute(r, c->subject, name);
}

static Value default_(Render *r, const Call *c) {
    bool missing = c->subject.kind == V_UNDEFINED || (argument_bool(c->at[1], false) && !value_truth(c->subject));
    if (!missing) return c->subject;
    return given(c->at[0]) ? c->at[0] : value_literal(r->w, "");
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Reads an integer as Python's int() does: digits of the base, with single underscores allowed between them. */
static bool read_int(Work *w, const Text *text, int64_t base, int64_t *out) {
    const Text *t = text_strip(w, text, NULL, true, true);
    work_spend(w, t->n);
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
        if (t->data[i] == '(') return false; /* strtod would read nan(...) */
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

/* Rounds to the nearest multiple of 10^-precision, and a value exactly between two of them to the even one. */
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
    double unit = math_pow(10, -(double)precision);
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
    double unit = math_pow(10, (double)precision), scaled = value_to_double(v) * unit;
    if (text_is(method, "ceil")) return value_float(ceil(scaled) / unit);
    if (text_is(method, "floor")) return value_float(floor(scaled) / unit);
    work_fail(r->w, FR_ERR_FORMAT, "round: the method must be common, ceil or floor");
}

const Builtin filters_values[] = {
    {"attr", "name!", attr},
    {"default", "default_value boolean", default_},
    {"d", "default_value boolean", default_},
    {"int", "default base", to_int},
    {"float", "default", to_float},
    {"abs", "", absolute},
    {"round", "precision method", round_filter},
    {NULL, NULL, NULL},
};
