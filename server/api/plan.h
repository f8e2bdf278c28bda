/* plan.h - from the fields of a request's body, described by tables, to a Plan. */
#ifndef SERVER_API_PLAN_H
#define SERVER_API_PLAN_H

#include "server/api/api.h"

typedef enum FieldKind {
    FIELD_REAL,    /* double */
    FIELD_INT,     /* int64_t */
    FIELD_BOOL,    /* bool */
    FIELD_TEXT,    /* const char *, borrowed */
    FIELD_ANY,     /* const json_t *, borrowed */
    FIELD_IGNORED, /* it does not influence the answer */
    FIELD_NEUTRAL, /* forerun supports only values that ask for nothing: `min` to `max`, a text of `neutral`, [], {} */
    FIELD_NOTED,   /* the same values are accepted in silence, and all others with a warning in the answer */
} FieldKind;

typedef struct Field {
    const char *name; /* NULL ends the table; "prefix.*": all names with this prefix */
    FieldKind kind;
    size_t offset;
    double min, max;     /* the range of a number; equal: any number */
    const char *neutral; /* texts that ask for nothing, with a space between them */
    bool or_minus_1;     /* -1 is accepted, too, and means 0: no limit */
} Field;

#define FIELD(S, kind_, field, ...) .kind = FIELD_##kind_, .offset = offsetof(S, field), __VA_ARGS__

/* Fills in *to by the tables, which end with NULL. A field that is null counts as absent. A field that is in no table
 * is refused, or ignored with a warning if the operator wants that, unless its value asks for nothing: null, false, "",
 * [] or {}. Errors and warnings are those of the call. */
int fields_read(const Field *const *tables, const json_t *body, void *to, ApiCall *call);

/* Returns whether a value is this string. NULL is no string. */
bool field_is_text(const json_t *value, const char *text);

/* Fills in plan->bias from the field "logit_bias" in the form of OpenAI or llama.cpp. value may be NULL.
 * has_texts: an object may map texts, too. */
int logit_bias_read(Plan *plan, const json_t *value, bool has_texts, ApiError *error);
/* Switches off the samplers that the field "samplers" leaves out. value may be NULL. */
int samplers_read(Plan *plan, const json_t *value, ApiError *error);

/* ---- the fields that hold a text to a JSON schema, a grammar or a regular expression (constraint.c) ------------ */

/* The fields of a body; borrowed. Only one of them may ask for something. */
typedef struct ConstraintFields {
    /* {"type": "json_schema", ...}, and its name in errors; NULL: "response_format" */
    const json_t *format;
    const char *format_name;
    const json_t *json_schema, *structured_outputs, *guided_json, *guided_choice;
    const char *grammar, *guided_regex, *guided_grammar;
} ConstraintFields;

/* Compiles what the fields ask for into plan->grammar. It runs in the worker. */
int constraint_read(Plan *plan, GrammarCache *cache, const ConstraintFields *f, ApiError *error);
/* The same for a text in GBNF that the server has written; the plan has no grammar yet. `field` is named in errors. */
int constraint_set_grammar(Plan *plan, GrammarCache *cache, const Buf *text, const char *field, ApiError *error);
/* Append a JSON value, and a literal of GBNF. If memory runs out, the text is incomplete and does not compile. */
void constraint_write_value(Buf *out, const json_t *value);
bool constraint_write_literal(Buf *out, const char *text, size_t n);

/* ---- from the fields that APIs share to a Plan (plan.c) -------------------------------------------------------- */

enum { SEED_RANDOM = -1, PREDICT_ABSENT = -2, NATIVE_TOP_K = 40 };
/* llama.cpp's defaults */
#define NATIVE_TEMPERATURE 0.8
#define NATIVE_TOP_P 0.95
#define NATIVE_MIN_P 0.05

/* The fields of endpoints that generate, with the defaults of plan_fields_default. Pointers are borrowed from the
 * body. */
typedef struct PlanFields {
    const char *model;
    bool stream, ignore_eos, return_tokens, timings_per_token, return_progress, reasoning_control, verbose;
    bool has_text_biases; /* logit_bias may map texts, too, as in llama.cpp's own endpoints */
    double temperature, top_p, min_p, frequency_penalty, presence_penalty, repeat_penalty;
    int64_t top_k, n, best_of, min_tokens, seed, penalty_last_n, max_tokens, max_completion_tokens, tree_budget, ping_s,
        id_slot;
    int64_t n_predict; /* llama.cpp's name for max_tokens, which it outranks; PREDICT_ABSENT: it is not given */
    int64_t max_predict_ms;
    const json_t *stop, *stream_options, *draft, *prediction, *forerun, *logit_bias, *samplers;
    ConstraintFields constraint;
} PlanFields;

/* The fields by the names that OpenAI, vLLM and llama.cpp share; and the fields of all clients that forerun does not
 * need, or supports only with values that ask for nothing. The first table with a name decides. */
extern const Field plan_fields[], plan_other_fields[];

void plan_fields_default(PlanFields *f);
/* Fills in the whole plan except its prompts. max_tokens 0: until the context is full. */
int plan_begin(Plan *plan, Service *s, const PlanFields *f, int64_t max_tokens, ApiError *error);
/* Finds the model of a name; NULL and "" are the first model. NULL: there is no such model, and *error is set. */
ServedModel *plan_find_model(const Service *s, const char *name, ApiError *error);
/* Adds a prompt and takes over its memory, even if the prompt is refused: *prompt is empty afterwards. */
int plan_add_prompt(Plan *plan, Prompt *prompt, ApiError *error);
/* Adds the prompts of a field such as "prompt" of /v1/completions: a string, a list of strings, a list of ids, or a
 * list of such lists. */
int plan_add_prompts(Plan *plan, const json_t *prompt, const char *field, bool keeps_text, unsigned flags,
                     ApiError *error);
/* Finish the plan of a call whose answer is embeddings of the texts of a field, and write one as a list of numbers
 * (token_endpoints.c). keeps_text: each Prompt keeps its text. */
int embeddings_prepare(ApiCall *call, const json_t *input, const char *field, bool keeps_text);
void embeddings_write(JsonOut *out, const Choice *c);
/* The texts of /infill; borrowed. begin: of the middle. */
typedef struct FillText {
    const char *prefix, *suffix, *begin;
    const json_t *extra;
} FillText;

/* Adds the prompt that asks for the text between a prefix and a suffix (infill.c). */
int infill_add_prompt(ApiCall *call, const FillText *f);
/* Writes the members of llama.cpp's "generation_settings" except the seed (native_completions.c). is_own: for the
 * client whose plan it is. */
void native_write_settings(JsonOut *out, const Plan *plan, bool is_own);
/* Reads token ids from a JSON array; *ids is malloc'ed. */
int plan_read_ids(const ServedModel *m, const json_t *array, const char *field, int32_t **ids, int64_t *n,
                  ApiError *error);
/* Adds a sentence for the client, unless there are API_MAX_WARNINGS already. False: memory ran out. */
__attribute__((format(printf, 2, 3))) bool plan_warn(Plan *plan, const char *format, ...);
void plan_free(Plan *plan);

#endif
