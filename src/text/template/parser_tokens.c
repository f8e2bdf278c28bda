/* parser_tokens.c - how the parser moves along the tokens of a template. */
#include "text/template/parser.h"

Node *parser_node(Parser *p, NodeKind kind) {
    Node *n = work_alloc(p->w, sizeof *n);
    n->kind = kind;
    n->line = p->now->line;
    return n;
}

void parser_next(Parser *p) {
    if (p->now->kind != TOKEN_END) p->now++;
    p->w->line = p->now->line;
}

bool parser_at_op(const Parser *p, int op) { return p->now->kind == TOKEN_OPERATOR && p->now->op == op; }
bool parser_at_name(const Parser *p, const char *name) {
    return p->now->kind == TOKEN_NAME && text_is(p->now->value.text, name);
}

bool parser_skip_op(Parser *p, int op) {
    if (!parser_at_op(p, op)) return false;
    parser_next(p);
    return true;
}

bool parser_skip_name(Parser *p, const char *name) {
    if (!parser_at_name(p, name)) return false;
    parser_next(p);
    return true;
}

void parser_unexpected(Parser *p, const char *wanted) {
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

void parser_expect_op(Parser *p, int op) {
    char wanted[] = {'\'', (char)op, '\'', '\0'};
    if (!parser_skip_op(p, op)) parser_unexpected(p, wanted);
}

const Text *parser_expect_name(Parser *p) {
    if (p->now->kind != TOKEN_NAME) parser_unexpected(p, "a name");
    const Text *name = p->now->value.text;
    parser_next(p);
    return name;
}
