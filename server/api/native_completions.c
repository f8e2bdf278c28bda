/* native_completions.c - POST /completion and /infill, llama.cpp's own form: its fields, its defaults, its events. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"
#include "server/api/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PATHS = 64 };

typedef struct NativeFields {
    PlanFields plan;
    const json_t *prompt, *paths;
    FillText fill;
    int64_t n_probs, n_indent;
} NativeFields;

#define N(kind, field, ...) FIELD(NativeFields, kind, field, __VA_ARGS__)
static const Field native_fields[] = {
    {.name = "prompt", N(ANY, prompt)},
    {.name = "max_tokens", N(INT, plan.n_predict, .min = -1, .max = INT32_MAX)},
    {.name = "n_indent", N(INT, n_indent, .min = 0, .max = INT32_MAX)},
    {.name = "response_fields", N(ANY, paths)},
    {.name = "n_probs", N(INT, n_probs, .min = 0, .max = FR_MAX_TOP_LOGPROBS)},
    {.name = "post_sampling_probs", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "reasoning_format", .kind = FIELD_IGNORED}, /* a text has neither reasoning nor calls */
    {.name = "parse_tool_calls", .kind = FIELD_IGNORED},
    {.name = "reasoning_effort", .kind = FIELD_NOTED},
    {.name = "tool_choice", .kind = FIELD_NEUTRAL, .neutral = "auto none"},
    {.name = "add_generation_prompt", .kind = FIELD_NEUTRAL, .min = 0, .max = 1},
    {.name = NULL},
};
static const Field infill_fields[] = {
    {.name = "input_prefix", N(TEXT, fill.prefix)},
    {.name = "input_suffix", N(TEXT, fill.suffix)},
    {.name = "input_extra", N(ANY, fill.extra)},
    {.name = NULL},
};
static const Field *const infill_tables[] = {infill_fields, plan_fields, native_fields, plan_other_fields, NULL};
static const Field *const native_tables[] = {plan_fields, native_fields, plan_other_fields, NULL};

/* ApiCall.own: the places in the answer that the client asks for, such as "timings/predicted_n"; none: all. */
typedef struct NativeCall {
    char *paths[MAX_PATHS]; /* [n_paths] */
    int n_paths;
} NativeCall;

static void free_native(void *own) {
    NativeCall *native = own;
    for (int i = 0; i < native->n_paths; i++) free(native->paths[i]);
    free(native);
}

/* Reads "response_fields". */
static int read_paths(ApiCall *call, const json_t *paths) {
    NativeCall *native = call->own = calloc(1, sizeof *native);
    bool fits = !paths || (json_is_array(paths) && json_array_size(paths) <= MAX_PATHS);
    if (!native) return api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    call->free_own = free_native;
    for (size_t i = 0; i < json_array_size(paths) && fits; i++) fits = json_is_string(json_array_get(paths, i));
    if (!fits)
        return api_refuse(&call->error, 400, "invalid_type", "response_fields",
                          "'response_fields' must be a list of at most %d places, such as \"timings/predicted_n\"",
                          MAX_PATHS);
    for (size_t i = 0; i < json_array_size(paths); i++) {
        char *path = strdup(json_string_value(json_array_get(paths, i)));
        if (!path) return api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
        native->paths[native->n_paths++] = path;
    }
    return 0;
}

/* Reads a body, and fills in the plan except its prompt. */
static int begin_native(ApiCall *call, const json_t *body, const Field *const *names, NativeFields *f) {
    *f = (NativeFields){.prompt = NULL};
    plan_fields_default(&f->plan);
    f->plan.temperature = NATIVE_TEMPERATURE;
    f->plan.top_k = NATIVE_TOP_K;
    f->plan.top_p = NATIVE_TOP_P;
    f->plan.min_p = NATIVE_MIN_P;
    f->plan.has_text_biases = true;
    int status = fields_read(names, body, f, call);
    if (!status) status = plan_begin(&call->plan, call->service, &f->plan, 0, &call->error);
    if (!status) status = read_paths(call, f->paths);
    if (!status && f->n_probs) logprobs_want(&call->plan, f->n_probs);
    call->plan.n_indent = (int)f->n_indent;
    call->plan.tells_stop = true;
    api_call_name(call, "cmpl-");
    return status;
}

static int prepare_native(ApiCall *call, const json_t *body) {
    NativeFields f;
    int status = begin_native(call, body, native_tables, &f);
    if (!status)
        status = plan_add_prompts(&call->plan, f.prompt, "prompt", true, FR_TOKENIZE_PROMPT | FR_TOKENIZE_SPECIAL,
                                  &call->error);
    return status;
}

/* ---- POST /infill ------------------------------------------------------------------------------------------ */

static int prepare_infill(ApiCall *call, const json_t *body) {
    NativeFields f;
    int status = begin_native(call, body, infill_tables, &f);
    if (!status && f.prompt && !json_is_string(f.prompt))
        status = api_refuse(&call->error, 400, "invalid_type", "prompt", "'prompt' must be a string");
    f.fill.begin = json_string_value(f.prompt);
    return status ? status : infill_add_prompt(call, &f.fill);
}

static const char *stop_type(fr_finish finish) {
    if (finish == FR_FINISH_EOS) return "eos";
    return finish == FR_FINISH_STOP ? "word" : "limit";
}

/* ---- answers ----------------------------------------------------------------------------------------------- */

/* Writes the options of llama.cpp that forerun does not have, with the values that ask for nothing. */
static void write_neutral_settings(JsonOut *out) {
    static const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"dynatemp_range", 0},     {"dynatemp_exponent", 1},  {"top_n_sigma", -1},     {"xtc_probability", 0},
        {"xtc_threshold", 0.1},    {"typical_p", 1},          {"dry_multiplier", 0},   {"dry_base", 1.75},
        {"dry_allowed_length", 2}, {"dry_penalty_last_n", 0}, {"mirostat", 0},         {"mirostat_tau", 5},
        {"mirostat_eta", 0.1},     {"adaptive_target", -1},   {"adaptive_decay", 0.9}, {"n_keep", 0},
        {"n_discard", 0},          {"min_keep", 0},
    };
    static const char *const flags[] = {"grammar_lazy", "reasoning_in_content", "post_sampling_probs",
                                        "backend_sampling"},
                             *const lists[] = {"dry_sequence_breakers", "grammar_triggers", "preserved_tokens", "lora"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_out_key_real(out, numbers[i].name, numbers[i].value);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) json_out_key_bool(out, flags[i], false);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        json_out_open(out, lists[i], '[');
        json_out_mark(out, ']');
    }
}

/* Writes what only the client itself may see: stop strings and biases. */
static void write_texts(JsonOut *out, const Plan *plan) {
    json_out_open(out, "stop", '[');
    for (int i = 0; i < plan->n_stops; i++) json_out_text(out, plan->stops[i]);
    json_out_mark(out, ']');
    json_out_open(out, "logit_bias", '[');
    for (int i = 0; i < plan->n_bias; i++) {
        json_out_mark(out, '{');
        json_out_key_int(out, "token", plan->bias[i].token);
        json_out_key_real(out, "bias", plan->bias[i].bias); /* null: the token is banned */
        json_out_mark(out, '}');
    }
    json_out_mark(out, ']');
}

void native_write_settings(JsonOut *out, const Plan *plan, bool is_own) {
    static const char *const samplers[] = {"penalties", "temperature", "top_k", "top_p", "min_p"};
    const fr_sampling *s = &plan->sampling;
    int64_t n_predict = plan->only_reads ? 0 : plan->max_tokens ? plan->max_tokens : -1;
    json_out_key_real(out, "temperature", s->temperature);
    json_out_key_int(out, "top_k", s->top_k);
    json_out_key_real(out, "top_p", s->top_p);
    json_out_key_real(out, "min_p", s->min_p);
    json_out_key_int(out, "repeat_last_n", s->penalty_last_n);
    json_out_key_real(out, "repeat_penalty", s->repeat_penalty);
    json_out_key_real(out, "presence_penalty", s->presence_penalty);
    json_out_key_real(out, "frequency_penalty", s->frequency_penalty);
    json_out_key_int(out, "n_predict", n_predict);
    json_out_key_int(out, "max_tokens", n_predict);
    json_out_key_int(out, "n_probs", plan->n_top_logprobs);
    json_out_key_bool(out, "ignore_eos", plan->ignore_eos);
    json_out_key_bool(out, "stream", plan->streams);
    json_out_key_bool(out, "timings_per_token", plan->shows_timings);
    if (is_own) write_texts(out, plan);
    json_out_open(out, "samplers", '[');
    for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++) json_out_text(out, samplers[i]);
    json_out_mark(out, ']');
    json_out_open(out, "draft", '[');
    for (int i = 0; i < plan->n_drafts; i++) json_out_text(out, plan->drafts[i]);
    json_out_mark(out, ']');
    write_neutral_settings(out);
}

/* Writes the ids of tokens. tokens may be NULL, which gives an empty list. */
static void write_tokens(JsonOut *out, const TokenBatch *tokens) {
    json_out_open(out, "tokens", '[');
    for (size_t i = 0; tokens && i < tokens->n; i++) json_out_int(out, tokens->tokens[i].token);
    json_out_mark(out, ']');
}

static void write_probabilities(JsonOut *out, const ApiCall *call, const TokenBatch *tokens) {
    if (!call->plan.wants_logprobs) return;
    json_out_open(out, "completion_probabilities", '[');
    logprobs_write_list(out, call->plan.model, tokens, true);
    json_out_mark(out, ']');
}

void native_write_answer(JsonOut *out, const ApiCall *call, const Choice *c, const char *text, size_t n) {
    const Prompt *prompt = &call->plan.prompts[c->index / call->plan.n];
    json_out_mark(out, '{');
    json_out_key_int(out, "index", c->index);
    json_out_key(out, "content");
    json_out_bytes(out, text, n);
    write_tokens(out, call->plan.returns_tokens ? &c->tokens : NULL);
    if (!call->plan.streams) write_probabilities(out, call, &c->tokens);
    json_out_key_int(out, "id_slot", c->slot);
    json_out_key_bool(out, "stop", true);
    json_out_key_text(out, "model", call->plan.model->name);
    json_out_key_int(out, "tokens_predicted", c->result->stats.n_generated);
    json_out_key_int(out, "tokens_evaluated", c->result->stats.n_prompt);
    json_out_key_int(out, "tokens_cached", c->result->stats.n_prompt + c->result->stats.n_generated);
    json_out_open(out, "generation_settings", '{');
    json_out_key(out, "seed");
    json_out_uint(out, call->plan.sampling.seed);
    native_write_settings(out, &call->plan, true);
    json_out_mark(out, '}');
    json_out_key_text(out, "prompt", prompt->text);
    json_out_key_bool(out, "has_new_line", c->lines.has_new_line);
    json_out_key_bool(out, "truncated", choice_finish(c) == FR_FINISH_CONTEXT);
    json_out_key_text(out, "stop_type", stop_type(choice_finish(c)));
    const char *stop = stop_string_of(c);
    json_out_key_text(out, "stopping_word", stop ? stop : "");
    openai_write_timings(out, call);
    openai_write_warnings(out, call);
    json_out_mark(out, '}');
}

/* Writes what an answer has at a place such as "timings/predicted_n", with the place as its key; or nothing. */
static void write_path(JsonOut *out, const json_t *answer, const char *path) {
    const json_t *value = answer;
    bool goes_on = true;
    for (const char *at = path; value && goes_on;) {
        char key[64];
        size_t n = strcspn(at, "/");
        snprintf(key, sizeof key, "%.*s", (int)n, at);
        value = json_object_get(value, key);
        goes_on = at[n] == '/';
        at += n + goes_on;
    }
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (value && !text) out->failed = true;
    if (!text) return;
    json_out_key_bytes(out, path, strlen(path));
    json_out_raw(out, text, strlen(text));
    free(text);
}

/* Writes an answer, or the places of it that the client asks for. */
static void write_final(JsonOut *out, const ApiCall *call, const Choice *c, const char *text, size_t n) {
    const NativeCall *native = call->own;
    Buf whole = {.max_bytes = 256 << 20};
    json_error_t why;
    if (native->n_paths == 0) {
        native_write_answer(out, call, c, text, n);
        return;
    }
    JsonOut j = json_out_begin(&whole);
    native_write_answer(&j, call, c, text, n);
    json_t *answer = j.failed ? NULL : json_loadb(whole.data, whole.n, 0, &why);
    if (!answer) out->failed = true;
    json_out_mark(out, '{');
    for (int i = 0; answer && i < native->n_paths; i++) write_path(out, answer, native->paths[i]);
    json_out_mark(out, '}');
    json_decref(answer);
    buf_free(&whole);
}

static void write_native(JsonOut *out, const ApiCall *call) {
    if (call->n_choices > 1) json_out_mark(out, '[');
    for (int i = 0; i < call->n_choices; i++)
        write_final(out, call, &call->choices[i], call->choices[i].text.data, call->choices[i].text.n);
    if (call->n_choices > 1) json_out_mark(out, ']');
}

static void stream_native_progress(Buf *out, const ApiCall *call, const Choice *c) {
    JsonOut j = sse_begin(out);
    json_out_mark(&j, '{');
    json_out_key_int(&j, "index", c->index);
    json_out_key_text(&j, "content", "");
    write_tokens(&j, NULL);
    json_out_key_bool(&j, "stop", false);
    json_out_key_int(&j, "id_slot", c->slot);
    json_out_key_int(&j, "tokens_predicted", 0);
    json_out_key_int(&j, "tokens_evaluated", call->plan.prompts[c->index / call->plan.n].n);
    openai_write_progress(&j, c);
    json_out_mark(&j, '}');
    sse_end(&j);
}

/* Writes the event of a token, after which the choice has n tokens. */
static void stream_token(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *token, int64_t n) {
    JsonOut j = sse_begin(out);
    json_out_mark(&j, '{');
    json_out_key_int(&j, "index", c->index);
    json_out_key(&j, "content");
    json_out_bytes(&j, token->text.data ? token->text.data : "", token->text.n);
    write_tokens(&j, token);
    write_probabilities(&j, call, token);
    json_out_key_bool(&j, "stop", false);
    json_out_key_int(&j, "id_slot", c->slot);
    json_out_key_int(&j, "tokens_predicted", n);
    json_out_key_int(&j, "tokens_evaluated", call->plan.prompts[c->index / call->plan.n].n);
    if (call->plan.shows_timings) openai_write_timings(&j, call);
    json_out_mark(&j, '}');
    sse_end(&j);
}

/* Each token is an event of its own, although a step may add several, as in llama.cpp. */
static void stream_native(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *fresh) {
    TokenCursor at = {.i = 0};
    int64_t n = c->n_tokens - (int64_t)fresh->n;
    for (TokenBatch one; token_batch_next(fresh, &at, &one);) stream_token(out, call, c, &one, ++n);
}

static void end_native(Buf *out, const ApiCall *call, const Choice *c) {
    JsonOut j = sse_begin(out);
    write_final(&j, call, c, "", 0);
    sse_end(&j);
}

static const ApiFormat native_format = {
    .write_error = openai_write_error,
    .write_answer = write_native,
    .stream_text = stream_native,
    .stream_progress = stream_native_progress,
    .end_choice = end_native,
    .stream_error = openai_stream_error,
};

const Endpoint native_completions_endpoints[] = {
    {.method = "POST", .path = "/completion", .format = &native_format, .prepare = prepare_native},
    {.method = "POST", .path = "/completions", .format = &native_format, .prepare = prepare_native},
    {.method = "POST", .path = "/infill", .format = &native_format, .prepare = prepare_infill},
    {.path = NULL},
};
