#include "app/run/generate.h"

#include "app/run/step_counts.h"

#include "base/progress.h"
#include "base/threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT_MAX_BYTES = 16 << 20 };
enum { KEY_SYSTEM = 256, KEY_DRAFT, KEY_VERIFY, KEY_LOSSY, KEY_BUDGET, KEY_TEMP, KEY_TOP_K, KEY_TOP_P, KEY_MIN_P, KEY_REPEAT,
       KEY_FREQUENCY, KEY_PRESENCE, KEY_LAST_N, KEY_SEED, KEY_STOP, KEY_IGNORE_EOS, KEY_KV, KEY_PAGE, KEY_KV_TOKENS, KEY_BACKEND, KEY_KERNELS, KEY_ACT,
       KEY_PIN,
       KEY_COLOR, KEY_CHAT };

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "Model and prompt:", 1},
    {"model", 'm', "FILE", 0, "GGUF file of the target model", 1},
    {"tokens", 'n', "N", 0, "generate at most N tokens (default 256; 0: until the context is full)", 1},
    {"system", KEY_SYSTEM, "TEXT", 0, "system message of the chat", 1},
    {"stop", KEY_STOP, "TEXT", 0, "end before TEXT would be said (may be given several times)", 1},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "go on when the model ends its text", 1},
    {NULL, 0, NULL, 0, "Drafting (never changes a token, but see --verify):", 2},
    {"draft", KEY_DRAFT, "SPEC", 0, "method:key=value,... such as ngram-trie; may be given several times; auto: forerun chooses; none: plain", 2},
    {"tree-budget", KEY_BUDGET, "B", 0, "at most B drafted tokens in a step (default 8); auto: as many as pay (default of the "
     "draft auto)", 2},
    {"verify", KEY_VERIFY, "RULE", 0, "rule of acceptance (default sampled; listed below)", 2},
    {"lossy", KEY_LOSSY, NULL, 0, "allow a rule that changes the output distribution: --verify typical", 2},
    {NULL, 0, NULL, 0, "Sampling (the text is a function of these and the seed):", 3},
    {"temp", KEY_TEMP, "T", 0, "temperature (default 0: greedy)", 3},
    {"top-k", KEY_TOP_K, "K", 0, "only the K most probable tokens (default 0: all)", 3},
    {"top-p", KEY_TOP_P, "P", 0, "only the most probable tokens of mass P (default 1: all)", 3},
    {"min-p", KEY_MIN_P, "P", 0, "only tokens at least P times as probable as the best (default 0: all)", 3},
    {"repeat-penalty", KEY_REPEAT, "X", 0, "divide the logits of recent tokens by X (default 1: none)", 3},
    {"frequency-penalty", KEY_FREQUENCY, "X", 0, "subtract X for each recent occurrence (default 0)", 3},
    {"presence-penalty", KEY_PRESENCE, "X", 0, "subtract X from recent tokens (default 0)", 3},
    {"penalty-last-n", KEY_LAST_N, "N", 0, "how many tokens are recent (default 64; -1: all)", 3},
    {"seed", KEY_SEED, "S", 0, "seed of the draw (default 0)", 3},
    {NULL, 0, NULL, 0, "Machine:", 4},
    {"threads", 't', "N", 0, "threads (default: all cores)", 4},
    {"pin", KEY_PIN, NULL, 0, CLI_PIN_HELP, 4},
    {"ctx", 'c', "N", 0, "longest context (default: what the model was trained for, at most 4096)", 4},
    {"kv", KEY_KV, "TYPE", 0, CLI_KV_HELP, 4},
    {"page-size", KEY_PAGE, "N", 0, "tokens in a page of the KV cache (default 16)", 4},
    {"kv-tokens", KEY_KV_TOKENS, "N", 0, "tokens the KV cache holds in all, no fewer than --ctx (default: as many); bounds its "
     "memory", 4},
    {"backend", KEY_BACKEND, "NAME", 0, CLI_BACKEND_HELP, 4},
    {"kernels", KEY_KERNELS, "NAME", 0, "kernel table: auto (default), ref; avx2, avx-vnni, avx512, avx512-bf16; neon, neon-dot, neon-i8mm", 4},
    {"act", KEY_ACT, "FORM", 0, CLI_ACT_HELP, 4},
    {0},
};

static const struct argp_option prompt_options[] = {
    {"prompt", 'p', "TEXT", 0, "what to go on from", 1},
    {"file", 'f', "FILE", 0, "read the prompt from FILE (- for standard input)", 1},
    {"chat", KEY_CHAT, NULL, 0, "the prompt is a user's message: put it into the model's chat format", 1},
    {NULL, 0, NULL, 0, "Output:", 5},
    {"color", KEY_COLOR, "WHEN", OPTION_ARG_OPTIONAL, "colour drafted tokens by drafter: always, auto, never", 5},
    {0},
};

void generate_defaults(GenerateArgs *a) {
    *a = (GenerateArgs){.n_tokens = 256, .sampling = fr_sampling_default(), .engine.cost_cache = cli_cache_folder()};
}

static float parse_float(struct argp_state *state, const char *arg, const char *what) {
    char *end;
    float v = strtof(arg, &end);
    if (end == arg || *end || !isfinite(v)) argp_error(state, "%s: '%s' is no number", what, arg);
    return v;
}

static ColorWhen parse_color(struct argp_state *state, const char *arg) {
    if (!arg || strcmp(arg, "always") == 0) return COLOR_ALWAYS;
    if (strcmp(arg, "auto") == 0) return COLOR_AUTO;
    if (strcmp(arg, "never") != 0) argp_error(state, "--color: '%s' is none of always, auto, never", arg);
    return COLOR_NEVER;
}

static void check_verify(struct argp_state *state, const GenerateArgs *a) {
    const VerifyRule *rule;
    VerifyOptions options;
    fr_error err;
    if (a->verify && verify_rule_parse(a->verify, a->lossy, &rule, &options, &err)) argp_error(state, "--verify: %s", err.message);
}

const VerifyRule *generate_rule(const GenerateArgs *a) {
    const VerifyRule *rule = verify_rules()[0];
    VerifyOptions options;
    if (a->verify) verify_rule_parse(a->verify, true, &rule, &options, NULL); /* check_verify saw that it is one */
    return rule;
}

static error_t parse_sampling(int key, char *arg, struct argp_state *state, fr_sampling *s) {
    switch (key) {
    case KEY_TEMP: s->temperature = parse_float(state, arg, "--temp"); return 0;
    case KEY_TOP_K: s->top_k = (int32_t)cli_parse_int(state, arg, 0, INT32_MAX, "--top-k"); return 0;
    case KEY_TOP_P: s->top_p = parse_float(state, arg, "--top-p"); return 0;
    case KEY_MIN_P: s->min_p = parse_float(state, arg, "--min-p"); return 0;
    case KEY_REPEAT: s->repeat_penalty = parse_float(state, arg, "--repeat-penalty"); return 0;
    case KEY_FREQUENCY: s->frequency_penalty = parse_float(state, arg, "--frequency-penalty"); return 0;
    case KEY_PRESENCE: s->presence_penalty = parse_float(state, arg, "--presence-penalty"); return 0;
    case KEY_LAST_N: s->penalty_last_n = (int32_t)cli_parse_int(state, arg, -1, INT32_MAX, "--penalty-last-n"); return 0;
    case KEY_SEED: s->seed = (uint64_t)cli_parse_int(state, arg, 0, INT64_MAX, "--seed"); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_machine(int key, char *arg, struct argp_state *state, GenerateArgs *a) {
    KvType kv;
    switch (key) {
    case 't': a->engine.n_threads = (int)cli_parse_int(state, arg, 1, THREADS_MAX, "--threads"); return 0;
    case 'c': a->engine.n_ctx = (int)cli_parse_int(state, arg, 1, 1 << 24, "--ctx"); return 0;
    case KEY_PAGE: a->engine.kv_page_size = (int)cli_parse_int(state, arg, 1, 4096, "--page-size"); return 0;
    case KEY_KV_TOKENS: a->engine.kv_tokens = cli_parse_int(state, arg, 1, INT32_MAX, "--kv-tokens"); return 0;
    case KEY_PIN: a->engine.pin_threads = 1; return 0;
    case KEY_BACKEND: a->backend = arg; return 0;
    case KEY_KERNELS: a->kernels = arg; return 0;
    case KEY_ACT:
        if (!act_precision_from_name(arg, &(ActPrecision){0})) argp_error(state, "--act: '%s' is neither q16 nor q8", arg);
        a->activations = arg;
        return 0;
    case KEY_KV:
        if (!kv_type_from_name(arg, &kv)) argp_error(state, "--kv: '%s' is none of f16, f32, q8", arg);
        a->engine.kv_type = (fr_kv_type)kv;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    GenerateArgs *a = state->input;
    switch (key) {
    case 'm': a->model = arg; return 0;
    case 'n': a->n_tokens = cli_parse_int(state, arg, 0, INT32_MAX, "--tokens"); return 0;
    case KEY_SYSTEM: a->system = arg; return 0;
    case KEY_IGNORE_EOS: a->ignore_eos = 1; return 0;
    case KEY_BUDGET:
        a->tree_budget = strcmp(arg, "auto") == 0 ? FR_TREE_BUDGET_AUTO
                                                    : (int)cli_parse_int(state, arg, 1, FR_TREE_BUDGET_MAX, "--tree-budget");
        return 0;
    case KEY_DRAFT:
        if (a->n_drafts == GENERATE_MAX_DRAFTS) argp_error(state, "at most %d drafts", GENERATE_MAX_DRAFTS);
        a->drafts[a->n_drafts++] = arg;
        return 0;
    case KEY_STOP:
        if (a->n_stops == GENERATE_MAX_STOPS) argp_error(state, "at most %d stop strings", GENERATE_MAX_STOPS);
        a->stops[a->n_stops++] = arg;
        return 0;
    case KEY_VERIFY: a->verify = arg; return 0;
    case KEY_LOSSY: a->lossy = 1; return 0;
    case ARGP_KEY_END:
        check_verify(state, a);
        if (!a->model) argp_error(state, "no model given: -m FILE.gguf");
        return 0;
    default: break;
    }
    error_t status = parse_sampling(key, arg, state, &a->sampling);
    return status == ARGP_ERR_UNKNOWN ? parse_machine(key, arg, state, a) : status;
}

static error_t parse_prompt(int key, char *arg, struct argp_state *state) {
    GenerateArgs *a = state->input;
    switch (key) {
    case 'p': a->prompt = arg; return 0;
    case 'f': a->prompt_file = arg; return 0;
    case KEY_CHAT: a->chat = 1; return 0;
    case KEY_COLOR: a->color = parse_color(state, arg); return 0;
    case ARGP_KEY_END:
        if (a->model && !a->prompt && !a->prompt_file) argp_error(state, "no prompt given: -p TEXT or -f FILE");
        if (a->system && !a->chat) argp_error(state, "--system is a message of a chat: give --chat too");
        if (a->prompt && a->prompt_file) argp_error(state, "two prompts given: choose one of -p and -f");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static bool append(Buf *out, const char *text) { return buf_append(out, text, strlen(text)); }

/* Behind the options: the drafting methods and the rules of acceptance, as their lists have them. */
static char *add_methods(int key, const char *text, void *input) {
    (void)input;
    if (key != ARGP_KEY_HELP_EXTRA) return (char *)(uintptr_t)text;
    Buf out = {.max_bytes = 64 << 10};
    bool fits = append(&out, "Drafters (SPEC is method or method:key=value,...):") && cli_list_drafters(&out, false);
    fits = fits && append(&out, "\n\nRules of acceptance (--verify RULE):");
    for (const VerifyRule *const *r = verify_rules(); *r && fits; r++) {
        char line[512];
        int n = snprintf(line, sizeof line, "\n  %s: %s", (*r)->name, (*r)->summary);
        fits = n > 0 && (size_t)n < sizeof line && append(&out, line);
    }
    return out.data; /* argp frees it */
}

const struct argp generate_argp = {.options = option_table, .parser = parse, .help_filter = add_methods};
const struct argp generate_prompt_argp = {.options = prompt_options, .parser = parse_prompt};

static int encode_prompt(Generator *g, const GenerateArgs *a, const char *text, size_t n, fr_error *err) {
    if (!a->chat) return fr_tokenize(g->model, text, n, FR_TOKENIZE_PROMPT, &g->prompt, &g->n_prompt, err);
    fr_chat_message messages[2];
    int n_messages = 0;
    if (a->system) messages[n_messages++] = (fr_chat_message){"system", a->system};
    messages[n_messages++] = (fr_chat_message){"user", text};
    char *prompt;
    int status = fr_chat_prompt(g->model, NULL, messages, n_messages, &prompt, err);
    if (status) return status;
    status = fr_tokenize(g->model, prompt, strlen(prompt), FR_TOKENIZE_PROMPT | FR_TOKENIZE_SPECIAL, &g->prompt,
                         &g->n_prompt, err);
    fr_free(prompt);
    return status;
}

static void show_loading(void *user, double part) { progress_update(user, (int64_t)(part * 1000)); }

int generate_open_model(fr_model **out, const GenerateArgs *a, fr_error *err) {
    Progress bar;
    progress_begin(&bar, stderr, "loading", 1000);
    fr_model_options options = {.backend = a->backend, .kernels = a->kernels, .activations = a->activations, .n_threads = a->engine.n_threads, .progress = show_loading,
                                .progress_user = &bar};
    int status = fr_model_open(out, a->model, &options, err);
    progress_end(&bar);
    return status;
}

int generate_open_engine(fr_engine **out, const fr_model *model, const fr_engine_options *options, const char *const *drafts,
                         int n_drafts, int tree_budget, fr_error *err) {
    fr_engine_options o = *options;
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

static int open_generator(Generator *g, const GenerateArgs *a, fr_error *err) {
    int status = generate_open_model(&g->model, a, err);
    if (!status) status = generate_open_engine(&g->engine, g->model, &a->engine, a->drafts, a->n_drafts, a->tree_budget, err);
    if (status || a->prompt)
        return status ? status : encode_prompt(g, a, a->prompt, strlen(a->prompt), err);
    char *text;
    size_t n;
    status = cli_read_file(a->prompt_file, PROMPT_MAX_BYTES, &text, &n, err);
    if (status) return status;
    status = encode_prompt(g, a, text, n, err);
    free(text);
    return status;
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
    fr_model_close(g->model);
    *g = (Generator){0};
}

fr_request_options generate_request_options(const GenerateArgs *a, const char *const *drafts, int n_drafts) {
    return (fr_request_options){.max_tokens = a->n_tokens, .sampling = a->sampling, .stops = a->stops, .n_stops = a->n_stops,
                                .drafts = drafts, .n_drafts = n_drafts, .tree_budget = a->tree_budget, .verify = a->verify,
                                .allow_lossy = a->lossy,
                                .ignore_eos = a->ignore_eos, .want_logprobs = a->want_logprobs};
}

int generator_run(Generator *g, const GenerateArgs *a, const char *const *drafts, int n_drafts,
                  int (*on_token)(void *, const fr_token_event *), void *user, fr_request **out, fr_error *err) {
    fr_request_options options = generate_request_options(a, drafts, n_drafts);
    options.prompt = g->prompt;
    options.n_prompt = g->n_prompt;
    options.on_token = on_token;
    options.user = user;
    int status = fr_request_open(out, g->engine, &options, err);
    if (status) return status;
    while ((status = fr_engine_step(g->engine, err)) > 0) {}
    if (!status && fr_request_finish(*out) == FR_FINISH_ERROR) {
        *err = *fr_request_error(*out);
        status = err->code;
    }
    if (status) {
        fr_request_close(*out);
        *out = NULL;
    }
    return status;
}

static json_t *int_array(const int64_t *v, int first, int last) {
    json_t *array = json_array();
    while (last > first && v[last] == 0) last--; /* a tail of zeros says nothing */
    for (int i = first; i <= last; i++) json_array_append_new(array, json_integer(v[i]));
    return array;
}

json_t *generate_stats_json(const Generator *g, const fr_request *r, const GenerateArgs *a) {
    fr_stats s;
    fr_model_info info;
    int64_t n;
    size_t n_bytes;
    fr_request_get_stats(r, &s);
    fr_model_get_info(g->model, &info);
    const int32_t *tokens = fr_request_tokens(r, &n);
    const char *text = fr_request_text(r, &n_bytes);
    json_t *ids = json_array(), *conditional = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(ids, json_integer(tokens[i]));
    for (int d = 1; d <= FR_MAX_DEPTH && s.offered_at[d]; d++)
        json_array_append_new(conditional, json_real((double)s.accepted_at[d] / (double)s.offered_at[d]));
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s.logits_hash);
    json_t *j = json_pack("{s:o, s:o, s:s, s:I, s:I, s:I, s:f, s:o, s:o, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:s, s:s, s:i}",
                     "tokens", ids, "text", json_stringn(text, n_bytes), "finish", fr_finish_name(fr_request_finish(r)),
                     "n_prompt", (json_int_t)s.n_prompt, "n_generated", (json_int_t)s.n_generated, "n_steps",
                     (json_int_t)s.n_steps, "acceptance_length", s.acceptance_length, "accept_histogram",
                     int_array(s.accept_histogram, 0, FR_MAX_DEPTH), "conditional_acceptance", conditional, "drafted",
                     (json_int_t)s.drafted, "accepted", (json_int_t)s.accepted, "prefill_s", s.prefill_s, "decode_s",
                     s.decode_s, "tokens_per_s", s.tokens_per_s, "draft_s", s.draft_s, "forward_s", s.forward_s,
                     "verify_s", s.verify_s, "logits_hash", hash, "kernel_table", info.kernels, "activations", info.activations, "threads",
                     a->engine.n_threads ? a->engine.n_threads : threads_n_cores());
    if (j) {
        StepCounts steps = {0};
        step_counts_take(&steps, &s);
        step_counts_json(&steps, j);
        json_object_set_new(j, "verify", json_string(a->verify ? a->verify : "sampled"));
        json_object_set_new(j, "lossy", json_boolean(s.is_lossy));
        json_object_set_new(j, "proposals", json_integer(s.n_proposals));
        json_object_set_new(j, "undrafted_steps", json_integer(s.undrafted_steps));
        json_object_set_new(j, "n_prompt_shared", json_integer(s.n_prompt_shared));
        json_object_set_new(j, "n_preempted", json_integer(s.n_preempted));
        json_object_set_new(j, "n_recomputed", json_integer(s.n_recomputed));
    }
    if (j && s.draft_error[0]) json_object_set_new(j, "draft_error", json_string(s.draft_error));
    return j;
}

int generate_use_color(ColorWhen when, int fd) {
    return when == COLOR_ALWAYS || (when == COLOR_AUTO && isatty(fd));
}

const char *generate_source_color(int32_t source) {
    static const char *const colors[] = {"\033[32m", "\033[36m", "\033[35m", "\033[33m", "\033[34m", "\033[31m"};
    return source < 0 ? "" : colors[source % (int32_t)(sizeof colors / sizeof *colors)];
}
