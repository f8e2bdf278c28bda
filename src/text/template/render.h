/* render.h - the state of one render: scopes, calls and builtin functions, and what the files of the interpreter
 * share. */
#ifndef TEXT_TEMPLATE_RENDER_H
#define TEXT_TEMPLATE_RENDER_H

#include "text/template/syntax.h"
#include "text/template/value.h"

typedef struct Render Render;

typedef struct KeywordArgument {
    const Text *name;
    Value value;
} KeywordArgument;

enum { BUILTIN_MAX_PARAMETERS = 6 };

/* The arguments of one call of a filter, test, method or function. */
typedef struct Call {
    Value subject; /* the value that is filtered or tested, or whose method is called */
    const Value *positional;
    size_t n_positional;
    const KeywordArgument *keywords;
    size_t n_keywords;
    Value at[BUILTIN_MAX_PARAMETERS]; /* one for each parameter; V_MISSING: it is not given */
} Call;

/* `parameters` lists the names in order. A ! after a name says that the argument must be given ("old! new! count").
 * "*" stands for any arguments; the function reads them from `positional` and `keywords`. */
typedef struct Builtin {
    const char *name, *parameters;
    Value (*run)(Render *r, const Call *c);
} Builtin;

/* A function as a value: a global function, or a method together with its subject. */
struct Function {
    const Builtin *builtin;
    Value subject;
};

typedef enum BuiltinKind {
    BUILTIN_FILTER,
    BUILTIN_TEST,
    BUILTIN_GLOBAL,
    BUILTIN_TEXT_METHOD,
    BUILTIN_DICT_METHOD,
    BUILTIN_SEQUENCE_METHOD, /* a method of lists and tuples */
    BUILTIN_CYCLER_METHOD,
    BUILTIN_KINDS,
} BuiltinKind;

const Builtin *builtin_at(BuiltinKind kind, size_t i);           /* NULL after the last one */
const Builtin *builtin_find(BuiltinKind kind, const Text *name); /* NULL if there is none of that name */
/* Returns the method of a value, or NULL. A method that would change the value is found, but refuses to run. */
const Builtin *method_find(Value subject, const Text *name);

/* Assigns the arguments to the parameters in call->at, and runs the function. */
Value builtin_run(Render *r, const Builtin *b, Call *call);

/* Tables that end with a row of NULL. */
extern const Builtin filters_sequences[], filters_values[], filters_text[], value_tests[], global_functions[],
    text_methods[], dict_methods[], sequence_methods[], cycler_methods[];

/* ---- arguments with default values ------------------------------------------------------------------------------- */

static inline bool given(Value v) { return v.kind != V_MISSING; }
bool argument_bool(Value v, bool default_value);
int64_t argument_int(Render *r, Value v, int64_t default_value, const char *what);
const Text *argument_text(Render *r, Value v, const char *default_value, const char *what);
/* v as text: a string itself, and str(v) of any other value. */
const Text *argument_str(Render *r, Value v);

/* ---- scopes and the state of a render ---------------------------------------------------------------------------- */

typedef struct Binding {
    const Text *name;
    Value value;
} Binding;

/* The variables of a block. A name that is not found here is looked for in the outer scopes. */
typedef struct Scope {
    struct Scope *outer;
    Binding *bindings;
    size_t n, capacity;
} Scope;

struct Macro {
    const Node *node;
    Scope *scope; /* the scope in which it was defined */
};

/* The variable `loop`. */
typedef struct Loop {
    const Node *node;
    Scope *scope; /* the scope around the loop */
    const Seq *items;
    size_t i;
    int depth;          /* how many times a recursive loop contains itself */
    const Seq *changed; /* the arguments of the last call of changed() */
} Loop;

struct Render {
    Work *w;
    const Dict *variables;
    Scope *scope;
    TextBuilder *out;
    Value piped; /* the text to which the filters of a block apply */
    int64_t time;
    bool was_refused; /* the template called raise_exception */
};

typedef enum Flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } Flow;

Scope *scope_new(Render *r, Scope *outer);
void scope_set(Render *r, Scope *s, const Text *name, Value v);
Value scope_get(Render *r, const Text *name);

Value evaluate(Render *r, const Node *n);
Value evaluate_binary(Render *r, int op, Value a, Value b);
Value value_item(Render *r, Value v, Value key);             /* v[key] */
Value value_attribute(Render *r, Value v, const Text *name); /* v.name */

Value call_value(Render *r, Value callee, Call *call);
void evaluate_arguments(Render *r, const Node *list, Call *call);

Value cycler_current(Value cycler);
Value joiner_call(Render *r, Value joiner, const Call *c);

Flow execute(Render *r, const Node *list);
Value run_macro(Render *r, const struct Macro *m, const Call *call);

Value run_loop(Render *r, const Loop *outer, Value items); /* the call loop(items) in a recursive loop */
Value loop_attribute(Render *r, const Loop *loop, const Text *name);

__attribute__((noreturn)) static inline void render_refuse_name(Render *r, const char *what, const Text *name) {
    work_fail(r->w, FR_ERR_UNSUPPORTED, "there is no %s '%.*s'", what, (int)(name->n < 60 ? name->n : 60), name->data);
}

/* ---- operations on strings that filters and methods share (text_operations.c) ------------------------------------ */

/* As str.replace: replaces the first `count` places, or all if it is negative. */
const Text *text_replace(Work *w, const Text *t, const Text *old, const Text *by, int64_t count);
/* As str.splitlines: splits at all line ends that Unicode knows. */
Seq *text_split_lines(Work *w, const Text *t, bool keeps_ends);
/* As str.split and str.rsplit. If `separator` is NULL, runs of white space separate. */
Seq *text_split(Work *w, const Text *t, const Text *separator, int64_t max, bool from_right);
typedef enum TextPad { PAD_LEFT, PAD_RIGHT, PAD_CENTER } TextPad;
const Text *text_pad(Work *w, const Text *t, int64_t width, const Text *fill, TextPad side);
/* t % arguments, and t.format(arguments) without format specifications. */
const Text *text_format_percent(Work *w, const Text *t, const Call *arguments);
const Text *text_format_braces(Work *w, const Text *t, const Call *arguments);
/* Returns the result of the filter `wordwrap`. */
Value wrap_words(Render *r, const Call *c);

#endif
