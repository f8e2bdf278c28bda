/* schema_number.c - schemas of numbers: exact bounds, and multiples of an integer. */
#include "grammar/schema.h"

#include <math.h>
#include <stdio.h>

#define FAR 1e16
enum { MAX_DIGITS = 15, MAX_LISTED = 5000, MAX_MODULUS = 200 };

static bool is_int32_format(const Value *format) {
    return format && is_text(*format) && text_is(format->text, "int32");
}

static bool number_of(const Schema *s, Value schema, const char *keyword, double *out) {
    const Value *v = schema_get(s, schema, keyword);
    if (!v) return false;
    if (v->kind == V_BOOL) schema_fail(s, "'%s' must be a number; write the bound itself instead of true", keyword);
    if (!is_number(*v)) schema_fail(s, "'%s' must be a number", keyword);
    *out = value_to_double(*v);
    if (!isfinite(*out)) schema_fail(s, "'%s' is beyond the range of a double, which is about 1.8e308", keyword);
    return true;
}

/* The narrower of a bound and its exclusive form. sign: 1 for lower bounds, -1 for upper ones. */
static DecimalBound bound_of(const Schema *s, Value schema, const char *keyword, const char *exclusive, int sign) {
    DecimalBound b = {0};
    double value;
    b.is_given = number_of(s, schema, keyword, &b.value);
    if (number_of(s, schema, exclusive, &value) && (!b.is_given || sign * value >= sign * b.value))
        b = (DecimalBound){true, true, value};
    if (b.is_given && sign * b.value <= -FAR) b.is_given = false; /* no number has so many digits here */
    return b;
}

/* The integers within a bound; false: all. */
static bool whole_bound(const Schema *s, DecimalBound b, bool is_upper, int64_t *out) {
    if (!b.is_given) return false;
    double whole = is_upper ? floor(b.value) : ceil(b.value);
    if (is_upper ? whole >= FAR : whole <= -FAR) return false; /* no integer has so many digits here */
    if (fabs(whole) >= 0x1p62) schema_fail(s, "the bound %g of an integer is too large", b.value);
    *out = (int64_t)whole;
    if (b.is_exclusive && whole == b.value) *out += is_upper ? -1 : 1;
    return true;
}

static const Expr *any_integer(Schema *s) {
    static const char pattern[] = "-?(?:0|[1-9][0-9]{0,15})";
    return regex_expr(s->g, pattern, sizeof pattern - 1, false);
}

static const Expr *any_number(Schema *s) {
    static const char pattern[] = "-?(?:0|[1-9][0-9]{0,15})(?:\\.[0-9]{1,16})?(?:[eE][-+]?[0-9]{1,2})?";
    return regex_expr(s->g, pattern, sizeof pattern - 1, false);
}

/* ---- multiples ---------------------------------------------------------------------------------------------- */

static const Expr *listed(Schema *s, int64_t from, int64_t to, int64_t step) {
    Expr *alt = expr_alt(s->w);
    for (int64_t v = from; v <= to; v += step) {
        char *text = work_alloc(s->w, 24);
        snprintf(text, 24, "%lld", (long long)v);
        expr_add(s->w, alt, expr_literal(s->w, text));
    }
    return alt;
}

/* A rule for each remainder of what has been read and each number of digits that may follow; it may end at remainder 0. */
static const Expr *by_remainders(Schema *s, int32_t modulus) {
    Work *w = s->w;
    int32_t first = s->g->n_rules, n = modulus * MAX_DIGITS;
    for (int32_t i = 0; i < n; i++) expr_add_rule(s->g, "a remainder");
    for (int32_t i = 0; i < n; i++) {
        Expr *alt = expr_alt(w);
        if (i % modulus == 0) expr_add(w, alt, expr_empty(w));
        for (uint32_t d = 0; d < 10 && i >= modulus; d++) {
            int32_t next = (10 * (i % modulus) + (int32_t)d) % modulus + (i / modulus - 1) * modulus;
            expr_add(w, alt, expr_seq_of(w, expr_range(w, '0' + d, '0' + d), expr_rule(w, first + next)));
        }
        s->g->rules[first + i].body = alt;
    }
    Expr *alt = expr_alt(w);
    for (uint32_t d = 1; d < 10; d++) {
        int32_t next = first + (MAX_DIGITS - 1) * modulus + (int32_t)d % modulus;
        expr_add(w, alt, expr_seq_of(w, expr_range(w, '0' + d, '0' + d), expr_rule(w, next)));
    }
    return expr_alt_of(w, expr_literal(w, "0"), expr_seq_of(w, expr_optional(w, expr_literal(w, "-")), alt));
}

static const Expr *multiples(Schema *s, double step, bool has_min, int64_t min, bool has_max, int64_t max) {
    if (!(step >= 1) || step != floor(step) || step > 1e9)
        schema_fail(s, "'multipleOf' is supported for integers from 1 to 1e9 only");
    int64_t n = (int64_t)step;
    if (has_min && has_max) {
        int64_t from = min >= 0 ? (min + n - 1) / n * n : min / n * n;
        if (max < from) return expr_nothing(s->w);
        if ((max - from) / n < MAX_LISTED) return listed(s, from, max, n);
    }
    if (has_min || has_max || n > MAX_MODULUS)
        schema_fail(s,
                    "'multipleOf' is supported with both bounds and at most %d multiples between them, or without "
                    "bounds up to %d",
                    MAX_LISTED, MAX_MODULUS);
    return by_remainders(s, (int32_t)n);
}

const Expr *schema_number(Schema *s, Value schema, bool is_integer) {
    DecimalBound lower = bound_of(s, schema, "minimum", "exclusiveMinimum", 1),
                 upper = bound_of(s, schema, "maximum", "exclusiveMaximum", -1);
    double step = 0;
    int64_t min = 0, max = 0;
    bool has_step = number_of(s, schema, "multipleOf", &step);
    if (has_step && step != 1) is_integer = true; /* multiples of an integer are integers */
    if (!is_integer && !has_step)
        return lower.is_given || upper.is_given ? schema_decimal_range(s, lower, upper)
                                                : schema_rule(s, "any number", any_number);
    bool has_min = whole_bound(s, lower, false, &min), has_max = whole_bound(s, upper, true, &max);
    if (is_int32_format(schema_get(s, schema, "format"))) {
        if (!has_min || min < INT32_MIN) has_min = true, min = INT32_MIN;
        if (!has_max || max > INT32_MAX) has_max = true, max = INT32_MAX;
    }
    if (has_step && step != 1) return multiples(s, step, has_min, min, has_max, max);
    if (has_min || has_max) return schema_integer_range(s, has_min, min, has_max, max);
    return schema_rule(s, "any integer", any_integer);
}
