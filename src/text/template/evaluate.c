/* evaluate.c - expressions. */
#include "text/template/render.h"

#include <stdio.h>
#include <string.h>

Scope *scope_new(Render *r, Scope *outer) {
    Scope *s = work_alloc(r->w, sizeof *s);
    s->outer = outer;
    return s;
}

void scope_set(Render *r, Scope *s, const Text *name, Value v) {
    for (size_t i = 0; i < s->n; i++)
        if (text_equal(s->bindings[i].name, name)) {
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
            if (text_equal(s->bindings[i].name, name)) return s->bindings[i].value;
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
