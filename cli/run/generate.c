/* generate.c - one generation of `run`, `compare` and `distill-data`: opens the model, tokenizes the prompt, runs a
 * request to its end, and prints its speed. text_output.c writes the text while it is generated. */
#include "cli/run/generate.h"

#include "cli/speed.h"
#include "base/progress.h"
#include "grammar/grammar.h"
#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT_MAX_BYTES = 16 << 20 };

/* Adds the remedy where the model's file has no template that can be used. */
static int refuse_chat(const fr_model *model, const GenerateArgs *a, const fr_error *why, fr_error *err) {
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    if (a->chat_template || strcmp(info.chat_family, "none") != 0) return error_set(err, why->code, "%s", why->message);
    return error_set(err, why->code,
                     "%.300s: pass --chat-template=NAME, such as chatml or llama3.1, or --chat-template=FILE; 'forerun "
                     "run' without --chat continues plain text",
                     info.chat_template_error ? why->message : "the model has no chat template");
}

int generate_chat(const GenerateArgs *a, const fr_model *model, const fr_chat_message *messages, int n_messages,
                  int32_t **tokens, int64_t *n_tokens, fr_error *err) {
    static bool has_warned;
    fr_chat_options options = {.struct_size = sizeof options,
                               .chat_template = a->chat_template_text ? a->chat_template_text : a->chat_template,
                               .variables = a->chat_variables};
    fr_chat_result result = {.struct_size = sizeof result};
    fr_error why;
    int status = fr_chat_apply(model, messages, n_messages, &options, &result, &why);
    if (status) return refuse_chat(model, a, &why, err);
    if (result.warning[0] && !has_warned) {
        fprintf(stderr, "forerun: %s\n", result.warning);
        has_warned = true;
    }
    *tokens = result.tokens;
    *n_tokens = result.n_tokens;
    result.tokens = NULL;
    fr_chat_result_free(&result);
    return FR_OK;
}

int generate_check_message(const char *owner, const char *text, size_t n, fr_error *err) {
    if (memchr(text, '\0', n))
        return error_set(err, FR_ERR_ARGUMENT, "%s: contains a zero byte, which a message of a chat cannot have",
                         owner);
    for (size_t i = 0, n_whole; i < n; i += n_whole) {
        size_t n_there = utf8_scan(text + i, n - i, &n_whole);
        if (n_there == 0 || n_there < n_whole)
            return error_set(err, FR_ERR_ARGUMENT, "%s: byte %zu is not UTF-8, but a message of a chat must be", owner,
                             i);
    }
    return FR_OK;
}

static int encode_prompt(Generator *g, const GenerateArgs *a, const char *text, size_t n, fr_error *err) {
    unsigned flags = FR_TOKENIZE_PROMPT | (a->special ? FR_TOKENIZE_SPECIAL : 0u);
    if (!a->chat) return fr_tokenize(g->model, text, n, flags, &g->prompt, &g->n_prompt, err);
    fr_chat_message messages[2];
    int n_messages = 0;
    if (a->system) messages[n_messages++] = (fr_chat_message){"system", a->system};
    messages[n_messages++] = (fr_chat_message){"user", text};
    return generate_chat(a, g->model, messages, n_messages, &g->prompt, &g->n_prompt, err);
}

static void show_loading(void *user, double part) { progress_update(user, (int64_t)(part * 1000)); }

static void warn_of_context(const fr_model *model, int n_ctx) {
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    if (n_ctx > info.n_ctx_train && info.n_ctx_train > 0)
        fprintf(
            stderr,
            "forerun: warning: the model was trained for contexts of at most %d tokens, and its text may be worthless "
            "beyond that length: pass -c %d or less\n",
            info.n_ctx_train, info.n_ctx_train);
}

int generate_open_model(fr_model **out, const GenerateArgs *a, fr_error *err) {
    Progress bar;
    progress_begin(&bar, stderr, "loading", 1000);
    fr_model_options options = {.struct_size = sizeof options,
                                .backend = a->backend,
                                .kernels = a->kernels,
                                .activations = a->activations,
                                .packed_file = cli_packed_file(a->model),
                                .n_threads = a->engine.n_threads,
                                .n_ranks = mpi_rank_option(a->n_ranks),
                                .progress = show_loading,
                                .progress_user = &bar};
    int status = fr_model_open(out, a->model, &options, err);
    progress_end(&bar);
    fr_model_info info = {.struct_size = sizeof info, .packed_error = NULL};
    if (!status) fr_model_get_info(*out, &info);
    cli_note_packed(info.packed_error);
    if (!status) warn_of_context(*out, a->engine.n_ctx);
    return status;
}

int generate_open_engine(fr_engine **out, const fr_model *model, const fr_engine_options *options,
                         const char *const *drafts, int n_drafts, int tree_budget, fr_error *err) {
    fr_engine_options o = *options;
    o.struct_size = sizeof o;
    o.drafts = drafts;
    o.n_drafts = n_drafts;
    int status = fr_engine_open(out, model, &o, err);
    if (!status && n_drafts > 0 && tree_budget == FR_TREE_BUDGET_AUTO) status = fr_engine_measure_costs(*out, err);
    if (status) {
        fr_engine_close(*out);
        *out = NULL;
    }
    return status;
}

void generate_note_drafts(const fr_engine *engine, const char *const *drafts, int n_drafts) {
    for (int i = 0; i < n_drafts; i++) {
        const char *notice = fr_engine_draft_notice(engine, drafts[i]);
        if (*notice) fprintf(stderr, "forerun: %s\n", notice);
    }
}

/* Leaves out the newline with which editors and echo end a file, because it is not meant as part of the prompt. */
static size_t without_last_newline(const char *text, size_t n) {
    if (n > 0 && text[n - 1] == '\n') n--;
    if (n > 0 && text[n - 1] == '\r') n--;
    return n;
}

static int encode_prompt_file(Generator *g, const GenerateArgs *a, fr_error *err) {
    char *text;
    size_t n;
    int status = cli_read_file(a->prompt_file, PROMPT_MAX_BYTES, &text, &n, err);
    if (status) return status;
    n = without_last_newline(text, n);
    text[n] = '\0';
    if (n == 0 && strcmp(a->prompt_file, "-") == 0)
        status = error_set(err, FR_ERR_ARGUMENT,
                           "missing prompt: standard input is empty; pass -p TEXT or -f FILE, or pipe the prompt in");
    else if (a->chat) status = generate_check_message(a->prompt_file, text, n, err);
    if (!status) status = encode_prompt(g, a, text, n, err);
    free(text);
    return status;
}

/* Returns whether the argument is a schema itself, not the name of a file. A file whose name begins with a brace is
 * given as ./{... */
static bool is_json_object(const char *text) { return text && text[strspn(text, " \t\r\n")] == '{'; }

/* Opens the grammar of --json-schema, --grammar or --regex, if there is one. */
static int open_grammar(Generator *g, const GenerateArgs *a, fr_error *err) {
    const char *path = a->json_schema ? a->json_schema : a->grammar;
    fr_grammar_kind kind = a->json_schema ? FR_GRAMMAR_JSON_SCHEMA : FR_GRAMMAR_GBNF;
    if (a->regex) return fr_grammar_open(&g->grammar, g->model, FR_GRAMMAR_REGEX, a->regex, strlen(a->regex), err);
    if (!path) return FR_OK;
    bool is_text = is_json_object(a->json_schema);
    const char *from = is_text ? "--json-schema" : path;
    char *text = NULL;
    size_t n;
    fr_error why;
    int status = is_text ? FR_OK : cli_read_file(path, GRAMMAR_MAX_TEXT, &text, &n, err);
    if (status) return status;
    status = fr_grammar_open(&g->grammar, g->model, kind, text ? text : path, text ? n : strlen(path), &why);
    free(text);
    if (status) return error_set(err, (fr_code)status, "%s: %s", from, why.message);
    if (*fr_grammar_notice(g->grammar)) fprintf(stderr, "forerun: %s: %s\n", from, fr_grammar_notice(g->grammar));
    return FR_OK;
}

static int open_generator(Generator *g, const GenerateArgs *a, fr_error *err) {
    int status = generate_open_model(&g->model, a, err);
    if (!status) status = open_grammar(g, a, err);
    if (!status)
        status = generate_open_engine(&g->engine, g->model, &a->engine, a->drafts, a->n_drafts, a->tree_budget, err);
    if (!status) generate_note_drafts(g->engine, a->drafts, a->n_drafts);
    if (status || a->prompt) return status ? status : encode_prompt(g, a, a->prompt, strlen(a->prompt), err);
    return encode_prompt_file(g, a, err);
}

int generator_open(Generator *g, const GenerateArgs *a, fr_error *err) {
    *g = (Generator){0};
    int status = open_generator(g, a, err);
    if (status) generator_close(g);
    return status;
}

void generator_close(Generator *g) {
    fr_free(g->prompt);
    fr_engine_close(g->engine);
    fr_grammar_close(g->grammar);
    fr_model_close(g->model);
    *g = (Generator){0};
}

fr_request_options generate_request_options(const GenerateArgs *a, const char *const *drafts, int n_drafts) {
    return (fr_request_options){.struct_size = sizeof(fr_request_options),
                                .max_tokens = a->n_tokens,
                                .sampling = a->sampling,
                                .stops = a->stops,
                                .n_stops = a->n_stops,
                                .drafts = drafts,
                                .n_drafts = n_drafts,
                                .tree_budget = a->tree_budget,
                                .verify = a->verify,
                                .allow_lossy = a->lossy,
                                .ignore_eos = a->ignore_eos,
                                .want_logprobs = a->want_logprobs,
                                .logit_bias = a->bias,
                                .n_logit_bias = a->n_bias,
                                .n_top_logprobs = a->n_top_logprobs};
}

bool generate_is_plain(const GenerateArgs *a, const fr_model *model) {
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    return strcmp(a->chat_template ? a->chat_template : info.chat_family, "plain") == 0;
}

void generate_stop_at_turns(fr_request_options *o, const char *stops[GENERATE_MAX_CHAT_STOPS]) {
    for (int i = 0; i < o->n_stops; i++) stops[i] = o->stops[i];
    stops[o->n_stops++] = "\nUSER:";
    stops[o->n_stops++] = "\nASSISTANT:";
    o->stops = stops;
}

int generator_run(Generator *g, const GenerateArgs *a, const char *const *drafts, int n_drafts,
                  int (*on_token)(void *, const fr_token_event *), void *user, fr_request **out, fr_error *err) {
    fr_request_options options = generate_request_options(a, drafts, n_drafts);
    const char *stops[GENERATE_MAX_CHAT_STOPS];
    if (a->chat && generate_is_plain(a, g->model)) generate_stop_at_turns(&options, stops);
    options.prompt = g->prompt;
    options.n_prompt = g->n_prompt;
    options.on_token = on_token;
    options.user = user;
    options.grammar = g->grammar;
    options.grammar_after = a->grammar_after;
    int status = fr_request_open(out, g->engine, &options, err);
    if (status) return status;
    while ((status = fr_engine_step(g->engine, err)) > 0) {}
    if (!status && fr_request_finish_reason(*out) == FR_FINISH_ERROR) {
        *err = *fr_request_error(*out);
        status = err->code;
    }
    if (status) {
        fr_request_close(*out);
        *out = NULL;
    }
    return status;
}

/* ---- colours ----------------------------------------------------------------------------------------------- */

int generate_use_color(ColorWhen when, int fd) {
    return when == COLOR_ALWAYS || (when == COLOR_AUTO && cli_may_color(fd));
}

const char *generate_source_color(int32_t source) {
    static const char *const colors[] = {"\033[32m", "\033[36m", "\033[35m", "\033[33m", "\033[34m", "\033[31m"};
    return source < 0 ? "" : colors[source % (int32_t)(sizeof colors / sizeof *colors)];
}

/* ---- the closing line ------------------------------------------------------------------------------------- */

void closing_line_print(const fr_stats *s) {
    if (s->n_generated == 0) return;
    bool is_quiet = cli_may_color(STDERR_FILENO);
    fputs(is_quiet ? "\033[2m[" : "[", stderr);
    fprintf(stderr, "%.*f tokens/s", speed_rate_digits(s->tokens_per_s), s->tokens_per_s);
    if (s->drafted > 0) fprintf(stderr, ", %.2f tokens per step", s->acceptance_length);
    if (s->plain_s > 0) {
        double plain_rate = (double)s->n_generated / s->plain_s;
        fprintf(stderr, "; plain decoding: about %.*f tokens/s", speed_rate_digits(plain_rate), plain_rate);
    }
    fputs(is_quiet ? "]\033[0m\n" : "]\n", stderr);
}
