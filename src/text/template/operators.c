/* operators.c - arithmetic and comparisons, with Python's rules: / gives a float, // and % round towards minus infinity, + joins
 * strings and lists, * repeats them. Integers have 64 bits here; what needs more is refused. */
#include "text/template/render.h"

#include <math.h>
#include <string.h>

__attribute__((noreturn)) static void refuse(Render *r, int op, Value a, Value b) {
    const char *name = op == OP_FLOOR_DIVIDE ? "//" : op == OP_POWER ? "**" : (const char[]){(char)op, 0};
    value_need_defined(r->w, a);
    value_need_defined(r->w, b);
    work_fail(r->w, FR_ERR_FORMAT, "unsupported operand types for %s: %s and %s", name, value_type_name(a),
              value_type_name(b));
}

static int64_t floor_divide(int64_t a, int64_t b) {
    fr_assert(b != 0);
    int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static bool int_power(int64_t base, int64_t exponent, int64_t *out) {
    int64_t v = 1;
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) && __builtin_mul_overflow(v, base, &v)) return false;
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return false;
    }
    *out = v;
    return true;
}

static Value int_arithmetic(Render *r, int op, int64_t a, int64_t b) {
    int64_t v = 0;
    bool overflows = false;
    if (b == 0 && (op == '/' || op == '%' || op == OP_FLOOR_DIVIDE)) work_fail(r->w, FR_ERR_FORMAT, "division by zero");
    if (op == '/') return value_float((double)a / (double)b);
    if (op == OP_POWER && b < 0) {
        if (a == 0) work_fail(r->w, FR_ERR_FORMAT, "0 cannot be raised to a negative power");
        return value_float(pow((double)a, (double)b));
    }
    if (op == '+') overflows = __builtin_add_overflow(a, b, &v);
    else if (op == '-') overflows = __builtin_sub_overflow(a, b, &v);
    else if (op == '*') overflows = __builtin_mul_overflow(a, b, &v);
    else if (op == OP_POWER) overflows = !int_power(a, b, &v);
    else if (b == -1) overflows = op == OP_FLOOR_DIVIDE && __builtin_sub_overflow((int64_t)0, a, &v);
    else v = op == '%' ? a - b * floor_divide(a, b) : floor_divide(a, b);
    if (overflows) work_fail(r->w, FR_ERR_UNSUPPORTED, "an integer has more than 64 bits");
    return value_int(v);
}

static double float_modulo(double a, double b) {
    double m = fmod(a, b);
    if (m == 0) return copysign(0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}

static Value float_arithmetic(Render *r, int op, double a, double b) {
    if (b == 0 && (op == '/' || op == '%' || op == OP_FLOOR_DIVIDE)) work_fail(r->w, FR_ERR_FORMAT, "division by zero");
    switch (op) {
    case '+': return value_float(a + b);
    case '-': return value_float(a - b);
    case '*': return value_float(a * b);
    case '/': return value_float(a / b);
    case '%': return value_float(float_modulo(a, b));
    case OP_FLOOR_DIVIDE: return value_float(floor((a - float_modulo(a, b)) / b + 0.5));
    default:
        if (a < 0 && b != floor(b)) work_fail(r->w, FR_ERR_UNSUPPORTED, "a power is a complex number");
        return value_float(pow(a, b));
    }
}

static Value arithmetic(Render *r, int op, Value a, Value b) {
    if (a.kind == V_FLOAT || b.kind == V_FLOAT) return float_arithmetic(r, op, value_to_double(a), value_to_double(b));
    return int_arithmetic(r, op, a.kind == V_BOOL ? a.b : a.i, b.kind == V_BOOL ? b.b : b.i);
}

/* What passed `safe` escapes what is added to it, as Markup of Python's markupsafe does. */
static void add_operand(Render *r, TextBuilder *b, const Text *t, bool result_is_safe) {
    if (!result_is_safe || t->is_safe) {
        builder_add(b, t);
        return;
    }
    Text name = {.data = "escape", .n = 6};
    Call call = {.subject = value_text(t)};
    builder_add(b, builtin_run(r, builtin_find(BUILTIN_FILTER, &name), &call).text);
}

static Value add_texts(Render *r, const Text *x, const Text *y) {
    bool is_safe = x->is_safe || y->is_safe;
    TextBuilder b = builder_new(r->w);
    work_spend(r->w, x->n + y->n);
    add_operand(r, &b, x, is_safe);
    add_operand(r, &b, y, is_safe);
    Text *sum = work_alloc(r->w, sizeof *sum);
    *sum = *builder_text(&b);
    sum->is_safe = is_safe;
    return value_text(sum);
}

static Value add_seqs(Render *r, const Seq *x, const Seq *y) {
    Seq *s = seq_new(r->w, x->flavour, x->n + y->n);
    work_spend(r->w, x->n + y->n);
    for (size_t i = 0; i < x->n; i++) seq_add(r->w, s, x->items[i]);
    for (size_t i = 0; i < y->n; i++) seq_add(r->w, s, y->items[i]);
    return value_seq(s);
}

static Value repeat(Render *r, Value v, int64_t times) {
    if (is_text(v)) {
        TextBuilder b = builder_new(r->w);
        builder_add_repeated(&b, v.text, times);
        return value_text(builder_text(&b));
    }
    Seq *s = seq_new(r->w, v.seq->flavour, 0);
    for (int64_t k = 0; k < times && v.seq->n; k++)
        for (size_t i = 0; i < v.seq->n; i++) {
            work_spend(r->w, 0);
            seq_add(r->w, s, v.seq->items[i]);
        }
    return value_seq(s);
}

static bool is_plain_seq(Value v) { return v.kind == V_SEQ && v.seq->flavour <= SEQ_TUPLE; }
static bool can_repeat(Value v) { return is_text(v) || is_plain_seq(v); }
static bool is_integer(Value v) { return v.kind == V_INT || v.kind == V_BOOL; }

/* "..." % values: the filter `format`. */
static Value format(Render *r, Value text, Value arguments) {
    Text name = {.data = "format", .n = 6};
    Call call = {.subject = text, .positional = &arguments, .n_positional = 1};
    if (arguments.kind == V_SEQ && arguments.seq->flavour == SEQ_TUPLE) {
        call.positional = arguments.seq->items;
        call.n_positional = arguments.seq->n;
    }
    return builtin_run(r, builtin_find(BUILTIN_FILTER, &name), &call);
}

Value evaluate_binary(Render *r, int op, Value a, Value b) {
    if (is_number(a) && is_number(b)) return arithmetic(r, op, a, b);
    if (op == '+' && is_text(a) && is_text(b)) return add_texts(r, a.text, b.text);
    if (op == '+' && is_plain_seq(a) && is_plain_seq(b) && a.seq->flavour == b.seq->flavour)
        return add_seqs(r, a.seq, b.seq);
    if (op == '*' && can_repeat(a) && is_integer(b)) return repeat(r, a, b.kind == V_BOOL ? b.b : b.i);
    if (op == '*' && can_repeat(b) && is_integer(a)) return repeat(r, b, a.kind == V_BOOL ? a.b : a.i);
    if (op == '%' && is_text(a)) return format(r, a, b);
    refuse(r, op, a, b);
}

static bool holds(Render *r, int op, Value a, Value b) {
    int order;
    switch (op) {
    case OP_EQ: return value_equal(r->w, a, b);
    case OP_NE: return !value_equal(r->w, a, b);
    case OP_IN: return value_contains(r->w, b, a);
    case OP_NOT_IN: return !value_contains(r->w, b, a);
    case '<': return value_order(r->w, a, b, "<") < 0;
    case '>': return value_order(r->w, a, b, ">") == 1;
    case OP_LE: return value_order(r->w, a, b, "<=") <= 0;
    default: return (order = value_order(r->w, a, b, ">=")) == 0 || order == 1;
    }
}

Value evaluate_compare(Render *r, const Node *n) {
    Value left = evaluate(r, n->a);
    for (const Node *operand = n->list; operand; operand = operand->next) {
        Value right = evaluate(r, operand->a);
        if (!holds(r, operand->op, left, right)) return value_bool(false);
        left = right;
    }
    return value_bool(true);
}
