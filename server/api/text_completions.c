/* text_completions.c - texts after raw prompts, several at once: POST /v1/completions, and llama.cpp's /completion and
 * /infill. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"
#include "server/api/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct TextFields {
    PlanFields plan;
    const json_t *prompt;
    bool echo;
    const json_t *logprobs;
} TextFields;

#define T(kind, field, ...) FIELD(TextFields, kind, field, __VA_ARGS__)
static const Field text_fields[] = {
    {.name = "prompt", T(ANY, prompt)},
    {.name = "echo", T(BOOL, echo)},
    {.name = "logprobs", T(ANY, logprobs)},
    {.name = "max_tokens", T(INT, plan.max_tokens, .min = 1, .max = INT32_MAX, .or_minus_1 = true)},
    {.name = NULL},
};
static const Field *const tables[] = {plan_fields, text_fields, plan_other_fields, NULL};

/* Allocates the counts of the characters of each choice so far. */
static int open_offsets(ApiCall *call) {
    call->own = calloc((size_t)(call->plan.n_prompts * call->plan.n), sizeof(int64_t));
    call->free_own = free;
    return call->own ? 0 : api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
}

static int read_logprobs(ApiCall *call, const TextFields *f) {
    json_int_t n = json_integer_value(f->logprobs);
    if (!f->logprobs || json_is_false(f->logprobs)) return 0;
    if (!json_is_integer(f->logprobs) || n < 0 || n > FR_MAX_TOP_LOGPROBS)
        return api_refuse(&call->error, 400, "invalid_value", "logprobs",
                          "'logprobs' must be an integer from 0 to %d: how many tokens to show at each place",
                          FR_MAX_TOP_LOGPROBS);
    if (f->echo)
        return api_refuse(&call->error, 400, "unsupported_parameter", "logprobs",
                          "'logprobs' are not supported together with 'echo': those of the prompt are not computed");
    logprobs_want(&call->plan, n);
    return open_offsets(call);
}

static int prepare(ApiCall *call, const json_t *body) {
    TextFields f = {.prompt = NULL};
    plan_fields_default(&f.plan);
    f.plan.max_tokens = 16; /* the default of OpenAI's API */
    int status = fields_read(tables, body, &f, call);
    if (!status) status = plan_begin(&call->plan, call->service, &f.plan, f.plan.max_tokens, &call->error);
    if (!status)
        status = plan_add_prompts(&call->plan, f.prompt, "prompt", f.echo, FR_TOKENIZE_PROMPT | FR_TOKENIZE_SPECIAL,
                                  &call->error);
    if (!status) status = read_logprobs(call, &f);
    api_call_name(call, "cmpl-");
    return status;
}

static void write_logprobs(JsonOut *out, const ApiCall *call, int index, const TokenBatch *tokens) {
    int64_t *offsets = call->own;
    json_out_key(out, "logprobs");
    if (tokens && offsets) logprobs_write_columns(out, call->plan.model, tokens, &offsets[index]);
    else json_out_null(out);
}

/* Writes a choice with some text. finish is NULL if the choice goes on. */
static void write_choice(JsonOut *out, const ApiCall *call, int index, const char *before, const char *text, size_t n,
                         const TokenBatch *tokens, const char *finish) {
    Buf all = {.max_bytes = 128 << 20};
    json_out_mark(out, '{');
    json_out_key_int(out, "index", index);
    json_out_key(out, "text");
    if (before && !(buf_append(&all, before, strlen(before)) && buf_append(&all, text, n))) out->failed = true;
    if (before) json_out_bytes(out, all.data, all.n);
    else json_out_bytes(out, text, n);
    write_logprobs(out, call, index, tokens);
    json_out_key_text(out, "finish_reason", finish);
    if (tokens) openai_write_tokens(out, call, tokens);
    json_out_mark(out, '}');
    buf_free(&all);
}

/* Returns the prompt of a choice, if the client asks to echo it; NULL otherwise. */
static const char *echoed(const ApiCall *call, int index) { return call->plan.prompts[index / call->plan.n].text; }

static void write_answer(JsonOut *out, const ApiCall *call) {
    openai_write_head(out, call, "text_completion");
    json_out_open(out, "choices", '[');
    for (int i = 0; i < call->n_choices; i++) {
        const Choice *c = &call->choices[i];
        write_choice(out, call, i, echoed(call, i), c->text.data, c->text.n, &c->tokens,
                     openai_finish_reason(choice_finish(c)));
    }
    json_out_mark(out, ']');
    openai_write_usage(out, call);
    openai_write_extras(out, call);
    json_out_mark(out, '}');
}

static void stream_piece(Buf *out, const ApiCall *call, int index, const char *text, size_t n, const TokenBatch *tokens,
                         const char *finish) {
    JsonOut j = sse_begin(out);
    openai_write_head(&j, call, "text_completion");
    json_out_open(&j, "choices", '[');
    write_choice(&j, call, index, NULL, text, n, tokens, finish);
    json_out_mark(&j, ']');
    if (call->plan.wants_usage) json_out_key_null(&j, "usage");
    if (finish && call->n_running == 0) openai_write_extras(&j, call);
    else if (!finish && call->plan.shows_timings) openai_write_timings(&j, call);
    json_out_mark(&j, '}');
    sse_end(&j);
}

static void begin_stream(Buf *out, const ApiCall *call) {
    for (int i = 0; i < call->n_choices && echoed(call, i); i++)
        stream_piece(out, call, i, echoed(call, i), strlen(echoed(call, i)), NULL, NULL);
}

static void stream_text(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *fresh) {
    if (fresh->text.n == 0 && !call->plan.returns_tokens && !call->plan.wants_logprobs) return;
    stream_piece(out, call, c->index, fresh->text.data ? fresh->text.data : "", fresh->text.n, fresh, NULL);
}

static void end_choice(Buf *out, const ApiCall *call, const Choice *c) {
    stream_piece(out, call, c->index, "", 0, NULL, openai_finish_reason(choice_finish(c)));
}

static const ApiFormat format = {
    .write_error = openai_write_error,
    .write_answer = write_answer,
    .begin_stream = begin_stream,
    .stream_text = stream_text,
    .end_choice = end_choice,
    .end_stream = openai_end_stream,
    .event_object = "text_completion",
    .stream_error = openai_stream_error,
};

/* ---- POST /completion, llama.cpp's own form: its fields, its defaults, its events -------------------------- */

typedef struct NativeFields {
    PlanFields plan;
    const json_t *prompt;
    const char *prefix, *suffix;
    int64_t n_predict, n_probs;
} NativeFields;

#define N(kind, field, ...) FIELD(NativeFields, kind, field, __VA_ARGS__)
static const Field native_fields[] = {
    {.name = "prompt", N(ANY, prompt)},
    {.name = "n_predict", N(INT, n_predict, .min = -1, .max = INT32_MAX)},
    {.name = "max_tokens", N(INT, n_predict, .min = -1, .max = INT32_MAX)},
    {.name = "n_probs", N(INT, n_probs, .min = 0, .max = FR_MAX_TOP_LOGPROBS)},
    {.name = "post_sampling_probs", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "reasoning_format", .kind = FIELD_IGNORED}, /* a text has neither reasoning nor calls */
    {.name = "parse_tool_calls", .kind = FIELD_IGNORED},
    {.name = NULL},
};
static const Field infill_fields[] = {
    {.name = "input_prefix", N(TEXT, prefix)},
    {.name = "input_suffix", N(TEXT, suffix)},
    {.name = "input_extra", .kind = FIELD_NOTED},
    {.name = NULL},
};
static const Field *const infill_tables[] = {infill_fields, plan_fields, native_fields, plan_other_fields, NULL};
static const Field *const native_tables[] = {plan_fields, native_fields, plan_other_fields, NULL};

/* Reads a body, and fills in the plan except its prompt. */
static int begin_native(ApiCall *call, const json_t *body, const Field *const *names, NativeFields *f) {
    *f = (NativeFields){.n_predict = -1};
    plan_fields_default(&f->plan);
    f->plan.temperature = NATIVE_TEMPERATURE;
    f->plan.top_k = NATIVE_TOP_K;
    f->plan.top_p = NATIVE_TOP_P;
    f->plan.min_p = NATIVE_MIN_P;
    int status = fields_read(names, body, f, call);
    if (!status && f->n_predict == 0)
        status = api_refuse(&call->error, 400, "invalid_value", "n_predict", "'n_predict' must be -1, or 1 or more");
    if (!status)
        status = plan_begin(&call->plan, call->service, &f->plan, f->n_predict > 0 ? f->n_predict : 0, &call->error);
    if (!status && f->n_probs) logprobs_want(&call->plan, f->n_probs);
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

/* ---- POST /infill: the text between a prefix and a suffix, for models with tokens for it ------------------- */

/* The marks before the prefix, the suffix and the middle, as families of models spell them. */
static const char *const fill_marks[][3] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
    {"<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "begin\xEF\xBD\x9C>",
     "<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "hole\xEF\xBD\x9C>",
     "<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "end\xEF\xBD\x9C>"},
    {"\xE2\x96\x81<PRE>", "\xE2\x96\x81<SUF>", "\xE2\x96\x81<MID>"},
};

/* Finds the tokens of the marks. False: the vocabulary has none. */
static bool find_fill_marks(const ServedModel *m, int32_t marks[3]) {
    for (size_t i = 0; i < sizeof fill_marks / sizeof *fill_marks; i++) {
        int n_found = 0;
        for (int k = 0; k < 3; k++) {
            int32_t *ids = NULL;
            int64_t n = 0;
            const char *mark = fill_marks[i][k];
            if (!fr_tokenize(m->model, mark, strlen(mark), FR_TOKENIZE_SPECIAL, &ids, &n, NULL) && n == 1 &&
                fr_token_is_special(m->model, ids[0]))
                marks[n_found++] = ids[0];
            fr_free(ids);
        }
        if (n_found == 3) return true;
    }
    return false;
}

/* Adds the tokens of a text, after a mark unless that is below 0. */
static int add_part(const ServedModel *m, int32_t mark, const char *text, unsigned flags, Prompt *to, ApiError *error) {
    int32_t *ids = NULL;
    int64_t n = 0;
    fr_error why;
    if (text && *text && fr_tokenize(m->model, text, strlen(text), flags, &ids, &n, &why))
        return api_refuse_error(error, "prompt", &why);
    int32_t *all = realloc(to->tokens, (size_t)(to->n + n + 1) * sizeof *all);
    if (all) {
        to->tokens = all;
        if (mark >= 0) all[to->n++] = mark;
        for (int64_t i = 0; i < n; i++) all[to->n++] = ids[i];
    }
    fr_free(ids);
    return all ? 0 : api_refuse(error, 500, NULL, NULL, "memory ran out");
}

/* Adds the prompt BOS, PRE prefix, SUF suffix, MID begin. */
static int add_fill(ApiCall *call, const char *prefix, const char *suffix, const char *begin) {
    const ServedModel *m = call->plan.model;
    int32_t marks[3], *bos = NULL;
    int64_t n_bos = 0;
    Prompt prompt = {.text = strdup(begin ? begin : "")};
    if (!find_fill_marks(m, marks)) {
        free(prompt.text);
        return api_refuse(&call->error, 400, "unsupported_parameter", "input_suffix",
                          "this model has no tokens for text between a prefix and a suffix");
    }
    int status = prompt.text ? 0 : api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    (void)fr_tokenize(m->model, "", 0, FR_TOKENIZE_PROMPT, &bos, &n_bos, NULL);
    if (!status && n_bos > 0) status = add_part(m, bos[0], NULL, 0, &prompt, &call->error);
    if (!status) status = add_part(m, marks[0], prefix, 0, &prompt, &call->error);
    if (!status) status = add_part(m, marks[1], suffix, 0, &prompt, &call->error);
    if (!status) status = add_part(m, marks[2], begin, FR_TOKENIZE_SPECIAL, &prompt, &call->error);
    fr_free(bos);
    if (!status) return plan_add_prompt(&call->plan, &prompt, &call->error);
    free(prompt.tokens);
    free(prompt.text);
    return status;
}

static int prepare_infill(ApiCall *call, const json_t *body) {
    NativeFields f;
    int status = begin_native(call, body, infill_tables, &f);
    if (!status && f.prompt && !json_is_string(f.prompt))
        status = api_refuse(&call->error, 400, "invalid_type", "prompt", "'prompt' must be a string");
    if (!status) status = add_fill(call, f.prefix, f.suffix, json_string_value(f.prompt));
    return status;
}

static const char *stop_type(fr_finish finish) {
    if (finish == FR_FINISH_EOS) return "eos";
    return finish == FR_FINISH_STOP ? "word" : "limit";
}

static void write_settings(JsonOut *out, const ApiCall *call) {
    const fr_sampling *s = &call->plan.sampling;
    json_out_open(out, "generation_settings", '{');
    json_out_key(out, "seed");
    json_out_uint(out, s->seed);
    json_out_key_real(out, "temperature", s->temperature);
    json_out_key_int(out, "top_k", s->top_k);
    json_out_key_real(out, "top_p", s->top_p);
    json_out_key_real(out, "min_p", s->min_p);
    json_out_key_int(out, "repeat_last_n", s->penalty_last_n);
    json_out_key_real(out, "repeat_penalty", s->repeat_penalty);
    json_out_key_real(out, "presence_penalty", s->presence_penalty);
    json_out_key_real(out, "frequency_penalty", s->frequency_penalty);
    json_out_key_int(out, "n_predict", call->plan.max_tokens ? call->plan.max_tokens : -1);
    json_out_key_int(out, "n_probs", call->plan.n_top_logprobs);
    json_out_key_bool(out, "ignore_eos", call->plan.ignore_eos);
    json_out_key_bool(out, "stream", call->plan.streams);
    json_out_open(out, "stop", '[');
    for (int i = 0; i < call->plan.n_stops; i++) json_out_text(out, call->plan.stops[i]);
    json_out_mark(out, ']');
    json_out_open(out, "draft", '[');
    for (int i = 0; i < call->plan.n_drafts; i++) json_out_text(out, call->plan.drafts[i]);
    json_out_mark(out, ']');
    json_out_mark(out, '}');
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

static void write_final(JsonOut *out, const ApiCall *call, const Choice *c, const char *text, size_t n) {
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
    write_settings(out, call);
    json_out_key_text(out, "prompt", prompt->text);
    json_out_key_bool(out, "truncated", choice_finish(c) == FR_FINISH_CONTEXT);
    json_out_key_text(out, "stop_type", stop_type(choice_finish(c)));
    const char *stop = stop_string_of(c);
    json_out_key_text(out, "stopping_word", stop ? stop : "");
    openai_write_timings(out, call);
    openai_write_warnings(out, call);
    json_out_mark(out, '}');
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

static void stream_native(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *fresh) {
    JsonOut j = sse_begin(out);
    json_out_mark(&j, '{');
    json_out_key_int(&j, "index", c->index);
    json_out_key(&j, "content");
    json_out_bytes(&j, fresh->text.data ? fresh->text.data : "", fresh->text.n);
    write_tokens(&j, fresh);
    write_probabilities(&j, call, fresh);
    json_out_key_bool(&j, "stop", false);
    json_out_key_int(&j, "id_slot", c->slot);
    json_out_key_int(&j, "tokens_predicted", c->n_tokens);
    json_out_key_int(&j, "tokens_evaluated", call->plan.prompts[c->index / call->plan.n].n);
    if (call->plan.shows_timings) openai_write_timings(&j, call);
    json_out_mark(&j, '}');
    sse_end(&j);
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

static int prepare_render(ApiCall *call, const json_t *body) {
    return prepare(call, body) ? -1 : openai_render(call, true);
}

const Endpoint text_completions_endpoints[] = {
    {.method = "POST", .path = "/v1/completions", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/v1/completions/render", .format = &format, .prepare = prepare_render},
    {.method = "POST", .path = "/completion", .format = &native_format, .prepare = prepare_native},
    {.method = "POST", .path = "/completions", .format = &native_format, .prepare = prepare_native},
    {.method = "POST", .path = "/infill", .format = &native_format, .prepare = prepare_infill},
    {.path = NULL},
};
