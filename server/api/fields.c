/* fields.c - reads the fields of a body, and refuses those that are not supported by their names. */
#include "server/api/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool has_name(const Field *f, const char *name) {
    size_t n = strlen(f->name);
    return f->name[n - 1] == '*' ? strncmp(f->name, name, n - 1) == 0 : strcmp(f->name, name) == 0;
}

static const Field *find(const Field *const *tables, const char *name) {
    for (; *tables; tables++)
        for (const Field *f = *tables; f->name; f++)
            if (has_name(f, name)) return f;
    return NULL;
}

static bool asks_for_nothing(const json_t *value) {
    return json_is_null(value) || json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static int refuse_range(const Field *f, ApiError *error) {
    return api_refuse(error, 400, "invalid_value", f->name, "'%s' must be %s from %.10g to %.10g", f->name,
                      f->kind == FIELD_INT ? "an integer" : "a number", f->min, f->max);
}

static int read_number(const Field *f, const json_t *value, void *to, ApiError *error) {
    bool is_int = f->kind == FIELD_INT;
    double x = json_is_number(value) ? json_number_value(value) : NAN;
    if (!isfinite(x) || (is_int && x != floor(x)))
        return api_refuse(error, 400, "invalid_type", f->name, "'%s' must be %s", f->name,
                          is_int ? "an integer" : "a number");
    if (f->or_minus_1 && x == -1) x = 0;
    else if (f->min < f->max && (x < f->min || x > f->max)) return refuse_range(f, error);
    if (!is_int) *(double *)to = x;
    else if (json_is_integer(value) && x != 0) *(int64_t *)to = json_integer_value(value);
    else if (fabs(x) < 9e18) *(int64_t *)to = (int64_t)x;
    else return api_refuse(error, 400, "invalid_value", f->name, "'%s' is too large", f->name);
    return 0;
}

/* Returns whether a text is one of those that are listed with a space between them. */
static bool is_listed(const char *list, const char *text) {
    size_t n = strlen(text);
    for (const char *at = list; at && n > 0 && (at = strstr(at, text)); at++)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

static bool is_neutral(const Field *f, const json_t *value) {
    double x = json_is_number(value) ? json_number_value(value) : json_is_true(value) ? 1 : 0;
    if (json_is_string(value)) return json_string_length(value) == 0 || is_listed(f->neutral, json_string_value(value));
    if (json_is_array(value) || json_is_object(value)) return asks_for_nothing(value);
    return f->min < f->max ? x >= f->min && x <= f->max : x == f->min;
}

static int refuse_value(const Field *f, ApiError *error) {
    return f->neutral ? api_refuse(error, 400, "unsupported_parameter", f->name,
                                   "'%s' is not supported, except with the value %s", f->name, f->neutral)
                      : api_refuse(error, 400, "unsupported_parameter", f->name,
                                   "'%s' is not supported, except with the value %g", f->name, f->min);
}

static int read_field(const Field *f, const json_t *value, void *to, ApiCall *call) {
    void *at = (char *)to + f->offset;
    ApiError *error = &call->error;
    switch (f->kind) {
    case FIELD_IGNORED: return 0;
    case FIELD_NEUTRAL: return is_neutral(f, value) ? 0 : refuse_value(f, error);
    case FIELD_NOTED:
        if (is_neutral(f, value) || plan_warn(&call->plan, "the field '%s' has no effect here", f->name)) return 0;
        return api_refuse(error, 500, NULL, NULL, "memory ran out");
    case FIELD_REAL:
    case FIELD_INT: return read_number(f, value, at, error);
    case FIELD_BOOL:
        if (!json_is_boolean(value))
            return api_refuse(error, 400, "invalid_type", f->name, "'%s' must be true or false", f->name);
        *(bool *)at = json_is_true(value);
        return 0;
    case FIELD_TEXT:
        if (!json_is_string(value))
            return api_refuse(error, 400, "invalid_type", f->name, "'%s' must be a string", f->name);
        *(const char **)at = json_string_value(value);
        return 0;
    default: *(const json_t **)at = value; return 0;
    }
}

static int read_unknown(const char *name, ApiCall *call) {
    if (!call->service || !call->service->ignores_unknown)
        return api_refuse(&call->error, 400, "unsupported_parameter", name, "the field '%.60s' is not supported", name);
    return plan_warn(&call->plan, "the field '%.60s' is unknown and was ignored", name)
               ? 0
               : api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
}

int fields_read(const Field *const *tables, const json_t *body, void *to, ApiCall *call) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, name, value) {
        const Field *f = find(tables, name);
        if (json_is_null(value) || (!f && asks_for_nothing(value))) continue;
        if (f ? read_field(f, value, to, call) : read_unknown(name, call)) return -1;
    }
    return 0;
}

bool field_is_text(const json_t *value, const char *text) {
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* ---- logit_bias --------------------------------------------------------------------------------------------
 *
 *     {"15043": -100, "29871": 2.5}                      OpenAI: ids as text
 *     [[15043, false], [29871, 2.5], ["Hello", -1]]      llama.cpp: ids, or texts whose tokens all get the bias
 *     {"15043": -100, "Hello": -1}                       llama.cpp's own endpoints: the same as an object
 *
 * Biases of -100 and less, and `false`, ban a token, as OpenAI documents for -100. Several biases of a token add up. */

enum { BIAS_LIMIT = 100 };

static int refuse_form(ApiError *error) {
    return api_refuse(
        error, 400, "invalid_type", "logit_bias",
        "'logit_bias' must map token ids to numbers from -%d to %d, or be a list of [ID or TEXT, NUMBER or "
        "false]",
        BIAS_LIMIT, BIAS_LIMIT);
}

static int refuse_token(const Plan *plan, const char *spelling, ApiError *error) {
    return api_refuse(error, 400, "invalid_value", "logit_bias",
                      "'logit_bias': %.40s is not a token id; ids of this model are integers from 0 to %d", spelling,
                      plan->model->info.n_vocab - 1);
}

/* Adds a bias. More biases than tokens are a mistake in the request, and would cost time in every step. */
static int add(Plan *plan, int32_t token, float bias, ApiError *error) {
    if (plan->n_bias >= plan->model->info.n_vocab)
        return api_refuse(error, 400, "invalid_value", "logit_bias",
                          "'logit_bias' has more entries than the vocabulary, which has %d tokens",
                          plan->model->info.n_vocab);
    if ((plan->n_bias & (plan->n_bias - 1)) == 0) { /* the array is full: its capacity is a power of two */
        size_t capacity = plan->n_bias ? 2 * (size_t)plan->n_bias : 1;
        fr_logit_bias *grown = realloc(plan->bias, capacity * sizeof *grown);
        if (!grown) return api_refuse(error, 500, NULL, NULL, "memory ran out");
        plan->bias = grown;
    }
    plan->bias[plan->n_bias++] = (fr_logit_bias){token, bias};
    return 0;
}

static int read_bias(const json_t *value, float *bias, ApiError *error) {
    double x = json_is_false(value) ? -BIAS_LIMIT : json_is_number(value) ? json_number_value(value) : NAN;
    if (!(x >= -BIAS_LIMIT && x <= BIAS_LIMIT)) return refuse_form(error);
    *bias = x <= -BIAS_LIMIT ? -INFINITY : (float)x;
    return 0;
}

static int add_text(Plan *plan, const char *text, float bias, ApiError *error) {
    int32_t *ids;
    int64_t n;
    fr_error why;
    if (fr_tokenize(plan->model->model, text, strlen(text), 0, &ids, &n, &why))
        return api_refuse_error(error, "logit_bias", &why);
    int status = 0;
    for (int64_t i = 0; i < n && !status; i++) status = add(plan, ids[i], bias, error);
    fr_free(ids);
    return status;
}

static int add_id(Plan *plan, long long id, const char *spelling, float bias, ApiError *error) {
    if (id < 0 || id >= plan->model->info.n_vocab) return refuse_token(plan, spelling, error);
    return add(plan, (int32_t)id, bias, error);
}

static int read_pair(Plan *plan, const json_t *pair, ApiError *error) {
    const json_t *token = json_array_get(pair, 0);
    char spelling[32];
    float bias;
    if (json_array_size(pair) != 2 || (!json_is_integer(token) && !json_is_string(token))) return refuse_form(error);
    if (read_bias(json_array_get(pair, 1), &bias, error)) return -1;
    if (json_is_string(token)) return add_text(plan, json_string_value(token), bias, error);
    snprintf(spelling, sizeof spelling, "%lld", (long long)json_integer_value(token));
    return add_id(plan, json_integer_value(token), spelling, bias, error);
}

static int read_member(Plan *plan, const char *name, const json_t *value, bool has_texts, ApiError *error) {
    char *end;
    float bias;
    long long id = strtoll(name, &end, 10); /* a number out of range is no id either */
    bool is_id = *name >= '0' && *name <= '9' && !*end;
    if (!is_id && !has_texts) return refuse_token(plan, name, error);
    if (read_bias(value, &bias, error)) return -1;
    return is_id ? add_id(plan, id, name, bias, error) : add_text(plan, name, bias, error);
}

int logit_bias_read(Plan *plan, const json_t *value, bool has_texts, ApiError *error) {
    const char *name;
    json_t *member;
    int status = 0;
    if (!value || json_is_false(value)) return 0;
    if (!json_is_object(value) && !json_is_array(value)) return refuse_form(error);
    for (size_t i = 0; i < json_array_size(value) && !status; i++)
        status = read_pair(plan, json_array_get(value, i), error);
    json_object_foreach((json_t *)(uintptr_t)value, name, member) {
        if (!status) status = read_member(plan, name, member, has_texts, error);
    }
    return status;
}

/* ---- samplers ----------------------------------------------------------------------------------------------
 *
 * llama.cpp's list of the samplers that a request uses: an array of names, a string with ';' between names, or one with
 * a letter for each. Samplers that are not in the list are off, as with their neutral values. The order is fixed. */

typedef struct SamplerName {
    const char *name;
    char letter;
} SamplerName;

/* Returns whether a list has a sampler. A name may be written with '-' for '_'. */
static bool lists(const json_t *value, const SamplerName *sampler) {
    const char *text = json_string_value(value);
    size_t n = strlen(sampler->name);
    char other[16] = "";
    for (size_t i = 0; i < n; i++) other[i] = sampler->name[i] == '_' ? '-' : sampler->name[i];
    if (text && !strpbrk(text, "_-;")) return strchr(text, sampler->letter) != NULL || strcmp(text, sampler->name) == 0;
    if (text) return strstr(text, sampler->name) != NULL || strstr(text, other) != NULL;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (field_is_text(json_array_get(value, i), sampler->name) || field_is_text(json_array_get(value, i), other))
            return true;
    return false;
}

int samplers_read(Plan *plan, const json_t *value, ApiError *error) {
    static const SamplerName penalties = {"penalties", 'e'}, temperature = {"temperature", 't'}, top_k = {"top_k", 'k'},
                             top_p = {"top_p", 'p'}, min_p = {"min_p", 'm'}, infill = {"infill", 'i'};
    fr_sampling *s = &plan->sampling;
    if (!value || asks_for_nothing(value)) return 0;
    if (!json_is_array(value) && !json_is_string(value))
        return api_refuse(error, 400, "invalid_type", "samplers", "'samplers' must be a list of names, or a string");
    if (!lists(value, &penalties)) s->repeat_penalty = 1, s->frequency_penalty = s->presence_penalty = 0;
    if (!lists(value, &temperature)) s->temperature = 1;
    if (!lists(value, &top_k)) s->top_k = 0;
    if (!lists(value, &top_p)) s->top_p = 1;
    if (!lists(value, &min_p)) s->min_p = 0;
    if (!lists(value, &infill) || plan_warn(plan, "the sampler 'infill' has no effect here")) return 0;
    return api_refuse(error, 500, NULL, NULL, "memory ran out");
}
