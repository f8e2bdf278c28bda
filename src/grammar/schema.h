/* schema.h - shared by the files that read JSON schemas. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "grammar/readers.h"
#include "text/template/value.h"

enum { SCHEMA_MAX_PATH = 200 };

typedef struct Schema {
    ExprGrammar *g;
    Work *w;
    Value root;
    KeyedNames rules;               /* of references, by their text; and of what every schema shares */
    char path[SCHEMA_MAX_PATH + 1]; /* of the schema that is read, for errors */
    size_t n_path;
    int depth;
    int32_t max_fraction; /* digits behind the point in the range of numbers that is written */
    char *notice;         /* [notice_size] */
    size_t notice_size;
} Schema;

/* The expression of a schema. */
const Expr *schema_expr(Schema *s, Value schema);
/* Likewise of the schema under a name or number of the current one: errors say where. */
const Expr *schema_below(Schema *s, const char *keyword, const char *name, Value schema);

/* Leaves the Work; the error names the path. */
__attribute__((noreturn, format(printf, 2, 3))) void schema_fail(const Schema *s, const char *fmt, ...);

/* The value of a keyword; NULL: not given. Those with a type refuse other values. */
const Value *schema_get(const Schema *s, Value schema, const char *keyword);
bool schema_count(const Schema *s, Value schema, const char *keyword, int32_t *out); /* an integer from 0 on */
Seq *schema_list(const Schema *s, Value schema, const char *keyword);                /* NULL: not given */
Dict *schema_dict(const Schema *s, Value schema, const char *keyword);

/* schema.c: a schema that holds where both do; the schema that a reference names. */
Value schema_both(Schema *s, Value a, Value b);
Value schema_resolve(Schema *s, const Text *reference);

/* schema_string.c: parts of JSON, and schemas of strings. */
const Expr *schema_space(Schema *s); /* the white space that is allowed between tokens of JSON */
const Expr *schema_any(Schema *s);   /* any value */
const Expr *schema_constant(Schema *s, Value v);
const Expr *schema_text_literal(Schema *s, const Text *text); /* with its quotes */
/* A call of the rule with this name, which is made when it is first needed. */
const Expr *schema_rule(Schema *s, const char *name, const Expr *(*make)(Schema *s));
const Expr *schema_string(Schema *s, Value schema);

/* schema_number.c, schema_containers.c: schemas of the other types. */
const Expr *schema_number(Schema *s, Value schema, bool is_integer);
const Expr *schema_object(Schema *s, Value schema);
const Expr *schema_array(Schema *s, Value schema);

#endif
