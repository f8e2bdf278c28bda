/* schema.h - what the files that read JSON schemas share. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "grammar/readers.h"
#include "text/template/value.h"

enum { SCHEMA_MAX_PATH = 200 };

typedef struct Schema {
    ExprGrammar *g;
    Work *w;
    Value root;
    KeyedNames rules; /* rules by the text of a reference, or by the name of a part that all schemas share */
    char path[SCHEMA_MAX_PATH + 1]; /* the path of the schema that is being read, for errors */
    size_t n_path;
    int depth;
    int32_t max_fraction; /* digits after the point in the range of numbers that is being built */
    char *notice;         /* [notice_size] */
    size_t notice_size;
} Schema;

/* Returns the expression of a schema. */
const Expr *schema_expr(Schema *s, Value schema);
/* The same for a schema inside the current one, under a keyword and a name or number (NULL: none), which errors then
 * name. */
const Expr *schema_below(Schema *s, const char *keyword, const char *name, Value schema);

/* Leaves the Work with an error that names the path. */
__attribute__((noreturn, format(printf, 2, 3))) void schema_fail(const Schema *s, const char *fmt, ...);

/* Returns the value of a keyword. NULL, or false: the keyword is not given. Functions with a type refuse values of
 * other types. */
const Value *schema_get(const Schema *s, Value schema, const char *keyword);
bool schema_count(const Schema *s, Value schema, const char *keyword, int32_t *out); /* an integer from 0 on */
Seq *schema_list(const Schema *s, Value schema, const char *keyword);
Dict *schema_dict(const Schema *s, Value schema, const char *keyword);

/* Returns whether a keyword says nothing about values, such as "title". */
bool schema_is_annotation(const Text *keyword);

/* schema_merge.c. Returns the schema that a reference such as #/$defs/name leads to. */
Value schema_resolve(Schema *s, const Text *reference);
/* Returns a schema of the values that are valid by both. */
Value schema_both(Schema *s, Value a, Value b);

/* schema_string.c: parts of JSON, and schemas of strings. */
const Expr *schema_space(Schema *s); /* the white space that is allowed between tokens of JSON */
const Expr *schema_any(Schema *s);   /* any value */
const Expr *schema_constant(Schema *s, Value v);
const Expr *schema_text_literal(Schema *s, const Text *text); /* with its quotes */
/* Returns a call of the rule with this name, which is made when it is first needed. */
const Expr *schema_rule(Schema *s, const char *name, const Expr *(*make)(Schema *s));
const Expr *schema_string(Schema *s, Value schema);

/* schema_number.c, schema_containers.c: schemas of the other types. */
const Expr *schema_number(Schema *s, Value schema, bool is_integer);
const Expr *schema_object(Schema *s, Value schema);
const Expr *schema_array(Schema *s, Value schema);

#endif
