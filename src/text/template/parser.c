/* parser.c - makes the tree of a template from its tokens, by recursive descent: its statements. */
#include "text/template/parser.h"

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
        n = parser_primary(p);
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
        if (!is_else) branch->a = parser_tuple(p, false, NULL);
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
    n->b = parser_tuple(p, false, "recursive");
    if (parser_skip_name(p, "if")) n->c = parser_expression(p, true);
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
        n->b = parser_tuple(p, true, NULL);
        return n;
    }
    n->kind = NODE_SET_BLOCK;
    n->b = parser_filters(p, NULL, false);
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
        if (parser_skip_op(p, '=')) n->a = parser_expression(p, true);
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
    n->a = parser_expression(p, true);
    if (n->a->kind != NODE_CALL) work_fail(p->w, FR_ERR_FORMAT, "{%% call %%} needs the call of a macro");
    parse_macro_body(p, caller, "endcall");
    return n;
}

static Node *parse_filter_block(Parser *p) {
    Node *n = parser_node(p, NODE_FILTER_BLOCK);
    n->b = parser_filters(p, NULL, true);
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
        set->b = parser_expression(p, true);
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
    n->a = parser_expression(p, true);
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
        n->a = parser_tuple(p, true, NULL);
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
