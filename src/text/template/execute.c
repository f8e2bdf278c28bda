/* execute.c - executes statements: assignments, conditions, loops, macros and blocks. */
#include "text/template/render.h"

#include <string.h>

static void assign(Render *r, const Node *target, Value v) {
    if (target->kind == NODE_NAME) scope_set(r, r->scope, target->name, v);
    else if (target->kind == NODE_MEMBER) {
        Value space = scope_get(r, target->a->name);
        value_need_defined(r->w, space);
        if (space.kind != V_NAMESPACE)
            work_fail(r->w, FR_ERR_FORMAT, "only a namespace can get an attribute with {%% set %%}, not a %s",
                      value_type_name(space));
        dict_set(r->w, space.dict, value_text(target->name), v);
    } else {
        value_need_defined(r->w, v);
        const Seq *items = value_items(r->w, v);
        size_t n = 0;
        for (const Node *t = target->list; t; t = t->next) n++;
        if (n != items->n) work_fail(r->w, FR_ERR_FORMAT, "%zu values cannot be assigned to %zu names", items->n, n);
        n = 0;
        for (const Node *t = target->list; t; t = t->next) assign(r, t, items->items[n++]);
    }
}

/* Executes the statements and returns the text that they write. */
static Value capture(Render *r, const Node *list) {
    TextBuilder b = builder_new(r->w), *outer = r->out;
    b.max_bytes = outer->max_bytes;
    r->out = &b;
    execute(r, list);
    r->out = outer;
    return value_text(builder_text(&b));
}

/* Runs a block in a scope of its own and returns its output after the filters of the block. */
static Value filtered_block(Render *r, const Node *n) {
    r->scope = scope_new(r, r->scope);
    Value text = capture(r, n->list);
    r->scope = r->scope->outer;
    if (!n->b) return text;
    Value outer = r->piped;
    r->piped = text;
    Value v = evaluate(r, n->b);
    r->piped = outer;
    return v;
}

/* ---- macros ---------------------------------------------------------------------------------------------------- */

static Value missing_parameter(Render *r, const Text *name) {
    TextBuilder b = builder_new(r->w);
    builder_add_literal(&b, "parameter '");
    builder_add(&b, name);
    builder_add_literal(&b, "' was not provided");
    return value_undefined(builder_text(&b));
}

static const KeywordArgument *find_keyword(Render *r, const Call *call, const Text *name) {
    work_count(r->w, call->n_keywords);
    for (size_t i = 0; i < call->n_keywords; i++)
        if (text_same(r->w, call->keywords[i].name, name)) return &call->keywords[i];
    return NULL;
}

static bool is_parameter(Render *r, const Node *macro, const Text *name) {
    for (const Node *p = macro->other; p; p = p->next) {
        work_count(r->w, 1);
        if (text_same(r->w, p->name, name)) return true;
    }
    return false;
}

static void bind_parameters(Render *r, const struct Macro *m, const Call *call) {
    size_t i = 0;
    for (const Node *p = m->node->other; p; p = p->next, i++) {
        const KeywordArgument *keyword = find_keyword(r, call, p->name);
        Value v;
        if (i < call->n_positional) v = call->positional[i];
        else if (keyword) v = keyword->value;
        else v = p->a ? evaluate(r, p->a) : missing_parameter(r, p->name);
        scope_set(r, r->scope, p->name, v);
    }
}

/* Binds the arguments that no parameter takes to varargs, kwargs and caller. A macro that does not use these names
 * refuses such arguments. */
static void bind_rest(Render *r, const struct Macro *m, const Call *call) {
    size_t n_parameters = 0;
    Seq *varargs = seq_new(r->w, SEQ_TUPLE, 0);
    Dict *kwargs = dict_new(r->w);
    const Text *name = m->node->name;
    int uses = m->node->op, n_name = (int)(name->n < 60 ? name->n : 60);
    bool has_caller = false;
    for (const Node *p = m->node->other; p; p = p->next) n_parameters++;
    for (size_t i = n_parameters; i < call->n_positional; i++) seq_add(r->w, varargs, call->positional[i]);
    for (size_t i = 0; i < call->n_keywords; i++) {
        const KeywordArgument *k = &call->keywords[i];
        if (is_parameter(r, m->node, k->name)) continue;
        if (text_is(k->name, "caller") && (uses & MACRO_CALLER)) {
            scope_set(r, r->scope, k->name, k->value);
            has_caller = true;
        } else dict_set(r->w, kwargs, value_text(k->name), k->value);
    }
    if (varargs->n && !(uses & MACRO_VARARGS))
        work_fail(r->w, FR_ERR_FORMAT, "the macro '%.*s' takes at most %zu arguments", n_name, name->data,
                  n_parameters);
    if (kwargs->n && !(uses & MACRO_KWARGS))
        work_fail(r->w, FR_ERR_FORMAT, "the macro '%.*s' has no argument of that name", n_name, name->data);
    if (uses & MACRO_VARARGS) scope_set(r, r->scope, text_new(r->w, "varargs", 7, false), value_seq(varargs));
    if (uses & MACRO_KWARGS) scope_set(r, r->scope, text_new(r->w, "kwargs", 6, false), value_dict(kwargs));
    if ((uses & MACRO_CALLER) && !has_caller && !is_parameter(r, m->node, text_new(r->w, "caller", 6, false)))
        scope_set(r, r->scope, text_new(r->w, "caller", 6, false),
                  value_undefined(text_new(r->w, "No caller defined", 17, false)));
}

Value run_macro(Render *r, const struct Macro *m, const Call *call) {
    Scope *outer = r->scope;
    r->scope = scope_new(r, m->scope);
    bind_parameters(r, m, call);
    bind_rest(r, m, call);
    Value v = capture(r, m->node->list);
    r->scope = outer;
    return v;
}

static Value macro_value(Render *r, const Node *n) {
    struct Macro *m = work_alloc(r->w, sizeof *m);
    *m = (struct Macro){n, r->scope};
    return (Value){.kind = V_MACRO, .macro = m};
}

static Value call_block(Render *r, const Node *n) {
    Value callee = evaluate(r, n->a->a);
    Call call = {.subject = value_none()};
    evaluate_arguments(r, n->a->list, &call);
    work_count(r->w, call.n_keywords);
    KeywordArgument *keywords = work_array(r->w, call.n_keywords + 1, sizeof *keywords);
    if (call.n_keywords) memcpy(keywords, call.keywords, call.n_keywords * sizeof *keywords);
    keywords[call.n_keywords++] = (KeywordArgument){n->b->name, macro_value(r, n->b)};
    call.keywords = keywords;
    return call_value(r, callee, &call);
}

/* ---- {% for %} and the variable `loop` -------------------------------------------------------------------------- */

/* Returns the items for which the `if` of the loop is true. */
static const Seq *filtered(Render *r, const Node *n, const Seq *items) {
    if (!n->c) return items;
    Seq *kept = seq_new(r->w, SEQ_LIST, 0);
    Scope *outer = r->scope;
    for (size_t i = 0; i < items->n; i++) {
        r->scope = scope_new(r, outer);
        assign(r, n->a, items->items[i]);
        if (value_truth(evaluate(r, n->c))) seq_add(r->w, kept, items->items[i]);
    }
    r->scope = outer;
    return kept;
}

static void run(Render *r, const Node *n, Value iterated, int depth) {
    static const Text loop_name = {.data = "loop", .n = 4};
    Scope *outer = r->scope;
    const Seq *items = filtered(r, n, value_items(r->w, iterated));
    Loop *loop = work_alloc(r->w, sizeof *loop);
    *loop = (Loop){.node = n, .scope = outer, .items = items, .depth = depth};
    Flow flow = FLOW_NEXT;
    for (; loop->i < items->n && flow != FLOW_BREAK; loop->i++) {
        work_spend(r->w, 0);
        r->scope = scope_new(r, outer);
        scope_set(r, r->scope, &loop_name, (Value){.kind = V_LOOP, .loop = loop});
        assign(r, n->a, items->items[loop->i]);
        flow = execute(r, n->list);
    }
    r->scope = outer;
    if (items->n > 0 || !n->other) return;
    r->scope = scope_new(r, outer);
    execute(r, n->other);
    r->scope = outer;
}

static void execute_for(Render *r, const Node *n) { run(r, n, evaluate(r, n->b), 0); }

Value run_loop(Render *r, const Loop *loop, Value items) {
    if (!loop->node->op) work_fail(r->w, FR_ERR_FORMAT, "loop(...) needs {%% for ... recursive %%}");
    TextBuilder b = builder_new(r->w), *out = r->out;
    Scope *scope = r->scope;
    b.max_bytes = out->max_bytes;
    r->out = &b;
    r->scope = loop->scope;
    run(r, loop->node, items, loop->depth + 1);
    r->out = out;
    r->scope = scope;
    return value_text(builder_text(&b));
}

static Value cycle(Render *r, const Call *c) {
    if (c->n_positional == 0) work_fail(r->w, FR_ERR_FORMAT, "loop.cycle needs an argument");
    return c->positional[c->subject.loop->i % c->n_positional];
}

static Value changed(Render *r, const Call *c) {
    Loop *loop = (Loop *)(uintptr_t)c->subject.loop;
    Seq *now = seq_new(r->w, SEQ_TUPLE, c->n_positional);
    for (size_t i = 0; i < c->n_positional; i++) seq_add(r->w, now, c->positional[i]);
    bool same = loop->changed && value_equal(r->w, value_seq((Seq *)(uintptr_t)loop->changed), value_seq(now));
    loop->changed = now;
    return value_bool(!same);
}

static Value loop_function(Render *r, const Loop *loop, const Builtin *b) {
    struct Function *f = work_alloc(r->w, sizeof *f);
    *f = (struct Function){b, {.kind = V_LOOP, .loop = loop}};
    return (Value){.kind = V_FUNCTION, .function = f};
}

static Value neighbour(Render *r, const Loop *loop, bool exists, size_t i, const char *missing) {
    return exists ? loop->items->items[i] : value_undefined(value_literal(r->w, missing).text);
}

Value loop_attribute(Render *r, const Loop *loop, const Text *name) {
    static const Builtin cycle_builtin = {"loop.cycle", "*", cycle}, changed_builtin = {"loop.changed", "*", changed};
    size_t i = loop->i, n = loop->items->n;
    if (text_is(name, "index")) return value_int((int64_t)i + 1);
    if (text_is(name, "index0")) return value_int((int64_t)i);
    if (text_is(name, "revindex")) return value_int((int64_t)(n - i));
    if (text_is(name, "revindex0")) return value_int((int64_t)(n - i) - 1);
    if (text_is(name, "first")) return value_bool(i == 0);
    if (text_is(name, "last")) return value_bool(i + 1 == n);
    if (text_is(name, "length")) return value_int((int64_t)n);
    if (text_is(name, "depth")) return value_int(loop->depth + 1);
    if (text_is(name, "depth0")) return value_int(loop->depth);
    if (text_is(name, "previtem")) return neighbour(r, loop, i > 0, i - 1, "there is no previous item");
    if (text_is(name, "nextitem")) return neighbour(r, loop, i + 1 < n, i + 1, "there is no next item");
    if (text_is(name, "cycle")) return loop_function(r, loop, &cycle_builtin);
    if (text_is(name, "changed")) return loop_function(r, loop, &changed_builtin);
    return (Value){.kind = V_MISSING};
}

/* ---- statements ------------------------------------------------------------------------------------------------- */

static Flow execute_if(Render *r, const Node *n) {
    for (const Node *branch = n->list; branch; branch = branch->next)
        if (!branch->a || value_truth(evaluate(r, branch->a))) return execute(r, branch->list);
    return FLOW_NEXT;
}

static Flow execute_scope(Render *r, const Node *n) {
    Scope *inner = scope_new(r, r->scope);
    for (const Node *set = n->other; set; set = set->next) {
        Value v = evaluate(r, set->b); /* the values are computed in the outer scope */
        Scope *outer = r->scope;
        r->scope = inner;
        assign(r, set->a, v);
        r->scope = outer;
    }
    r->scope = inner;
    Flow flow = execute(r, n->list);
    r->scope = inner->outer;
    return flow;
}

static Flow execute_one(Render *r, const Node *n) {
    switch (n->kind) {
    case NODE_TEXT: builder_add(r->out, n->value.text); break;
    case NODE_PRINT: value_write(r->out, evaluate(r, n->a)); break;
    case NODE_IF: return execute_if(r, n);
    case NODE_FOR: execute_for(r, n); break;
    case NODE_SET: assign(r, n->a, evaluate(r, n->b)); break;
    case NODE_SET_BLOCK: assign(r, n->a, filtered_block(r, n)); break;
    case NODE_MACRO: scope_set(r, r->scope, n->name, macro_value(r, n)); break;
    case NODE_CALL_BLOCK: value_write(r->out, call_block(r, n)); break;
    case NODE_FILTER_BLOCK: value_write(r->out, filtered_block(r, n)); break;
    case NODE_SCOPE: return execute_scope(r, n);
    case NODE_BREAK: return FLOW_BREAK;
    default: return FLOW_CONTINUE;
    }
    return FLOW_NEXT;
}

Flow execute(Render *r, const Node *list) {
    Flow flow = FLOW_NEXT;
    work_enter(r->w);
    for (const Node *n = list; n && flow == FLOW_NEXT; n = n->next) {
        work_spend(r->w, 0);
        r->w->line = n->line;
        flow = execute_one(r, n);
    }
    work_leave(r->w);
    return flow;
}
