/* plan.c - checks the sampling, stop strings and drafts of a request, and copies them from its body. */
#include "server/api/plan.h"

#include "base/os.h"
#include "server/api/openai_format.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F(kind, field, ...) FIELD(PlanFields, kind, field, __VA_ARGS__)
const Field plan_fields[] = {
    {.name = "model", F(TEXT, model)},
    {.name = "stream", F(BOOL, stream)},
    {.name = "stream_options", F(ANY, stream_options)},
    {.name = "temperature", F(REAL, temperature, .min = 0, .max = 100)},
    {.name = "top_p", F(REAL, top_p, .min = 0, .max = 1)},
    {.name = "top_k", F(INT, top_k, .min = -1, .max = INT32_MAX)},
    {.name = "min_p", F(REAL, min_p, .min = 0, .max = 1)},
    {.name = "frequency_penalty", F(REAL, frequency_penalty, .min = -100, .max = 100)},
    {.name = "presence_penalty", F(REAL, presence_penalty, .min = -100, .max = 100)},
    {.name = "repeat_penalty", F(REAL, repeat_penalty, .min = 1e-6, .max = 100)},
    {.name = "repetition_penalty", F(REAL, repeat_penalty, .min = 1e-6, .max = 100)},
    {.name = "repeat_last_n", F(INT, penalty_last_n, .min = -1, .max = INT32_MAX)},
    {.name = "seed", F(INT, seed)},
    {.name = "n", F(INT, n, .min = 1, .max = API_MAX_CHOICES)},
    {.name = "n_cmpl", F(INT, n, .min = 1, .max = API_MAX_CHOICES)},
    {.name = "best_of", F(INT, best_of, .min = 1, .max = API_MAX_CHOICES)},
    {.name = "min_tokens", F(INT, min_tokens, .min = 0, .max = INT32_MAX)},
    {.name = "n_predict", F(INT, n_predict, .min = -1, .max = INT32_MAX)},
    {.name = "max_completion_tokens", F(INT, max_completion_tokens, .min = 1, .max = INT32_MAX, .or_minus_1 = true)},
    {.name = "t_max_predict_ms", F(INT, max_predict_ms, .min = 0, .max = INT32_MAX, .or_minus_1 = true)},
    {.name = "samplers", F(ANY, samplers)},
    {.name = "sampler_seq", F(ANY, samplers)},
    {.name = "stop", F(ANY, stop)},
    {.name = "ignore_eos", F(BOOL, ignore_eos)},
    {.name = "return_tokens", F(BOOL, return_tokens)},
    {.name = "logit_bias", F(ANY, logit_bias)},
    {.name = "response_format", F(ANY, constraint.format)},
    {.name = "json_schema", F(ANY, constraint.json_schema)},
    {.name = "grammar", F(TEXT, constraint.grammar)},
    {.name = "structured_outputs", F(ANY, constraint.structured_outputs)},
    {.name = "guided_json", F(ANY, constraint.guided_json)},
    {.name = "guided_regex", F(TEXT, constraint.guided_regex)},
    {.name = "guided_choice", F(ANY, constraint.guided_choice)},
    {.name = "guided_grammar", F(TEXT, constraint.guided_grammar)},
    {.name = "draft", F(ANY, draft)},
    {.name = "prediction", F(ANY, prediction)},
    {.name = "forerun", F(ANY, forerun)},
    {.name = "timings_per_token", F(BOOL, timings_per_token)},
    {.name = "return_progress", F(BOOL, return_progress)},
    {.name = "reasoning_control", F(BOOL, reasoning_control)},
    {.name = "verbose", F(BOOL, verbose)},
    {.name = "sse_ping_interval", F(INT, ping_s, .min = 0, .max = 86400, .or_minus_1 = true)},
    {.name = "id_slot", F(INT, id_slot, .min = -1, .max = INT32_MAX)},
    {.name = "slot_id", F(INT, id_slot, .min = -1, .max = INT32_MAX)},
    {.name = "tree_budget", F(INT, tree_budget, .min = 1, .max = FR_TREE_BUDGET_MAX)},
    {.name = NULL},
};

/* The other fields of OpenAI, Anthropic, vLLM and llama.cpp, with the values that clients send by default. */
const Field plan_other_fields[] = {
    {.name = "samplers", .kind = FIELD_IGNORED},
    {.name = "sampler_seq", .kind = FIELD_IGNORED},
    {.name = "user", .kind = FIELD_IGNORED},
    {.name = "metadata", .kind = FIELD_IGNORED},
    {.name = "service_tier", .kind = FIELD_IGNORED},
    {.name = "safety_identifier", .kind = FIELD_IGNORED},
    {.name = "prompt_cache_key", .kind = FIELD_IGNORED},
    {.name = "prompt_cache_retention", .kind = FIELD_IGNORED},
    {.name = "prompt_cache_options", .kind = FIELD_IGNORED},
    {.name = "cache_prompt", .kind = FIELD_IGNORED},
    {.name = "cache_reuse", .kind = FIELD_IGNORED},
    {.name = "n_cache_reuse", .kind = FIELD_IGNORED},
    {.name = "n_discard", .kind = FIELD_IGNORED},
    {.name = "parallel_tool_calls", .kind = FIELD_IGNORED},
    {.name = "n_keep", .kind = FIELD_IGNORED},
    {.name = "priority", .kind = FIELD_IGNORED},
    {.name = "request_id", .kind = FIELD_IGNORED},
    {.name = "spaces_between_special_tokens", .kind = FIELD_IGNORED},
    {.name = "mirostat_tau", .kind = FIELD_IGNORED},
    {.name = "mirostat_eta", .kind = FIELD_IGNORED},
    {.name = "dynatemp_exponent", .kind = FIELD_IGNORED},
    {.name = "xtc_threshold", .kind = FIELD_IGNORED},
    {.name = "dry_base", .kind = FIELD_IGNORED},
    {.name = "dry_allowed_length", .kind = FIELD_IGNORED},
    {.name = "dry_penalty_last_n", .kind = FIELD_IGNORED},
    {.name = "dry_sequence_breakers", .kind = FIELD_IGNORED},
    {.name = "adaptive_decay", .kind = FIELD_IGNORED},
    {.name = "grammar_triggers", .kind = FIELD_IGNORED},
    {.name = "reasoning_control", .kind = FIELD_IGNORED},
    {.name = "backend_sampling", .kind = FIELD_IGNORED},
    {.name = "speculative.*", .kind = FIELD_IGNORED},
    {.name = "verbose", .kind = FIELD_IGNORED},
    {.name = "chat_format", .kind = FIELD_IGNORED},
    {.name = "chat_parser", .kind = FIELD_IGNORED},
    {.name = "generation_prompt", .kind = FIELD_IGNORED},
    {.name = "reasoning_budget_start_tag", .kind = FIELD_IGNORED}, /* the marks are those of the template */
    {.name = "reasoning_budget_end_tag", .kind = FIELD_IGNORED},
    {.name = "reasoning_budget_end_tags", .kind = FIELD_IGNORED},
    {.name = "guided_decoding_backend", .kind = FIELD_IGNORED},
    {.name = "guided_whitespace_pattern", .kind = FIELD_IGNORED},
    {.name = "kv_transfer_params", .kind = FIELD_IGNORED},
    {.name = "data_parallel_rank", .kind = FIELD_IGNORED},
    {.name = "detokenize", .kind = FIELD_IGNORED},
    {.name = "session_id", .kind = FIELD_IGNORED},
    {.name = "rid", .kind = FIELD_IGNORED},
    {.name = "truncation_side", .kind = FIELD_IGNORED}, /* nothing is truncated */
    {.name = "stream_interval", .kind = FIELD_IGNORED},
    {.name = "stream_reasoning", .kind = FIELD_IGNORED},
    {.name = "return_mm_kwargs", .kind = FIELD_IGNORED},
    {.name = "max_tool_calls", .kind = FIELD_IGNORED}, /* of tools that the server would run */
    {.name = "stream_resume", .kind = FIELD_IGNORED},
    {.name = "betas", .kind = FIELD_IGNORED},
    {.name = "diagnostics", .kind = FIELD_IGNORED},
    {.name = "user_profile_id", .kind = FIELD_IGNORED},
    {.name = "workspace_id", .kind = FIELD_IGNORED},
    {.name = "billing_policy", .kind = FIELD_IGNORED},
    {.name = "fallbacks", .kind = FIELD_IGNORED}, /* for requests that a model declines */
    {.name = "fallback_credit_token", .kind = FIELD_IGNORED},
    {.name = "access_programs", .kind = FIELD_IGNORED},
    {.name = "background_options", .kind = FIELD_IGNORED}, /* `background` itself is refused */
    {.name = "keep_alive", .kind = FIELD_IGNORED},
    {.name = "mm_processor_kwargs", .kind = FIELD_IGNORED},
    {.name = "media_io_kwargs", .kind = FIELD_IGNORED},
    {.name = "store", .kind = FIELD_NOTED, .min = 0},
    {.name = "verbosity", .kind = FIELD_NOTED, .neutral = "medium"},
    {.name = "cache_salt", .kind = FIELD_NOTED, .min = 0},
    {.name = "extra_key", .kind = FIELD_NOTED, .min = 0},
    {.name = "preserved_tokens", .kind = FIELD_NOTED, .min = 0},
    {.name = "moderation", .kind = FIELD_NOTED, .min = 0},
    {.name = "response_fields", .kind = FIELD_NOTED, .min = 0},
    {.name = "context_management", .kind = FIELD_NOTED, .min = 0},
    {.name = "vllm_xargs", .kind = FIELD_NOTED, .min = 0},
    {.name = "speed", .kind = FIELD_NOTED, .neutral = "standard"},
    {.name = "typical_p", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "typ_p", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "tfs_z", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "top_a", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "top_n_sigma", .kind = FIELD_NEUTRAL, .min = -INT32_MAX, .max = 0, .neutral = "-1"},
    {.name = "mirostat", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "dynatemp_range", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "xtc_probability", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "dry_multiplier", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "adaptive_target", .kind = FIELD_NEUTRAL, .min = -INT32_MAX, .max = 0, .neutral = "-1"},
    {.name = "length_penalty", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "early_stopping", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "min_keep", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "n_probs", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "post_sampling_probs", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "n_indent", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "top_logprobs", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "logprobs", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "prompt_logprobs", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "use_beam_search", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "t_max_predict_ms", .kind = FIELD_NEUTRAL, .min = -1, .max = 0},
    {.name = "t_max_prompt_ms", .kind = FIELD_IGNORED}, /* llama.cpp ignores it, too */
    {.name = "penalize_nl", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "skip_special_tokens", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "stop_token_ids", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "bad_words", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "allowed_token_ids", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "include_stop_str_in_output", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "truncate_prompt_tokens", .kind = FIELD_NEUTRAL, .min = -1},
    {.name = "routed_experts_prompt_start", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "separate_reasoning", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "return_token_ids", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "return_tokens_as_token_ids", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "add_special_tokens", .kind = FIELD_NEUTRAL, .min = 0, .max = 1},
    {.name = "echo", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "suffix", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "reasoning_in_content", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "reasoning_format", .kind = FIELD_NEUTRAL, .neutral = "auto deepseek"},
    {.name = "parse_tool_calls", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "thinking_forced_open", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "grammar_lazy", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "include_reasoning", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "reasoning_budget", .kind = FIELD_NEUTRAL, .min = -1},
    {.name = "thinking_budget_tokens", .kind = FIELD_NEUTRAL, .min = -1},
    {.name = "thinking_token_budget", .kind = FIELD_NEUTRAL, .min = -1},
    {.name = "reasoning_budget_tokens", .kind = FIELD_NEUTRAL, .min = -1},
    {.name = "reasoning_budget_message", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "lora", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "image_data", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "documents", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "chat_template", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "chat_template_content_format", .kind = FIELD_NEUTRAL, .neutral = "auto string openai"},
    {.name = "functions", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "function_call", .kind = FIELD_NEUTRAL, .neutral = "auto none"},
    {.name = "web_search_options", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "mcp_servers", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "container", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = NULL},
};

void plan_fields_default(PlanFields *f) {
    *f = (PlanFields){.temperature = 1,
                      .top_p = 1,
                      .repeat_penalty = 1,
                      .penalty_last_n = fr_sampling_default().penalty_last_n,
                      .n = 1,
                      .n_predict = PREDICT_ABSENT,
                      .id_slot = -1,
                      .seed = SEED_RANDOM};
}

ServedModel *plan_find_model(const Service *s, const char *name, ApiError *error) {
    if (!name || !*name) return &s->models[0];
    for (int i = 0; i < s->n_models; i++)
        if (strcmp(s->models[i].name, name) == 0) return &s->models[i];
    size_t n = strlen(name), n_tag = strlen(":latest"); /* Ollama's clients name a version */
    for (int i = 0; i < s->n_models; i++)
        if (n > n_tag && strcmp(name + n - n_tag, ":latest") == 0 && strlen(s->models[i].name) == n - n_tag &&
            strncmp(s->models[i].name, name, n - n_tag) == 0)
            return &s->models[i];
    if (s->n_models == 1) return &s->models[0]; /* clients are written for names such as gpt-4o */
    api_refuse(error, 404, "model_not_found", "model", "there is no model '%.100s'; GET /v1/models lists them", name);
    return NULL;
}

/* Returns a random seed, below 2^53, so that every JSON parser can read the seed that is reported. */
static uint64_t random_seed(void) {
    uint64_t seed = 0;
    (void)os_random(&seed, sizeof seed, true);
    return seed >> 11;
}

static int add_stop(Plan *plan, const json_t *text, ApiError *error) {
    if (!json_is_string(text) || json_string_length(text) == 0)
        return api_refuse(error, 400, "invalid_type", "stop",
                          "'stop' must be a string that is not empty, or a list of such strings");
    if (plan->n_stops == API_MAX_STOPS)
        return api_refuse(error, 400, "invalid_value", "stop", "'stop' has more than %d strings", API_MAX_STOPS);
    if (!(plan->stops[plan->n_stops] = strdup(json_string_value(text))))
        return api_refuse(error, 500, NULL, NULL, "memory ran out");
    plan->n_stops++;
    return 0;
}

static int read_stops(Plan *plan, const json_t *stop, ApiError *error) {
    if (!stop) return 0;
    if (!json_is_array(stop)) return add_stop(plan, stop, error);
    int status = 0;
    for (size_t i = 0; i < json_array_size(stop) && !status; i++)
        if (!field_is_text(json_array_get(stop, i), "")) status = add_stop(plan, json_array_get(stop, i), error);
    return status;
}

static int add_draft(Plan *plan, const json_t *name, ApiError *error) {
    if (!json_is_string(name))
        return api_refuse(error, 400, "invalid_type", "draft",
                          "'draft' must be the name of a drafter, or a list of names");
    if (strcmp(json_string_value(name), "none") == 0) return 0; /* read_drafts adds it */
    const char *spec = served_model_draft(plan->model, json_string_value(name));
    if (!spec)
        return api_refuse(error, 400, "invalid_value", "draft",
                          "the drafter '%.60s' is not among those that the operator configured; GET /props lists them",
                          json_string_value(name));
    if (plan->n_drafts == SERVED_MAX_DRAFTS)
        return api_refuse(error, 400, "invalid_value", "draft", "'draft' has more than %d names", SERVED_MAX_DRAFTS);
    plan->drafts[plan->n_drafts++] = spec;
    return 0;
}

static int read_drafts(Plan *plan, const json_t *draft, ApiError *error) {
    int status = 0;
    if (!draft)
        for (int i = 0; i < plan->model->n_drafts; i++) plan->drafts[plan->n_drafts++] = plan->model->drafts[i];
    else if (!json_is_array(draft)) status = add_draft(plan, draft, error);
    else
        for (size_t i = 0; i < json_array_size(draft) && !status; i++)
            status = add_draft(plan, json_array_get(draft, i), error);
    if (!status && plan->n_drafts == 0)
        plan->drafts[plan->n_drafts++] = "none"; /* so that the draft "grammar" does not join either */
    return status;
}

/* Reads {"type": "content", "content": "text" or [{"type": "text", "text": ...}, ...]}. */
static int read_prediction(Plan *plan, const json_t *prediction, ApiError *error) {
    Buf text = {.max_bytes = 64 << 20};
    const json_t *content = json_object_get(prediction, "content");
    fr_error why;
    const json_t *type = json_object_get(prediction, "type");
    bool fits = true,
         is_text = (json_is_string(content) || json_is_array(content)) && (!type || field_is_text(type, "content"));
    if (!prediction) return 0;
    if (json_is_string(content)) fits = buf_append(&text, json_string_value(content), json_string_length(content));
    for (size_t i = 0; i < json_array_size(content) && fits && is_text; i++) {
        const json_t *piece = json_object_get(json_array_get(content, i), "text");
        is_text = json_is_string(piece);
        if (is_text) fits = buf_append(&text, json_string_value(piece), json_string_length(piece));
    }
    int status = 0;
    if (!fits) status = api_refuse(error, 500, NULL, NULL, "memory ran out");
    else if (!is_text)
        status = api_refuse(
            error, 400, "invalid_type", "prediction",
            "'prediction' must be {\"type\": \"content\", \"content\": TEXT}, with a string or parts of text");
    else if (fr_tokenize(plan->model->model, text.data ? text.data : "", text.n, 0, &plan->prediction,
                         &plan->n_prediction, &why))
        status = api_refuse_error(error, "prediction", &why);
    else if (plan->n_prediction > 0) plan->drafts[plan->n_drafts++] = "prediction";
    buf_free(&text);
    return status;
}

static int read_stream_options(Plan *plan, const json_t *options, ApiError *error) {
    const char *name;
    json_t *value;
    if (!options) return 0;
    if (!json_is_object(options))
        return api_refuse(error, 400, "invalid_type", "stream_options", "'stream_options' must be an object");
    json_object_foreach((json_t *)(uintptr_t)options, name, value) {
        bool is_usage = strcmp(name, "include_usage") == 0, is_often = strcmp(name, "continuous_usage_stats") == 0;
        if (is_usage && json_is_boolean(value)) plan->wants_usage = json_is_true(value);
        else if (is_often && json_is_boolean(value)) plan->shows_usage = json_is_true(value);
        else if (strcmp(name, "include_obfuscation") != 0 && !json_is_null(value)) /* padding against eavesdroppers */
            return api_refuse(error, 400, "unsupported_parameter", "stream_options",
                              "'stream_options.%.40s' is not supported, or has a value of the wrong type", name);
    }
    plan->shows_usage = plan->shows_usage && plan->wants_usage; /* as in vLLM */
    if (plan->wants_usage && !plan->streams)
        return api_refuse(error, 400, "invalid_value", "stream_options", "'stream_options' needs 'stream': true");
    return 0;
}

int plan_begin(Plan *plan, Service *s, const PlanFields *f, int64_t max_tokens, ApiError *error) {
    plan->model = plan_find_model(s, f->model, error);
    if (!plan->model) return -1;
    plan->n = (int)f->n;
    if (f->best_of && f->best_of != f->n)
        return api_refuse(error, 400, "unsupported_parameter", "best_of",
                          "'best_of' is not supported, except with the value of 'n'");
    plan->max_tokens = f->max_completion_tokens ? f->max_completion_tokens : max_tokens;
    if (f->n_predict != PREDICT_ABSENT) plan->max_tokens = f->n_predict > 0 ? f->n_predict : 0;
    plan->only_reads = f->n_predict == 0;
    if (plan->only_reads) plan->max_tokens = 1; /* api_call.c drops the token */
    plan->max_predict_s = (double)f->max_predict_ms * 1e-3;
    plan->streams = f->stream;
    plan->ignore_eos = f->ignore_eos;
    plan->returns_tokens = f->return_tokens;
    plan->shows_timings = f->timings_per_token;
    plan->shows_progress = f->return_progress;
    plan->controls_reasoning = f->reasoning_control;
    plan->is_verbose = f->verbose;
    plan->ping_s = (int)f->ping_s;
    plan->slot_from_1 = f->id_slot < INT32_MAX ? (int)f->id_slot + 1 : 0;
    plan->has_seed = f->seed != SEED_RANDOM;
    plan->tree_budget = f->tree_budget ? (int)f->tree_budget : plan->model->tree_budget;
    plan->sampling = (fr_sampling){.temperature = (float)f->temperature,
                                   .top_k = f->top_k < 0 ? 0 : (int32_t)f->top_k,
                                   .top_p = f->top_p > 1e-6 ? (float)f->top_p : 1e-6f,
                                   .min_p = (float)f->min_p,
                                   .repeat_penalty = (float)f->repeat_penalty,
                                   .frequency_penalty = (float)f->frequency_penalty,
                                   .presence_penalty = (float)f->presence_penalty,
                                   .penalty_last_n = (int32_t)f->penalty_last_n,
                                   .seed = plan->has_seed ? (uint64_t)f->seed : random_seed()};
    int status = read_stops(plan, f->stop, error);
    if (!status && f->min_tokens && (!f->ignore_eos || plan->n_stops > 0))
        status = api_refuse(error, 400, "unsupported_parameter", "min_tokens",
                            "'min_tokens' is not supported, except with 'ignore_eos' and without stop strings");
    if (!status) status = read_drafts(plan, f->draft, error);
    if (!status) status = read_prediction(plan, f->prediction, error);
    if (!status) status = logit_bias_read(plan, f->logit_bias, f->has_text_biases, error);
    if (!status) status = samplers_read(plan, f->samplers, error);
    if (!status) status = constraint_read(plan, &s->grammars, &f->constraint, error);
    if (!status) status = read_stream_options(plan, f->stream_options, error);
    if (!status) status = token_pieces_read(plan, f->forerun, error);
    if (plan->only_reads) plan->n_drafts = 0;
    return status;
}

int plan_add_prompt(Plan *plan, Prompt *prompt, ApiError *error) {
    int status = 0;
    if (prompt->n < 1) status = api_refuse(error, 400, "invalid_value", "prompt", "the prompt is empty");
    else if (prompt->n > plan->model->n_ctx) {
        status = api_refuse(error, 400, "context_length_exceeded", "prompt",
                            "the prompt has %lld tokens, which exceeds the available context size of %d tokens",
                            (long long)prompt->n, plan->model->n_ctx);
        error->n_prompt_tokens = prompt->n;
        error->n_ctx = plan->model->n_ctx;
    } else if ((plan->n_prompts + 1) * plan->n > API_MAX_CHOICES)
        status = api_refuse(error, 400, "invalid_value", "prompt", "the request asks for more than %d choices",
                            API_MAX_CHOICES);
    if (status) {
        fr_free(prompt->tokens);
        free(prompt->text);
    } else plan->prompts[plan->n_prompts++] = *prompt;
    *prompt = (Prompt){.n = 0};
    return status;
}

bool plan_warn(Plan *plan, const char *format, ...) {
    va_list ap;
    if (plan->n_warnings == API_MAX_WARNINGS) return true;
    va_start(ap, format);
    char *text = NULL;
    bool fits = vasprintf(&text, format, ap) >= 0;
    va_end(ap);
    if (fits) plan->warnings[plan->n_warnings++] = text;
    return fits;
}

void plan_free(Plan *plan) {
    for (int i = 0; i < plan->n_prompts; i++) {
        fr_free(plan->prompts[i].tokens);
        free(plan->prompts[i].text);
    }
    for (int i = 0; i < plan->n_stops; i++) free(plan->stops[i]);
    for (int i = 0; i < plan->n_warnings; i++) free(plan->warnings[i]);
    fr_free(plan->prediction);
    free(plan->bias);
    if (plan->grammar) grammar_cache_give_back(plan->grammars, plan->grammar);
    *plan = (Plan){.model = NULL};
}
