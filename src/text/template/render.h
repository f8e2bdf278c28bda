/* builtins.h - filters, tests, methods and global functions, and how their arguments reach them. */
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

/* The arguments of one call. */
typedef struct Call {
    Value subject; /* what is filtered or tested, or whose method it is */
    const Value *positional;
    size_t n_positional;
    const KeywordArgument *keywords;
    size_t n_keywords;
    Value at[BUILTIN_MAX_PARAMETERS]; /* by parameter, for a Builtin that names them; V_MISSING where not given */
} Call;

/* parameters: their names in order, each followed by ! where it must be given ("old! new! count"); "*": any arguments, which
 * the function reads from positional and keywords. */
typedef struct Builtin {
    const char *name, *parameters;
    Value (*run)(Render *r, const Call *c);
} Builtin;

/* A value that can be called: a global function, or a method with its subject. */
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
    BUILTIN_SEQUENCE_METHOD, /* of lists and tuples */
    BUILTIN_CYCLER_METHOD,
    BUILTIN_KINDS,
} BuiltinKind;

const Builtin *builtin_at(BuiltinKind kind, size_t i);           /* NULL after the last one */
const Builtin *builtin_find(BuiltinKind kind, const Text *name); /* NULL if there is none of that name */
/* The method of a value, or NULL. A method that would change the value is found, but refuses to run. */
const Builtin *method_find(Value subject, const Text *name);

/* Fills in call->at by the names of the parameters, and runs the function. */
Value builtin_run(Render *r, const Builtin *b, Call *call);

/* Tables that end with a row of NULL. */
extern const Builtin filters[], filters_text[], value_tests[], global_functions[], text_methods[], dict_methods[],
    sequence_methods[], cycler_methods[];

/* Arguments with defaults. */
static inline bool given(Value v) { return v.kind != V_MISSING; }
bool argument_bool(Value v, bool default_value);
int64_t argument_int(Render *r, Value v, int64_t default_value, const char *what);
const Text *argument_text(Render *r, Value v, const char *default_value, const char *what);
/* v as text: soft_str of Jinja, which leaves strings alone and writes others as str() does. */
const Text *argument_str(Render *r, Value v);

/* The item or attribute of a value along a path such as "function.name" or 0, as `map(attribute=...)` follows it. */
Value follow_path(Render *r, Value v, Value path);
/* A copy of the items in ascending order of what `path` leads to (V_MISSING: of themselves); stable. */
Seq *sort_items(Render *r, const Seq *items, Value path, bool ignores_case, bool descends);
Value without_case(Render *r, Value v);

/* render.h - the state of one render, and what its files call of each other. */

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

/* text_functions.h - operations on strings that filters and methods share. */

/* str.replace: the first `count` places, all where it is negative. */
const Text *text_replace(Work *w, const Text *t, const Text *old, const Text *by, int64_t count);
/* str.splitlines: at all of Unicode's line ends. */
Seq *text_split_lines(Work *w, const Text *t, bool keeps_ends);
/* str.split and str.rsplit; `separator` NULL: at runs of white space. */
Seq *text_split(Work *w, const Text *t, const Text *separator, int64_t max, bool from_right);
typedef enum TextPad { PAD_LEFT, PAD_RIGHT, PAD_CENTER } TextPad;
const Text *text_pad(Work *w, const Text *t, int64_t width, const Text *fill, TextPad side);
/* t % arguments, and str.format without format specifications. */
const Text *text_format_percent(Work *w, const Text *t, const Call *arguments);
const Text *text_format_braces(Work *w, const Text *t, const Call *arguments);
/* The filter `wordwrap` (word_wrap.c). */
Value wrap_words(Render *r, const Call *c);

#endif
