/* render.h - the state of one render, and what its files call of each other. */
#ifndef TEMPLATE_RENDER_H
#define TEMPLATE_RENDER_H

#include "text/template/builtins.h"
#include "text/template/syntax.h"

typedef struct Binding {
    const Text *name;
    Value value;
} Binding;

/* The variables of a block; a name is looked for in the scopes outwards. */
typedef struct Scope {
    struct Scope *outer;
    Binding *bindings;
    size_t n, capacity;
} Scope;

struct Macro {
    const Node *node;
    Scope *scope; /* where it was defined */
};

/* The variable `loop`. */
typedef struct Loop {
    const Node *node;
    Scope *scope; /* around the loop */
    const Seq *items;
    size_t i;
    int depth;          /* 0: not inside itself */
    const Seq *changed; /* what changed() was called with last */
} Loop;

struct Render {
    Work *w;
    const Dict *variables;
    Scope *scope;
    TextBuilder *out;
    Value piped; /* the text that a filter block filters */
    int64_t time;
    bool was_refused; /* the template called raise_exception */
};

typedef enum Flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } Flow;

Scope *scope_new(Render *r, Scope *outer);
void scope_set(Render *r, Scope *s, const Text *name, Value v);
Value scope_get(Render *r, const Text *name);

Value evaluate(Render *r, const Node *n);
Value evaluate_binary(Render *r, int op, Value a, Value b); /* operators.c */
Value evaluate_compare(Render *r, const Node *n);           /* operators.c */
Value value_item(Render *r, Value v, Value key);            /* subscript.c: v[key] */
Value value_slice(Render *r, Value v, Value from, Value to, Value step);
Value value_attribute(Render *r, Value v, const Text *name); /* v.name */

Value call_value(Render *r, Value callee, Call *call); /* calls.c */
void evaluate_arguments(Render *r, const Node *list, Call *call);

Value cycler_new(Render *r, const Call *c); /* iterators.c */
Value cycler_current(Value cycler);
Value joiner_new(Render *r, const Call *c);
Value joiner_call(Render *r, Value joiner, const Call *c);

Flow execute(Render *r, const Node *list); /* execute.c */
/* Runs the statements and returns what they write. */
Value capture(Render *r, const Node *list);
Value run_macro(Render *r, const struct Macro *m, const Call *call);
void assign(Render *r, const Node *target, Value v);

void execute_for(Render *r, const Node *n);                /* for_loop.c */
Value run_loop(Render *r, const Loop *outer, Value items); /* loop(items) of a recursive loop */
Value loop_attribute(Render *r, const Loop *loop, const Text *name);

__attribute__((noreturn)) static inline void render_refuse_name(Render *r, const char *what, const Text *name) {
    work_fail(r->w, FR_ERR_UNSUPPORTED, "there is no %s '%.*s'", what, (int)(name->n < 60 ? name->n : 60), name->data);
}

#endif
