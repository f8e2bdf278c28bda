/* parser.c - makes the tree of a template from its tokens, by recursive descent.
 *
 * Expressions have Jinja's order of precedence, from the weakest to the strongest: conditions, or, and, not,
 * comparisons, + and -, ~, * / // %, **, signs, and then what follows a primary expression: attributes, items,
 * calls, filters and tests. */
#include "text/template/render.h"

#include <string.h>

/* A position in the list of tokens, and what surrounds it. */
typedef struct Parser {
    Work *w;
    const Token *now; /* the current token */
    int *macro_uses;  /* the MACRO_* flags of the macro or call block whose body is parsed, or NULL */
    int n_loops;      /* the number of loops that {% break %} could leave */
} Parser;

static Node *parse_expression(Parser *p, bool with_condition);
static Node *parse_tuple(Parser *p, bool with_condition, const char *end);

static Node *parser_node(Parser *p, NodeKind kind) {
    Node *n = work_alloc(p->w, sizeof *n);
    n->kind = kind;
    n->line = p->now->line;
    return n;
}

static void parser_next(Parser *p) {
    if (p->now->kind != TOKEN_END) p->now++;
    p->w->line = p->now->line;
}

static bool parser_at_op(const Parser *p, int op) { return p->now->kind == TOKEN_OPERATOR && p->now->op == op; }
static bool parser_at_name(const Parser *p, const char *name) {
    return p->now->kind == TOKEN_NAME && text_is(p->now->value.text, name);
}

static bool parser_skip_op(Parser *p, int op) {
    if (!parser_at_op(p, op)) return false;
    parser_next(p);
    return true;
}

static bool parser_skip_name(Parser *p, const char *name) {
    if (!parser_at_name(p, name)) return false;
    parser_next(p);
    return true;
}

__attribute__((noreturn)) static void parser_unexpected(Parser *p, const char *wanted) {
    static const char *const kinds[] = {"end of the template", "text", "{{", "end of }}", "{%", "end of the tag"};
    const Token *t = p->now;
    const char *between = wanted ? ", expected " : "";
    if (!wanted) wanted = "";
    if (t->kind == TOKEN_NAME)
        work_fail(p->w, FR_ERR_FORMAT, "unexpected '%.*s'%s%s", (int)(t->value.text->n < 60 ? t->value.text->n : 60),
                  t->value.text->data, between, wanted);
    if (t->kind == TOKEN_OPERATOR && t->op < 256)
        work_fail(p->w, FR_ERR_FORMAT, "unexpected '%c'%s%s", (char)t->op, between, wanted);
    work_fail(p->w, FR_ERR_FORMAT, "unexpected %s%s%s", t->kind <= TOKEN_TAG_END ? kinds[t->kind] : "value or operator",
              between, wanted);
}

static void parser_expect_op(Parser *p, int op) {
    char wanted[] = {'\'', (char)op, '\'', '\0'};
    if (!parser_skip_op(p, op)) parser_unexpected(p, wanted);
}

static const Text *parser_expect_name(Parser *p) {
    if (p->now->kind != TOKEN_NAME) parser_unexpected(p, "a name");
    const Text *name = p->now->value.text;
    parser_next(p);
    return name;
}

/* Appends a node to a list, and returns where the next one is to be appended. */
static Node **append(Node **end, Node *n) {
    *end = n;
    return &n->next;
}

static Node *unary(Parser *p, NodeKind kind, Node *a) {
    Node *n = parser_node(p, kind);
    n->a = a;
    return n;
}

static Node *binary(Parser *p, NodeKind kind, int op, Node *a, Node *b) {
    Node *n = parser_node(p, kind);
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

/* ---- primary expressions ----------------------------------------------------------------------------------------- */

static Node *parse_items(Parser *p, NodeKind kind, char end) {
    Node *n = parser_node(p, kind), **tail = &n->list;
    parser_next(p);
    while (!parser_at_op(p, end)) {
        tail = append(tail, parse_expression(p, true));
        if (kind == NODE_DICT) {
            parser_expect_op(p, ':');
            tail = append(tail, parse_expression(p, true));
        }
        if (!parser_skip_op(p, ',')) break;
    }
    parser_expect_op(p, end);
    return n;
}

static Node *constant(Parser *p, Value v) {
    Node *n = parser_node(p, NODE_CONST);
    n->value = v;
    return n;
}

static void note_use(Parser *p, const Text *name) {
    if (!p->macro_uses) return;
    *p->macro_uses |= text_is(name, "caller")    ? MACRO_CALLER
                      : text_is(name, "varargs") ? MACRO_VARARGS
                      : text_is(name, "kwargs")  ? MACRO_KWARGS
                                                 : 0;
}

static Node *parse_name(Parser *p) {
    Node *n = parser_node(p, NODE_NAME);
    n->name = parser_expect_name(p);
    if (text_is(n->name, "true") || text_is(n->name, "True")) return constant(p, value_bool(true));
    if (text_is(n->name, "false") || text_is(n->name, "False")) return constant(p, value_bool(false));
    if (text_is(n->name, "none") || text_is(n->name, "None")) return constant(p, value_none());
    note_use(p, n->name);
    return n;
}

/* Parses a literal. Adjacent strings are joined into one. */
static Node *parse_literal(Parser *p) {
    Node *n = constant(p, p->now->value);
    parser_next(p);
    if (!is_text(n->value)) return n;
    TextBuilder b = builder_new(p->w);
    builder_add(&b, n->value.text);
    while (p->now->kind == TOKEN_LITERAL && is_text(p->now->value)) {
        builder_add(&b, p->now->value.text);
        parser_next(p);
    }
    n->value = value_text(builder_text(&b));
    return n;
}

static Node *parse_parentheses(Parser *p) {
    parser_next(p);
    if (parser_skip_op(p, ')')) return parser_node(p, NODE_TUPLE);
    Node *n = parse_tuple(p, true, NULL);
    parser_expect_op(p, ')');
    return n;
}

static Node *parse_primary(Parser *p) {
    if (p->now->kind == TOKEN_NAME) return parse_name(p);
    if (p->now->kind == TOKEN_LITERAL) return parse_literal(p);
    if (parser_at_op(p, '(')) return parse_parentheses(p);
    if (parser_at_op(p, '[')) return parse_items(p, NODE_LIST, ']');
    if (parser_at_op(p, '{')) return parse_items(p, NODE_DICT, '}');
    parser_unexpected(p, "an expression");
}

/* ---- what follows a primary expression --------------------------------------------------------------------------- */

static Node *parse_argument(Parser *p, ArgumentKind *last) {
    Node *n = parser_node(p, NODE_ARGUMENT);
    if (parser_skip_op(p, '*')) n->op = ARGUMENT_STAR;
    else if (parser_skip_op(p, OP_POWER)) n->op = ARGUMENT_STAR_STAR;
    else if (p->now->kind == TOKEN_NAME && p->now[1].kind == TOKEN_OPERATOR && p->now[1].op == '=') {
        n->op = ARGUMENT_KEYWORD;
        n->name = p->now->value.text;
        parser_next(p);
        parser_next(p);
    }
    if ((ArgumentKind)n->op < *last || (n->op >= ARGUMENT_STAR && (int)*last == n->op))
        work_fail(p->w, FR_ERR_FORMAT, "the arguments of a call are in a wrong order");
    *last = (ArgumentKind)n->op;
    n->a = parse_expression(p, true);
    return n;
}

static Node *parse_arguments(Parser *p) {
    Node *list = NULL, **tail = &list;
    ArgumentKind last = ARGUMENT_POSITIONAL;
    parser_expect_op(p, '(');
    while (!parser_at_op(p, ')')) {
        tail = append(tail, parse_argument(p, &last));
        if (!parser_skip_op(p, ',')) break;
    }
    parser_expect_op(p, ')');
    return list;
}

static bool at_slice_end(const Parser *p) { return parser_at_op(p, ']') || parser_at_op(p, ','); }

static Node *parse_subscript(Parser *p) {
    Node *first = parser_at_op(p, ':') ? NULL : parse_expression(p, true);
    if (!parser_at_op(p, ':')) return first;
    Node *n = parser_node(p, NODE_SLICE);
    n->a = first;
    parser_next(p);
    if (!parser_at_op(p, ':') && !at_slice_end(p)) n->b = parse_expression(p, true);
    if (parser_skip_op(p, ':') && !at_slice_end(p)) n->c = parse_expression(p, true);
    return n;
}

static Node *parse_item(Parser *p, Node *subject) {
    parser_expect_op(p, '[');
    Node *key = parse_subscript(p);
    if (parser_at_op(p, ',')) {
        Node *tuple = parser_node(p, NODE_TUPLE), **tail = append(&tuple->list, key);
        while (parser_skip_op(p, ',')) tail = append(tail, parse_subscript(p));
        key = tuple;
    }
    parser_expect_op(p, ']');
    return binary(p, NODE_ITEM, 0, subject, key);
}

static Node *parse_attribute(Parser *p, Node *subject) {
    parser_next(p);
    if (p->now->kind == TOKEN_LITERAL && p->now->value.kind == V_INT) {
        Node *index = constant(p, p->now->value);
        parser_next(p);
        return binary(p, NODE_ITEM, 0, subject, index);
    }
    Node *n = unary(p, NODE_ATTRIBUTE, subject);
    n->name = parser_expect_name(p);
    return n;
}

static Node *parse_call(Parser *p, Node *subject) {
    Node *n = unary(p, NODE_CALL, subject);
    n->list = parse_arguments(p);
    return n;
}

static Node *parse_postfix(Parser *p, Node *n) {
    for (;;) {
        if (parser_at_op(p, '.')) n = parse_attribute(p, n);
        else if (parser_at_op(p, '[')) n = parse_item(p, n);
        else if (parser_at_op(p, '(')) n = parse_call(p, n);
        else return n;
    }
}

/* Parses filters that apply to `subject`. It is NULL for the filters of a block, whose first name may follow
 * directly (starts_inline) instead of after a '|'. */
static Node *parse_filters(Parser *p, Node *subject, bool starts_inline) {
    while (starts_inline || parser_skip_op(p, '|')) {
        Node *n = unary(p, NODE_FILTER, subject);
        n->name = parser_expect_name(p);
        n->builtin = builtin_find(BUILTIN_FILTER, n->name);
        if (parser_at_op(p, '(')) n->list = parse_arguments(p);
        subject = n;
        starts_inline = false;
    }
    return subject;
}

/* Returns whether the argument of a test follows without parentheses, as in `x is divisibleby 3`. */
static bool at_bare_argument(const Parser *p) {
    if (parser_at_name(p, "else") || parser_at_name(p, "or") || parser_at_name(p, "and")) return false;
    return p->now->kind == TOKEN_NAME || p->now->kind == TOKEN_LITERAL || parser_at_op(p, '[') || parser_at_op(p, '{');
}

static Node *parse_test(Parser *p, Node *subject) {
    parser_next(p);
    bool is_negated = parser_skip_name(p, "not");
    Node *n = unary(p, NODE_TEST, subject);
    n->name = parser_expect_name(p);
    n->builtin = builtin_find(BUILTIN_TEST, n->name);
    if (parser_at_op(p, '(')) n->list = parse_arguments(p);
    else if (at_bare_argument(p)) {
        if (parser_at_name(p, "is")) work_fail(p->w, FR_ERR_FORMAT, "tests with 'is' cannot be chained");
        n->list = parser_node(p, NODE_ARGUMENT);
        n->list->a = parse_postfix(p, parse_primary(p));
    }
    return is_negated ? unary(p, NODE_NOT, n) : n;
}

static Node *parse_filter_chain(Parser *p, Node *n) {
    for (;;) {
        if (parser_at_op(p, '|')) n = parse_filters(p, n, false);
        else if (parser_at_name(p, "is")) n = parse_test(p, n);
        else if (parser_at_op(p, '(')) n = parse_call(p, n);
        else return n;
    }
}

/* ---- operators ------------------------------------------------------------------------------------------- */

static Node *parse_unary(Parser *p, bool with_filters) {
    Node *n;
    work_enter(p->w);
    if (parser_skip_op(p, '-')) n = unary(p, NODE_NEGATE, parse_unary(p, false));
    else if (parser_skip_op(p, '+')) n = unary(p, NODE_PLUS, parse_unary(p, false));
    else n = parse_primary(p);
    n = parse_postfix(p, n);
    if (with_filters) n = parse_filter_chain(p, n);
    work_leave(p->w);
    return n;
}

static Node *parse_power(Parser *p) {
    Node *n = parse_unary(p, true);
    while (parser_skip_op(p, OP_POWER)) n = binary(p, NODE_BINARY, OP_POWER, n, parse_unary(p, true));
    return n;
}

static Node *parse_product(Parser *p) {
    Node *n = parse_power(p);
    while (parser_at_op(p, '*') || parser_at_op(p, '/') || parser_at_op(p, OP_FLOOR_DIVIDE) || parser_at_op(p, '%')) {
        int op = p->now->op;
        parser_next(p);
        n = binary(p, NODE_BINARY, op, n, parse_power(p));
    }
    return n;
}

static Node *parse_concat(Parser *p) {
    Node *first = parse_product(p);
    if (!parser_at_op(p, '~')) return first;
    Node *n = parser_node(p, NODE_CONCAT), **tail = append(&n->list, first);
    while (parser_skip_op(p, '~')) tail = append(tail, parse_product(p));
    return n;
}

static Node *parse_sum(Parser *p) {
    Node *n = parse_concat(p);
    while (parser_at_op(p, '+') || parser_at_op(p, '-')) {
        int op = p->now->op;
        parser_next(p);
        n = binary(p, NODE_BINARY, op, n, parse_concat(p));
    }
    return n;
}

/* Skips a comparison operator and returns it. OP_NONE: the current token is another one. */
static int skip_comparison(Parser *p) {
    static const int ops[] = {OP_EQ, OP_NE, '<', '>', OP_LE, OP_GE};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (parser_skip_op(p, ops[i])) return ops[i];
    if (parser_skip_name(p, "in")) return OP_IN;
    if (parser_at_name(p, "not") && p->now[1].kind == TOKEN_NAME && text_is(p->now[1].value.text, "in")) {
        parser_next(p);
        parser_next(p);
        return OP_NOT_IN;
    }
    return OP_NONE;
}

static Node *parse_comparison(Parser *p) {
    Node *first = parse_sum(p), *n = NULL, **tail = NULL;
    for (int op; (op = skip_comparison(p)) != OP_NONE;) {
        if (!n) {
            n = unary(p, NODE_COMPARE, first);
            tail = &n->list;
        }
        tail = append(tail, binary(p, NODE_OPERAND, op, parse_sum(p), NULL));
    }
    return n ? n : first;
}

static Node *parse_not(Parser *p) {
    if (!parser_skip_name(p, "not")) return parse_comparison(p);
    work_enter(p->w);
    Node *n = unary(p, NODE_NOT, parse_not(p));
    work_leave(p->w);
    return n;
}

static Node *parse_and(Parser *p) {
    Node *n = parse_not(p);
    while (parser_skip_name(p, "and")) n = binary(p, NODE_AND, 0, n, parse_not(p));
    return n;
}

static Node *parse_or(Parser *p) {
    Node *n = parse_and(p);
    while (parser_skip_name(p, "or")) n = binary(p, NODE_OR, 0, n, parse_and(p));
    return n;
}

static Node *parse_expression(Parser *p, bool with_condition) {
    work_enter(p->w);
    Node *n = parse_or(p);
    while (with_condition && parser_skip_name(p, "if")) {
        n = binary(p, NODE_CONDITION, 0, n, parse_or(p));
        if (parser_skip_name(p, "else")) n->c = parse_expression(p, true);
    }
    work_leave(p->w);
    return n;
}

/* Parses an expression, or a tuple without parentheses. `end` is a name that ends it, or NULL. */
static Node *parse_tuple(Parser *p, bool with_condition, const char *end) {
    Node *first = parse_expression(p, with_condition);
    if (!parser_at_op(p, ',')) return first;
    Node *n = parser_node(p, NODE_TUPLE), **tail = append(&n->list, first);
    while (parser_skip_op(p, ',')) {
        bool ends = p->now->kind == TOKEN_PRINT_END || p->now->kind == TOKEN_TAG_END || parser_at_op(p, ')') ||
                    (end && parser_at_name(p, end));
        if (ends) break;
        tail = append(tail, parse_expression(p, with_condition));
    }
    return n;
}

/* ---- statements --------------------------------------------------------------------------------------------- */

static Node *parse_body(Parser *p, const char *const *ends);
static Node *parse_statement(Parser *p);

/* Returns whether the current token is one of the names. The list ends with NULL. */
static bool at_any(const Parser *p, const char *const *names) {
    for (; *names; names++)
        if (parser_at_name(p, *names)) return true;
    return false;
}

static void expect_tag_end(Parser *p) {
    if (p->now->kind != TOKEN_TAG_END) parser_unexpected(p, "%}");
    parser_next(p);
}

/* Parses the statements before the next tag of one of the names. That name becomes the current token. */
static Node *parse_block(Parser *p, const char *const *ends) {
    parser_skip_op(p, ':');
    expect_tag_end(p);
    Node *body = parse_body(p, ends);
    if (p->now->kind == TOKEN_END) work_fail(p->w, FR_ERR_FORMAT, "the template ends before {%% %s %%}", ends[0]);
    return body;
}

static Node *parse_until(Parser *p, const char *end) {
    Node *body = parse_block(p, (const char *const[]){end, NULL});
    parser_next(p);
    return body;
}

/* ---- targets of assignments ------------------------------------------------------------------------------- */

static Node *parse_target_part(Parser *p, bool with_member);

static Node *parse_target(Parser *p, bool with_member, const char *end) {
    Node *first = parse_target_part(p, with_member);
    if (!parser_at_op(p, ',')) return first;
    Node *n = parser_node(p, NODE_TUPLE), *last = n->list = first;
    while (parser_skip_op(p, ',') && !parser_at_op(p, '=') && !parser_at_op(p, ')') && !(end && parser_at_name(p, end)))
        last = last->next = parse_target_part(p, with_member);
    return n;
}

static Node *parse_target_part(Parser *p, bool with_member) {
    work_enter(p->w);
    Node *n;
    if (parser_skip_op(p, '(')) {
        n = parse_target(p, with_member, NULL);
        parser_expect_op(p, ')');
    } else {
        if (p->now->kind != TOKEN_NAME) parser_unexpected(p, "a name to assign to");
        n = parse_primary(p);
        if (n->kind != NODE_NAME) work_fail(p->w, FR_ERR_FORMAT, "a constant cannot be assigned to");
        if (with_member && parser_skip_op(p, '.')) {
            Node *member = parser_node(p, NODE_MEMBER);
            member->a = n;
            member->name = parser_expect_name(p);
            n = member;
        }
    }
    work_leave(p->w);
    return n;
}

/* ---- each kind of statement; its name was skipped ---------------------------------------------------------------- */

static Node *parse_if(Parser *p) {
    static const char *const ends[] = {"endif", "elif", "else", NULL}, *const end[] = {"endif", NULL};
    Node *n = parser_node(p, NODE_IF), **tail = &n->list;
    bool is_else = false;
    for (;;) {
        Node *branch = *tail = parser_node(p, NODE_BRANCH);
        tail = &branch->next;
        if (!is_else) branch->a = parse_tuple(p, false, NULL);
        branch->list = parse_block(p, is_else ? end : ends);
        if (parser_skip_name(p, "endif")) return n;
        is_else = parser_at_name(p, "else");
        parser_next(p);
    }
}

static Node *parse_for(Parser *p) {
    static const char *const ends[] = {"endfor", "else", NULL};
    Node *n = parser_node(p, NODE_FOR);
    n->a = parse_target(p, false, "in");
    if (!parser_skip_name(p, "in")) parser_unexpected(p, "'in'");
    n->b = parse_tuple(p, false, "recursive");
    if (parser_skip_name(p, "if")) n->c = parse_expression(p, true);
    n->op = parser_skip_name(p, "recursive");
    p->n_loops++;
    n->list = parse_block(p, ends);
    p->n_loops--;
    if (parser_skip_name(p, "endfor")) return n;
    parser_next(p);
    n->other = parse_until(p, "endfor");
    return n;
}

static Node *parse_set(Parser *p) {
    Node *n = parser_node(p, NODE_SET);
    n->a = parse_target(p, true, NULL);
    if (parser_skip_op(p, '=')) {
        n->b = parse_tuple(p, true, NULL);
        return n;
    }
    n->kind = NODE_SET_BLOCK;
    n->b = parse_filters(p, NULL, false);
    n->list = parse_until(p, "endset");
    return n;
}

/* Parses the parameters of a macro, in parentheses. */
static Node *parse_parameters(Parser *p) {
    Node *list = NULL, **tail = &list;
    bool has_default = false;
    parser_expect_op(p, '(');
    while (!parser_at_op(p, ')')) {
        Node *n = *tail = parser_node(p, NODE_PARAMETER);
        tail = &n->next;
        n->name = parser_expect_name(p);
        if (parser_skip_op(p, '=')) n->a = parse_expression(p, true);
        else if (has_default)
            work_fail(p->w, FR_ERR_FORMAT, "a parameter without a default follows one with a default");
        has_default = n->a != NULL;
        if (!parser_skip_op(p, ',')) break;
    }
    parser_expect_op(p, ')');
    return list;
}

/* Parses the body of a macro up to the tag `end`, and notes which special names it uses. {% break %} in it cannot
 * leave a loop around the macro. */
static void parse_macro_body(Parser *p, Node *macro, const char *end) {
    int *outer_uses = p->macro_uses, outer_loops = p->n_loops;
    p->macro_uses = &macro->op;
    p->n_loops = 0;
    macro->list = parse_until(p, end);
    p->macro_uses = outer_uses;
    p->n_loops = outer_loops;
}

static Node *parse_macro(Parser *p) {
    Node *n = parser_node(p, NODE_MACRO);
    n->name = parser_expect_name(p);
    n->other = parse_parameters(p);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static Node *parse_call_block(Parser *p) {
    Node *n = parser_node(p, NODE_CALL_BLOCK), *caller = n->b = parser_node(p, NODE_MACRO);
    caller->name = text_copy(p->w, "caller", 6, false);
    if (parser_at_op(p, '(')) caller->other = parse_parameters(p);
    n->a = parse_expression(p, true);
    if (n->a->kind != NODE_CALL) work_fail(p->w, FR_ERR_FORMAT, "{%% call %%} needs the call of a macro");
    parse_macro_body(p, caller, "endcall");
    return n;
}

static Node *parse_filter_block(Parser *p) {
    Node *n = parser_node(p, NODE_FILTER_BLOCK);
    n->b = parse_filters(p, NULL, true);
    n->list = parse_until(p, "endfilter");
    return n;
}

static Node *parse_with(Parser *p) {
    Node *n = parser_node(p, NODE_SCOPE), **tail = &n->other;
    while (p->now->kind != TOKEN_TAG_END) {
        Node *set = *tail = parser_node(p, NODE_SET);
        tail = &set->next;
        set->a = parse_target_part(p, false);
        parser_expect_op(p, '=');
        set->b = parse_expression(p, true);
        if (!parser_skip_op(p, ',')) break;
    }
    n->list = parse_until(p, "endwith");
    return n;
}

static Node *parse_generation(Parser *p) {
    Node *n = parser_node(p, NODE_SCOPE);
    int loops = p->n_loops;
    p->n_loops = 0;
    n->list = parse_until(p, "endgeneration");
    p->n_loops = loops;
    return n;
}

static Node *parse_autoescape(Parser *p) {
    if (!parser_skip_name(p, "false"))
        work_fail(p->w, FR_ERR_UNSUPPORTED, "{%% autoescape %%} is supported with 'false' only");
    Node *n = parser_node(p, NODE_SCOPE);
    n->list = parse_until(p, "endautoescape");
    return n;
}

static Node *parse_print_tag(Parser *p) {
    Node *n = parser_node(p, NODE_PRINT);
    n->a = parse_expression(p, true);
    return n;
}

static Node *parse_jump(Parser *p, NodeKind kind) {
    if (p->n_loops == 0) work_fail(p->w, FR_ERR_FORMAT, "{%% break %%} and {%% continue %%} belong into a loop");
    return parser_node(p, kind);
}

static Node *parse_break(Parser *p) { return parse_jump(p, NODE_BREAK); }
static Node *parse_continue(Parser *p) { return parse_jump(p, NODE_CONTINUE); }

static Node *parse_statement(Parser *p) {
    static const struct {
        const char *name;
        Node *(*parse)(Parser *p); /* NULL: the statement is refused */
    } statements[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"generation", parse_generation},
        {"autoescape", parse_autoescape},
        {"print", parse_print_tag},
        {"break", parse_break},
        {"continue", parse_continue},
        {"include", NULL},
        {"import", NULL},
        {"from", NULL},
        {"extends", NULL},
        {"block", NULL},
    };
    const Text *name = parser_expect_name(p);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!text_is(name, statements[i].name)) continue;
        if (statements[i].parse) return statements[i].parse(p);
        work_fail(p->w, FR_ERR_UNSUPPORTED, "{%% %s %%} is not supported: a chat template is one file",
                  statements[i].name);
    }
    work_fail(p->w, FR_ERR_FORMAT, "there is no statement {%% %.*s %%}, or it does not belong here",
              (int)(name->n < 60 ? name->n : 60), name->data);
}

/* One statement, text or {{ }}. NULL: a tag of one of the names follows, or the end of the template. */
static Node *parse_one(Parser *p, const char *const *ends) {
    Node *n;
    if (p->now->kind == TOKEN_DATA) {
        n = parser_node(p, NODE_TEXT);
        n->value = p->now->value;
        parser_next(p);
    } else if (p->now->kind == TOKEN_PRINT_BEGIN) {
        parser_next(p);
        n = parser_node(p, NODE_PRINT);
        n->a = parse_tuple(p, true, NULL);
        if (p->now->kind != TOKEN_PRINT_END) parser_unexpected(p, "}}");
        parser_next(p);
    } else if (p->now->kind == TOKEN_TAG_BEGIN) {
        parser_next(p);
        if (at_any(p, ends)) return NULL;
        n = parse_statement(p);
        expect_tag_end(p);
    } else return NULL;
    return n;
}

static Node *parse_body(Parser *p, const char *const *ends) {
    Node *list = NULL, **tail = &list;
    work_enter(p->w);
    for (Node *n; (n = parse_one(p, ends)) != NULL; tail = &n->next) *tail = n;
    work_leave(p->w);
    return list;
}

Node *syntax_parse(Work *w, const char *source, size_t n) {
    static const char *const none[] = {NULL};
    Parser p = {.w = w, .now = lexer_run(w, source, n)};
    w->line = 1;
    Node *list = parse_body(&p, none);
    if (p.now->kind != TOKEN_END) parser_unexpected(&p, NULL);
    return list;
}
