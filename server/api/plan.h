/* plan.h - from the fields that APIs share to a Plan. */
#ifndef SERVE_PLAN_H
#define SERVE_PLAN_H

#include "server/api/constraint.h"
#include "server/api/fields.h"

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
/* A raw prompt as text. */
int plan_add_text(Plan *plan, const char *text, size_t n, bool keeps_text, unsigned flags, ApiError *error);
/* The value of a field such as "prompt" of /v1/completions: a string, a list of strings, a list of ids, or a list of such lists. */
int plan_add_prompts(Plan *plan, const json_t *prompt, const char *field, bool keeps_text, unsigned flags,
                     ApiError *error);
/* Ids from a JSON array, malloc'ed. */
int plan_read_ids(const ServedModel *m, const json_t *array, const char *field, int32_t **ids, int64_t *n,
                  ApiError *error);
/* A sentence for the client; those beyond API_MAX_WARNINGS are left out. False: no memory. */
__attribute__((format(printf, 2, 3))) bool plan_warn(Plan *plan, const char *format, ...);
void plan_free(Plan *plan);

#endif
