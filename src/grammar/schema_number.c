/* schema_number.c - schemas of numbers: exact bounds, and multiples of an integer.
 *
 * A range of integers is cut by the number of digits, and then digit by digit: 37..1204 is 3[7-9] | [4-9][0-9] |
 * [1-9][0-9]{2} | 1([0-1][0-9]{2} | 20[0-4]). The fraction of a decimal is treated likewise, one digit at a time,
 * with the digits of those bounds that it has been equal to so far. Negative numbers are the mirrored range after a
 * minus. */
#include "grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FAR 1e16
enum { MAX_MULTIPLE_DIGITS = 15, MAX_LISTED = 5000, MAX_MODULUS = 200, MAX_FRACTION = 16, EXACT_DIGITS = 15 };

/* A bound of a number. Bounds from FAR on exclude nothing, because no number of this grammar has that many digits. */
typedef struct DecimalBound {
    bool is_given, is_exclusive;
    double value;
} DecimalBound;

/* ---- integers between two bounds ------------------------------------------------------------------------- */

static const Expr *digits(Schema *s, char lo, char hi) { return expr_range(s->w, (uint32_t)lo, (uint32_t)hi); }

static const Expr *any_digits(Schema *s, int32_t min, int32_t max) {
    return expr_repeat(s->w, digits(s, '0', '9'), min, max);
}

/* Returns the numbers from lo to hi, all of n digits. */
static const Expr *same_length(Schema *s, const char *lo, const char *hi, int n) {
    Work *w = s->w;
    if (n == 0) return expr_empty(w);
    if (lo[0] == hi[0]) return expr_seq_of(w, digits(s, lo[0], lo[0]), same_length(s, lo + 1, hi + 1, n - 1));
    static const char zeros[] = "0000000000000000000", nines[] = "9999999999999999999";
    Expr *alt = expr_alt(w);
    char first = lo[0], last = hi[0];
    if (strncmp(lo + 1, zeros, (size_t)n - 1) != 0)
        expr_add(w, alt, expr_seq_of(w, digits(s, first, first), same_length(s, lo + 1, nines, n - 1))), first++;
    if (strncmp(hi + 1, nines, (size_t)n - 1) != 0)
        expr_add(w, alt, expr_seq_of(w, digits(s, last, last), same_length(s, zeros, hi + 1, n - 1))), last--;
    if (first <= last) expr_add(w, alt, expr_seq_of(w, digits(s, first, last), any_digits(s, n - 1, n - 1)));
    return alt;
}

/* Returns the integers from lo to hi; lo is not negative. */
static const Expr *magnitudes(Schema *s, uint64_t lo, uint64_t hi) {
    Expr *alt = expr_alt(s->w);
    uint64_t power = 10; /* 10^n */
    for (int n = 1; n <= 19 && lo <= hi; n++, power *= n < 20 ? 10 : 1) {
        if (lo >= power) continue;
        char *from = work_alloc(s->w, 24), *to = work_alloc(s->w, 24);
        uint64_t end = hi < power - 1 ? hi : power - 1;
        snprintf(from, 24, "%0*llu", n, (unsigned long long)lo);
        snprintf(to, 24, "%0*llu", n, (unsigned long long)end);
        expr_add(s->w, alt, same_length(s, from, to, n));
        if (end == hi) break;
        lo = power;
    }
    return alt;
}

static uint64_t magnitude(int64_t v) { return v < 0 ? 0 - (uint64_t)v : (uint64_t)v; }

static const Expr *integer_range(Schema *s, bool has_min, int64_t min, bool has_max, int64_t max) {
    const int64_t far = 9999999999999999; /* 16 nines: the bound where none is given */
    if (!has_max) max = has_min && min > far ? INT64_MAX : far;
    if (!has_min) min = has_max && max < -far ? -INT64_MAX : -far;
    Expr *alt = expr_alt(s->w);
    if (min > max) return expr_nothing(s->w);
    if (max >= 0) expr_add(s->w, alt, magnitudes(s, min > 0 ? (uint64_t)min : 0, (uint64_t)max));
    if (min < 0)
        expr_add(
            s->w, alt,
            expr_seq_of(s->w, expr_literal(s->w, "-"), magnitudes(s, max < 0 ? magnitude(max) : 1, magnitude(min))));
    return alt;
}

/* ---- decimals -------------------------------------------------------------------------------------------- */

/* A bound of a range of numbers that are not negative, as decimal digits. */
typedef struct Decimal {
    bool is_given, is_exclusive;
    uint64_t whole;
    char fraction[40]; /* the digits after the point, without zeros at the end */
    int n_fraction;
} Decimal;

static Decimal decimal_of(const Schema *s, DecimalBound b) {
    Decimal d = {.is_given = b.is_given, .is_exclusive = b.is_exclusive};
    char text[32] = "0";
    if (b.is_given) text[double_write(text, fabs(b.value))] = '\0';
    char *point = strchr(text, '.');
    if (strchr(text, 'e')) schema_fail(s, "the bound %g is too large or too small to be kept exactly", b.value);
    for (const char *c = text; *c && c != point; c++) d.whole = 10 * d.whole + (uint64_t)(*c - '0');
    if (point) d.n_fraction = (int)strlen(strcpy(d.fraction, point + 1));
    while (d.n_fraction > 0 && d.fraction[d.n_fraction - 1] == '0') d.fraction[--d.n_fraction] = '\0';
    return d;
}

/* Returns the digits of a fraction from number i on. A bound is NULL once a digit before differed from it. */
static const Expr *fraction_digits(Schema *s, const Decimal *lo, const Decimal *hi, int i) {
    Work *w = s->w;
    if (lo && i >= lo->n_fraction && !lo->is_exclusive) lo = NULL;
    if (!lo && !hi)
        return i >= s->max_fraction ? (i ? expr_empty(w) : expr_nothing(w))
                                    : any_digits(s, i == 0, s->max_fraction - i);
    Expr *alt = expr_alt(w);
    bool may_end = !lo && (!hi || i < hi->n_fraction || !hi->is_exclusive);
    if (may_end && i > 0) expr_add(w, alt, expr_empty(w));
    if (i >= s->max_fraction || (hi && i >= hi->n_fraction)) return alt;
    char low = lo && i < lo->n_fraction ? lo->fraction[i] : '0', high = hi ? hi->fraction[i] : '9';
    if (lo && hi && low == high) {
        expr_add(w, alt, expr_seq_of(w, digits(s, low, low), fraction_digits(s, lo, hi, i + 1)));
        return alt;
    }
    if (lo) expr_add(w, alt, expr_seq_of(w, digits(s, low, low), fraction_digits(s, lo, NULL, i + 1))), low++;
    if (hi) expr_add(w, alt, expr_seq_of(w, digits(s, high, high), fraction_digits(s, NULL, hi, i + 1))), high--;
    if (low <= high) expr_add(w, alt, expr_seq_of(w, digits(s, low, high), any_digits(s, 0, s->max_fraction - i - 1)));
    return alt;
}

/* Returns what follows a whole part that equals the whole part of the bounds that are given here. */
static const Expr *fraction(Schema *s, const Decimal *lo, const Decimal *hi) {
    Work *w = s->w;
    Expr *alt = expr_alt(w);
    bool above = !lo || (lo->n_fraction == 0 && !lo->is_exclusive),
         below = !hi || hi->n_fraction > 0 || !hi->is_exclusive;
    if (above && below) expr_add(w, alt, expr_empty(w));
    if (!hi || hi->n_fraction > 0)
        expr_add(w, alt, expr_seq_of(w, expr_literal(w, "."), fraction_digits(s, lo, hi, 0)));
    return alt;
}

static const Expr *decimals(Schema *s, const Decimal *lo, const Decimal *hi) {
    Work *w = s->w;
    const uint64_t far = 9999999999999999;
    uint64_t last = hi->is_given ? hi->whole : far;
    Expr *alt = expr_alt(w);
    if (hi->is_given && lo->whole == hi->whole)
        return expr_seq_of(w, magnitudes(s, lo->whole, lo->whole), fraction(s, lo, hi));
    if (lo->whole > last) return expr_nothing(w);
    expr_add(w, alt, expr_seq_of(w, magnitudes(s, lo->whole, lo->whole), fraction(s, lo, NULL)));
    if (hi->is_given) {
        expr_add(w, alt, expr_seq_of(w, magnitudes(s, last, last), fraction(s, NULL, hi)));
        last--;
    }
    if (lo->whole + 1 <= last)
        expr_add(w, alt, expr_seq_of(w, magnitudes(s, lo->whole + 1, last), fraction(s, NULL, NULL)));
    return alt;
}

/* A decimal beyond an exclusive bound must not be rounded to the bound when it is read as a double. Doubles tell all
 * decimals of 15 digits apart, so the fraction may have as many digits as the whole part leaves of these. Rounding
 * cannot cross an inclusive bound. */
static int32_t fraction_digits_beyond(DecimalBound b) {
    if (!b.is_given || !b.is_exclusive) return MAX_FRACTION;
    int32_t n = EXACT_DIGITS - 1;
    for (double whole = fabs(b.value); whole >= 1 && n > 0; whole /= 10) n--;
    return n;
}

static const Expr *decimal_range(Schema *s, DecimalBound min, DecimalBound max) {
    Work *w = s->w;
    const Decimal zero = {.is_given = true};
    Expr *alt = expr_alt(w);
    int32_t below = fraction_digits_beyond(min), above = fraction_digits_beyond(max);
    s->max_fraction = below < above ? below : above;
    if (min.is_given && max.is_given &&
        (min.value > max.value || (min.value == max.value && (min.is_exclusive || max.is_exclusive))))
        return expr_nothing(w);
    if (!max.is_given || max.value > 0 || (max.value == 0 && !max.is_exclusive)) {
        Decimal lo = min.is_given && min.value >= 0 ? decimal_of(s, min) : zero, hi = decimal_of(s, max);
        expr_add(w, alt, decimals(s, &lo, &hi));
    }
    if (!min.is_given || min.value < 0) { /* the upper bound of a negative number is the lower bound of its magnitude */
        Decimal lo = max.is_given && max.value <= 0 ? decimal_of(s, max) : zero, hi = decimal_of(s, min);
        expr_add(w, alt, expr_seq_of(w, expr_literal(w, "-"), decimals(s, &lo, &hi)));
    }
    return alt;
}

/* ---- keywords -------------------------------------------------------------------------------------------- */

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

/* Returns the narrower one of a bound and an exclusive bound. sign: 1 for lower bounds, -1 for upper bounds. */
static DecimalBound bound_of(const Schema *s, Value schema, const char *keyword, const char *exclusive, int sign) {
    DecimalBound b = {0};
    double value;
    b.is_given = number_of(s, schema, keyword, &b.value);
    if (number_of(s, schema, exclusive, &value) && (!b.is_given || sign * value >= sign * b.value))
        b = (DecimalBound){true, true, value};
    if (b.is_given && sign * b.value <= -FAR) b.is_given = false; /* no number has so many digits here */
    return b;
}

/* Finds the last integer within a bound. False: the bound excludes none. */
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

/* ---- multiples ------------------------------------------------------------------------------------------- */

static const Expr *listed(Schema *s, int64_t from, int64_t to, int64_t step) {
    Expr *alt = expr_alt(s->w);
    for (int64_t v = from; v <= to; v += step) {
        char *text = work_alloc(s->w, 24);
        snprintf(text, 24, "%lld", (long long)v);
        expr_add(s->w, alt, expr_literal(s->w, text));
    }
    return alt;
}

/* Makes a rule for each remainder of the digits that have been read and each number of digits that may follow. A
 * number may end at remainder 0. */
static const Expr *by_remainders(Schema *s, int32_t modulus) {
    Work *w = s->w;
    int32_t first = s->g->n_rules, n = modulus * MAX_MULTIPLE_DIGITS;
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
        int32_t next = first + (MAX_MULTIPLE_DIGITS - 1) * modulus + (int32_t)d % modulus;
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
        return lower.is_given || upper.is_given ? decimal_range(s, lower, upper)
                                                : schema_rule(s, "any number", any_number);
    bool has_min = whole_bound(s, lower, false, &min), has_max = whole_bound(s, upper, true, &max);
    if (is_int32_format(schema_get(s, schema, "format"))) {
        if (!has_min || min < INT32_MIN) has_min = true, min = INT32_MIN;
        if (!has_max || max > INT32_MAX) has_max = true, max = INT32_MAX;
    }
    if (has_step && step != 1) return multiples(s, step, has_min, min, has_max, max);
    if (has_min || has_max) return integer_range(s, has_min, min, has_max, max);
    return schema_rule(s, "any integer", any_integer);
}
