/* test_template_cost.c - what the functions of templates cost: an expensive call of each is refused after a number of
 * steps that grows with its work. */
#include "testing.h"

#include "text/template/render.h"
#include "text/template/template.h"

#include <stdio.h>
#include <string.h>

/* An expensive call of each function, with the variables of cost_variables, and the number of steps after which it must
 * be refused; 0: the work does not depend on the operands, and the call must succeed. Two long operands cost the
 * product of their lengths. */
typedef struct Cost {
    BuiltinKind kind;
    const char *name, *expression;
    int64_t steps;
} Cost;

enum { LINEAR = 1000, PRODUCT = 100000 };

static const Cost costs[] = {
    {BUILTIN_FILTER, "length", "s | length", LINEAR},
    {BUILTIN_FILTER, "count", "s | count", LINEAR},
    {BUILTIN_FILTER, "list", "s | list", LINEAR},
    {BUILTIN_FILTER, "first", "entries | first", 100},
    {BUILTIN_FILTER, "last", "s | last", LINEAR},
    {BUILTIN_FILTER, "join", "seq | join(s)", PRODUCT},
    {BUILTIN_FILTER, "reverse", "s | reverse", LINEAR},
    {BUILTIN_FILTER, "items", "entries | items", LINEAR},
    {BUILTIN_FILTER, "sort", "seq | sort", LINEAR},
    {BUILTIN_FILTER, "dictsort", "entries | dictsort", LINEAR},
    {BUILTIN_FILTER, "unique", "texts | unique", LINEAR},
    {BUILTIN_FILTER, "groupby", "dicts | groupby('k')", LINEAR},
    {BUILTIN_FILTER, "batch", "seq | batch(2)", LINEAR},
    {BUILTIN_FILTER, "slice", "seq | slice(1000)", LINEAR},
    {BUILTIN_FILTER, "map", "texts | map('upper')", LINEAR},
    {BUILTIN_FILTER, "select", "seq | select('odd')", LINEAR},
    {BUILTIN_FILTER, "reject", "seq | reject('odd')", LINEAR},
    {BUILTIN_FILTER, "selectattr", "dicts | selectattr('k')", LINEAR},
    {BUILTIN_FILTER, "rejectattr", "dicts | rejectattr('k')", LINEAR},
    {BUILTIN_FILTER, "attr", "s | attr('upper')", 0},
    {BUILTIN_FILTER, "default", "s | default(t)", 0},
    {BUILTIN_FILTER, "d", "s | d(t)", 0},
    {BUILTIN_FILTER, "int", "zeros | int", LINEAR},
    {BUILTIN_FILTER, "float", "blanks | float", LINEAR},
    {BUILTIN_FILTER, "abs", "5 | abs", 0},
    {BUILTIN_FILTER, "round", "5.5 | round(300)", 0},
    {BUILTIN_FILTER, "sum", "seq | sum", LINEAR},
    {BUILTIN_FILTER, "min", "seq | min", LINEAR},
    {BUILTIN_FILTER, "max", "seq | max", LINEAR},
    {BUILTIN_FILTER, "upper", "s | upper", LINEAR},
    {BUILTIN_FILTER, "lower", "s | lower", LINEAR},
    {BUILTIN_FILTER, "capitalize", "s | capitalize", LINEAR},
    {BUILTIN_FILTER, "title", "s | title", LINEAR},
    {BUILTIN_FILTER, "string", "seq | string", LINEAR},
    {BUILTIN_FILTER, "trim", "s | trim(t)", PRODUCT},
    {BUILTIN_FILTER, "replace", "s | replace('x', t)", PRODUCT},
    {BUILTIN_FILTER, "safe", "s | safe", 0},
    {BUILTIN_FILTER, "escape", "s | escape", LINEAR},
    {BUILTIN_FILTER, "e", "s | e", LINEAR},
    {BUILTIN_FILTER, "forceescape", "s | forceescape", LINEAR},
    {BUILTIN_FILTER, "indent", "lines | indent(t)", PRODUCT},
    {BUILTIN_FILTER, "truncate", "s | truncate(30000)", LINEAR},
    {BUILTIN_FILTER, "center", "'' | center(100000)", LINEAR},
    {BUILTIN_FILTER, "wordcount", "s | wordcount", LINEAR},
    {BUILTIN_FILTER, "wordwrap", "s | wordwrap(1)", LINEAR},
    {BUILTIN_FILTER, "urlencode", "s | urlencode", LINEAR},
    {BUILTIN_FILTER, "tojson", "seq | tojson", LINEAR},
    {BUILTIN_FILTER, "format", "'%s' | format(s)", LINEAR},

    {BUILTIN_TEST, "defined", "s is defined", 0},
    {BUILTIN_TEST, "undefined", "s is undefined", 0},
    {BUILTIN_TEST, "none", "s is none", 0},
    {BUILTIN_TEST, "boolean", "s is boolean", 0},
    {BUILTIN_TEST, "true", "s is true", 0},
    {BUILTIN_TEST, "false", "s is false", 0},
    {BUILTIN_TEST, "integer", "s is integer", 0},
    {BUILTIN_TEST, "float", "s is float", 0},
    {BUILTIN_TEST, "number", "s is number", 0},
    {BUILTIN_TEST, "string", "s is string", 0},
    {BUILTIN_TEST, "mapping", "s is mapping", 0},
    {BUILTIN_TEST, "sequence", "s is sequence", 0},
    {BUILTIN_TEST, "iterable", "s is iterable", 0},
    {BUILTIN_TEST, "callable", "s is callable", 0},
    {BUILTIN_TEST, "escaped", "s is escaped", 0},
    {BUILTIN_TEST, "odd", "5 is odd", 0},
    {BUILTIN_TEST, "even", "5 is even", 0},
    {BUILTIN_TEST, "divisibleby", "5 is divisibleby(2)", 0},
    {BUILTIN_TEST, "lower", "s is lower", LINEAR},
    {BUILTIN_TEST, "upper", "s is upper", LINEAR},
    {BUILTIN_TEST, "sameas", "s is sameas(s2)", LINEAR},
    {BUILTIN_TEST, "in", "'q' is in(s)", LINEAR},
    {BUILTIN_TEST, "eq", "s is eq(s2)", LINEAR},
    {BUILTIN_TEST, "equalto", "s is equalto(s2)", LINEAR},
    {BUILTIN_TEST, "==", "[s] | select('==', s2) | list", LINEAR},
    {BUILTIN_TEST, "ne", "s is ne(s2)", LINEAR},
    {BUILTIN_TEST, "!=", "[s] | select('!=', s2) | list", LINEAR},
    {BUILTIN_TEST, "lt", "s is lt(s2)", LINEAR},
    {BUILTIN_TEST, "lessthan", "s is lessthan(s2)", LINEAR},
    {BUILTIN_TEST, "<", "[s] | select('<', s2) | list", LINEAR},
    {BUILTIN_TEST, "gt", "s is gt(s2)", LINEAR},
    {BUILTIN_TEST, "greaterthan", "s is greaterthan(s2)", LINEAR},
    {BUILTIN_TEST, ">", "[s] | select('>', s2) | list", LINEAR},
    {BUILTIN_TEST, "le", "s is le(s2)", LINEAR},
    {BUILTIN_TEST, "<=", "[s] | select('<=', s2) | list", LINEAR},
    {BUILTIN_TEST, "ge", "s is ge(s2)", LINEAR},
    {BUILTIN_TEST, ">=", "[s] | select('>=', s2) | list", LINEAR},
    {BUILTIN_TEST, "filter", "s is filter", 0},
    {BUILTIN_TEST, "test", "s is test", 0},

    {BUILTIN_GLOBAL, "range", "range(50000)", LINEAR},
    {BUILTIN_GLOBAL, "dict", "dict(entries)", LINEAR},
    {BUILTIN_GLOBAL, "namespace", "namespace(entries)", LINEAR},
    {BUILTIN_GLOBAL, "raise_exception", "raise_exception(seq)", LINEAR},
    {BUILTIN_GLOBAL, "strftime_now", "strftime_now('%Y')", 0},
    {BUILTIN_GLOBAL, "cycler", "cycler(*seq)", LINEAR / 5},
    {BUILTIN_GLOBAL, "joiner", "joiner(s)", 0},

    {BUILTIN_TEXT_METHOD, "strip", "s.strip(t)", PRODUCT},
    {BUILTIN_TEXT_METHOD, "lstrip", "s.lstrip(t)", PRODUCT},
    {BUILTIN_TEXT_METHOD, "rstrip", "s.rstrip(t)", PRODUCT},
    {BUILTIN_TEXT_METHOD, "upper", "s.upper()", LINEAR},
    {BUILTIN_TEXT_METHOD, "lower", "s.lower()", LINEAR},
    {BUILTIN_TEXT_METHOD, "casefold", "s.casefold()", LINEAR},
    {BUILTIN_TEXT_METHOD, "title", "s.title()", LINEAR},
    {BUILTIN_TEXT_METHOD, "capitalize", "s.capitalize()", LINEAR},
    {BUILTIN_TEXT_METHOD, "swapcase", "s.swapcase()", LINEAR},
    {BUILTIN_TEXT_METHOD, "split", "s.split('x')", LINEAR},
    {BUILTIN_TEXT_METHOD, "rsplit", "s.rsplit('x')", LINEAR},
    {BUILTIN_TEXT_METHOD, "splitlines", "lines.splitlines()", LINEAR},
    {BUILTIN_TEXT_METHOD, "replace", "s.replace('x', t)", PRODUCT},
    {BUILTIN_TEXT_METHOD, "join", "s.join(texts)", PRODUCT},
    {BUILTIN_TEXT_METHOD, "ljust", "''.ljust(100000)", LINEAR},
    {BUILTIN_TEXT_METHOD, "rjust", "''.rjust(100000)", LINEAR},
    {BUILTIN_TEXT_METHOD, "center", "''.center(100000)", LINEAR},
    {BUILTIN_TEXT_METHOD, "zfill", "''.zfill(100000)", LINEAR},
    {BUILTIN_TEXT_METHOD, "startswith", "s.startswith(s2)", LINEAR},
    {BUILTIN_TEXT_METHOD, "endswith", "s.endswith(s2)", LINEAR},
    {BUILTIN_TEXT_METHOD, "removeprefix", "s.removeprefix(s2)", LINEAR},
    {BUILTIN_TEXT_METHOD, "removesuffix", "s.removesuffix(s2)", LINEAR},
    {BUILTIN_TEXT_METHOD, "partition", "s.partition('q')", LINEAR},
    {BUILTIN_TEXT_METHOD, "rpartition", "s.rpartition('q')", LINEAR},
    {BUILTIN_TEXT_METHOD, "format", "'{}'.format(s)", LINEAR},
    {BUILTIN_TEXT_METHOD, "find", "s.find('q')", LINEAR},
    {BUILTIN_TEXT_METHOD, "rfind", "s.rfind('q')", LINEAR},
    {BUILTIN_TEXT_METHOD, "index", "s.index('q')", LINEAR},
    {BUILTIN_TEXT_METHOD, "rindex", "s.rindex('q')", LINEAR},
    {BUILTIN_TEXT_METHOD, "count", "s.count('x')", LINEAR},
    {BUILTIN_TEXT_METHOD, "isdigit", "zeros.isdigit()", LINEAR},
    {BUILTIN_TEXT_METHOD, "isnumeric", "zeros.isnumeric()", LINEAR},
    {BUILTIN_TEXT_METHOD, "isdecimal", "zeros.isdecimal()", LINEAR},
    {BUILTIN_TEXT_METHOD, "isalpha", "s.isalpha()", LINEAR},
    {BUILTIN_TEXT_METHOD, "isalnum", "s.isalnum()", LINEAR},
    {BUILTIN_TEXT_METHOD, "isspace", "blanks.isspace()", LINEAR},
    {BUILTIN_TEXT_METHOD, "isascii", "s.isascii()", LINEAR},
    {BUILTIN_TEXT_METHOD, "isupper", "s.isupper()", LINEAR},
    {BUILTIN_TEXT_METHOD, "islower", "s.islower()", LINEAR},

    {BUILTIN_DICT_METHOD, "keys", "entries.keys()", LINEAR / 5},
    {BUILTIN_DICT_METHOD, "values", "entries.values()", LINEAR / 5},
    {BUILTIN_DICT_METHOD, "items", "entries.items()", LINEAR / 5},
    {BUILTIN_DICT_METHOD, "copy", "entries.copy()", 0},
    {BUILTIN_DICT_METHOD, "get", "entries.get(s)", LINEAR},
    {BUILTIN_SEQUENCE_METHOD, "index", "seq.index(1)", LINEAR},
    {BUILTIN_SEQUENCE_METHOD, "count", "seq.count(1)", LINEAR},
    {BUILTIN_SEQUENCE_METHOD, "copy", "seq.copy()", 0},
    {BUILTIN_CYCLER_METHOD, "next", "cycler(1, 2).next()", 0},
    {BUILTIN_CYCLER_METHOD, "reset", "cycler(1, 2).reset()", 0},
};

/* The same for operators, slices, arguments and the lookup of names. */
static const Cost operator_costs[] = {
    {BUILTIN_KINDS, "in", "'q' in s", LINEAR},
    {BUILTIN_KINDS, "in", "1 in seq", LINEAR},
    {BUILTIN_KINDS, "==", "s == s2", LINEAR},
    {BUILTIN_KINDS, "==", "seq == seq2", LINEAR},
    {BUILTIN_KINDS, "<", "s < s2", LINEAR},
    {BUILTIN_KINDS, "+", "s + s2", LINEAR},
    {BUILTIN_KINDS, "+", "(seq + seq2) is none", LINEAR / 5},
    {BUILTIN_KINDS, "~", "s ~ s2", LINEAR},
    {BUILTIN_KINDS, "*", "('xy' * 50000) is none", LINEAR},
    {BUILTIN_KINDS, "*", "([1] * 50000) is none", LINEAR},
    {BUILTIN_KINDS, "%", "('%s' % s) is none", LINEAR},
    {BUILTIN_KINDS, "%", "('%99s' * 300) % ((s,) * 300)", PRODUCT},
    {BUILTIN_KINDS, "[]", "s[30000]", LINEAR},
    {BUILTIN_KINDS, "[:]", "s[1:30000] is none", LINEAR},
    {BUILTIN_KINDS, "[::]", "s[::-1] is none", LINEAR},
    {BUILTIN_KINDS, "[:]", "seq[::-1] is none", LINEAR / 5},
    {BUILTIN_KINDS, "{}", "{s: 1} is none", LINEAR},
    {BUILTIN_KINDS, "**", "dict(**entries) is none", PRODUCT},
    {BUILTIN_KINDS, "strip", "lines.strip(lines)", PRODUCT},
    {BUILTIN_KINDS, "wordwrap", "('1-' ~ '-' * 32768 ~ ' ' * 32768 ~ '1') | wordwrap(3)", PRODUCT / 10},
};

/* s and s2: 32768 times x, at different addresses; t: 32768 bytes with an x at their end. */
static TemplateVariables *cost_variables(void) {
    static const char source[] =
        "{% set s = 'x' * 32768 %}{% set t = 'y' * 32767 ~ 'x' %}{\"s\": {{ s | tojson }}, \"s2\": {{ s | tojson }}, "
        "\"t\": {{ t | tojson }}, \"zeros\": {{ ('0' * 32768) | tojson }}, \"blanks\": {{ (' ' * 32768) | tojson }}, "
        "\"lines\": {{ ('x\\n' * 16384) | tojson }}, \"seq\": {{ ([0] * 8192) | tojson }}, "
        "\"seq2\": {{ ([0] * 8192) | tojson }}, \"texts\": {{ (['abc'] * 8192) | tojson }}, "
        "\"dicts\": [{\"k\": 1}{% for i in range(4000) %}, {\"k\": {{ i }}}{% endfor %}], "
        "\"entries\": {\"a\": 1{% for i in range(8000) %}, \"k{{ i }}\": 1{% endfor %}}}";
    Template *t;
    TemplateVariables *none, *v;
    TemplateOutput out = {.text.max_bytes = 1 << 24};
    fr_error err = {0};
    if (template_compile(&t, source, sizeof source - 1, NULL, &err)) fail_msg("%s", err.message);
    assert_int_equal(template_variables_open(&none, NULL, &err), FR_OK);
    assert_int_equal(template_variables_open(&v, NULL, &err), FR_OK);
    if (template_render(t, none, &out, &err)) fail_msg("%s", err.message);
    if (template_set_members(v, out.text.data, out.text.n, TEMPLATE_DATA, &err)) fail_msg("%s", err.message);
    template_variables_close(none);
    template_output_free(&out);
    template_close(t);
    return v;
}

/* False, with the reason printed, if the call is not refused after its number of steps, or if a cheap one is
 * refused. */
static bool keeps_its_cost(const Cost *c, const TemplateVariables *v) {
    char source[200], wanted[64];
    Template *t;
    TemplateOutput out = {.text.max_bytes = 1 << 24};
    fr_error err = {0};
    TemplateLimits limits = {.max_steps = c->steps ? c->steps : 100};
    int n = snprintf(source, sizeof source, "{%% set x = %s %%}", c->expression);
    snprintf(wanted, sizeof wanted, "more than %lld steps", (long long)c->steps);
    if (template_compile(&t, source, (size_t)n, &limits, &err)) fail_msg("%s: %s", source, err.message);
    int status = template_render(t, v, &out, &err);
    bool kept = c->steps ? status == FR_ERR_MEMORY && strstr(err.message, wanted) : status == FR_OK;
    if (!kept)
        print_message("%s: %s: %s\n", c->name, c->expression,
                      status     ? err.message
                      : c->steps ? "is not refused"
                                 : "is refused");
    template_output_free(&out);
    template_close(t);
    return kept;
}

static const Cost *cost_of(BuiltinKind kind, const char *name) {
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (costs[i].kind == kind && strcmp(costs[i].name, name) == 0) return &costs[i];
    fail_msg("the table of costs has no expensive call of '%s'", name);
    return NULL;
}

static void expensive_calls_are_refused(void **state) {
    (void)state;
    TemplateVariables *v = cost_variables();
    const Builtin *b;
    int n_wrong = 0;
    for (int kind = 0; kind < BUILTIN_KINDS; kind++)
        for (size_t i = 0; (b = builtin_at((BuiltinKind)kind, i)) != NULL; i++)
            n_wrong += !keeps_its_cost(cost_of((BuiltinKind)kind, b->name), v);
    for (size_t i = 0; i < sizeof operator_costs / sizeof *operator_costs; i++)
        n_wrong += !keeps_its_cost(&operator_costs[i], v);
    template_variables_close(v);
    assert_int_equal(n_wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expensive_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
