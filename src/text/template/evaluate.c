/* evaluate.c - evaluates expressions: names, literals, arithmetic and comparisons, items, slices and attributes.
 *
 * The rules are Python's. / gives a float; // and % round towards minus infinity; + joins strings and lists, and *
 * repeats them. Integers have 64 bits, and what needs more is refused. As in Jinja, v[key] looks for an item first
 * and then for an attribute, and v.name does the opposite: d.items is the method, d['items'] the entry. What does
 * not exist is undefined; an undefined value has neither items nor attributes. */
#include "text/template/render.h"

#include "base/math_functions.h"
#include "text/template/template_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static Value evaluate_compare(Render *r, const Node *n);
static Value value_slice(Render *r, Value v, Value from_value, Value to_value, Value step_value);

Scope *scope_new(Render *r, Scope *outer) {
    Scope *s = work_alloc(r->w, sizeof *s);
    s->outer = outer;
    return s;
}

void scope_set(Render *r, Scope *s, const Text *name, Value v) {
    work_count(r->w, s->n);
    for (size_t i = 0; i < s->n; i++)
        if (text_same(r->w, s->bindings[i].name, name)) {
            s->bindings[i].value = v;
            return;
        }
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 4;
        s->bindings = work_grow(r->w, s->bindings, s->n * sizeof *s->bindings, capacity * sizeof *s->bindings);
        s->capacity = capacity;
    }
    s->bindings[s->n++] = (Binding){name, v};
}

static Value undefined_name(Render *r, const Text *name) {
    TextBuilder b = builder_new(r->w);
    builder_add_literal(&b, "'");
    builder_add(&b, name);
    builder_add_literal(&b, "' is undefined");
    return value_undefined(builder_text(&b));
}

Value scope_get(Render *r, const Text *name) {
    for (const Scope *s = r->scope; s; s = s->outer) {
        work_spend(r->w, s->n);
        for (size_t i = 0; i < s->n; i++)
            if (text_same(r->w, s->bindings[i].name, name)) return s->bindings[i].value;
    }
    const Value *v = dict_get(r->w, r->variables, value_text(name));
    if (v) return *v;
    const Builtin *global = builtin_find(BUILTIN_GLOBAL, name);
    if (!global) return undefined_name(r, name);
    struct Function *f = work_alloc(r->w, sizeof *f);
    f->builtin = global;
    return (Value){.kind = V_FUNCTION, .function = f};
}

static Value evaluate_items(Render *r, const Node *n) {
    Seq *s = seq_new(r->w, n->kind == NODE_LIST ? SEQ_LIST : SEQ_TUPLE, 0);
    for (const Node *item = n->list; item; item = item->next) seq_add(r->w, s, evaluate(r, item));
    return value_seq(s);
}

static Value evaluate_dict(Render *r, const Node *n) {
    Dict *d = dict_new(r->w);
    for (const Node *key = n->list; key; key = key->next->next) {
        Value k = evaluate(r, key);
        dict_set(r->w, d, k, evaluate(r, key->next));
    }
    return value_dict(d);
}

static Value evaluate_sign(Render *r, const Node *n) {
    Value v = evaluate(r, n->a);
    value_need_defined(r->w, v);
    if (!is_number(v)) work_fail(r->w, FR_ERR_FORMAT, "a sign before a value of type %s", value_type_name(v));
    if (v.kind == V_FLOAT) return value_float(n->kind == NODE_NEGATE ? -v.f : v.f);
    int64_t i = v.kind == V_BOOL ? v.b : v.i;
    if (n->kind == NODE_NEGATE && __builtin_sub_overflow((int64_t)0, i, &i))
        work_fail(r->w, FR_ERR_UNSUPPORTED, "an integer has more than 64 bits");
    return value_int(i);
}

static Value evaluate_concat(Render *r, const Node *n) {
    TextBuilder b = builder_new(r->w);
    for (const Node *part = n->list; part; part = part->next) value_write(&b, evaluate(r, part));
    return value_text(builder_text(&b));
}

static Value evaluate_condition(Render *r, const Node *n) {
    if (value_truth(evaluate(r, n->b))) return evaluate(r, n->a);
    return n->c ? evaluate(r, n->c) : value_undefined(NULL);
}

static Value evaluate_item(Render *r, const Node *n) {
    Value subject = evaluate(r, n->a);
    if (n->b->kind != NODE_SLICE) return value_item(r, subject, evaluate(r, n->b));
    const Node *parts[] = {n->b->a, n->b->b, n->b->c};
    Value v[3];
    for (int i = 0; i < 3; i++) v[i] = parts[i] ? evaluate(r, parts[i]) : value_none();
    return value_slice(r, subject, v[0], v[1], v[2]);
}

static Value evaluate_call(Render *r, const Node *n) {
    Value callee = evaluate(r, n->a);
    Call call = {.subject = value_none()};
    evaluate_arguments(r, n->list, &call);
    r->w->line = n->line;
    return call_value(r, callee, &call);
}

static Value evaluate_builtin(Render *r, const Node *n) {
    Value subject = n->a ? evaluate(r, n->a) : r->piped;
    if (!n->builtin) render_refuse_name(r, n->kind == NODE_FILTER ? "filter" : "test", n->name);
    Call call = {.subject = subject};
    evaluate_arguments(r, n->list, &call);
    r->w->line = n->line;
    return builtin_run(r, n->builtin, &call);
}

static Value evaluate_node(Render *r, const Node *n) {
    Value a;
    switch (n->kind) {
    case NODE_CONST: return n->value;
    case NODE_NAME: return scope_get(r, n->name);
    case NODE_LIST:
    case NODE_TUPLE: return evaluate_items(r, n);
    case NODE_DICT: return evaluate_dict(r, n);
    case NODE_NEGATE:
    case NODE_PLUS: return evaluate_sign(r, n);
    case NODE_NOT: return value_bool(!value_truth(evaluate(r, n->a)));
    case NODE_AND: return value_truth(a = evaluate(r, n->a)) ? evaluate(r, n->b) : a;
    case NODE_OR: return value_truth(a = evaluate(r, n->a)) ? a : evaluate(r, n->b);
    case NODE_BINARY: a = evaluate(r, n->a); return evaluate_binary(r, n->op, a, evaluate(r, n->b));
    case NODE_CONCAT: return evaluate_concat(r, n);
    case NODE_COMPARE: return evaluate_compare(r, n);
    case NODE_CONDITION: return evaluate_condition(r, n);
    case NODE_ATTRIBUTE: return value_attribute(r, evaluate(r, n->a), n->name);
    case NODE_ITEM: return evaluate_item(r, n);
    case NODE_CALL: return evaluate_call(r, n);
    case NODE_FILTER:
    case NODE_TEST: return evaluate_builtin(r, n);
    default: work_fail(r->w, FR_ERR_FORMAT, "a slice is allowed in [ ] only");
    }
}

Value evaluate(Render *r, const Node *n) {
    work_spend(r->w, 0);
    work_enter(r->w);
    r->w->line = n->line;
    Value v = evaluate_node(r, n);
    work_leave(r->w);
    return v;
}

/* ---- operators ------------------------------------------------------------------------------------------------- */

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
        return value_float(math_pow((double)a, (double)b));
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
        return value_float(math_pow(a, b));
    }
}

static Value arithmetic(Render *r, int op, Value a, Value b) {
    if (a.kind == V_FLOAT || b.kind == V_FLOAT) return float_arithmetic(r, op, value_to_double(a), value_to_double(b));
    return int_arithmetic(r, op, a.kind == V_BOOL ? a.b : a.i, b.kind == V_BOOL ? b.b : b.i);
}

/* Adding to a safe string escapes what is added, as in Python's markupsafe. */
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
    work_spend(r->w, x->n + y->n);
    Seq *s = seq_new(r->w, x->flavour, x->n + y->n);
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

/* text % arguments, which is the filter `format`. A tuple stands for several arguments. */
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

static Value evaluate_compare(Render *r, const Node *n) {
    Value left = evaluate(r, n->a);
    for (const Node *operand = n->list; operand; operand = operand->next) {
        Value right = evaluate(r, operand->a);
        if (!holds(r, operand->op, left, right)) return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

/* ---- items and attributes --------------------------------------------------------------------------------------- */

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
    const Builtin *method = method_find(v, name);
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

/* Sets *from as Python does for a sequence of n items, and returns the number of items in the slice. */
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

static Value value_slice(Render *r, Value v, Value from_value, Value to_value, Value step_value) {
    value_need_defined(r->w, v);
    if (!is_text(v) && !is_list_like(v))
        work_fail(r->w, FR_ERR_FORMAT, "a value of type %s has no slices", value_type_name(v));
    int64_t step = step_value.kind == V_NONE ? 1 : value_need_int(r->w, step_value, "the step of a slice"), from;
    if (step == 0) work_fail(r->w, FR_ERR_FORMAT, "the step of a slice cannot be 0");
    int64_t n = is_text(v) ? (int64_t)text_n_chars(r->w, v.text) : (int64_t)v.seq->n;
    int64_t count = slice_count(r, n, from_value, to_value, step, &from);
    if (count <= 1) step = 1; /* the step is not used then, and must not overflow */
    work_spend(r->w, (size_t)count);
    if (is_text(v)) return slice_text(r, v.text, from, count, step);
    if (v.seq->flavour == SEQ_RANGE) return slice_range(r, v.seq, from, count, step);
    Seq *s = seq_new(r->w, v.seq->flavour, (size_t)count);
    for (int64_t k = 0; k < count; k++) seq_add(r->w, s, v.seq->items[from + k * step]);
    return value_seq(s);
}
