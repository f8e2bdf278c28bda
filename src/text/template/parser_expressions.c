/* parser_expressions.c - expressions of a template, by recursive descent.
 *
 * They have Jinja's order of precedence, from the weakest to the strongest: conditions, or, and, not, comparisons, +
 * and -, ~, * / // %, **, signs, and then what follows a primary expression: attributes, items, calls, filters and
 * tests. */
#include "text/template/parser.h"

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
        tail = append(tail, parser_expression(p, true));
        if (kind == NODE_DICT) {
            parser_expect_op(p, ':');
            tail = append(tail, parser_expression(p, true));
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
    Node *n = parser_tuple(p, true, NULL);
    parser_expect_op(p, ')');
    return n;
}

Node *parser_primary(Parser *p) {
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
    n->a = parser_expression(p, true);
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
    Node *first = parser_at_op(p, ':') ? NULL : parser_expression(p, true);
    if (!parser_at_op(p, ':')) return first;
    Node *n = parser_node(p, NODE_SLICE);
    n->a = first;
    parser_next(p);
    if (!parser_at_op(p, ':') && !at_slice_end(p)) n->b = parser_expression(p, true);
    if (parser_skip_op(p, ':') && !at_slice_end(p)) n->c = parser_expression(p, true);
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
Node *parser_filters(Parser *p, Node *subject, bool starts_inline) {
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
        n->list->a = parse_postfix(p, parser_primary(p));
    }
    return is_negated ? unary(p, NODE_NOT, n) : n;
}

static Node *parse_filter_chain(Parser *p, Node *n) {
    for (;;) {
        if (parser_at_op(p, '|')) n = parser_filters(p, n, false);
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
    else n = parser_primary(p);
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

Node *parser_expression(Parser *p, bool with_condition) {
    work_enter(p->w);
    Node *n = parse_or(p);
    while (with_condition && parser_skip_name(p, "if")) {
        n = binary(p, NODE_CONDITION, 0, n, parse_or(p));
        if (parser_skip_name(p, "else")) n->c = parser_expression(p, true);
    }
    work_leave(p->w);
    return n;
}

/* Parses an expression, or a tuple without parentheses. `end` is a name that ends it, or NULL. */
Node *parser_tuple(Parser *p, bool with_condition, const char *end) {
    Node *first = parser_expression(p, with_condition);
    if (!parser_at_op(p, ',')) return first;
    Node *n = parser_node(p, NODE_TUPLE), **tail = append(&n->list, first);
    while (parser_skip_op(p, ',')) {
        bool ends = p->now->kind == TOKEN_PRINT_END || p->now->kind == TOKEN_TAG_END || parser_at_op(p, ')') ||
                    (end && parser_at_name(p, end));
        if (ends) break;
        tail = append(tail, parser_expression(p, with_condition));
    }
    return n;
}
