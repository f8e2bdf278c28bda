/* plan.h - the fields of a request's body, by tables: type, range, and what is refused by name. */
#ifndef SERVER_API_PLAN_H
#define SERVER_API_PLAN_H

#include "server/api/api.h"

typedef enum FieldKind {
    FIELD_REAL,    /* double */
    FIELD_INT,     /* int64_t */
    FIELD_BOOL,    /* bool */
    FIELD_TEXT,    /* const char *, borrowed */
    FIELD_ANY,     /* const json_t *, borrowed */
    FIELD_IGNORED, /* has no influence on what is generated */
    FIELD_NEUTRAL, /* a number or boolean that forerun does as if it were `min`: other values are refused */
} FieldKind;

typedef struct Field {
    const char *name; /* NULL ends the table */
    FieldKind kind;
    size_t offset;
    double min, max; /* of numbers; equal: any */
} Field;

#define FIELD(S, kind_, field, ...) .kind = FIELD_##kind_, .offset = offsetof(S, field), __VA_ARGS__

/* Fills *to by the tables (the last is NULL); null counts as absent. A field of no table is refused, unless its value
 * asks for nothing: null, false, "", [] or {}. */
int fields_read(const Field *const *tables, const json_t *body, void *to, ApiError *error);

/* Whether a value is this string. NULL is not. */
bool field_is_text(const json_t *value, const char *text);

/* The field "logit_bias" in the forms of OpenAI and llama.cpp. */

/* Fills plan->bias; value NULL: none. */
int logit_bias_read(Plan *plan, const json_t *value, ApiError *error);

/* ---- the fields that hold a text to a JSON schema, a grammar or a regular expression (constraint.c) ------------ */

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

/* ---- from the fields that APIs share to a Plan (plan.c) -------------------------------------------------------- */

enum { SEED_RANDOM = -1 };

/* Fields of generating endpoints, with the defaults of plan_fields_default. Pointers are borrowed from the body. */
typedef struct PlanFields {
    const char *model;
    bool stream, ignore_eos, return_tokens;
    double temperature, top_p, min_p, frequency_penalty, presence_penalty, repeat_penalty;
    int64_t top_k, n, seed, penalty_last_n, max_tokens, max_completion_tokens, tree_budget;
    const json_t *stop, *stream_options, *draft, *prediction, *forerun, *logit_bias;
    ConstraintFields constraint;
} PlanFields;

/* The fields by the names that OpenAI, vLLM and llama.cpp share; what has no influence here; and what other servers can
 * do and forerun cannot, refused unless it asks for nothing. */
extern const Field plan_fields[], plan_ignored_fields[], plan_neutral_fields[];

void plan_fields_default(PlanFields *f);
/* Fills everything in the plan but the prompts. max_tokens: 0: until the context is full. */
int plan_begin(Plan *plan, Service *s, const PlanFields *f, int64_t max_tokens, ApiError *error);
/* The model of a name; NULL or "": the only one, or the first. NULL: refused. */
ServedModel *plan_find_model(const Service *s, const char *name, ApiError *error);
/* Adds a prompt, whose memory it takes over, also where it is refused: *prompt is empty afterwards. */
int plan_add_prompt(Plan *plan, Prompt *prompt, ApiError *error);
/* The value of a field such as "prompt" of /v1/completions: a string, a list of strings, a list of ids, or a list of
 * such lists. */
int plan_add_prompts(Plan *plan, const json_t *prompt, const char *field, bool keeps_text, unsigned flags,
                     ApiError *error);
/* Ids from a JSON array, malloc'ed. */
int plan_read_ids(const ServedModel *m, const json_t *array, const char *field, int32_t **ids, int64_t *n,
                  ApiError *error);
/* A sentence for the client; those beyond API_MAX_WARNINGS are left out. False: no memory. */
__attribute__((format(printf, 2, 3))) bool plan_warn(Plan *plan, const char *format, ...);
void plan_free(Plan *plan);

#endif
