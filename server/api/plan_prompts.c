/* plan_prompts.c - the prompts of a request: texts, token ids, or both.
 *
 *     "text"                                            one prompt
 *     [1, 2, 3]                                         one prompt
 *     [1, 2, "text", 3]                                 one prompt of llama.cpp's clients: ids, and the ids of texts
 *     {"prompt_string": "text"}                         one prompt, as llama.cpp's clients send it for images
 *     ["text", [1, 2, 3], {"prompt_string": "text"}]    several prompts */
#include "server/api/plan.h"

#include <stdlib.h>
#include <string.h>

/* Adds a raw prompt, given as text. */
static int plan_add_text(Plan *plan, const char *text, size_t n, bool keeps_text, unsigned flags, ApiError *error) {
    Prompt prompt = {.text = keeps_text ? strdup(text) : NULL};
    fr_error why;
    if (keeps_text && !prompt.text) return api_refuse(error, 500, NULL, NULL, "memory ran out");
    if (fr_tokenize(plan->model->model, text, n, flags, &prompt.tokens, &prompt.n, &why)) {
        free(prompt.text);
        return api_refuse_error(error, "prompt", &why);
    }
    return plan_add_prompt(plan, &prompt, error);
}

static int refuse_id(const ServedModel *m, const char *field, size_t i, ApiError *error) {
    return api_refuse(error, 400, "invalid_value", field,
                      "'%s': item %zu is no token id; ids of this model are integers from 0 to %d", field, i,
                      m->info.n_vocab - 1);
}

int plan_read_ids(const ServedModel *m, const json_t *array, const char *field, int32_t **ids, int64_t *n,
                  ApiError *error) {
    size_t count = json_array_size(array);
    *ids = malloc((count ? count : 1) * sizeof **ids);
    *n = (int64_t)count;
    if (!*ids) return api_refuse(error, 500, NULL, NULL, "memory ran out");
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(array, i);
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= m->info.n_vocab) {
            free(*ids);
            *ids = NULL;
            return refuse_id(m, field, i, error);
        }
        (*ids)[i] = (int32_t)value;
    }
    return 0;
}

/* Appends the ids of a text, which is within the prompt and gets no BOS. n_left: how many ids may follow. */
static int append_text(const ServedModel *m, const json_t *text, size_t n_left, const char *field, unsigned flags,
                       Prompt *to, ApiError *error) {
    int32_t *ids = NULL;
    int64_t n;
    fr_error why;
    if (fr_tokenize(m->model, json_string_value(text), json_string_length(text), flags & ~(unsigned)FR_TOKENIZE_PROMPT,
                    &ids, &n, &why))
        return api_refuse_error(error, field, &why);
    int32_t *grown = realloc(to->tokens, ((size_t)(to->n + n) + n_left) * sizeof *grown);
    if (grown) {
        to->tokens = grown;
        if (n > 0) memcpy(grown + to->n, ids, (size_t)n * sizeof *ids);
        to->n += n;
    }
    fr_free(ids);
    return grown ? 0 : api_refuse(error, 500, NULL, NULL, "memory ran out");
}

/* Adds a prompt that is given as ids, and perhaps texts between them. */
static int add_ids(Plan *plan, const json_t *array, const char *field, bool keeps_text, unsigned flags,
                   ApiError *error) {
    size_t count = json_array_size(array), n_text;
    Prompt prompt = {.tokens = malloc((count + 1) * sizeof *prompt.tokens)};
    char *text = NULL;
    fr_error why;
    int status = prompt.tokens ? 0 : api_refuse(error, 500, NULL, NULL, "memory ran out");
    for (size_t i = 0; i < count && !status; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (json_is_string(item)) status = append_text(plan->model, item, count - i, field, flags, &prompt, error);
        else if (id < 0 || id >= plan->model->info.n_vocab) status = refuse_id(plan->model, field, i, error);
        else prompt.tokens[prompt.n++] = (int32_t)id;
    }
    if (!status && keeps_text && fr_detokenize(plan->model->model, prompt.tokens, prompt.n, &text, &n_text, &why))
        status = api_refuse_error(error, field, &why);
    prompt.text = text;
    if (!status) return plan_add_prompt(plan, &prompt, error);
    free(prompt.tokens);
    return status;
}

/* Returns the text of {"prompt_string": TEXT}; NULL: it is something else. Images are refused. */
static const json_t *text_of_object(const json_t *item, const char *field, ApiError *error) {
    const json_t *text = json_object_get(item, "prompt_string"), *media = json_object_get(item, "multimodal_data");
    bool has_media = media && !json_is_null(media) && !(json_is_array(media) && json_array_size(media) == 0);
    if (!has_media && json_is_string(text)) return text;
    if (has_media)
        api_refuse(error, 400, "unsupported_content", field,
                   "'%s': 'multimodal_data' is not supported; this model reads text", field);
    return NULL;
}

static int refuse_prompt(const char *field, ApiError *error) {
    return error->status ? -1
                         : api_refuse(error, 400, "invalid_type", field,
                                      "'%s' must be a string, a list of token ids, or a list of these", field);
}

int plan_add_prompts(Plan *plan, const json_t *prompt, const char *field, bool keeps_text, unsigned flags,
                     ApiError *error) {
    int status = 0;
    if (json_is_object(prompt)) prompt = text_of_object(prompt, field, error);
    if (json_is_string(prompt))
        return plan_add_text(plan, json_string_value(prompt), json_string_length(prompt), keeps_text, flags, error);
    if (!json_is_array(prompt) || json_array_size(prompt) == 0) return refuse_prompt(field, error);
    if (json_is_integer(json_array_get(prompt, 0))) return add_ids(plan, prompt, field, keeps_text, flags, error);
    for (size_t i = 0; i < json_array_size(prompt) && !status; i++) {
        const json_t *item = json_array_get(prompt, i);
        if (json_is_object(item)) item = text_of_object(item, field, error);
        if (json_is_string(item))
            status = plan_add_text(plan, json_string_value(item), json_string_length(item), keeps_text, flags, error);
        else if (json_is_array(item)) status = add_ids(plan, item, field, keeps_text, flags, error);
        else if (error->status) status = -1;
        else
            status = api_refuse(error, 400, "invalid_type", field,
                                "'%s': item %zu must be a string or a list of token ids", field, i);
    }
    return status;
}
