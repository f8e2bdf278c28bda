/* builtins.h - filters, tests, methods and global functions, and how their arguments reach them. */
#ifndef TEMPLATE_BUILTINS_H
#define TEMPLATE_BUILTINS_H

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

typedef enum BuiltinKind { BUILTIN_FILTER, BUILTIN_TEST, BUILTIN_GLOBAL } BuiltinKind;

const Builtin *builtin_find(BuiltinKind kind, const Text *name); /* NULL: none */
/* The method of a value; NULL: none. One that would change the value is refused. */
const Builtin *method_find(Render *r, Value subject, const Text *name);

/* Fills in call->at by the names of the parameters, and runs the function. */
Value builtin_run(Render *r, const Builtin *b, Call *call);

/* Tables that end with a NULL name. */
extern const Builtin filters_text[], filters_number[], filters_sequence[], filters_select[], value_tests[],
    global_functions[];
extern const Builtin text_methods[], text_find_methods[], dict_methods[], sequence_methods[], cycler_methods[];

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

#endif
