/* logit_bias.c - what is added to the logits of tokens, out of a request's body.
 *
 *     {"15043": -100, "29871": 2.5}                      OpenAI: ids as text
 *     [[15043, false], [29871, 2.5], ["Hello", -1]]      llama.cpp: ids, or texts, each token of which is meant
 *
 * -100 and less, and `false`, ban a token, as OpenAI documents for -100. Several biases of a token add up. */
#include "server/api/logit_bias.h"

#include <math.h>
#include <stdlib.h>

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

/* More biases than there are tokens are a mistake, and would cost time in every step. */
static int add(Plan *plan, int32_t token, float bias, ApiError *error) {
    if (plan->n_bias >= plan->model->info.n_vocab)
        return api_refuse(error, 400, "invalid_value", "logit_bias",
                          "'logit_bias' has more entries than the vocabulary, which has %d tokens",
                          plan->model->info.n_vocab);
    if ((plan->n_bias & (plan->n_bias - 1)) == 0) { /* full: the capacity is a power of two */
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

static int add_text(Plan *plan, const json_t *text, float bias, ApiError *error) {
    int32_t *ids;
    int64_t n;
    fr_error why;
    if (fr_tokenize(plan->model->model, json_string_value(text), json_string_length(text), 0, &ids, &n, &why))
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
    if (json_is_string(token)) return add_text(plan, token, bias, error);
    snprintf(spelling, sizeof spelling, "%lld", (long long)json_integer_value(token));
    return add_id(plan, json_integer_value(token), spelling, bias, error);
}

static int read_member(Plan *plan, const char *name, const json_t *value, ApiError *error) {
    char *end;
    float bias;
    long long id = strtoll(name, &end, 10); /* what is out of range is no id either */
    if (*name < '0' || *name > '9' || *end) return refuse_token(plan, name, error);
    return read_bias(value, &bias, error) ? -1 : add_id(plan, id, name, bias, error);
}

int logit_bias_read(Plan *plan, const json_t *value, ApiError *error) {
    const char *name;
    json_t *member;
    int status = 0;
    if (!value || json_is_false(value)) return 0;
    if (!json_is_object(value) && !json_is_array(value)) return refuse_form(error);
    for (size_t i = 0; i < json_array_size(value) && !status; i++)
        status = read_pair(plan, json_array_get(value, i), error);
    json_object_foreach((json_t *)(uintptr_t)value, name, member) {
        if (!status) status = read_member(plan, name, member, error);
    }
    return status;
}
