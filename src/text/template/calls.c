/* calls.c - evaluates the arguments of a call, assigns them to the parameters of a builtin function, and finds
 * builtin functions by their names. */
#include "text/template/render.h"

#include <string.h>

/* ---- arguments ----------------------------------------------------------------------------------------------- */

static void add_keyword(Render *r, KeywordArgument *keywords, size_t *n, const Text *name, Value v) {
    work_count(r->w, *n);
    for (size_t i = 0; i < *n; i++)
        if (text_same(r->w, keywords[i].name, name))
            work_fail(r->w, FR_ERR_FORMAT, "the argument '%.*s' is given twice", (int)(name->n < 60 ? name->n : 60),
                      name->data);
    keywords[(*n)++] = (KeywordArgument){name, v};
}

static size_t count_keywords(Render *r, const Node *list, const Value *values) {
    size_t n = 0, i = 0;
    for (const Node *a = list; a; a = a->next, i++) {
        if (a->op == ARGUMENT_KEYWORD) n++;
        if (a->op != ARGUMENT_STAR_STAR) continue;
        if (values[i].kind != V_DICT)
            work_fail(r->w, FR_ERR_FORMAT, "the argument after ** must be a dict, not %s", value_type_name(values[i]));
        n += values[i].dict->n;
    }
    return n;
}

void evaluate_arguments(Render *r, const Node *list, Call *call) {
    size_t n = 0, i = 0;
    for (const Node *a = list; a; a = a->next) n++;
    if (n == 0) return;
    Value *values = work_array(r->w, n, sizeof *values);
    for (const Node *a = list; a; a = a->next) values[i++] = evaluate(r, a->a);
    Seq *positional = seq_new(r->w, SEQ_LIST, n);
    KeywordArgument *keywords = work_array(r->w, count_keywords(r, list, values) + 1, sizeof *keywords);
    i = 0;
    for (const Node *a = list; a; a = a->next, i++) {
        if (a->op == ARGUMENT_POSITIONAL) seq_add(r->w, positional, values[i]);
        else if (a->op == ARGUMENT_KEYWORD) add_keyword(r, keywords, &call->n_keywords, a->name, values[i]);
        else if (a->op == ARGUMENT_STAR) {
            const Seq *items = value_items(r->w, values[i]);
            for (size_t k = 0; k < items->n; k++) seq_add(r->w, positional, items->items[k]);
        } else
            for (size_t k = 0; k < values[i].dict->n; k++) {
                const DictEntry *e = &values[i].dict->entries[k];
                add_keyword(r, keywords, &call->n_keywords, value_need_text(r->w, e->key, "a key after **"), e->value);
            }
    }
    call->positional = positional->items;
    call->n_positional = positional->n;
    call->keywords = keywords;
}

/* ---- parameters ------------------------------------------------------------------------------------------------ */

/* Takes the next word from *at. A '!' at its end says that the argument must be given; it is not part of the name. */
static Text next_parameter(const char **at, bool *is_needed) {
    size_t n = strcspn(*at, " ");
    Text name = {.data = *at, .n = n};
    *is_needed = (*at)[n - 1] == '!';
    name.n -= *is_needed;
    *at += n + ((*at)[n] == ' ');
    return name;
}

static bool take_keyword(Work *w, const Call *call, const Text *name, Value *out) {
    work_count(w, call->n_keywords);
    for (size_t i = 0; i < call->n_keywords; i++)
        if (text_same(w, call->keywords[i].name, name)) {
            *out = call->keywords[i].value;
            return true;
        }
    return false;
}

static void bind(Render *r, const Builtin *b, Call *call) {
    size_t n = 0, n_keywords = 0;
    for (const char *at = b->parameters; *at; n++) {
        bool is_needed;
        Text name = next_parameter(&at, &is_needed);
        Value keyword;
        bool is_keyword = take_keyword(r->w, call, &name, &keyword);
        if (is_keyword && n < call->n_positional)
            work_fail(r->w, FR_ERR_FORMAT, "%s: the argument '%.*s' is given twice", b->name, (int)name.n, name.data);
        call->at[n] = n < call->n_positional ? call->positional[n] : is_keyword ? keyword : (Value){.kind = V_MISSING};
        if (is_needed && !given(call->at[n]))
            work_fail(r->w, FR_ERR_FORMAT, "%s: the argument '%.*s' is missing", b->name, (int)name.n, name.data);
        n_keywords += is_keyword;
    }
    if (call->n_positional > n)
        work_fail(r->w, FR_ERR_FORMAT, "%s takes at most %zu arguments, but %zu are given", b->name, n,
                  call->n_positional);
    if (n_keywords < call->n_keywords) work_fail(r->w, FR_ERR_FORMAT, "%s has no argument of that name", b->name);
}

Value builtin_run(Render *r, const Builtin *b, Call *call) {
    if (strcmp(b->parameters, "*") != 0) bind(r, b, call);
    return b->run(r, call);
}

Value call_value(Render *r, Value callee, Call *call) {
    Value v;
    value_need_defined(r->w, callee);
    work_enter(r->w);
    if (callee.kind == V_FUNCTION) {
        call->subject = callee.function->subject;
        v = builtin_run(r, callee.function->builtin, call);
    } else if (callee.kind == V_MACRO) v = run_macro(r, callee.macro, call);
    else if (callee.kind == V_LOOP && call->n_positional == 1) v = run_loop(r, callee.loop, call->positional[0]);
    else if (callee.kind == V_JOINER) v = joiner_call(r, callee, call);
    else work_fail(r->w, FR_ERR_FORMAT, "a value of type %s cannot be called", value_type_name(callee));
    work_leave(r->w);
    return v;
}

/* ---- tables ---------------------------------------------------------------------------------------------------- */

enum { TABLES_OF_KIND = 3 };

static const Builtin *const tables[BUILTIN_KINDS][TABLES_OF_KIND] = {
    [BUILTIN_FILTER] = {filters_sequences, filters_values, filters_text},
    [BUILTIN_TEST] = {value_tests},
    [BUILTIN_GLOBAL] = {global_functions},
    [BUILTIN_TEXT_METHOD] = {text_methods},
    [BUILTIN_DICT_METHOD] = {dict_methods},
    [BUILTIN_SEQUENCE_METHOD] = {sequence_methods},
    [BUILTIN_CYCLER_METHOD] = {cycler_methods},
};

const Builtin *builtin_at(BuiltinKind kind, size_t i) {
    for (int k = 0; k < TABLES_OF_KIND && tables[kind][k]; k++)
        for (const Builtin *b = tables[kind][k]; b->name; b++)
            if (i-- == 0) return b;
    return NULL;
}

const Builtin *builtin_find(BuiltinKind kind, const Text *name) {
    for (int k = 0; k < TABLES_OF_KIND && tables[kind][k]; k++)
        for (const Builtin *b = tables[kind][k]; b->name; b++)
            if (text_is(name, b->name)) return b;
    return NULL;
}

/* Returns whether this is a method that changes a list or a dict. Hugging Face's sandbox refuses those as well. */
static bool changes_its_subject(Value v, const Text *name) {
    static const char *const names[] = {"append", "extend",  "insert", "remove",     "pop",    "clear",
                                        "sort",   "reverse", "update", "setdefault", "popitem"};
    if (v.kind != V_DICT && !(v.kind == V_SEQ && v.seq->flavour == SEQ_LIST)) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (text_is(name, names[i])) return v.kind == V_SEQ ? i < 8 : i == 4 || i == 5 || i > 7;
    return false;
}

static Value run_refused(Render *r, const Call *c) {
    work_fail(r->w, FR_ERR_UNSUPPORTED,
              "a method that changes a %s is called; in chat templates lists and dicts are immutable: use "
              "a namespace, or + with a new list",
              value_type_name(c->subject));
}

const Builtin *method_find(Value v, const Text *name) {
    static const Builtin refused = {"a changing method", "*", run_refused};
    if (changes_its_subject(v, name)) return &refused;
    if (v.kind == V_TEXT) return builtin_find(BUILTIN_TEXT_METHOD, name);
    if (v.kind == V_DICT) return builtin_find(BUILTIN_DICT_METHOD, name);
    if (v.kind == V_CYCLER) return builtin_find(BUILTIN_CYCLER_METHOD, name);
    return v.kind == V_SEQ && v.seq->flavour <= SEQ_RANGE ? builtin_find(BUILTIN_SEQUENCE_METHOD, name) : NULL;
}

bool argument_bool(Value v, bool default_value) { return given(v) ? value_truth(v) : default_value; }

int64_t argument_int(Render *r, Value v, int64_t default_value, const char *what) {
    return given(v) ? value_need_int(r->w, v, what) : default_value;
}

const Text *argument_text(Render *r, Value v, const char *default_value, const char *what) {
    return given(v) ? value_need_text(r->w, v, what) : text_new(r->w, default_value, strlen(default_value), false);
}

const Text *argument_str(Render *r, Value v) { return value_str(r->w, v); }
