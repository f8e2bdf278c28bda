/* constraint.h - the fields that hold a text to a JSON schema, a grammar or a regular expression. */
#ifndef SERVER_API_CONSTRAINT_H
#define SERVER_API_CONSTRAINT_H

#include "server/api/api.h"

/* As a body has them; borrowed. At most one asks for something. */
typedef struct ConstraintFields {
    /* {"type": "json_schema", ...}, and what errors call it; name NULL: "response_format" */
    const json_t *format;
    const char *format_name;
    const json_t *json_schema, *structured_outputs, *guided_json, *guided_choice;
    const char *grammar, *guided_regex, *guided_grammar;
} ConstraintFields;

/* Compiles what the fields ask for into plan->grammar. In the worker. */
int constraint_read(Plan *plan, GrammarCache *cache, const ConstraintFields *f, ApiError *error);
/* The same for a grammar in GBNF that is made here; the plan has none yet. `field`: for errors. */
int constraint_set_grammar(Plan *plan, GrammarCache *cache, const Buf *text, const char *field, ApiError *error);
/* Appends a value of JSON, or a literal of GBNF; what memory is missing for shows in the text that is compiled. */
void constraint_write_value(Buf *out, const json_t *value);
bool constraint_write_literal(Buf *out, const char *text, size_t n);

#endif
