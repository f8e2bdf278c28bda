/* for_loop.c - {% for %} and the variable `loop`. */
#include "text/template/render.h"

#include <string.h>

/* The items that the loop's own `if` keeps. */
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

void execute_for(Render *r, const Node *n) { run(r, n, evaluate(r, n->b), 0); }

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
